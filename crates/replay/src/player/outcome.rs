//! What becomes of a request.

use std::sync::Arc;

use http::{Request, Response, StatusCode};

use super::{CassettePlayer, answer::response::ReplayedResponse, forward::Forward, incoming::IncomingRequest};
use crate::account::http::{plain, put};
use net::server::{RequestBody, ResponseBody};

/// Mark in the extensions of a request that no endpoint behind the player serves; without a record it is a miss.
#[derive(Debug, Clone, Copy)]
pub struct Unanswered;

/// Called with the name of the record that answers a request, `None` for none; true where something of the server around the player concerns it.
pub type ConcernsRecord = Arc<dyn Fn(Option<&str>) -> bool + Send + Sync>;

/// In the extensions of a request: the server around the player answers in the place of these records. They are not consumed, and the
/// response is empty but for `x-vcr-record`.
#[derive(Clone)]
pub struct ReplacedRecords(pub ConcernsRecord);

impl ReplacedRecords {
    pub(super) fn response(incoming: &IncomingRequest, name: &str) -> Option<Response<ResponseBody>> {
        let Self(is_replaced) = incoming.parts.extensions.get()?;
        if !is_replaced(Some(name)) {
            return None;
        }
        let mut response = plain(StatusCode::OK, "");
        put(response.headers_mut(), "x-vcr-record", name);
        Some(response)
    }
}

/// Decision for a request.
#[derive(Debug)]
pub enum Decision {
    /// It is answered.
    Answer(Response<ResponseBody>),
    /// A record answers it, at its deadlines.
    Replay(Box<ReplayedResponse>),
    /// The server around the player answers it.
    Pass(Request<RequestBody>),
    /// It goes upstream.
    Forward(Box<Forward>),
}

/// A decision, with the player of the request's session.
#[derive(Debug)]
pub struct Decided {
    /// Outcome of the request.
    pub decision: Decision,
    /// The session, where the request takes part in it.
    pub session: Option<String>,
    /// The player of that session's cassette.
    pub cassette_player: Arc<CassettePlayer>,
}
