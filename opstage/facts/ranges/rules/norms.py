"""Normalisation: x/√(mean(x²) + eps) is at most √n for rows of n elements, however large or small they are.

A row's mean of squares, its root and the reciprocal of that carry what they are of that row as their share. Where they
meet the row itself, the quotient has a bound that no range of its operands gives.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...domain import OpCall
from ..fact import INFINITY, Share, ShareKind, ValueRange

if TYPE_CHECKING:
    from .. import Ranges

_ABOVE_ROUNDING = 1024
"""How many of the least normal numbers added to a mean make up for squares that are flushed to 0."""


def raised(domain: Ranges, call: OpCall, x: ValueRange, y: ValueRange) -> Share | None:
    """The share of x + y of which x has that: of a maximum or a mean of squares to which what is not negative is
    added."""
    share = x.share
    if share is None or y.low < 0 or y.minus:
        return None
    if share.kind not in ("squares", "norm"):
        return above(x)
    enough = y.low >= _ABOVE_ROUNDING * domain.limits_at(call.outputs[0].dtype).vanishing
    return share._replace(kind="norm") if enough else share


def above(x: ValueRange) -> Share | None:
    """The share of what is at least x, if x is at least the maximum of a row, as a sum of what is not negative is."""
    kinds: tuple[ShareKind, ...] = ("maximum", "above", "sum") if x.low >= 0 else ("maximum", "above")
    return next(filter(None, [turned(x, kind, "above") for kind in kinds]), None)


def turned(x: ValueRange, kind: ShareKind, into: ShareKind) -> Share | None:
    """The share of a function of x, if x has one of `kind`."""
    return x.share._replace(kind=into) if x.share is not None and x.share.kind == kind else None


def largest(domain: Ranges, call: OpCall, share: Share | None, kind: ShareKind) -> float:
    """The bound of a row's elements where they are divided by their root of `kind`; infinite for another share."""
    if share is None or share.kind != kind:
        return INFINITY
    sizes = [share.shape[axis] for axis in share.axes]
    if not all(isinstance(size, int) for size in sizes):
        return INFINITY
    # The mean may be off by 1/64, and each of the ops after it by half an ulp.
    return (
        math.sqrt(math.prod(map(int, sizes))) * (1 + 1 / 64) * (1 + 4 * domain.limits_at(call.outputs[0].dtype).epsilon)
    )
