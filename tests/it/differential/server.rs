//! Servers under test: the program itself, started with the flags under which a golden was recorded, as far as it has them.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::LazyLock,
};

use serde_json::{Value, json};

/// A server with flags of its own, and the cases that it answers.
pub(super) struct Variant {
    /// Patterns of `suite/case`; the first variant that fits counts. Its cases are sent in the patterns' order.
    pub(super) cases: &'static [&'static str],
    /// The flags of the recorded server, each with its value.
    pub(super) flags: &'static [&'static str],
    pub(super) environment: &'static [(&'static str, &'static str)],
    /// How the test finds records, and how fast they are sent.
    pub(super) own: &'static [&'static str],
    pub(super) order: Order,
}

/// When the cases of a server are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Each when the one before is answered.
    InTurn,
    /// Each a moment after the one before.
    Together,
}

/// The sampling parameters are those of the engine's own `generation_config.json`.
const INDEX: &[&str] =
    &["--replay-match=index", "--time-scale=1000", r#"--override-generation-config={"temperature":0.6,"top_p":0.95}"#];
const REAL: &[&str] = &["--replay-match=index"];
const OPTIONS: &[&str] = &[
    "--block-size=128",
    "--api-key=sk-secret",
    "--sse-keep-alive-interval=1",
    "--stream-interval=4",
    "--enable-per-request-metrics",
    "--enable-force-include-usage",
    "--enable-scale-out",
    "--enable-tokenizer-info-endpoint",
    "--kv-cache-metrics",
    "--fingerprint-mode=custom",
    "--fingerprint-value=fp-custom",
];
const DEV: &[(&str, &str)] = &[("VLLM_SERVER_DEV_MODE", "1")];
const PARSERS: &[&str] = &[
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    "--reasoning-parser=qwen3",
    "--enable-prompt-tokens-details",
    "--block-size=128",
];
const TURNS: &[&str] = &[
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    "--reasoning-parser=qwen3",
    "--enable-prompt-tokens-details",
    "--enable-request-id-headers",
    "--block-size=128",
    // The engine returned no ids of what it hid, so ours are made up; like its own they are all reasoning.
    "--reasoning-share=1",
];
const DRAWN: &[&str] = &[
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    "--reasoning-parser=qwen3",
    "--enable-prompt-tokens-details",
    "--enable-request-id-headers",
    "--enable-scale-out",
    "--block-size=128",
];
const PLAIN: &[&str] = &[
    "--block-size=128",
    "--enable-prompt-tokens-details",
    "--enable-server-load-tracking",
    "--enable-request-id-headers",
    "--enable-tokenizer-info-endpoint",
];

/// How each golden was recorded.
pub(super) static VARIANTS: &[Variant] = &[
    Variant {
        cases: &["plain/comp_list_prompt_*"],
        flags: PLAIN,
        environment: &[],
        own: &["--replay-match=prefix", "--time-scale=1000"],
        order: Order::InTurn,
    },
    Variant { cases: &["plain/*"], flags: PLAIN, environment: &[], own: INDEX, order: Order::InTurn },
    Variant {
        cases: &["options/keepalive_*", "options/hdr_timing_slow"],
        flags: OPTIONS,
        environment: DEV,
        own: REAL,
        order: Order::InTurn,
    },
    // Slow enough for comments.
    Variant {
        cases: &["options/preempt_1", "options/chat_stream_token_ids_logprobs"],
        flags: OPTIONS,
        environment: DEV,
        own: REAL,
        order: Order::InTurn,
    },
    Variant {
        cases: &["options/queue_*"],
        flags: OPTIONS,
        environment: DEV,
        own: &["--replay-match=index", "--max-num-queued-reqs=4"],
        order: Order::Together,
    },
    // Before the pause that another case asks for.
    Variant { cases: &["options/dev_is_sleeping"], flags: OPTIONS, environment: DEV, own: INDEX, order: Order::InTurn },
    Variant {
        cases: &["options/dev_pause", "options/dev_*"],
        flags: OPTIONS,
        environment: DEV,
        own: INDEX,
        order: Order::InTurn,
    },
    Variant { cases: &["options/*"], flags: OPTIONS, environment: DEV, own: INDEX, order: Order::InTurn },
    Variant { cases: &["parsers/*", "tools/*"], flags: PARSERS, environment: &[], own: INDEX, order: Order::InTurn },
    Variant { cases: &["turns/*"], flags: TURNS, environment: &[], own: INDEX, order: Order::InTurn },
    Variant { cases: &["drawn/*"], flags: DRAWN, environment: &[], own: INDEX, order: Order::InTurn },
    Variant { cases: &["auth/*"], flags: &["--api-key=sekrit"], environment: &[], own: INDEX, order: Order::InTurn },
    Variant { cases: &["spec/*"], flags: &[], environment: &[], own: INDEX, order: Order::InTurn },
    Variant { cases: &["tails/*"], flags: &["--enable-scale-out"], environment: &[], own: INDEX, order: Order::InTurn },
];

/// Which flags shape which answers: such a case may differ for want of the flag.
const SHAPED: &[(&str, &[&str])] = &[
    ("--enable-server-load-tracking", &["plain/get_load"]),
    ("--enable-tokenizer-info-endpoint", &["plain/get_tokenizer_info", "options/noauth_tokenizer_info"]),
    (
        "--api-key",
        &[
            "auth/auth_missing",
            "auth/auth_wrong",
            "auth/auth_get_v1_models",
            "options/auth_missing",
            "options/auth_wrong",
            "options/auth_noscheme",
            "options/noauth_generate",
            "options/noauth_models",
            "options/noauth_nf",
            "options/messages_xapikey",
        ],
    ),
    ("--sse-keep-alive-interval", &["options/keepalive_*", "options/hdr_timing_slow"]),
    ("--stream-interval", &["options/*stream*", "options/preempt_*"]),
    ("--enable-force-include-usage", &["options/*stream*", "options/preempt_*"]),
    ("--enable-per-request-metrics", GENERATED),
    ("--fingerprint-mode", GENERATED),
    ("--reasoning-parser", &["parsers/*", "tools/*", "turns/*", "drawn/*"]),
    ("--enable-auto-tool-choice", &["parsers/*", "tools/*", "turns/*", "drawn/*"]),
];

/// The generated answers of the suite `options`.
const GENERATED: &[&str] = &[
    "options/after_reset",
    "options/auth_lower_scheme",
    "options/auth_ok",
    "options/chat*",
    "options/cmpl*",
    "options/gzip",
    "options/keepalive_*",
    "options/hdr_timing_slow",
    "options/kvfill_*",
    "options/preempt_*",
];

/// The first flag that shapes this case and that the program does not have.
pub(super) fn missing_flag(name: &str) -> Option<&'static str> {
    let shaping = SHAPED.iter().filter(|(_, cases)| cases.iter().any(|pattern| fits(pattern, name)));
    shaping.map(|(flag, _)| *flag).find(|flag| !has(flag))
}

/// Whether `name` fits a pattern, in which `*` stands for any text.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, rest)) => name
            .strip_prefix(start)
            .is_some_and(|name| (0..=name.len()).filter_map(|at| name.get(at..)).any(|name| fits(rest, name))),
        None => pattern == name,
    }
}

/// The help of `play`, which tells the flags that it has.
static HELP: LazyLock<String> = LazyLock::new(|| {
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-vcr")).args(["play", "--help"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
});

/// Whether the program has this flag.
pub(super) fn has(flag: &str) -> bool {
    let name = flag.split('=').next().unwrap();
    HELP.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-')).any(|word| word == name)
}

/// A running server; it is killed when this is dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    child: Child,
}

impl Server {
    /// Starts the program with a trace of these records.
    pub(super) fn start(variant: &Variant, records: &[Value], tokenizer: &Path, directory: &Path) -> Self {
        let trace = directory.join(format!("{}.jsonl", variant.cases[0].replace(['/', '*'], "_")));
        let meta = json!({"meta": {"block_size": 1, "model": "tiny-qwen3"}});
        // A trace must hold a record, also where no request wants one.
        let spare = json!({"prompt_tokens": 1, "output_tokens": 1, "ttft_ms": 1.0, "arrival_ms": records.len(),
            "output_token_ids": [785], "finish_reason": "length"});
        let lines = std::iter::once(&meta).chain(records).chain([&spare]);
        let lines: Vec<String> = lines.map(Value::to_string).collect();
        fs::write(&trace, lines.join("\n") + "\n").unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
            .args([
                "play",
                "--port=0",
                "--served-model-name=tiny-qwen3",
                "--max-model-len=4096",
                "--drain-timeout=0",
                "--model=/models/tiny-qwen3",
            ])
            .arg("--replay-tokens")
            .arg(&trace)
            .arg("--tokenizer")
            .arg(tokenizer)
            .args(variant.own)
            .args(variant.flags.iter().filter(|flag| has(flag)))
            .envs(variant.environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut said = String::new();
        let address = lines.find_map(|line| {
            said = format!("{said}{line}\n");
            line.strip_prefix("play on http://").and_then(|address| address.parse().ok())
        });
        // The rest of what it says is read away, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        let Some(address) = address else { panic!("the server for {:?} did not start:\n{said}", variant.cases) };
        Self { address, child }
    }

    /// Whether the process is still there.
    pub(super) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
