//! Connections that become another protocol, such as WebSocket: bytes both ways until one side closes.

use http::{Request, Response, StatusCode};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::body::Received;

/// The client's side, to be taken before its request is sent on.
pub(super) fn prepare(request: &mut Request<Incoming>) -> OnUpgrade {
    hyper::upgrade::on(request)
}

/// Joins both sides where the upstream agreed; true where it did.
pub(super) fn join(client: OnUpgrade, response: &mut Response<Received>) -> bool {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return false;
    }
    let upstream = hyper::upgrade::on(response);
    tokio::spawn(async move {
        let (client, upstream) = match tokio::try_join!(client, upstream) {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "an upgrade came to nothing"),
        };
        let ended = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(upstream)).await;
        if let Err(error) = ended {
            tracing::debug!(%error, "an upgraded connection broke");
        }
    });
    true
}
