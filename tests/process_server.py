"""The server of tests/processes.py: it imports, then forks a child for each request; it ends when its input does."""

from __future__ import annotations

import atexit
import builtins
import gc
import json
import os
import random
import select
import socket
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

IMPORTED = (
    "opstage.cli.main",
    "opstage.cli.train",
    "opstage.cli.check.checks",
    "opstage.cli.check.processes",
    "opstage.runs.run",
    "opstage.training.fit",
    "opstage.optim",
    "opstage.interpreters.eager_cpu",
    "opstage.interpreters.graph.executor",
    "opstage.interpreters.shape_check.check",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
)


def main() -> Callable[[], None] | None:
    """Serve; in a child, what it is to run, and None in the server itself, at its end."""
    for name in IMPORTED:
        __import__(name)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen()
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            _reap()
            if sys.stdin in ready:
                return None
            line, _ = listening.accept()
            with line:
                if threading.active_count() > 1:
                    raise RuntimeError(f"an import has started threads, which a fork loses: {threading.enumerate()}")
                if os.fork() == 0:
                    listening.close()
                    return _attend(line)


def _reap() -> None:
    """Bury those children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _attend(line: socket.socket) -> Callable[[], None]:
    """Start the process that a line asks for and tell the line how it ended; in that process, what it is to run."""
    head, streams, _, _ = socket.recv_fds(line, 8, 3)
    left, parts = int.from_bytes(head, "big"), []
    while left:
        parts.append(line.recv(left))
        left -= len(parts[-1])
    request = json.loads(b"".join(parts))
    child = os.fork()
    if child == 0:
        if request["session"]:
            os.setsid()
            line.sendall(b"%d\n" % os.getpid())
        line.close()
        return _become(request, streams)
    _, status = os.waitpid(child, 0)
    line.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> Callable[[], None]:
    """Take over arguments, folder, environment and streams; what is to be run in the new `__main__`."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()

    first, *rest = request["words"]
    safe = first == "-P"
    if safe:
        first, *rest = rest
    module = types.ModuleType("__main__")
    vars(module).update(__annotations__={}, __builtins__=builtins)
    if first == "-c":
        text, *rest = rest
        file, folder = "<string>", ""
        sys.argv = ["-c", *rest]
    else:
        path = Path(first).absolute()
        text, file, folder = path.read_text(), str(path), str(path.parent)
        vars(module).update(__file__=file, __cached__=None)
        sys.argv = [first, *rest]
    given = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [*([] if safe else [folder]), *given, *[place for place in sys.path[1:] if place not in own]]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.modules["__main__"] = module

    def run() -> None:
        try:
            exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)
        except Exception as error:
            trace = error.__traceback__ and error.__traceback__.tb_next  # begins in the program
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            sys.exit(1)

    return run


def _end(program: Callable[[], None]) -> None:
    """Run the program, and end as Python does: threads, atexit handlers, streams. What is left out takes 50 ms, five
    times a fork: Python's own taking apart of every module. Interrupts end the process as ever."""
    code: Any = 0
    try:
        program()
    except SystemExit as end:
        code = end.code
        if not (code is None or isinstance(code, int)):
            print(code, file=sys.stderr)
            code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            code = 120
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    if (program := main()) is not None:
        _end(program)
