"""Processes that stand still at any moment, or fork, end with the bits of those that nothing disturbs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from contextlib import suppress

import pytest

from tests.mpi.started import SCRIPTS, alone, ended, mpiexec, start
from tests.mpi.started import sys as python
from tests.mpi.test_launch import children

RUNS = ("gpt:compiled:60:data=2:0:60000", "gpt:compiled:60:data=2:2:60000", "mlp:compiled:60:data=2:0:60000")


def running(process: subprocess.Popen[str]) -> list[int]:
    """The processes of a run, without what has started them."""
    found = []
    for pid in children(process.pid):
        with suppress(OSError), open(f"/proc/{pid}/cmdline") as words:
            if words.read().split("\0")[1:3] == ["-m", "tests.mpi.digests"]:
                found.append(pid)
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_a_process_may_stand_still_at_any_moment(seed: int) -> None:
    launcher = (str(SCRIPTS / "mpiexec"), "--oversubscribe", "--bind-to", "none", "-n", "2")
    process = start(*launcher, python.executable, "-m", "tests.mpi.digests", *RUNS)
    draws, pauses = random.Random(seed), 0
    while process.poll() is None:
        one = draws.choice(running(process) or [0])
        with suppress(ProcessLookupError):
            if one:
                os.kill(one, signal.SIGSTOP)
            with suppress(subprocess.TimeoutExpired):
                process.wait(draws.choice((0.0005, 0.002, 0.02)))
            if one:
                os.kill(one, signal.SIGCONT)
                pauses += 1
        with suppress(subprocess.TimeoutExpired):
            process.wait(draws.choice((0.0005, 0.002, 0.02)))
    done = ended(process).well()
    assert pauses > 20
    assert done.digests == alone(*RUNS)


def test_a_fork_that_computes_changes_nothing_of_its_parent() -> None:
    quiet, forking = (mpiexec(2, "tests.mpi.forking", *words) for words in ((), ("fork",)))
    assert quiet.code == forking.code == 0, forking.said
    assert len(set(quiet.said.split("\n")[:2])) == 1
    assert sorted(quiet.said.splitlines()) == sorted(forking.said.splitlines())
