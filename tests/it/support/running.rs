//! The program, run until a test ends it or it ends by itself.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{
        Mutex,
        mpsc::{Receiver, channel},
    },
};

use serde_json::Value;

use super::client::{self, Answer, post};

/// A running `vllm-vcr`.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    child: Child,
    lines: Mutex<Receiver<String>>,
    printed: String,
}

impl Running {
    /// Starts the program and waits for its address.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// As [`start`](Self::start), with these variables.
    pub(crate) fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::of(Path::new(env!("CARGO_BIN_EXE_vllm-vcr")), arguments, variables)
    }

    /// As [`start_with`](Self::start_with), the program being at this path.
    pub(crate) fn of(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = BufReader::new(child.stderr.take().unwrap());
        let mut before = String::new();
        let address = loop {
            let mut line = String::new();
            assert!(printed.read_line(&mut line).unwrap() > 0, "it ended at once: {before}");
            if let Some((_, at)) = line.split_once(" on http").and_then(|(_, url)| url.split_once("://")) {
                break at.split_whitespace().next().unwrap().parse().unwrap();
            }
            before.push_str(&line);
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || printed.lines().try_for_each(|line| sender.send(line.unwrap())));
        Self { address, child, lines: Mutex::new(lines), printed: before }
    }

    /// Waits until it prints a line with this text.
    pub(crate) fn waits_for(&mut self, text: &str) {
        while !self.printed.contains(text) {
            let line =
                self.lines.get_mut().unwrap().recv().unwrap_or_else(|_| panic!("{text} is not in {}", self.printed));
            self.printed.extend([&line, "\n"]);
        }
    }

    /// Ends it as Ctrl-C would; returns its exit code and output.
    pub(crate) fn stop(mut self) -> (i32, String) {
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        let code = self.child.wait().unwrap().code().unwrap();
        let printed = std::mem::take(&mut self.printed);
        (code, self.lines.get_mut().unwrap().iter().fold(printed, |printed, line| printed + &line + "\n"))
    }

    /// Waits for its own end; tells its exit code.
    pub(crate) fn wait(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap()
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) async fn send(&self, path: &str, body: &Value) -> Answer {
        client::send(self.address, &post(path, body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        client::send(self.address, &client::get(path)).await.json()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Runs the program to its end.
pub(crate) fn vcr(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vllm-vcr")).args(arguments).output().unwrap()
}
