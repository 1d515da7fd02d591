"""Generated kernels: composites as loops, and panels of products."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import optim
from opstage.compiler.codegen.cpu.kernels import fused
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.eager_cpu.interpreter import _distinguish_zeros
from opstage.interpreters.eager_cpu.kernels import kernel_table
from opstage.ops.catalogue import primitives
from opstage.ops.elementwise import SCALE
from opstage.ops.primitive import Primitive
from opstage.ops.trees import flatten, unflatten
from opstage.ops.types import TensorType
from opstage.options import Options
from tests.conformance.harness import assert_close, inputs
from tests.conformance.test_values import upcast
from tests.optim.updates import update_op
from tests.samples import SAMPLES

ADAMW = optim.adamw(weight_decay=0.1)


def operands(size: int, seed: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    p, g, m, v = (rng.standard_normal(size).astype(np.float32) for _ in range(4))
    return p, g, m, v * v, *(np.float32(x).reshape(()) for x in (1e-3, 0.5, 0.25))


def types(arrays: tuple[Any, ...]) -> tuple[TensorType, ...]:
    return tuple(TensorType(x.shape, x.dtype) for x in arrays)


def plainly(arrays: tuple[Any, ...], optimizer: optim.Optimizer = ADAMW) -> tuple[Any, ...]:
    return NumpyOps(Options(fast_kernels=False)).bind(update_op(optimizer, *arrays), arrays, {})


@pytest.mark.parametrize("size", [1, 3, 64, 8191, 8192, 100_003])  # from 8192 on the workers divide it
def test_sizes_on_both_sides_of_every_border_have_the_bits_of_the_decomposition(size: int) -> None:
    arrays = operands(size)
    kernel = fused(update_op(ADAMW, *arrays), types(arrays), {})
    assert kernel is not None
    for result, expected in zip(kernel(*arrays), plainly(arrays), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_operands_may_be_one_array_and_stay_as_they_are() -> None:
    p = operands(1000)[0]
    lr = np.float32(0.1).reshape(())
    before = p.copy()
    kernel = fused(update_op(optim.nesterov(), p, p, p, lr), types((p, p, p, lr)), {})
    assert kernel is not None
    results = kernel(p, p, p, lr)
    np.testing.assert_array_equal(p, before)
    assert not any(np.shares_memory(x, y) for x in results for y in (p, *[r for r in results if r is not x]))
    for result, expected in zip(results, plainly((p, p, p, lr), optim.nesterov()), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_threads_that_share_a_kernel_get_their_own_results() -> None:
    given = [operands(20_000, seed) for seed in range(16)]
    kernel = fused(update_op(ADAMW, *given[0]), types(given[0]), {})
    assert kernel is not None
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda arrays: kernel(*arrays), given * 20))
    expected = [plainly(arrays) for arrays in given]
    for i, results in enumerate(found):
        for result, right in zip(results, expected[i % len(given)], strict=True):
            np.testing.assert_array_equal(result, right)


def test_what_loops_cannot_do_as_a_whole_has_no_kernel() -> None:
    p = TensorType((4, 3), np.dtype("float32"))
    lr = TensorType((), np.dtype("float32"))
    assert fused(update_op(optim.muon(), p, p, p, lr), (p, p, p, lr), {}) is None
    empty = operands(0)
    assert fused(update_op(ADAMW, *empty), types(empty), {}) is None


def test_zeros_of_either_sign_have_loops_of_their_own() -> None:
    keys = {_distinguish_zeros((SCALE, c), {"c": c}) for c in (0.0, -0.0, 0, False, 1.0)}
    assert len(keys) == 5


def test_what_a_decomposition_reads_of_python_is_read_in_every_call() -> None:
    """It may be another number then; ops of the catalogue read nothing, so their loops are kept."""
    factor = [2.0]
    op = Primitive(
        "times", operands=("x",), shape=lambda x: (x,), decomposition=lambda ops, x: (ops.scale(x, c=factor[0]),)
    )
    interpreter = NumpyOps(Options())
    for factor[0] in (2.0, 3.0):
        (found,) = interpreter.bind(op, (np.ones(5, np.float32),), {})
        assert found.tolist() == [factor[0]] * 5


COMPOSITES = frozenset(p for p in primitives().values() if p.decomposition is not None)


def of_loops(options: Options) -> NumpyOps:
    """eager_cpu on which every composite is generated that can be."""
    core = {p: kernel for p, kernel in kernel_table(options.dtype, False).items() if p.core}
    return NumpyOps(options, core, generated=True)


OF_COMPOSITES = [s for s in SAMPLES if primitives().get(s.op) in COMPOSITES and s.reference is not None]


SOME = ("reduce_mean", "rms_norm", "mse_loss")


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("ops", [SOME, pytest.param((), marks=pytest.mark.slow, id="all")], ids=str)
def test_what_can_be_generated_gives_what_its_reference_gives(ops: tuple[str, ...], dtype: str) -> None:
    for sample in [s for s in OF_COMPOSITES if s.op in ops or not ops]:
        base = of_loops(Options(dtype=dtype))
        given = inputs(sample, dtype)
        values, structure = flatten(given)

        def program(ops: Any, *refs: Any, sample: Any = sample, structure: Any = structure) -> tuple[Any, ...]:
            outputs, shape = flatten(sample.apply(ops, *unflatten(structure, refs)))
            found.append(shape)
            return tuple(outputs)

        found: list[Any] = []
        results = base.execute(program, tuple(base.put(v) for v in values))
        expected = sample.reference(*upcast(given), **sample.static)
        assert_close(unflatten(found[0], results), expected, getattr(sample, dtype), f"{sample.id} in {dtype}")


# (shape, axis): lanes that fill panels, that do not, and too few for one; rows longer than a running sum
CASES = [((70, 64), 0), ((3, 70, 65), 1), ((2, 5, 9), 1), ((200, 7), 0), ((2, 300, 130), 1), ((4, 3, 5, 17), 2)]
SPECIAL = [np.nan, np.inf, -np.inf, -0.0]


def softmax(x: Any, axis: int) -> Any:
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_reductions_over_any_axis_are_numpys(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal(shape).astype(dtype)
    x.flat[rng.integers(0, x.size, 4)] = SPECIAL

    def program(ops: Any, x: Any) -> tuple[Any, ...]:
        centred = ops.sub(
            x, ops.scale(ops.broadcast_to(ops.reduce_max(x, axis=axis, keepdims=True), shape=shape), c=0.5)
        )
        return (
            ops.reduce_max(x, axis=axis),
            ops.reduce_sum(ops.mul(x, x), axis=axis),
            ops.softmax(x, axis=axis),
            centred,
        )

    found = opstage.run(program, x, options=Options(dtype=dtype, backend="compiled"))
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        greatest = wide.max(axis=axis, keepdims=True)
        expected = greatest.squeeze(axis), (wide * wide).sum(axis=axis), softmax(wide, axis), wide - greatest / 2
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6 if dtype == "float32" else 1e-13, atol=1e-7)
