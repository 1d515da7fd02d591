"""Every collective with its meaning in NumPy: from the values of all ranks along an axis to what each of them gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opstage.ops import collective

RANKS = 4
AXIS = "data"


@dataclass(frozen=True)
class Case:
    """A call of a collective.

    name       of the method or function
    varies     whether the operand differs between the ranks; out: whether the result does
    reference  the ranks' values -> the ranks' results
    moves      whether gradients pass
    """

    name: str
    static: Mapping[str, Any]
    varies: bool
    out: bool
    reference: Callable[[list[Any]], list[Any]]
    shape: tuple[int, ...] = (4, 8)
    moves: bool = True
    id: str = field(default="")

    def call(self, ops: Any, x: Any) -> Any:
        function = getattr(collective, self.name, None)
        how = {"axis": AXIS, **self.static}
        return getattr(ops, self.name)(x, **how) if function is None else function(ops, x, **how)

    def __str__(self) -> str:
        return " ".join([self.name, *[f"{k}={v}" for k, v in self.static.items()]])


def _joined(xs: list[Any], dim: int) -> list[Any]:
    return [np.concatenate(xs, dim)] * RANKS


def _exchanged(xs: list[Any], split: int, join: int) -> list[Any]:
    return [np.concatenate([np.split(x, RANKS, split)[i] for x in xs], join) for i in range(RANKS)]


CASES = [
    Case("vary", {}, False, True, lambda xs: xs),
    Case("all_reduce", {}, True, False, lambda xs: [sum(xs)] * RANKS),
    Case("all_max", {}, True, False, lambda xs: [np.max(xs, 0)] * RANKS, moves=False),
    Case("all_gather", {"dim": 1}, True, True, lambda xs: _joined(xs, 1)),
    Case("all_gather", {"dim": -2, "replicated": True}, True, False, lambda xs: _joined(xs, 0)),
    Case("reduce_scatter", {"dim": 1}, True, True, lambda xs: np.split(sum(xs), RANKS, 1)),
    Case("reduce_scatter", {"dim": -2}, True, True, lambda xs: np.split(sum(xs), RANKS, 0)),
    Case("shard", {"dim": 0}, False, True, lambda xs: np.split(xs[0], RANKS, 0)),
    Case("shard", {"dim": -1}, False, True, lambda xs: np.split(xs[0], RANKS, 1)),
    Case("all_to_all", {"split": 0, "join": 1}, True, True, lambda xs: _exchanged(xs, 0, 1)),
    Case("all_to_all", {"split": -1, "join": -1}, True, True, lambda xs: _exchanged(xs, 1, 1)),
    Case("shift", {"by": 1}, True, True, lambda xs: [xs[i - 1] for i in range(RANKS)]),
    Case("shift", {"by": -3}, True, True, lambda xs: [xs[(i + 3) % RANKS] for i in range(RANKS)]),
    Case("shift", {"by": 9}, True, True, lambda xs: [xs[i - 1] for i in range(RANKS)]),
    Case("all_mean", {}, True, False, lambda xs: [sum(xs) / RANKS] * RANKS),
    Case("broadcast", {"root": 2}, True, False, lambda xs: [xs[2]] * RANKS),
    Case("all_reduce", {}, True, False, lambda xs: [sum(xs)] * RANKS, shape=()),
    Case("reduce_scatter", {"dim": 0}, True, True, lambda xs: np.split(sum(xs), RANKS, 0), shape=(0, 3)),
]
