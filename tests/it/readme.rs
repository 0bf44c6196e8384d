//! The commands that the README and the docs show are commands that the program takes; what the landing page and the page of troubles
//! quote is what it prints.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use regex::Regex;

use crate::support::{
    running::{Running, vcr},
    tree,
};

/// Pages beside the book that show commands.
const OTHER_PAGES: [&str; 3] = ["README.md", "packages/skill/SKILL.md", "packages/action/README.md"];

#[test]
fn every_shown_command_parses() {
    let mut pages = tree::files("docs/src", "md");
    pages.extend(OTHER_PAGES.map(PathBuf::from));
    let mut shown = 0;
    for page in pages {
        for arguments in commands(&tree::read(&page)) {
            let parsed = vllm_vcr::cli::command().try_get_matches_from(&arguments);
            if let Err(error) = parsed {
                let asks_for_help = !error.use_stderr();
                assert!(asks_for_help, "{}: {}\n{error}", page.display(), arguments.join(" "));
            }
            shown += 1;
        }
    }
    assert!(shown > 5, "only {shown} commands were found");
}

#[test]
fn the_readme_has_two_setup_commands() {
    let readme = tree::read("README.md");
    for command in ["cargo run --release -- play", "cargo test"] {
        assert!(readme.lines().any(|line| line.trim() == command), "{command}");
    }
}

/// Record, simulate, drive, compare: the four lines of the tour, with free ports for their own and without a tokenizer's folder.
#[test]
fn the_round_trip_runs() {
    let readme = tree::read("README.md");
    let all = commands(&readme);
    let end = all.iter().position(|words| words.iter().any(|word| word == "compare")).unwrap();
    let [play, replay, compare] = all.get(end - 2..=end).unwrap() else { panic!("{all:?}") };
    let tap = all.iter().find(|words| words[1] == "tap").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let typed = |line: &[String], server: &str| -> Vec<String> {
        let of_the_test = |word: &String| match word.as_str() {
            "127.0.0.1:8001" => "127.0.0.1:0".to_owned(),
            "8002" => "0".to_owned(),
            "./tokenizer" => "none".to_owned(),
            word if word.starts_with("http://localhost:") => format!("http://{server}"),
            word if word.ends_with(".jsonl.gz") => folder.path().join(word).to_str().unwrap().to_owned(),
            word => word.to_owned(),
        };
        line.iter().skip(1).map(of_the_test).collect()
    };
    let start = |line: &[String]| Running::start(&line.iter().map(String::as_str).collect::<Vec<_>>());
    let end = |line: &[String]| vcr(&line.iter().map(String::as_str).collect::<Vec<_>>());
    let engine = Running::start(&["play", "--port", "0", "--instant"]);
    let tap = start(&typed(tap, &engine.address.to_string()));
    let builtin = tree::root().join("traces/builtin.jsonl.gz");
    let target = format!("http://{}", tap.address);
    vcr(&["replay", builtin.to_str().unwrap(), "--target", &target, "--arrivals", "burst"]);
    let (code, said) = tap.stop();
    assert_eq!(code, 0, "{said}");
    let play = start(&typed(play, ""));
    let driven = end(&typed(replay, &play.address.to_string()));
    let printed = String::from_utf8(driven.stdout).unwrap();
    assert!(printed.contains("19 sent and ended, 0 failed"), "{printed}{}", String::from_utf8_lossy(&driven.stderr));
    let compared = end(&typed(compare, ""));
    let printed = String::from_utf8(compared.stdout).unwrap();
    let of = |metric: &str| printed.lines().find(|line| line.starts_with(metric)).unwrap().split_whitespace();
    assert_eq!(of("output_tokens_mean").nth(1), of("output_tokens_mean").nth(2), "{printed}");
    assert!(of("ttft_p50").count() > 3, "{printed}");
}

/// Each job of the landing page, typed as it stands: what it prints is what the page says, but for figures.
#[test]
fn the_landing_page_says_what_happens() {
    let page = tree::read("docs/src/introduction.md");
    let agent = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    for job in page.split("\n## ").filter(|job| job.contains("```console")) {
        let typed = TypedLine::all(job);
        let desk = Desk::new(agent);
        if typed.iter().any(|line| line.command.contains("agent.py")) && !desk.succeeds("python -c 'import openai'") {
            eprintln!("not run, since Python has no openai: {}", job.lines().next().unwrap());
            continue;
        }
        assert_eq!(typed.len(), 5, "five commands");
        desk.run(&typed);
    }
}

/// A command of a console, and what is shown below it.
struct TypedLine {
    command: String,
    printed: Vec<String>,
}

impl TypedLine {
    fn all(text: &str) -> Vec<Self> {
        let fences = text.split("```console\n").skip(1).filter_map(|fence| fence.split("\n```").next());
        let mut typed: Vec<Self> = Vec::new();
        for line in fences.flat_map(str::lines) {
            match line.strip_prefix("$ ") {
                Some(command) => typed.push(Self { command: command.to_owned(), printed: Vec::new() }),
                None => typed.last_mut().unwrap().printed.push(line.to_owned()),
            }
        }
        typed
    }

    fn is_server(&self) -> bool {
        ["vllm-vcr play ", "vllm-vcr tap "].iter().any(|start| self.command.starts_with(start))
            && !self.command.contains(" -- ")
    }
}

/// A folder with the program in its path, and ports in place of 8000 and those behind it.
struct Desk {
    folder: tempfile::TempDir,
    port: u16,
}

impl Desk {
    fn new(agent: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        symlink(env!("CARGO_BIN_EXE_vllm-vcr"), folder.path().join("bin/vllm-vcr")).unwrap();
        symlink(tree::root().join("traces"), folder.path().join("traces")).unwrap();
        fs::write(folder.path().join("agent.py"), agent).unwrap();
        let is_free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        let seed = u16::try_from(std::process::id() % 20_000).unwrap() + 10_000;
        let port = (0..2000).map(|step| seed + 3 * step).find(|port| (*port..port + 3).all(is_free)).unwrap();
        Self { folder, port }
    }

    fn shell(&self, command: &str) -> Command {
        let command = command.replace("9000", "8000");
        let ports = Regex::new(r"\b800([0-2])\b").unwrap();
        let local = ports.replace_all(&command, |found: &regex::Captures| self.port_of(&found[1]));
        let path = format!(
            "{}:{}:{}",
            self.folder.path().join("bin").display(),
            tree::root().join("target/ci-venv/bin").display(),
            std::env::var("PATH").unwrap()
        );
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("exec 2>&1; {local}")]).env("PATH", path).current_dir(&self.folder);
        shell.stdin(Stdio::null()).stdout(Stdio::piped());
        shell
    }

    /// The port in place of 8000, 8001 or 8002, by its last digit.
    fn port_of(&self, digit: &str) -> String {
        (self.port + digit.parse::<u16>().unwrap()).to_string()
    }

    fn succeeds(&self, command: &str) -> bool {
        self.shell(command).output().unwrap().status.success()
    }

    fn run(&self, typed: &[TypedLine]) {
        let needs_engine = typed.iter().any(|line| line.command.contains("--upstream"));
        let _engine = needs_engine.then(|| Running::start(&["play", "--port", &self.port.to_string()]));
        let mut servers: Vec<Server> = Vec::new();
        for line in typed {
            let (before, after) = match line.printed.iter().position(|shown| shown == "^C") {
                Some(at) => (&line.printed[..at], &line.printed[at + 1..]),
                None => (&line.printed[..], &line.printed[..0]),
            };
            if line.command.starts_with("vllm-router") {
                // Its place is taken by the first server.
                continue;
            }
            if line.is_server() {
                let mut shell = self.shell(&format!("exec {}", line.command));
                // What it would take without a flag.
                shell.env("VLLM_VCR_PORT", self.port_of("0"));
                shell.env("VLLM_VCR_LISTEN", format!("127.0.0.1:{}", self.port_of("1")));
                let server = Server::start(shell);
                expect_lines(before, &line.command, || server.lines.recv_timeout(Duration::from_secs(60)).ok());
                servers.push(server);
                continue;
            }
            let output = self.shell(&line.command).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let mut lines = text.lines().map(str::to_owned);
            expect_lines(before, &format!("{}\n{text}", line.command), || lines.next());
            if !after.is_empty() {
                let server = servers.pop().unwrap();
                server.interrupt();
                expect_lines(after, "after ^C", || server.lines.recv_timeout(Duration::from_secs(60)).ok());
            }
        }
    }
}

/// A server of a console; what it prints comes line by line.
struct Server {
    child: Child,
    lines: Receiver<String>,
}

impl Server {
    fn start(mut shell: Command) -> Self {
        let mut child = shell.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || said.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    fn interrupt(&self) {
        Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Each shown line comes, in this order; others may come between.
fn expect_lines(shown: &[String], what: &str, mut next: impl FnMut() -> Option<String>) {
    for line in shown.iter().filter(|line| *line != "…") {
        let comes = std::iter::from_fn(&mut next).any(|printed| same_but_for_figures(line, &printed));
        assert!(comes, "the page shows a line that does not come: {line}\n{what}");
    }
}

fn same_but_for_figures(shown: &str, printed: &str) -> bool {
    let figure = Regex::new(r"[+-]?\d[\d.,]*( (µs|ms|s|min)\b)?").unwrap();
    let plain = |line: &str| {
        // A line of a table: its columns are figures of any unit, and the last one may be empty.
        if figure.find_iter(line).count() > 3 {
            return line.split(|c: char| c.is_ascii_digit()).next().unwrap().trim().to_owned();
        }
        figure.replace_all(line, "N").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    // Whether the client of a run was late is the machine's affair.
    plain(shown) == plain(printed) || shown == "valid" && printed.starts_with("not valid: the client was")
}

#[test]
fn figures_do_not_count() {
    assert!(same_but_for_figures("TTFT   1 623.72 ms 4 5", "TTFT  2  1.1 s 7 8"));
    assert!(same_but_for_figures("forwarded 1 requests, in 2.0 s", "forwarded 20 requests, in 900 ms"));
    assert!(!same_but_for_figures("forwarded 1 requests", "forwarded 1 request"));
}

/// Every text that the page of troubles is ordered by stands in the program's sources, but for words in capitals.
#[test]
fn troubles_are_quoted_as_they_are_printed() {
    let page = tree::read("docs/src/guides/troubleshooting.md");
    let quoted = Regex::new(r"\*\*`+ ?(.+?) ?`+\*\*").unwrap();
    let sources: Vec<String> = ["src", "crates"].iter().flat_map(|it| tree::files(it, "rs")).map(tree::read).collect();
    let mut count = 0;
    for found in quoted.captures_iter(&page) {
        let text = &found[1];
        let mut pieces = vec![String::new()];
        for word in text.split(' ') {
            if is_placeholder(word) {
                pieces.push(String::new());
                continue;
            }
            let piece = pieces.last_mut().unwrap();
            *piece = format!("{piece} {word}").trim_start().to_owned();
        }
        let is_said = sources.iter().flat_map(|source| source.lines()).any(|line| {
            let mut rest = Some(line);
            pieces.iter().all(|piece| {
                rest = rest.and_then(|rest| rest.split_once(piece.as_str())).map(|(_, after)| after);
                rest.is_some()
            })
        });
        assert!(is_said, "no source has: {text}");
        count += 1;
    }
    assert!(count > 15, "{count} texts");
}

/// Whether a word of a quoted text stands for one of the reader's.
fn is_placeholder(word: &str) -> bool {
    let letters: Vec<char> = word.chars().filter(|c| c.is_alphabetic()).collect();
    !letters.is_empty() && letters.iter().all(|c| c.is_uppercase())
}

/// The argument lists of every `vllm-vcr …` and `cargo run … -- …` in `sh` fences, and of what is typed in `console` fences.
fn commands(text: &str) -> Vec<Vec<String>> {
    let fences = text.split("\n```").skip(1).step_by(2);
    let typed = |fence: &str| -> Vec<Vec<String>> {
        let joined = fence.replace("\\\n", " ");
        match joined.split_once('\n') {
            Some(("sh", lines)) => lines.lines().filter_map(arguments).collect(),
            Some(("console", lines)) => {
                lines.lines().filter_map(|line| line.strip_prefix("$ ")).filter_map(arguments).collect()
            }
            _ => Vec::new(),
        }
    };
    fences.flat_map(typed).collect()
}

fn arguments(line: &str) -> Option<Vec<String>> {
    let line = line.split(" #").next().unwrap_or(line);
    let line =
        line.split('|').map(str::trim).find(|part| part.starts_with("vllm-vcr") || part.starts_with("cargo run"))?;
    let line = line.split(" > ").next().unwrap_or(line).trim_end_matches('&');
    let typed = match line.strip_prefix("cargo run") {
        Some(rest) => rest.split_once(" -- ").map_or("", |(_, typed)| typed),
        None => line.strip_prefix("vllm-vcr")?,
    };
    Some(std::iter::once("vllm-vcr".to_owned()).chain(words(typed)).collect())
}

/// The words of a line; quotes hold white space together.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match letter {
            '\'' | '"' if quote.is_none_or(|open| open == letter) => {
                quote = if quote.is_some() { None } else { Some(letter) };
                word.get_or_insert_default();
            }
            letter if letter.is_whitespace() && quote.is_none() => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

#[test]
fn commands_are_found_in_fences() {
    let text = "vllm-vcr a\n```sh\nvllm-vcr b \\\n  --c 1 # why\ncat x | vllm-vcr d - > y\nvllm-vcr f 'g h=\"i\"'\ncargo run --release -- e\n```\n```console\n$ vllm-vcr g\nvllm-vcr h\n```\n";
    let found: Vec<String> = commands(text).iter().map(|words| words.join(" ")).collect();
    assert_eq!(found, ["vllm-vcr b --c 1", "vllm-vcr d -", "vllm-vcr f g h=\"i\"", "vllm-vcr e", "vllm-vcr g"]);
}
