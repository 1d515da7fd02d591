"""`opstage train --out DIR`, killed without notice at moments nobody chose, and resumed: nothing shows afterwards."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opstage.training import checkpoint
from tests.processes import COMMAND
from tests.training.same import run_bits

EPOCHS = 30
TIMES = {"seconds", "samples_per_second", "time"}


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *COMMAND, "train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )


def new_run(folder: Path) -> list[str]:
    words = f"mlp --model.hidden 64,64 --epochs {EPOCHS} --batch-size 96 --run.checkpoint_every 4 --run.log_every 3"
    return [*words.split(), "--run.plot", "false", "--out", str(folder)]


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def kill_after(process: subprocess.Popen[str], lines: int) -> None:
    """Kill it as soon as it has reported so many epochs: it is somewhere in the next one, or saving the last."""
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += line.startswith("epoch ")
        if seen == lines:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_killed_run_ends_as_a_whole_one(tmp_path: Path, seed: int) -> None:
    whole = start(*new_run(tmp_path / "whole"))
    said, _ = whole.communicate()
    assert whole.returncode == 0, said

    draw = random.Random(seed)
    run = tmp_path / "run"
    kill_after(start(*new_run(run)), draw.randint(1, 8))
    kill_after(start("--resume", str(run)), draw.randint(1, 8))
    last = start("--resume", str(run))
    said, _ = last.communicate()
    assert last.returncode == 0, said

    found, expected = (checkpoint.load(folder / "checkpoint") for folder in (run, tmp_path / "whole"))
    assert run_bits(found) == run_bits(expected)
    assert metrics(run) == metrics(tmp_path / "whole")
    assert len(found.position.results) == EPOCHS
