//! What is tried where no way of matching finds a record: secrets that only its record shows, and a command's choice.
//!
//! A prompt spells a password, and the response passes it on as the argument `password`: in the record the prompt has a placeholder, in the
//! request that is to be replayed it is plain text, since the name comes after it. Where a record differs from a request in nothing but
//! such texts, they are its secrets too, and the record is looked for once more.
//! Limits: the closest records are compared; a secret has no whitespace.
//!
//! See docs/decisions/0066-secrets-that-only-the-answer-names.md and docs/decisions/0068-a-command-that-matches.md.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::{
    account::http::plain,
    matching::requests::{Lookup, RequestMatch},
    player::{
        CassettePlayer, MatchCommand, SessionState,
        decide::{lookup_request, match_command::MatchCommandError},
        incoming::IncomingRequest,
        miss::failed,
    },
};
use net::server::ResponseBody;

/// Maximum number of candidates, the most alike first.
const MOST: usize = 24;

/// Bytes that the bodies of candidates have together; further ones are left out.
const BYTES: usize = 4 << 20;

impl CassettePlayer {
    /// Has the command choose a record where no other way found one; the error is the response where it could not.
    pub(crate) async fn or_chosen(
        self: &Arc<Self>,
        incoming: IncomingRequest,
        lookup: Lookup,
    ) -> Result<(IncomingRequest, Lookup), Box<Response<ResponseBody>>> {
        let is_asked = lookup == Lookup::Nothing && self.config.matching.chain.contains(&RequestMatch::Exec);
        let command = self.config.match_command.as_deref().filter(|_| is_asked);
        let Some(command) = command else { return Ok((incoming, lookup)) };
        match self.choose(command, incoming).await {
            Some((incoming, Ok(lookup))) => Ok((incoming, lookup)),
            Some((incoming, Err(error))) => Err(Box::new(self.refuse_unchosen(&incoming, &error))),
            None => {
                let lost = plain(StatusCode::INTERNAL_SERVER_ERROR, "the candidates could not be compared");
                Err(Box::new(lost))
            }
        }
    }

    /// Finds the record that the command chooses; `None` where the request was lost.
    async fn choose(
        self: &Arc<Self>,
        command: &MatchCommand,
        incoming: IncomingRequest,
    ) -> Option<(IncomingRequest, Result<Lookup, MatchCommandError>)> {
        let mut guard = command.lock().await;
        let player = Arc::clone(self);
        // Comparing takes milliseconds that no other request should wait for.
        let made = spawn_blocking(move || {
            let request = player.command_request(&incoming);
            (incoming, request)
        });
        let (incoming, (json, candidates)) = made.await.ok()?;
        let found = match command.choose(&mut guard, &json).await {
            Ok(None) => Ok(Lookup::Nothing),
            Ok(Some(id)) => match usize::try_from(id).ok().filter(|at| candidates.contains(at)) {
                Some(at) => Ok(self.in_session(&incoming.session, |state| {
                    state.session.choose(&self.index, &self.config.matching, &lookup_request(&incoming), at)
                })),
                None => Err(MatchCommandError::Unknown(id)),
            },
            Err(error) => Err(error),
        };
        if found.is_err() {
            *guard = None;
        }
        Some((incoming, found))
    }

    /// The request and the records of its path that are most like it, in canonical form; and the places of these.
    fn command_request(&self, incoming: &IncomingRequest) -> (Value, HashSet<usize>) {
        let near = self.index.closest(&incoming.identity, &HashSet::new(), MOST);
        let served: BTreeMap<usize, usize> = {
            let sessions = self.sessions.lock();
            let times = |at: &usize| sessions.get(&incoming.session).map_or(0, |state| state.session.times(*at));
            near.iter().map(|at| (*at, times(at))).collect()
        };
        let (mut listed, mut candidates, mut left) = (Vec::new(), HashSet::new(), BYTES);
        for at in near {
            let Some(identity) = self.index.identity(at) else { continue };
            let body = identity.body();
            let bytes = body.to_string().len();
            if bytes > left {
                continue;
            }
            left -= bytes;
            candidates.insert(at);
            listed.push(json!({"id": at, "record": self.name_of(at), "at": identity.boundary,
                "served": served.get(&at).copied().unwrap_or(0), "body": body}));
        }
        let identity = &incoming.identity;
        let request = json!({"at": identity.boundary, "route": identity.route, "session": incoming.session,
            "body": identity.body()});
        (json!({"request": request, "candidates": listed}), candidates)
    }

    /// Answers a request whose record the command could not choose: a miss that names the command and the error.
    fn refuse_unchosen(&self, incoming: &IncomingRequest, error: &MatchCommandError) -> Response<ResponseBody> {
        let message = format!(
            "No recorded interaction matched this request ({}, {}): the command of --match exec failed: {error}.",
            incoming.identity.boundary, incoming.identity.route
        );
        tracing::warn!("{message}");
        let (number, _) = self.shared.pages.next();
        let miss = failed(&message, incoming, number);
        self.answer_miss(incoming, &miss, Some(number))
    }
}

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
