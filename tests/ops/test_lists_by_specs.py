"""A list of numbers is an array where one Spec is declared, and a tree where a list of them is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import DtypeError, OpstageError, Spec, UsageError

ROWS = [[1, 2], [3, 4], [5, 6]]
ARRAY = np.array(ROWS, np.float64)
MOVE = [[0.5, 0.0], [1.0, 2.0], [0.0, -1.0]]


@opstage.shapes("x: n 2")
def squares(ops: Any, x: Any) -> Any:
    return ops.sum(x * x)


def test_a_declared_program_takes_lists() -> None:
    assert opstage.run(squares, ROWS) == np.sum(ARRAY**2)
    value, gradient = opstage.value_and_grad(squares, ROWS)
    assert value == 91 and np.array_equal(gradient, 2 * ARRAY)
    assert np.array_equal(opstage.vjp(squares, ROWS)[1](1.0)[0], 2 * ARRAY)
    assert opstage.jvp(squares, (ROWS,), (MOVE,))[1] == np.sum(2 * ARRAY * MOVE)
    assert np.array_equal(opstage.hvp(squares, (ROWS,), (MOVE,))[0], 2 * np.array(MOVE))


def test_a_compiled_program_takes_lists() -> None:
    compiled: Any = opstage.compile(squares, Spec("n 2"))
    assert compiled.forward(ROWS) == 91
    assert np.array_equal(compiled.backward(ROWS)[0], 2 * ARRAY)
    assert np.array_equal(compiled.vjp(ROWS)[1](1.0)[0], 2 * ARRAY)
    assert compiled.jvp((ROWS,), (MOVE,))[1] == np.sum(2 * ARRAY * MOVE)
    assert np.array_equal(compiled.hvp((ROWS,), (MOVE,))[0], 2 * np.array(MOVE))
    assert compiled.forward(ARRAY[:2]) == 30


def test_a_list_of_specs_stays_a_tree() -> None:
    compiled = opstage.compile(
        lambda ops, parts, x: parts[0] * parts[1] + x, [Spec(""), Spec("")], {"x": Spec("2")}["x"]
    )
    assert np.array_equal(compiled.forward([2.0, 3.0], [1, 4]), [7.0, 10.0])


def test_numbers_of_labels_stay_whole() -> None:
    compiled = opstage.compile(lambda ops, y: y + y, Spec("n", "int64"))
    found = compiled.forward([1, 2**53 + 1])
    assert found.dtype == np.int64 and found.tolist() == [2, 2**54 + 2]
    with pytest.raises(DtypeError):
        compiled.forward([1.5, 2.0])


@pytest.mark.parametrize("bad", [[1, 2], [[1, 2, 3]], [[1, 2], [3]], [["a", "b"]], [[1, None]]])
def test_lists_that_do_not_fit(bad: Any) -> None:
    with pytest.raises(OpstageError):
        opstage.compile(squares, Spec("n 2")).forward(bad)


def test_rows_of_different_lengths_are_an_error_of_a_declared_program() -> None:
    with pytest.raises(UsageError, match="rows of different lengths"):
        opstage.run(squares, [[1, 2], [3]])
