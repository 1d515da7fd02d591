"""What `make gpu` runs, mostly beside PyTorch, can be run: a little of it, the simulator in place of the GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT

CHOSEN = {
    "test_replay.py": "pinn",
    "test_pytorch_ops.py": "cast-by or (sigmoid and not grad and not 67)",
    "test_pytorch_training.py": "test_clipping and by_value",
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_rehearsal(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/gpu/{name}", "-k", CHOSEN[name]],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "OPSTAGE_GPU_REHEARSAL": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    last = done.stdout.strip().splitlines()[-1:]
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in str(last) and "skipped" not in str(last), last
