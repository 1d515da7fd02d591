"""One process fails: the run ends with one error that names it, its host and the collective."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mpi.started import PATIENCE, mpiexec

HOST = socket.gethostname()
TIMEOUT = {"raise": 3.0, "kill": 3.0, "elsewhere": 3.0, "rows": 3.0, "stop": 3.0 + 30.0, "leave": 3.0 + 30.0}
"""Seconds in which it is named at the latest: before the timeout of 3 s, or, where only that tells, some after it."""


def left_behind(word: str) -> list[str]:
    """The processes whose command line has a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in text and "pytest" not in text:
            found.append(text)
    return found


def nothing_stays() -> None:
    """All processes end soon; one that stands still is ended by the launcher, in its own time."""
    until = time.monotonic() + PATIENCE
    while left_behind("tests.mpi.faulty") and time.monotonic() < until:
        pass
    assert left_behind("tests.mpi.faulty") == []


@pytest.mark.parametrize(
    "kind, processes, backend, said",
    [
        ("raise", 2, "eager", "KeyError: 'a file of the data set is gone'"),
        ("raise", 4, "compiled", "KeyError: 'a file of the data set is gone'"),
        ("kill", 2, "eager", f"1 of 2 on {HOST} has died in collective 4, all_reduce over data of (16,) float32"),
        ("kill", 2, "compiled", f"process 1 of 2 on {HOST} has died in collective "),
        ("stop", 2, "eager", f"process 1 of 2 on {HOST} does not answer"),
        ("elsewhere", 2, "eager", f"process 1 of 2 on {HOST} is in another collective: it is in number 4 something"),
        ("rows", 2, "eager", "is in another collective"),
        ("leave", 2, "eager", f"process 1 of 2 on {HOST} does not answer"),
    ],
)
def test_a_failure_is_named(
    kind: str, processes: int, backend: str, said: str, record_property: Callable[[str, object], None]
) -> None:
    done = mpiexec(processes, "tests.mpi.faulty", kind, backend)
    assert done.code != 0 or kind == "kill"  # mpiexec says 0 once a process has died
    assert said in done.said
    assert "done" not in done.said
    assert done.said.count("Traceback") == 1, done.said
    if kind != "raise":
        assert "faulty.py:" in done.said.split("RankError: ")[1].splitlines()[0]
    fails, told = (
        [float(at) for at in re.findall(rf"^{word} at (\S+)$", done.said, re.M)] for word in ("fails", "is told")
    )
    taken = min(told) - fails[0]
    record_property("seconds until it is named", taken)
    print(f"{kind} on {processes} processes, {backend}: named after {1e3 * taken:.0f} ms")
    assert taken < TIMEOUT[kind]
    nothing_stays()


@pytest.mark.parametrize(
    "kind, said",
    [
        ("raise", "KeyError: 'a file of the data set is gone'"),
        ("stop", f"process 1 of 2 on {HOST} does not answer"),
        ("elsewhere", f"process 1 of 2 on {HOST} is in another collective: it is in number 4 something"),
    ],
)
def test_a_failure_is_named_over_mpich(kind: str, said: str) -> None:
    """One that dies is named by no one: MPICH's mpiexec ends the others at once."""
    done = mpiexec(2, "tests.mpi.faulty", kind, "eager", engine="mpich")
    assert done.code != 0
    assert said in done.said
    assert done.said.count("Traceback") == 1, done.said
    nothing_stays()


def test_one_that_dies_before_it_has_come_to_mpi_keeps_nobody_waiting() -> None:
    done = mpiexec(2, "tests.mpi.faulty", "absent", "eager", OPSTAGE_TIMEOUT="3")
    assert "in wait_until_all_processes_have_started" in done.said
    assert "done" not in done.said
    assert left_behind("tests.mpi.faulty") == []
