"""SIGINT while a program is compiled and while it runs: parameters stay whole, and everything can go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import opstage
from opstage import Options
from opstage.ops.trees import flatten
from tests.graph.executor_common import same_arrays
from tests.graph.regression import regression, sample, start


class InterruptAt:
    """SIGINT at the n-th call of a Python function from here on, of one whose file `within` says; 0 only counts."""

    def __init__(self, n: int, within: str = "opstage"):
        self.calls = 0
        self.n = n
        self.within = within

    def __enter__(self) -> InterruptAt:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self.within in frame.f_code.co_filename:
            self.calls += 1
            if self.calls == self.n:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)


def whole(trainer: opstage.ScalarTrainer, before: list[Any], after: list[Any]) -> bool:
    """Whether the trainer stands before or after a step, all of it; True for after."""
    now = flatten(trainer.get_params())[0]
    stepped = trainer.steps_taken == 1
    same_arrays(now, after if stepped else before)
    return stepped


@pytest.mark.parametrize("warm", [False, True], ids=["compiling", "stepping"])
def test_an_interrupt_leaves_parameters_whole_and_the_trainer_fit_for_use(warm: bool) -> None:
    options, batch = Options(backend="compiled", dtype="float64"), sample(5)

    def made() -> opstage.ScalarTrainer:
        trainer = opstage.scalar_trainer(regression, start(), options=options)
        if warm:
            trainer.step(0.1, *batch)
            trainer.set_params(start())
            trainer.steps_taken = 0
        return trainer

    before = flatten(start())[0]
    reference = made()
    with InterruptAt(0) as count:
        reference.step(0.1, *batch)
    after = flatten(reference.get_params())[0]
    ends = set()
    for n in sorted({1 + i * (count.calls - 1) // 40 for i in range(41)}):
        trainer = made()
        try:
            with InterruptAt(n):
                trainer.step(0.1, *batch)
        except KeyboardInterrupt:
            pass
        ends.add(whole(trainer, before, after))
        while trainer.steps_taken < 1:
            trainer.step(0.1, *batch)
        assert whole(trainer, before, after)
    assert ends == {False, True}


COLD = """
import signal, sys
import numpy as np
import opstage
from opstage import Options

def regression(ops, params, x):
    return ops.sum(ops.tanh(x @ params["w"]) * ops.exp(params["b"]))

class InterruptAt:
    def __init__(self, n):
        self.calls, self.n = 0, n
    def __call__(self, frame, event, argument):
        if event == "call" and "native/frontend" in frame.f_code.co_filename:
            self.calls += 1
            if self.calls == self.n:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
start = {"w": np.ones((3, 4)), "b": np.zeros((5, 4))}
options, x = Options(dtype="float64"), np.full((5, 3), 0.1)
eager = opstage.scalar_trainer(regression, start, options=options)
compiled = opstage.scalar_trainer(regression, start, options=options.replace(backend="compiled"))
sys.setprofile(InterruptAt(int(sys.argv[1])))
try:
    compiled.step(0.1, x)
    print("done")
except KeyboardInterrupt:
    print("interrupted")
    assert compiled.steps_taken == 0
    assert all((compiled.get_params()[name] == start[name]).all() for name in start)
    compiled.step(0.1, x)
sys.setprofile(None)
eager.step(0.1, x)
for name in start:
    np.testing.assert_allclose(compiled.get_params()[name], eager.get_params()[name], rtol=1e-12)
"""


@pytest.mark.slow
@pytest.mark.parametrize("call", [1, 20, 60, 150, 400])
def test_an_interrupt_while_machine_code_is_made_leaves_the_process_fit_for_use(call: int, tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(opstage.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", COLD, str(call)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "interrupted\n"
