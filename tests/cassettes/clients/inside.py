"""Runs an agent as the wrapped command, and keeps what it prints and the misses of its server in FILE, which is JSON.

Usage: inside.py FILE COMMAND...
"""

import json
import os
import subprocess
import sys
import urllib.request

path, *command = sys.argv[1:]
done = subprocess.run(command, capture_output=True, text=True, timeout=120)
sys.stdout.write(done.stdout)
sys.stdout.flush()
sys.stderr.write(done.stderr)
with urllib.request.urlopen(f"{os.environ['VLLM_VCR_URL']}/vcr/misses") as answer:
    misses = json.load(answer)
with open(path, "w") as file:
    json.dump({"transcript": done.stdout, "error": done.stderr, "misses": misses}, file)
sys.exit(done.returncode)
