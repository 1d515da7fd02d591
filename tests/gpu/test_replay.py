"""Compiled steps, which are replayed as CUDA graphs, are to the bit those whose calls are made one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage import Options, optim
from opstage.compiler.gpu.launches import Script
from opstage.compiler.gpu.probe import find_device
from opstage.ops.trees import flatten
from tests.cuda.small_models import CONFIGS, batch, trainer

STEPS = 6


def trained(name: str) -> list[Any]:
    """The losses of some steps, each on another batch, and what they left."""
    made, optimizer = trainer(name, Options(device="cuda", backend="compiled", seed=1)), optim.adamw(lr=0.01)
    state, losses = made.init_optim(optimizer), []
    for step in range(STEPS):
        result = made.advance(optimizer, state, *[np.roll(array, step, axis=0) for array in batch(name)])
        losses.append(np.asarray(result.loss))
    return [*losses, *flatten(made.get_params())[0], *flatten(made.state)[0]]


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_replayed_steps_are_those_asked_for_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = find_device()
    graphs: list[Any] = []
    replay = device.replay
    monkeypatch.setattr(device, "replay", lambda graph: [graphs.append(graph), replay(graph)])
    replayed = trained(name)
    assert len(graphs) >= STEPS - 1
    monkeypatch.setattr(type(device), "script", lambda device, calls, graphs: Script(device, calls))
    graphs.clear()
    for a, b in zip(replayed, trained(name), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not graphs
