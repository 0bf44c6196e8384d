//! MCP through the running program: recorded, replayed, and recorded from what is replayed. Numbers in the names of tests
//! are those of the acceptance cases.

mod bridge;
mod bytes;
mod compared;
mod compared_live;
mod files;
mod forwarded;
mod hostile;
mod http;
mod imported;
mod per_test;
mod put_back;
mod recorded;
mod replayed;
mod served;
mod served_modern;
mod served_report;
mod session_per_call;
mod spawned;
mod tapped;
mod wire;

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread::JoinHandle,
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::tree;
pub(crate) use crate::support::{cassettes::Shelf, running::vcr};

/// The program, as it is started by a client.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_vllm-vcr");

/// A server of every kind of message, written by hand.
pub(crate) const SERVER: &str = r"vcr: 1
records:
- request: POST /mcp/shop
  body: {method: initialize, params: {protocolVersion: 2025-06-18, capabilities: {}, clientInfo: {name: hand, version: '1'}}}
  answer:
    json: {result: {protocolVersion: 2025-06-18, capabilities: {tools: {listChanged: true}}, serverInfo: {name: shop, version: '1'}}}
- request: POST /mcp/shop
  body: {method: notifications/initialized}
  answer:
    status: 202
    events:
    - data: {method: roots/list, reply: {result: {roots: [{uri: 'file:///a'}]}}}
- request: POST /mcp/shop
  body: {method: tools/list}
  answer: {json: {result: {tools: [{name: buy, inputSchema: {type: object}}]}}}
- request: POST /mcp/shop
  body: {method: tools/call, params: {name: buy, arguments: {what: tea, many: 2}, _meta: {progressToken: 1}}}
  answer:
    events:
    - data: {method: notifications/progress, params: {progressToken: 1, progress: 1, total: 2}}
    - data: {method: elicitation/create, params: {message: Sure?}, reply: {result: {action: accept, content: {sure: true}}}}
    - data: {result: {content: [{type: text, text: bought}], isError: false}}
    - data: {method: notifications/tools/list_changed}
- request: POST /mcp/shop
  body: {method: tools/list}
  answer: {json: {result: {tools: [{name: buy}, {name: sell}]}}}
- request: POST /mcp/shop
  body: {method: tools/call, params: {name: sell, arguments: {what: tea}}}
  answer: {error: {code: -32602, message: Nothing to sell}}
- request: POST /mcp/shop
  body: {method: resources/read, params: {uri: 'shop://é/list'}}
  answer: {json: {result: {contents: [{uri: 'shop://é/list', blob: AAECAw==}]}}}
";

/// A program that speaks MCP over stdio.
pub(crate) struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
    notes: Option<JoinHandle<String>>,
}

impl Server {
    /// Starts the program with these arguments.
    pub(crate) fn start<A: AsRef<OsStr>>(arguments: &[A]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, output) = channel();
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let notes = std::thread::spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        let input = child.stdin.take();
        Self { child, input, output, notes: Some(notes) }
    }

    /// Plays a cassette.
    pub(crate) fn play(shelf: &Shelf, flags: &[&str]) -> Self {
        Self::start(&[&["mcp-play", "--cassette", shelf.name()], flags].concat())
    }

    /// Records the player of one cassette into another.
    pub(crate) fn tap(to: &Shelf, from: &Shelf, flags: &[&str]) -> Self {
        let fixed = ["mcp-tap", "--cassette", to.name(), "--name", "shop"];
        let server = ["--", PROGRAM, "mcp-play", "--cassette", from.name()];
        Self::start(&[&fixed[..], flags, &server].concat())
    }

    /// Writes bytes as they are.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(bytes).unwrap();
        input.flush().unwrap();
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes());
    }

    /// The next message; far more time than any takes.
    pub(crate) fn next(&mut self) -> Value {
        let line = self.output.recv_timeout(Duration::from_secs(120)).expect("a message in time");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Sends a request and gives the next message.
    pub(crate) fn ask(&mut self, id: impl Into<Value>, method: &str, params: &Value) -> Value {
        self.send(&json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}));
        self.next()
    }

    pub(crate) fn call(&mut self, id: Value, tool: &str, arguments: &Value) -> Value {
        self.ask(id, "tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// Ends its input and waits: what else it sent, its exit code, and its notes.
    pub(crate) fn end(mut self) -> (Vec<Value>, i32, String) {
        drop(self.input.take());
        let rest = self.output.iter().map(|line| serde_json::from_str(&line).unwrap()).collect();
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        (rest, code, self.notes.take().unwrap().join().unwrap())
    }

    /// Waits until it ends by itself.
    pub(crate) fn ended(mut self) -> (Vec<Value>, i32, String) {
        let rest = self.output.iter().map(|line| serde_json::from_str(&line).unwrap()).collect();
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        (rest, code, self.notes.take().unwrap().join().unwrap())
    }

    pub(crate) fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The opening of a client; `version` is the one that it wants.
pub(crate) fn open(server: &mut Server, version: &str, client: &str) -> Value {
    let params = json!({"protocolVersion": version, "capabilities": {"roots": {}}, "clientInfo": {"name": client, "version": "9"}});
    let answer = server.ask(json!(0), "initialize", &params);
    server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    answer
}

/// A client that uses the shop as it was recorded, with ids and a token of its own; everything that it receives, without ids.
pub(crate) fn shopping(server: &mut Server, ids: [Value; 5], token: &Value) -> Vec<Value> {
    let mut seen = vec![open(server, "2025-06-18", "agent")];
    let answer_ask = |server: &mut Server, seen: &mut Vec<Value>, result: Value| {
        let ask = server.next();
        server.send(&json!({"jsonrpc": "2.0", "id": ask["id"], "result": result}));
        seen.push(ask);
    };
    answer_ask(server, &mut seen, json!({"roots": [{"uri": "file:///a"}]}));
    let [list, buy, again, sell, read] = ids;
    seen.push(server.ask(list, "tools/list", &json!({})));
    let arguments = json!({"many": 2, "what": "tea"});
    let params = json!({"name": "buy", "arguments": arguments, "_meta": {"progressToken": token}});
    seen.push(server.ask(buy, "tools/call", &params));
    answer_ask(server, &mut seen, json!({"action": "accept", "content": {"sure": true}}));
    seen.extend([server.next(), server.next()]);
    seen.push(server.ask(again, "tools/list", &Value::Null));
    seen.push(server.call(sell, "sell", &json!({"what": "tea"})));
    seen.push(server.ask(read, "resources/read", &json!({"uri": "shop://é/list"})));
    seen
}

/// The last of the acceptance cases: the official SDKs as clients and as servers, which scripts run.
const LAST_CASE: (u32, [&str; 2]) = (20, ["tests/mcp/run.py", "tests/mcp/taps/run.py"]);

#[test]
fn every_acceptance_case_is_named_by_a_test() {
    let mut named = std::collections::BTreeSet::new();
    let files = tree::files("tests/it/mcp", "rs").into_iter().chain(tree::files("crates/replay/src/mcp", "rs"));
    for source in files.map(tree::read) {
        for name in source.split("fn case_").skip(1) {
            named.extend(name.split('_').map_while(|part| part.parse::<u32>().ok()));
        }
    }
    let (last, scripts) = LAST_CASE;
    assert_eq!(named.into_iter().collect::<Vec<_>>(), (1..last).collect::<Vec<_>>());
    for script in scripts {
        assert!(tree::read(script).contains(&format!("Acceptance case {last}.")), "{script}");
    }
}
