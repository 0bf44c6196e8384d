//! The server under test: a child process, and what the system reports about it.

use std::{
    env, fs,
    io::{self, BufRead, BufReader},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tokio::time::Instant;

/// Timeout of a server's start and end.
const PATIENCE: Duration = Duration::from_secs(20);

/// The program under test.
#[derive(Debug, Clone, Copy)]
pub enum BenchProgram {
    /// This project's replay server.
    Play,
    /// The [floor](crate::floor).
    Floor,
}

/// A program and the binary that has it.
#[derive(Debug, Clone, Copy)]
pub struct Contender<'a> {
    /// The binary `vllm-vcr`, which has both.
    pub binary: &'a Path,
    /// The command it is started with.
    pub program: BenchProgram,
}

/// The command of the binary that is the floor.
const FLOOR: &str = "bench-floor";

/// A server on a port of this machine.
#[derive(Debug)]
pub struct MeasuredServer {
    child: Child,
    /// Its address.
    pub address: SocketAddr,
    /// From the start of the process to the port it takes connections on.
    pub start: Duration,
    /// Whether it prints figures of its own on stdout at its end.
    has_figures: bool,
}

impl Contender<'_> {
    /// Starts it with arguments of `play`.
    /// Errors: when it does not start, with its stderr.
    pub(crate) fn start(self, arguments: &str) -> io::Result<MeasuredServer> {
        let mut command = Command::new(self.binary);
        command.arg(match self.program {
            BenchProgram::Play => "play",
            BenchProgram::Floor => FLOOR,
        });
        // The benchmark does not inherit a user's settings and keys.
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("VLLM_")) {
            command.env_remove(name);
        }
        command
            .args(["--port", "0", "--served-model-name", "m", "--drain-timeout", "0", "--stats-json", "/dev/stdout"])
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Nor the `cassettes/` of the folder in which it was typed.
        command.current_dir("/");
        let began = Instant::now();
        let mut child = in_a_group(&mut command).spawn()?;
        let mut stderr = BufReader::new(child.stderr.take().ok_or_else(|| io::Error::other("no stderr"))?);
        let mut lines = String::new();
        let address = loop {
            let before = lines.len();
            if stderr.read_line(&mut lines)? == 0 {
                return Err(io::Error::other(format!("the server ended before it listened: {}", lines.trim())));
            }
            if let Some(address) = lines[before..].trim().strip_prefix("play on http://") {
                break address.parse().map_err(io::Error::other)?;
            }
        };
        let start = began.elapsed();
        thread::spawn(move || io::copy(&mut stderr, &mut io::sink()));
        Ok(MeasuredServer { child, address, start, has_figures: true })
    }
}

impl MeasuredServer {
    /// Another server: a shell's command that listens on `$PORT`.
    ///
    /// # Errors
    /// When it does not listen in time.
    pub fn peer(command: &str) -> io::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {command}")]).env("PORT", port.to_string());
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let began = Instant::now();
        let mut child = in_a_group(&mut shell).spawn()?;
        while TcpStream::connect(address).is_err() {
            if began.elapsed() > PATIENCE || child.try_wait()?.is_some() {
                let _ = child.kill();
                return Err(io::Error::other("it did not listen"));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(Self { child, address, start: began.elapsed(), has_figures: false })
    }

    /// Processor time of it and its children, threads that ended left out.
    pub(crate) fn cpu(&self) -> Duration {
        let nanos = |process: u32| {
            let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
            threads
                .filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok())
                .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
                .sum::<u64>()
        };
        Duration::from_nanos(family(self.child.id()).into_iter().map(nanos).sum())
    }

    /// Resident bytes of it and its children.
    #[must_use]
    pub fn resident(&self) -> u64 {
        let kilobytes = |process: u32| {
            let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        family(self.child.id()).into_iter().filter_map(kilobytes).sum::<u64>() * 1024
    }

    /// Ends it and returns its figures, if it prints any.
    pub(crate) fn end(mut self) -> io::Result<Value> {
        self.signal(Signal::TERM);
        let began = Instant::now();
        while self.child.try_wait()?.is_none() {
            if began.elapsed() > PATIENCE {
                self.signal(Signal::KILL);
            }
            thread::sleep(Duration::from_millis(2));
        }
        match self.child.stdout.take().filter(|_| self.has_figures) {
            Some(figures) => serde_json::from_reader(figures).map_err(io::Error::other),
            None => Ok(Value::Null),
        }
    }

    fn signal(&self, signal: Signal) {
        let _ = pid(self.child.id()).map(|pid| kill_process_group(pid, signal));
    }
}

impl Drop for MeasuredServer {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Kills the servers that this process has started.
pub fn kill_all() {
    for child in family(std::process::id()).into_iter().skip(1).filter_map(pid) {
        let _gone = kill_process(child, Signal::KILL);
    }
}

fn pid(process: u32) -> Option<Pid> {
    i32::try_from(process).ok().and_then(Pid::from_raw)
}

/// A process, and those that it and its children have started.
fn family(process: u32) -> Vec<u32> {
    let parent_of = |process: u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all: Vec<(u32, u32)> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|process| Some((process, parent_of(process)?)))
        .collect();
    let mut family = vec![process];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        family.extend(all.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
        at += 1;
    }
    family
}

fn in_a_group(command: &mut Command) -> &mut Command {
    std::os::unix::process::CommandExt::process_group(command, 0)
}
