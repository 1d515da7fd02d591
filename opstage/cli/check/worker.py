"""A process that has imported Opstage and forks a child for each file, so that a file's effects stay in its child.

It reads tasks from standard input, one line each: `{"folder": …, "request": …}`. For each it writes the child's pid to
standard output, and a report when the child has ended. It ends when the other ends of its pipes close.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn

from .cache import CHUNK, Printed
from .child import run
from .request import GRACE, Request

CAN_FORK = hasattr(os, "fork") and hasattr(os, "killpg") and sys.platform != "darwin"
"""Whether workers are supported; macOS's system libraries do not survive a fork."""


def main() -> None:
    tasks, reports = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    _warm()
    with open(tasks, "rb", buffering=0) as lines:
        while line := _line(lines.fileno()):
            task = json.loads(line)
            report = _serve(Path(task["folder"]), Request.read(task["request"]), lines.fileno(), reports, wake)
            os.write(reports, json.dumps(report).encode() + b"\n")
    os._exit(0)


def _warm() -> None:
    """Import and run once what every check needs, so that children inherit it."""
    from ...interpreters.shape_check.formats import CheckOutcome, to_document
    from ...ops import derived  # noqa: F401
    from ...ops.spec import Shapes, read_inputs
    from ...runs import definition, settings  # noqa: F401  # what a model file needs
    from ...training.program_check import check_program
    from .model import check_shipped  # noqa: F401
    from .user import check_user  # noqa: F401

    with contextlib.suppress(Exception):  # only an optimisation
        shapes = Shapes(read_inputs(["x: B 2"]), read_inputs(["w: 2 2"]))
        checked = check_program(lambda ops, params, x: ops.sum(ops.linear(params["w"], None, x)), shapes)
        to_document(CheckOutcome.of(checked.report, "", checked.what))
    gc.collect()
    gc.freeze()  # so that children do not traverse shared objects, which would copy their pages


def _line(source: int) -> bytes:
    """Read the next line; empty at the end."""
    line = bytearray()
    while not line.endswith(b"\n"):
        chunk = os.read(source, 1 << 16)
        if not chunk:
            return b""
        line += chunk
    return bytes(line)


def _serve(folder: Path, request: Request, tasks: int, reports: int, wake: int) -> dict[str, Any]:
    """Check one file in a child; return how it ended and what it printed."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: NumPy's mind no fork, and there are no others
        pid = os.fork()
    if pid == 0:
        _be_child(folder, request, writes, (reads, tasks, reports, wake))
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # in both processes, since either may run first
    os.close(writes)
    os.write(reports, b"%d\n" % pid)
    printed, late, code = Printed(), False, None
    deadline = time.monotonic() + request.time_limit + GRACE
    sources = [reads, tasks, wake]
    while code is None:
        ready = select.select(sources, [], [], max(0.0, deadline - time.monotonic()))[0]
        if tasks in ready:  # no task arrives during another: the parent has closed the pipe
            _end(pid)
            os.waitpid(pid, 0)
            os._exit(1)
        if wake in ready:
            os.read(wake, 4096)
        if reads in ready:
            chunk = os.read(reads, CHUNK)
            if not chunk:
                sources.remove(reads)
            printed.take(chunk)
        late = time.monotonic() >= deadline
        if late:
            _end(pid)
        ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if ended else None
    _end(pid)  # and everything that it started
    os.set_blocking(reads, False)
    with contextlib.suppress(BlockingIOError):
        while not printed.is_full and (chunk := os.read(reads, CHUNK)):
            printed.take(chunk)
    os.close(reads)
    return {"code": code, "late": late, "printed": printed.text}


def _be_child(folder: Path, request: Request, output: int, inherited: tuple[int, ...]) -> NoReturn:
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for number in (output, *inherited):
            os.close(number)
        run(folder, request)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _end(pid: int) -> None:
    """End a child and everything that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
