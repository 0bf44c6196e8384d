//! Markers: the only part of a request that every gateway passes on is its prompt, so it names the stream and the case.

const START: &str = "prove-s";

/// Bytes of a marker, whatever it names.
const LENGTH: usize = "prove-s00000-c00000000".len();

/// The marker of a case that asks for a stream of ground truth.
#[must_use]
pub fn marker(stream: usize, case: u64) -> String {
    format!("{}c{case:08x}", stream_marker(stream))
}

/// What the markers of all cases of a stream start with.
#[must_use]
pub fn stream_marker(stream: usize) -> String {
    format!("{START}{stream:05}-")
}

/// The first marker in these bytes.
#[must_use]
pub fn marker_in(bytes: &[u8]) -> Option<String> {
    markers_in(bytes).into_iter().next()
}

/// All markers in these bytes, in order.
#[must_use]
pub fn markers_in(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let starts = text.match_indices(START);
    starts.filter_map(|(start, _)| text.get(start..start + LENGTH).map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found_where_they_stand() {
        let both = [marker(7, 1), marker(12, 0xabc)];
        assert!(both.iter().all(|marker| marker.len() == LENGTH));
        let text = format!("{{\"prompt\":\"{} and {} prove-s\"}}", both[0], both[1]);
        assert_eq!(markers_in(text.as_bytes()), both);
        assert_eq!(marker_in(b"prove-s"), None);
    }
}
