"""The predicted memory of an eager training step against what an allocator counts."""

from __future__ import annotations

import pytest

from opstage import Options, optim
from opstage.models import MODELS, model
from opstage.training.memory import model_memory
from opstage.training.optim import Optimizer
from tests.memory.measured import measured_peak

ADAMW, SGD = optim.adamw(lr=1e-3), optim.sgd(lr=1e-3)
FEW = [(name, ADAMW) for name in sorted(MODELS)] + [("mlp", SGD), ("cnn", SGD)]
ALL = [(name, optimizer) for name in sorted(MODELS) for optimizer in (ADAMW, SGD)]


def label(value: object) -> str:
    """A name for a case."""
    if isinstance(value, Optimizer):
        return value.name
    if isinstance(value, Options):
        return f"{value.dtype}{'' if value.fast_kernels else ', plain'}"
    return str(value)


@pytest.mark.parametrize(("name", "optimizer"), FEW, ids=label)
def test_a_step_takes_what_is_predicted(name: str, optimizer: Optimizer) -> None:
    made, sizes = model(name), {"B": 4, "T": 24} if name == "gpt" else {"B": 20}
    predicted = model_memory(made, optimizer).at(**sizes).peak
    assert predicted == pytest.approx(measured_peak(made, sizes, optimizer, Options()), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("options", [Options(), Options(dtype="float64"), Options(fast_kernels=False)], ids=label)
@pytest.mark.parametrize(("name", "optimizer"), ALL, ids=label)
def test_a_large_step_takes_what_is_predicted(name: str, optimizer: Optimizer, options: Options) -> None:
    made, sizes = model(name), {"B": 48, "T": 128} if name == "gpt" else {"B": 256}
    predicted = model_memory(made, optimizer, options).at(**sizes).peak
    assert predicted == pytest.approx(measured_peak(made, sizes, optimizer, options), rel=0.02)
