//! Paths that an upstream may resolve to another one.

use super::percent_decoded;

/// Returns whether every server reads a path, percent-encoded or decoded once, as the same one.
///
/// False for dot segments and empty ones, encoded or not, for encoded slashes and backslashes, for what is percent-encoded twice,
/// and for control characters: an upstream or a proxy before it may resolve them to another path.
#[must_use]
pub fn is_unambiguous_path(path: &str) -> bool {
    let has = |escape: &[u8]| path.as_bytes().windows(3).any(|part| part.eq_ignore_ascii_case(escape));
    if has(b"%2f") || has(b"%5c") {
        return false;
    }
    let decoded = percent_decoded(path);
    let is_decoded_again = percent_decoded(&decoded) != decoded;
    if is_decoded_again || decoded.contains(|char: char| char == '\\' || char.is_control()) {
        return false;
    }
    // Some servers take what follows a semicolon off a segment.
    let names = decoded.strip_prefix('/').unwrap_or(&decoded).split('/').map(|part| part.split(';').next());
    let names: Vec<&str> = names.map(Option::unwrap_or_default).collect();
    let is_inner = |at: usize| at + 1 < names.len();
    !names.iter().enumerate().any(|(at, name)| matches!(*name, "." | "..") || (name.is_empty() && is_inner(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_servers_may_resolve_are_ambiguous() {
        for path in ["/", "/health", "/v1/models/", "/a/b.c/..d", "/caf%C3%A9", "/%761/models", "*", "/a%20b", "/100%"]
        {
            assert!(is_unambiguous_path(path), "{path}");
        }
        for path in [
            "/health/../v1/models",
            "/health/%2e%2E/v1/models",
            "/..%2f..%2fv1/models",
            "/health/..%5cv1",
            "/health\\..\\v1",
            "//v1/models",
            "/./v1/models",
            "/a/.",
            "/..;x/v1/models",
            "/;x/v1/models",
            "/%2576%31/models",
            "/%252e%252e/v1",
            "/v1%00",
        ] {
            assert!(!is_unambiguous_path(path), "{path}");
        }
    }
}
