// Servers of the program and their sessions, and a cassette for each test. The program decides what is matched, recorded and refused.

const { spawn } = require("node:child_process");
const { createHash } = require("node:crypto");
const fs = require("node:fs");
const http = require("node:http");
const { tmpdir } = require("node:os");
const { join, relative, resolve } = require("node:path");
const { binary } = require("./binary.cjs");

// Prints the server's URL, then waits until this process closes its end or is gone: so no server outlives it.
const COMMAND = ["/bin/sh", "-c", 'printf "%s\\n" "$VLLM_VCR_URL"; exec cat >/dev/null'];

// How the program would be typed that records a file which play() does not find: who called that records with tap().
const ADVISED = /vllm-vcr tap --upstream (\S+) --cassette '?(.+?)'? -- \/bin\/sh -c '.*'/;

// What a server around this process has set, and the tests' upstreams: they are not meant for a server that is started here.
const OF_A_SERVER = ["VLLM_VCR_URL", "VLLM_VCR_MODE", "VLLM_VCR_BASE_TIME", "VLLM_VCR_UPSTREAM"];

// Bytes of a server's log that an error shows.
const SHOWN = 4000;

// Characters of a file's name without its suffix, and of a session's.
const LONGEST = 100;

/** What a server refused, or a server that did not start or ended with a failure. */
class VcrError extends Error {
  name = "VcrError";
}

/** A session of a server, with the URLs for the clients of one test. */
class Session {
  constructor(server, opened) {
    this.server = server;
    this.name = opened.name;
    this.baseURL = server.url + opened.base_url;
    this.env = Object.fromEntries(Object.entries(opened.env).map(([name, path]) => [name, server.url + path]));
    this.url = this.env.VLLM_VCR_URL;
    /** A key for clients that refuse to do without: the real one while something may be recorded. */
    this.apiKey = process.env.OPENAI_API_KEY || "vcr";
  }

  mcpURL(server) {
    return `${this.url}/mcp/${server}`;
  }

  upstreamURL(name) {
    return `${this.url}/vcr/u/${name}`;
  }

  misses() {
    return this.server.misses(this.name);
  }

  report() {
    return this.server.report(this.name);
  }

  verify(failOn) {
    return this.server.verify(failOn, this.name);
  }

  async end({ drop = false } = {}) {
    if (this.hasEnded) return;
    this.hasEnded = true;
    await this.server.ask("DELETE", `/vcr/sessions/${encodeURIComponent(this.name)}?recorded=${drop ? "drop" : "keep"}`);
  }

  async [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
    await this.end();
  }
}

/** A running server. */
class Server {
  constructor(url, child) {
    this.url = url.replace(/\/+$/, "");
    this.baseURL = `${this.url}/v1`;
    this.child = child;
  }

  mcpURL(server) {
    return `${this.url}/mcp/${server}`;
  }

  async session(name, { cassette, mode, match, onMiss, recordWith, ifMissing, ifUnended } = {}) {
    const asked = { name, cassette, mode, match, on_miss: onMiss, record_with: recordWith, if_missing: ifMissing, if_unended: ifUnended };
    return new Session(this, await this.ask("POST", "/vcr/sessions", asked));
  }

  report(session) {
    return this.ask("GET", `/vcr/report${query(session)}`);
  }

  misses(session) {
    return this.ask("GET", `/vcr/misses${query(session)}`);
  }

  async verify(failOn = ["miss", "unconsumed"], session) {
    return (await this.ask("POST", "/vcr/verify", { fail_on: failOn, session }, 409)).failing;
  }

  /** Ends the server, if it was started here; fails where it ended with a failure, as under --strict. */
  async close() {
    await this.child?.close();
  }

  async [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
    await this.close();
  }

  async ask(method, path, body, also = 200) {
    const { status, text } = await send(this.url + path, method, body);
    let answered;
    try {
      answered = JSON.parse(text);
    } catch {
      answered = { error: text };
    }
    if (status < 300 || status === also) return answered;
    throw new VcrError(answered.error?.message ?? answered.error ?? text);
  }
}

function query(session) {
  return session === undefined ? "" : `?session=${encodeURIComponent(session)}`;
}

function send(url, method, body) {
  const data = body === undefined ? undefined : JSON.stringify(body);
  const headers = { "content-type": "application/json", ...(data && { "content-length": Buffer.byteLength(data) }) };
  const token = process.env.VLLM_VCR_ADMIN_TOKEN;
  if (token) headers.authorization = `Bearer ${token}`;
  return new Promise((done, failed) => {
    const request = http.request(url, { method, headers, agent: false }, (answer) => {
      const pieces = [];
      answer.on("data", (piece) => pieces.push(piece));
      answer.on("error", failed);
      answer.on("end", () => done({ status: answer.statusCode, text: Buffer.concat(pieces).toString() }));
    });
    request.on("error", (error) => failed(new VcrError(`${url} does not answer: ${error.message}`)));
    request.end(data);
  });
}

/** A process of the program, whose log is a file without a name. */
class Child {
  constructor(words) {
    this.what = `vllm-vcr ${words[0]}`;
    const path = join(tmpdir(), `vllm-vcr-${process.pid}-${createHash("sha256").update(`${Math.random()}`).digest("hex").slice(0, 12)}.log`);
    this.log = fs.openSync(path, "wx+", 0o600);
    fs.unlinkSync(path);
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !OF_A_SERVER.includes(name)));
    // In a group of its own: Ctrl-C is for this process, whose end ends the server.
    const options = { stdio: ["pipe", "pipe", this.log], detached: true, env };
    this.process = spawn(binary(), [...words, "--", ...COMMAND], options);
    this.ended = new Promise((done) => {
      this.process.on("error", (error) => done(error.message));
      this.process.on("exit", (code, signal) => done(code ?? signal));
    });
  }

  async started() {
    const { stdout, stdin } = this.process;
    stdin.on("error", () => {});
    const line = new Promise((done) => {
      let text = "";
      stdout.on("data", (piece) => {
        text += piece;
        if (text.includes("\n")) done(text.trim());
      });
      stdout.on("close", () => done(""));
    });
    const url = await line;
    if (!url) throw new VcrError(`${this.what} did not start (${await this.ended}): ${this.said()}`);
    // Nothing here keeps the process of the tests from ending.
    stdout.destroy();
    stdin.unref();
    this.process.unref();
    return url;
  }

  async close() {
    this.process.ref();
    this.process.stdin.end();
    const code = await this.ended;
    const said = this.said();
    if (code !== 0) throw new VcrError(`${this.what} ended with ${code}: ${said}`);
  }

  said() {
    if (this.log === undefined) return "";
    const { size } = fs.fstatSync(this.log);
    const shown = Buffer.alloc(Math.min(size, SHOWN));
    fs.readSync(this.log, shown, 0, shown.length, Math.max(0, size - SHOWN));
    fs.closeSync(this.log);
    this.log = undefined;
    return shown.toString().trim().replace(ADVISED, 'await tap("$1", "$2")');
  }
}

async function start(words) {
  const child = new Child(words);
  return new Server(await child.started(), child);
}

/** Starts `vllm-vcr play` on cassettes: files, or one folder. */
function play(cassettes, { flags = [] } = {}) {
  return start(["play", ...[cassettes].flat().flatMap((path) => ["--cassette", path]), ...flags]);
}

/** Starts `vllm-vcr tap` in front of a server, whose answers it records. */
function tap(upstream, cassette = "cassettes/", { flags = [] } = {}) {
  return start(["tap", ...[upstream].flat().flatMap((url) => ["--upstream", url]), "--cassette", cassette, ...flags]);
}

/** Takes the server at a URL, or the one that this process was started under. */
function connect(url = process.env.VLLM_VCR_URL) {
  if (!url) throw new VcrError("no server: name its URL, or start this under one (vllm-vcr play ... -- COMMAND)");
  return new Server(url);
}

const settings = { mode: undefined, upstream: undefined, cassettes: "cassettes", failOn: ["miss"], flags: [], tapFlags: [] };

/** Settings of the cassettes of tests, for a setup file; variables of the environment decide the mode and the upstream before them. */
function configure(changed) {
  for (const name of Object.keys(changed)) {
    if (!(name in settings)) throw new VcrError(`configure: ${name} is none of ${Object.keys(settings).join(", ")}`);
  }
  Object.assign(settings, changed);
}

function mode() {
  return process.env.VLLM_VCR_MODE || settings.mode || "none";
}

/** The real servers: those that were named, else those that clients would call. */
function upstreams() {
  const named = process.env.VLLM_VCR_UPSTREAM?.split(/[\s,]+/).filter(Boolean) ?? settings.upstream;
  if (named?.length) return [named].flat();
  const { OPENAI_BASE_URL = "https://api.openai.com", ANTHROPIC_BASE_URL = "https://api.anthropic.com" } = process.env;
  return [OPENAI_BASE_URL.replace(/\/v1\/?$/, ""), `anthropic=${ANTHROPIC_BASE_URL}`];
}

let ofTests;

/** The server of the tests in this process; under `vllm-vcr play ... -- COMMAND` it is that one. */
function testServer() {
  ofTests ??= startForTests();
  return ofTests;
}

async function startForTests() {
  if (process.env.VLLM_VCR_URL) return connect();
  const folder = `${resolve(settings.cassettes)}/`;
  const flags = ["--sessions-only", ...settings.flags];
  if (mode() === "none") return play(folder, { flags: [...flags, "--instant"] });
  const overwrite = mode() === "all" ? ["--admin-overwrite"] : [];
  return tap(upstreams(), folder, { flags: [...flags, "--listen", "127.0.0.1:0", ...overwrite, ...settings.tapFlags] });
}

/** Ends the server of the tests in this process. */
async function closeTestServer() {
  const server = ofTests;
  ofTests = undefined;
  await (await server)?.close();
}

function hash(text) {
  return createHash("sha256").update(text).digest("hex").slice(0, 8);
}

/** A name of letters that every file system takes; a long one keeps its beginning, and a hash of all of it. */
function plain(name) {
  const plain = name.replace(/[^A-Za-z0-9_.[\]-]+/g, "-");
  return plain.length <= LONGEST ? plain : `${plain.slice(0, LONGEST - 9)}-${hash(name)}`;
}

/** The file of a test's cassette, below the folder of cassettes: `path/of/file.test/name.yaml`. */
function cassetteOf(file, name) {
  const module = relative(process.cwd(), file).replace(/\.[^./\\]+$/, "");
  const parts = module.split(/[\\/]/).filter((part) => part !== "..");
  return [...parts.map(plain), `${plain(name)}.yaml`].join("/");
}

/** Opens the session of a test. */
async function openFor(file, name, { match, onMiss, cassette } = {}) {
  const server = await testServer();
  const own = cassette ?? cassetteOf(file, name);
  const session = `${own.replace(/\.yaml$/, "").replace(/[^A-Za-z0-9_.-]+/g, "-").slice(-(LONGEST - 9))}-${hash(own)}`;
  const recordWith = "the tests with VLLM_VCR_MODE=once";
  // Nothing is recorded for a test that sends nothing, nor for one that does not end.
  const asked = { cassette: own, mode: mode(), match, onMiss, recordWith, ifMissing: "open", ifUnended: "drop" };
  return server.session(session, asked);
}

/** The error of a test that passed although something of `failOn` happened; undefined where nothing did. */
async function failureOf(session, failOn = settings.failOn) {
  const failing = await session.verify([failOn, "no_cassette"].flat());
  if (!failing.length) return undefined;
  const misses = (await session.misses()).map((miss) => miss.error?.message ?? JSON.stringify(miss));
  const left = failing.includes("unconsumed")
    ? ((await session.report()).sessions[session.name]?.begun_unconsumed ?? []).map((record) => `not asked for: ${record}`)
    : [];
  return new VcrError([`vllm-vcr: ${failing.join(", ")}`, ...misses, ...left].join("\n"));
}

/** Runs a test with a cassette of its own. `file` and `name` are the test's. */
async function withCassette(file, name, test, options = {}) {
  const session = await openFor(file, name, options);
  let hasPassed = false;
  try {
    const result = await test(session);
    const failure = await failureOf(session, options.failOn);
    if (failure) throw failure;
    hasPassed = true;
    return result;
  } catch (error) {
    // What a test made of it says less than that its cassette does not exist.
    throw (await failureOf(session, []).catch(() => undefined)) ?? error;
  } finally {
    // Half of a cassette would miss in every later run.
    await session.end({ drop: !hasPassed });
  }
}

module.exports = {
  Server,
  Session,
  VcrError,
  binary,
  cassetteOf,
  closeTestServer,
  configure,
  connect,
  failureOf,
  openFor,
  play,
  tap,
  testServer,
  withCassette,
};
