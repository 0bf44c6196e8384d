// Pages of `inspect report` in headless Chromium: what they show is what their JSON says, in both themes, by keyboard and on paper.
// Usage: node page.mjs BINARY [FOLDER]
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";
import { write, writeBare } from "./traces.mjs";

const [binary, screenshots] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "report-"));
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const vcr = (...flags) => execFileSync(binary, flags, { encoding: "utf8", maxBuffer: 1 << 26 });
const [before, after, bare] = ["before.jsonl", "after.jsonl", "bare.jsonl"].map((name) => join(folder, name));
write(before, 1, 1);
write(after, 2, 1.3);
writeBare(bare);
const pages = Object.entries({ one: [before], two: [before, after], bare: [bare] }).map(([name, traces]) => {
  const path = join(folder, `${name}.html`);
  vcr("inspect", "report", ...traces, "-o", path);
  const summaries = traces.map((trace) => figuresOf("inspect", "summary", trace));
  const comparison = traces.length === 2 ? figuresOf("inspect", "compare", ...traces) : null;
  return { name, url: pathToFileURL(path).href, summaries, comparison };
});

// In the page: everything that it shows beside what its JSON has.
function inspected() {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const at = (pointer) => pointer.split("/").slice(1)
    .reduce((value, token) => value?.[token.replaceAll("~1", "/").replaceAll("~0", "~")], figures);
  const numbers = [...document.querySelectorAll("data[data-figure]")]
    .map((data) => ({ pointer: data.dataset.figure, value: Number(data.value), text: data.textContent, json: at(data.dataset.figure) }));
  const texts = [...document.querySelectorAll("bdi[data-figure]")]
    .map((element) => ({ pointer: element.dataset.figure, text: element.textContent, json: at(element.dataset.figure) }));
  const ticks = (svg, axis) => [...svg.querySelectorAll(`.axis[data-axis=${axis}] text:not(.title)`)].map((text) => {
    const line = text.previousElementSibling;
    return { value: Number(text.dataset.value), text: text.textContent, place: Number(line.getAttribute(`${axis}1`)) };
  });
  const charts = [...document.querySelectorAll(".chart > svg")].map((svg) => ({
    title: svg.getAttribute("aria-label"),
    titles: [...svg.querySelectorAll(".axis .title")].map((title) => title.textContent),
    kinds: [svg.dataset.x.split(" ")[0], svg.dataset.y.split(" ")[0]],
    ticks: [ticks(svg, "x"), ticks(svg, "y")],
    series: [...svg.querySelectorAll("path.series")].map((path) => ({
      path: path.getAttribute("d"), pointer: path.dataset.figure, json: at(path.dataset.figure),
    })),
  }));
  const boxes = [...document.querySelectorAll(".tree g title")].length;
  return { figures, numbers, texts, charts, boxes };
}

const units = { "µs": 1e-3, ms: 1, s: 1e3, min: 6e4, "%": 1e-2, "/s": 1, "": 1 };

// A number for people is the number of the JSON, rounded to the digits that it has.
function isShown({ pointer, value, text, json }) {
  assert.equal(value, json, pointer);
  const [, sign, digits, unit] = /^([+−-]?)([\d\u202f.]+)(?: (\S+))?$/u.exec(text) ?? assert.fail(`${pointer}: ${text}`);
  const plain = digits.replaceAll("\u202f", "");
  const factor = (pointer.endsWith("_s") ? 1e-3 : 1) * (pointer.endsWith("change_percent") ? 100 : 1) * units[unit ?? ""];
  const last = 10 ** -(plain.split(".")[1]?.length ?? 0) * factor;
  const shown = Number(plain) * factor * (sign && sign !== "+" ? -1 : 1);
  assert.ok(Math.abs(shown - value) <= last * 0.51, `${pointer}: ${text} for ${value}`);
}

// What maps values to places, from the ticks alone.
function scale(kind, ticks) {
  const of = kind === "log" ? Math.log : (value) => value;
  const [first, last] = [ticks[0], ticks.at(-1)];
  return (value) => first.place + ((of(value) - of(first.value)) / (of(last.value) - of(first.value))) * (last.place - first.place);
}

function isDrawn({ title, titles, kinds, ticks, series }) {
  assert.equal(titles.filter(Boolean).length, 2, title);
  ticks.forEach((axis) => {
    assert.ok(axis.length >= 2 && axis.every(({ text }) => text), `${title}: ticks ${JSON.stringify(axis)}`);
    const places = axis.map(({ place }) => place);
    assert.ok(places.every((place, number) => !number || Math.abs(place - places[number - 1]) > 11), `${title}: ticks touch ${places}`);
  });
  const [x, y] = [0, 1].map((axis) => scale(kinds[axis], ticks[axis]));
  assert.ok(series.length > 0, title);
  for (const { path, pointer, json } of series) {
    const isBuckets = !Array.isArray(json);
    const places = [...path.matchAll(isBuckets ? /(?:M([\d.-]+) |V)([\d.-]+)/g : /[ML]([\d.-]+) ([\d.-]+)/g)].map(([, across, up]) => [Number(across), Number(up)]);
    const values = isBuckets ? [...json.series, json.series.at(-1)].map((value) => [undefined, value]) : json;
    assert.equal(places.length, values.length, pointer);
    values.forEach(([across, up], number) => {
      if (across !== undefined) assert.ok(Math.abs(x(across) - places[number][0]) < 1, `${pointer}/${number}: ${across} at ${places[number]}`);
      assert.ok(Math.abs(y(up) - places[number][1]) < 1, `${pointer}/${number}: ${up} at ${places[number]}, not ${y(up)}`);
    });
  }
}

async function opened(browser, url, theme, { script = true } = {}) {
  const page = await browser.newPage();
  // The machine may check other things at the same time.
  page.setDefaultTimeout(180_000);
  const said = [];
  page.on("console", (message) => said.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => said.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => { said.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("request", (request) => { if (request.url() !== url) said.push(`request: ${request.url()}`); });
  await page.setJavaScriptEnabled(script);
  await page.setViewport({ width: 1280, height: 900 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
  await page.goto(url, { waitUntil: "load" });
  return { page, said };
}

const visible = (page) => page.$$eval("section", (sections) => sections.filter((section) => section.offsetHeight > 0).map(({ id }) => id));

// What a command prints; which program printed it is no figure.
function figuresOf(...words) {
  const { build, ...figures } = JSON.parse(vcr(...words, "--json"));
  assert.ok(build.version);
  return figures;
}

async function figures(page, { summaries, comparison }) {
  const { figures, numbers, texts, charts, boxes } = await page.evaluate(inspected);
  numbers.forEach(isShown);
  texts.forEach(({ pointer, text, json }) => {
    assert.ok(json !== undefined && json !== null, pointer);
    const clean = (words) => words.replace(/\\u\{[0-9a-f]+\}|\p{Cf}/gu, "");
    assert.equal(clean(text), clean(String(json)), pointer);
  });
  charts.forEach(isDrawn);
  summaries.forEach((summary, run) => assert.deepEqual(figures.runs[run].summary, summary));
  if (comparison) assert.deepEqual(figures.comparison, comparison);
  return { numbers: numbers.length, charts: charts.length, boxes };
}

async function keyboard(page, isVaried) {
  await page.focus("#tab-overview");
  await page.keyboard.press("ArrowRight");
  assert.deepEqual(await visible(page), ["latencies"]);
  assert.equal(await page.evaluate(() => document.activeElement.id), "tab-latencies");
  const slider = await page.$("#latencies .chart input");
  if (slider) {
    const said = () => page.$eval("#latencies .chart output", (output) => output.textContent);
    await slider.focus();
    await page.keyboard.press("Home");
    const first = await said();
    await page.keyboard.press("End");
    const last = await said();
    assert.ok(first && last && (first !== last || !isVaried), `${first} and ${last}`);
    assert.equal(await slider.evaluate((input) => input.getAttribute("aria-valuetext")), last);
    const plot = await (await page.$("#latencies .chart > svg")).boundingBox();
    await page.mouse.move(plot.x + plot.width / 2, plot.y + plot.height / 2);
    assert.ok((await said()) !== last || !isVaried, last);
  }
  await page.focus("#tab-latencies");
  await page.keyboard.press("End");
  assert.deepEqual(await visible(page), ["errors"]);
  await page.keyboard.press("ArrowLeft");
  assert.deepEqual(await visible(page), ["slowest"]);
  const heading = "#slowest table thead th:nth-child(4)";
  await page.focus(`${heading} button`);
  await page.keyboard.press("Enter");
  assert.equal(await page.$eval(heading, (cell) => cell.ariaSort), "descending");
  const column = await page.$$eval("#slowest table:first-of-type tbody", ([body]) => [...body.rows].map((row) => Number(row.cells[3].querySelector("data")?.value)));
  assert.deepEqual(column, [...column].sort((one, other) => other - one));
  await page.focus("#tab-slowest");
  await page.keyboard.press("Home");
  assert.deepEqual(await visible(page), ["overview"]);
}

async function accessible(page, name) {
  await page.evaluate(axe);
  for (const tab of await page.$$(".tabs a")) {
    await tab.click();
    const { violations } = await page.evaluate(() => window.axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21aa"], resultTypes: ["violations"], selectors: false }));
    const found = violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html, failureSummary }) => `${html} ${failureSummary}`).join(" | ")}`);
    assert.deepEqual(found, [], `${name} ${await tab.evaluate(({ id }) => id)}`);
  }
}

async function fits(page) {
  await page.setViewport({ width: 390, height: 800 });
  for (const tab of await page.$$(".tabs a")) {
    await tab.click();
    const width = await page.evaluate(() => document.scrollingElement.scrollWidth);
    assert.ok(width <= 390, `${await tab.evaluate(({ id }) => id)}: ${width} px in 390`);
  }
  await page.setViewport({ width: 1280, height: 900 });
}

async function printed(page) {
  await page.emulateMediaType("print");
  assert.equal((await visible(page)).length, 6);
  await page.emulateMediaType("screen");
  const pdf = await page.pdf({ format: "A4", landscape: true, ...(screenshots ? { path: join(screenshots, "page.pdf") } : {}) });
  assert.ok(pdf.length > 10_000);
}

async function photographed(page, name) {
  if (!screenshots) return;
  for (const tab of await page.$$(".tabs a")) {
    await tab.click();
    await page.screenshot({ path: join(screenshots, `${name}-${await tab.evaluate(({ id }) => id)}.png`), fullPage: true });
  }
}

// The machine may check other things at the same time.
const browser = await puppeteer.launch({ timeout: 180_000, executablePath: await chromium.executablePath(), args: chromium.args, headless: "shell" });
let failed = 0;
try {
  for (const { name, url, ...expected } of pages) {
    const grounds = new Set();
    for (const theme of ["light", "dark"]) {
      const { page, said } = await opened(browser, url, theme);
      try {
        const counts = await figures(page, expected);
        if (name !== "bare") assert.ok(counts.charts >= 7 && counts.numbers > 100 && counts.boxes > 5, JSON.stringify(counts));
        grounds.add(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
        await keyboard(page, name !== "bare");
        await accessible(page, `${name} ${theme}`);
        await fits(page);
        await photographed(page, `${name}-${theme}`);
        await printed(page);
        assert.deepEqual(said, []);
        console.log(`${name} ${theme}: ${counts.numbers} figures, ${counts.charts} charts, ${counts.boxes} prefixes: ok`);
      } catch (error) {
        failed += 1;
        console.log(`${name} ${theme}: FAILED\n${error.stack}`);
      }
      await page.close();
    }
    if (grounds.size !== 2) {
      failed += 1;
      console.log(`${name}: both themes have one ground, ${[...grounds]}`);
    }
    const { page } = await opened(browser, url, "light", { script: false });
    const sections = await page.$$("section");
    const heights = await Promise.all(sections.map(async (section) => (await section.boundingBox())?.height ?? 0));
    if (heights.length !== 6 || heights.some((height) => height === 0)) {
      failed += 1;
      console.log(`${name} without script: sections of heights ${heights}`);
    }
    await page.close();
  }
} finally {
  await browser.close();
}
console.log(failed ? `${failed} failed` : "all ok");
process.exit(failed ? 1 : 0);
