"""The planned memory of a compiled training step against what an allocator counts."""

from __future__ import annotations

import pytest

from opstage import Options
from opstage.models import MODELS, model
from opstage.optim import Optimizer
from opstage.training.memory import model_memory
from tests.memory.measured import measured_peak
from tests.memory.test_eager_step import ADAMW, ALL, SGD, label

COMPILED = Options(backend="compiled")


@pytest.mark.parametrize(("name", "optimizer"), [("mlp", ADAMW), ("pinn", SGD), ("lstm", ADAMW)], ids=label)
def test_a_step_takes_what_is_planned(name: str, optimizer: Optimizer) -> None:
    made, sizes = model(name), {"B": 20}
    predicted = model_memory(made, optimizer, COMPILED).at(**sizes).peak
    assert predicted == pytest.approx(measured_peak(made, sizes, optimizer, COMPILED), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "optimizer"), ALL, ids=label)
def test_a_large_step_takes_what_is_planned(name: str, optimizer: Optimizer) -> None:
    made, sizes = model(name), {"B": 48, "T": 128} if name == "gpt" else {"B": 256}
    predicted = model_memory(made, optimizer, COMPILED).at(**sizes).peak
    assert predicted == pytest.approx(measured_peak(made, sizes, optimizer, COMPILED), rel=0.01)


def test_every_model_is_measured() -> None:
    assert {name for name, _ in ALL} == set(MODELS)
