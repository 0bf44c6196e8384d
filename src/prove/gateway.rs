//! Whether a gateway is there, and which endpoints it has.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{behind::BehindServer, client::StreamClient};
use crate::api::Endpoint;

/// Time between two looks at a gateway that does not answer yet.
const LOOK: Duration = Duration::from_millis(200);

/// Statuses by which a gateway shows that it does not have an endpoint.
const ABSENT: [u16; 3] = [404, 405, 501];

/// A first request to an endpoint of a gateway.
#[derive(Debug)]
pub struct FirstRequest {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The request was passed on.
    pub is_served: bool,
    /// The status; 0 where there was no response.
    pub status: u16,
    /// What came, where it was not passed on.
    pub what: Option<String>,
}

/// A gateway that passes no request on.
#[derive(Debug, thiserror::Error)]
#[error("{gateway} does not pass requests on to {upstream}: {what}")]
pub struct GatewayError {
    /// Its URL.
    pub gateway: String,
    /// The server behind it.
    pub upstream: String,
    /// What came instead.
    pub what: String,
}

/// Waits until a gateway passes a request on: the endpoints that it has, and those that it has not. `ask` sends a first request to each;
/// `nothing` is what is wrong where there is none to send.
///
/// # Errors
/// When it passes none on within this time, and as `ask`.
pub async fn offered<E: From<GatewayError>>(
    (client, behind): (&StreamClient, &BehindServer),
    wait: Duration,
    nothing: &str,
    ask: impl AsyncFn() -> Result<Vec<FirstRequest>, E>,
) -> Result<(Vec<Endpoint>, Vec<Endpoint>), E> {
    let start = Instant::now();
    loop {
        let firsts = ask().await?;
        if firsts.iter().any(|first| first.is_served) {
            let is_there = |first: &&FirstRequest| first.is_served || !ABSENT.contains(&first.status);
            let (there, absent): (Vec<_>, Vec<_>) = firsts.iter().partition(is_there);
            let endpoints = |firsts: Vec<&FirstRequest>| firsts.iter().map(|first| first.endpoint).collect();
            return Ok((endpoints(there), endpoints(absent)));
        }
        if start.elapsed() >= wait {
            let what = firsts.into_iter().next().and_then(|first| first.what).unwrap_or_else(|| nothing.to_owned());
            let (gateway, upstream) = (client.gateway().to_string(), behind.address.to_string());
            return Err(GatewayError { gateway, upstream, what }.into());
        }
        sleep(LOOK).await;
    }
}
