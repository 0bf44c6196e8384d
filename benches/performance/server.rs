//! The server under test: a child process, and what the system says of it.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::time::Instant;

/// How long a server may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is measured.
#[derive(Clone, Copy)]
pub(crate) enum Program {
    /// This project's replay server.
    Play,
    /// The [floor](crate::floor).
    Floor,
}

/// A server on a port of this machine.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// From the start of the process to the port it takes connections on.
    pub(crate) start: Duration,
    stats: Option<PathBuf>,
}

impl Server {
    /// A program with arguments of `play`.
    pub(crate) fn start(program: Program, arguments: &str) -> io::Result<Self> {
        let stats = std::env::temp_dir().join(format!("vllm-vcr-stats-{}.json", std::process::id()));
        let mut command = match program {
            Program::Play => Command::new(env!("CARGO_BIN_EXE_vllm-vcr")),
            Program::Floor => {
                let mut own = Command::new(std::env::current_exe()?);
                own.arg("--floor");
                own
            }
        };
        command
            .args(["play", "--port", "0", "--served-model-name", "m", "--drain-timeout", "0"])
            .args(arguments.split_whitespace());
        command.arg("--stats-json").arg(&stats);
        let began = Instant::now();
        let mut child = in_a_group(command.stdin(Stdio::null()).stderr(Stdio::piped())).spawn()?;
        let mut notes = BufReader::new(child.stderr.take().ok_or_else(|| io::Error::other("no stderr"))?);
        let mut line = String::new();
        let address = loop {
            line.clear();
            if notes.read_line(&mut line)? == 0 {
                return Err(io::Error::other("the server ended before it listened"));
            }
            if let Some(address) = line.trim().strip_prefix("play on http://") {
                break address.parse().map_err(io::Error::other)?;
            }
        };
        let start = began.elapsed();
        thread::spawn(move || {
            let mut rest = String::new();
            let _ = notes.read_to_string(&mut rest);
        });
        Ok(Self { child, address, start, stats: Some(stats) })
    }

    /// Another server: a shell's command that listens on `$PORT`.
    pub(crate) fn peer(command: &str) -> io::Result<Self> {
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
        Ok(Self { child, address, start: began.elapsed(), stats: None })
    }

    fn processes(&self) -> Vec<u32> {
        let parent_of = |process: u32| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let all: Vec<(u32, u32)> = entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter_map(|process| Some((process, parent_of(process)?)))
            .collect();
        let mut family = vec![self.child.id()];
        let mut at = 0;
        while let Some(parent) = family.get(at).copied() {
            family.extend(all.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
            at += 1;
        }
        family
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
        Duration::from_nanos(self.processes().into_iter().map(nanos).sum())
    }

    /// Resident bytes of it and its children.
    pub(crate) fn resident(&self) -> u64 {
        let kilobytes = |process: u32| {
            let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        self.processes().into_iter().filter_map(kilobytes).sum::<u64>() * 1024
    }

    /// Ends it; what it told of itself, where it does.
    pub(crate) fn end(mut self) -> io::Result<Value> {
        self.signal(Signal::TERM);
        let began = Instant::now();
        while self.child.try_wait()?.is_none() {
            if began.elapsed() > PATIENCE {
                self.signal(Signal::KILL);
            }
            thread::sleep(Duration::from_millis(2));
        }
        let Some(stats) = self.stats.take() else { return Ok(Value::Null) };
        let text = fs::read_to_string(&stats)?;
        fs::remove_file(&stats)?;
        serde_json::from_str(&text).map_err(io::Error::other)
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let _ = pid.map(|pid| kill_process_group(pid, signal));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

fn in_a_group(command: &mut Command) -> &mut Command {
    std::os::unix::process::CommandExt::process_group(command, 0)
}
