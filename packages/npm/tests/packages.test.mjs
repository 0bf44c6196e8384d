// The packages as they are installed, and the helpers in projects of vitest and jest.
//
// Usage: VLLM_VCR_TEST_BINARY=PATH node --test packages/npm/tests/   (VLLM_VCR_TEST_FOLDER is where openai, vitest and jest are installed)

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join, relative, resolve } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { pack, serve } from "./registry.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const root = resolve(here, "../../..");
const program = resolve(process.env.VLLM_VCR_TEST_BINARY ?? join(root, "target/debug/vllm-vcr"));
const home = resolve(process.env.VLLM_VCR_TEST_FOLDER ?? join(root, "target/npm-tests"));
const platforms = JSON.parse(readFileSync(join(here, "../platforms.json"), "utf8"));
const isMusl = !process.report.getReport().header.glibcVersionRuntime;
const own = `${process.platform}-${process.arch}${process.platform === "linux" ? (isMusl ? "-musl" : "-gnu") : ""}`;
const work = mkdtempSync(join(tmpdir(), "vllm-vcr-npm-"));
let registry, packages, engine, engineURL;

/** Runs a command in a folder, while this process serves the registry. */
function run(folder, command, env = {}) {
  const clean = { ...process.env };
  for (const name of ["OPENAI_BASE_URL", "OPENAI_API_KEY", "VLLM_VCR_URL", "VLLM_VCR_MODE", "VLLM_VCR_BINARY", "NODE_TEST_CONTEXT"]) delete clean[name];
  const child = spawn(command[0], command.slice(1), { cwd: folder, env: { ...clean, NO_COLOR: "1", FORCE_COLOR: "0", ...env }, stdio: ["ignore", "pipe", "pipe"] });
  let text = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (piece) => (text += piece));
  return new Promise((done) => child.on("close", (code) => done({ code, text })));
}

async function install(folder, flags = []) {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, ".npmrc"), `@vllm-vcr:registry=${registry.url}/\naudit=false\nfund=false\ncache=${join(work, "cache")}\n`);
  if (!existsSync(join(folder, "package.json"))) writeFileSync(join(folder, "package.json"), '{"private": true}');
  const installed = await run(folder, ["npm", "install", "--ignore-scripts", "--no-save", ...flags, packages["vllm-vcr"].file]);
  assert.equal(installed.code, 0, installed.text);
}

before(async () => {
  writeFileSync(join(work, "other"), "#!/bin/sh\necho another platform\n", { mode: 0o755 });
  const named = Object.keys(platforms).map((name) => `${name}=${name === own ? program : join(work, "other")}`);
  const built = spawnSync("node", [join(here, "../build.mjs"), "--out", join(work, "built"), ...named], { encoding: "utf8" });
  assert.equal(built.status, 0, built.stderr);
  mkdirSync(join(work, "packed"));
  packages = pack(join(work, "built"), join(work, "packed"));
  registry = await serve(packages);
  await install(home);
  engine = spawn("python3", [join(root, "tests/frameworks/engine.py"), "0"], { stdio: ["ignore", "pipe", "ignore"] });
  engineURL = await new Promise((done) => engine.stdout.once("data", (line) => done(String(line).trim())));
});

after(() => {
  registry?.close();
  engine?.kill();
  rmSync(work, { recursive: true, force: true });
});

test("the packages have a program each, licences, and no script that runs at installation", () => {
  assert.deepEqual(Object.keys(packages).sort(), [...Object.keys(platforms).map((name) => `@vllm-vcr/${name}`), "vllm-vcr"].sort());
  const { optionalDependencies } = packages["vllm-vcr"].manifest;
  for (const [name, { file, manifest }] of Object.entries(packages)) {
    assert.equal(manifest.scripts, undefined, name);
    assert.equal(manifest.version, packages["vllm-vcr"].manifest.version);
    const listed = spawnSync("tar", ["tzf", file], { encoding: "utf8" }).stdout;
    for (const licence of ["LICENSE-MIT", "LICENSE-APACHE", "README.md"]) assert.match(listed, new RegExp(`package/${licence}`), name);
    if (name === "vllm-vcr") continue;
    assert.match(listed, /package\/bin\/vllm-vcr/);
    assert.equal(optionalDependencies[name], manifest.version);
    const { os, cpu, libc } = platforms[name.replace("@vllm-vcr/", "")];
    assert.deepEqual([manifest.os, manifest.cpu, manifest.libc], [[os], [cpu], libc && [libc]]);
  }
});

test("npm installs the program of this platform only, and npx runs it", async () => {
  assert.deepEqual(readdirSync(join(home, "node_modules/@vllm-vcr")), [own]);
  const { code, text } = await run(home, ["npx", "--no-install", "vllm-vcr", "--version"]);
  assert.equal(code, 0, text);
  assert.match(text, new RegExp(`^vllm-vcr ${packages["vllm-vcr"].manifest.version}`));
  const refused = await run(home, ["npx", "--no-install", "vllm-vcr", "play", "--no-such-flag"]);
  assert.equal(refused.code, 2, "the exit code is the program's");
});

test("without the optional dependency a text says what to do", async () => {
  const folder = join(work, "omitted");
  await install(folder, ["--omit=optional"]);
  const { code, text } = await run(folder, ["npx", "--no-install", "vllm-vcr", "--version"]);
  assert.equal(code, 4, text);
  assert.match(text, new RegExp(`the optional dependency @vllm-vcr/${own}, is not installed.*npm install --include=optional, or set VLLM_VCR_BINARY`, "s"));
  assert.doesNotMatch(text, /at Object|node:internal/);
  const named = await run(folder, ["npx", "--no-install", "vllm-vcr", "--version"], { VLLM_VCR_BINARY: program });
  assert.equal(named.code, 0, named.text);
  const wrong = await run(folder, ["npx", "--no-install", "vllm-vcr", "--version"], { VLLM_VCR_BINARY: "/nowhere" });
  assert.match(wrong.text, /VLLM_VCR_BINARY is \/nowhere, which is no program/);
});

test("each platform has its package, glibc before musl", () => {
  const { packages: of } = createRequire(join(home, "x.cjs"))(join(home, "node_modules/vllm-vcr/binary.cjs"));
  assert.deepEqual(of("linux", "arm64", true), ["@vllm-vcr/linux-arm64-musl"]);
  assert.deepEqual(of("linux", "x64", false), ["@vllm-vcr/linux-x64-gnu", "@vllm-vcr/linux-x64-musl"]);
  assert.deepEqual(of("darwin", "arm64", false), ["@vllm-vcr/darwin-arm64"]);
});

test("the types say what the helpers take", async () => {
  const folder = join(home, "project-types");
  mkdirSync(folder, { recursive: true });
  const of = (framework) => `import { test } from "vllm-vcr/${framework}";
test("a", async ({ cassette }) => { const url: string = cassette.baseURL; void url; });
// @ts-expect-error: no such property
test("b", async ({ cassette }) => { cassette.baseUrl; });\n`;
  writeFileSync(join(folder, "vitest.ts"), of("vitest"));
  writeFileSync(join(folder, "jest.ts"), of("jest"));
  const index = 'import { play, type Session } from "vllm-vcr";\nexport const s: Promise<Session> = play("c.yaml").then((server) => server.session("a", { onMiss: "stub" }));\n';
  writeFileSync(join(folder, "index.ts"), index);
  const flags = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"];
  const checked = await run(folder, ["npx", "--no-install", "tsc", ...flags, "vitest.ts", "jest.ts", "index.ts"]);
  assert.equal(checked.code, 0, checked.text);
});

test("a signal ends the program behind the launcher", async () => {
  const child = spawn(join(home, "node_modules/.bin/vllm-vcr"), ["play", "--port", "0"], { stdio: ["ignore", "ignore", "pipe"] });
  await new Promise((done) => {
    let said = "";
    // What is logged before this line comes before signals are waited for.
    child.stderr.on("data", (data) => (said += data).includes("play on ") && done());
  });
  child.kill("SIGTERM");
  const ended = await new Promise((done) => child.on("exit", (code, signal) => done([code, signal])));
  assert.deepEqual(ended, [0, null]);
});

test("a file that is not there is recorded in the words of the package", async () => {
  const script = 'require("vllm-vcr").play("no such.yaml").catch((error) => console.log(error.message))';
  const { text } = await run(home, ["node", "-e", script]);
  assert.match(text, /hint: record it: await tap\("http:\/\/localhost:8000", "no such.yaml"\)\n$/);
});

// A machine that checks other things at the same time takes longer than the frameworks' 5 s.
const PROJECTS = {
  vitest: { command: ["../node_modules/.bin/vitest", "run", "--no-cache", "--testTimeout=120000"], manifest: { type: "module" }, file: "agent.test.js", head: 'import { test } from "vllm-vcr/vitest";\nimport { expect } from "vitest";\nimport OpenAI from "openai";\n' },
  jest: { command: ["../node_modules/.bin/jest", "--ci", "--no-cache", "--testTimeout=120000"], manifest: { jest: { transform: {} } }, file: "agent.test.js", head: 'const { test } = require("vllm-vcr/jest");\nconst { default: OpenAI } = require("openai");\n' },
};

const BODY = `
const ask = async (cassette, content) => {
  const client = new OpenAI({ baseURL: cassette.baseURL, apiKey: cassette.apiKey });
  const answer = await client.chat.completions.create({ model: "m", messages: [{ role: "user", content }] });
  return answer.choices[0].message.content;
};
for (let number = 0; number < 30; number++) {
  test.concurrent(\`weather \${number}\`, async ({ cassette }) => {
    for (const word of ["rainy", "sunny"]) {
      const text = await ask(cassette, \`\${word} in London on day \${number}\`);
      if (text !== \`It is \${word} in London on day \${number}.\`) throw new Error(text);
    }
  });
}
`;

for (const [name, { command, manifest, file, head }] of Object.entries(PROJECTS)) {
  const folder = join(home, `project-${name}`);
  const cassettes = () => readdirSync(join(folder, "cassettes"), { recursive: true }).map(String).filter((path) => path.endsWith(".yaml"));
  const once = { VLLM_VCR_MODE: "once", VLLM_VCR_UPSTREAM: () => engineURL };
  const play = (env = {}) => run(folder, command, Object.fromEntries(Object.entries(env).map(([key, value]) => [key, typeof value === "function" ? value() : value])));
  const left = () => spawnSync("pgrep", ["-f", `${folder}/cassettes`], { encoding: "utf8" }).stdout.trim();
  const pause = () => new Promise((done) => setTimeout(done, 50));
  const write = (body) => writeFileSync(join(folder, file), head + body);

  test(`${name}: thirty concurrent tests are recorded once and played`, async () => {
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder);
    writeFileSync(join(folder, "package.json"), JSON.stringify({ private: true, ...manifest }));
    write(BODY);
    const recorded = await play(once);
    assert.equal(recorded.code, 0, recorded.text);
    assert.equal(cassettes().length, 30, cassettes().join());
    assert.ok(existsSync(join(folder, "cassettes/agent.test/weather-7.yaml")));
    const played = await play();
    assert.equal(played.code, 0, played.text);
    assert.match(played.text, /30 passed/);
  });

  test(`${name}: a deleted cassette is recorded again and no other`, async () => {
    const times = () => Object.fromEntries(cassettes().map((path) => [path, statSync(join(folder, "cassettes", path)).mtimeNs ?? statSync(join(folder, "cassettes", path), { bigint: true }).mtimeNs]));
    const before = times();
    rmSync(join(folder, "cassettes/agent.test/weather-7.yaml"));
    const missing = await play();
    assert.equal(missing.code, 1, missing.text);
    assert.match(missing.text, /agent\.test\/weather-7\.yaml does not exist; record it: the tests with VLLM_VCR_MODE=once/);
    assert.match(missing.text, /29 passed/);
    assert.equal((await play(once)).code, 0);
    const after = times();
    assert.deepEqual(Object.keys(after).filter((path) => after[path] !== before[path]), ["agent.test/weather-7.yaml"]);
  });

  test(`${name}: a miss shows its differences, also one that was swallowed`, async () => {
    write(BODY.replace("sunny", "stormy"));
    const changed = await play();
    assert.equal(changed.code, 1);
    assert.match(changed.text, /recorded '?sunny in London on day/);
    write(BODY.replaceAll("await ask(", "await swallow(").replace("It is ${word} in London on day ${number}.", "swallowed") + "async function swallow(cassette) { try { await ask(cassette, 'stormy in London on day 5'); } catch { return 'swallowed'; } }\n");
    const swallowed = await play();
    assert.equal(swallowed.code, 1, swallowed.text);
    assert.match(swallowed.text, /vllm-vcr: miss/);
    assert.match(swallowed.text, /stormy in London on day 5/);
  });

  test(`${name}: options of a test`, async () => {
    rmSync(join(folder, "cassettes"), { recursive: true });
    const asks = (title, content, expected, options) => {
      const scoped = name === "vitest" ? `test.scoped({ vcr: ${options} });\n` : "";
      const third = name === "vitest" ? "" : `, ${options}`;
      return `${scoped}test("${title}", async ({ cassette }) => { if (!(await ask(cassette, "${content}")).includes("${expected}")) throw new Error("other"); }${third});\n`;
    };
    const ask = BODY.slice(0, BODY.indexOf("for ("));
    write(ask + asks("one", "rain", "rain", "{}"));
    assert.equal((await play(once)).code, 0);
    write(ask + asks("one", "hail", "novel", '{ onMiss: "stub", failOn: [] }'));
    const stubbed = await play();
    assert.equal(stubbed.code, 0, stubbed.text);
    write(ask + asks("two", "rain", "rain", '{ cassette: "agent.test/one.yaml" }'));
    const shared = await play();
    assert.equal(shared.code, 0, shared.text);
    write(ask + asks("one", "rain", "rain", '{ onMiss: "guess" }'));
    assert.match((await play()).text, /`on_miss` has to be error, stub, upstream or record, not `guess`/);
  });

  test(`${name}: two tests with one cassette are refused`, async () => {
    write('test("a b", async ({ cassette }) => cassette.url);\ntest("a b", async ({ cassette }) => cassette.url);\n');
    const refused = await play({ VLLM_VCR_MODE: "live", VLLM_VCR_UPSTREAM: engineURL });
    assert.equal(refused.code, 1, refused.text);
    assert.match(refused.text, /rename one/);
  });

  test(`${name}: tests of a table have a cassette each`, async () => {
    rmSync(join(folder, "cassettes"), { recursive: true, force: true });
    const row = name === "vitest" ? 'test.for([["rain"], ["snow"]])("says %s", async ([word], { cassette })' : 'test.each([["rain"], ["snow"]])("says %s", async (word, { cassette })';
    const rows = `${BODY.slice(0, BODY.indexOf("for ("))}${row} => { if (!(await ask(cassette, word)).includes(word)) throw new Error(word); });\n`;
    write(rows);
    const recorded = await play(once);
    assert.equal(recorded.code, 0, recorded.text);
    assert.deepEqual(cassettes().sort(), ["agent.test/says-rain.yaml", "agent.test/says-snow.yaml"]);
    // A second file with the same titles, in the same worker where the framework has one for several files.
    writeFileSync(join(folder, `other.${file.slice(file.indexOf(".") + 1)}`), head + rows);
    const flags = name === "vitest" ? ["--no-isolate", "--maxWorkers=1"] : ["--runInBand"];
    const both = await run(folder, [...command, ...flags], { VLLM_VCR_MODE: "once", VLLM_VCR_UPSTREAM: engineURL });
    rmSync(join(folder, `other.${file.slice(file.indexOf(".") + 1)}`));
    assert.equal(both.code, 0, both.text);
    assert.equal(cassettes().length, 4, cassettes().join());
  });

  test(`${name}: a test that sends nothing needs no cassette, and one that sends something names what records it`, async () => {
    const pure = 'test("pure", async ({ cassette }) => { if (!cassette.url) throw new Error("no URL"); });\n';
    rmSync(join(folder, "cassettes"), { recursive: true, force: true });
    write(pure);
    for (const env of [once, {}]) {
      const ran = await play(env);
      assert.equal(ran.code, 0, ran.text);
    }
    assert.equal(existsSync(join(folder, "cassettes/agent.test/pure.yaml")), false);
    const ask = BODY.slice(0, BODY.indexOf("for ("));
    write(`${pure}${ask}test("asks", async ({ cassette }) => { await ask(cassette, "rain"); });\ntest("swallows", async ({ cassette }) => { await ask(cassette, "rain").catch(() => {}); });\n`);
    const missing = await play();
    assert.equal(missing.code, 1, missing.text);
    assert.match(missing.text, /2 failed.*1 passed/);
    assert.doesNotMatch(missing.text, /Open a session/, "the text stands in place of the client's error");
    for (const test of ["asks", "swallows"]) assert.match(missing.text, new RegExp(`agent\\.test/${test}\\.yaml does not exist; record it: the tests with VLLM_VCR_MODE=once`));
  });

  test(`${name}: what was recorded for a test that failed is dropped`, async () => {
    const contents = () => Object.fromEntries(readdirSync(join(folder, "cassettes"), { recursive: true }).map((path) => join(folder, "cassettes", path)).filter((path) => statSync(path).isFile()).map((path) => [path, readFileSync(path, "utf8")]));
    const asks = (words, end = "") => write(`${BODY.slice(0, BODY.indexOf("for ("))}test("one", async ({ cassette }) => { for (const word of ${JSON.stringify(words)}) await ask(cassette, word); ${end} });\n`);
    rmSync(join(folder, "cassettes"), { recursive: true, force: true });
    asks(["rain"], 'throw new Error("half");');
    assert.equal((await play(once)).code, 1);
    assert.deepEqual(contents(), {});
    asks(["rain", "snow"]);
    assert.equal((await play(once)).code, 0);
    const before = contents();
    assert.ok(Object.keys(before).length > 1);
    asks(["rain", "hail"], 'throw new Error("half");');
    for (const VLLM_VCR_MODE of ["all", "new-episodes"]) {
      assert.equal((await play({ ...once, VLLM_VCR_MODE })).code, 1);
      assert.deepEqual(contents(), before, VLLM_VCR_MODE);
    }
  });

  test(`${name}: what was recorded for a test that was killed is dropped`, async () => {
    const contents = () => Object.fromEntries(readdirSync(join(folder, "cassettes"), { recursive: true }).map((path) => join(folder, "cassettes", path)).filter((path) => statSync(path).isFile()).map((path) => [path, readFileSync(path, "utf8")]));
    const asks = (words, end = "") => write(`${BODY.slice(0, BODY.indexOf("for ("))}test("one", async ({ cassette }) => { for (const word of ${JSON.stringify(words)}) await ask(cassette, word); ${end} }, 90000);\n`);
    rmSync(join(folder, "cassettes"), { recursive: true, force: true });
    for (const VLLM_VCR_MODE of ["once", "new-episodes", "all"]) {
      const before = VLLM_VCR_MODE === "once" ? {} : contents();
      asks(["rain", "hail"], "await new Promise((done) => setTimeout(done, 80000));");
      const env = { ...process.env, VLLM_VCR_MODE, VLLM_VCR_UPSTREAM: engineURL };
      delete env.NODE_TEST_CONTEXT;
      // The framework and its workers are a group of processes, as in a job that is killed.
      const killed = spawn(command[0], command.slice(1), { cwd: folder, env, stdio: "ignore", detached: true });
      const partial = join(folder, "cassettes/agent.test/one.yaml.partial");
      while (!(existsSync(partial) && readFileSync(partial, "utf8").includes("It is hail"))) await pause();
      process.kill(-killed.pid, "SIGKILL");
      while (left()) await pause();
      assert.deepEqual(contents(), before, VLLM_VCR_MODE);
      asks(["rain", "snow"]);
      assert.equal((await play(once)).code, 0);
      assert.equal((await play()).code, 0);
    }
  });

  test(`${name}: no server is left behind`, async () => {
    for (let looks = 0; left() && looks < 400; looks++) await pause();
    assert.equal(left(), "");
  });
}
