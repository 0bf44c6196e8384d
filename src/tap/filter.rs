//! Which requests are recorded. All others are forwarded just the same, and counted by the reason.

use http::{HeaderMap, Method};

use crate::{
    api::{Endpoint, endpoints::route},
    net::server::media_type,
};

/// What is recorded; by default everything that can be.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// The share of requests that is recorded, drawn anew for each; `None` for all.
    pub sample: Option<f64>,
    /// Paths that are recorded, exact or up to a trailing `*`; empty for all.
    pub paths: Vec<String>,
    /// Models that are recorded, exact or up to a trailing `*`; empty for all.
    pub models: Vec<String>,
}

/// Why a request is not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skipped {
    /// It posts no JSON.
    Kind,
    /// Its path is not one of those asked for.
    Path,
    /// Its model is not one of those asked for.
    Model,
    /// The draw left it out.
    Sample,
    /// Its body never arrived whole.
    Incomplete,
    /// It became another protocol.
    Upgrade,
}

impl Skipped {
    /// Every reason with its name in metrics.
    pub(super) const NAMES: [(Self, &'static str); 6] = [
        (Self::Kind, "kind"),
        (Self::Path, "path"),
        (Self::Model, "model"),
        (Self::Sample, "sample"),
        (Self::Incomplete, "incomplete"),
        (Self::Upgrade, "upgrade"),
    ];
}

impl Filter {
    /// What is known before the body is there.
    ///
    /// # Errors
    /// Why the request is not recorded.
    pub(super) fn admits(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<Endpoint, Skipped> {
        let endpoint = endpoint(method, path, headers).ok_or(Skipped::Kind)?;
        self.draw(path)?;
        Ok(endpoint)
    }

    /// Whether path and draw admit a request.
    fn draw(&self, path: &str) -> Result<(), Skipped> {
        if !self.paths.is_empty() && !self.paths.iter().any(|pattern| fits(pattern, path)) {
            return Err(Skipped::Path);
        }
        // Drawn only once nothing else speaks against it, so that the share is one of what would be recorded.
        match self.sample {
            Some(share) if !rand::random_bool(share.clamp(0.0, 1.0)) => Err(Skipped::Sample),
            _ => Ok(()),
        }
    }

    /// Whether a request may be recorded in a cassette, which has every kind, as far as that is known before the body is there.
    ///
    /// # Errors
    /// Why the request is not recorded.
    pub(super) fn admits_any(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<Endpoint, Skipped> {
        self.draw(path)?;
        Ok(endpoint(method, path, headers).unwrap_or(Endpoint::Other))
    }

    /// Whether a model is recorded; without a filter any is, and with one none that is not named.
    pub(super) fn admits_model(&self, model: Option<&str>) -> bool {
        self.models.is_empty() || model.is_some_and(|model| self.models.iter().any(|pattern| fits(pattern, model)))
    }
}

/// Whether text is what a pattern names: the same, or the same up to its trailing `*`.
pub(super) fn fits(pattern: &str, text: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == text, |start| text.starts_with(start))
}

/// The endpoint that is called, where its answers are recorded: the known ones, and whatever else is posted JSON.
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
