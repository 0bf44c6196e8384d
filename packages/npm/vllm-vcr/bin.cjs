#!/usr/bin/env node
// Runs the program in place of this process, as far as Node can: same streams, signals passed on, same end.

const { spawn } = require("node:child_process");
const { binary } = require("./binary.cjs");

let program;
try {
  program = binary();
} catch (error) {
  console.error(error.message);
  process.exit(4);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => {
  console.error(`vllm-vcr: cannot run ${program}: ${error.message}`);
  process.exit(4);
});
// A terminal sends Ctrl-C to both; the program decides when it ends.
process.on("SIGINT", () => {});
for (const signal of ["SIGTERM", "SIGHUP", "SIGQUIT"]) process.on(signal, () => child.kill(signal));
child.on("exit", (code, signal) => {
  if (signal) {
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  } else {
    process.exit(code);
  }
});
