"""A separate process for each user file, which isolates the effects of the file and limits its time."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, final

from ...forks import usable_cores
from ...interpreters.shape_check.formats import CheckOutcome, Unusable, from_document
from ...loading import is_own_file
from ...ops.errors import SourceLine
from .cache import CHUNK, Cache, Printed
from .child import READ, RESULT, TRACE
from .request import GRACE, Request
from .worker import CAN_FORK

_MOST = 16  # workers, each of which imports Opstage
_FAREWELL = 2.0  # seconds for a worker to end its child
_ROOT = str(Path(__file__).resolve().parents[3])
_PROCESS = """import sys
sys.path.insert(0, sys.argv[2])  # the Opstage that is running here
from opstage.cli.check.{module} import main
del sys.path[0]
main()"""
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
    count = max(1, min(len(requests), usable_cores(), _MOST))
    workers: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    made = [Worker() for _ in range(count)] if CAN_FORK else []
    running: set[subprocess.Popen[bytes]] = set()
    for worker in made:
        workers.put(worker)

    def check(request: Request) -> list[CheckOutcome]:
        if not CAN_FORK:
            return _check(request, running, cache)
        worker = workers.get()
        try:
            return worker.check(request, cache)
        finally:
            workers.put(worker)

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(check, request) for request in requests]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                _end(process)
            raise
        finally:
            for worker in made:
                worker.end()


@final
class Worker:
    """A process that forks a child for each file, see `worker.py`. It is started on first use, and again after a
    crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._child: int | None = None
        self._ended = False

    def check(self, request: Request, cache: Cache) -> list[CheckOutcome]:
        """Return the outcomes for one file."""
        with tempfile.TemporaryDirectory(prefix="opstage-check-") as name:
            folder = Path(name)
            report = self._ask(json.dumps({"folder": name, "request": request.text()}), request)
            self._child = None
            outcomes = _result(folder / RESULT)
            if outcomes is None:
                outcomes = [_failure(request, report["code"], report["late"], _trace(folder / TRACE))]
            return _kept(request, outcomes, report["printed"], folder, cache)

    def end(self) -> None:
        """End the worker: when its standard input closes, it ends its child and itself."""
        self._ended = True
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_FAREWELL)
        if self._child is not None:  # the child outlives a worker that was killed
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, signal.SIGKILL)
        _end(process)

    def _ask(self, task: str, request: Request) -> dict[str, Any]:
        """Return the worker's report on the child, or a report on the worker if that ends first."""
        if self._process is None and not self._ended:
            self._process = _start("worker", "", subprocess.PIPE, subprocess.DEVNULL)
        process = self._process
        if process is None:
            return {"code": -int(signal.SIGKILL), "late": False, "printed": ""}
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(task.encode() + b"\n")
            process.stdin.flush()
            self._child = int(process.stdout.readline())
            report: dict[str, Any] = json.loads(process.stdout.readline())
            return report
        except (OSError, ValueError):
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            if not self._ended:
                self.end()
                self._ended = False
            code = process.returncode if process.returncode is not None else -int(signal.SIGKILL)
            return {"code": code, "late": False, "printed": ""}


def _start(module: str, folder: str, output: int, errors: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _PROCESS.format(module=module), folder, _ROOT],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )


def _check(request: Request, running: set[subprocess.Popen[bytes]], cache: Cache) -> list[CheckOutcome]:
    """Return the outcomes for one file from a process started for it, on systems without workers."""
    with tempfile.TemporaryDirectory(prefix="opstage-check-") as name:
        folder = Path(name)
        process = _start("child", name, subprocess.PIPE, subprocess.STDOUT)
        running.add(process)
        printed = Printed()
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
        outcomes = _result(folder / RESULT)
        if outcomes is None:
            outcomes = [_failure(request, process.returncode, late, _trace(folder / TRACE))]
        return _kept(request, outcomes, printed.text, folder, cache)


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


def _read(stream: IO[bytes], printed: Printed) -> None:
    """Read all output of the child, in a thread, since not every system can wait for a pipe and a process at once."""
    while chunk := stream.read1(CHUNK):  # type: ignore[attr-defined]
        printed.take(chunk)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything that it started."""
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
    """Explain why there is no result."""
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
    """Return the innermost line of the user's code in a stack dump of all threads."""
    file = None if request.file is None else Path(request.file).absolute()
    for name, line in _FRAME.findall(trace):
        if is_own_file(name, file):
            return SourceLine(name, int(line))
    return None
