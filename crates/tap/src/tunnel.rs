//! Connections upgraded to another protocol, such as WebSocket: bytes in both directions until one side closes.

use http::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::sent_body::TapResponseBody;
use net::server::Upgrade;

/// Joins both sides if the upstream switched protocols; true if it did.
pub(super) fn join(response: &mut Response<TapResponseBody>) -> bool {
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
