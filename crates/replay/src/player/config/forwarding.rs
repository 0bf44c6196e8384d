//! Whether a request may go upstream: decided before matching, so that it does not depend on which records are consumed.

use std::{fmt, str::FromStr};

use crate::{account::is_upstream_name, mcp::OnNovel};
use net::wire::{is_unambiguous_path, percent_decoded};
use recording::canonical::split_upstream;

base::named! {
    /// Mode of a player: what is played and what is recorded.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Mode {
        /// Records answer; nothing is recorded. Also `once` where there is a cassette.
        Replay = "none",
        /// Records answer, everything else goes upstream and is added.
        NewEpisodes = "new-episodes",
        /// Everything goes upstream and is recorded. Also `once` where there is no cassette.
        Record = "all",
        /// Everything goes upstream and nothing is recorded.
        Live = "live",
        /// Everything goes upstream, and the answers are compared with the recorded ones.
        Compare = "compare",
    }
}

impl Mode {
    /// Returns whether requests without a record go upstream.
    pub(crate) fn records(self) -> bool {
        self != Self::Replay
    }
}

/// Response to a request without a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnMiss {
    /// An error that explains itself.
    Error,
    /// What the server around the player makes up.
    Random,
    /// A short text that names the request.
    Stub,
    /// The upstream's answer.
    Upstream,
    /// The upstream's answer, which is recorded.
    Record,
}

/// The same of a request to an MCP server.
impl From<OnMiss> for OnNovel {
    fn from(on_miss: OnMiss) -> Self {
        match on_miss {
            OnMiss::Error | OnMiss::Random => Self::Error,
            OnMiss::Stub => Self::Stub,
            OnMiss::Upstream => Self::Upstream,
            OnMiss::Record => Self::Record,
        }
    }
}

/// Requests, by what they talk to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// All of them.
    Any,
    /// Those to a path.
    Path(String),
    /// Those to the upstream of this name.
    Upstream(String),
    /// A boundary, as `llm:qwen3-8b`.
    Boundary(String),
    /// All boundaries that start so: what stands before a `*`.
    BoundaryStart(String),
}

/// A text that selects nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// It is no selector.
    #[error(
        "`{0}` selects no requests: write llm, llm:MODEL, http, http:POST /path, path:/v1/embeddings, upstream:NAME or *; a * may stand at the end"
    )]
    Form(String),
    /// It names requests that no server here receives.
    #[error(
        "`{0}` selects no requests: an agent runs its tools itself, and its requests to a model are selected by llm:MODEL; \
         a tool's own HTTP requests by path:/... or http:POST /..."
    )]
    Tool(String),
}

impl FromStr for Selector {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Self, SelectionError> {
        Ok(match (text, text.strip_suffix('*'), text.strip_prefix("path:")) {
            ("*", ..) => Self::Any,
            ("llm" | "http", ..) => Self::BoundaryStart(format!("{text}:")),
            _ if let Some(name) = text.strip_prefix("upstream:").filter(|name| is_upstream_name(name)) => {
                Self::Upstream(name.to_owned())
            }
            (_, _, Some(path)) if path.starts_with('/') => Self::Path(path.to_owned()),
            (_, start, None) if text.split_once(':').is_some_and(|(kind, name)| names_requests(kind, name)) => {
                match start {
                    Some(start) => Self::BoundaryStart(start.to_owned()),
                    None => Self::Boundary(text.to_owned()),
                }
            }
            _ if ["tool", "mcp"].contains(&text.split(':').next().unwrap_or_default()) => {
                return Err(SelectionError::Tool(text.to_owned()));
            }
            _ => return Err(SelectionError::Form(text.to_owned())),
        })
    }
}

/// Returns whether a boundary may have this kind and name: a model, or a method and a path.
fn names_requests(kind: &str, name: &str) -> bool {
    let is_method = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase());
    match kind {
        "llm" => !name.is_empty(),
        "http" => match name.split_once(' ') {
            Some((method, path)) => is_method(method) && (path.starts_with('/') || path == "*"),
            None => name.strip_suffix('*').is_some_and(|start| start.is_empty() || is_method(start)),
        },
        _ => false,
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Path(path) => write!(f, "path:{path}"),
            Self::Upstream(name) => write!(f, "upstream:{name}"),
            Self::Boundary(name) => f.write_str(name),
            Self::BoundaryStart(start) => write!(f, "{start}*"),
        }
    }
}

impl Selector {
    fn selects(&self, boundary: &str, path: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Path(selected) => selected == path,
            Self::Boundary(name) => name == boundary || name == split_upstream(boundary).0,
            Self::Upstream(name) => split_upstream(boundary).1 == Some(name.as_str()),
            Self::BoundaryStart(start) => boundary.starts_with(start.as_str()),
        }
    }
}

/// Requests that are an exception to the mode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ModeExceptions {
    /// None.
    #[default]
    None,
    /// These go upstream, all others do not.
    Live(Vec<Selector>),
    /// These do not go upstream.
    Frozen(Vec<Selector>),
    /// None does before the first records were served in its session; from then on all do.
    Fork(Fork),
}

/// Where a run leaves its cassette.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fork {
    /// How many records are played, the first ones that can be served.
    pub played: usize,
    /// The model that is asked upstream, in the place of the client's.
    pub model: Option<String>,
}

/// Whether a request leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forwarding {
    /// At once.
    Now { is_recorded: bool },
    /// Only where no record answers, and then so; `is_frozen` where a selection keeps it from going upstream.
    OnMiss { on_miss: OnMiss, is_frozen: bool },
}

impl ModeExceptions {
    /// Returns whether a request does not go upstream, whatever the mode. A path that the upstream may read as another one may be one of them.
    pub(crate) fn freezes(&self, boundary: &str, path: &str) -> bool {
        let Self::Frozen(selectors) = self else { return false };
        let plain = percent_decoded(path);
        !is_unambiguous_path(path) || selectors.iter().any(|selector| selector.selects(boundary, &plain))
    }

    /// The decision. A path that the upstream may read as another one is no exception that may leave, and one that may not.
    pub(crate) fn decide(&self, mode: Mode, on_miss: OnMiss, boundary: &str, path: &str) -> Forwarding {
        let plain = percent_decoded(path);
        let selects = |selectors: &[Selector]| selectors.iter().any(|selector| selector.selects(boundary, &plain));
        match self {
            Self::Live(selectors) if selects(selectors) => return Forwarding::Now { is_recorded: true },
            Self::Live(_) => return Forwarding::OnMiss { on_miss: OnMiss::Error, is_frozen: true },
            Self::Frozen(_) if self.freezes(boundary, path) => {
                return Forwarding::OnMiss { on_miss: OnMiss::Error, is_frozen: true };
            }
            Self::Frozen(_) | Self::Fork(_) | Self::None => {}
        }
        match mode {
            Mode::Record => Forwarding::Now { is_recorded: true },
            Mode::Live | Mode::Compare => Forwarding::Now { is_recorded: false },
            Mode::NewEpisodes => Forwarding::OnMiss { on_miss: OnMiss::Record, is_frozen: false },
            Mode::Replay => Forwarding::OnMiss { on_miss, is_frozen: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [Mode; 5] = [Mode::Replay, Mode::NewEpisodes, Mode::Record, Mode::Live, Mode::Compare];
    const MISSES: [OnMiss; 5] = [OnMiss::Error, OnMiss::Random, OnMiss::Stub, OnMiss::Upstream, OnMiss::Record];

    #[test]
    fn every_combination_is_decided() {
        let chat: Vec<Selector> = vec!["llm:m".parse().unwrap()];
        for mode in MODES {
            for on_miss in MISSES {
                let unselected = ModeExceptions::None.decide(mode, on_miss, "llm:m", "/x");
                let expected = match mode {
                    Mode::Record => Forwarding::Now { is_recorded: true },
                    Mode::Live | Mode::Compare => Forwarding::Now { is_recorded: false },
                    Mode::NewEpisodes => Forwarding::OnMiss { on_miss: OnMiss::Record, is_frozen: false },
                    Mode::Replay => Forwarding::OnMiss { on_miss, is_frozen: false },
                };
                assert_eq!(unselected, expected, "{mode:?} {on_miss:?}");
                let frozen = Forwarding::OnMiss { on_miss: OnMiss::Error, is_frozen: true };
                assert_eq!(ModeExceptions::Frozen(chat.clone()).decide(mode, on_miss, "llm:m", "/x"), frozen);
                assert_eq!(ModeExceptions::Frozen(chat.clone()).decide(mode, on_miss, "llm:n", "/x"), expected);
                assert_eq!(
                    ModeExceptions::Live(chat.clone()).decide(mode, on_miss, "llm:m", "/x"),
                    Forwarding::Now { is_recorded: true }
                );
                assert_eq!(ModeExceptions::Live(chat.clone()).decide(mode, on_miss, "llm:n", "/x"), frozen);
            }
        }
    }

    #[test]
    fn a_path_that_hides_another_is_frozen() {
        let frozen = ModeExceptions::Frozen(vec!["path:/v1/embeddings".parse().unwrap()]);
        let of = |path| frozen.decide(Mode::Record, OnMiss::Error, "http:POST /x", path);
        assert_eq!(of("/v1/other"), Forwarding::Now { is_recorded: true });
        for path in
            ["/v1/embeddings", "/v1/%65mbeddings", "//v1/embeddings", "/x/../v1/embeddings", "/x/..%2fv1/embeddings"]
        {
            assert_eq!(of(path), Forwarding::OnMiss { on_miss: OnMiss::Error, is_frozen: true }, "{path}");
        }
    }

    #[test]
    fn selectors_name_boundaries() {
        for (text, boundary, selects) in [
            ("*", "http:GET /x", true),
            ("llm", "llm:m", true),
            ("llm", "http:POST /x", false),
            ("llm:m", "llm:m2", false),
            ("llm:m*", "llm:m2", true),
            ("path:/x", "llm:m", true),
            ("path:/y", "llm:m", false),
            ("http:POST /x", "http:POST /x", true),
            ("http:POST*", "http:POST /x", true),
            ("llm:m", "llm:m @a", true),
            ("llm:m @a", "llm:m", false),
            ("upstream:a", "llm:m @a", true),
            ("upstream:a", "llm:m @ab", false),
            ("upstream:a", "llm:m", false),
        ] {
            assert_eq!(text.parse::<Selector>().unwrap().selects(boundary, "/x"), selects, "{text} {boundary}");
        }
        for text in [
            "",
            "gpt",
            "llm:",
            "path:x",
            "x:y",
            "tool",
            "tool:x",
            "mcp:y",
            "http:x",
            "http:POST x",
            "upstream:",
            "upstream:a b",
        ] {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
    }
}
