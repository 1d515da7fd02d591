"""The predicted memory of a step on a device, on a machine that has none; tests/cuda holds it to what is given out."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from opstage import Options, Spec, optim
from opstage.models import MODELS, gpt, model
from opstage.ops.errors import ShapeError, UsageError
from opstage.training.memory import StepMemory, model_memory, step_memory
from tests.docs.blocks import ROOT

CUDA = Options(device="cuda")
ADAMW = optim.adamw(lr=1e-3)


def chain(ops: Any, params: Any, x: Any) -> Any:
    """A loss: one layer after the other."""
    for w in params:
        x = ops.tanh(ops.linear(w, None, x))
    return ops.sum(x)


def layers(count: int, options: Options = CUDA) -> StepMemory:
    return step_memory(chain, [Spec((64, 64))] * count, Spec("B 64"), optimizer=ADAMW, options=options)


def test_a_layer_more_takes_an_activation_a_parameter_and_its_moments_more() -> None:
    at, more = layers(4).at(B=1000), layers(5).at(B=1000)
    weight, activation = 4 * 64 * 64, 4 * 1000 * 64
    assert more.parameters - at.parameters == weight
    assert more.optimizer - at.optimizer == 2 * weight
    assert more.activations + more.gradients - at.activations - at.gradients == pytest.approx(activation, rel=0.1)
    assert at.batch == 4 * 1000 * 64 + 3 * 4


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_is_answered(name: str, backend: Any) -> None:
    memory = model_memory(model(name), ADAMW, CUDA.replace(backend=backend))
    sizes = {"B": 2, "T": 8} if name == "gpt" else {"B": 2}
    made = memory.at(**sizes)
    larger = memory.at(**{**sizes, "B": 64})
    assert 3 * made.parameters <= made.peak < larger.peak < larger.needed
    assert made.optimizer == 2 * made.parameters == 2 * larger.parameters


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize(("name", "rest"), [("mlp", {}), ("gpt", {"T": 16})])
def test_the_largest_batch_fits_and_one_more_does_not(name: str, rest: dict[str, int], backend: Any) -> None:
    made = model(name, gpt.Config(depth=1)) if name == "gpt" else model(name)
    memory = model_memory(made, ADAMW, CUDA.replace(backend=backend))
    largest = memory.largest("B", "1GiB", **rest)
    assert memory.at(B=largest, **rest).needed <= 2**30 < memory.at(B=largest + 1, **rest).needed


def test_a_tensor_has_no_more_elements_than_kernels_count() -> None:
    memory = layers(1)
    with pytest.raises(ShapeError, match=r"has 2,147,483,648 elements; kernels count them in 32 bits"):
        memory.at(B=2**25)
    assert memory.largest("B", "1TiB") == 2**25 - 1


def test_what_cannot_be_answered() -> None:
    with pytest.raises(UsageError, match=r"device 'cuda' is counted at numbers, so a formula is not supported"):
        layers(1).formula()
    with pytest.raises(UsageError, match=r"not even B=1 fits 1.0 MiB: it takes 32\.\d MiB"):
        layers(1).largest("B", "1MiB")
    with pytest.raises(UsageError, match=r"depends on B: give a number"):
        layers(1).at()
    with pytest.raises(UsageError, match=r"float64 is not supported on the device"):
        layers(1, CUDA.replace(dtype="float64"))
    with pytest.raises(UsageError, match=r"for the backends 'eager' and 'compiled', not for 'shape_check'"):
        layers(1, CUDA.replace(backend="shape_check"))


def test_without_numba_cuda_it_says_so() -> None:
    code = """
import importlib.util as util
find = util.find_spec
util.find_spec = lambda name, *more: None if name == "numba_cuda" else find(name, *more)
from tests.memory.test_device import layers
layers(1).at(B=1)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "UsageError: device 'cuda' needs the package numba-cuda; install it with: pip install" in done.stderr
