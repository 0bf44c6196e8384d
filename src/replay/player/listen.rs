//! A deck on a listener of its own: what is none of its business goes upstream as it came.

use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tower_service::Service;

use super::{Deck, Outcome, forward};
use crate::{
    net::server::{self, AnswerBody, BodyError, DrainReport, Listener, RequestBody},
    replay::account::{self, Admin, Ledger, http::plain},
    replay::timing::Pacer,
};

impl Deck {
    /// Serves until `shutdown` completes, then drains.
    pub async fn serve(
        self: &Arc<Self>,
        listener: impl Into<Listener>,
        shutdown: impl Future<Output = ()>,
        drain: Duration,
    ) -> DrainReport {
        let (deck, pacer) = (Arc::clone(self), Pacer::precise());
        let admin = (self.config.admin == Admin::Here).then(|| account::router(Arc::clone(self) as Arc<dyn Ledger>));
        let service = move |mut request: Request<Incoming>, _| {
            let (deck, pacer, admin) = (Arc::clone(&deck), pacer.clone(), admin.clone());
            async move {
                account::enter(&mut request);
                if let Some(mut admin) = admin.filter(|_| request.uri().path().starts_with("/vcr/")) {
                    let response = admin.call(request).await.unwrap_or_else(|never: Infallible| match never {});
                    return response.map(|body| body.map_err(BodyError::broken).boxed_unsync());
                }
                match deck.answer(request.map(RequestBody::Live), &pacer).await {
                    Outcome::Answered(response) => response,
                    Outcome::Passed(request) => deck.relay(request).await,
                }
            }
        };
        server::run(listener, service, shutdown, drain).await
    }

    /// Passes a request on that is not recorded. Where only records answer, nothing leaves but the question how the server does.
    async fn relay(&self, request: Request<RequestBody>) -> Response<AnswerBody> {
        let looks = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
        let may_leave = self.config.mode.records() || (looks && !request.uri().path().starts_with("/v1/"));
        match &self.upstream {
            Some(upstream) if may_leave => forward::pass(upstream, request).await,
            Some(_) => plain(StatusCode::NOT_FOUND, "this was not recorded, and it does not go upstream"),
            None => plain(StatusCode::NOT_FOUND, "nothing was recorded here, and there is no upstream"),
        }
    }
}
