"""Makes crates/play/src/rare/pages/openapi*.json.gz from an installed vLLM 0.32.0: run it with that installation's Python.

The pages are those of a server with everything on (development mode, tokenizer info), without and with scale-out, because
the framework names one schema differently with it. Descriptions are prose of vLLM and are left out, except the ones of
responses, which are HTTP's own phrases and which the format requires. `play` leaves out the paths that a server of
given flags does not have, and the schemas that nothing refers to then.
"""

import gzip
import json
import os
import pathlib

os.environ.update(VLLM_TARGET_DEVICE="cpu", VLLM_SERVER_DEV_MODE="1")

from starlette.testclient import TestClient  # noqa: E402
from vllm.entrypoints.launchers.app import build_app  # noqa: E402
from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402

TARGET = pathlib.Path(__file__).parents[2] / "crates/play/src/rare/pages"
# Keys of these are names, not keywords.
NAMED = {"properties", "schemas", "paths", "patternProperties"}


def without_prose(value, names=False):
    if isinstance(value, list):
        return [without_prose(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: item for key, item in value.items() if names or key != "description" or not isinstance(item, str)}
    return {
        key: {status: told(response) for status, response in item.items()}
        if key == "responses" and not names
        else without_prose(item, not names and key in NAMED)
        for key, item in kept.items()
    }


def told(response):
    return {key: item if key == "description" else without_prose(item) for key, item in response.items()}


def page(flags):
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(["--enable-tokenizer-info-endpoint", *flags])
    return TestClient(build_app(arguments, ("generate",))).get("/openapi.json").json()


for name, flags in [("openapi", []), ("openapi-scale-out", ["--enable-scale-out"])]:
    text = json.dumps(without_prose(page(flags)), ensure_ascii=False, separators=(",", ":"))
    target = TARGET / f"{name}.json.gz"
    target.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(target.name, len(text), target.stat().st_size)
