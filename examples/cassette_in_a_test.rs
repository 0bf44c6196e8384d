//! Plays a cassette in this process, sends a recorded request, and checks the report, as a test of an agent does.
//!
//! `cargo run --example cassette_in_a_test`

#![allow(clippy::print_stdout)] // an example prints

use std::{error::Error, path::Path};

use http::Request;
use http_body_util::BodyExt;
use tokio::{net::TcpListener, sync::oneshot};
use vllm_vcr::{
    net::upstream::{OutgoingBody, Upstream, UpstreamOptions},
    play::{Config, Player, Source, Synthetic, Unmatched},
    recording::cassette,
    replay::account::Concern,
    replay::player::{self, CassettePlayer},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/weather.yaml");
    let cassettes = vec![cassette::load(&file)?];
    let cassette_player = CassettePlayer::new(player::PlayerConfig { cassettes, ..player::PlayerConfig::default() })?;
    let (source, unmatched) = (Source::Synthetic(Synthetic::Random), Unmatched::Refuse);
    let player = Player::load(Config {
        cassette_player: Some(cassette_player.clone()),
        source,
        unmatched,
        ..Config::default()
    })?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(async move { player.serve(listener, async { drop(stopped.await) }).await });

    // Here a test runs its agent.
    let client = Upstream::new(url.parse()?, &UpstreamOptions::default());
    let request = r#"{"model": "demo", "messages": [{"role": "user", "content": "What is the weather in London?"}]}"#;
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
    let report = cassette_player.report(None);
    assert!(report.failing(&[Concern::Miss, Concern::Unconsumed, Concern::Loose]).is_empty(), "{}", report.text());
    Ok(())
}
