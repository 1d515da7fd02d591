"""Any process of a run is killed at random moments: the run ends with the weights of one that nobody disturbs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mpi.started import PATIENCE, ended, opstage, start
from tests.mpi.test_launch import COMMAND, children, weights

RUN = ("train", "mlp", "--mesh", "data=2", "--batch-size", "64")
KEPT = ("--run.log_every", "1", "--run.checkpoint_every", "1", "--run.plot", "false")


def lines_of(run: Path) -> int:
    """How many steps and epochs a run has told of."""
    with suppress(OSError):
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def disturb(process: subprocess.Popen[str], run: Path, rng: random.Random) -> bool:
    """Kill a process of a run, or its mpiexec: before the run has begun, or some steps later. False if it has ended."""
    early = rng.random() < 0.15
    moment = rng.uniform(0.0, 1.5) if early else rng.uniform(0.0, 0.05)
    before, more = lines_of(run), rng.randint(1, 4)
    until = time.monotonic() + PATIENCE
    while not early and lines_of(run) < before + more:
        if process.poll() is not None:
            return False
        assert time.monotonic() < until, "the run stands still"
    since = time.monotonic()
    while time.monotonic() < since + moment:
        if process.poll() is not None:
            return False
    victims = children(process.pid)
    if not victims:
        return False
    with suppress(ProcessLookupError):
        os.kill(rng.choice(victims), signal.SIGKILL)
    return True


def disturbed(run: Path, epochs: int, kills: int, seed: int) -> tuple[int, str]:
    """A run of which so many processes are killed, started again by the launcher, and by hand where that gives up: how
    many were, and what was said."""
    rng, done, said = random.Random(seed), 0, ""
    for _ in range(2 * kills + 2):
        again = (run / "config.toml").exists()
        words = ("train", "--resume", str(run)) if again else (*RUN, "--epochs", str(epochs), *KEPT, "--out", str(run))
        process = start("env", "OPSTAGE_TIMEOUT=10", *COMMAND, "launch", "-n", "2", "--restarts", "2", *words)
        while done < kills and process.poll() is None:
            before = children(process.pid)
            done += disturb(process, run, rng)
            until = time.monotonic() + PATIENCE
            while process.poll() is None and set(before) & set(children(process.pid)):
                assert time.monotonic() < until, "nobody hears of the one that was killed"
        outcome = ended(process)
        said += outcome.said
        if outcome.code == 0:
            return done, said
    raise AssertionError(said)


@pytest.mark.parametrize("epochs, kills, seed", [(16, 4, 1), pytest.param(80, 40, 2, marks=pytest.mark.slow)])
def test_a_run_ends_with_the_weights_of_one_that_nobody_disturbs(
    tmp_path: Path, epochs: int, kills: int, seed: int
) -> None:
    alone, run = tmp_path / "alone", tmp_path / "run"
    opstage(*RUN, "--epochs", str(epochs), "--out", str(alone)).well()
    killed, said = disturbed(run, epochs, kills, seed)
    assert killed == kills, f"the run has ended after {killed} kills: {said}"
    assert weights(run) == weights(alone)
    assert said.count("Traceback") == 0, said
    left = sorted(path.suffix for path in (run / "checkpoint").iterdir())
    assert left == [".json", ".safetensors"]  # nothing half-written stays


def test_a_run_whose_processes_have_all_died_has_not_succeeded(tmp_path: Path) -> None:
    """Open MPI's mpiexec says 0 of them."""
    run = tmp_path / "run"
    process = start(*COMMAND, "launch", "-n", "2", *RUN, "--epochs", "9", *KEPT, "--out", str(run))
    until = time.monotonic() + PATIENCE
    while process.poll() is None and lines_of(run) < 2:
        assert time.monotonic() < until
    victims = children(process.pid)[1:]
    for victim in victims:
        os.kill(victim, signal.SIGSTOP)  # so that none of them lives to tell of another
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    done = ended(process)
    assert done.code == 137, done.said
    assert "the processes of this run have died" in done.said
