"""Positions that are joined, as indices of several axes are, and masks of tokens that are made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec, derived
from opstage.analysis.dependence import layout as layout
from opstage.analysis.dependence import positions as positions
from tests.analysis.dependence.oracle import FLOAT64, violations

D = 3
SPEC = Spec(("B", "T", D), where=("B >= 1", "T >= 1"))
SIZES = [{"B": 2, "T": 4}, {"B": 1, "T": 1}, {"B": 3, "T": 2}, {"B": 1, "T": 3}]


def places(ops: Any, x: Any) -> tuple[Any, Any]:
    """The place of each (b, t) along either axis."""
    shape = x.shape[:2]
    return tuple([ops.iota(shape=shape, axis=axis, dtype="int64") for axis in (0, 1)])


def at(make: Callable[..., list[Any]], **more: Any) -> Callable[..., Any]:
    """x at positions of (b, t) that are joined."""
    return lambda ops, x: derived.gather_nd(ops, x, ops.stack(make(*places(ops, x), x.shape[1]), axis=2), **more)


def flat(make: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """Rows of x in one row, at numbers of these."""

    def program(ops: Any, x: Any) -> Any:
        rows = ops.reshape(x, shape=(x.shape[0] * x.shape[1], D))
        return ops.gather_rows(rows, make(*places(ops, x), *x.shape[:2]), **more)

    return program


def from_the_end(ops: Any, x: Any, joined: Any, size: Any) -> Any:
    """Negative positions count from the end, by the size of their own axis, as ONNX has it."""
    behind = ops.broadcast_to(size, shape=joined.shape)
    return ops.select(ops.less(joined, 0 * joined), joined + behind, joined)


def counted(ops: Any, x: Any) -> Any:
    joined = ops.stack([*places(ops, x)], axis=2)
    size = ops.concat([ops.full(shape=(1,), value=n, dtype="int64") for n in x.shape[:2]], axis=0)
    return derived.gather_nd(ops, x, from_the_end(ops, x, joined, size))


def stepped(ops: Any, x: Any, first: int) -> Any:
    """How far positions of (B, T) are apart, of which the first has `first` before it."""
    _, t = places(ops, x)
    before = ops.slice(t, axis=1, start=0, length=1) + first
    joined = ops.concat([before, t], axis=1)
    return ops.sub(*[ops.slice(joined, axis=1, start=s, length=x.shape[1]) for s in (1, 0)])


def packed(ops: Any, x: Any, first: int = -1, later: int = 0, masked: bool = True) -> Any:
    """Attention as transformers builds its mask: to no later position, and only within a packed sequence, whose number
    is how often positions do not follow each other so far; it is read at joined positions."""
    rows, length, _ = x.shape
    follows = ops.equal(stepped(ops, x, first), ops.full(shape=(rows, length), value=1, dtype="int64"))
    numbers = ops.cumsum(ops.cast(ops.logical_not(follows), dtype="int64"), axis=1)
    b, q, k = (ops.iota(shape=(rows, length, length), axis=axis, dtype="int64") for axis in range(3))
    mine, theirs = (derived.gather_nd(ops, numbers, ops.stack([b, each], axis=3)) for each in (q, k))
    mask = ops.logical_and(ops.less_equal(k, q + later), ops.equal(mine, theirs))
    scores = ops.bmm(x, ops.permute(x, axes=(0, 2, 1)))
    if masked:
        scores = ops.select(mask, scores, ops.full(shape=scores.shape, value=-np.inf))
    return ops.bmm(ops.softmax(scores, axis=-1), x)


PROGRAMS: dict[str, tuple[Callable[..., Any], str, str]] = {
    # program, its verdicts on causal:T and independent:B
    "each at its place": (at(lambda b, t, length: [b, t]), "proved", "proved"),
    "counted from either end": (counted, "proved", "proved"),
    "in reverse": (at(lambda b, t, length: [b, length - 1 - t]), "refuted", "undecided"),
    "the next one": (at(lambda b, t, length: [b, t + 1], mode="zero"), "refuted", "undecided"),
    "the first one": (at(lambda b, t, length: [b, t * 0]), "undecided", "undecided"),
    "rows in a row": (flat(lambda b, t, rows, length: b * length + t), "proved", "proved"),
    "rows in a row, turned": (flat(lambda b, t, rows, length: t * rows + b), "refuted", "refuted"),
    "the row before": (flat(lambda b, t, rows, length: b * length + t - 1, mode="zero"), "refuted", "refuted"),
    "packed": (packed, "proved", "proved"),
    "packed, one too late": (lambda ops, x: packed(ops, x, later=1), "refuted", "proved"),
    "packed, without its mask": (lambda ops, x: packed(ops, x, masked=False), "refuted", "proved"),
    "a first position that does not follow": (lambda ops, x: packed(ops, x, first=-3), "proved", "proved"),
}


def found_wrong(program: Callable[..., Any]) -> list[str]:
    report = opstage.check(program, SPEC, options=FLOAT64)
    assert report.ok, report
    symbolic, found = report.program.body, []
    for sizes in SIZES:
        x = np.random.default_rng(0).normal(size=(sizes["B"], sizes["T"], D))
        body = report.at(**sizes).program.body
        for axis in (0, 1):
            dim = symbolic.types[symbolic.inputs[0]].shape[axis]
            found += violations(body, [x], named=[(0, axis)], types=symbolic, sizes=sizes, dim=dim)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_read_at_joined_positions_is_what_facts_say(name: str) -> None:
    program, *expected = PROGRAMS[name]
    assert found_wrong(program) == []
    report = opstage.check(program, SPEC, options=FLOAT64, claims=["causal:T", "independent:B"])
    assert [verdict.state for verdict in report.claims] == expected
    assert all(verdict.witness is not None for verdict in report.claims if verdict.state == "refuted")


VALUES: dict[str, Callable[..., Any]] = {
    # integers alone, whose values are what is held against runs
    "steps of positions": lambda ops, x: [stepped(ops, x, -1), stepped(ops, x, 1)],
    "a tuple's parts": lambda ops, x: [
        joined := ops.stack([*places(ops, x)], axis=2),
        ops.slice(joined, axis=2, start=1, length=1),
        ops.slice(joined, axis=1, start=0, length=1),
        ops.permute(joined, axes=(2, 1, 0)),
        ops.less(joined, 0 * joined + 1),
        joined * 2 - 1,
        ops.broadcast_to(ops.slice(joined, axis=2, start=0, length=1), shape=joined.shape),
        ops.concat([joined, joined], axis=2),
        ops.slice(ops.concat([joined, joined], axis=2), axis=2, start=1, length=2, step=2),
        ops.pad(joined, padding=((0, 0), (0, 0), (1, 0)), value=0),
    ],
    "positions of positions": lambda ops, x: [
        ops.gather_rows(ops.iota(shape=(x.shape[1],), axis=0, dtype="int64") * 3 + 1, places(ops, x)[1])
    ],
    "parts of one sequence": lambda ops, x: [
        ops.concat([places(ops, x)[1], x.shape[1] + places(ops, x)[1]], axis=1),
        ops.concat([places(ops, x)[1], places(ops, x)[1]], axis=1),
        ops.concat([places(ops, x)[1], ops.full(shape=(x.shape[0], 1), value=x.shape[1], dtype="int64")], axis=1),
        ops.concat([places(ops, x)[1], ops.full(shape=(x.shape[0], 1), value=7, dtype="int64")], axis=1),
    ],
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_positions_are_what_facts_say(name: str) -> None:
    assert found_wrong(VALUES[name]) == []
