"""Rules made wrong in one place each, all of which points of a box catch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from opstage import Box, Options, bounds
from opstage.analysis import intervals as interval_rules
from opstage.analysis.relaxations import unary as unary
from opstage.ops.catalogue import primitives
from tests.analysis.inside import check_inside

RNG = np.random.default_rng(0)
WIDE = Box(RNG.uniform(-2, 0, (4, 3)).astype("f4"), RNG.uniform(0, 2, (4, 3)).astype("f4"))
POINT = RNG.uniform(0.5, 2, (4, 3)).astype("f4")
WEIGHT = RNG.standard_normal((5, 3)).astype("f4")


def ends_of(name: str, bounds: Any, refs: Any, static: Any) -> Any:
    """The op at both lower ends and at both upper ends: right only for what rises in every operand, unrounded."""
    primitive = primitives()[name]
    ends = [bounds.inner.bind(primitive, tuple(getattr(r, end) for r in refs), static) for end in ("lower", "upper")]
    return tuple(bounds.between(low, high) for low, high in zip(*ends))


def unrounded(x: Any) -> Box:
    return Box(x, x)


def first(ops: Any, x: Any) -> Any:
    return ops.slice(x, axis=1, start=0, length=2)


def last(ops: Any, x: Any) -> Any:
    return ops.slice(x, axis=1, start=1, length=2)


MUTANTS: dict[str, tuple[str, Callable[..., Any], Box]] = {
    "sums that are not rounded": ("add", lambda ops, x: ops.add(x, ops.scale(x, c=1e-8)), unrounded(POINT)),
    "differences of like ends": ("sub", lambda ops, x: ops.sub(first(ops, x), last(ops, x)), WIDE),
    "products of like ends": ("mul", lambda ops, x: ops.mul(x, ops.neg(x)), WIDE),
    "quotients of like ends": (
        "div",
        lambda ops, x: ops.div(ops.add(first(ops, x), 3.0), ops.add(last(ops, x), 3.0)),
        WIDE,
    ),
    "magnitudes of ends": ("abs", lambda ops, x: ops.abs(x), WIDE),
    "a cosine without its crest": ("cos", lambda ops, x: ops.cos(x), WIDE),
    "silu without its valley": ("silu", lambda ops, x: ops.silu(ops.sub(x, 1.3)), WIDE),
    "an even power of ends": ("pow", lambda ops, x: ops.pow(x, exponent=2), WIDE),
    "exp that is not rounded": ("exp", lambda ops, x: ops.exp(x), unrounded(POINT)),
    "linear at like ends": ("linear", lambda ops, x: ops.linear(ops.const(WEIGHT), None, x), WIDE),
    "linear that is not rounded": ("linear", lambda ops, x: ops.linear(ops.const(WEIGHT), None, x), unrounded(POINT)),
    "a sum of ends that is not rounded": ("reduce_sum", lambda ops, x: ops.reduce_sum(x, axis=1), unrounded(POINT)),
    "softmax of ends": ("softmax", lambda ops, x: ops.softmax(x), WIDE),
    "a mask of like ends": (
        "less",
        lambda ops, x: ops.cast(ops.less(first(ops, x), last(ops, x)), dtype="float32"),
        WIDE,
    ),
    "relu's derivative of ends": ("relu_grad", lambda ops, x: ops.relu_grad(x, ops.neg(x)), WIDE),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_interval_rule_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, program, box = MUTANTS[name]
    found = bounds(program, box)
    check_inside(program, found, [box.lower], [box.upper], np.random.default_rng(0), Options(), 30)
    monkeypatch.setitem(interval_rules.RULES, primitives()[op], partial(ends_of, op))
    monkeypatch.setattr(interval_rules, "EXACT", interval_rules.EXACT - {primitives()[op]})
    wrong = bounds(program, box)
    with pytest.raises(AssertionError):
        check_inside(program, wrong, [box.lower], [box.upper], np.random.default_rng(0), Options(), 30)


def _network(ops: Any, x: Any) -> Any:
    hidden = ops.tanh(ops.relu(ops.linear(ops.const(WEIGHT), None, x)))
    return ops.linear(ops.const(WEIGHT.T), None, hidden)


def _through_zero(ops: Any, x: Any, slope: float, chosen: Any = None) -> Any:
    """The chord of relu without its constant."""
    lines = PIECEWISE(ops, x, slope, chosen)
    return lines._replace(above=ops.scale(lines.above, c=0.0))


def _flat(ops: Any, x: Any, slope: float, chosen: Any = None) -> Any:
    """The chord of relu below it."""
    lines = PIECEWISE(ops, x, slope, chosen)
    return unary.Lines(lines.slope_above, lines.above, lines.slope_above, lines.above)


PIECEWISE = unary._piecewise

LINE_MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "relu's chord without its constant": (unary, "_piecewise", _through_zero),
    "relu's chord on both sides": (unary, "_piecewise", _flat),
}


@pytest.mark.parametrize("name", LINE_MUTANTS)
def test_a_wrong_line_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, mutant = LINE_MUTANTS[name]
    monkeypatch.setattr(module, attribute, mutant)
    wrong = bounds(_network, WIDE, method="crown")
    with pytest.raises(AssertionError):
        check_inside(_network, wrong, [WIDE.lower], [WIDE.upper], np.random.default_rng(0), Options(), 30)
