"""Records the agent against a real vLLM: what tests/cassettes/real holds, and run.py replays offline.

Usage: record.py BINARY URL MODEL. The engine runs with --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3
and a logits processor that says what `vllm_xargs.script` tells it to.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main(binary, url, model):
    folder = HERE / "real"
    folder.mkdir(exist_ok=True)
    for stream in ("0", "1"):
        agent = ["env", f"MODEL={model}", "SCRIPTED=1", f"STREAM={stream}", sys.executable, HERE / "agent.py"]
        name = "streamed" if stream == "1" else "whole"
        tap = [binary, "tap", "--upstream", url, "--listen", "127.0.0.1:0", "--cassette", folder / f"{name}.yaml", "--mode", "all"]
        done = subprocess.run([*tap, "--", *agent], stdout=subprocess.PIPE, text=True, check=True)
        (folder / f"{name}.transcript").write_text(done.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
