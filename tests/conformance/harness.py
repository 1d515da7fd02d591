"""What the conformance tests share: the interpreters under test, inputs in a dtype, comparisons, differences."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import optree

from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.eager_cpu.kernels import kernel_table
from opstage.interpreters.registry import backends, make_interpreter
from opstage.options import Options
from opstage.transforms.interpreter import BaseInterpreter
from tests.samples.sample import Sample, Tolerance

SEED = 20240607


def _decomposed(options: Options) -> BaseInterpreter[Any]:
    """eager_cpu with kernels for core primitives alone: what the decompositions say."""
    table = kernel_table(options.dtype, False)
    return NumpyOps(options, {p: kernel for p, kernel in table.items() if p.core})


def _registered(backend: str, **fixed: Any) -> Callable[[Options], BaseInterpreter[Any]]:
    return lambda options: make_interpreter(options.replace(backend=backend, **fixed))


# Every registered interpreter that executes; shape_check is held against these in its own tests.
EXECUTING: dict[str, Callable[[Options], BaseInterpreter[Any]]] = {
    **{name: _registered(name) for name in backends() if name != "shape_check"},
    "eager, plain NumPy": _registered("eager", fast_kernels=False),
    "eager, decomposed": _decomposed,
}


def inputs(sample: Sample, dtype: str = "float64") -> tuple[Any, ...]:
    """The sample's operands: the same for every interpreter, floats in `dtype`."""
    rng = np.random.default_rng([SEED, zlib.crc32(sample.id.encode())])
    return cast_tree(sample.arrays(rng), dtype)


def cast_tree(tree: Any, dtype: str) -> Any:
    def cast(array: Any) -> Any:
        array = np.asarray(array)
        if array.dtype.kind not in "fO":
            return array
        if dtype == "exact":
            return np.asarray(np.frompyfunc(Fraction, 1, 1)(array), dtype=object)
        return array.astype(dtype)

    return optree.tree_map(cast, tree)


def program_of(sample: Sample) -> Callable[..., Any]:
    return lambda ops, *refs: sample.apply(ops, *refs)


def leaves(tree: Any) -> list[Any]:
    return optree.tree_leaves(tree)


def is_float(array: Any) -> bool:
    return np.asarray(array).dtype.kind in "fO"


def assert_close(actual: Any, expected: Any, tolerance: Tolerance, what: str) -> None:
    """Leaf by leaf: shapes equal, values within relative and absolute tolerance, nan and inf at the same places."""
    actual_leaves, expected_leaves = leaves(actual), leaves(expected)
    assert len(actual_leaves) == len(expected_leaves), (
        f"{what}: {len(actual_leaves)} results, not {len(expected_leaves)}"
    )
    for a, e in zip(actual_leaves, expected_leaves):
        a, e = np.asarray(a), np.asarray(e)
        assert a.shape == e.shape, f"{what}: shape {a.shape}, not {e.shape}"
        if a.dtype.kind == "O" or e.dtype.kind == "O":
            a, e = a.astype(np.float64), e.astype(np.float64)
        np.testing.assert_allclose(a, e, rtol=tolerance[0], atol=tolerance[1], err_msg=what)


def random_like(rng: np.random.Generator, tree: Any) -> Any:
    """Normal float64 arrays shaped like the float leaves; None in place of the others."""
    return optree.tree_map(lambda x: np.asarray(rng.standard_normal(np.shape(x))) if is_float(x) else None, tree)


def move(tree: Any, direction: Any, by: float) -> Any:
    """tree + by · direction, on float leaves; arrays stay arrays, as a list of numbers is no list of arrays."""
    return optree.tree_map(lambda x, d: x if d is None else np.asarray(x + by * d), tree, direction, none_is_leaf=True)


def dot(a: Any, b: Any) -> float:
    """Inner product over the leaves that both have."""
    pairs = zip(optree.tree_leaves(a, none_is_leaf=True), optree.tree_leaves(b, none_is_leaf=True))
    return float(sum(np.sum(np.asarray(x) * np.asarray(y)) for x, y in pairs if x is not None and y is not None))


def central_difference(f: Callable[[Any], Any], point: Any, direction: Any, h: float = 1e-4) -> list[Any]:
    """Directional derivative of f's float leaves by a fourth-order central difference, in float64."""

    def at(by: float) -> list[Any]:
        return [np.asarray(v, dtype=np.float64) for v in leaves(f(move(point, direction, by))) if is_float(v)]

    return [(8 * (p - m) - (pp - mm)) / (12 * h) for p, m, pp, mm in zip(at(h), at(-h), at(2 * h), at(-2 * h))]
