"""Every op over tensors without elements: every interpreter and the shape checker say the same.

A sample's operands are emptied at one axis, at all axes of one size, at all first or all last axes. Each call then has
values, those of the reference, on every interpreter and in a check, or one error on all of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.ops.dims import evaluate
from opstage.ops.errors import LocatedError, OpstageError, RangeError
from opstage.ops.trees import flatten, unflatten
from opstage.ops.types import dtype_name
from opstage.transforms.derivatives import value_and_grad
from tests.conformance.harness import EXECUTING, assert_close, dot, inputs, is_float, leaves, program_of, random_like
from tests.conformance.test_values import execute, flatten_types
from tests.samples import SAMPLES
from tests.samples.sample import Sample

FLOAT64 = Options(dtype="float64")
COMPILED = Options(dtype="float64", backend="compiled")
QUICK = 2
"""How many calls of each op, of those with values and of those with an error, are in the quick suite."""


def emptied(sample: Sample) -> Iterator[tuple[Any, ...]]:
    """The operands of a sample, emptied in turn in every way that is told above."""
    values, structure = flatten(inputs(sample))
    shapes = [np.shape(value) for value in values]
    ways: list[list[tuple[int, ...]]] = []  # the axes of each operand
    for i, shape in enumerate(shapes):
        ways += [[(axis,) if j == i else () for j in range(len(shapes))] for axis in range(len(shape))]
    for size in sorted({n for shape in shapes for n in shape if n}):
        ways.append([tuple(axis for axis, n in enumerate(shape) if n == size) for shape in shapes])
    ways += [[shape and (0,) for shape in shapes], [shape and (len(shape) - 1,) for shape in shapes]]
    for way in dict.fromkeys(tuple(map(tuple, way)) for way in ways):
        if any(way):
            empty = []
            for value, shape, axes in zip(values, shapes, way):
                value = np.asarray(value)
                empty.append(value[tuple(slice(0) if a in axes else slice(None) for a in range(len(shape)))])
            yield unflatten(structure, empty)


def tried(call: Callable[[], Any]) -> Any:
    """What a call returns, or the error that it raises, a warning of NumPy's among them."""
    try:
        return call()
    except OpstageError as error:
        return error


def said(error: Any) -> str:
    assert isinstance(error, OpstageError), error
    return f"{type(error).__name__}: {error.reason if isinstance(error, LocatedError) else error}"


def check_call(sample: Sample, args: tuple[Any, ...], interpreters: list[str]) -> bool:
    """Whether a call has values; asserts that it is so everywhere, or that the error is one."""
    program = program_of(sample)
    result = tried(lambda: opstage.run(program, *args, options=FLOAT64))
    report = opstage.check(program, *args, options=FLOAT64)
    others = {name: tried(lambda name=name: execute(name, sample, FLOAT64, args)) for name in interpreters}
    if isinstance(result, OpstageError):
        assert {said(other) for other in others.values()} <= {said(result)}
        if not isinstance(result, RangeError):  # which depends on values, and a check has none
            assert not report.ok, f"a run raises {result}"
            assert report.errors[0].reason in said(result)
        return False
    assert report.ok and not report.conditions, report
    types = [(value.shape, value.dtype) for value in leaves(result)]
    assert [(type_.shape, type_.dtype) for type_ in flatten_types(report.outputs)] == types
    for name, other in others.items():
        assert [(value.shape, value.dtype) for value in leaves(other)] == types, name
        assert_close(other, result, sample.float64, name)
    check_reference(sample, args, result)
    return True


def check_reference(sample: Sample, args: tuple[Any, ...], result: Any) -> None:
    """Against the sample's reference, where that is one of these operands."""
    if sample.reference is None:
        return
    try:
        with np.errstate(all="ignore"):
            expected = sample.reference(*args, **sample.static)
            fixed = sample.reference(*inputs(sample), **sample.static)
    except Exception:  # it was not written for this
        return
    if [np.shape(a) for a in leaves(expected)] == [np.shape(a) for a in leaves(fixed)]:
        return  # a table of the answers, or a result whose shape does not depend on the operands
    for actual, wanted in zip(leaves(result), leaves(expected), strict=True):
        if np.size(actual) or np.size(wanted):
            assert_close(actual, wanted, sample.float64, sample.id)


def check_gradients(sample: Sample, args: tuple[Any, ...], *, compiled: bool) -> None:
    """Gradients of a sum of squares: compiled ones, tangents and a check agree with them."""
    floats = tuple(i for i, arg in enumerate(args) if leaves(arg) and all(map(is_float, leaves(arg))))
    if sample.order == 0 or not floats:
        return

    def scalar(ops: Any, *refs: Any) -> Any:
        squares = [ops.sum(ops.mul(y, y)) for y in flatten(sample.apply(ops, *refs))[0] if y.dtype.kind == "f"]
        return sum(squares, ops.full(shape=(), value=0.0))

    value, gradients = opstage.value_and_grad(scalar, *args, wrt=floats, options=FLOAT64)
    assert np.isfinite(value)
    for i, gradient in zip(floats, gradients):
        for operand, slope in zip(leaves(args[i]), leaves(gradient), strict=True):
            assert operand.shape == slope.shape and np.isfinite(slope).all()
    assert opstage.check(lambda ops, *refs: value_and_grad(ops, scalar, *refs, wrt=floats), *args, options=FLOAT64).ok
    rng = np.random.default_rng(0)
    tangents = tuple(random_like(rng, arg) if i in floats else None for i, arg in enumerate(args))
    _, tangent = opstage.jvp(scalar, args, tangents, options=FLOAT64)
    moved = sum(dot(gradient, tangents[i]) for i, gradient in zip(floats, gradients))
    np.testing.assert_allclose(tangent, moved, rtol=1e-9, atol=1e-9)
    if sample.order == 2:
        opstage.hvp(scalar, args, tangents, options=FLOAT64)
    if compiled:
        again = opstage.value_and_grad(scalar, *args, wrt=floats, options=COMPILED)
        assert_close(again, (value, gradients), (1e-10, 1e-11), sample.id)


BY_OP: dict[str, list[Sample]] = defaultdict(list)
for _sample in SAMPLES:
    BY_OP[_sample.op].append(_sample)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("op", BY_OP)
def test_some_calls_of_every_op(op: str) -> None:
    left = {True: QUICK, False: QUICK}
    for sample in BY_OP[op]:
        for args in emptied(sample):
            has_values = not isinstance(tried(lambda args=args: opstage.run(program_of(sample), *args)), OpstageError)
            if not left[has_values]:
                continue
            left[has_values] -= 1
            assert check_call(sample, args, ["compiled"] if left[has_values] else []) is has_values
            if has_values:
                check_gradients(sample, args, compiled=False)
        if not any(left.values()):
            return


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("op", BY_OP)
def test_every_call_of_every_op(op: str) -> None:
    for sample in BY_OP[op]:
        for args in emptied(sample):
            if check_call(sample, args, list(EXECUTING)):
                check_gradients(sample, args, compiled=True)


def check_named(sample: Sample) -> None:
    """With a name that may be 0 in place of a size, a check that has no conditions promises what a run at 0 gives."""
    program = program_of(sample)
    values, structure = flatten(inputs(sample, "float32"))
    arrays = [np.asarray(value) for value in values]
    for size in sorted({n for array in arrays for n in array.shape if n}):
        specs = [
            Spec(tuple("N" if n == size else n for n in a.shape), dtype_name(a.dtype), where=["N >= 0"])
            if size in a.shape
            else Spec(a.shape, dtype_name(a.dtype))
            for a in arrays
        ]
        report = opstage.check(program, *unflatten(structure, specs))
        if not report.ok or report.conditions:
            continue
        zeros = [np.zeros([0 if n == size else n for n in a.shape], a.dtype) if size in a.shape else a for a in arrays]
        nothing = unflatten(structure, zeros)
        result = tried(lambda nothing=nothing: opstage.run(program, *nothing))
        if isinstance(result, RangeError):
            continue
        assert not isinstance(result, OpstageError), f"a check promised a result, and a run raises {result}"
        types = [
            (tuple(n if isinstance(n, int) else evaluate(n, {"N": 0}) for n in type_.shape), type_.dtype)
            for type_ in flatten_types(report.outputs)
        ]
        assert [(value.shape, value.dtype) for value in leaves(result)] == types


@pytest.mark.parametrize("op", BY_OP)
def test_names_that_may_be_0(op: str) -> None:
    check_named(BY_OP[op][0])


@pytest.mark.slow
@pytest.mark.parametrize("op", BY_OP)
def test_names_that_may_be_0_in_every_sample(op: str) -> None:
    for sample in BY_OP[op]:
        check_named(sample)


# What they mean, by hand ----------------------------------------------------------------------------------------------

NONE, LINES = np.zeros((0, 3)), np.zeros((2, 0))
VALUES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "sum": (lambda ops, x: ops.sum(x), NONE, 0.0),
    "reduce_sum": (lambda ops, x: ops.reduce_sum(x, axis=0), NONE, np.zeros(3)),
    "reduce_mean of none": (lambda ops, x: ops.reduce_mean(x, axis=1), NONE, np.zeros(0)),
    "reduce_max of none": (lambda ops, x: ops.reduce_max(x, axis=1), NONE, np.zeros(0)),
    "softmax": (lambda ops, x: ops.softmax(x, axis=1), LINES, LINES),
    "log_softmax": (lambda ops, x: ops.log_softmax(x, axis=0), NONE, NONE),
    "matmul": (lambda ops, x: x @ ops.transpose2d(x), LINES, np.zeros((2, 2))),
    "linear": (lambda ops, x: ops.linear(x, ops.const(np.arange(2.0)), x), LINES, np.array([[0.0, 1.0]] * 2)),
    "concat": (lambda ops, x: ops.concat([x, ops.full(shape=(1, 3), value=2.0)], axis=0), NONE, np.full((1, 3), 2.0)),
    "stack": (lambda ops, x: ops.stack([x, x], axis=0), LINES, np.zeros((2, 2, 0))),
    "reshape": (lambda ops, x: ops.reshape(x, shape=(-1, 3)), NONE, NONE),
    "pad": (lambda ops, x: ops.pad(x, padding=((1, 0), (0, 0))), NONE, np.zeros((1, 3))),
    "layer_norm": (lambda ops, x: ops.layer_norm(x, None, None), NONE, NONE),
    "rand_uniform": (lambda ops, x: ops.rand_uniform(shape=(0, 3)), NONE, NONE),
    # several ops in one compiled loop
    "softmax in a chain": (lambda ops, x: ops.sum(ops.softmax(ops.exp(x), axis=0) * x), NONE, 0.0),
    "sums of sums": (lambda ops, x: ops.sum(ops.exp(ops.reduce_sum(ops.tanh(x), axis=0))), NONE, 3.0),
    "normalised": (lambda ops, x: x / ops.reduce_sum(x, axis=0, keepdims=True), NONE, NONE),
    "centred": (lambda ops, x: x - ops.reduce_max(x, axis=1, keepdims=True), NONE, NONE),
    "broadcast": (lambda ops, x: x * x + ops.const(np.ones((2, 1))), LINES, LINES),
    "scan": (
        lambda ops, x: ops.scan(lambda ops, c, e: (c + ops.sum(e), -e), ops.full(shape=(), value=5.0), x),
        NONE,
        (5.0, NONE),
    ),
}

ERRORS: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "reduce_mean": (lambda ops, x: ops.reduce_mean(x, axis=0), NONE, "the mean over axis 0 needs at least one element"),
    "reduce_mean of all": (lambda ops, x: ops.reduce_mean(x), LINES, r"axes \(0, 1\) needs at least one element"),
    "reduce_max": (
        lambda ops, x: ops.reduce_max(x, axis=0),
        NONE,
        "the maximum over axis 0 needs at least one element",
    ),
    "argmax": (lambda ops, x: ops.argmax(x, axis=1), LINES, "the argmax over axis 1 needs at least one element"),
    "mse_loss": (lambda ops, x: ops.mse_loss(x, x), NONE, "which must have elements to take a mean of"),
    "layer_norm": (lambda ops, x: ops.layer_norm(x, None, None), LINES, "must not be empty to normalise over it"),
    "batch_norm": (lambda ops, x: ops.batch_norm(x, None, None), NONE, "the batch variance needs at least 2 values"),
    "max_pool": (
        lambda ops, x: ops.max_pool(x, kernel=(1,), stride=(1,), padding=(0,)),
        LINES,
        "spatial axis 0 must have a cell to pool",
    ),
}


def interpreters(program: Any, x: Any) -> dict[str, Callable[[], Any]]:
    named = Spec(tuple("N" if n == 0 else n for n in x.shape), where=["N >= 0"])
    return {
        "eager": lambda: opstage.run(program, x, options=FLOAT64),
        "plain": lambda: opstage.run(program, x, options=FLOAT64.replace(fast_kernels=False)),
        "compiled": lambda: opstage.run(program, x, options=COMPILED),
        "of a name": lambda: opstage.compile(program, named, options=FLOAT64).forward(x),
    }


@pytest.mark.parametrize("case", VALUES)
def test_values_of_nothing(case: str) -> None:
    program, x, expected = VALUES[case]
    assert opstage.check(program, x, options=FLOAT64).ok
    for name, call in interpreters(program, x).items():
        assert_close(call(), expected, (0, 0), name)


@pytest.mark.parametrize("case", ERRORS)
def test_what_nothing_has_not(case: str) -> None:
    program, x, message = ERRORS[case]
    for call in interpreters(program, x).values():
        with pytest.raises(opstage.ShapeError, match=message):
            call()
    (finding,) = opstage.check(program, x, options=FLOAT64).errors
    assert re.search(message, finding.reason)
