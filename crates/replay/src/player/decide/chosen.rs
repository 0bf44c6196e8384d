//! The records that a command may choose, and its choice.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::{
    account::http::plain,
    matching::requests::{Lookup, RequestMatch},
    player::{
        CassettePlayer, MatchCommand,
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

/// Request to a command, and the records that it may choose.
struct CommandRequest {
    json: Value,
    candidates: HashSet<usize>,
}

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
        let made = tokio::task::spawn_blocking(move || {
            let request = player.command_request(&incoming);
            (incoming, request)
        });
        let (incoming, CommandRequest { json, candidates }) = made.await.ok()?;
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
            guard.end();
        }
        Some((incoming, found))
    }

    /// The request and the records of its path that are most like it, in canonical form.
    fn command_request(&self, incoming: &IncomingRequest) -> CommandRequest {
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
        CommandRequest { json: json!({"request": request, "candidates": listed}), candidates }
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
