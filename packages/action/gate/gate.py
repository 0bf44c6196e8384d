"""The gate's step: ends the server of the start action, compares traces, or cassettes with a live server, writes annotations, the job's summary and files for the artifact."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LONGEST_END = 60

FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="vllm-vcr-gate.", dir=os.environ.get("RUNNER_TEMP")))
problems = []


def annotate(title, text):
    """An error at the top of the run; line breaks and per cent signs are escaped as the runner has it."""
    problems.append(text)
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    print(f"::error title={title.replace('%', '%25').replace(':', '%3A').replace(',', '%2C')}::{escaped}")


def append(variable, text):
    with open(os.environ[variable], "a", encoding="utf-8") as file:
        file.write(text)


def end_server(folder):
    """Ends the server as Ctrl-C does; its exit code, once what it has to write is written."""
    code = folder / "code"
    try:
        os.kill(int((folder / "pid").read_text()), signal.SIGINT)
    except ProcessLookupError:
        # It ended by itself.
        pass
    for _ in range(LONGEST_END * 10):
        if code.exists() and code.read_text().strip():
            return int(code.read_text())
        time.sleep(0.1)
    sys.exit("::error title=vllm-vcr::the server did not end")


def report_server(folder):
    code = end_server(folder)
    said = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
    for name in ("log", "report.json"):
        if (folder / name).exists():
            shutil.copy(folder / name, FOLDER)
    rows = []
    if (folder / "report.json").exists():
        sessions = json.loads((folder / "report.json").read_text(encoding="utf-8"))["sessions"]
        for name, session in sessions.items():
            missed = ", ".join(f"{count} {why}" for why, count in session.get("misses", {}).items())
            rows.append(f"| {name} | {session['requests']} | {session['served']} of {session['records']} | {missed or 'none'} |\n")
    if rows:
        append("GITHUB_STEP_SUMMARY", "### Cassettes\n\n| session | requests | records served | misses |\n|---|--:|--:|---|\n" + "".join(rows) + "\n")
    if code != 0:
        start = next((at for at, line in enumerate(said) if line.startswith("session ")), max(len(said) - 20, 0))
        why = next((line for line in said if line.startswith(("failed:", "error:"))), f"ended with {code}")
        annotate("Cassettes", "\n".join([why, *(line for line in said[start:] if line != why)]))


def compare(binary, baseline, candidate, gate):
    table, junit = FOLDER / "comparison.md", FOLDER / "junit.xml"
    limits = ["--gate", gate, "--junit", junit] if gate else []
    ran = subprocess.run([binary, "inspect", "compare", baseline, candidate, "--json", "--markdown", table, *limits], capture_output=True, text=True)
    if ran.returncode > 1:
        return annotate("Comparison", ran.stderr.strip())
    (FOLDER / "comparison.json").write_text(ran.stdout, encoding="utf-8")
    append("GITHUB_STEP_SUMMARY", f"### {pathlib.Path(baseline).name} and {pathlib.Path(candidate).name}\n\n{table.read_text(encoding='utf-8')}\n")
    for limit in json.loads(ran.stdout).get("gate") or []:
        if limit["failure"]:
            annotate(limit["metric"], limit["failure"])
    if ran.returncode and not problems:
        annotate("Comparison", ran.stderr.strip() or "not within the limits")


def drift(binary, cassettes, live):
    told = FOLDER / "drift.md"
    ran = subprocess.run([binary, "drift", "--live", live, "--json", "--markdown", told, "--", *cassettes], capture_output=True, text=True)
    if not told.exists():
        return annotate("Drift", ran.stderr.strip())
    (FOLDER / "drift.json").write_text(ran.stdout, encoding="utf-8")
    append("GITHUB_STEP_SUMMARY", f"### Drift\n\n{told.read_text(encoding='utf-8')}\n")
    for record in json.loads(ran.stdout)["records"]:
        if record.get("drift"):
            annotate(f"Drift of {record['cassette']}#{record['record']}", "\n".join([record["request"], *record["differences"]]))
    if ran.returncode and not problems:
        annotate("Drift", ran.stderr.strip())


def main():
    inputs = {name: os.environ.get(f"INPUT_{name.upper()}", "") for name in ("baseline", "candidate", "gate", "cassettes", "live", "binary")}
    cassettes = [line.strip() for line in inputs["cassettes"].splitlines() if line.strip()]
    server = os.environ.get("VCR_ACTION_FOLDER")
    if bool(inputs["baseline"]) != bool(inputs["candidate"]):
        annotate("vllm-vcr", "a comparison needs both baseline and candidate")
    elif bool(cassettes) != bool(inputs["live"]):
        annotate("vllm-vcr", "drift needs both cassettes and live")
    elif not server and not inputs["baseline"] and not cassettes:
        annotate("vllm-vcr", "nothing to look at: use the start action before, name baseline and candidate, or cassettes and live")
    if server:
        report_server(pathlib.Path(server))
    if inputs["baseline"] and inputs["candidate"]:
        compare(inputs["binary"], inputs["baseline"], inputs["candidate"], inputs["gate"])
    if cassettes and inputs["live"]:
        drift(inputs["binary"], cassettes, inputs["live"])
    append("GITHUB_OUTPUT", f"passed={'false' if problems else 'true'}\nfolder={FOLDER}\n")
    sys.exit(1 if problems else 0)


main()
