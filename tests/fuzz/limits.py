"""Cases run in a forked process: each with at most `SECONDS` of processor time and `MEMORY` bytes more than before."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import resource
import select
import signal
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opstage.ops.errors import OpstageError

SECONDS = 2.0
MEMORY = 200 * 2**20
SLOW = float(os.environ.get("OPSTAGE_FUZZ_SLOW", "0"))
LONGEST_MESSAGE = 6000
STUCK = 30.0
"""Seconds without a step to the next case, after which the process is ended: code outside Python held on to it."""


class Wrong(NamedTuple):
    """A case that did not end as it should: its number, what it was instead, and where that was raised."""

    case: int
    what: str
    where: str


class Mismatch(AssertionError):
    """What was read is not what an independent reader reads."""


class OutOfTime(BaseException):
    """The case took longer than it may."""


Case = Callable[[int], "tuple[Callable[[], Any], int, str]"]
"""Of a number: what to run, the size of its file, and what an error's message begins with."""


def run_cases(case: Case, numbers: Sequence[int]) -> list[Wrong]:
    """Run every case in forked processes, of which each goes on where the one before it was lost."""
    wrong: list[Wrong] = []
    at = 0
    while at < len(numbers):
        done, found, ended = _in_a_fork(case, numbers[at:])
        wrong += found
        at += done
        if ended is not None:
            wrong.append(Wrong(numbers[at], ended, ""))
            at += 1
    return wrong


def _in_a_fork(case: Case, numbers: Sequence[int]) -> tuple[int, list[Wrong], str | None]:
    """(how many were done, those of them that went wrong, how the process was lost at the next one or None)."""
    progress = mmap.mmap(-1, 8)
    receiver, sender = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(receiver)
            _work(case, numbers, progress, sender)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(sender)
    found, ended = b"", None
    before = -1
    with open(receiver, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], STUCK)
            if ready:
                data = pipe.read(1 << 16)
                if not data:
                    break
                found += data
            else:
                (now,) = struct.unpack("q", progress[:8])
                if now == before:
                    os.kill(child, signal.SIGKILL)
                    ended = f"hung for {STUCK:g} s"
                before = now
    _, status = os.waitpid(child, 0)
    (done,) = struct.unpack("q", progress[:8])
    if ended is None and status != 0:
        ended = f"ended the process, status {status}"
    return done, [Wrong(*json.loads(line)) for line in found.splitlines()], ended


def _work(case: Case, numbers: Sequence[int], progress: mmap.mmap, sender: int) -> None:
    signal.signal(signal.SIGPROF, _out_of_time)
    for position, number in enumerate(numbers):
        progress[:8] = struct.pack("q", position)
        prepared = case(number)
        since = time.process_time()
        verdict = judge(*prepared)
        if SLOW and verdict is None and time.process_time() - since > SLOW:
            verdict = f"slow: {time.process_time() - since:.1f} s", ""
        if verdict is not None:
            os.write(sender, json.dumps([number, *verdict]).encode() + b"\n")
    progress[:8] = struct.pack("q", len(numbers))


def _out_of_time(*_: object) -> None:
    raise OutOfTime


def judge(read: Callable[[], Any], size: int, start: str) -> tuple[str, str] | None:
    """(what went wrong, where), or None: the reader came back in time, or raised one of Opstage's errors that says so.

    A message begins with `start`, is not longer than `LONGEST_MESSAGE`, and can be shown on a terminal as it is.
    """
    try:
        with limited(size), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            read()
        warned = [w for w in warned if not issubclass(w.category, (SyntaxWarning, DeprecationWarning))]
        warned = [w for w in warned if w.category is not UserWarning]  # which tell the user something
        if warned:
            return f"warned: {warned[0].category.__name__}: {warned[0].message}"[:300], ""
        return None
    except OpstageError as error:
        return _judge_message(str(error), start, error)
    except Mismatch as error:
        return f"differs: {error}"[:300], ""
    except BaseException as error:
        return f"{type(error).__name__}: {_brief(error)}", _where(error)


@contextlib.contextmanager
def limited(size: int) -> Iterator[None]:
    """No more processor time than `SECONDS`, and no more memory than `MEMORY` and `size` above what is in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = _address_space()
    if in_use is not None:
        resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY + size, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int | None:
    """The bytes of this process's address space; None where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    except OSError:
        return None


def _judge_message(message: str, start: str, error: BaseException) -> tuple[str, str] | None:
    if not message.startswith(start):
        return f"says not where: {message[:200]!r}", _where(error)
    if len(message) > LONGEST_MESSAGE:
        return f"says too much: {len(message):,} characters: {message[:200]!r}", _where(error)
    shown = message[len(start) :]
    unprintable = next((c for c in shown if not (c.isprintable() or c in "\n\t")), None)
    if unprintable is not None:
        return f"says what no terminal should be sent: {unprintable!a} in {message[:200]!a}", _where(error)
    return None


def _brief(error: BaseException) -> str:
    with contextlib.suppress(Exception):
        return ascii(str(error))[:160]
    return "(its message cannot be made)"


def _where(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/tests/fuzz/" not in f.filename]
    ours = [f for f in frames if "/opstage/" in f.filename] or frames
    return " < ".join(f"{f.filename.rpartition('/opstage/')[2]}:{f.lineno}" for f in reversed(ours[-3:]))
