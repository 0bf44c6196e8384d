// The page at /vcr in headless Chromium: requests as they come, with their misses and faults, and switches for faults.
// Usage: node vcr.mjs BINARY
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const [binary] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

function play(...flags) {
  const server = spawn(binary, ["play", "--port", "0", "--instant", ...flags], { stdio: ["ignore", "inherit", "pipe"] });
  const started = new Promise((resolve, reject) => {
    let said = "";
    server.stderr.on("data", (data) => {
      said += data;
      const address = /play on (http:\/\/\S+)/.exec(said);
      if (address) resolve(address[1]);
    });
    server.on("exit", (code) => reject(new Error(`play ended with ${code}: ${said}`)));
  });
  return { server, started };
}

const ask = (url, body, headers = {}) => fetch(`${url}/v1/completions`, {
  method: "POST", headers: { "content-type": "application/json", ...headers }, body: JSON.stringify(body),
}).then(async (response) => ({ status: response.status, text: await response.text() }));

// A row of a list with a text as it is once its request has ended: a time of day may have the same figures.
const row = (page, list, text) => page.waitForFunction((list, text) =>
  [...document.querySelectorAll(`#${list} tr`)].some((row) => new RegExp(text).test(row.textContent)), {}, list, text.source);

async function requests(page, url) {
  await row(page, "faults", /429 where prompt=many/);
  const markup = "<img src=x onerror=document.title='broken'>";
  await ask(url, { prompt: "plain", max_tokens: 3 }, { "x-vcr-session": "one" });
  assert.equal((await ask(url, { prompt: "many", max_tokens: 3 })).status, 429);
  await row(page, "requests", /POST \/v1\/completions429\d+ ms.*429$/);
  await row(page, "requests", /one200\d+ ms/);
  await ask(url, { model: markup, prompt: "x" });
  await row(page, "requests", /404\d+ ms/);
  const hanging = ask(url, { prompt: "hanging", max_tokens: 3 }).catch(() => {});
  await page.type("#line", "hang where prompt=hanging");
  await page.click("#add button");
  await row(page, "faults", /hang where prompt=hanging/);
  const second = new AbortController();
  const waits = fetch(`${url}/v1/completions`, {
    method: "POST", headers: { "content-type": "application/json" }, body: '{"prompt":"hanging again"}', signal: second.signal,
  }).catch(() => {});
  await row(page, "requests", /in progress/);
  second.abort();
  await Promise.all([waits, hanging]);
}

async function switches(page, url) {
  await page.evaluate(() => [...document.querySelectorAll("#faults button")].find((button) => button.getAttribute("aria-label").includes("429")).click());
  await page.waitForFunction(() => !document.querySelector("#faults").textContent.includes("429"));
  assert.equal((await ask(url, { prompt: "many", max_tokens: 3 })).status, 200);
  await page.type("#line", "explode");
  await page.click("#add button");
  await page.waitForFunction(() => document.querySelector("#status").textContent.includes("`explode` is no kind of fault"));
  assert.ok(await page.$$eval("#kinds option", (options) => options.length) > 20, "the catalogue is offered");
}

// The machine may check other things at the same time.
const browser = await puppeteer.launch({ timeout: 180_000, args: [...chromium.args, "--no-sandbox"], executablePath: await chromium.executablePath(), headless: "shell" });
const { server, started } = play("--fault", "429 where prompt=many");
try {
  const url = await started;
  const page = await browser.newPage();
  page.setDefaultTimeout(180_000);
  const said = [];
  const outside = [];
  page.on("pageerror", (error) => said.push(error.message));
  page.on("request", (request) => { if (!request.url().startsWith(url)) outside.push(request.url()); });
  await page.goto(`${url}/vcr`);
  await requests(page, url);
  await switches(page, url);
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run());
  assert.deepEqual(violations.map(({ id, nodes }) => [id, nodes[0].html]), []);
  assert.notEqual(await page.title(), "broken");
  assert.deepEqual([said, outside], [[], []]);
  console.log("the page at /vcr: ok");
} finally {
  server.removeAllListeners("exit");
  server.kill();
  await browser.close();
}
