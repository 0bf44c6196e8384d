//! The tokens of a recorded response, by the events that brought them.

use std::time::Duration;

use memchr::memmem;

use super::ChoiceMeter;
use crate::timing::TokenChunk;
use api::answers::Observation;

/// Name of the field of an event that has its data.
const DATA: &[u8] = b"data:";

/// The data of an event as it is on the wire.
#[must_use]
pub fn event_data(event: &[u8]) -> &[u8] {
    let start = memmem::find(event, DATA).map(|start| start + DATA.len());
    start.and_then(|start| event.get(start..)).unwrap_or_default()
}

/// The chunks of a stream, by the times and data of its events. The tokens of a choice, of which `totals` has
/// one number each, are spread over the events that add text to it, by how much they add. Where there is one number only it is
/// that of all choices together.
#[must_use]
pub fn chunks_of<'a>(events: impl Iterator<Item = (Duration, &'a [u8])>, totals: &[u32]) -> Vec<TokenChunk> {
    let mut choices: Vec<(ChoiceMeter, Vec<(usize, Duration)>)> = totals.iter().map(|_| Default::default()).collect();
    for (event, (at, data)) in events.enumerate() {
        let Some(Observation { choice, size }) = Observation::read(data) else { continue };
        let choice = if totals.len() == 1 { 0 } else { choice };
        let Some((meter, places)) = choices.get_mut(choice) else { continue };
        meter.chunk(at, 1, size);
        places.push((event, at));
    }
    let mut chunks = Vec::new();
    for (choice, ((meter, places), total)) in choices.into_iter().zip(totals).enumerate() {
        let spread = meter.into_chunks_of(*total).into_iter().zip(places);
        chunks.extend(spread.map(|(chunk, (event, at))| TokenChunk { event, at, choice, tokens: chunk.tokens }));
    }
    chunks.sort_by_key(|chunk| chunk.event);
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn delta(choice: usize, text: &str) -> String {
        format!(r#"data: {{"choices":[{{"index":{choice},"delta":{{"content":"{text}"}}}}]}}"#)
    }

    fn chunks(events: &[String], totals: &[u32]) -> Vec<(usize, usize, u32)> {
        let timed = (1..).zip(events).map(|(at, event)| (MS * at, event_data(event.as_bytes())));
        chunks_of(timed, totals).iter().map(|chunk| (chunk.event, chunk.choice, chunk.tokens)).collect()
    }

    #[test]
    fn tokens_are_spread_over_the_events_that_add_text() {
        let role = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#.to_owned();
        let events = [role, delta(0, "ab"), delta(0, "abcd"), "data: [DONE]".to_owned()];
        assert_eq!(chunks(&events, &[6]), [(1, 0, 2), (2, 0, 4)]);
        assert_eq!(chunks(&events, &[1]), [(1, 0, 1)]);
        assert_eq!(chunks(&events, &[0]), []);
        assert_eq!(chunks(&events, &[]), []);
    }

    #[test]
    fn choices_are_kept_apart_where_their_tokens_are_known() {
        let events = [delta(0, "a"), delta(1, "b"), delta(1, "c"), delta(7, "no such choice"), delta(0, "d")];
        assert_eq!(chunks(&events, &[2, 4]), [(0, 0, 1), (1, 1, 2), (2, 1, 2), (4, 0, 1)]);
        assert_eq!(chunks(&events[..3], &[3]), [(0, 0, 1), (1, 0, 1), (2, 0, 1)]);
    }
}
