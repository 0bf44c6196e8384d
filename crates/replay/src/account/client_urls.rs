//! Environment variables in which clients' libraries look for the URL of a server.

use std::collections::{BTreeMap, BTreeSet};

/// Returns the variables with the URLs below `root`, which has no `/` at its end. Each of the `upstreams` is at a URL of its own,
/// `VLLM_VCR_URL_NAME`; those called `openai` and `anthropic` are what the clients of these find.
#[must_use]
pub fn client_urls(root: &str, upstreams: &BTreeSet<String>) -> BTreeMap<String, String> {
    let of = |name: &str| match upstreams.contains(name) {
        true => format!("{root}/vcr/u/{name}"),
        false => root.to_owned(),
    };
    let openai = format!("{}/v1", of("openai"));
    let usual = [
        ("OPENAI_BASE_URL", openai.clone()),
        ("OPENAI_API_BASE", openai),
        ("ANTHROPIC_BASE_URL", of("anthropic")),
        ("VLLM_VCR_URL", root.to_owned()),
    ];
    let usual = usual.map(|(name, url)| (name.to_owned(), url));
    let named = upstreams.iter().map(|name| (format!("VLLM_VCR_URL_{}", variable(name)), of(name)));
    usual.into_iter().chain(named).collect()
}

fn variable(name: &str) -> String {
    let word = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
    name.chars().map(word).collect()
}
