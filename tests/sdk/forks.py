"""A `python` that has imported an SDK before it starts: what it runs is forked from a process that did so once.

`forking(TEXT)` gives the path of a program that takes what `python` takes: a file, `-c TEXT` or `-m MODULE`, and arguments. It is
there as long as the process that asked for it. What it runs has a process of its own, in which TEXT has been run, with the folder,
variables and standard streams of the program, whose exit code is that of the process. Imports take most of the time of a short test.
"""

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as fork:
    fork.connect({address!r})
    socket.send_fds(fork, [b"-"], [0, 1, 2])
    fork.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode() + b"\\n")
    sys.exit(fork.recv(1)[0])
"""
# Folders and processes that are there until this process ends.
KEPT = []


def forking(first, python=sys.executable):
    """The path of the program; `python` is the interpreter that runs `first`, and what comes then."""
    folder = tempfile.TemporaryDirectory(prefix="forks-")
    address, program = f"{folder.name}/socket", Path(folder.name) / "python"
    program.write_text(PROGRAM.format(python=python, address=address))
    program.chmod(0o755)
    command = [python, __file__, address, first]
    KEPT.extend([folder, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)])
    assert KEPT[-1].stdout.readline(), f"{command} does not start"
    return str(program)


def serve(address, first):
    """Returns in each process that is to go on with a program, and when the process that asked for it has ended."""
    exec(first, {})
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            with listener.accept()[0] as caller:
                if os.fork() == 0:
                    return received(caller)


def received(caller):
    """What a caller wants to be run, in a process that has its streams, folder and variables."""
    _, streams, _, _ = socket.recv_fds(caller, 1, 3)
    arguments, folder, variables = json.loads(caller.makefile().readline())
    ends, lasts = os.pipe()
    child = os.fork()
    for number, stream in enumerate(streams):
        if child == 0:
            os.dup2(stream, number)
        os.close(stream)
    if child:
        os.close(lasts)
        watched(child, ends, caller)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    return arguments


def watched(child, ends, caller):
    """Tells the caller the exit code of the child, which does not outlive it."""
    if ends not in select.select([ends, caller], [], [])[0]:
        os.kill(child, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        caller.send(bytes([code % 256]))
    os._exit(0)


def run(arguments):
    sys.executable, *arguments = arguments
    if arguments[0] == "-u":
        del arguments[0]
    if arguments[0] in ("-c", "-m"):
        kind, what, *more = arguments
        sys.path[0], sys.argv = "", [kind, *more]
        if kind == "-c":
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = os.path.dirname(arguments[0]), arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    wanted = serve(*sys.argv[1:])
    if wanted:
        run(wanted)
