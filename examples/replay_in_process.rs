//! Serves the built-in trace in this process, on a free port, and sends a request, as a test of a client does.
//!
//! `cargo run --example replay_in_process`

#![allow(clippy::print_stdout)] // an example prints

use std::error::Error;

use http::Request;
use http_body_util::BodyExt;
use tokio::{net::TcpListener, sync::oneshot};
use vllm_vcr::{
    net::upstream::{OutgoingBody, Upstream, UpstreamOptions},
    play::{Config, Player},
    replay::timing::Pacing,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let player = Player::load(Config { pacing: Pacing::Instant, ..Config::default() })?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(async move {
        let shutdown = async { drop(stopped.await) };
        player.serve(listener, shutdown).await
    });

    let client = Upstream::new(url.parse()?, &UpstreamOptions::default());
    let request = r#"{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}"#;
    let response = client
        .send(
            Request::post("/v1/chat/completions")
                .header("content-type", "application/json")
                .body(OutgoingBody::whole(request.into()))?,
        )
        .await?;
    println!("{}", String::from_utf8_lossy(&response.into_body().collect().await?.to_bytes()));

    drop(stop);
    server.await?;
    Ok(())
}
