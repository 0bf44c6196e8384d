//! Forwarding to an upstream: requests that are not recorded, upgrades, and the errors of upstreams.

use std::sync::atomic::Ordering::Relaxed;

use http::{Method, Request, Response, StatusCode, request::Parts};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::{
    body::ProxyBody,
    gather::{Gathered, gather},
    proxy::Proxy,
    request::RequestFields,
    response::{broken_off, passed},
    upstreams::UpstreamSite,
};
use net::{
    server::{BodyError, Upgrade},
    upstream::{OutgoingBody, Relayed, UpstreamBody, UpstreamError},
    wire::body_as_utf8,
};
use replay::account::UpstreamName;

impl Proxy {
    /// Forwards a request that is not recorded. Its body is received whole first if the model selects the upstream.
    pub(super) async fn pass(&self, request: Request<OutgoingBody>) -> Response<ProxyBody> {
        let path = request.uri().path();
        let is_open = self.sites.of_path(path).is_none() && request.extensions().get::<UpstreamName>().is_none();
        let by_model = self.sites.by_model && request.method() == Method::POST && is_open;
        if !by_model {
            let site = self.sites.of_request(request.extensions(), path, None);
            return self.pass_to(site, request).await;
        }
        let (parts, body) = request.into_parts();
        let body = match gather(body, &self.shared.bodies).await {
            Gathered::Whole(body) => body,
            Gathered::TooLarge { body, .. } => {
                return self.pass_to(&self.sites.main, Request::from_parts(parts, body)).await;
            }
            Gathered::Broken(error) => return broken_off(&error),
        };
        let site = self.site_of(&parts, RequestFields::read(&body_as_utf8(&body.bytes)).as_ref());
        self.pass_to(site, body.into_request(parts)).await
    }

    /// Forwards a request that is not recorded to this upstream.
    pub(super) async fn pass_to(&self, site: &UpstreamSite, request: Request<OutgoingBody>) -> Response<ProxyBody> {
        match self.send(site, request).await {
            Ok(response) => passed(response, self.idle),
            Err(error) => self.unanswered(&error),
        }
    }

    /// Forwards a request for an upgrade, and joins both connections if the upstream agrees.
    pub(super) async fn tunnel(&self, request: Request<Incoming>) -> Response<ProxyBody> {
        let site = self.sites.of(request.uri().path(), None);
        match self.send(site, request.map(|body| Relayed::untouched(body.into()))).await {
            Ok(mut response) => {
                if join(&mut response) {
                    self.metrics.upgraded.fetch_add(1, Relaxed);
                    return response.map(|_| ProxyBody::Empty);
                }
                passed(response, self.idle)
            }
            Err(error) => self.unanswered(&error),
        }
    }

    /// Sends a request to an upstream and counts it.
    pub(super) async fn send(
        &self,
        site: &UpstreamSite,
        request: Request<OutgoingBody>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        self.metrics.sent(site.place);
        let sent = site.upstream.send(request).await;
        if let Err(error) = &sent {
            self.metrics.unanswered(site.place);
            if error.is_connect() {
                // Another engine may come back at this address.
                site.capabilities.forget();
            }
        }
        sent
    }

    /// Finds the upstream of a request by its path and model.
    pub(super) fn site_of(&self, parts: &Parts, requested: Option<&RequestFields<'_>>) -> &UpstreamSite {
        let model = requested.and_then(|requested| requested.model.as_deref());
        self.sites.of_request(&parts.extensions, parts.uri.path(), model)
    }

    /// Describes what is recorded of an engine that returns no ids.
    pub(super) fn fallback(&self) -> &'static str {
        if self.keeps_bodies { "prompts are hashed by the local tokenizer" } else { "shapes and times are recorded" }
    }

    /// Builds the error for a request that the upstream did not answer.
    pub(super) fn unanswered(&self, error: &UpstreamError) -> Response<ProxyBody> {
        if let Some(idle @ BodyError::Idle(_)) = error.caused_by::<BodyError>() {
            return broken_off(idle);
        }
        if let Some(held) = self.failing.due() {
            tracing::warn!(%error, cause = error.cause(), held, "upstream failed");
        }
        error.response().map(|body| ProxyBody::Passed(Relayed::whole(body)))
    }
}

/// Joins both sides, byte for byte until one of them closes, if the upstream switched protocols, such as to WebSocket; true if it did.
fn join(response: &mut Response<UpstreamBody>) -> bool {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return false;
    }
    let upstream = hyper::upgrade::on(&mut *response);
    let (upgrade, client) = Upgrade::new();
    response.extensions_mut().insert(upgrade);
    tokio::spawn(async move {
        let upstream = match upstream.await {
            Ok(upstream) => upstream,
            Err(error) => return tracing::debug!(%error, "an upgrade came to nothing"),
        };
        // Without a client the upstream's connection is closed.
        let Ok(mut client) = client.await else { return };
        if let Err(error) = copy_bidirectional(&mut client, &mut TokioIo::new(upstream)).await {
            tracing::debug!(%error, "an upgraded connection broke");
        }
    });
    true
}
