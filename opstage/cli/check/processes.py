"""A separate process for each user file, which isolates the effects of the file and limits its time.

Workers have imported Opstage and fork a child for each file. Systems without fork start a child for each."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NoReturn, final

from ...interpreters.shape_check.formats.document import CheckOutcome, Unusable, from_document, to_document
from ...ops.errors import SourceLine
from ...source_files import is_own_file
from ...threads import usable_cores
from .cache import CHUNK, Cache, Printed
from .request import GRACE, Request

# The child, which checks a file: it receives a request and writes the outcomes to files in a folder -------------------

RESULT = "outcomes.json"
TRACE = "trace.txt"
READ = "read.json"


def check_alone() -> None:
    """Check one file, in a process started for it."""
    folder = Path(sys.argv[1])
    text = sys.stdin.readline()
    _follow_parent()
    run(folder, Request.read(text))


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
    """End when the parent ends, and give the user's file an empty standard input."""
    lifeline = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)

    def follow() -> None:
        while os.read(lifeline, 64):
            pass
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


# The worker, which forks the children: it reads tasks, {"folder": …, "request": …}, from standard input, a line each --

CAN_FORK = hasattr(os, "fork") and hasattr(os, "killpg") and sys.platform != "darwin"
"""Whether workers are supported; macOS's system libraries do not survive a fork."""


def serve() -> None:
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
    from ...interpreters.shape_check.formats.document import CheckOutcome, to_document
    from ...ops import derived as derived
    from ...ops.spec import Shapes, read_inputs
    from ...runs import settings as settings  # what a model file needs
    from ...training.program_check import check_program
    from . import checks as checks

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
            _end_group(pid)
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
            _end_group(pid)
        ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if ended else None
    _end_group(pid)  # and everything that it started
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


def _end_group(pid: int) -> None:
    """End a child and everything that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


# The command, which starts workers or children ------------------------------------------------------------------------

_MOST = 16  # workers, each of which imports Opstage
_FAREWELL = 2.0  # seconds for a worker to end its child
_ROOT = str(Path(__file__).resolve().parents[3])
_PROCESS = """import sys
sys.path.insert(0, sys.argv[2])  # the Opstage that is running here
from opstage.cli.check.processes import {main}
del sys.path[0]
{main}()"""
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
            self._process = _start("serve", "", subprocess.PIPE, subprocess.DEVNULL)
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


def _start(main: str, folder: str, output: int, errors: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _PROCESS.format(main=main), folder, _ROOT],
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
        process = _start("check_alone", name, subprocess.PIPE, subprocess.STDOUT)
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
