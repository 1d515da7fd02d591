"""Every op on simulated CUDA: samples, large numbers, no elements, and ops declared outside of Opstage."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import debug
from opstage.compiler.gpu.language import cuda, steps
from opstage.interpreters.registry import make_interpreter
from opstage.ops import catalogue as registered
from opstage.ops.catalogue import FAMILIES
from opstage.ops.errors import LocatedError, OpstageError, UnsupportedError
from opstage.ops.primitive import Primitive
from opstage.ops.trees import flatten, map_leaves, unflatten
from opstage.options import Options
from tests.conformance.harness import SEED, assert_close, cast_tree, inputs, leaves, program_of, random_like
from tests.conformance.test_derivatives import scalarised
from tests.conformance.test_empty import BY_OP, emptied, said, tried
from tests.conformance.test_values import upcast
from tests.numbers.accuracy import LEVELS, WINNERS
from tests.numbers.test_accuracy import assert_exact
from tests.ops import test_ops
from tests.samples import BAD_CALLS, SAMPLES
from tests.samples.sample import BadCall, Sample

CUDA = Options(device="cuda")
BACKENDS = ("eager", "compiled")
FLOAT64 = Options(dtype="float64")

UNSUPPORTED = {"cast-up": "float64 has no form on a device", "iota-floats": "float64 has no form on a device"}
"""Samples that must be refused, and why."""


def samples(order: int) -> list[Sample]:
    return [s for s in SAMPLES if s.order >= order and s.id not in UNSUPPORTED]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sample", samples(0), ids=lambda s: s.id)
def test_values(sample: Sample, backend: str) -> None:
    args = inputs(sample, "float32")
    actual = opstage.run(program_of(sample), *args, options=CUDA.replace(backend=backend))
    expected = opstage.run(program_of(sample), *args)
    for a, e in zip(leaves(actual), leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
    if sample.reference is None:
        assert_close(actual, expected, sample.float32, f"{sample.id} against eager_cpu")
    else:
        reference = sample.reference(*upcast(args), **sample.static)
        assert_close(actual, reference, sample.float32, sample.id)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sample", samples(1), ids=lambda s: s.id)
def test_first_derivatives(sample: Sample, backend: str) -> None:
    """The gradient of <weights, op> and the tangent along a direction, beside those of eager_cpu in float64."""
    rng = np.random.default_rng(SEED)
    args = inputs(sample, "float32")
    outputs = [out for out in leaves(opstage.run(program_of(sample), *args)) if out.dtype.kind == "f"]
    program = scalarised(sample, [rng.standard_normal(out.shape).astype(np.float32) for out in outputs])
    everything = tuple(range(len(args)))
    _, actual = opstage.value_and_grad(program, *args, wrt=everything, options=CUDA.replace(backend=backend))
    _, expected = opstage.value_and_grad(program, *upcast(args), wrt=everything, options=FLOAT64)
    tolerance = (1e-4, 1e-4)  # products of matrices and sums in float32
    assert_close(leaves(actual), leaves(expected), tolerance, f"gradient of {sample.id}")

    v = random_like(rng, args)
    _, moved = opstage.jvp(program_of(sample), args, v, options=CUDA.replace(backend=backend))
    _, exact = opstage.jvp(program_of(sample), upcast(args), v, options=FLOAT64)
    assert_close(leaves(moved), leaves(exact), tolerance, f"tangent of {sample.id}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sample", samples(2)[::5], ids=lambda s: s.id)
def test_second_derivatives(sample: Sample, backend: str) -> None:
    """Every fifth sample: a Hessian-vector product, forward over reverse."""
    rng = np.random.default_rng(SEED)
    args = inputs(sample, "float32")
    v = random_like(rng, args)
    outputs = [out for out in leaves(opstage.run(program_of(sample), *args)) if out.dtype.kind == "f"]
    program = scalarised(sample, [rng.standard_normal(out.shape).astype(np.float32) for out in outputs])
    actual = opstage.hvp(program, args, v, options=CUDA.replace(backend=backend))
    expected = opstage.hvp(program, upcast(args), v, options=FLOAT64)
    for a, e in zip(leaves(actual), leaves(expected), strict=True):
        scale = 1 + float(np.max(np.abs(e), initial=0))
        assert_close(a / scale, e / scale, (2e-4, 2e-4), f"hvp of {sample.id}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", BAD_CALLS, ids=lambda b: b.id)
def test_bad_call(bad: BadCall, backend: str) -> None:
    """The same message as on the CPU."""
    args = cast_tree(bad.arrays(), "float32")
    reasons = []
    for options in (Options(), CUDA.replace(backend=backend)):
        with pytest.raises(LocatedError) as caught:
            opstage.run(lambda ops, *refs: bad.apply(ops, *refs), *args, options=options)
        reasons.append((caught.value.op, caught.value.reason))
    assert reasons[0] == reasons[1]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_a_device_has_not_is_refused(name: str) -> None:
    (sample,) = [s for s in SAMPLES if s.id == name]
    with pytest.raises(UnsupportedError, match=sample.op):
        opstage.run(program_of(sample), *inputs(sample, "float32"), options=CUDA)


def test_every_core_op_has_a_kernel() -> None:
    every = {
        value
        for family in FAMILIES
        for value in vars(import_module(f"opstage.ops.{family}")).values()
        if isinstance(value, Primitive)
    }
    interpreter = make_interpreter(CUDA)
    assert len(every) > 100
    assert [p.name for p in every if p.core and not interpreter.has_kernel(p)] == []


def test_an_interpreter_keeps_its_device() -> None:
    values, structure = flatten((np.ones((2, 3), np.float32), np.arange(3)))
    interpreter = make_interpreter(CUDA)
    refs = [interpreter.put(value) for value in values]
    back = unflatten(structure, [interpreter.get(ref) for ref in refs])
    assert [(a.shape, a.dtype) for a in back] == [((2, 3), np.float32), ((3,), np.int64)]


def test_the_last_of_several_nan_takes_the_gradient_of_a_maximum() -> None:
    x = np.array([[1, np.nan, np.nan, 2, np.nan, 3, np.nan, np.nan]], np.float32)
    found = [
        opstage.value_and_grad(lambda ops, x: ops.sum(ops.max_pool(x, kernel=4)), x, options=options)[1]
        for options in (CUDA, Options())
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], [[0, 0, 1, 0, 0, 0, 0, 1]])


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_small(backend: str) -> None:
    base = make_interpreter(Options(device="cuda", backend=backend))
    assert_exact(LEVELS[::5] + WINNERS, base)


OF_EACH = {True: 1, False: 3}
"""How many calls of each op that end in an error, and that have values."""


def in_float32(value: Any) -> Any:
    return value.astype("float32") if value.dtype == "float64" else value


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", BY_OP)
def test_some_calls_of_every_op(op: str, backend: str) -> None:
    left = dict(OF_EACH)
    for sample in BY_OP[op]:
        program = program_of(sample)
        for args in emptied(sample) if sample.id not in UNSUPPORTED else ():
            args = tuple(map_leaves(in_float32, args))
            expected = tried(lambda program=program, args=args: opstage.run(program, *args))
            failed = isinstance(expected, OpstageError)
            if not left[failed]:
                continue
            left[failed] -= 1
            options = CUDA.replace(backend=backend)
            actual = tried(lambda program=program, args=args: opstage.run(program, *args, options=options))
            if failed:
                assert said(actual) == said(expected)
                continue
            assert [(a.shape, a.dtype) for a in leaves(actual)] == [(e.shape, e.dtype) for e in leaves(expected)]
            assert_close(actual, expected, sample.float32, sample.id)


X = np.array([1.0, 2.0, 6.0])


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_on_a_device(backend: str) -> None:
    def loss(ops: Any, x: Any) -> Any:
        return ops.sum(debug.print(ops, x * 2.0, "h", gradient=True))

    lines: list[str] = []
    with debug.redirect(lines.append):
        for x in (X, 2 * X):
            opstage.value_and_grad(loss, x, options=Options(device="cuda", backend=backend))
    assert lines == [
        "h: (3,) float32 min 2, mean 6, max 12 (step 0)",
        "grad h: (3,) float32 min 1, mean 1, max 1 (step 0)",
        "h: (3,) float32 min 4, mean 12, max 24 (step 0)",
        "grad h: (3,) float32 min 1, mean 1, max 1 (step 0)",
    ]


def test_rules_get_refs_with_operators() -> None:
    value, gradient = test_ops.expected(test_ops.X.astype(np.float64))
    found, grad = opstage.value_and_grad(test_ops.program, test_ops.X, options=Options(device="cuda"))
    np.testing.assert_allclose(found, value, rtol=1e-6)
    np.testing.assert_allclose(grad, gradient, rtol=1e-6)


def test_a_compiled_step_shows_what_it_read_before_it_wrote() -> None:
    """As on the CPU, in steps that write over their parameters, and in loops."""

    def loss(ops: Any, w: Any, x: Any) -> Any:
        debug.print(ops, w, "w")

        def turn(ops: Any, c: Any, row: Any) -> Any:
            h = debug.print(ops, ops.tanh(c * row), "h", gradient=True)
            return ops.exp(debug.print(ops, h + 1.0, "k")), h

        last, _ = ops.scan(turn, w, x)
        masks = debug.print(ops, last > 1.0, "mask")
        return ops.sum(ops.select(masks, last * last, last)) + ops.sum(debug.print(ops, ops.transpose2d(x), "t"))

    rows = np.arange(6.0).reshape(2, 3) / 7
    seen: dict[str, list[str]] = {}
    for device in ("cpu", "cuda"):
        options = Options(device=device, backend="compiled")
        trainer = opstage.scalar_trainer(loss, X / 4, options=options)
        with debug.redirect(seen.setdefault(device, []).append):
            for _ in range(3):
                trainer.step(0.1, rows)
    order = {device: sorted(lines, key=lambda line: line.startswith("grad")) for device, lines in seen.items()}
    words, values = zip(*[_words_and_numbers("\n".join(lines)) for lines in order.values()], strict=True)
    assert words[0] == words[1] and len(set(seen["cuda"])) == len(seen["cuda"])
    np.testing.assert_allclose(*values, rtol=1e-5)


def _words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    number = r"-?\d+\.?\d*(?:e[-+]\d+)?"
    return re.split(number, text), [float(found) for found in re.findall(number, text)]


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_kernel_decomposition_or_the_error_that_names_the_field(backend: str) -> None:
    def kernel(device: Any, types: Any, x: Any) -> Any:
        out = device.empty(types[0])
        device.each(_triple, out.size, out, x)
        return out

    options = Options(device="cuda", backend=backend)
    try:
        for how in ({"kernels": {"cuda": kernel}}, {"decomposition": lambda ops, x: x * 3.0}):
            op = opstage.custom_op("t_tripled", operands=("x",), shape=lambda x: x, differentiable=False, **how)
            np.testing.assert_array_equal(opstage.run(op, X, options=options), 3 * X)
            registered.unregister("t_tripled")
        host = opstage.custom_op(
            "t_tripled", operands=("x",), shape=lambda x: x, differentiable=False, kernels={"cpu": lambda x: 3 * x}
        )
        with pytest.raises(opstage.UnsupportedError, match=r"t_tripled.*decomposition=.*kernel"):
            opstage.run(lambda ops, x: host(ops, x), X, options=options)
    finally:
        registered.unregister("t_tripled")


def _triple(count: Any, out: Any, x: Any) -> None:
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = x[i] * np.float32(3)
