"""Where the program is."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Iterator

NAME = "vllm-vcr"


class BinaryNotFound(FileNotFoundError):
    """The program is in none of the places where an installation puts it."""


def binary() -> Path:
    """Returns the path of the program: that of the variable ``VLLM_VCR_BINARY``, else what was installed with this package, else
    what ``PATH`` has."""
    named = os.environ.get("VLLM_VCR_BINARY")
    if named:
        if not os.access(named, os.X_OK):
            raise BinaryNotFound(f"VLLM_VCR_BINARY is {named}, which is no program")
        return Path(named)
    places = list(_places())
    found = next((place for place in places if os.access(place, os.X_OK)), None)
    on_path = shutil.which(NAME)
    if found is None and on_path is None:
        looked = ", ".join(str(place.parent) for place in places)
        raise BinaryNotFound(f"{NAME} is not in {looked}, nor on PATH: pip install {NAME}, or set VLLM_VCR_BINARY")
    return found or Path(str(on_path))


def _places() -> Iterator[Path]:
    """The folders of scripts: this environment's, the user's, and the one beside a folder of ``pip install --target``."""
    yield Path(sysconfig.get_path("scripts")) / NAME
    yield Path(sys.prefix) / "bin" / NAME
    user = "osx_framework_user" if getattr(sys, "_framework", "") else "posix_user"
    if user in sysconfig.get_scheme_names():
        yield Path(sysconfig.get_path("scripts", user)) / NAME
    yield Path(__file__).resolve().parent.parent / "bin" / NAME
