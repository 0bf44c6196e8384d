//! Puts a tap in front of a server, sends one request through it, and reads the trace.
//!
//! `cargo run --example record_upstream -- http://localhost:8000`

#![allow(clippy::print_stdout)] // an example prints

use std::error::Error;

use http::Request;
use tokio::{net::TcpListener, sync::oneshot};
use vllm_vcr::{
    net::upstream::{OutgoingBody, Upstream, UpstreamOptions},
    recording::trace::{CreateMode, read},
    tap::{Tap, TapConfig},
    text::prompt::BlockHashAlgorithm,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let upstream = std::env::args().nth(1).ok_or("the server's URL is missing")?;
    let trace_out = std::env::temp_dir().join(format!("record-upstream-{}.jsonl", std::process::id()));
    let tap = Tap::start(TapConfig {
        upstream: upstream.parse()?,
        trace_out: trace_out.clone(),
        create: CreateMode::New,
        record_tokens: true,
        tokenizer: None,
        block_hash: BlockHashAlgorithm::Xxh3_64,
        block_size: 16,
        drain: std::time::Duration::from_secs(5),
    })
    .await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel::<()>();
    let proxy = tokio::spawn(tap.serve(listener, async { drop(stopped.await) }));

    let client = Upstream::new(url.parse()?, &UpstreamOptions::default());
    let request = r#"{"prompt": "Once upon a time", "max_tokens": 8}"#;
    client
        .send(
            Request::post("/v1/completions")
                .header("content-type", "application/json")
                .body(OutgoingBody::whole(request.into()))?,
        )
        .await?;

    drop(stop);
    println!("{} requests forwarded", proxy.await??.forwarded);
    for record in read(&trace_out)?.records {
        println!("{} tokens in, {} out, {:?}", record.prompt_tokens, record.output_tokens, record.chunks);
    }
    Ok(())
}
