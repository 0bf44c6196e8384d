//! Selection of the requests that are recorded. All others are forwarded too, and counted by reason.

use http::{HeaderMap, Method};

use api::{Endpoint, endpoints::route};
use net::server::media_type;

/// Filter of recorded requests; the default records everything that can be recorded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// Share of requests that is recorded, from 0 to 1, drawn for each request; `None` for all.
    pub sample: Option<f64>,
    /// Paths that are recorded, exact or up to a trailing `*`; empty for all.
    pub paths: Vec<String>,
    /// Models that are recorded, exact or up to a trailing `*`; empty for all.
    pub models: Vec<String>,
}

base::named! {
    /// Reason why a request is not recorded.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Skipped {
        /// Not a POST of JSON.
        Kind = "kind",
        /// The path is not selected.
        Path = "path",
        /// The model is not selected.
        Model = "model",
        /// Not in the sample.
        Sample = "sample",
        /// The body did not arrive whole.
        Incomplete = "incomplete",
        /// Upgraded to another protocol.
        Upgrade = "upgrade",
    }
}

impl Filter {
    /// Decides by method, path and headers, before the body is received.
    pub(super) fn admits(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<Endpoint, Skipped> {
        let endpoint = endpoint(method, path, headers).ok_or(Skipped::Kind)?;
        self.draw(path)?;
        Ok(endpoint)
    }

    /// Decides by path and sample.
    pub(super) fn draw(&self, path: &str) -> Result<(), Skipped> {
        if !self.paths.is_empty() && !self.paths.iter().any(|pattern| fits(pattern, path)) {
            return Err(Skipped::Path);
        }
        // The sample is drawn last, so that the share is one of the requests that would be recorded.
        match self.sample {
            Some(share) if !rand::random_bool(share.clamp(0.0, 1.0)) => Err(Skipped::Sample),
            _ => Ok(()),
        }
    }

    /// Decides like [`admits`](Self::admits) for a cassette, which records every kind of request.
    pub(super) fn admits_any(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<Endpoint, Skipped> {
        self.draw(path)?;
        Ok(endpoint(method, path, headers).unwrap_or(Endpoint::Other))
    }

    /// Returns true if a model is recorded. With a filter, requests without a model are not.
    pub(super) fn admits_model(&self, model: Option<&str>) -> bool {
        self.models.is_empty() || model.is_some_and(|model| self.models.iter().any(|pattern| fits(pattern, model)))
    }
}

/// Compares text with a pattern, exactly or up to a trailing `*`.
pub(super) fn fits(pattern: &str, text: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == text, |start| text.starts_with(start))
}

/// Returns the endpoint of a request whose response may be recorded: a known one, or any other that is posted JSON.
fn endpoint(method: &Method, path: &str, headers: &HeaderMap) -> Option<Endpoint> {
    if method != Method::POST {
        return None;
    }
    let is_json = || media_type(headers).eq_ignore_ascii_case("application/json");
    let known = route(path).and_then(|route| route.endpoint);
    known.or_else(|| is_json().then_some(Endpoint::Other))
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;

    fn admitted(filter: &Filter, path: &str) -> Result<Endpoint, Skipped> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json; charset=utf-8"));
        filter.admits(&Method::POST, path, &headers)
    }

    #[test]
    fn known_endpoints_and_other_json_are_recorded() {
        let all = Filter::default();
        assert_eq!(admitted(&all, "/v1/chat/completions"), Ok(Endpoint::Chat));
        assert_eq!(admitted(&all, "/generate"), Ok(Endpoint::Other));
        assert_eq!(admitted(&all, "/inference/v1/generate"), Ok(Endpoint::Completions));
        let none = HeaderMap::new();
        assert_eq!(all.admits(&Method::POST, "/v1/completions", &none), Ok(Endpoint::Completions));
        assert_eq!(all.admits(&Method::POST, "/v1/audio/transcriptions", &none), Err(Skipped::Kind));
        assert_eq!(all.admits(&Method::GET, "/v1/chat/completions", &none), Err(Skipped::Kind));
    }

    #[test]
    fn paths_models_and_the_draw_decide() {
        let filter =
            Filter { paths: vec!["/v1/chat*".to_owned()], models: vec!["qwen*".to_owned()], ..Filter::default() };
        assert_eq!(admitted(&filter, "/v1/chat/completions"), Ok(Endpoint::Chat));
        assert_eq!(admitted(&filter, "/v1/completions"), Err(Skipped::Path));
        assert!(filter.admits_model(Some("qwen3-8b")) && !filter.admits_model(Some("llama")));
        assert!(!filter.admits_model(None) && Filter::default().admits_model(None));
        for (share, expected) in [(0.0, Err(Skipped::Sample)), (1.0, Ok(Endpoint::Chat))] {
            let filter = Filter { sample: Some(share), ..Filter::default() };
            assert_eq!(admitted(&filter, "/v1/chat/completions"), expected);
        }
    }
}
