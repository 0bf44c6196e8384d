//! The server under test: a child process, and what the system says of it.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tokio::time::Instant;

/// How long a server may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is measured.
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
    /// The program `vllm-vcr`, which is both.
    pub binary: &'a Path,
    /// What it is started as.
    pub program: BenchProgram,
}

/// The command of the binary that is the floor.
pub const FLOOR: &str = "bench-floor";

/// A server on a port of this machine.
#[derive(Debug)]
pub struct MeasuredServer {
    child: Child,
    /// Whether it leads a group of processes.
    leads: bool,
    /// Where it listens.
    pub address: SocketAddr,
    /// From the start of the process to the port it takes connections on.
    pub start: Duration,
    stats: Option<PathBuf>,
}

impl Contender<'_> {
    /// Starts it with arguments of `play`. It is of this process's group, so that Ctrl-C ends it too.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(self, arguments: &str) -> io::Result<MeasuredServer> {
        let stats = env::temp_dir().join(format!("vllm-vcr-stats-{}.json", std::process::id()));
        let mut command = Command::new(self.binary);
        command.arg(match self.program {
            BenchProgram::Play => "play",
            BenchProgram::Floor => FLOOR,
        });
        // A user's settings are not of the benchmark.
        env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("VLLM_VCR_")).for_each(|(name, _)| {
            command.env_remove(name);
        });
        command
            .args(["--port", "0", "--served-model-name", "m", "--drain-timeout", "0"])
            .args(arguments.split_whitespace());
        command.arg("--stats-json").arg(&stats);
        let began = Instant::now();
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
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
        Ok(MeasuredServer { child, leads: false, address, start, stats: Some(stats) })
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
        Ok(Self { child, address, start: began.elapsed(), stats: None, leads: true })
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
    #[must_use]
    pub fn cpu(&self) -> Duration {
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
    #[must_use]
    pub fn resident(&self) -> u64 {
        let kilobytes = |process: u32| {
            let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        self.processes().into_iter().filter_map(kilobytes).sum::<u64>() * 1024
    }

    /// Ends it and returns what it told of itself, where it does.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn end(mut self) -> io::Result<Value> {
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
        let _ = pid.map(|pid| if self.leads { kill_process_group(pid, signal) } else { kill_process(pid, signal) });
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

fn in_a_group(command: &mut Command) -> &mut Command {
    std::os::unix::process::CommandExt::process_group(command, 0)
}
