// What is shown is put in as text, never as HTML.
"use strict";

const element = (id) => document.getElementById(id);
let token = "";
let faults = [];
let seed = 0;

async function ask(path, method = "GET", body = undefined) {
  const headers = { ...(token && { authorization: `Bearer ${token}` }), ...(body && { "content-type": "application/json" }) };
  const response = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  element("key").hidden = response.status !== 401 && !token;
  const value = await response.json().catch(() => null);
  if (!response.ok) throw new Error(value?.error?.message ?? `${path}: status ${response.status}`);
  return value;
}

function say(text) {
  element("status").textContent = text;
}

function row(cells, kind = "") {
  const line = document.createElement("tr");
  line.className = kind;
  for (const cell of cells) {
    const place = line.insertCell();
    if (cell instanceof Node) place.append(cell);
    else place.textContent = cell ?? "";
    if (typeof cell === "number") place.className = "number";
  }
  return line;
}

async function replaceFaults(lines) {
  try {
    await ask("/vcr/faults", "PUT", { seed, faults: lines });
    say("The faults are replaced.");
    return true;
  } catch (error) {
    say(error.message);
    return false;
  } finally {
    await refresh().catch(() => {});
  }
}

function showFaults({ seed: current, faults: shown }) {
  seed = current;
  faults = shown.map(({ fault }) => fault);
  const rows = shown.map(({ fault, happened }, place) => {
    const remove = document.createElement("button");
    remove.textContent = "Remove";
    remove.setAttribute("aria-label", `Remove ${fault}`);
    remove.addEventListener("click", () => replaceFaults(faults.filter((_, other) => other !== place)));
    return row([fault, happened, remove]);
  });
  element("faults").replaceChildren(...rows);
}

function kindOf({ status, miss, faults: chosen, took_ms: took }) {
  if (miss) return "missed";
  if (chosen.length > 0) return "faulted";
  if (took === null) return "flying";
  return status >= 400 ? "failed" : "";
}

function showRequests(requests) {
  const rows = requests.map((request) => {
    const origin = request.miss ? `missed: ${request.miss}` : [request.record, request.match].filter((it) => it !== null).join(" by ");
    const took = request.took_ms === null ? "in progress" : `${request.took_ms} ms`;
    const time = new Date(request.at_ms).toISOString().slice(11, 23);
    const cells = [request.number, time, request.request, request.session, request.status, took, origin, request.faults.join("\n")];
    return row(cells, kindOf(request));
  });
  element("requests").replaceChildren(...rows);
}

function showMisses(misses) {
  const shown = misses.slice(-20).reverse().map((miss) => {
    const details = document.createElement("details");
    const [summary, text] = [document.createElement("summary"), document.createElement("pre")];
    summary.textContent = [miss.number, miss.request ?? miss.path, miss.reason].filter((it) => it !== undefined).join(" ");
    text.textContent = JSON.stringify(miss, null, 2);
    details.append(summary, text);
    return details;
  });
  const open = [...element("misses").querySelectorAll("details")].some((details) => details.open);
  if (!open) element("misses").replaceChildren(...shown);
}

async function refresh() {
  const [live, shown] = await Promise.all([ask("/vcr/live"), ask("/vcr/faults?hits=0")]);
  showRequests(live.requests);
  showFaults(shown);
  const misses = await ask("/vcr/misses").catch(() => []);
  showMisses(Array.isArray(misses) ? misses : []);
}

async function follow() {
  for (;;) {
    try {
      if (!document.hidden) {
        await refresh();
        if (element("status").textContent === "Loading.") say("");
      }
    } catch (error) {
      say(error.message);
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

element("add").addEventListener("submit", async (event) => {
  event.preventDefault();
  const line = element("line").value.trim();
  if (line && (await replaceFaults([...faults, line]))) element("line").value = "";
});
element("token").addEventListener("change", () => {
  token = element("token").value;
  refresh().then(() => say(""), (error) => say(error.message));
});
ask("/vcr/faults/catalog").then((kinds) => {
  const options = kinds.map(({ example, summary }) => Object.assign(document.createElement("option"), { value: example, label: summary }));
  element("kinds").replaceChildren(...options);
}, () => {});
follow();
