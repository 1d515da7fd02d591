"""How many Python calls a training step costs, and how many functions stand before its program runs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from opstage import Options, optim, scalar_trainer

BEFORE = 25
"""Functions that a step may pass before `interpreter.execute`."""


def two_layers(ops: Any, params: Any, x: Any, y: Any) -> Any:
    hidden = ops.relu(ops.linear(params["w1"], params["b1"], x))
    return ops.cross_entropy(ops.linear(params["w2"], params["b2"], hidden), y)


@pytest.mark.parametrize(("backend", "most"), [("compiled", 100), ("eager", 400)])
def test_a_step_of_two_layers_costs_few_python_calls(backend: Any, most: int) -> None:
    rng = np.random.default_rng(0)
    shapes = {"w1": (16, 8), "b1": (16,), "w2": (4, 16), "b2": (4,)}
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    trainer = scalar_trainer(two_layers, params, options=Options(backend=backend))
    optimizer = optim.adam(lr=1e-3)
    state = trainer.init_optim(optimizer)
    batch = rng.normal(size=(8, 8)).astype(np.float32), rng.integers(0, 4, 8)
    for _ in range(6):  # what is compiled or cached, is after these
        trainer.advance(optimizer, state, *batch)
    calls: list[Any] = []

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            calls.append(frame.f_code)

    sys.setprofile(note)
    trainer.advance(optimizer, state, *batch)
    sys.setprofile(None)
    execute = type(trainer._state.interpreter).execute.__code__
    before = set(calls[: calls.index(execute)])
    assert len(before) <= BEFORE, [code.co_qualname for code in before]
    assert len(calls) <= most
