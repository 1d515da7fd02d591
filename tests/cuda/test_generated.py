"""Composites on a GPU by kernels that are generated from what they are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import optim
from opstage.compiler.codegen.cuda.kernels import fused
from opstage.compiler.gpu.buffer import DeviceBuffer
from opstage.compiler.gpu.device import Device
from opstage.compiler.gpu.memory import Tally
from opstage.compiler.gpu.simulator import Simulator
from opstage.interpreters import registry
from opstage.interpreters.eager_cuda import CudaOps
from opstage.interpreters.eager_cuda.kernels import KERNELS
from opstage.interpreters.eager_cuda.kernels.reduction import total
from opstage.ops.catalogue import primitives
from opstage.ops.elementwise import SCALE
from opstage.ops.errors import RangeError
from opstage.ops.layout import TRANSPOSE2D
from opstage.ops.loss import MSE_LOSS
from opstage.ops.normalization import RMS_NORM
from opstage.ops.primitive import Primitive
from opstage.ops.reduction import REDUCE_MEAN
from opstage.ops.types import FLOAT32, INT32, TensorType
from opstage.options import Options
from tests.conformance.harness import assert_close, inputs, program_of
from tests.conformance.test_values import upcast
from tests.optim.updates import update_op
from tests.samples import SAMPLES

CUDA = Options(device="cuda")
EVERY = primitives()
COMPOSITES = {name for name, primitive in EVERY.items() if primitive.decomposition is not None}
SOME = ("gelu", "reduce_mean", "rms_norm", "layer_norm_grad", "mse_loss")
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
    muon = types(square, square, square, number)
    assert fused(update_op(optim.muon(), *muon), muon, {}) is None
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


class Counted(NamedTuple):
    """A composite on operands of some shapes: its launches, and the bytes of memory that these are given, in multiples
    of those of its operands and results.

    batch_norm's includes one half for x, given to a kernel that reads one element of it for each channel.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    static: dict[str, Any]
    launches: int
    moved: float
    labels: int = -1


def ce(reduction: str) -> dict[str, Any]:
    return {"reduction": reduction, "ignore_index": -100, "label_smoothing": 0.1}


MIDDLE, ROWS, IMAGES = (64, 1000, 49), (4096, 1000), (64, 21, 32, 32)
VECTOR, STATISTIC, MAPS, C = (1000,), (4096, 1), (32, 64, 28, 28), (64,)
COUNTED = [
    *[Counted(op, (x,), {"axis": 1}, 1, 1) for op in ("softmax", "log_softmax") for x in (ROWS, MIDDLE)],
    *[Counted(f"{op}_grad", (x, x), {"axis": 1}, 1, 1) for op in ("softmax", "log_softmax") for x in (ROWS, MIDDLE)],
    Counted("softmax", (ROWS,), {"axis": 0}, 1, 1),
    Counted("layer_norm", (ROWS, VECTOR, VECTOR), {"has_gamma": True, "has_beta": True, "eps": 1e-5}, 1, 1),
    Counted("layer_norm_grad", (ROWS, VECTOR, STATISTIC, STATISTIC, ROWS), {"has_gamma": True}, 4, 1.75),
    Counted("rms_norm", (ROWS, VECTOR), {"has_gamma": True, "eps": 1e-5}, 1, 1),
    Counted("rms_norm_grad", (ROWS, VECTOR, STATISTIC, ROWS), {"has_gamma": True}, 3, 1.75),
    Counted("group_norm", (MAPS, C, C), {"has_gamma": True, "has_beta": True, "groups": 8, "eps": 1e-5}, 1, 1),
    Counted("group_norm_grad", (MAPS, C, (32, 8), (32, 8), MAPS), {"has_gamma": True, "groups": 8}, 3, 1.7),
    Counted(
        "batch_norm", (MAPS, C, C), {"has_gamma": True, "has_beta": True, "channel_axis": 1, "eps": 1e-5}, 10, 2.52
    ),
    Counted("batch_norm_grad", (MAPS, C, C, C, MAPS, C, C), {"has_gamma": True, "channel_axis": 1}, 5, 1.7),
    Counted("mse_loss", (ROWS, ROWS), {}, 2, 1.01),
    Counted("cross_entropy", (ROWS, ROWS[:1]), ce("mean"), 2, 1.01, 1),
    Counted("cross_entropy", (ROWS, ROWS[:1]), ce("none"), 1, 1.01, 1),
    Counted("cross_entropy", (IMAGES, (64, 32, 32)), ce("none"), 1, 1.01, 1),
    Counted("cross_entropy_grad", (ROWS, ROWS[:1], (4096, 1), (4096, 1), ()), ce("mean"), 2, 1.01, 1),
    Counted("cross_entropy_grad", (ROWS, ROWS[:1], (4096, 1), (4096, 1), ROWS[:1]), ce("none"), 1, 1.01, 1),
]  # fmt: skip


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: f"{case.op} {case.shapes[0]} {case.static}")
def test_memory_is_moved_as_often_as_it_must(case: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    device, moved = Tally(), []

    def launch(device: Tally, kernel: Any, blocks: int, threads: int, *arguments: Any) -> None:
        held = {id(a.memory): a.size * a.dtype.itemsize for a in arguments if isinstance(a, DeviceBuffer)}
        moved.append(sum(held.values()))

    monkeypatch.setattr(Tally, "launch", launch)
    dtypes = [INT32 if place == case.labels else FLOAT32 for place in range(len(case.shapes))]
    operands = tuple(TensorType(shape, dtype) for shape, dtype in zip(case.shapes, dtypes))
    made = fused(EVERY[case.op], operands, case.static)
    assert made is not None
    results = made(device, [device.empty(type_) for type_ in operands], total)
    least = sum(int(type_.nbytes) for type_ in operands) + sum(y.size * y.dtype.itemsize for y in results)
    assert len(moved) == case.launches
    assert sum(moved) <= case.moved * least


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_what_is_reduced_along_any_axis_is_read_in_the_order_of_memory(axis: int, backend: str) -> None:
    """Rows of what follows one another in memory or not, and who reads the results along other axes."""

    def program(ops: Any, x: Any) -> Any:
        y, z = ops.softmax(x, axis=axis), ops.log_softmax(ops.tanh(x), axis=axis)
        turned = ops.permute(ops.add(y, z), axes=(2, 0, 1))
        return turned, ops.reduce_max(ops.mul(y, z), axis=(0, 1)), ops.slice(y, axis=1, start=1, length=3), y

    x = some((4, 5, 37))
    expected = opstage.run(program, x.astype(np.float64), options=Options(dtype="float64"))
    for a, e in zip(opstage.run(program, x, options=CUDA.replace(backend=backend)), expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("label", [-1, 5, 2**32 + 1])
def test_a_label_out_of_range_is_told_of_generated_kernels(label: int, backend: str) -> None:
    labels = np.array([[1, 0], [2, label], [-100, 3]])

    def loss(ops: Any, x: Any, labels: Any) -> Any:
        return ops.cross_entropy(ops.tanh(x), labels, reduction="sum")

    options = CUDA.replace(backend=backend)
    with pytest.raises(RangeError, match=rf"label {label} at position \(1, 1\) is out of range: logits are"):
        opstage.value_and_grad(loss, some((3, 5, 2)), labels, wrt=(0,), options=options)
    labels[1, 1] = 4
    value, _ = opstage.value_and_grad(loss, some((3, 5, 2)), labels, wrt=(0,), options=options)
    np.testing.assert_allclose(value, opstage.run(loss, some((3, 5, 2)), labels), rtol=1e-5)
