//! What is played, what goes upstream, what is written.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{CHAT, Running, Shelf, chat, engine, record, said, tape, vcr};
use crate::support::client::{get, send};
use crate::support::peer::{End, Script, Upstream, exchange, post};

#[tokio::test]
async fn new_episodes_are_added_and_nothing_before_them_changes() {
    let upstream = engine().await;
    let old = format!("# mine\n{}", tape(&[record(&["a"], "old A")]));
    let shelf = Shelf::with(&old);
    let tap = shelf.tap(&upstream, &["--mode", "new-episodes"]);
    assert_eq!(said(&tap.send(CHAT, &chat(&["a"])).await), "old A");
    assert_eq!(said(&tap.send(CHAT, &chat(&["b"])).await), "You said b.");
    assert_eq!(said(&tap.send(CHAT, &chat(&["a"])).await), "You said a.", "an exhausted duplicate is new");
    let (code, log) = tap.stop();
    assert_eq!(code, 0, "{log}");
    let new = shelf.text();
    assert!(new.starts_with(&old) && new.len() > old.len(), "{new}");
    let play = shelf.play(&["--strict"]);
    for (ask, text) in [("a", "old A"), ("a", "You said a."), ("b", "You said b.")] {
        assert_eq!(said(&play.send(CHAT, &chat(&[ask])).await), text);
    }
    assert_eq!(play.stop().0, 0);
}

#[tokio::test]
async fn once_records_what_is_not_there_and_plays_what_is() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--mode", "once"]);
    assert_eq!(said(&tap.send(CHAT, &chat(&["a"])).await), "You said a.");
    tap.stop();
    let asked = upstream.bodies().len();
    let tap = shelf.tap(&upstream, &["--mode", "once"]);
    assert_eq!(said(&tap.send(CHAT, &chat(&["a"])).await), "You said a.");
    assert_eq!(tap.send(CHAT, &chat(&["b"])).await.status, 422);
    assert_eq!(upstream.bodies().len(), asked, "nothing went upstream");
    let text = shelf.text();
    tap.stop();
    assert_eq!(shelf.text(), text);
}

#[tokio::test]
async fn all_replaces_and_live_touches_nothing() {
    let upstream = engine().await;
    let shelf = Shelf::with(&tape(&[record(&["a"], "old A")]));
    let live = shelf.tap(&upstream, &["--mode", "live"]);
    assert_eq!(said(&live.send(CHAT, &chat(&["a"])).await), "You said a.");
    live.stop();
    assert!(shelf.text().contains("old A"));
    let all = shelf.tap(&upstream, &["--mode", "all"]);
    assert_eq!(said(&all.send(CHAT, &chat(&["a"])).await), "You said a.");
    assert!(shelf.text().contains("old A"), "the old file stays until the new one is whole");
    let (_, log) = all.stop();
    assert!(log.contains("1 record will be replaced"), "{log}");
    assert!(!shelf.text().contains("old A") && shelf.text().contains("You said a."));
    assert!(!shelf.folder.path().join("tape.yaml.partial").exists());
}

#[tokio::test]
async fn a_crash_leaves_what_was_recorded() {
    let upstream = engine().await;
    let shelf = Shelf::with(&tape(&[record(&["a"], "old A")]));
    let tap = shelf.tap(&upstream, &["--mode", "all"]);
    tap.send(CHAT, &chat(&["b"])).await;
    let partial = shelf.folder.path().join("tape.yaml.partial");
    let recorded = || std::fs::read_to_string(&partial).is_ok_and(|text| text.contains("You said b."));
    for _ in 0..3000 {
        if recorded() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    drop(tap);
    assert!(shelf.text().contains("old A") && recorded(), "{}", super::read(&partial));
}

#[tokio::test]
async fn selections_decide_before_anything_is_looked_up() {
    let upstream = engine().await;
    let url = format!("http://{}", upstream.address);
    let shelf = Shelf::with(&tape(&[record(&["a"], "old A")]));
    let old = shelf.text();
    let play = shelf.play(&["--live", "llm:n", "--upstream", &url]);
    let other = json!({"model": "n", "messages": [{"role": "user", "content": "a"}]});
    assert_eq!(said(&play.send(CHAT, &other).await), "You said a.");
    assert_eq!(said(&play.send(CHAT, &chat(&["a"])).await), "old A");
    let frozen = play.send(CHAT, &chat(&["z"])).await;
    assert_eq!((frozen.status, frozen.header("x-vcr-miss")), (422, Some("frozen")));
    let message = frozen.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("  * run it for real too: --live llm:m"), "{message}");
    play.stop();
    assert_eq!(shelf.text(), old);
    let derived = super::read(&shelf.folder.path().join("tape.derived.yaml"));
    assert!(derived.contains("You said a.") && derived.contains("old A"), "{derived}");
    let tap = shelf.tap(&upstream, &["--mode", "all", "--frozen", "llm:m"]);
    assert_eq!(said(&tap.send(CHAT, &chat(&["a"])).await), "old A");
    assert_eq!(said(&tap.send(CHAT, &other).await), "You said a.");
    let frozen = tap.send(CHAT, &chat(&["z"])).await;
    let message = frozen.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("  * run it for real: --live llm:m in place of --frozen"), "{message}");
}

#[tokio::test]
async fn what_is_frozen_goes_nowhere_whatever_its_kind() {
    let upstream = engine().await;
    let shelf = Shelf::with(&tape(&[record(&["a"], "old A")]));
    let tap = shelf.tap(&upstream, &["--mode", "live", "--frozen", "path:/metrics", "--frozen", "path:/health"]);
    let asked = |path: &str| {
        let line = format!("GET {path} ");
        let requests = upstream.requests.lock().unwrap();
        let mut texts = requests.iter().map(|request| String::from_utf8_lossy(request));
        // The tap asks for the engine's facts by itself.
        texts.any(|request| request.starts_with(&line) && !request.contains("user-agent: vllm-vcr/"))
    };
    for path in ["/metrics", "/health", "/%6detrics"] {
        assert_eq!(send(tap.address, &get(path)).await.status, 404, "{path}");
    }
    send(tap.address, &get("/load")).await;
    assert!(asked("/load") && !asked("/metrics") && !asked("/health") && !asked("/%6detrics"));
}

#[tokio::test]
async fn a_path_that_hides_another_does_not_leave_where_only_records_answer() {
    let upstream = engine().await;
    let shelf = Shelf::with(&tape(&[record(&["a"], "old A")]));
    let tap = shelf.tap(&upstream, &["--mode", "none"]);
    for path in [
        "/health/../v1/hidden",
        "/health/./../v1/hidden",
        "/health/..%2f..%2fv1/hidden",
        "/health%2f..%2fv1/hidden",
        "/health/%2e%2e/v1/hidden",
        "//v1/hidden",
    ] {
        for method in ["GET", "POST", "OPTIONS"] {
            let request =
                format!("{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            let answer = exchange(tap.address, request.as_bytes()).await;
            assert!([404, 422].contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.body());
        }
    }
    send(tap.address, &get("/health")).await;
    let requests = upstream.requests.lock().unwrap();
    let asked: Vec<_> = requests.iter().map(|request| String::from_utf8_lossy(request).into_owned()).collect();
    assert!(asked.iter().any(|request| request.starts_with("GET /health ")), "{asked:?}");
    assert!(!asked.iter().any(|request| request.contains("hidden")), "{asked:?}");
}

#[tokio::test]
async fn a_miss_may_go_upstream() {
    let upstream = engine().await;
    let url = format!("http://{}", upstream.address);
    let shelf = Shelf::with(&tape(&[record(&["a"], "old A")]));
    let old = shelf.text();
    let play = shelf.play(&["--on-miss", "upstream", "--upstream", &url]);
    assert_eq!(said(&play.send(CHAT, &chat(&["z"])).await), "You said z.");
    play.stop();
    assert_eq!(shelf.text(), old);
    let play = shelf.play(&["--on-miss", "record", "--upstream", &url]);
    assert_eq!(said(&play.send(CHAT, &chat(&["z"])).await), "You said z.");
    play.stop();
    assert!(shelf.text().starts_with(&old) && shelf.text().contains("You said z."));
}

#[tokio::test]
async fn play_forwards_as_the_tap_does() {
    let upstream = Upstream::start(|_| Script {
        pieces: vec![
            b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".to_vec(),
            b"HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-sum: 7\r\n\r\n"
                .to_vec(),
        ],
        end: End::KeepAlive,
    })
    .await;
    let url = format!("http://{}", upstream.address);
    let shelf = Shelf::with(&tape(&[record(&["a"], "old A")]));
    let play = shelf.play(&["--on-miss", "record", "--upstream", &url]);
    let body = chat(&["z"]).to_string();
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: h\r\nte: trailers\r\nupgrade: h2c\r\nconnection: close, te, upgrade\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = TcpStream::connect(play.address).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    let mut received = String::new();
    client.read_to_string(&mut received).await.unwrap();
    let rest = received.strip_prefix("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n");
    assert!(rest.is_some_and(|rest| rest.ends_with("2\r\n{}\r\n0\r\nx-sum: 7\r\n\r\n")), "{received}");
    let sent =
        upstream.requests.lock().unwrap().iter().map(|sent| String::from_utf8_lossy(sent).into_owned()).next_back();
    assert!(sent.as_ref().is_some_and(|sent| !sent.contains("upgrade") && sent.contains("te: trailers")), "{sent:?}");
    play.stop();
    assert_eq!(shelf.text().matches("POST").count(), 2, "{}", shelf.text());
    let play = shelf.play(&["--on-miss", "upstream", "--upstream", "http://127.0.0.1:1"]);
    let lost = exchange(play.address, &post(CHAT, &chat(&["y"]).to_string())).await;
    assert_eq!((lost.status, lost.head.contains("x-vcr-miss: upstream_unreachable")), (502, true), "{}", lost.head);
    assert!(lost.body().contains("the upstream cannot be reached"), "{}", lost.body());
    play.stop();
}

#[tokio::test]
async fn passing_failures_are_not_recorded_and_lasting_ones_are() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    for status in ["429", "503", "400"] {
        let answer = tap.send(CHAT, &chat(&[&format!("status {status}")])).await;
        assert_eq!(answer.status.to_string(), status);
    }
    let (_, log) = tap.stop();
    assert!(log.contains("recorded 1 interaction") && log.contains("2 failed responses not recorded"), "{log}");
    assert!(shelf.text().contains("status: 400"), "{}", shelf.text());
}

#[tokio::test]
async fn parallel_requests_are_recorded_in_the_order_in_which_they_came() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let names: Vec<String> = (0..6).map(|at| format!("n{at}")).collect();
    for name in &names {
        tap.send(CHAT, &chat(&[name])).await;
    }
    tap.stop();
    let text = shelf.text();
    let places: Vec<usize> = names.iter().map(|name| text.find(&format!("content: {name}}}")).unwrap()).collect();
    assert!(places.is_sorted(), "{text}");
}

#[test]
fn flags_that_do_not_go_together_are_refused_before_anything_is_bound() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let name = shelf.name();
    let nowhere = shelf.folder.path().join("nowhere.yaml");
    for (arguments, code, part) in [
        (&["play", "--cassette", name, "--mode", "all"][..], 2, "--upstream"),
        (&["play", "--cassette", name, "--mode", "sing"], 2, "--mode"),
        (&["play", "--cassette", name, "--live", "llm"], 2, "--upstream"),
        (&["play", "--cassette", name, "--live", "llm", "--frozen", "llm"], 2, "cannot be used with"),
        (&["play", "--cassette", name, "--match", "psychic"], 2, "psychic"),
        (&["play", "--cassette", name, "--scrub", "s/(/x/"], 2, "pattern"),
        (&["play", "--cassette", nowhere.to_str().unwrap()], 3, "nowhere.yaml"),
        (&["tap", "--upstream", "http://127.0.0.1:1", "--cassette", name], 2, "choose --mode"),
    ] {
        let output = vcr(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}

#[test]
fn a_command_runs_beside_the_server_and_its_exit_code_wins() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let run = |flags: &[&str], script: &str| {
        let fixed = ["play", "--cassette", shelf.name(), "--instant"];
        vcr(&[&fixed[..], flags, &["--", "sh", "-c", script]].concat())
    };
    let asked =
        format!("curl -sf -H 'content-type: application/json' -d '{}' $OPENAI_BASE_URL/chat/completions", chat(&["a"]));
    let output = run(&["--strict"], &asked);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"content\":\"A\""));
    assert_eq!(run(&["--strict"], "true").status.code(), Some(1), "nothing was consumed");
    assert_eq!(run(&[], "true").status.code(), Some(0));
    assert_eq!(run(&["--strict"], "exit 7").status.code(), Some(7));
    let set = run(&[], "test -n \"$OPENAI_API_KEY\" && test \"$ANTHROPIC_BASE_URL\" = \"$VLLM_VCR_URL\"");
    assert_eq!(set.status.code(), Some(0));
}

#[test]
fn variables_of_a_wrapped_command_are_no_flags_of_those_that_it_starts() {
    fn variables(command: &clap::Command) -> Vec<&std::ffi::OsStr> {
        let own = command.get_arguments().filter_map(clap::Arg::get_env);
        own.chain(command.get_subcommands().flat_map(variables)).collect()
    }
    let (shelf, program) = (Shelf::with(&tape(&[record(&["a"], "A")])), env!("CARGO_BIN_EXE_vllm-vcr"));
    let file = |name: &str| shelf.folder.path().join(name).display().to_string();
    let old = shelf.text();
    let tap = ["tap", "--upstream", "http://127.0.0.1:9", "--cassette"];
    let nested = [&[program][..], &tap, &[shelf.name(), "--", "true"]].concat();
    let output = vcr(&[&tap[..], &[&file("new.yaml"), "--"], &nested].concat());
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("choose --mode") && shelf.text() == old, "{log}");
    let play = ["play", "--cassette", shelf.name(), "--"];
    let output = vcr(&[&play[..], &[program, "mcp-tap", "--cassette", &file("server.yaml"), "--", "true"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let printed = String::from_utf8(vcr(&[&play[..], &["printenv"]].concat()).stdout).unwrap();
    let names: Vec<&str> = printed.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    let (program, set) = (vllm_vcr::cli::command(), |name: &&str| std::env::var_os(name).is_none());
    let new: Vec<&str> = names.into_iter().filter(set).filter(|name| name.starts_with("VLLM_VCR_")).collect();
    assert!(new.contains(&"VLLM_VCR_MODE") && new.contains(&"VLLM_VCR_URL"), "{new:?}");
    assert!(!variables(&program).into_iter().any(|name| new.iter().any(|new| name == *new)), "{new:?}");
}

#[test]
fn what_stands_after_two_dashes_is_the_commands() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let command = ["--", "printf", "%s,", "-q", "tests", "-n", "4", "-k", "x", "--enable-lora", "--max_model_len=7"];
    let shown = "-q,tests,-n,4,-k,x,--enable-lora,--max_model_len=7,";
    let play = vcr(&[&["play", "--cassette", shelf.name()], &command[..]].concat());
    let log = String::from_utf8_lossy(&play.stderr).into_owned();
    assert_eq!((play.status.code(), String::from_utf8_lossy(&play.stdout).as_ref()), (Some(0), shown), "{log}");
    assert!(!log.contains("vLLM's"), "{log}");
    let fixed = ["tap", "--upstream", "http://127.0.0.1:1", "--mode", "none", "--cassette", shelf.name()];
    let tap = vcr(&[&fixed[..], &["--", "printf", "%s,", "play", "-q", "-n", "4", "--enable-lora"]].concat());
    assert_eq!(String::from_utf8_lossy(&tap.stdout), "play,-q,-n,4,--enable-lora,");
}

#[test]
fn play_q_is_quiet() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]).replace("  answer:", "  tpyo: 1\n  answer:"));
    let log = |flags: &[&str]| {
        let output = vcr(&[&["play", "--cassette", shelf.name()], flags, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(0), "{flags:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (flags, is_warned) in [(&[][..], true), (&["-q"], true), (&["-qq"], false), (&["-q", "-q"], false)] {
        let log = log(flags);
        assert_eq!(log.contains("tpyo"), is_warned, "{flags:?}: {log}");
        assert!(!log.contains("vLLM's"), "{flags:?}: {log}");
    }
}

#[test]
fn quiet_prints_what_is_wrong_and_nothing_else() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A"), record(&["b"], "B")]));
    let stderr = |flags: &[&str], command: &str| {
        let arguments = [flags, &["play", "--strict", "--cassette", shelf.name(), "--", "sh", "-c", command]].concat();
        let output = vcr(&arguments);
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let ask = |words: &str| format!("curl -sS --json '{}' $OPENAI_BASE_URL/chat/completions;", chat(&[words]));
    assert_eq!(stderr(&["-q"], &(ask("a") + &ask("b"))), (0, String::new()));
    let (code, log) = stderr(&["-q"], &ask("a"));
    assert_eq!((code, log.as_str()), (1, "failed: unconsumed\n"));
    let (code, log) = stderr(&[], &ask("a"));
    assert!(code == 1 && log.contains("unconsumed: tape.yaml#1") && log.contains("its records a `group`"), "{log}");
}

#[test]
fn the_folder_cassettes_is_the_one_where_nothing_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vllm-vcr"));
        let output = command.current_dir(folder.path()).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let log = run(&["tap", "--upstream", "http://127.0.0.1:1", "--", "true"]);
    assert!(log.contains("cassette cassettes/default.yaml;"), "{log}");
    let log = run(&["play", "--port", "0", "--", "true"]);
    assert!(!log.contains("of cassettes"), "{log}");
    std::fs::create_dir_all(folder.path().join("cassettes")).unwrap();
    std::fs::write(folder.path().join("cassettes/a.yaml"), tape(&[record(&["a"], "A")])).unwrap();
    let log = run(&["play", "--port", "0", "--", "true"]);
    assert!(log.contains("serving 1 record of cassettes"), "{log}");
    let log = run(&["play", "--port", "0", "--synthetic", "random", "--", "true"]);
    assert!(log.contains("serving synthetic tokens"), "{log}");
}

#[tokio::test]
async fn keys_guard_sessions_too() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let play: Running = shelf.play(&["--api-key", "k"]);
    for path in [CHAT.to_owned(), format!("/vcr/s/x{CHAT}")] {
        assert_eq!(play.send(&path, &chat(&["a"])).await.status, 401, "{path}");
    }
    let off = shelf.play(&["--no-admin"]);
    assert_eq!(
        crate::support::client::send(off.address, &crate::support::client::get("/vcr/report")).await.status,
        404
    );
}

#[test]
fn ctrl_c_leaves_a_command_time_to_end_by_itself() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let script = "trap 'sleep 0.3; echo its own end; exit 7' INT; echo ready; while :; do sleep 0.1; done";
    let mut play = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
        .args(["play", "--cassette", shelf.name(), "--", "sh", "-c", script])
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = BufReader::new(play.stdout.take().unwrap());
    let mut line = String::new();
    printed.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    // As a terminal does, to the whole group.
    let group = format!("-{}", play.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    line.clear();
    printed.read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), play.wait().unwrap().code()), ("its own end\n", Some(7)));
}
