"""Constants inside of loops and branches: of the dtype that is asked for, whatever the array comes in, and copies.

Lists and wider arrays were kept as they came, and compiled programs read their bytes as another dtype's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage import Options

VALUES: dict[str, tuple[Any, str | None, str]] = {
    "list of ints": ([1, 2, 3], "int32", "int32"),
    "list of floats": ([0.1, 0.2, 0.3], None, "float"),
    "float64": (np.array([0.1, 0.2, 0.3]), None, "float"),
    "float32": (np.array([0.1, 0.2, 0.3], np.float32), None, "float"),
    "bytes": (np.array([1, 2, 200], np.uint8), "int64", "int64"),
    "other order of bytes": (np.array([1, 2, 3], ">i4"), "int32", "int32"),
    "every second": (np.arange(6.0)[::2], None, "float"),
    "column order": (np.asfortranarray(np.arange(6.0).reshape(2, 3)), None, "float"),
    "ints as floats": ([1, 2, 3], "float", "float"),
    "booleans": ([True, False, True], "bool", "bool"),
    "number": (0.1, None, "float"),
}
BODIES = ("scan", "cond", "while_loop", "scan in scan")


def program(body: str, value: Any, dtype: str | None) -> Any:
    """The constant, and its own double, made in such a body."""

    def made(ops: Any) -> Any:
        given = {} if dtype is None else {"dtype": ops.dtype if dtype == "float" else dtype}
        const = ops.const(value, **given)
        return const, ops.logical_not(const) if const.dtype == bool else ops.add(const, const)

    def call(ops: Any, x: Any) -> Any:
        if body == "cond":
            return ops.cond(ops.less(x, 1.0), made, lambda ops: made(ops))
        if body == "while_loop":
            start = optree.tree_map(lambda ref: ops.full(shape=ref.shape, value=0, dtype=ref.dtype), made(ops))
            step = lambda ops, c: (ops.add(c[0], ops.const(1)), made(ops))  # noqa: E731
            _, found = ops.while_loop(lambda ops, c: ops.less(c[0], 2), step, (ops.const(0), start), max_iterations=3)
            return found
        if body == "scan in scan":
            inner = lambda ops, c, _: (c, ops.scan(lambda ops, c, _: (c, made(ops)), c, None, length=1)[1])  # noqa: E731
            return optree.tree_map(lambda ref: ref[0, 0], ops.scan(inner, x, None, length=2)[1])
        return optree.tree_map(lambda ref: ref[1], ops.scan(lambda ops, c, _: (c, made(ops)), x, None, length=2)[1])

    return call


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("body", BODIES)
def test_constants_are_what_was_asked_for(body: str, name: str) -> None:
    value, dtype, kind = VALUES[name]
    for precision in ("float32", "float64"):
        wanted = np.asarray(value).astype(precision if kind == "float" else kind)
        double = ~wanted if kind == "bool" else wanted + wanted
        for backend in ("eager", "compiled"):
            options = Options(dtype=precision, backend=backend)
            found = opstage.run(program(body, value, dtype), np.float64(0.5), options=options)
            for array, right in zip(found, (wanted, double)):
                assert array.dtype == right.dtype, (backend, precision)
                np.testing.assert_array_equal(array, right)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_body_keeps_a_copy(backend: str) -> None:
    held = np.ones(3)

    def call(ops: Any, x: Any) -> Any:
        def step(ops: Any, c: Any, _: Any) -> Any:
            const = ops.const(held)
            held[:] = 7
            return ops.add(c, const), ()

        held[:] = 1
        return ops.scan(step, x, None, length=2)[0]

    assert opstage.run(call, np.zeros(3), options=Options(backend=backend)).tolist() == [2, 2, 2]


def test_recorded_bodies_hold_constants_in_their_dtypes() -> None:
    def bodies(body: Any) -> Any:
        yield body
        for equation in body.equations:
            for static in equation.static.values():
                for each in static if isinstance(static, tuple) else (static,):
                    if hasattr(each, "equations"):
                        yield from bodies(each)

    for body in BODIES:
        for value, dtype, _ in VALUES.values():
            graph = opstage.record(program(body, value, dtype), opstage.Spec(""))
            for each in bodies(graph.body):
                for constant in each.constants:
                    assert constant.value.dtype == constant.type.dtype and constant.value.shape == constant.type.shape
