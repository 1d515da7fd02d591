"""A process of its own for each file of the user's: whatever the file does, it does there, and not for too long."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO

from ...interpreters.shape_check.formats import CheckOutcome, Unusable, from_document
from ...ops.errors import SourceLine
from .child import RESULT, TRACE
from .loading import is_own_file
from .request import Request

GRACE = 10.0
"""Seconds that a process has for its start and its end, beside the time limit of what it checks."""

_PRINTED = 64_000
_ROOT = str(Path(__file__).resolve().parents[3])
_CHILD = """import sys
sys.path.insert(0, sys.argv[2])  # the Opstage that is running here
from opstage.cli.check.child import main
del sys.path[0]
main()"""
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)


def check_all(requests: Sequence[Request]) -> list[CheckOutcome]:
    """The outcomes of all requests in order, as many processes at a time as there are cores."""
    running: set[subprocess.Popen[bytes]] = set()
    with ThreadPoolExecutor(max(1, min(len(requests), os.cpu_count() or 1))) as pool:
        futures = [pool.submit(_check, request, running) for request in requests]
        try:
            return [outcome for future in futures for outcome in future.result()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                _end(process)
            raise


def _check(request: Request, running: set[subprocess.Popen[bytes]]) -> list[CheckOutcome]:
    with tempfile.TemporaryDirectory(prefix="opstage-check-") as name:
        folder = Path(name)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD, name, _ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        running.add(process)
        printed: list[bytes] = []
        assert process.stdin is not None and process.stdout is not None
        reader = threading.Thread(target=_read, args=(process.stdout, printed), daemon=True)
        reader.start()
        late = False
        try:
            process.stdin.write(request.text().encode() + b"\n")
            process.stdin.flush()
            process.wait(request.time_limit + GRACE)
        except BrokenPipeError:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(process)
            running.discard(process)
        reader.join(1.0)
        process.stdin.close()
        text = b"".join(printed).decode(errors="replace")
        outcomes = _result(folder / RESULT)
        if outcomes is None:
            outcomes = [_failure(request, process.returncode, late, _trace(folder / TRACE))]
        first, *rest = outcomes
        return [replace(first, printed=text), *rest]


def _read(stream: IO[bytes], kept: list[bytes]) -> None:
    """Take all that the child prints, so that it never waits, and keep the beginning."""
    size = 0
    while chunk := stream.read1(65536):  # type: ignore[attr-defined]
        if size < _PRINTED:
            kept.append(chunk[: _PRINTED - size])
            size += len(chunk)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def _result(path: Path) -> list[CheckOutcome] | None:
    try:
        return [from_document(document) for document in json.loads(path.read_text())] or None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _failure(request: Request, code: int, late: bool, trace: str) -> CheckOutcome:
    """Why there is no result."""
    where = _place(trace, request)
    if late or trace.startswith("Timeout"):
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


def _trace(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _place(trace: str, request: Request) -> SourceLine | None:
    """The innermost line of the user's in a dump of all threads."""
    file = None if request.file is None else Path(request.file).absolute()
    for name, line in _FRAME.findall(trace):
        if is_own_file(name, file):
            return SourceLine(name, int(line))
    return None
