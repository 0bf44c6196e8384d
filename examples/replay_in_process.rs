//! Serves the built-in trace in this process, on a free port, and asks it something: what a test of a client needs.
//!
//! `cargo run --example replay_in_process`

#![allow(clippy::print_stdout)] // an example prints

use std::error::Error;

use tokio::{net::TcpListener, sync::oneshot, task::spawn_blocking};
use vllm_vcr::{
    play::{Config, Player},
    replay::timing::Pacing,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let player = Player::load(Config { pacing: Pacing::Instant, ..Config::default() })?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/v1/chat/completions", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(async move {
        let shutdown = async { drop(stopped.await) };
        player.serve(listener, shutdown).await
    });

    let request = r#"{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}"#;
    let response = spawn_blocking(move || ureq::post(&url).content_type("application/json").send(request)).await??;
    println!("{}", response.into_body().read_to_string()?);

    drop(stop);
    server.await?;
    Ok(())
}
