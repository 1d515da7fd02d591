"""What a select gives lies in the range of its branches where they are taken; ops that it hides are findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec
from opstage.analysis.ranges import conditions
from opstage.facts import ranges_of
from opstage.training.validate import check_step
from tests.analysis.ranges.test_ranges_of_ops import EXTREMES, wrong


def _filled(ops: Any, x: Any, value: float) -> Any:
    return ops.full(shape=x.shape, value=value, dtype=x.dtype)


def _root(ops: Any, x: Any) -> Any:
    return ops.sqrt(x)  # nan below 0


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "log above 0": lambda ops, x: ops.select(x > 0, ops.log(x), 0 * x),
    "log where it is not below": lambda ops, x: ops.select(x >= 0, ops.log(x), 0 * x),
    "log of the other side": lambda ops, x: ops.select(x <= 0, 0 * x, ops.log(x)),
    "log where it is not below, otherwise": lambda ops, x: ops.select(x < 0, 0 * x, ops.log(x)),
    "not": lambda ops, x: ops.select(ops.logical_not(x <= 0), ops.log(x), 0 * x),
    "and": lambda ops, x: ops.select(ops.logical_and(x > 0, x < 3), ops.log(4 - x), x),
    "not and": lambda ops, x: ops.select(ops.logical_not(ops.logical_and(x > 0, x < 3)), x, ops.sqrt(x)),
    "exp below": lambda ops, x: ops.select(x < 2, ops.exp(x), x),
    "square": lambda ops, x: ops.select(x < 1, x * x, x),
    "far": lambda ops, x: ops.select(x > 1, 1 / ops.sqrt(ops.neg(1 - x)), x),
    "equal": lambda ops, x: ops.select(ops.equal(x, _filled(ops, x, 1.0)), x * 2, x),
    "unequal": lambda ops, x: ops.select(
        ops.equal(ops.relu(x), _filled(ops, x, 0.0)), _filled(ops, x, 1.0), 1 / ops.relu(x)
    ),
    "two tensors": lambda ops, x: ops.select(x < ops.sin(x), x, ops.sin(x)),
    "two tensors, one nan": lambda ops, x: ops.select(x < _root(ops, x), x, _root(ops, x)),
    "beside nan": lambda ops, x: ops.select(_root(ops, x) <= _filled(ops, x, 1.0), _filled(ops, x, 0.5), x),
    "beside nan, not": lambda ops, x: ops.select(_root(ops, x) > x, _filled(ops, x, 0.5), x),
    "moved": lambda ops, x: ops.select(x > 0, ops.permute(ops.sqrt(x), axes=(1, 0)), x),
    "summed": lambda ops, x: ops.select(x > 0, ops.cumsum(x, axis=0), x),
    "of a loop": lambda ops, x: ops.scan(lambda ops, c, e: (ops.select(e > c, e, c), None), x[0], x)[0],
    "nested": lambda ops, x: ops.select(x > 0, ops.select(x < 1, ops.log(x), ops.sqrt(x)), ops.tanh(x)),
}


def contradicted(name: str) -> list[str]:
    found = []
    for dtype, numbers in EXTREMES.items():
        rng = np.random.default_rng(11)
        draws = [[0.5, -1.0, 1.0, 2.0, 0.0], [1.0, 3.0, -2.0, 1.5, 4.0], numbers]
        for chosen in (*draws, *[rng.choice(numbers, 4) for _ in range(4)]):
            x = rng.choice(chosen, (4, 4)).astype(dtype)
            found += wrong(PROGRAMS[name], [x], dtype)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_select_lies_in_its_range(name: str) -> None:
    assert contradicted(name) == []


# Findings -----------------------------------------------------------------------------------------------------------


def _chosen_twice(ops: Any, x: Any) -> Any:
    z = ops.select(x > 0.5, x, _filled(ops, x, 1.0))
    return ops.select(x > 0.5, ops.log(z), 0 * x)


HIDDEN = {
    "log": lambda ops, x: ops.select(x > 0, ops.log(x), 0 * x),
    "root": lambda ops, x: ops.select(x > 1, ops.sqrt(x - 1), x),
    "exp": lambda ops, x: ops.select(x < 0, ops.exp(x), 1 + x),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_select_hides_is_a_finding_with_a_fix(name: str) -> None:
    found = ranges_of(opstage.check(HIDDEN[name], Spec("B 4")), {"x": (-5, 200)})
    assert [finding.rule for finding in found.findings] == ["nan-behind-select"]
    assert found.findings[0].fix == conditions.HIDDEN_FIX and found.findings[0].severity == "warning"
    assert not found.safe and not found.outputs[0][1].nan and not found.outputs[0][1].infinite


def test_the_fix_is_one() -> None:
    assert ranges_of(opstage.check(_chosen_twice, Spec("B 4")), {"x": (-5, 200)}).safe


@pytest.mark.parametrize(("program", "safe"), [(HIDDEN["log"], False), (_chosen_twice, True)])
def test_the_finding_is_true_of_the_gradient(program: Any, safe: bool) -> None:
    x = np.array([[-1.0, 0.0, 2.0, 3.0]])
    gradient = opstage.value_and_grad(lambda ops, x: ops.sum(program(ops, x)), x)[1][0]
    assert np.isfinite(gradient).all() == safe
    report = check_step(lambda ops, p, x: ops.sum(program(ops, p * x)), Spec("4"), Spec("4"))
    bounds = {"params": (-3, 3), "x": (-1, 1), "lr": (0, 1)}
    assert ranges_of(report, bounds).safe == safe


def test_a_value_that_is_used_elsewhere_is_still_nan() -> None:
    def program(ops: Any, x: Any) -> Any:
        y = ops.log(x)
        return ops.select(x > 0, y, 0 * x), y

    (_, first), (_, second) = ranges_of(opstage.check(program, Spec("B 4")), {"x": (-1, 1)}).outputs
    assert not first.nan and second.nan
