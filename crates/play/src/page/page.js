// What is shown is put in as text, never as HTML.
"use strict";

const element = (id) => document.getElementById(id);
let token = "";
let faults = [];
let seed = 0;
let hasMisses = true;

async function ask(path, method = "GET", body = undefined) {
  const headers = { ...(token && { authorization: `Bearer ${token}` }), ...(body && { "content-type": "application/json" }) };
  const response = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  element("key").hidden = response.status !== 401 && !token;
  const value = await response.json().catch(() => null);
  if (!response.ok) {
    const error = new Error(value?.error?.message ?? `${path}: status ${response.status}`);
    throw Object.assign(error, { status: response.status });
  }
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

// Cells that are the same stay, and with them the focus; nothing changes while some of it is selected.
function showRows(id, rows) {
  const body = element(id);
  const selection = getSelection();
  if (!selection.isCollapsed && body.contains(selection.anchorNode)) return;
  rows.forEach((row, place) => {
    const old = body.rows[place];
    if (!old) return body.append(row);
    old.className = row.className;
    [...row.cells].forEach((cell, at) => cell.isEqualNode(old.cells[at]) || old.cells[at].replaceWith(cell));
  });
  [...body.rows].slice(rows.length).forEach((row) => row.remove());
}

async function replaceFaults(lines) {
  try {
    await ask("/vcr/faults", "PUT", { seed, faults: lines });
    say("The faults are replaced; each counts from 0.");
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
  showRows("faults", rows);
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
  showRows("requests", rows);
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
  const misses = hasMisses ? await ask("/vcr/misses").catch(({ status }) => void (hasMisses = status !== 404)) : [];
  showMisses(Array.isArray(misses) ? misses : []);
}

async function suggest() {
  const kinds = await ask("/vcr/faults/catalog");
  const options = kinds.map(({ example, summary }) => Object.assign(document.createElement("option"), { value: example, label: summary }));
  element("kinds").replaceChildren(...options);
}

async function follow() {
  let isFirst = true; // after a poll that failed, too
  for (;;) {
    try {
      if (!document.hidden) {
        await refresh();
        if (isFirst) say("");
        isFirst = false;
      }
    } catch (error) {
      say(error.message);
      isFirst = hasMisses = true;
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
  Promise.all([refresh(), suggest()]).then(() => say(""), (error) => say(error.message));
});
suggest().catch(() => {});
follow();
