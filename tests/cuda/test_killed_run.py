"""`opstage train --device cuda`, killed after a checkpoint and resumed: to the bit the run that was left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from opstage.training import checkpoint
from tests.cli.test_killed_run import kill_after, metrics, start
from tests.training.same import run_bits

EPOCHS = 4
SIZES = ("--model.inputs", "[1, 2, 3]", "--model.hidden", "[4]", "--model.classes", "2")
SAVING = ("--run.checkpoint_every", "1", "--run.log_every", "1", "--run.plot", "false")


def test_a_killed_run_ends_as_a_whole_one(tmp_path: Path) -> None:
    """The moments of the optimizer and the draws of dropout, which are on the device, go on too."""
    data = tmp_path / "few.npz"
    np.savez(data, x=np.random.default_rng(0).standard_normal((20, 1, 2, 3)), y=np.arange(20) % 2)
    words = ("mlp", *SIZES, *SAVING, "--device", "cuda", "--data", str(data), "--batch-size", "8")
    whole, run = ([*words, "--epochs", str(EPOCHS), "--out", str(tmp_path / name)] for name in ("whole", "run"))
    uninterrupted = start(*whole)
    kill_after(start(*run), 2)
    assert checkpoint.exists(tmp_path / "run" / "checkpoint")
    resumed = start("--resume", str(tmp_path / "run"))
    for process in (uninterrupted, resumed):
        said, _ = process.communicate()
        assert process.returncode == 0, said
    found, expected = (checkpoint.load(tmp_path / name / "checkpoint") for name in ("run", "whole"))
    assert run_bits(found) == run_bits(expected)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert len(found.position.results) == EPOCHS
