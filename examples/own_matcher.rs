//! Plays a cassette with a custom matcher: it compares only the last message, ignoring case.
//!
//! `cargo run --example own_matcher`

#![allow(clippy::print_stdout)] // an example prints

use std::{error::Error, path::Path};

use http::Request;
use http_body_util::BodyExt;
use tokio::{net::TcpListener, sync::oneshot};
use vllm_vcr::{
    net::upstream::{OutgoingBody, Upstream, UpstreamOptions},
    play::{Config, Player, Source, Synthetic},
    recording::{canonical::Identity, cassette},
    replay::matching::requests::{CustomMatch, MatchPolicy, RequestMatch},
    replay::player::{self, CassettePlayer},
};

fn last_message(request: &Identity) -> Option<String> {
    let body = request.body();
    let content = body.get("messages")?.as_array()?.last()?.get("content")?.as_str()?;
    Some(content.to_lowercase())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let same_question = CustomMatch::new(|recorded, received| last_message(recorded) == last_message(received));
    let chain = vec![RequestMatch::Canonical, RequestMatch::Custom];
    let matching = MatchPolicy { chain, custom: Some(same_question), ..MatchPolicy::default() };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/weather.yaml");
    let cassettes = vec![cassette::load(&file)?];
    let cassette_player =
        Some(CassettePlayer::new(player::PlayerConfig { cassettes, matching, ..player::PlayerConfig::default() })?);
    let player =
        Player::load(Config { cassette_player, source: Source::Synthetic(Synthetic::Random), ..Config::default() })?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(async move { player.serve(listener, async { drop(stopped.await) }).await });

    let client = Upstream::new(url.parse()?, &UpstreamOptions::default());
    let request = r#"{"messages": [{"role": "user", "content": "WHAT IS THE WEATHER IN LONDON?"}], "seed": 7}"#;
    let response = client
        .send(
            Request::post("/v1/chat/completions")
                .header("content-type", "application/json")
                .body(OutgoingBody::whole(request.into()))?,
        )
        .await?;
    println!("x-vcr-match: {}", response.headers()["x-vcr-match"].to_str()?);
    println!("{}", String::from_utf8_lossy(&response.into_body().collect().await?.to_bytes()));

    drop(stop);
    server.await?;
    Ok(())
}
