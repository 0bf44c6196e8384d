//! Secrets that only a later name makes secrets: a prompt spells a password, and the response passes it on as the argument `password`.
//!
//! In the record the prompt has a placeholder; in the request that is to be replayed it is plain text, since the name comes after it. Where
//! a record differs from a request in nothing but such texts, they are its secrets too, and the record is looked for once more.
//! Limits: the closest records are compared; a secret has no whitespace.
//!
//! See docs/decisions/0066-secrets-that-only-the-answer-names.md.

use std::sync::Arc;

use tokio::task::spawn_blocking;

use crate::{
    matching::requests::Lookup,
    player::{CassettePlayer, SessionState, decide::lookup_request, incoming::IncomingRequest},
};

impl CassettePlayer {
    /// Looks for the record of a request once more, where it can have secrets that only its record shows.
    pub(crate) async fn or_named_later(
        self: &Arc<Self>,
        request: IncomingRequest,
        lookup: Lookup,
    ) -> Result<(IncomingRequest, Lookup), &'static str> {
        if lookup != Lookup::Nothing || !self.has_placeholders() {
            return Ok((request, lookup));
        }
        let player = Arc::clone(self);
        // Comparing takes milliseconds that no other request should wait for.
        let found = spawn_blocking(move || match player.named_later(&request) {
            Some((named, lookup)) => (named, lookup),
            None => (request, Lookup::Nothing),
        });
        found.await.map_err(|_| "the records could not be compared")
    }

    fn has_placeholders(&self) -> bool {
        self.config.cassettes.iter().any(|cassette| !cassette.placeholders.is_empty())
    }

    fn named_later(&self, request: &IncomingRequest) -> Option<(IncomingRequest, Lookup)> {
        self.index.named_later(&request.identity, &request.seen).find_map(|secrets| {
            let named = request.with_secrets(&secrets, &self.config);
            let (index, matching) = (&self.index, &self.config.matching);
            let select = |state: &mut SessionState| state.session.select_also(index, matching, &lookup_request(&named));
            // It is the request that was looked for before, and counts once.
            let lookup = self.in_session(&request.session, select);
            matches!(lookup, Lookup::Found(_)).then_some((named, lookup))
        })
    }
}
