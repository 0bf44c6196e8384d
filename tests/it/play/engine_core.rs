//! The engine core behind a front end: what it is asked for in the protocol's own messages, and what it sends.

use std::{process::Command, time::Duration};

use serde_json::json;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle, time::timeout};
use vllm_vcr::{
    engine::{
        scheduler::SchedulerConfig,
        step_clock::{Knobs, StepTimes},
    },
    engine_core::{
        handshake::{ENGINE_CORE_DEAD, hello},
        layout::VersionFamily,
        msgpack::MsgpackValue,
        outputs::{RequestError, WireFinish, WireOutput, WireOutputs},
        zmtp::{SocketType, ZmtpConnection},
    },
    play::{Config, EngineConfig, EngineCoreConfig, EngineTimes, FleetScript, LoraConfig, Player, Source, Synthetic},
    recording::trace::FinishReason,
    replay::matching::MatchBy,
    text::prompt::SpecialTokens,
};

use crate::support::{
    client::{post, send},
    play_server,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// The end of a text in the built-in tokenizer's requests here.
const EOS: u32 = 2;

/// A front end with one client, and the engine behind it.
struct Behind {
    greetings: TcpListener,
    inputs: TcpListener,
    outputs: TcpListener,
    /// Those of each rank that has joined.
    joined: Vec<Joined>,
    /// Their handshakes.
    greeted: Vec<ZmtpConnection>,
    stop: oneshot::Sender<()>,
    engine: JoinHandle<()>,
    family: VersionFamily,
}

/// Connections of a rank to a client.
struct Joined {
    input: ZmtpConnection,
    output: ZmtpConnection,
    ready: MsgpackValue,
    /// Outputs that have come with figures of the scheduler.
    figures: Vec<MsgpackValue>,
}

fn engine(config: Config) -> Config {
    Config { engine: Some(EngineConfig::default()), ..config }
}

fn synthetic() -> Config {
    engine(Config { source: Source::Synthetic(Synthetic::Random), ..Config::default() })
}

async fn accept(listener: &TcpListener, socket: SocketType) -> ZmtpConnection {
    let (stream, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    ZmtpConnection::open(stream, socket, b"").await.unwrap()
}

fn address(listener: &TcpListener) -> String {
    format!("tcp://{}", listener.local_addr().unwrap())
}

async fn bind() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

async fn message(connection: &mut ZmtpConnection) -> Vec<Vec<u8>> {
    timeout(PATIENCE, connection.reader.message()).await.expect("a message").unwrap()
}

impl Behind {
    async fn start(player: &Player, version: &str) -> Self {
        Self::start_scripted(player, version, FleetScript::default()).await
    }

    async fn start_scripted(player: &Player, version: &str, script: FleetScript) -> Self {
        let (greetings, inputs, outputs) = (bind().await, bind().await, bind().await);
        let family = VersionFamily::of_version(version).unwrap();
        let config = EngineCoreConfig { front_end: address(&greetings), version: version.to_owned(), family, script };
        let (stop, stopped) = oneshot::channel::<()>();
        let player = player.clone();
        let engine = tokio::spawn(async move {
            player.serve_engine_core(config, async { drop(stopped.await) }).await.unwrap();
        });
        let mut behind =
            Self { greetings, inputs, outputs, joined: Vec::new(), greeted: Vec::new(), stop, engine, family };
        behind.meet().await;
        behind
    }

    /// Lets a rank join.
    async fn meet(&mut self) {
        self.meet_for(1).await;
    }

    /// Lets a rank join for so many clients.
    async fn meet_for(&mut self, clients: usize) {
        let mut greeting = accept(&self.greetings, SocketType::Router).await;
        assert_eq!(message(&mut greeting).await, [hello()]);
        let list = |listener| vec![address(listener).as_str(); clients].into();
        let addresses = MsgpackValue::map([("inputs", list(&self.inputs)), ("outputs", list(&self.outputs))]);
        greeting.writer.send(&[&MsgpackValue::map([("addresses", addresses)]).to_bytes()]).await.unwrap();
        for _ in 0..clients {
            let mut input = accept(&self.inputs, SocketType::Router).await;
            let ready = MsgpackValue::read(&message(&mut input).await[0]).unwrap();
            let output = accept(&self.outputs, SocketType::Pull).await;
            self.joined.push(Joined { input, output, ready, figures: Vec::new() });
        }
        message(&mut greeting).await;
        self.greeted.push(greeting);
    }

    async fn send(&mut self, kind: u8, body: &[u8]) {
        self.joined[0].input.writer.send(&[&[kind], body]).await.unwrap();
    }

    async fn add(&mut self, id: &str, prompt: &[u32], sampling: Vec<(&str, MsgpackValue)>) {
        let request = request(id, prompt, sampling, |_| {});
        self.send(0, &request).await;
    }

    /// Waits for the next message of the first rank.
    async fn outputs(&mut self) -> WireOutputs {
        let family = self.family;
        self.joined[0].outputs(family).await
    }

    /// Collects what comes of requests until all of them have ended.
    async fn until_ended(&mut self, ids: &[&str]) -> Vec<WireOutput> {
        let (mut all, mut open): (Vec<WireOutput>, Vec<&str>) = (Vec::new(), ids.to_vec());
        while !open.is_empty() {
            for output in self.outputs().await.outputs {
                if output.finish_reason.is_some() {
                    open.retain(|id| *id != output.request_id);
                }
                all.push(output);
            }
        }
        all
    }

    async fn call(&mut self, method: &str, args: Vec<MsgpackValue>) -> MsgpackValue {
        let call = vec![0_u32.into(), u64::MAX.into(), method.into(), MsgpackValue::Array(args)];
        self.send(3, &MsgpackValue::Array(call).to_bytes()).await;
        loop {
            if let Some(output) = self.outputs().await.utility_output {
                let MsgpackValue::Array(mut parts) = output else { panic!("{output:?}") };
                assert_eq!(parts.remove(0).as_u64(), Some(u64::MAX));
                return MsgpackValue::Array(parts);
            }
        }
    }

    async fn end(self) -> Joined {
        let Self { mut joined, stop, engine, .. } = self;
        stop.send(()).unwrap();
        timeout(PATIENCE, engine).await.unwrap().unwrap();
        joined.remove(0)
    }
}

impl Joined {
    async fn outputs(&mut self, family: VersionFamily) -> WireOutputs {
        let frames = message(&mut self.output).await;
        let outputs = WireOutputs::read(&frames[0], &frames[1..], family).unwrap();
        self.figures.extend(outputs.scheduler_stats.clone());
        outputs
    }

    /// The number of requests that ran in the last step.
    fn running(&self) -> Option<u64> {
        self.figures.last()?.get("num_running_reqs")?.as_u64()
    }

    /// The figure of this name, added up.
    fn sum(&self, name: &str) -> u64 {
        let of = |figures: &MsgpackValue| figures.get("prefix_cache_stats")?.get(name)?.as_u64();
        self.figures.iter().map(|figures| of(figures).unwrap()).sum()
    }
}

/// A request of vLLM 0.32, with changed fields.
fn request(
    id: &str,
    prompt: &[u32],
    sampling: Vec<(&str, MsgpackValue)>,
    change: impl FnOnce(&mut [MsgpackValue]),
) -> Vec<u8> {
    let mut fields = vec![MsgpackValue::Nil; 22];
    fields[0] = format!("{id}-0badcafe").as_str().into();
    fields[1] = prompt.to_vec().into();
    let eos = ("_eos_token_id", EOS.into());
    fields[3] = MsgpackValue::map(sampling.into_iter().chain([eos]));
    fields[5] = 1.5.into();
    fields[11] = 0_u32.into();
    fields[16] = id.into();
    change(&mut fields);
    MsgpackValue::Array(fields).to_bytes()
}

fn tokens_of<'a>(outputs: &'a [WireOutput], id: &str) -> Vec<u32> {
    let of: Vec<&'a WireOutput> = outputs.iter().filter(|output| output.request_id.starts_with(id)).collect();
    of.iter().flat_map(|output| output.new_token_ids.clone()).collect()
}

fn at_most(tokens: u32) -> Vec<(&'static str, MsgpackValue)> {
    vec![("max_tokens", tokens.into())]
}

#[tokio::test]
async fn a_recorded_answer_is_the_same_as_over_http() {
    let step = Duration::from_millis(1);
    let times = EngineTimes::Given(StepTimes::Knobs(Knobs::constant(step, step)));
    let engine = Some(EngineConfig { times, ..EngineConfig::default() });
    let player = Player::load(Config { scale_out: true, engine, ..Config::default() }).unwrap();
    let listener = bind().await;
    let over_http = listener.local_addr().unwrap();
    let (_stop, stopped) = oneshot::channel::<()>();
    let server = player.clone();
    tokio::spawn(async move { server.serve(listener, async { drop(stopped.await) }).await });
    let mut behind = Behind::start(&player, "0.32.0").await;
    for record in 0..3 {
        let body = json!({
            "token_ids": [7, 8, 9], "sampling_params": {"max_tokens": 400}, "request_id": format!("replay-{record}"),
        });
        let answer = send(over_http, &post("/inference/v1/generate", &body)).await.json();
        let expected: Vec<u32> = serde_json::from_value(answer["choices"][0]["token_ids"].clone()).unwrap();
        let id = format!("cmpl-replay-{record}-0");
        behind.add(&id, &[7, 8, 9], at_most(400)).await;
        let outputs = behind.until_ended(&[&format!("{id}-0badcafe")]).await;
        let mut ids = tokens_of(&outputs, &id);
        // A text that stopped ends with a token for it.
        let last = outputs.last().unwrap();
        if last.finish_reason == Some(WireFinish::Stop) && ids.len() > expected.len() {
            assert_eq!(ids.pop(), Some(EOS));
        }
        assert!(!expected.is_empty());
        assert_eq!(ids, expected, "{id}");
    }
}

#[tokio::test]
async fn steps_are_messages_with_times_and_figures() {
    let scheduler = SchedulerConfig { max_num_seqs: 8, ..SchedulerConfig::default() };
    let step = Duration::from_millis(5);
    let times = EngineTimes::Given(StepTimes::Knobs(Knobs::constant(step, step)));
    let engine = Some(EngineConfig { scheduler, times, ..EngineConfig::default() });
    let player = Player::load(Config { engine, ..synthetic() }).unwrap();
    let mut behind = Behind::start(&player, "0.32.0").await;
    let ready = behind.joined[0].ready.clone();
    let number = |name: &str| ready.get(name).and_then(MsgpackValue::as_u64);
    assert_eq!(
        (number("max_num_seqs"), number("data_parallel_size"), number("block_size")),
        (Some(8), Some(1), Some(16))
    );
    assert_eq!(ready.get("vllm_version").and_then(MsgpackValue::as_str), Some("0.32.0"));
    let prompt: Vec<u32> = (0..33).collect();
    behind.add("cmpl-a-0", &prompt, at_most(4)).await;
    let first = behind.until_ended(&["cmpl-a-0-0badcafe"]).await;
    assert_eq!((tokens_of(&first, "cmpl-a").len(), first.last().unwrap().finish_reason), (4, Some(WireFinish::Length)));
    let [(1, queued), (2, scheduled)] = first[0].events.as_slice() else { panic!("{first:?}") };
    assert!(queued <= scheduled && first[1..].iter().all(|output| output.events.is_empty()));
    let stats = first[0].prefill_stats.unwrap();
    assert_eq!((stats.prompt_tokens, stats.cached, stats.external, stats.created), (33, 0, 0, 32));
    behind.add("cmpl-b-0", &prompt, at_most(2)).await;
    let second = behind.until_ended(&["cmpl-b-0-0badcafe"]).await;
    assert_eq!(second[0].prefill_stats.unwrap().cached, 32);
    let joined = &behind.joined[0];
    assert_eq!((joined.sum("requests"), joined.sum("queries"), joined.sum("hits")), (2, 66, 32));
    assert_eq!(joined.running(), Some(0));
    // Steps that end before their figures are sent have those of the last one, so it runs for longer than a machine is busy.
    behind.add("cmpl-c-0", &prompt, at_most(4000)).await;
    while behind.joined[0].running() != Some(1) {
        assert!(behind.outputs().await.outputs.iter().all(|output| output.finish_reason.is_none()), "it ends first");
    }
    behind.end().await;
}

#[tokio::test]
async fn log_probabilities_have_a_row_for_each_token() {
    let player = Player::load(synthetic()).unwrap();
    let mut behind = Behind::start(&player, "0.32.0").await;
    let asked = vec![("max_tokens", 3_u32.into()), ("logprobs", 2_u32.into()), ("prompt_logprobs", 1_u32.into())];
    behind.add("cmpl-l-0", &[5, 6, 7, 8], asked).await;
    let outputs = behind.until_ended(&["cmpl-l-0-0badcafe"]).await;
    let prompt = outputs[0].new_prompt_logprobs.as_ref().unwrap();
    assert_eq!((prompt.width, prompt.ranks.len()), (2, 3), "the first token has none");
    assert_eq!(prompt.token_ids.chunks(2).map(|row| row[0]).collect::<Vec<_>>(), [6, 7, 8]);
    for output in &outputs {
        let rows = output.new_logprobs.as_ref().unwrap();
        assert_eq!((rows.width, rows.ranks.len()), (3, output.new_token_ids.len()));
        assert_eq!(rows.token_ids[0], output.new_token_ids[0]);
        assert!(rows.logprobs.iter().all(|value| *value <= 0.0));
    }
}

#[tokio::test]
async fn named_ids_are_scored_and_an_end_that_is_ignored_is_still_the_end() {
    let player = Player::load(synthetic()).unwrap();
    let mut behind = Behind::start(&player, "0.32.0").await;
    let named = ("logprob_token_ids", vec![7_u32, 9].into());
    behind.add("cmpl-n-0", &[5], vec![("max_tokens", 1_u32.into()), named]).await;
    let outputs = behind.until_ended(&["cmpl-n-0-0badcafe"]).await;
    let rows = outputs[0].new_logprobs.as_ref().unwrap();
    assert_eq!((rows.width, &rows.token_ids[1..]), (3, &[7, 9][..]));
    drop(behind);
    // The end of a recorded text is its last token, which a front end does not show.
    let ids = play_server::tokenizer().encode("Hi.", SpecialTokens::Skip).unwrap();
    let hidden = [ids.as_slice(), &play_server::tokenizer().eos_ids()[..1]].concat();
    let record = play_server::record(&hidden, Duration::ZERO, FinishReason::Stop);
    let config =
        Config { max_model_len: Some(400), ..play_server::config(&[MatchBy::Next], vec![record.clone(), record]) };
    let player = Player::load(engine(config)).unwrap();
    let mut behind = Behind::start(&player, "0.32.0").await;
    for (name, shows_end) in [("cmpl-i", false), ("cmpl-s", true)] {
        let ignoring = vec![
            ("_eos_token_id", MsgpackValue::Nil),
            ("ignore_eos", true.into()),
            ("max_tokens", 50_u32.into()),
            ("include_stop_str_in_output", shows_end.into()),
        ];
        let id = format!("{name}-0");
        let request = request(&id, &[5], vec![], |fields| fields[3] = MsgpackValue::map(ignoring));
        behind.send(0, &request).await;
        let outputs = behind.until_ended(&[&format!("{id}-0badcafe")]).await;
        assert_eq!(tokens_of(&outputs, name), hidden);
        let last = outputs.last().unwrap();
        assert_eq!((last.finish_reason, last.stop_reason), (Some(WireFinish::Stop), None));
    }
}

#[tokio::test]
async fn aborts_end_requests_and_what_is_wrong_ends_with_an_error() {
    let player = Player::load(synthetic()).unwrap();
    let mut behind = Behind::start(&player, "0.32.0").await;
    // Held, so that it has not ended before its abort.
    assert!(behind.call("pause_scheduler", vec!["keep".into(), false.into()]).await.as_array().unwrap()[0].is_nil());
    assert_eq!(behind.call("is_scheduler_paused", vec![]).await, result(true.into()));
    behind.add("cmpl-gone-0", &[5], at_most(30)).await;
    behind.send(1, &MsgpackValue::from(vec!["cmpl-gone-0-0badcafe"]).to_bytes()).await;
    behind.call("resume_scheduler", vec![]).await;
    let pooling = request("pool", &[5], vec![], |fields| {
        (fields[3], fields[4]) = (MsgpackValue::Nil, MsgpackValue::Array(vec![]));
    });
    behind.send(0, &pooling).await;
    let embeds = request("embeds", &[5], vec![], |fields| fields[9] = vec!["float32"].into());
    behind.send(0, &embeds).await;
    // Of a version that is not known.
    behind
        .send(0, &MsgpackValue::Array([vec!["future".into()], vec![MsgpackValue::Nil; 29]].concat()).to_bytes())
        .await;
    behind.send(0, b"\xc1 no message").await;
    behind.send(9, b"\x90").await;
    behind.add("cmpl-long-0", &vec![5; 40_000], at_most(1)).await;
    behind.add("cmpl-fine-0", &[5], at_most(1)).await;
    let ids = ["pool-0badcafe", "embeds-0badcafe", "future", "cmpl-long-0-0badcafe", "cmpl-fine-0-0badcafe"];
    let outputs = behind.until_ended(&ids).await;
    let finish = |id: &str| outputs.iter().find(|output| output.request_id == id).unwrap().finish_reason;
    let error = Some(WireFinish::Error);
    assert_eq!(ids.map(finish), [error, error, error, error, Some(WireFinish::Length)]);
    assert!(tokens_of(&outputs, "cmpl-gone").is_empty());
    // Nothing runs any more.
    assert_eq!(behind.call("reset_prefix_cache", vec![false.into(), false.into()]).await, result(true.into()));
}

#[tokio::test]
async fn an_unreadable_request_ends_at_its_client_and_with_it_the_one_of_its_id() {
    let player = Player::load(synthetic()).unwrap();
    let mut behind = Behind::start(&player, "0.32.0").await;
    behind.joined.clear();
    behind.meet_for(2).await;
    let mut second = behind.joined.remove(1);
    let unreadable = |id: &str| MsgpackValue::Array([vec![id.into()], vec![MsgpackValue::Nil; 29]].concat()).to_bytes();
    let resume = vec![0_u32.into(), 1_u32.into(), "resume_scheduler".into(), MsgpackValue::Array(vec![])];
    let resume = MsgpackValue::Array(resume).to_bytes();
    behind.call("pause_scheduler", vec!["keep".into(), false.into()]).await;
    behind.add("cmpl-same-0", &[5], at_most(4)).await;
    behind.call("is_sleeping", vec![]).await;
    second.input.writer.send(&[&[0], &unreadable("cmpl-same-0-0badcafe")]).await.unwrap();
    let mut refused = Vec::new();
    // The last client has the figures of steps too.
    while refused.is_empty() {
        refused = second.outputs(behind.family).await.outputs;
    }
    assert_eq!((refused.len(), refused[0].finish_reason), (1, Some(WireFinish::Error)));
    behind.send(3, &resume).await;
    let outputs = behind.until_ended(&["cmpl-same-0-0badcafe"]).await;
    assert_eq!(
        (tokens_of(&outputs, "cmpl-same").len(), outputs.last().unwrap().finish_reason),
        (4, Some(WireFinish::Length))
    );
    behind.call("pause_scheduler", vec!["keep".into(), false.into()]).await;
    behind.add("cmpl-twice-0", &[5], at_most(4)).await;
    behind.send(0, &unreadable("cmpl-twice-0-0badcafe")).await;
    let outputs = behind.until_ended(&["cmpl-twice-0-0badcafe"]).await;
    assert_eq!(outputs.last().unwrap().finish_reason, Some(WireFinish::Error));
    behind.send(3, &resume).await;
    behind.add("cmpl-fine-0", &[5], at_most(4)).await;
    let outputs = behind.until_ended(&["cmpl-fine-0-0badcafe"]).await;
    assert!(tokens_of(&outputs, "cmpl-twice").is_empty(), "{outputs:?}");
}

#[tokio::test]
async fn a_request_too_many_may_be_sent_again() {
    let player = Player::load(synthetic()).unwrap();
    let mut behind = Behind::start(&player, "0.33.0").await;
    behind.call("pause_scheduler", vec!["keep".into(), false.into()]).await;
    for number in 0..=65_536 {
        behind.add(&format!("cmpl-{number}-0"), &[5], at_most(1)).await;
    }
    let outputs = behind.until_ended(&["cmpl-65536-0-0badcafe"]).await;
    assert_eq!(outputs.last().unwrap().error, Some(RequestError::OVERLOADED));
}

fn result(value: MsgpackValue) -> MsgpackValue {
    MsgpackValue::Array(vec![MsgpackValue::Nil, MsgpackValue::Array(vec![MsgpackValue::Nil, value])])
}

#[tokio::test]
async fn every_call_of_a_front_end_is_answered() {
    let lora = Some(LoraConfig { max_loras: 2, lora_modules: Vec::new() });
    let player = Player::load(Config { lora, ..synthetic() }).unwrap();
    let mut behind = Behind::start(&player, "0.32.0").await;
    let adapter = || MsgpackValue::Array(vec!["ad".into(), 7_u32.into(), "/ad".into()]);
    for (method, args, expected) in [
        ("get_supported_tasks", vec![], vec!["generate"].into()),
        ("reset_mm_cache", vec![], MsgpackValue::Nil),
        ("add_lora", vec![adapter()], true.into()),
        ("list_loras", vec![], vec![7_u32].into()),
        ("pin_lora", vec![7_u32.into()], true.into()),
        ("sleep", vec![1_u32.into(), "abort".into()], MsgpackValue::Nil),
        ("is_sleeping", vec![], true.into()),
        ("wake_up", vec![MsgpackValue::Nil], true.into()),
        ("is_sleeping", vec![], false.into()),
        ("set_weight_version", vec!["7".into()], MsgpackValue::Nil),
        ("get_weight_version", vec![], "7".into()),
        ("collective_rpc", vec!["reset_mm_cache".into()], MsgpackValue::Array(vec![MsgpackValue::Nil])),
    ] {
        assert_eq!(behind.call(method, args).await, result(expected), "{method}");
    }
    let adapted = request("cmpl-ad-0", &[5], at_most(1), |fields| fields[6] = adapter());
    behind.send(0, &adapted).await;
    let outputs = behind.until_ended(&["cmpl-ad-0-0badcafe"]).await;
    assert_eq!(outputs.last().unwrap().finish_reason, Some(WireFinish::Length));
    assert_eq!(behind.call("remove_lora", vec![7_u32.into()]).await, result(true.into()));
    assert_eq!(behind.call("remove_lora", vec![7_u32.into()]).await, result(false.into()));
    for method in ["eep_handle", ""] {
        let failed = behind.call(method, vec![]).await;
        let reason = failed.as_array().unwrap()[0].as_str().unwrap().to_owned();
        assert!(reason.starts_with(&format!("Call to {method} method failed")), "{reason}");
    }
}

#[tokio::test]
async fn a_front_end_that_comes_again_is_joined_again_and_the_end_aborts_and_says_so() {
    let player = Player::load(synthetic()).unwrap();
    let mut behind = Behind::start(&player, "0.32.0").await;
    behind.call("pause_scheduler", vec!["keep".into(), false.into()]).await;
    behind.add("cmpl-lost-0", &[5], at_most(30)).await;
    drop(behind.joined.remove(0));
    behind.meet().await;
    behind.call("resume_scheduler", vec![]).await;
    behind.call("pause_scheduler", vec!["keep".into(), false.into()]).await;
    behind.add("cmpl-open-0", &[5], at_most(30)).await;
    behind.call("is_sleeping", vec![]).await;
    let family = behind.family;
    let mut joined = behind.end().await;
    let mut outputs = Vec::new();
    loop {
        let frames = message(&mut joined.output).await;
        if frames[0] == ENGINE_CORE_DEAD {
            break;
        }
        outputs.extend(WireOutputs::read(&frames[0], &[], family).unwrap().outputs);
    }
    let ended: Vec<_> = outputs.iter().map(|output| (output.request_id.as_str(), output.finish_reason)).collect();
    assert_eq!(ended, [("cmpl-open-0-0badcafe", Some(WireFinish::Abort))]);
}

#[tokio::test]
async fn an_engine_that_dies_tells_its_front_end_and_begins_anew() {
    // What follows a death at once is not seen by a server whose machine has no time for it in between.
    let life = "- {at: 4s, replica: 0, do: die}\n- {at: 8s, replica: 0, do: start}\n";
    let step = Duration::from_millis(5);
    let times = EngineTimes::Given(StepTimes::Knobs(Knobs::constant(step, step)));
    let engine = Some(EngineConfig { times, ..EngineConfig::default() });
    let player = Player::load(Config { engine, ..synthetic() }).unwrap();
    let mut behind = Behind::start_scripted(&player, "0.32.0", FleetScript::parse(life, 1).unwrap()).await;
    behind.add("cmpl-open-0", &[5], at_most(4000)).await;
    let mut died = behind.joined.remove(0);
    loop {
        let frames = message(&mut died.output).await;
        if frames[0] == ENGINE_CORE_DEAD {
            break;
        }
        let outputs = WireOutputs::read(&frames[0], &[], behind.family).unwrap().outputs;
        assert!(outputs.iter().all(|output| output.finish_reason.is_none()), "it ends first");
    }
    behind.meet().await;
    behind.add("cmpl-next-0", &[5], at_most(2)).await;
    assert_eq!(behind.until_ended(&["cmpl-next-0-0badcafe"]).await.len(), 2);
}

#[tokio::test]
async fn each_rank_joins_and_runs_its_own_requests() {
    let player = Player::load(Config { data_parallel_size: 2.try_into().unwrap(), ..synthetic() }).unwrap();
    let mut behind = Behind::start(&player, "0.32.0").await;
    behind.meet().await;
    let ranks = behind.joined.iter().map(|joined| joined.ready.get("data_parallel_rank").cloned());
    let mut ranks: Vec<_> = ranks.map(|rank| rank.unwrap().as_u64().unwrap()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1]);
    let family = behind.family;
    for joined in &mut behind.joined {
        let rank = joined.ready.get("data_parallel_rank").unwrap().as_u64().unwrap();
        let id = format!("cmpl-{rank}-0");
        joined.input.writer.send(&[&[0], &request(&id, &[5], at_most(2), |_| {})]).await.unwrap();
        let mut finished = Vec::new();
        while finished.is_empty() {
            let outputs = joined.outputs(family).await;
            assert_eq!(u64::from(outputs.engine_index), rank);
            finished.extend(outputs.finished_requests.unwrap_or_default());
        }
        assert_eq!(finished, [format!("{id}-0badcafe")]);
    }
}

#[tokio::test]
async fn a_front_end_in_lock_step_is_greeted_once_and_named_in_the_end() {
    let (player, greetings) = (Player::load(synthetic()).unwrap(), bind().await);
    let (front_end, family) = (address(&greetings), VersionFamily::of_version("0.32.0").unwrap());
    let version = "0.32.0".to_owned();
    let config = EngineCoreConfig { front_end, version, family, script: FleetScript::default() };
    let engine = tokio::spawn(async move { player.serve_engine_core(config, std::future::pending()).await });
    let mut greeting = accept(&greetings, SocketType::Router).await;
    assert_eq!(message(&mut greeting).await, [hello()]);
    let places = ["inputs", "outputs"].map(|name| (name, vec![address(&greetings).as_str()].into()));
    let ranks = MsgpackValue::map([("data_parallel_size", 2_u32.into())]);
    let init = MsgpackValue::map([("addresses", MsgpackValue::map(places)), ("parallel_config", ranks)]);
    greeting.writer.send(&[&init.to_bytes()]).await.unwrap();
    let error = timeout(PATIENCE, engine).await.unwrap().unwrap().unwrap_err().to_string();
    assert!(error.contains("cannot be served: its ranks run in lock step"), "{error}");
}

#[tokio::test]
async fn generation_that_is_paused_refuses_requests_and_says_why() {
    let player = Player::load(synthetic()).unwrap();
    let mut behind = Behind::start(&player, "0.33.0").await;
    assert_eq!(behind.call("pause_generation", vec!["wait".into(), true.into()]).await, result(MsgpackValue::Nil));
    behind.add("cmpl-paused-0", &[5], at_most(1)).await;
    let outputs = behind.until_ended(&["cmpl-paused-0-0badcafe"]).await;
    assert_eq!(outputs[0].error, Some(RequestError::PAUSED));
    // A front end that comes again finds the same engine.
    behind.joined.clear();
    behind.meet().await;
    behind.add("cmpl-again-0", &[5], at_most(1)).await;
    assert_eq!(behind.until_ended(&["cmpl-again-0-0badcafe"]).await[0].error, Some(RequestError::PAUSED));
    behind.call("resume_scheduler", vec![]).await;
    behind.add("cmpl-long-0", &vec![5; 40_000], at_most(1)).await;
    let outputs = behind.until_ended(&["cmpl-long-0-0badcafe"]).await;
    let error = outputs[0].error.clone().unwrap();
    assert!(error.message.contains("maximum context length") && !error.retryable, "{error:?}");
    behind.call("pause_generation", vec!["keep".into(), false.into()]).await;
    behind.add("cmpl-kept-0", &[5], at_most(1)).await;
    behind.call("resume_scheduler", vec![]).await;
    let outputs = behind.until_ended(&["cmpl-kept-0-0badcafe"]).await;
    assert_eq!(outputs.last().unwrap().finish_reason, Some(WireFinish::Length));
}

#[tokio::test]
async fn an_older_front_end_gets_the_form_of_its_version() {
    let player = Player::load(synthetic()).unwrap();
    let mut behind = Behind::start(&player, "0.32.0").await;
    // 18 fields, the one after the pooling parameters a time: 0.20.
    let mut fields = MsgpackValue::read(&request("cmpl-old-0", &[5], at_most(1), |_| {})).unwrap();
    let MsgpackValue::Array(items) = &mut fields else { unreachable!() };
    items.remove(10);
    items.truncate(18);
    behind.send(0, &fields.to_bytes()).await;
    behind.family = VersionFamily::of_version("0.20.0").unwrap();
    let outputs = behind.until_ended(&["cmpl-old-0-0badcafe"]).await;
    assert_eq!(outputs.last().unwrap().finish_reason, Some(WireFinish::Length));
    assert_eq!(outputs[0].prefill_stats.unwrap().prompt_tokens, 1);
}

#[test]
fn flags_that_mean_nothing_behind_a_front_end_are_refused_by_name() {
    for (flags, expected) in [
        (&["--engine-core", "29550"][..], "is not HOST:PORT"),
        (&["--engine-core", "127.0.0.1:1", "--port", "8000"], "--port has no effect with --engine-core"),
        (&["--engine-core", "127.0.0.1:1", "--fault", "429"], "`429` has no effect with --engine-core"),
        (&["--engine-core", "127.0.0.1:1", "--fault-headers"], "--fault-headers has no effect with --engine-core"),
        (&["--engine-core", "127.0.0.1:1", "--replicas", "2"], "--replicas has no effect with --engine-core"),
        (&["--engine-core", "127.0.0.1:1", "--cassette", "a.yaml"], "a cassette has whole responses"),
        (
            &["--engine-core", "127.0.0.1:1", "--cassette", "a.yaml", "--synthetic", "random", "--on-miss", "random"],
            "a cassette has whole responses",
        ),
        (&["--engine-core", "127.0.0.1:1", "--vllm-version", "0.34"], "0.10 to 0.33"),
        (&["--engine-core", "127.0.0.1:1", "--", "pytest"], "which a command cannot call"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_vllm-vcr")).arg("play").args(flags).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(expected), "{flags:?}: {said}");
    }
}
