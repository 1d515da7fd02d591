"""Values of a program at many points of a box, and whether they lie inside its bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from opstage import Box, Options
from opstage.api import run
from opstage.ops.trees import flatten

Array = npt.NDArray[Any]


def points_in(lower: list[Array], upper: list[Array], rng: np.random.Generator, count: int) -> Iterator[list[Array]]:
    """The corners where all elements are low or high, random corners, the middle, and random points."""
    yield [np.array(x) for x in lower]
    yield [np.array(x) for x in upper]
    for k in range(count):
        found = []
        for low, high in zip(lower, upper):
            if k % 2:
                found.append(np.where(rng.random(low.shape) < 0.5, low, high))
            else:
                if low.dtype.kind != "f":
                    found.append(low)
                    continue
                with np.errstate(over="ignore", invalid="ignore"):
                    x = low + rng.random(low.shape).astype(low.dtype) * (high - low)
                found.append(np.clip(np.where(np.isnan(x), low, x), low, high).astype(low.dtype))
        yield found


def outside(box: Any, value: Any, slack: float = 0.0) -> str | None:
    """Where a value is not inside a box, as a sentence; nan is inside (-inf, inf) alone."""
    lower, upper, value = np.asarray(box.lower), np.asarray(box.upper), np.asarray(value)
    if lower.dtype.kind == "b":
        lower, upper, value = lower.astype(int), upper.astype(int), value.astype(int)
    if np.isnan(lower).any() or np.isnan(upper).any():
        return "an end is nan"
    if not (lower <= upper).all():
        return f"the ends are the wrong way around by {np.max(lower - upper)}"
    nothing = np.isinf(lower) & np.isinf(upper) & (lower < upper) if lower.dtype.kind == "f" else lower != lower
    room: Any = 0
    if value.dtype.kind == "f":
        room = slack * np.abs(np.where(np.isfinite(value), value, 0))
    good = nothing | ((lower <= value + room) & (value - room <= upper))
    if good.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~good)[0])
    return f"at {at}: {value[at]!r} is not from {lower[at]!r} to {upper[at]!r}"


def check_inside(
    program: Callable[..., Any],
    boxes: Any,
    lower: list[Array],
    upper: list[Array],
    rng: np.random.Generator,
    options: Options,
    count: int,
    *,
    exactly: bool = True,
) -> None:
    """Run a program in its own dtype and, for the exact values, in float64 at points of a box; hold both against it."""
    found = flatten_boxes(boxes)
    for point in points_in(lower, upper, rng, count):
        for dtype, slack in ((options.dtype, 0.0), ("float64", 1e-13))[: 2 if exactly else 1]:
            here = Options(dtype=dtype, backend=options.backend if dtype == options.dtype else "eager")
            values, _ = flatten(run(program, *point, options=here))
            assert len(values) == len(found)
            for box, value in zip(found, values):
                problem = outside(box, value, slack)
                assert problem is None, f"{dtype}: {problem}"


def flatten_boxes(tree: Any) -> list[Box]:
    """The boxes of a tree."""
    leaves, _ = flatten(tree)
    return [Box(low, high) for low, high in zip(leaves[::2], leaves[1::2])]
