//! An engine core that answers each request with the tokens of its prompt, behind a real front end:
//! `vllm-rs serve MODEL_DIR --data-parallel-size-local 0 --data-parallel-rpc-port 29550`, then
//! `cargo run -p vllm-vcr-engine-core --example echo -- tcp://127.0.0.1:29550`.

use std::{collections::BTreeMap, io, time::Duration};

use vllm_vcr_engine_core::{
    handshake::ReadyResponse,
    layout::VersionFamily,
    msgpack::MsgpackValue,
    outputs::{PrefillStats, WireFinish, WireOutput, WireOutputs, monotonic_seconds},
    request::{EngineCoreRequest, RequestType, aborted},
    session::{EngineSession, SessionInput},
    utility::UtilityCall,
};

/// A request with its next token.
struct EchoedRequest {
    request: EngineCoreRequest,
    sent: usize,
    queued: f64,
}

impl EchoedRequest {
    /// Its next token; the last one with the reason.
    fn output(&mut self) -> WireOutput {
        let prompt = self.request.prompt_token_ids.as_deref().unwrap_or_default();
        let most = self.request.sampling_params.as_ref().map_or(1, |params| params.max_tokens());
        let token = prompt.get(self.sent % prompt.len().max(1)).copied().unwrap_or_default();
        let mut output = WireOutput {
            request_id: self.request.request_id.clone(),
            new_token_ids: vec![token],
            finish_reason: (self.sent + 1 >= most).then_some(WireFinish::Length),
            ..WireOutput::default()
        };
        if self.sent == 0 {
            output.events = vec![(1, self.queued), (2, monotonic_seconds())];
            let prompt_tokens = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
            output.prefill_stats = Some(PrefillStats { prompt_tokens, ..PrefillStats::default() });
        }
        self.sent += 1;
        output
    }
}

/// The running requests of a front end.
struct EchoEngine {
    session: EngineSession,
    family: VersionFamily,
    running: BTreeMap<String, EchoedRequest>,
}

impl EchoEngine {
    async fn take(&mut self, frames: &[Vec<u8>]) -> io::Result<()> {
        let [kind, message, ..] = frames else { return Ok(()) };
        match RequestType::read(kind) {
            Some(RequestType::Add) => {
                let request = EngineCoreRequest::read(message).map_err(io::Error::other)?;
                let echo = EchoedRequest { request, sent: 0, queued: monotonic_seconds() };
                self.running.insert(echo.request.request_id.clone(), echo);
            }
            Some(RequestType::Abort) => {
                for id in aborted(message).map_err(io::Error::other)? {
                    self.running.remove(&id);
                }
            }
            Some(RequestType::Utility) => {
                let call = UtilityCall::read(message).map_err(io::Error::other)?;
                let result = match call.method.as_str() {
                    "reset_mm_cache" => Ok(MsgpackValue::Nil),
                    "get_supported_tasks" => Ok(vec!["generate"].into()),
                    _ => Err("an echo has no such method".to_owned()),
                };
                let utility_output = Some(call.output(result));
                let outputs = WireOutputs { utility_output, timestamp: monotonic_seconds(), ..WireOutputs::default() };
                self.session.send(call.client_index, &outputs.to_bytes(self.family)).await?;
            }
            Some(RequestType::StartDpWave) | None => {}
        }
        Ok(())
    }

    /// Gives every request a token, in one message for each client.
    async fn step(&mut self) -> io::Result<()> {
        for client in 0..self.session.clients() {
            let of_client = self.running.values_mut().filter(|echo| echo.request.client_index == client);
            let outputs: Vec<WireOutput> = of_client.map(EchoedRequest::output).collect();
            if outputs.is_empty() {
                continue;
            }
            let outputs = WireOutputs { outputs, timestamp: monotonic_seconds(), ..WireOutputs::default() };
            self.session.send(client, &outputs.to_bytes(self.family)).await?;
            outputs.outputs.iter().filter(|output| output.finish_reason.is_some()).for_each(|output| {
                self.running.remove(&output.request_id);
            });
        }
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let endpoint = std::env::args().nth(1).unwrap_or_else(|| "tcp://127.0.0.1:29550".to_owned());
    let ready = ReadyResponse {
        max_model_len: 4096,
        num_gpu_blocks: 1000,
        block_size: 16,
        vllm_version: "0.32.0".to_owned(),
        data_parallel: (1, 0),
        max_num_seqs: 256,
        max_num_batched_tokens: 2048,
        instance_id: "1".to_owned(),
        max_loras: 0,
        enable_sleep_mode: false,
        kv_events_config: MsgpackValue::Nil,
    };
    let family = VersionFamily::of_version(&ready.vllm_version).ok_or(io::ErrorKind::InvalidInput)?;
    loop {
        let session = EngineSession::join(&endpoint, 0, &ready).await?;
        let mut engine = EchoEngine { session, family, running: BTreeMap::new() };
        loop {
            let step = tokio::time::sleep(Duration::from_millis(10));
            tokio::select! {
                input = engine.session.next() => match input {
                    SessionInput::Client { frames, .. } => engine.take(&frames).await?,
                    SessionInput::Coordinator(_) => {}
                    SessionInput::Gone(_) => break,
                },
                () = step, if !engine.running.is_empty() => engine.step().await?,
            }
        }
    }
}
