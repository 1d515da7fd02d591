"""A separate process for each user file, which isolates the effects of the file and limits its time.

A server that has imported Opstage forks the processes, see `multiprocessing`. Systems without fork start each of them.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

from ...interpreters.shape_check.formats.document import CheckOutcome, Unusable, from_document, to_document
from ...ops.errors import SourceLine
from ...source_files import is_own_file
from ...threads import usable_cores
from .cache import Cache
from .request import GRACE, Request

# The child, which checks a file: it receives a request and writes the outcomes to files in a folder -------------------

RESULT = "outcomes.json"
TRACE = "trace.txt"
READ = "read.json"
PRINTED = "printed.txt"

MOST = 64_000
"""How many bytes of the output of a file are shown."""


def check_alone(folder: Path, request: Request, environ: Mapping[str, str]) -> None:
    """Check one file, in a process started for it, with the environment of the command; what it prints goes to a
    file."""
    multiprocessing.set_start_method(None, force=True)  # a user's file may choose one
    os.environ.clear()
    os.environ.update(environ)
    if CAN_FORK and (child := os.fork()):  # a file that ends its parent must not end the server
        os._exit(_wait_for(child))
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    _follow_parent()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(folder / PRINTED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, stream in enumerate((sys.stdout, sys.stderr), start=1):
        os.dup2(output, number)
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]  # so that nothing is lost with the process
    try:
        run(folder, request)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _wait_for(child: int) -> int:
    """Wait for the process of a file, or end it on SIGTERM; end what it leaves behind, and as it has ended."""

    def end_group(*_: object) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)

    with suppress(OSError):
        os.setpgid(child, child)  # in both processes, since either may run first
    signal.signal(signal.SIGTERM, end_group)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end_group()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def run(folder: Path, request: Request) -> NoReturn:
    """Check a file and end the process; the folder then has the outcomes, or on a crash the stack trace."""
    _limit_memory(request.memory_limit)
    with open(folder / TRACE, "w") as trace:
        from ...source_files import import_from_text
        from .cache import Witness
        from .checks import check_user

        witness = Witness(folder)
        import_from_text()
        faulthandler.enable(trace)
        faulthandler.dump_traceback_later(request.time_limit, exit=True, file=trace)
        documents = [to_document(outcome) for outcome in check_user(request)]
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.flush()
        sys.stderr.flush()
        (folder / READ).write_text(json.dumps(witness.read()))
        result = json.dumps(documents)
        (folder / f"{RESULT}.new").write_text(result)
        os.replace(folder / f"{RESULT}.new", folder / RESULT)
    os._exit(0)  # threads started by the user's file do not keep the process alive


def _follow_parent() -> None:
    """End when the command ends, with everything that the file has started."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        if hasattr(os, "killpg"):
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _limit_memory(limit: int | None) -> None:
    """Make an allocation beyond `limit` bytes raise MemoryError, if the system supports such a limit."""
    if limit is None:
        return
    try:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if most < 0 else min(limit, most), most))
    except (ImportError, ValueError, OSError):
        return


# The command, which starts the processes ------------------------------------------------------------------------------

CAN_FORK = hasattr(os, "fork") and hasattr(os, "killpg") and sys.platform != "darwin"
"""Whether a server forks the processes; macOS's system libraries do not survive a fork."""

_MOST = 16  # processes at a time
_FAREWELL = 2.0  # seconds in which a process ends by itself
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)


def check_each(requests: Sequence[Request], cache: Cache) -> list[list[CheckOutcome]]:
    """Return the outcomes of each request in order; those not in the cache run in as many processes at a time as there
    are cores."""
    kept = [cache.get(request) for request in requests]
    made = iter(_check_each([request for request, found in zip(requests, kept) if found is None], cache))
    return [found if found is not None else next(made) for found in kept]


def _check_each(requests: Sequence[Request], cache: Cache) -> list[list[CheckOutcome]]:
    if not requests:
        return []
    multiprocessing.set_forkserver_preload([f"{__package__}.preload"])
    running: set[BaseProcess] = set()
    with ThreadPoolExecutor(max(1, min(len(requests), usable_cores(), _MOST))) as pool:
        futures = [pool.submit(_check, request, running, cache) for request in requests]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                _end(process)
            raise


def _check(request: Request, running: set[BaseProcess], cache: Cache) -> list[CheckOutcome]:
    """Return the outcomes for one file from a process started for it."""
    with tempfile.TemporaryDirectory(prefix="opstage-check-") as name:
        folder = Path(name)
        code = _run(request, folder, running)
        outcomes = _result(folder / RESULT)
        if outcomes is None:
            outcomes = [_failure(request, code, _text(folder / TRACE))]
        return _kept(request, outcomes, _text(folder / PRINTED)[:MOST], folder, cache)


def _run(request: Request, folder: Path, running: set[BaseProcess]) -> int | None:
    """Run a check to its end, or to its time limit; return the exit code of its process, None if it was ended."""
    context: Any = multiprocessing.get_context("forkserver" if CAN_FORK else "spawn")
    process: BaseProcess = context.Process(target=check_alone, args=(folder, request, {**os.environ}))
    process.start()
    running.add(process)
    deadline = time.monotonic() + request.time_limit + GRACE
    while process.exitcode is None and time.monotonic() < deadline:
        process.join(0.1)
        _bound_output(folder / PRINTED)
    code = process.exitcode
    _end(process)
    running.discard(process)
    return code


def _bound_output(path: Path) -> None:
    """Keep the start of an output that would fill the disk."""
    with suppress(OSError):
        if path.stat().st_size > 100 * MOST:
            os.truncate(path, MOST)


def _kept(
    request: Request, outcomes: list[CheckOutcome], printed: str, folder: Path, cache: Cache
) -> list[CheckOutcome]:
    """Return the outcomes with the file's output, and cache them if possible."""
    first, *rest = outcomes
    outcomes = [replace(first, printed=printed), *rest]
    try:
        read = json.loads((folder / READ).read_text())
    except (OSError, ValueError):
        read = None
    cache.keep(request, outcomes, read)
    return outcomes


def _end(process: BaseProcess) -> None:
    """End the process and everything that it started."""
    process.terminate()
    process.join(_FAREWELL)
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg") and process.pid is not None:
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _result(path: Path) -> list[CheckOutcome] | None:
    try:
        return [from_document(document) for document in json.loads(path.read_text())] or None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _failure(request: Request, code: int | None, trace: str) -> CheckOutcome:
    """Explain why a process has no result; `code` is None where it had to be ended."""
    where = _place(trace, request)
    if code is None or trace.startswith("Timeout"):
        reason = f"was not done after {request.time_limit:g} s (--time-limit gives it longer)"
    elif code < 0:
        reason = f"its process was killed by {_signal(-code)}"
        if -code == getattr(signal, "SIGKILL", 9):
            reason += ", probably out of memory"
    else:
        reason = f"it ended its process with exit code {code} before the check was done"
    return CheckOutcome(request.label, unusable=Unusable(reason, where))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _place(trace: str, request: Request) -> SourceLine | None:
    """Return the innermost line of the user's code in a stack dump of all threads."""
    file = None if request.file is None else Path(request.file).absolute()
    for name, line in _FRAME.findall(trace):
        if is_own_file(name, file):
            return SourceLine(name, int(line))
    return None
