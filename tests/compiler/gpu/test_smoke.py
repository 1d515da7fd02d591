"""A part of tests/cuda in a process of its own, because numba decides when it is imported whether it simulates CUDA."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT


@pytest.mark.parametrize(
    "tests",
    [
        pytest.param("tests/cuda/test_device.py", id="device"),
        pytest.param("tests/cuda/test_conformance.py -k matmul", id="conformance", marks=pytest.mark.slow),
    ],
)
def test_simulated(tests: str) -> None:
    path, _, chosen = tests.partition(" -k ")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", path]
    command += ["-k", chosen] if chosen else []
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_a_wire_format_is_registered_without_cuda() -> None:
    code = (
        "import sys, opstage; opstage.register_wire_format('float64', lambda array: array.astype('float32'));"
        "print(sorted({'numba', 'numba.cuda', 'numba_cuda'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
