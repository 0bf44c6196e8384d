"""Runs the program: ``python -m vllm_vcr play ...``."""

import os
import sys

from vllm_vcr._binary import binary

program = str(binary())
os.execv(program, [program, *sys.argv[1:]])
