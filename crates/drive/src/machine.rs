//! What a machine adds to every figure: how late its timer is, and what a request over loopback takes.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::BodyExt;
use tokio::time::Instant;

use base::stats::Durations;
use net::upstream::{OutgoingBody, Upstream, UpstreamError, UpstreamOptions, UpstreamUrl};
use replay::timing::Pacer;

/// Distance of the deadlines that are waited for.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits for so many deadlines, a millisecond apart, with the timer that sends events; returns how late each wake-up was. One before its deadline
/// is not late.
pub async fn timer_lateness(deadlines: u32) -> Durations {
    let (pacer, mut late) = (Pacer::precise(), Durations::default());
    for _ in 0..deadlines {
        let deadline = Instant::now() + PAUSE;
        pacer.sleep_until(deadline).await;
        late.record(Instant::now().saturating_duration_since(deadline));
    }
    late
}

/// Asks a server for `/health` so many times over one connection, one request after the other; returns how long each took.
///
/// # Errors
/// When one of them has no response.
pub async fn round_trips(
    url: &UpstreamUrl,
    reach: &UpstreamOptions,
    requests: u32,
) -> Result<Durations, UpstreamError> {
    let (upstream, mut took) = (Upstream::new(url.clone(), reach), Durations::default());
    for _ in 0..requests {
        let mut request = Request::new(OutgoingBody::whole(Bytes::new()));
        *request.uri_mut() = Uri::from_static("/health");
        let requested = Instant::now();
        let _body = upstream.send(request).await?.into_body().collect().await;
        took.record(requested.elapsed());
    }
    Ok(took)
}
