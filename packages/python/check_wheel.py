"""Checks what is in a wheel: the program, the typed package, its plugin and the licences.

Usage: check_wheel.py WHEEL
"""

import sys
import zipfile

[path] = sys.argv[1:]
with zipfile.ZipFile(path) as wheel:
    names = wheel.namelist()
    ends = ["scripts/vllm-vcr", "vllm_vcr/py.typed", "vllm_vcr/pytest_plugin.py", "licenses/LICENSE-MIT", "licenses/LICENSE-APACHE"]
    missing = [end for end in ends if not any(name.endswith(end) for name in names)]
    foreign = [name for name in names if name.endswith((".pyc", ".rs")) or "/tests/" in name]
    [points] = [name for name in names if name.endswith("entry_points.txt")]
    plugin = "vllm_vcr=vllm_vcr.pytest_plugin" in wheel.read(points).decode().replace(" ", "")
    program = next((name for name in names if name.endswith("scripts/vllm-vcr")), None)
    is_executable = program is not None and wheel.getinfo(program).external_attr >> 16 & 0o111 != 0
if missing or foreign or not plugin or not is_executable:
    sys.exit(f"{path}: missing {missing}, too much {foreign}, plugin {plugin}, executable {is_executable}")
print(f"{path}: {len(names)} files")
