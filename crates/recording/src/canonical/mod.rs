//! Canonical requests: the form in which two requests that mean the same are equal.
//!
//! A request's route and JSON body are brought into a canonical form (version [`VERSION`]): ignored fields go, nulls and
//! switches that change nothing go, tools and their schemas lose their prose, arguments that are JSON in text are spelled one way, ids are
//! renamed in order of appearance, and texts are scrubbed. The canonical form's hash is the request's key. Keys are made when
//! they are needed and never stored: an edited file is taken as it stands.
//!
//! An ignored field is named by its path ([`FieldPath`]), never by a bare name: `date`, `nonce` and `created` are arguments of
//! a user's tool.
//!
//! Limits: bodies that are not JSON are compared as text. Integers beyond 64 bits are text ([`with_exact_integers`]). An absent `temperature` is not 1: the
//! engine takes its default from the model.

mod align;
mod boundary;
mod conversation;
mod differences;
mod ids;
mod integers;
mod mcp;
mod normal;
mod path;
mod request_key;
mod schema;
mod scrub;
pub(crate) mod shared;
#[cfg(test)]
mod tests;
mod text_pattern;
mod volatile;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

pub use super::field_path::{FieldPath, PathError};

pub use self::{
    align::{TextEdit, text_edits},
    boundary::{UPSTREAM_HEADER, boundary, split_upstream, upstream_suffix},
    conversation::{CanonicalProgress, ChainLink, ConversationStart},
    differences::{BodyDifference, Operation, differences, leaves},
    ids::{renamed, visit_ids},
    integers::with_exact_integers,
    mcp::{McpCall, is_server_name, mcp_summary},
    request_key::request_key,
    scrub::{Scrub, ScrubError},
    shared::{SharedBody, SharedList},
    text_pattern::{TextPattern, TextPatternError},
    volatile::{VolatileShape, volatile_edit, volatile_text},
};

use self::{conversation::CanonicalParts, ids::IdNames};
use net::wire::percent_decoded;

/// The version of the canonical form.
pub const VERSION: u32 = 1;

/// Fields that no two runs share, or that change nothing of an answer's content; of requests to a model only.
const VOLATILE: [&str; 12] = [
    "stream",
    "stream_options",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "metadata",
    "store",
    "service_tier",
    "request_id",
    "priority",
    "cache_salt",
    "kv_transfer_params",
];

/// Rules for the canonical form of requests.
#[derive(Debug, Clone, Default)]
pub struct CanonicalRules {
    /// Fields that do not count, beside the volatile ones.
    pub ignored: Vec<FieldPath>,
    /// Edits of every text, for comparing only.
    pub scrubs: Vec<Scrub>,
    /// Names of headers that count, in lower case.
    pub headers: Vec<String>,
    /// Parameters of the query that do not count.
    pub ignored_parameters: Vec<String>,
    /// Volatile fields, which do not change an answer's content, count as all others.
    pub counts_volatile: bool,
    /// Normalisation of neutral values and of the spellings of arguments.
    pub form: Normalisation,
    /// A message whose content is texts in parts equals one with the joined text, and an explicit type equals none.
    pub joins_texts: bool,
    /// The descriptions of tools themselves count; those within their schemas count in no case but [`Normalisation::Strict`].
    pub counts_tool_descriptions: bool,
}

/// Extent of the normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Normalisation {
    /// Nulls, neutral values, prose of tools, arguments as JSON in text.
    #[default]
    Even,
    /// None of these.
    Strict,
}

/// A request as it came.
#[derive(Debug, Clone, Copy)]
pub struct RequestParts<'a> {
    /// Its method, in capitals.
    pub method: &'a str,
    /// Its path, without prefixes of the server's own, with its query.
    pub path: &'a str,
    /// Headers, names in lower case.
    pub headers: &'a [(String, String)],
    /// Its body; text where it is not JSON, null where there is none.
    pub body: &'a SharedBody,
}

/// A request in canonical form.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// Boundary: `llm:<model>` or `http:<METHOD path>`, with the upstream that the request names.
    pub boundary: String,
    /// Method, path and what counts of the query.
    pub route: String,
    /// The body without the messages of its conversation.
    pub fields: Value,
    /// The field that the conversation's messages are in.
    list: Option<&'static str>,
    /// Equal for equal canonical forms.
    pub key: CanonicalKey,
    /// Equal for equal routes and bodies as they came, white space aside.
    pub exact: CanonicalKey,
    /// The messages of a conversation, its system prompt first; requests that continue others share theirs.
    pub chain: SharedList<ChainLink>,
}

impl Identity {
    /// The body.
    #[must_use]
    pub fn body(&self) -> Value {
        self.body_after(0)
    }

    /// The body without so many of the first links of its chain.
    #[must_use]
    pub fn body_after(&self, links: usize) -> Value {
        let mut body = self.fields.clone();
        let listed = self.chain.after(links).into_iter().filter_map(|link| link.value.clone());
        if let (Some(list), Some(fields)) = (self.list, body.as_object_mut()) {
            fields.insert(list.to_owned(), listed.collect());
        }
        body
    }
}

/// A hash of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CanonicalKey(u128);

impl CanonicalKey {
    /// The hash itself.
    #[must_use]
    pub fn number(self) -> u128 {
        self.0
    }
}

impl std::fmt::Display for CanonicalKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "xxh3:{:032x}", self.0)
    }
}

impl CanonicalRules {
    /// The canonical form of a request.
    #[must_use]
    pub fn identify(&self, call: &RequestParts<'_>) -> Identity {
        self.identify_after(call, None).0
    }

    /// The canonical form of a request that continues another one, and what requests can go on with that continue it.
    #[must_use]
    pub fn identify_after(
        &self,
        call: &RequestParts<'_>,
        start: Option<ConversationStart<'_>>,
    ) -> (Identity, Option<CanonicalProgress>) {
        let (path, query) = call.path.split_once('?').unwrap_or((call.path, ""));
        // Servers decode paths before they look at them, and some encode them again in their own way.
        let path = &*percent_decoded(path);
        let upstream = upstream_suffix(call.headers);
        let boundary = boundary(call.method, path, call.body.fields()) + &upstream;
        let route = format!("{} {path}{upstream}{}", call.method, self.query(query));
        let CanonicalParts { fields, list, chain, exact, progress } = self.parts(&boundary, call.body, start);
        let counted = self.headers.iter().map(|name| {
            let value = call.headers.iter().find(|(header, _)| header == name).map_or("", |(_, value)| value);
            format!("{name}: {value}\n")
        });
        let named: String = std::iter::once(format!("{route}\n")).chain(counted).collect();
        let mut whole = named.into_bytes();
        whole.extend(normal::sorted(&fields));
        whole.extend_from_slice(list.unwrap_or_default().as_bytes());
        whole.extend_from_slice(&chain.last().map_or(0, |link| link.hash).to_le_bytes());
        let key = CanonicalKey(xxh3_128(&whole));
        let exact = CanonicalKey(xxh3_128(
            format!("{} {path}{upstream}?{query}\n{exact:x}{}", call.method, call.body.fields()).as_bytes(),
        ));
        (Identity { boundary, route, fields, list, key, exact, chain }, progress)
    }

    /// The canonical form of a body. A canonical form's canonical form is itself.
    pub(crate) fn canonical(&self, boundary: &str, body: &Value) -> Value {
        let mut body = body.clone();
        self.even(boundary, &mut body);
        IdNames::default().rename(&mut body);
        normal::even_numbers(&mut body);
        body
    }

    /// Everything of the canonical form but the names of ids and the spelling of numbers.
    fn even(&self, boundary: &str, body: &mut Value) {
        let is_volatile = boundary.starts_with("llm:") && !self.counts_volatile;
        if let Some(fields) = body.as_object_mut().filter(|_| is_volatile) {
            fields.retain(|name, _| !VOLATILE.contains(&name.as_str()));
        }
        self.ignored.iter().for_each(|path| path.remove_from(body));
        if self.form == Normalisation::Even {
            normal::drop_neutral(body);
        }
        if self.joins_texts {
            let messages = body.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten();
            messages.for_each(normal::join_texts);
        }
        if self.form == Normalisation::Even {
            schema::strip_prose(body, self.counts_tool_descriptions);
            normal::respell_arguments(body);
        }
        self.scrubs.iter().for_each(|scrub| scrub.apply(body));
    }

    fn query(&self, query: &str) -> String {
        let counts = |pair: &&str| {
            let name = pair.split('=').next().unwrap_or_default();
            !pair.is_empty() && !self.ignored_parameters.iter().any(|ignored| ignored == name)
        };
        let mut pairs: Vec<&str> = query.split('&').filter(counts).collect();
        pairs.sort_unstable();
        if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
    }
}
