"""What the tests of functions over ops share: cases held to NumPy, on both backends and in their derivatives."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

import opstage
from opstage import derived
from opstage.options import Options

FLOAT64 = Options(dtype="float64")
COMPILED = FLOAT64.replace(backend="compiled")


@dataclass(frozen=True)
class Row:
    """One call of a function: shapes of normal operands, or arrays; the call; and the same in NumPy or SciPy.

    gradient   whether its derivatives are compared with differences: not at kinks, and not of integers
    """

    name: str
    operands: tuple[Any, ...]
    call: Callable[..., Any]
    reference: Callable[..., Any]
    gradient: bool = True


def of(
    name: str, operands: tuple[Any, ...], reference: Callable[..., Any], gradient: bool = True, **static: Any
) -> Row:
    """A row whose name begins with that of a derived function, called with the operands in order."""
    function = getattr(derived, name.split()[0].rstrip(","))
    return Row(name, operands, lambda ops, *refs: function(ops, *refs, **static), reference, gradient)


def drawn(row: Row) -> list[Any]:
    """The operands: arrays as they are, shapes filled with normal numbers."""
    rng = np.random.default_rng(zlib.crc32(row.name.encode()))
    return [rng.standard_normal(x) if isinstance(x, tuple) else np.asarray(x) for x in row.operands]


def assert_row(row: Row) -> None:
    """Values on both backends; types on shapes alone; gradients and second derivatives against differences."""
    arrays = drawn(row)
    expected = optree.tree_leaves(row.reference(*arrays))
    for options in (FLOAT64, COMPILED):
        leaves = optree.tree_leaves(opstage.run(row.call, *arrays, options=options))
        assert len(leaves) == len(expected)
        for a, e in zip(leaves, expected):
            e = np.asarray(e)
            assert a.shape == e.shape and a.dtype.kind == e.dtype.kind, (a.shape, e.shape, a.dtype, e.dtype)
            np.testing.assert_allclose(a, e, rtol=1e-10, atol=1e-12)
    report = opstage.check(row.call, *arrays, options=FLOAT64)
    assert report.ok, report
    types = optree.tree_leaves(report.outputs, is_leaf=lambda t: hasattr(t, "dtype"))
    assert [tuple(t.shape) for t in types] == [np.shape(e) for e in expected]
    if row.gradient:
        assert_derivatives(row.call, arrays)


def assert_derivatives(call: Callable[..., Any], arrays: list[Any]) -> None:
    """Gradients of a curved function of the results along a direction, and hvp, against central differences."""
    floats = [i for i, x in enumerate(arrays) if x.dtype.kind == "f" and x.size]
    rng = np.random.default_rng(5)
    directions = {i: rng.standard_normal(arrays[i].shape) for i in floats}
    weights = [
        rng.standard_normal(np.shape(y)) for y in optree.tree_leaves(opstage.run(call, *arrays, options=FLOAT64))
    ]

    def loss(ops: Any, moved: Any) -> Any:
        given = [moved[str(i)] if i in directions else ops.const(x) for i, x in enumerate(arrays)]
        total = None
        for y, w in zip(optree.tree_leaves(call(ops, *given)), weights):
            part = ops.sum(ops.mul(ops.mul(y, y), ops.const(w)))
            total = part if total is None else ops.add(total, part)
        return total

    point = {str(i): arrays[i] for i in floats}
    along = {str(i): directions[i] for i in floats}
    h = 1e-5
    ahead = {k: x + h * along[k] for k, x in point.items()}
    behind = {k: x - h * along[k] for k, x in point.items()}

    def gradient(at: Any) -> Any:
        return opstage.value_and_grad(loss, at, options=FLOAT64)[1]

    here, up, down = gradient(point), gradient(ahead), gradient(behind)
    slope = sum(np.sum(here[k] * along[k]) for k in point)
    values = [float(opstage.run(loss, at, options=FLOAT64)) for at in (ahead, behind)]
    scale = max(1.0, abs(values[0]))
    np.testing.assert_allclose(slope, (values[0] - values[1]) / (2 * h), rtol=1e-6, atol=1e-7 * scale)
    (second,) = opstage.hvp(loss, (point,), (along,), options=FLOAT64)
    for k in point:
        difference = (up[k] - down[k]) / (2 * h)
        np.testing.assert_allclose(second[k], difference, rtol=1e-5, atol=1e-6 * scale)
