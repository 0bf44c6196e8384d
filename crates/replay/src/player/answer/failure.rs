//! Delivery of a recorded failure: once its client has it whole, another try gets the next record.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body::Body;
use http_body_util::BodyExt;

use crate::player::{CassettePlayer, receive::request::IncomingRequest};
use net::{
    server::{BodyError, ResponseBody},
    upstream::{BodyObserver, Observed, Relayed},
};
use recording::canonical::Key;

/// Observer of the delivery of a failure. One that is dropped before the end leaves no mark: its client did not get it.
#[derive(Debug)]
pub(in crate::player) struct FailureDelivery {
    cassette_player: Arc<CassettePlayer>,
    session: String,
    key: Key,
    record: usize,
}

impl FailureDelivery {
    pub(in crate::player) fn new(
        cassette_player: &Arc<CassettePlayer>,
        asked: &IncomingRequest,
        record: usize,
    ) -> Self {
        let (cassette_player, session) = (Arc::clone(cassette_player), asked.session.clone());
        Self { cassette_player, session, key: asked.identity.key, record }
    }

    /// Watches the response; one that stalls never ends, and an empty body is never polled.
    pub(in crate::player) fn watch(mut self, response: Response<ResponseBody>, stalls: bool) -> Response<ResponseBody> {
        if stalls || response.body().is_end_stream() {
            self.end(None);
            return response;
        }
        response.map(|body| Observed::new(Relayed::untouched(body), self).boxed_unsync())
    }
}

impl BodyObserver for FailureDelivery {
    fn data(&mut self, _: &Bytes) {}

    fn end(&mut self, _: Option<&BodyError>) {
        if let Some(state) = self.cassette_player.lock().get_mut(&self.session) {
            state.session.failed(self.key, self.record);
        }
    }
}
