"""The most iterations of a while loop, by a carry that counts up to what the test allows, or down to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from ..ops.catalogue import elementwise
from ..ops.closed import Body, WhileParameters
from .ranges.fact import ValueRange

if TYPE_CHECKING:
    from .interpret import Facts, Interpretation


def assumed(run: Interpretation, carried: Sequence[Facts], test: Facts, holds: bool) -> list[Facts]:
    """The carries where the test holds, or where it does not."""
    columns = [domain.assumed([known[i] for known in carried], test[i], holds) for i, domain in enumerate(run.domains)]
    return list(zip(*columns)) if carried else []


_EXACT = 2.0**52
"""Up to it sums and quotients of whole numbers are whole numbers here."""


class Trips(NamedTuple):
    """most      iterations; None where nothing bounds them
    counters  by the number of a carry that counts its range
    """

    most: int | None
    counters: Mapping[int, ValueRange]


def trips_of(run: Interpretation, loop: WhileParameters, read: Sequence[Facts], carried: Sequence[Facts]) -> Trips:
    """The iterations of a loop whose operands have the facts `read`, and whose carries the facts `carried` before each.

    An integer c that each iteration makes greater by at least d >= 1, and that is at most m where the test holds, is at
    least c0 + k*d before iteration k: so k <= (m - c0)/d. It never wraps around, since the dtype has the sum of m and
    the most that is added.
    """
    at, count = ranges_at(run), len(loop.body.outputs)
    if at is None:
        return Trips(None, {})
    captured = read[count:]
    carried = [tuple([domain.made(fact) for domain, fact in zip(run.domains, known)]) for known in carried]
    (test,) = run.outputs_of(loop.test, [*carried, *captured])
    within = assumed(run, carried, test, True)
    facts = run.facts_of(loop.body, [*within, *captured])
    most: list[int] = []
    counters: dict[int, ValueRange] = {}
    for i in range(count):
        type_ = loop.body.input_types[i]
        move = _moves(loop.body, i, [None if known is None else cast("ValueRange", known[at]) for known in facts])
        if move is None or type_.shape != () or type_.dtype.kind != "i":
            continue
        first, here = cast("ValueRange", read[i][at]), cast("ValueRange", within[i][at])
        low, high, start, end = *move, first.low, here.high
        down = high <= -1
        if down:  # the same of the negative
            low, high, start, end = -high, -low, -first.high, -here.low
        if low < 1 or max(abs(start), abs(end), high) >= min(np.iinfo(type_.dtype).max / 4, _EXACT):
            continue
        most.append(max(int((end - start) // low) + 1, 0))
        last = max(end + high, -first.low if down else first.high)
        counters[i] = ValueRange(-last if down else start, -start if down else last, integral=True)
    return Trips(min(most, default=None), counters)


def ranges_at(run: Interpretation) -> int | None:
    """The place of the domain of ranges in a run."""
    return next((at for at, domain in enumerate(run.domains) if domain.name == "ranges"), None)


def _moves(body: Body, carry: int, facts: Sequence[ValueRange | None]) -> tuple[float, float] | None:
    """The least and the most that an iteration adds to a carry; None for one to which it does not add a number."""
    source, result = body.inputs[carry], body.outputs[carry]
    made = next((equation for equation in body.equations if result in equation.outputs), None)
    if made is None or made.primitive not in (elementwise.ADD, elementwise.SUB):
        return None
    x, y = made.inputs
    if made.primitive is elementwise.ADD and y == source:
        x, y = y, x
    move = facts[y]
    if x != source or y == source or move is None:
        return None
    return (move.low, move.high) if made.primitive is elementwise.ADD else (-move.high, -move.low)
