"""The predicted memory of an eager training step against what an allocator counts."""

from __future__ import annotations

import pytest

from opstage import Options, optim
from opstage.models import MODELS, model
from opstage.training.memory import model_memory
from opstage.training.optim import Optimizer
from tests.memory.measured import measured_peak

OPTIMIZERS = {"adamw": optim.adamw(lr=1e-3), "sgd": optim.sgd(lr=1e-3)}


def sizes_of(name: str, batch: int) -> dict[str, int]:
    return {"B": batch, "T": 2 * batch} if name == "gpt" else {"B": batch}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("batch", [4, 33])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_step_takes_what_is_predicted(name: str, batch: int, optimizer: Optimizer) -> None:
    made, sizes = model(name), sizes_of(name, batch)
    predicted = model_memory(made, optimizer).at(**sizes).peak
    assert predicted == pytest.approx(measured_peak(made, sizes, optimizer, Options()), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("options", [Options(), Options(dtype="float64"), Options(fast_kernels=False)], ids=str)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_large_step_takes_what_is_predicted(name: str, options: Options, optimizer: Optimizer) -> None:
    made, sizes = model(name), {"B": 48, "T": 128} if name == "gpt" else {"B": 256}
    predicted = model_memory(made, optimizer, options).at(**sizes).peak
    assert predicted == pytest.approx(measured_peak(made, sizes, optimizer, options), rel=0.05)
