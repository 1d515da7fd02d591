"""Composites on a GPU by kernels that are generated from what they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage.interpreters import registry
from opstage.interpreters.codegen.cuda.fused import fused
from opstage.interpreters.eager_cuda import CudaOps
from opstage.interpreters.eager_cuda.kernels import KERNELS
from opstage.interpreters.eager_cuda.kernels.reduction import total
from opstage.interpreters.gpu.device import Device
from opstage.interpreters.gpu.device.simulator import Simulator
from opstage.interpreters.gpu.device.tally import Tally
from opstage.ops.catalogue import primitives
from opstage.ops.catalogue.elementwise import SCALE
from opstage.ops.catalogue.layout import TRANSPOSE2D
from opstage.ops.catalogue.loss import MSE_LOSS
from opstage.ops.catalogue.normalization import RMS_NORM
from opstage.ops.catalogue.reduction import REDUCE_MEAN
from opstage.ops.catalogue.update import MUON_UPDATE
from opstage.ops.primitive import Primitive
from opstage.ops.types import FLOAT32, TensorType
from opstage.options import Options
from tests.conformance.harness import assert_close, inputs, program_of
from tests.conformance.test_values import upcast
from tests.samples import SAMPLES

CUDA = Options(device="cuda")
EVERY = primitives()
COMPOSITES = {name for name, primitive in EVERY.items() if primitive.decomposition is not None}
SOME = ("gelu", "reduce_mean", "rms_norm", "layer_norm_grad", "mse_loss", "adamw_update")
CORE = {p: kernel for p, kernel in KERNELS.items() if p.core}


def of_generated(options: Options) -> CudaOps:
    """eager_cuda on which every composite is generated that can be."""
    return CudaOps(options, kernels=CORE)


@pytest.mark.parametrize("ops", [SOME, pytest.param((), marks=pytest.mark.slow, id="all")], ids=str)
def test_what_can_be_generated_gives_what_its_reference_gives(
    ops: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._OWN, ("eager", "cuda"), f"{__name__}:of_generated")
    for sample in [s for s in SAMPLES if s.op in COMPOSITES and (s.op in ops or not ops) and s.reference is not None]:
        args = inputs(sample, "float32")
        assert sample.reference is not None
        actual = opstage.run(program_of(sample), *args, options=CUDA)
        assert_close(actual, sample.reference(*upcast(args), **sample.static), sample.float32, sample.id)


def types(*shapes: tuple[int, ...]) -> tuple[TensorType, ...]:
    return tuple(TensorType(shape, FLOAT32) for shape in shapes)


def some(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


MEAN = {"axes": (0,), "keepdims": False}


def on(device: Device, primitive: Primitive, static: Any, *arrays: Any) -> list[Any]:
    made = fused(primitive, types(*[x.shape for x in arrays]), static)
    assert made is not None
    return [device.download(out) for out in made(device, [device.upload(x) for x in arrays], total)]


def test_sums_over_so_many_rows_that_they_are_taken_in_parts() -> None:
    x = some((2000, 3))
    (out,) = on(Simulator(), REDUCE_MEAN, MEAN, x)
    np.testing.assert_allclose(out, x.mean(0), rtol=1e-4, atol=1e-6)


def test_one_tensor_may_be_every_operand() -> None:
    device, x = Simulator(), some((4, 3))
    buffer = device.upload(x)
    made = fused(MSE_LOSS, types((4, 3), (4, 3)), {})
    assert made is not None
    (out,) = made(device, [buffer, buffer], total)
    assert device.download(out) == 0
    np.testing.assert_array_equal(device.download(buffer), x)


def test_what_kernels_cannot_do_as_a_whole_or_only_moves_elements_has_none() -> None:
    square, number = (4, 4), ()
    muon = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.0, "steps": 5, "eps": 1e-7}
    assert fused(MUON_UPDATE, types(square, square, square, number), muon) is None
    assert fused(TRANSPOSE2D, types(square), {}) is None
    assert fused(REDUCE_MEAN, types((0, 3)), {"axes": (1,), "keepdims": False}) is None


def test_other_shapes_and_numbers_share_kernels() -> None:
    device = Simulator()
    launched = []
    device.launch = lambda kernel, *arguments: launched.append(kernel)  # type: ignore[method-assign]
    for shape, eps in (((4, 3), 1e-5), ((5, 7), 1e-3), ((2, 6, 50), 1e-3)):
        x, gamma = some(shape), some(shape[-1:])
        on(device, RMS_NORM, {"has_gamma": True, "eps": eps}, x, gamma)
    for c in (0.5, 2.5, -0.0):
        KERNELS[SCALE](device, types((3,)), device.upload(some((3,))), c=c)
    assert len(set(launched)) == 2


def test_a_number_is_the_one_that_was_given_and_no_equal_one() -> None:
    ones = np.ones(2, np.float32)
    for c in (0.0, -0.0, 0.0):
        scaled = opstage.run(lambda ops, x, c=c: ops.scale(x, c=c), ones, options=CUDA)
        assert np.signbit(scaled).tolist() == [np.signbit(c)] * 2


def test_what_a_decomposition_reads_of_python_is_read_in_every_call() -> None:
    factor = [2.0]
    op = Primitive(
        "times", operands=("x",), shape=lambda x: (x,), decomposition=lambda ops, x: (ops.scale(x, c=factor[0]),)
    )
    interpreter = CudaOps(CUDA)
    x = interpreter.put(np.ones(5, np.float32))
    for factor[0] in (2.0, 3.0):
        assert interpreter.get(interpreter.bind(op, (x,), {})[0]).tolist() == [factor[0]] * 5


def test_it_takes_its_results_and_what_passes_between_its_kernels() -> None:
    tally, shape = Tally(), (64, 1000)
    made = fused(MSE_LOSS, types(shape, shape), {})
    assert made is not None
    operands = [tally.empty(type_) for type_ in types(shape, shape)]
    tally.begin()
    before = tally.used
    (out,) = made(tally, operands, total)
    assert tally.used - before == 4
    assert tally.peak - before < 4 * 64 * 1000
    del out
