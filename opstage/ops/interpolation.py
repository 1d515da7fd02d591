"""Interpolation: axes resized to static sizes, and images sampled at positions given as data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache, partial, reduce
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrangement import repeat_interleave
from .dims import Dim, is_one, is_zero, prod, ratio
from .errors import nearest
from .primitive import R
from .rule_helpers import (
    equal_sizes,
    error,
    full_like,
    known,
    read_axis,
    read_dim,
    read_number,
    read_sequence,
    weighted,
    whole,
)
from .types import require_same_dtype, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


# Axes resized through a table of entries and weights, with the coordinates of ONNX and PyTorch ------------------------

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
    """Resample axes to `size` or to floor(n·scale) entries: the last ones, or with a single scale all but two.

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
        Fraction(read_number(ops, op, "cubic", cubic))
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
            raise error(ops, op, f"x is {show_shape(x.shape)}: axis {axis} is empty, and cannot be resized to {m}")
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
        None if given is None else read_sequence(ops, op, name, given)
        for name, given in (("size", size), ("axes", axes))
    )
    several = scale if isinstance(scale, Sequence) else None
    count = len(size) if size is not None else len(several) if several is not None else len(axes or range(2, rank))
    chosen = [read_axis(ops, op, axis, rank) for axis in (range(rank - count, rank) if axes is None else axes)]
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
            found.append((axis, read_dim(ops, op, "a size", size[i]), exact))
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


# Images sampled at positions that are data ----------------------------------------------------------------------------

PADDINGS = ("zeros", "border", "reflection")


def grid_sample(
    ops: Ops[R], x: R, grid: R, /, *, mode: str = "linear", padding: str = "zeros", align_corners: bool = False
) -> R:
    """Return x (N, C, *S) at the positions of grid (N, *O, d), d the number of spatial axes: (N, C, *O).

    A position is (x, y, z), with the last axis of S first. -1 and 1 are the centres of the first and last
    entries with align_corners, else their outer edges. "linear" interpolates 2^d entries, "cubic" 4^d by Keys'
    kernel with a = -0.75, "nearest" takes the nearest, with ties to even. Entries outside are 0, clamped to the
    border, or reflected. A nan position gives nan. The gradient of positions is that of the weights: 0 for "nearest",
    and with "border" or "reflection" 0 for "linear" where clamped, the first and last entry included. PyTorch:
    torch.nn.functional.grid_sample, with "bilinear" and "bicubic". ONNX: GridSample. Source: Jaderberg et al. 2015.

    Raises:
        DtypeError: x not a float tensor; dtypes differ.
        ShapeError: an invalid argument; x of another shape; operands that do not fit each other.
    """
    op = "grid_sample"
    for name, value, allowed in (("mode", mode, MODES), ("padding", padding, PADDINGS)):
        if value not in allowed:
            raise error(ops, op, f"{name} must be one of {allowed} but is {value!r}{nearest(value, allowed)}")
    spatial = len(x.shape) - 2
    if spatial < 1 or len(grid.shape) != spatial + 2:
        raise error(
            ops,
            op,
            f"x must be (N, C, *S) and the grid (N, *O, d), with as many axes in O as in S, but x is "
            f"{show_shape(x.shape)} and the grid {show_shape(grid.shape)}",
        )
    fits = f"x is {show_shape(x.shape)} and the grid {show_shape(grid.shape)}"
    equal_sizes(ops, op, grid.shape[0], x.shape[0], lambda: f"{fits}: their batches, axis 0, differ")
    equal_sizes(
        ops, op, grid.shape[-1], spatial, lambda: f"{fits}: a position has {grid.shape[-1]} numbers, not {spatial}"
    )
    require_same_dtype(x, grid, "x", "grid")
    batch, channels, *sizes = x.shape
    pixels = ops.reshape(ops.permute(x, axes=[0, *range(2, spatial + 2), 1]), shape=(batch * prod(sizes), channels))
    shape = grid.shape[:-1]
    places = [_coordinate(ops, grid, spatial - 1 - i, n, align_corners) for i, n in enumerate(sizes)]
    lost = reduce(ops.logical_or, [ops.isnan(p) for p in places])
    if mode != "cubic" and padding != "zeros":
        places = [_inside(ops, p, n, padding, align_corners) for p, n in zip(places, sizes)]
    elif padding == "reflection":
        mirrors = [_mirrors(n, align_corners) for n in sizes]
        places = [p if is_zero(span) else _within_period(ops, p, span, low) for p, (span, low) in zip(places, mirrors)]
    taps = [_neighbours(ops, p, n, mode) for p, n in zip(places, sizes)]
    total = None
    for corner in product(*taps):
        entries, weights = [i for i, _ in corner], [w for _, w in corner if w is not None]
        if mode == "cubic" and padding != "zeros":
            entries = [_inside(ops, i, n, padding, align_corners) for i, n in zip(entries, sizes)]
        part = ops.gather_rows(pixels, _flat(ops, entries, sizes), mode="zero")
        if weights:
            weight = ops.unsqueeze(reduce(ops.mul, weights), axis=-1)
            part = ops.mul(part, ops.broadcast_to(weight, shape=part.shape))
        total = part if total is None else ops.add(total, part)
    assert total is not None
    nan = ops.full(shape=total.shape, value=float("nan"), dtype=x.dtype)
    total = ops.select(ops.broadcast_to(ops.unsqueeze(lost, axis=-1), shape=total.shape), nan, total)
    return ops.permute(total, axes=[0, len(shape), *range(1, len(shape))])


def affine_grid(ops: Ops[R], theta: R, /, *, size: Sequence[Dim], align_corners: bool = False) -> R:
    """Return the grid of an affine map: theta (N, d, d + 1) gives (N, *S, d), for size (N, C, *S).

    Position p, in grid_sample's coordinates, is mapped to theta · (p, 1). PyTorch:
    torch.nn.functional.affine_grid. ONNX: AffineGrid.

    Raises:
        DtypeError: x not a float tensor; a number that the dtype does not hold.
        ShapeError: an invalid argument; theta of another shape; operands that do not fit each other.
    """
    op = "affine_grid"
    size = read_sequence(ops, op, "size", size)
    batch, _, *sizes = (read_dim(ops, op, "a size", d) for d in size) if len(size) > 2 else (0, 0)
    if len(theta.shape) != 3 or not sizes:
        raise error(
            ops,
            op,
            f"theta must be (N, d, d + 1) and size (N, C, *S) with d spatial axes, but theta is "
            f"{show_shape(theta.shape)} and size {tuple(size)}",
        )
    for axis, wanted in enumerate((batch, len(sizes), len(sizes) + 1)):
        equal_sizes(
            ops,
            op,
            theta.shape[axis],
            wanted,
            lambda: f"theta is {show_shape(theta.shape)}: axis {axis} must have {wanted} for size {tuple(size)}",
        )
    ones = ops.full(shape=sizes, value=1.0, dtype=theta.dtype)
    along = [_centres(ops, theta, sizes, axis, align_corners) for axis in reversed(range(len(sizes)))]
    base = ops.reshape(ops.stack([*along, ones], axis=-1), shape=(1, prod(sizes), len(sizes) + 1))
    base = ops.broadcast_to(base, shape=(batch, prod(sizes), len(sizes) + 1))
    mapped = ops.bmm(base, ops.permute(theta, axes=(0, 2, 1)))
    return ops.reshape(mapped, shape=(batch, *sizes, len(sizes)))


def _centres(ops: Ops[R], like: R, sizes: Sequence[Dim], axis: int, align_corners: bool) -> R:
    """Return the positions of the entries along an axis, from -1 to 1; 0 if there is one."""
    n = sizes[axis]
    if is_one(n):
        return ops.full(shape=sizes, value=0.0, dtype=like.dtype)
    index = ops.cast(ops.iota(shape=sizes, axis=axis), dtype=like.dtype)
    first = ops.full(shape=sizes, value=ratio(1 - n, 1), dtype=like.dtype)
    extent = ops.full(shape=sizes, value=ratio(n - 1 if align_corners else n, 1), dtype=like.dtype)
    return ops.div(ops.add(ops.scale(index, c=2), first), extent)  # symmetric, and exactly -1 and 1 at the corners


def _coordinate(ops: Ops[R], grid: R, which: int, n: Dim, align_corners: bool) -> R:
    """Return one coordinate of each position in units of entries: 0 is the centre of the first one."""
    g = ops.slice(grid, axis=len(grid.shape) - 1, start=which, length=1)
    g = ops.squeeze(g, axis=-1)
    centre = full_like(ops, g, ratio(n - 1, 2))
    return ops.add(ops.scale(g, c=ratio(n - 1, 2) if align_corners else ratio(n, 2)), centre)


def _inside(ops: Ops[R], place: R, n: Dim, padding: str, align_corners: bool) -> R:
    """Clamp a position to the axis, or reflect it at its edges. At the first and last entry its derivative is 0."""
    number = partial(full_like, ops, place)
    first, last = number(0.0), number(ratio(n - 1, 1))
    if padding == "reflection":
        span, low = _mirrors(n, align_corners)
        if is_one(n) and align_corners:
            return number(0.0)
        rest = ops.sub(_within_period(ops, place, span, low), number(low))
        back = ops.sub(number(ratio(span, 1)), ops.abs(ops.sub(rest, number(ratio(span, 1)))))
        place = ops.add(back, number(low))
    within = ops.logical_and(ops.less(first, place), ops.less(place, last))
    return ops.select(within, place, ops.minimum(ops.maximum(ops.detach(place), first), last))


def _mirrors(n: Dim, align_corners: bool) -> tuple[Dim, Fraction]:
    """Return the distance between the points of reflection, and the first of them."""
    return (n - 1, Fraction(0)) if align_corners else (n, Fraction(-1, 2))


def _within_period(ops: Ops[R], place: R, span: Dim, low: Fraction) -> R:
    """Reduce a position by multiples of twice the span, the period of reflections: from low to low + 2·span."""
    away = ops.sub(place, full_like(ops, place, low))
    turns = ops.floor(ops.detach(ops.scale(away, c=ratio(1, 2 * span))))
    return ops.sub(place, ops.scale(turns, c=ratio(2 * span, 1)))


def _neighbours(ops: Ops[R], place: R, n: Dim, mode: str) -> list[tuple[R, R | None]]:
    """Return the entries (as integral floats) that a coordinate is interpolated from along one axis, with weights."""
    number = partial(full_like, ops, place)
    # Beyond the limit nothing is inside, nor in the period of reflections, and an integer could overflow.
    limit = number(ratio(2 * n + 4, 1))
    place = ops.minimum(ops.maximum(place, ops.neg(limit)), limit)
    if mode == "nearest":
        return [(ops.round(ops.detach(place)), None)]
    low = ops.floor(ops.detach(place))
    rest = ops.sub(place, low)
    if mode == "linear":
        return [(low, ops.sub(number(1.0), rest)), (ops.add(low, number(1.0)), rest)]
    distances = [ops.add(rest, number(1.0)), rest, ops.sub(number(1.0), rest), ops.sub(number(2.0), rest)]
    weights = [_keys_kernel(ops, t, near=i in (1, 2)) for i, t in enumerate(distances)]
    return [(ops.add(low, number(float(i - 1))), weight) for i, weight in enumerate(weights)]


def _keys_kernel(ops: Ops[R], t: R, *, near: bool) -> R:
    """Return Keys' cubic kernel with a = -0.75, at a distance up to 1 if `near`, else from 1 to 2."""
    a = Fraction(-3, 4)
    terms = (a + 2, -(a + 3), Fraction(0), Fraction(1)) if near else (a, -5 * a, 8 * a, -4 * a)
    out = full_like(ops, t, terms[0])
    for c in terms[1:]:
        out = ops.add(ops.mul(out, t), full_like(ops, t, c))
    return out


def _flat(ops: Ops[R], entries: Sequence[R], sizes: Sequence[Dim]) -> R:
    """Return flat row indices into the images at integral coordinates; -1 where one is outside."""
    shape = entries[0].shape
    flat, inside = ops.iota(shape=shape, axis=0), None
    for entry, n in zip(entries, sizes):
        index = ops.cast(ops.detach(entry), dtype="int64")
        here = ops.logical_and(ops.less_equal(whole(ops, shape, 0), index), ops.less(index, whole(ops, shape, n)))
        inside = here if inside is None else ops.logical_and(inside, here)
        flat = ops.add(ops.mul(flat, whole(ops, shape, n)), index)
    assert inside is not None
    return ops.select(inside, flat, whole(ops, shape, -1))
