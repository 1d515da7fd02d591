"""Tables of names: what they map, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage.init import Declaration, zeros
from opstage.ops.errors import UsageError
from opstage.ops.trees import flatten
from opstage.training.weights import read_named, write_named

DECLARED: Any = {
    "layers": [{"w": Declaration((2, 3), zeros), "parts": [Declaration((1,), zeros)] * 2} for _ in range(2)],
    "h2o": Declaration((), zeros),
}
NAMES = {"layers.{}.w": "model.{}.weight", "layers.{}.parts.{}": "model.{}.part{}.weight", "h2o": "water"}


def tensors() -> dict[str, Any]:
    made = {f"model.{i}.weight": np.full((2, 3), float(i)) for i in range(2)}
    made |= {f"model.{i}.part{j}.weight": np.array([10.0 * i + j]) for i in range(2) for j in range(2)}
    return {**made, "water": np.array(5.0)}


def test_both_ways() -> None:
    given = tensors()
    found = read_named(DECLARED, given, NAMES)
    assert found["layers"][1]["parts"][0] is given["model.1.part0.weight"], "nothing is copied"
    assert found["h2o"] == 5 and len(flatten(found)[0]) == 7
    again = write_named(found, NAMES)
    assert set(again) == set(given) and all(again[name] is given[name] for name in given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"water": None}, "h2o: there is no tensor water"),
        ({"water": np.zeros(2)}, r"h2o: expected \(\), but water is \(2,\)"),
        ({"fire": np.zeros(2)}, r"no parameter takes fire \(2,\)"),
        ({"model.0.weight": np.zeros((3, 2))}, r"layers.0.w: expected \(2, 3\), but model.0.weight is \(3, 2\)"),
    ],
)
def test_tensors_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    given = {name: array for name, array in {**tensors(), **change}.items() if array is not None}
    with pytest.raises(UsageError, match=message):
        read_named(DECLARED, given, NAMES)


def test_what_is_ignored() -> None:
    read_named(DECLARED, {**tensors(), "a.inv_freq": np.zeros(2)}, NAMES, ignore=["inv_freq"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h2o": None}, "h2o has no name in the table"),
        ({"h2o": "model.{}"}, "must have as many {} as h2o"),
        ({"layers.{}.w": "model.weight"}, "must have as many {} as layers"),
        ({"h2o": "model.0.weight"}, "model.0.weight is the name of two parameters"),
    ],
)
def test_tables_that_are_wrong(change: dict[str, Any], message: str) -> None:
    names = {path: name for path, name in {**NAMES, **change}.items() if name is not None}
    with pytest.raises(UsageError, match=message):
        read_named(DECLARED, tensors(), names)


def test_of_many_errors_the_first_are_shown() -> None:
    many = {f"p{i}": Declaration((1,), zeros) for i in range(100)}
    with pytest.raises(UsageError, match="and 80 more"):
        read_named(many, {}, {name: name for name in many})
