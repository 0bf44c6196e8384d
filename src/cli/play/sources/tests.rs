use clap::{ArgAction, ArgMatches, FromArgMatches};

use super::*;
use crate::cli::{
    args::{Cli, Command, command},
    flags::name_of,
};

const KINDS: [(SourceKind, &[&str]); 4] = [
    (SourceKind::BuiltIn, &[]),
    (SourceKind::Trace, &["--replay-tokens", "t.jsonl"]),
    (SourceKind::Synthetic, &["--synthetic", "random"]),
    (SourceKind::Cassette, &["--cassette", "c.yaml"]),
];

/// Checks a command line: `None` if clap refuses it.
fn checked(words: &[&str]) -> Option<Result<(), String>> {
    let matches = command().try_get_matches_from(["vllm-vcr", "play"].iter().chain(words)).ok()?;
    let Command::Play(args) = Cli::from_arg_matches(&matches).unwrap().command else { return None };
    Some(check(&args, &typed(&matches)).map_err(|failure| failure.text()))
}

/// The flags of `play`, and what was typed.
fn typed(matches: &ArgMatches) -> Typed<'_> {
    Typed::new(&command(), "play", matches.subcommand_matches("play").unwrap()).unwrap()
}

/// The flags of `play` but for its help.
fn play() -> (clap::Command, Vec<Arg>) {
    let play = typed(&command().try_get_matches_from(["vllm-vcr", "play"]).unwrap()).command;
    let flags = play.get_arguments().filter(|flag| flag.get_id() != "help" && !flag.is_global_set()).cloned().collect();
    (play, flags)
}

/// Values that a flag takes.
fn samples(flag: &Arg) -> Vec<String> {
    let possible = flag.get_possible_values();
    if !possible.is_empty() {
        return possible.iter().map(|value| value.get_name().to_owned()).collect();
    }
    let sample = match name_of(flag) {
        "fail-on" => {
            let names = ["miss", "unconsumed", "unconsumed=all", "exhausted", "loose", "drift"];
            return names.map(str::to_owned).to_vec();
        }
        "upstream" => "http://localhost:1",
        "mcp-upstream" => "a=http://localhost:1",
        "admin-listen" | "replica-addresses" => "localhost:0",
        "fault" => "429",
        "match" => "exact",
        "ignore" => "$.a",
        "scrub" => "s/a/b/",
        "live" | "frozen" => "llm",
        "allowed-origins" | "allowed-methods" | "allowed-headers" => "[]",
        "default-chat-template-kwargs"
        | "hf-overrides"
        | "fake-metrics"
        | "kv-events-config"
        | "kv-transfer-config"
        | "speculative-config"
        | "override-generation-config" => "{}",
        "vllm-version" => "0.32",
        "engine-core" => "tcp://localhost:1",
        "miss-status" => "404",
        "min-match" => "whole",
        "cassette" => "c.yaml",
        "replay-tokens" => "t.jsonl",
        "redact" => "all",
        "redact-pattern" | "lora-modules" => "a=b",
        "reasoning-parser" => "qwen3",
        "tool-call-parser" => "hermes",
        "latency-profile" => "h100-8b",
        "num-gpu-blocks-override" => "2",
        "drain-timeout" | "complete-within" | "mcp-reply-within" => "1s",
        _ => "1",
    };
    vec![sample.to_owned()]
}

/// The flag with a value, and what it needs beside it.
fn words(play: &clap::Command, flag: &Arg, value: &str, kind: SourceKind) -> Vec<String> {
    let name = name_of(flag);
    let mut words = match (flag.get_long(), flag.get_action()) {
        (None, _) => vec![],
        (Some(_), ArgAction::SetTrue) => vec![format!("--{name}")],
        (Some(_), _) => vec![format!("--{name}={value}")],
    };
    let beside: &[&str] = match name {
        _ if tags_of(play, flag).any(|tag| OF_ENGINE.contains(&tag)) => &["--engine"],
        "miss-status" | "miss-detail" if kind != SourceKind::Synthetic => &["--on-miss=error"],
        "lora-modules" => &["--enable-lora"],
        "failure-types" => &["--failure-injection-rate=1"],
        "reasoning-share" => &["--reasoning-parser=qwen3"],
        "enable-auto-tool-choice" => &["--tool-call-parser=hermes"],
        "block-network" => &["--", "true"],
        "allow-host" => &["--block-network", "--", "true"],
        "ssl-keyfile" | "ssl-ca-certs" | "enable-ssl-refresh" => &["--ssl-certfile=c.pem"],
        _ => &[],
    };
    words.extend(beside.iter().map(|word| (*word).to_owned()));
    words
}

#[test]
fn every_flag_works_or_says_so_for_every_kind_of_source() {
    let command = command();
    let (play, flags) = play();
    let mut refused = 0;
    for (flag, (kind, source)) in flags.iter().flat_map(|flag| KINDS.map(|kind| (flag, kind))) {
        let name = name_of(flag);
        let effect = effect(&play, flag, kind)
            .unwrap_or_else(|| panic!("--{name}: no tag of it has a row in src/cli/play/sources/mod.rs"));
        for value in samples(flag) {
            let flag_words = words(&play, flag, &value, kind);
            let line: Vec<&str> = source.iter().copied().chain(flag_words.iter().map(String::as_str)).collect();
            let Some(outcome) = checked(&line) else {
                // The command line itself refuses it, and so names both.
                let alone: Vec<&str> = flag_words.iter().map(String::as_str).collect();
                let is_source = ["replay-tokens", "cassette", "synthetic"].contains(&name);
                let fits = KINDS.iter().any(|(_, source)| {
                    command
                        .clone()
                        .try_get_matches_from(["vllm-vcr", "play"].iter().chain(*source).chain(&alone))
                        .is_ok()
                });
                assert!(fits || is_source, "--{name} {value}: a sample that it takes");
                continue;
            };
            let works = match effect {
                Full | Rest(_) => true,
                Values(known, _) => known.contains(&value.as_str()),
                Nothing(_) | Excludes(_) => false,
            };
            match outcome {
                Ok(()) => assert!(works, "{line:?} is accepted"),
                Err(message) => {
                    refused += 1;
                    assert!(!works, "{line:?}: {message}");
                    assert!(
                        message.contains(&format!("--{name}")) && message.contains(kind.name()),
                        "{line:?}: {message}"
                    );
                }
            }
        }
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn a_flag_works_where_one_of_two_sources_takes_it() {
    let both = ["--cassette", "c.yaml", "--replay-tokens", "t.jsonl"];
    for flag in ["--match=exact", "--min-match=whole", "--scrub=s/a/b/", "--hash-key-file=k", "--mode=none"] {
        assert_eq!(checked(&[&both[..], &[flag]].concat()), Some(Ok(())), "{flag}");
    }
    assert_eq!(checked(&["c.yaml", "--match=exact"]), Some(Ok(())), "a cassette named as the model");
    let each_its_own = ["--match=canonical,prefix", "--replay-match=index"];
    assert_eq!(checked(&[&both[..], &each_its_own].concat()), Some(Ok(())));
    for way in ["exact", "canonical"] {
        let flag = format!("--replay-match={way}");
        let message = checked(&[&both[..], &[&flag]].concat()).unwrap().unwrap_err();
        assert!(message.contains(&format!("--replay-match {way} has no effect on a trace")), "{message}");
        assert_eq!(
            checked(&["--cassette", "c.yaml", &flag]),
            Some(Ok(())),
            "the cassette's way where nothing else is played"
        );
    }
}

#[test]
fn another_name_of_a_value_is_that_value() {
    let trace = ["--replay-tokens", "t.jsonl"];
    for flag in ["--match=sequential", "--match=conversation,ordered", "--replay-match=sequential"] {
        assert_eq!(checked(&[&trace[..], &[flag]].concat()), Some(Ok(())), "{flag}");
    }
    assert!(checked(&[&trace[..], &["--match=ignore-volatile"]].concat()).unwrap().is_err());
}

#[test]
fn flags_about_what_never_happens_are_refused() {
    let trace = ["--replay-tokens", "t.jsonl"];
    for (flags, part) in [
        (&["--miss-status=404"][..], "--miss-status is about errors"),
        (&["--strict", "--on-miss=random", "--miss-detail=none"], "--miss-detail is about errors"),
        (&["--replay-match=index", "--min-match=2"], "--min-match has an effect only on matches by prefix"),
        (&["--replay-match=index", "--on-exhausted=cycle"], "--on-exhausted has an effect only on matches by prefix"),
        (&["--match=ordered", "--min-match=2"], "--min-match has an effect only on matches by prefix"),
        (&["--match=prefix,canonical"], "--match has no effect on a trace: it has no requests to compare"),
        (&["--match=prefix", "--replay-match=index"], "--replay-match is the short form of --match"),
        (&["--fail-on=miss,drift"], "--fail-on has no effect on a trace"),
    ] {
        let message = checked(&[&trace[..], flags].concat()).unwrap().unwrap_err();
        assert!(message.contains(part), "{flags:?}: {message}");
    }
    assert_eq!(checked(&[&trace[..], &["--strict", "--miss-status=404"]].concat()), Some(Ok(())));
}

/// The page of flags that do less than their help describes for a trace or a cassette.
fn page() -> String {
    let mut page = "# Flags of `play` by what is played\n\n\
        Flags that do not do all that their help describes for a trace or for a cassette; every other flag does. One that does nothing for \
        anything that is played is refused with the reason. A test writes this page.\n\n\
        | flag | trace | cassette |\n|---|---|---|\n"
        .to_owned();
    let (play, flags) = play();
    for flag in &flags {
        let name = name_of(flag);
        let of = |kind| effect(&play, flag, kind).unwrap_or(Full);
        let (trace, cassette) = (of(SourceKind::Trace), of(SourceKind::Cassette));
        if (trace, cassette) != (Full, Full) {
            page.push_str(&format!("| `--{name}` | {} | {} |\n", cell(trace), cell(cassette)));
        }
    }
    page
}

fn cell(effect: Effect) -> String {
    match effect {
        Full => "yes".to_owned(),
        Rest(reason) => format!("for other requests only: {reason}"),
        Values(values, reason) => format!("`{}` only: {reason}", values.join("`, `")),
        Nothing(reason) | Excludes(reason) => format!("no: {reason}"),
    }
}

#[test]
fn the_page_of_flags_is_the_table() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/reference/flags-by-source.md");
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert_eq!(found, page(), "UPDATE_REFERENCE=1 cargo test the_page_of_flags writes {}", path.display());
}
