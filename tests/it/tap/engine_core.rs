//! The tap between a front end of vLLM and an engine core: what passes is unchanged but for addresses, and becomes records.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use rmpv::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};
use vllm_vcr::{
    recording::trace::{CreateMode, FinishReason, Outcome, Record},
    tap::{
        ContentRecording, Setup, TapConfig, TapReport,
        engine_core::{EngineCoreSetup, EngineCoreTap},
    },
    text::prompt::BlockHashAlgorithm,
};
use zeromq::{
    DealerSocket, PullSocket, PushSocket, RouterSocket, Socket, SocketOptions, SocketRecv, SocketSend, ZmqMessage,
    util::PeerIdentity,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// Both programs, with their sockets, around a tap.
struct Between {
    requests: RouterSocket,
    outputs: PullSocket,
    input: DealerSocket,
    output: PushSocket,
    /// The addresses that the engine got.
    told: Vec<String>,
    stop: oneshot::Sender<()>,
    tap: JoinHandle<TapReport>,
    folder: tempfile::TempDir,
    // Kept open.
    _greetings: (RouterSocket, DealerSocket),
}

fn packed(value: &Value) -> Bytes {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes.into()
}

fn map(members: Vec<(&str, Value)>) -> Value {
    Value::Map(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

async fn received(socket: &mut impl SocketRecv) -> Vec<Bytes> {
    timeout(PATIENCE, socket.recv()).await.expect("a message").unwrap().into_vec()
}

fn message(frames: impl IntoIterator<Item = Bytes>) -> ZmqMessage {
    ZmqMessage::try_from(frames.into_iter().collect::<Vec<_>>()).unwrap()
}

fn as_engine() -> DealerSocket {
    let mut options = SocketOptions::default();
    options.peer_identity(PeerIdentity::try_from(vec![0, 0]).unwrap());
    DealerSocket::with_options(options)
}

/// A tap before this front end.
fn tap(folder: &Path, front_end: String, content: ContentRecording) -> EngineCoreTap {
    let config = TapConfig {
        upstream: "http://127.0.0.1:1".parse().unwrap(),
        trace_out: folder.join("core.jsonl"),
        create: CreateMode::New,
        record_tokens: true,
        tokenizer: None,
        block_hash: BlockHashAlgorithm::Xxh3_64,
        block_size: 2,
        drain: Duration::ZERO,
    };
    let setup = Setup { content, timing_zero: "engine_core", ..Setup::from(config) };
    EngineCoreTap::start(EngineCoreSetup { setup, front_end, model: Some("m".to_owned()) }).unwrap()
}

impl Between {
    async fn start(content: ContentRecording) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut greetings = RouterSocket::new();
        let front_end = greetings.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let (mut requests, mut outputs) = (RouterSocket::new(), PullSocket::new());
        let bound =
            [requests.bind("tcp://127.0.0.1:0").await.unwrap(), outputs.bind("tcp://127.0.0.1:0").await.unwrap()];
        let [inputs, bound_outputs] = bound.map(|at| at.to_string());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("tcp://{}", listener.local_addr().unwrap());
        let tap = tap(folder.path(), front_end.trim_start_matches("tcp://").to_owned(), content);
        let (stop, stopped) = oneshot::channel();
        let tap = tokio::spawn(async move { tap.serve(listener, async { stopped.await.unwrap() }).await.unwrap() });
        let mut greeter = as_engine();
        greeter.connect(&at).await.unwrap();
        greeter.send(message([packed(&map(vec![("status", "HELLO".into())]))])).await.unwrap();
        let hello = received(&mut greetings).await;
        assert_eq!((&hello[0][..], hello.len()), (&[0, 0][..], 2), "the engine's own identity");
        let addresses = map(vec![
            ("inputs", Value::Array(vec![inputs.as_str().into()])),
            ("outputs", Value::Array(vec![bound_outputs.as_str().into()])),
            ("coordinator_input", Value::Nil),
            ("frontend_stats_publish_address", "tcp://127.0.0.1:9".into()),
        ]);
        let init = map(vec![("addresses", addresses), ("parallel_config", map(vec![("x", 7.into())]))]);
        greetings.send(message([hello[0].clone(), packed(&init)])).await.unwrap();
        let init = received(&mut greeter).await;
        let init = rmpv::decode::read_value(&mut &*init[0]).unwrap();
        assert_eq!(init["parallel_config"]["x"], 7.into());
        assert_eq!(init["addresses"]["frontend_stats_publish_address"], "tcp://127.0.0.1:9".into());
        let told: Vec<String> =
            ["inputs", "outputs"].map(|name| init["addresses"][name][0].as_str().unwrap().to_owned()).to_vec();
        assert!(told[0] != inputs && told[1] != bound_outputs, "{told:?}");
        let (mut input, mut output) = (as_engine(), PushSocket::new());
        input.connect(&told[0]).await.unwrap();
        output.connect(&told[1]).await.unwrap();
        let ready = map(vec![
            ("max_model_len", 4096.into()),
            ("block_size", 16.into()),
            ("num_gpu_blocks", 1000.into()),
            ("vllm_version", "0.32.0".into()),
        ]);
        input.send(message([packed(&ready)])).await.unwrap();
        assert_eq!(received(&mut requests).await[1], packed(&ready));
        Self { requests, outputs, input, output, told, stop, tap, folder, _greetings: (greetings, greeter) }
    }

    /// Sends from the front end to the engine, and checks that it arrives as it was.
    async fn ask(&mut self, kind: u8, body: Bytes) {
        let frames = [Bytes::from(vec![0, 0]), Bytes::from(vec![kind]), body];
        self.requests.send(message(frames.clone())).await.unwrap();
        assert_eq!(received(&mut self.input).await, frames[1..]);
    }

    async fn add(&mut self, id: &str, external: &str, sampling: Vec<(&str, Value)>) {
        self.ask(0, request(id, external, sampling)).await;
    }

    async fn answer(&mut self, frames: Vec<Bytes>) {
        self.output.send(message(frames.clone())).await.unwrap();
        assert_eq!(received(&mut self.outputs).await, frames);
    }

    async fn step(&mut self, timestamp: f64, outputs: Vec<Value>) {
        let step = Value::Array(vec![0.into(), Value::Array(outputs), Value::Nil, timestamp.into()]);
        self.answer(vec![packed(&step)]).await;
    }

    async fn records(self) -> (Vec<Record>, serde_json::Value, TapReport) {
        self.stop.send(()).unwrap();
        let report = timeout(PATIENCE, self.tap).await.unwrap().unwrap();
        let path = self.folder.path().join("core.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let meta = first["meta"].clone();
        let trace = vllm_vcr::recording::trace::read(&path).unwrap();
        (trace.records, meta, report)
    }
}

/// A request of vLLM 0.32.
fn request(id: &str, external: &str, sampling: Vec<(&str, Value)>) -> Bytes {
    let mut fields = vec![Value::Nil; 22];
    fields[0] = id.into();
    fields[1] = Value::Array([5, 6, 7].map(Value::from).to_vec());
    fields[3] = map(sampling);
    fields[5] = 1.5.into();
    fields[16] = external.into();
    packed(&Value::Array(fields))
}

/// An output of vLLM 0.32, with some of its fields.
fn output(id: &str, tokens: &[u32], fields: Vec<(usize, Value)>) -> Value {
    let mut all = vec![Value::Nil; 18];
    all[0] = id.into();
    all[1] = Value::Array(tokens.iter().map(|id| (*id).into()).collect());
    all[13] = 0.into();
    fields.into_iter().for_each(|(at, value)| all[at] = value);
    Value::Array(all)
}

fn event(kind: u64, timestamp: f64) -> Value {
    map(vec![("type", kind.into()), ("timestamp", timestamp.into())])
}

fn first(queued: f64, scheduled: f64) -> Vec<(usize, Value)> {
    let prefill = map(vec![
        ("num_prompt_tokens", 3.into()),
        ("num_cached_tokens", 2.into()),
        ("num_local_cached_tokens", 2.into()),
    ]);
    vec![(7, Value::Array(vec![event(1, queued), event(2, scheduled)])), (11, prefill)]
}

/// libzmq sends the signature of its greeting, and the rest once it has its peer's.
#[tokio::test]
async fn a_greeting_passes_as_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    let (front_end, listener) =
        (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let at = listener.local_addr().unwrap();
    let tap = tap(folder.path(), front_end.local_addr().unwrap().to_string(), ContentRecording::default());
    let (_stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move { tap.serve(listener, async { drop(stopped.await) }).await.unwrap() });
    let mut engine = TcpStream::connect(at).await.unwrap();
    let (mut front, _) = front_end.accept().await.unwrap();
    for part in [&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f][..], &[3], &[0; 53], &[4, 1, 9]] {
        let mut read = vec![0; part.len()];
        front.write_all(part).await.unwrap();
        timeout(PATIENCE, engine.read_exact(&mut read)).await.expect("it does not wait for the rest").unwrap();
        assert_eq!(read, part);
        engine.write_all(part).await.unwrap();
        timeout(PATIENCE, front.read_exact(&mut read)).await.expect("it does not wait for the rest").unwrap();
    }
}

#[tokio::test]
async fn requests_become_records_with_what_only_the_engine_knows() {
    let mut between = Between::start(ContentRecording::default()).await;
    between.add("chatcmpl-a-0badcafe", "chatcmpl-a", vec![("output_kind", 1.into()), ("max_tokens", 3.into())]).await;
    between.step(10.0, vec![output("chatcmpl-a-0badcafe", &[9], first(9.5, 9.75))]).await;
    let preempted = vec![(7, Value::Array(vec![event(3, 10.1)]))];
    between.step(10.5, vec![output("chatcmpl-a-0badcafe", &[8], preempted)]).await;
    between.step(11.0, vec![output("chatcmpl-a-0badcafe", &[1, 2], vec![(5, 0.into()), (6, 2.into())])]).await;
    between.step(11.1, vec![]).await;
    let (records, meta, report) = between.records().await;
    assert_eq!((meta["timing_zero"].as_str(), meta["vllm_version"].as_str()), (Some("engine_core"), Some("0.32.0")));
    let [record] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!((record.request_id.as_deref(), record.model.as_deref()), (Some("chatcmpl-a"), Some("m")));
    assert_eq!((record.prompt_tokens, record.cached_tokens, record.block_hashes.len()), (3, Some(2), 1));
    assert_eq!(record.output_token_ids.as_deref(), Some(&[9, 8, 1, 2][..]));
    assert_eq!(record.chunks.iter().map(|chunk| chunk.tokens).collect::<Vec<_>>(), [1, 1, 2]);
    assert_eq!((record.finish_reason, record.stop_token), (Some(FinishReason::Stop), Some(2)));
    assert_eq!((record.outcome, record.stream), (Some(Outcome::Finished), Some(true)));
    assert_eq!((&record.extra["queue_ms"], &record.extra["prefill_ms"]), (&250.0.into(), &250.0.into()));
    assert_eq!((&record.extra["preemptions"], &record.params["max_tokens"]), (&1.into(), &3.into()));
    assert_eq!((report.forwarded, report.recorder.written, report.cut), (1, 1, 0));
}

#[tokio::test]
async fn aborts_choices_and_what_is_cut_are_records() {
    let mut between = Between::start(ContentRecording::default()).await;
    between.add("0_cmpl-n-11111111", "0_cmpl-n", vec![]).await;
    between.add("1_cmpl-n-22222222", "1_cmpl-n", vec![]).await;
    between.add("cmpl-stop-33333333", "cmpl-stop", vec![("stop", Value::Array(vec!["x".into()]))]).await;
    between.add("cmpl-gone-44444444", "cmpl-gone", vec![]).await;
    between.add("cmpl-cut-55555555", "cmpl-cut", vec![]).await;
    let ids = ["0_cmpl-n-11111111", "1_cmpl-n-22222222", "cmpl-stop-33333333", "cmpl-gone-44444444"];
    between.step(1.0, ids.iter().map(|id| output(id, &[4], vec![])).collect()).await;
    between.step(1.1, vec![output(ids[1], &[5], vec![(5, 1.into())]), output(ids[0], &[6], vec![(5, 1.into())])]).await;
    between.ask(1, packed(&Value::Array(vec![ids[2].into(), ids[3].into(), "unknown".into()]))).await;
    let (mut records, _, report) = between.records().await;
    records.sort_by_key(|record| (record.request_id.clone(), record.choice));
    let shape =
        |record: &Record| (record.request_id.clone().unwrap(), record.choice, record.finish_reason, record.outcome);
    let expected = [
        ("cmpl-cut", None, None, Outcome::Cut),
        ("cmpl-gone", None, Some(FinishReason::Abort), Outcome::ClientGone),
        ("cmpl-n", Some(0), Some(FinishReason::Length), Outcome::Finished),
        ("cmpl-n", Some(1), Some(FinishReason::Length), Outcome::Finished),
        ("cmpl-stop", None, Some(FinishReason::Stop), Outcome::Finished),
    ];
    let expected = expected.map(|(id, choice, finish, outcome)| (id.to_owned(), choice, finish, Some(outcome)));
    assert_eq!(records.iter().map(shape).collect::<Vec<_>>(), expected);
    assert!(records[2].group.is_some() && records[2].group == records[3].group);
    assert_eq!(records[4].extra["stop_assumed"], true);
    assert_eq!((report.forwarded, report.recorder.written, report.cut), (5, 5, 1));
}

#[tokio::test]
async fn log_probabilities_are_recorded_wherever_their_bytes_stand() {
    let mut between = Between::start(ContentRecording { logprobs: true, ..ContentRecording::default() }).await;
    between.add("cmpl-l-11111111", "cmpl-l", vec![("logprobs", 1.into())]).await;
    let bytes = |numbers: &[[u8; 4]]| numbers.concat();
    let ids = bytes(&[9_i32, 8].map(i32::to_le_bytes));
    let values = bytes(&[-0.5_f32, -1.5].map(f32::to_le_bytes));
    let shape = Value::Array(vec![1.into(), 2.into()]);
    let tensor = |kind: &str, shape: Value, data: Value| Value::Array(vec![kind.into(), shape, data]);
    let logprobs = Value::Array(vec![
        tensor("<i4", shape.clone(), Value::Ext(3, ids)),
        tensor("<f4", shape, 1.into()),
        tensor("<i8", Value::Array(vec![1.into()]), Value::Ext(3, 1_i64.to_le_bytes().to_vec())),
        Value::Nil,
    ]);
    let outputs = vec![output("cmpl-l-11111111", &[9], vec![(2, logprobs), (5, 1.into())])];
    let step = Value::Array(vec![0.into(), Value::Array(outputs), Value::Nil, 1.0.into()]);
    between.answer(vec![packed(&step), values.into()]).await;
    let (records, ..) = between.records().await;
    let logprobs = serde_json::to_value(records[0].logprobs.as_ref().unwrap()).unwrap();
    assert_eq!(logprobs, serde_json::json!({"top": 1, "tokens": [[null, -0.5, 8, -1.5]]}));
}

#[tokio::test]
async fn what_cannot_be_read_passes_and_both_ends_are_noticed() {
    let mut between = Between::start(ContentRecording::default()).await;
    between.add("cmpl-a-11111111", "cmpl-a", vec![]).await;
    for damaged in [vec![], vec![0xc1], vec![0x95, 0xa1], vec![0xdd, 0xff, 0xff, 0xff, 0xff], vec![0x91; 5000]] {
        between.ask(0, damaged.clone().into()).await;
        between.ask(1, damaged.clone().into()).await;
        between.answer(vec![damaged.into()]).await;
    }
    between.step(1.0, vec![output("cmpl-a-11111111", &[4], vec![(5, 1.into())])]).await;
    between.add("cmpl-b-22222222", "cmpl-b", vec![]).await;
    assert_eq!(between.told.len(), 2);
    // The engine goes, and its connection with it.
    between.input = as_engine();
    let mut connected = false;
    for _ in 0..1200 {
        connected = between.requests.send(message([vec![0, 0].into(), vec![9].into()])).await.is_ok();
        if !connected {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!connected, "the front end sees that the engine is gone");
    let (records, ..) = between.records().await;
    let by_id = |id: &str| records.iter().find(|record| record.request_id.as_deref() == Some(id)).unwrap();
    assert_eq!((by_id("cmpl-a").outcome, by_id("cmpl-a").output_token_ids.as_ref()), (Some(Outcome::Finished), None));
    assert_eq!(by_id("cmpl-a").extra["tokens_missed"], true);
    assert_eq!(by_id("cmpl-b").outcome, Some(Outcome::UpstreamFailed));
}
