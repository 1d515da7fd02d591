"""A run that is stopped and taken up again ends as one that never stopped, bit for bit."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opstage.files import WriteError
from opstage.training.checkpoint import Snapshot, load
from tests.training import resume_program as program
from tests.training.same import run_bits
from tests.training.test_checkpoint_failures import TestDisk, no_space

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """The end of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    program.run(folder)
    return load(folder)


def stop_at(step: int, stop: Callable[[], None] = lambda: signal.raise_signal(signal.SIGINT)) -> Callable[[], None]:
    """At the `step`-th boundary a Ctrl-C comes, or whatever `stop` does."""
    passed = itertools.count(1)
    return lambda: stop() if next(passed) == step else None


def test_the_run_is_what_it_should_be(whole: Snapshot) -> None:
    assert whole.trainer.steps_taken == program.STEPS
    assert (whole.position.epoch, whole.position.batch, len(whole.position.results)) == (3, 0, 3)
    assert [result.samples for result in whole.position.results] == [program.ROWS] * 3
    assert whole.trainer.state["running"].any()
    losses = [result.train_loss for result in whole.position.results]
    assert losses[2] < losses[0]


@pytest.mark.parametrize("stops", [range(1, 4), range(7, 8), [6, 8, 1, 2], [5] * 4])
def test_interrupted_runs(whole: Snapshot, tmp_path: Path, stops: list[int]) -> None:
    """The interrupt comes in the middle of a boundary, is put off until it is done, and the run is saved."""
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            program.run(tmp_path, before=stop_at(stop))
    results = program.run(tmp_path)
    assert run_bits(load(tmp_path)) == run_bits(whole)
    assert [r.train_loss for r in results] == [r.train_loss for r in whole.position.results]


def test_an_interrupt_between_boundaries_is_saved_with_what_belongs_together(
    whole: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of an evaluation, where no step is going on, it is raised at once."""
    evaluate = program.ScalarTrainer.evaluate
    calls = 0

    def interrupted(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            signal.raise_signal(signal.SIGINT)
        return evaluate(self, *args)

    monkeypatch.setattr(program.ScalarTrainer, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program.run(tmp_path)
    position = load(tmp_path).position
    assert (position.epoch, position.batch, len(position.results)) == (1, 6, 1)
    program.run(tmp_path)
    assert run_bits(load(tmp_path)) == run_bits(whole)


def test_a_full_disk_ends_the_run_and_the_last_checkpoint_stands(whole: Snapshot, tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="No space left on device"):
        program.run(tmp_path, disk=TestDisk(150, no_space, half=False))
    assert 0 < load(tmp_path).trainer.steps_taken < program.STEPS
    program.run(tmp_path)
    assert run_bits(load(tmp_path)) == run_bits(whole)


def test_a_finished_run_has_nothing_left_to_do(whole: Snapshot, tmp_path: Path) -> None:
    program.run(tmp_path)
    results = program.run(tmp_path, disk=TestDisk(1, no_space))
    assert len(results) == program.EPOCHS
    assert run_bits(load(tmp_path)) == run_bits(whole)


def killed(folder: Path, moment: str) -> bool:
    """Run the program in a process of its own; whether it was killed, as it must be unless it came to its end."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.resume_program", str(folder), moment],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def test_a_process_killed_between_steps_and_in_the_middle_of_a_save(whole: Snapshot, tmp_path: Path) -> None:
    assert killed(tmp_path, "step:9")
    assert (load(tmp_path).position.epoch, load(tmp_path).position.batch) == (1, 1)
    assert killed(tmp_path, "disk:40")
    assert not killed(tmp_path, "never")
    assert run_bits(load(tmp_path)) == run_bits(whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_process_killed_again_and_again(whole: Snapshot, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    kills = 0
    while killed(tmp_path, f"step:{draw.randint(1, 9)}" if draw.random() < 0.5 else f"disk:{draw.randint(1, 160)}"):
        kills += 1
    assert kills > 0
    assert run_bits(load(tmp_path)) == run_bits(whole)
