//! The tap as a program: started, asked, signalled, killed.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    time::Duration,
};

use tokio::time::Instant;
use vllm_vcr::recording::trace;

pub(crate) const WHOLE: &str = r#"{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;

/// An engine on threads of its own that answers everything at once.
pub(crate) fn engine() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    seen.extend_from_slice(&buffer[..count]);
                    let text = String::from_utf8_lossy(&seen).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let length = head.to_ascii_lowercase().lines().find_map(|line| {
                        line.strip_prefix("content-length:").map(|value| value.trim().parse::<usize>().unwrap())
                    });
                    if body.len() < length.unwrap_or(0) {
                        continue;
                    }
                    seen.clear();
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{WHOLE}",
                        WHOLE.len()
                    );
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A running tap that is killed when it is dropped.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) notes: BufReader<ChildStderr>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Program {
    pub(crate) fn start(upstream: SocketAddr, trace: &Path, more: &[&str]) -> Self {
        Self::run(Command::new(env!("CARGO_BIN_EXE_vllm-vcr")), upstream, trace, more)
    }

    /// A tap to which no file may grow over 4 KiB.
    pub(crate) fn with_small_disk(upstream: SocketAddr, trace: &Path, more: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -f 8; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_vllm-vcr")]);
        Self::run(shell, upstream, trace, more)
    }

    /// A tap whose trace is a pipe that nobody reads.
    pub(crate) fn into_a_pipe(upstream: SocketAddr, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"));
        command.stdout(Stdio::piped());
        Self::run(command, upstream, Path::new("-"), more)
    }

    /// The most memory that it had at a time, in KiB.
    #[cfg(target_os = "linux")]
    pub(crate) fn most_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn run(mut command: Command, upstream: SocketAddr, trace: &Path, more: &[&str]) -> Self {
        let mut child = command
            .args([
                "--log",
                "warn",
                "tap",
                "--upstream",
                &format!("http://{upstream}"),
                "--listen",
                "127.0.0.1:0",
                "--trace-out",
            ])
            .arg(trace)
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut notes = BufReader::new(child.stderr.take().unwrap());
        let mut greeting = line(&mut notes);
        if greeting.contains(" ERROR ") {
            greeting = line(&mut notes);
        }
        let address = greeting.strip_prefix("tap on http://").and_then(|rest| rest.split(' ').next());
        let Some(address) = address.and_then(|address| address.parse().ok()) else {
            let _ended = child.kill();
            panic!("{greeting}");
        };
        line(&mut notes);
        Self { child, address, notes }
    }

    /// Where its counts are; it was started with `--admin-listen`.
    pub(crate) fn admin(&mut self) -> SocketAddr {
        let counts = line(&mut self.notes);
        let address = counts.strip_prefix("metrics at http://").and_then(|rest| rest.strip_suffix("/metrics"));
        address.unwrap().parse().unwrap()
    }

    /// Ends it with Ctrl-C; returns its exit code and the rest of its output.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        self.signal("-INT");
        let code = self.child.wait().unwrap().code();
        let mut rest = String::new();
        self.notes.read_to_string(&mut rest).unwrap();
        (code, rest)
    }

    pub(crate) fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }
}

/// The next line of what a program writes.
pub(crate) fn line(notes: &mut impl BufRead) -> String {
    let mut line = String::new();
    notes.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn say(address: SocketAddr, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Waits until the counts have this line.
pub(crate) fn until(admin: SocketAddr, line: &str) {
    until_page(admin, line, |page| page.contains(line));
}

/// Waits until the page of counts is as it should be.
pub(crate) fn until_page(admin: SocketAddr, what: &str, is_so: impl Fn(&str) -> bool) {
    let request = "GET /metrics HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
    for _ in 0..600 {
        if is_so(&say(admin, request).unwrap()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what} was not counted in time");
}

pub(crate) fn ask(address: SocketAddr, id: &str) -> bool {
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx-request-id: {id}\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    say(address, &request).is_some_and(|answer| answer.ends_with(WHOLE))
}

/// Kills a tap at some moment and looks at what is left: everything that was answered a second before.
pub(crate) fn killed_after(run: Duration, name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let mut program = Program::start(engine(), &path, &[]);
    let (start, mut answered) = (Instant::now(), Vec::new());
    while start.elapsed() < run {
        let id = format!("r{}", answered.len());
        assert!(ask(program.address, &id));
        answered.push((id, Instant::now()));
    }
    program.child.kill().unwrap();
    let killed = Instant::now();
    program.child.wait().unwrap();
    let trace = trace::read(&path).unwrap();
    let kept: std::collections::HashSet<&str> =
        trace.records.iter().filter_map(|record| record.request_id.as_deref()).collect();
    for (id, at) in &answered {
        let is_old = killed.duration_since(*at) > Duration::from_secs(1);
        assert!(
            !is_old || kept.contains(id.as_str()),
            "{id} is missing after {run:?}: {} of {}",
            kept.len(),
            answered.len()
        );
    }
}
