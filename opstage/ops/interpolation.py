"""Axes resized by interpolation, through a table of entries and weights, with ONNX's coordinates and PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrangement import repeat_interleave
from .dims import Dim
from .errors import nearest
from .primitive import R
from .tools import axis_of, dim_of, error, known, number_of, sequence_of, weighted
from .types import show_shape

if TYPE_CHECKING:
    from .protocol import Ops


Coordinates = Callable[[int, int, int, Fraction], Fraction]
"""(j, n, m, m/n or the given scale) -> the position among n entries of entry j of m."""

_HALF = Fraction(1, 2)


def _half_pixel(j: int, n: int, m: int, s: Fraction) -> Fraction:
    return (j + _HALF) / s - _HALF


COORDINATES: dict[str, Coordinates] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": lambda j, n, m, s: Fraction(n, 2) * (1 - m / (s * n)) + _half_pixel(j, n, m, s),
    "pytorch_half_pixel": lambda j, n, m, s: _half_pixel(j, n, m, s) if m > 1 else Fraction(0),
    "align_corners": lambda j, n, m, s: Fraction(j * (n - 1), m - 1) if m > 1 else Fraction(0),
    "asymmetric": lambda j, n, m, s: j / s,
    "tf_half_pixel_for_nn": lambda j, n, m, s: (j + _HALF) / s,
}
ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - _HALF),
    "round_prefer_ceil": lambda x: math.floor(x + _HALF),
    "floor": math.floor,
    "ceil": math.ceil,
}
MODES = ("nearest", "linear", "cubic")


def resize(
    ops: Ops[R],
    x: R,
    /,
    *,
    size: Sequence[Dim] | None = None,
    scale: float | Fraction | Sequence[float | Fraction] | None = None,
    axes: Sequence[int] | None = None,
    mode: str = "linear",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    cubic: float | Fraction | None = None,
    exclude_outside: bool = False,
    antialias: bool = False,
) -> R:
    """Axes resampled to `size` or to floor(n·scale) entries: the last ones, or with a single scale all but two.

    `coordinates` determines the position p of entry j, with s the scale, or m/n if only a size is
    given: half_pixel (j + ½)/s - ½; asymmetric j/s; align_corners j·(n - 1)/(m - 1); and ONNX's pytorch_half_pixel,
    half_pixel_symmetric and tf_half_pixel_for_nn. "nearest" rounds p by `rounding`; "linear" interpolates two
    entries, "cubic" four, by Keys' kernel with a = `cubic`, by default -0.75. Positions beyond the ends use the
    end entries, or are excluded with `exclude_outside`. With `antialias`, shrinking axes are filtered
    by a kernel stretched by 1/s, excluding entries outside, as in PyTorch, and `cubic` defaults to -0.5. Weights
    are exact until rounded to x's dtype. The size of a resized axis must be a number, unless nearest entries at an
    integer scale only repeat it.

    PyTorch: torch.nn.functional.interpolate: "bilinear" is "linear", align_corners=True "align_corners", "nearest" has
    coordinates="asymmetric" and rounding="floor", "nearest-exact" rounding="round_prefer_ceil". ONNX: Resize. Source:
    Keys 1981.

    Raises:
        DtypeError: x a mask; a number that the dtype does not hold.
        ShapeError: no such axis; an invalid argument; operands that do not fit each other.
    """
    op = "resize"
    for name, value, allowed in (("mode", mode, MODES), ("coordinates", coordinates, COORDINATES)):
        if value not in allowed:
            raise error(ops, op, f"{name} must be one of {tuple(allowed)} but is {value!r}{nearest(value, allowed)}")
    if rounding not in ROUNDINGS:
        raise error(ops, op, f"rounding must be one of {tuple(ROUNDINGS)} but is {rounding!r}")
    if antialias and mode == "nearest":
        raise error(ops, op, 'antialias is of mode "linear" and "cubic"; the nearest entry is not filtered')
    a = (
        Fraction(number_of(ops, op, "cubic", cubic))
        if cubic is not None
        else Fraction(-1, 2)
        if antialias
        else Fraction(-3, 4)
    )
    for axis, result, factor in _targets(ops, x, size, scale, axes):
        repeats = _repeats(factor, coordinates, rounding) if mode == "nearest" and size is None else None
        if repeats is not None:
            x = repeat_interleave(ops, x, repeats=repeats, axis=axis)
            continue
        shape = show_shape(x.shape)
        n = known(ops, op, x.shape[axis], lambda: f"axis {axis} of x, {shape}, is resampled")
        m = known(ops, op, result, lambda: f"axis {axis} of x, {shape}, is resampled to {result} entries")
        if m and not n:
            raise error(ops, op, f"x is {show_shape(x.shape)}: axis {axis} has no entries to make {m} of")
        s = factor or Fraction(m, max(n, 1))
        if not m:
            x = ops.slice(x, axis=axis, start=0, length=0)
            continue
        if mode == "nearest":
            table = [min(max(ROUNDINGS[rounding](COORDINATES[coordinates](j, n, m, s)), 0), n - 1) for j in range(m)]
            if table != list(range(n)):
                x = weighted(ops, x, axis, table, None)
            continue
        stretch = 1 / s if antialias and s < 1 else Fraction(1)
        made = _tables(coordinates, mode, n, m, s, a, stretch, exclude_outside or antialias)
        if made is not None:
            x = weighted(ops, x, axis, *made)
    return x


def _targets(
    ops: Ops[R], x: R, size: Sequence[Dim] | None, scale: Any, axes: Sequence[int] | None
) -> list[tuple[int, Dim, Fraction | None]]:
    """Return the axes to resize, with their new sizes and given scales."""
    op, rank = "resize", len(x.shape)
    if size is None and scale is None:
        raise error(ops, op, "size or scale must be given")
    size, axes = (
        None if given is None else sequence_of(ops, op, name, given) for name, given in (("size", size), ("axes", axes))
    )
    several = scale if isinstance(scale, Sequence) else None
    count = len(size) if size is not None else len(several) if several is not None else len(axes or range(2, rank))
    chosen = [axis_of(ops, op, axis, rank) for axis in (range(rank - count, rank) if axes is None else axes)]
    if len(chosen) != count or (several is not None and len(several) != count) or len({*chosen}) != len(chosen):
        raise error(
            ops, op, f"size, scale and axes must be about the same axes, each once, but are {size}, {scale} and {axes}"
        )
    factors = list(several) if several is not None else [scale] * count
    found: list[tuple[int, Dim, Fraction | None]] = []
    for i, (axis, factor) in enumerate(zip(chosen, factors)):
        kinds = (int, float, Fraction, np.floating)
        if factor is not None and not (isinstance(factor, kinds) and 0 < factor < math.inf):
            raise error(ops, op, f"scale must be above 0 and finite but is {scale!r}")
        # A float stands for its decimal notation: 0.6 for 3/5.
        exact = None if factor is None else factor if isinstance(factor, Fraction) else Fraction(str(factor))
        if size is not None:
            if isinstance(size[i], int) and size[i] < 0:
                raise error(ops, op, f"a size must not be negative but is {size[i]}")
            found.append((axis, dim_of(ops, op, "a size", size[i]), exact))
            continue
        assert factor is not None and exact is not None
        n = x.shape[axis]
        if exact.denominator == 1:
            found.append((axis, n * int(exact), exact))
        else:
            entries = known(ops, op, n, lambda: f"axis {axis} of x, {show_shape(x.shape)}, is resampled")
            found.append((axis, math.floor(entries * factor), exact))
    return found


def _repeats(factor: Fraction | None, coordinates: str, rounding: str) -> int | None:
    """Return how often each entry is repeated in place, if that is equivalent to nearest entries; else None."""
    if factor is None or factor.denominator != 1:
        return None
    if coordinates == "asymmetric":
        same = rounding == "floor"
    else:
        same = coordinates in ("half_pixel", "half_pixel_symmetric") and rounding.startswith("round")
    return int(factor) if same else None


def _taps(place: Fraction, n: int, mode: str, a: Fraction, stretch: Fraction, only_inside: bool) -> dict[int, Fraction]:
    """Return the entries that a position is interpolated from, with weights that sum to 1."""
    reach = stretch * (1 if mode == "linear" else 2)
    taps: dict[int, Fraction] = {}
    for i in range(math.floor(place - reach) + 1, math.ceil(place + reach)):
        distance = abs(i - place) / stretch
        weight = 1 - distance if mode == "linear" else _keys(distance, a)
        if weight and not (only_inside and not 0 <= i < n):
            inside = min(max(i, 0), n - 1)
            taps[inside] = taps.get(inside, Fraction(0)) + weight
    total = sum(taps.values())
    if not taps or total == 0:  # wholly outside, where there is nothing to exclude
        return {min(max(math.floor(place), 0), n - 1): Fraction(1)}
    return {i: weight / total for i, weight in taps.items() if weight}


def _keys(x: Fraction, a: Fraction) -> Fraction:
    """Return the cubic kernel of Keys (1981) at a distance below 2."""
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((x - 5) * x + 8) * x * a - 4 * a


@lru_cache(256)
def _tables(
    coordinates: str, mode: str, n: int, m: int, s: Fraction, a: Fraction, stretch: Fraction, only_inside: bool
) -> tuple[list[list[int]], list[list[Fraction]]] | None:
    """Return entries and weights as rows of equal length, for m positions; None for the identity.

    Rows are filled up with entries of weight 0. Cached, since eager programs use them in every step.
    """
    entries = [_taps(COORDINATES[coordinates](j, n, m, s), n, mode, a, stretch, only_inside) for j in range(m)]
    if entries == [{j: Fraction(1)} for j in range(n)]:
        return None
    longest = max(map(len, entries))
    table = [[*taps, *[next(iter(taps))] * (longest - len(taps))] for taps in entries]
    weights = [[*taps.values(), *[Fraction(0)] * (longest - len(taps))] for taps in entries]
    return table, weights
