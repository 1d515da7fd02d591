"""Images sampled at positions given as data: grid_sample, and the grids of affine maps."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING

from .dims import Dim, is_one, is_zero, prod, ratio
from .errors import nearest
from .primitive import R
from .tools import dim_of, equal_sizes, error, sequence_of, whole
from .types import require_same_dtype, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")


def grid_sample(
    ops: Ops[R], x: R, grid: R, /, *, mode: str = "linear", padding: str = "zeros", align_corners: bool = False
) -> R:
    """x (N, C, *S) at the positions of grid (N, *O, d), d the number of spatial axes: (N, C, *O).

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
    taps = [_taps(ops, p, n, mode) for p, n in zip(places, sizes)]
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
    """The grid of an affine map: theta (N, d, d + 1) gives (N, *S, d), for size (N, C, *S).

    Position p, in grid_sample's coordinates, is mapped to theta · (p, 1). PyTorch:
    torch.nn.functional.affine_grid. ONNX: AffineGrid.

    Raises:
        DtypeError: x not a float tensor; a number that the dtype does not hold.
        ShapeError: an invalid argument; theta of another shape; operands that do not fit each other.
    """
    op = "affine_grid"
    size = sequence_of(ops, op, "size", size)
    batch, _, *sizes = (dim_of(ops, op, "a size", d) for d in size) if len(size) > 2 else (0, 0)
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
    centre = ops.full(shape=g.shape, value=ratio(n - 1, 2), dtype=g.dtype)
    return ops.add(ops.scale(g, c=ratio(n - 1, 2) if align_corners else ratio(n, 2)), centre)


def _inside(ops: Ops[R], place: R, n: Dim, padding: str, align_corners: bool) -> R:
    """Clamp a position to the axis, or reflect it at its edges. At the first and last entry its derivative is 0."""

    def number(value: object) -> R:
        return ops.full(shape=place.shape, value=value, dtype=place.dtype)  # type: ignore[arg-type]

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
    away = ops.sub(place, ops.full(shape=place.shape, value=low, dtype=place.dtype))
    turns = ops.floor(ops.detach(ops.scale(away, c=ratio(1, 2 * span))))
    return ops.sub(place, ops.scale(turns, c=ratio(2 * span, 1)))


def _taps(ops: Ops[R], place: R, n: Dim, mode: str) -> list[tuple[R, R | None]]:
    """Return the entries (as integral floats) that a coordinate is interpolated from along one axis, with weights."""

    def number(value: float) -> R:
        return ops.full(shape=place.shape, value=value, dtype=place.dtype)

    # Beyond the limit nothing is inside, nor in the period of reflections, and an integer could overflow.
    limit = ops.full(shape=place.shape, value=ratio(2 * n + 4, 1), dtype=place.dtype)
    place = ops.minimum(ops.maximum(place, ops.neg(limit)), limit)
    if mode == "nearest":
        return [(ops.round(ops.detach(place)), None)]
    low = ops.floor(ops.detach(place))
    rest = ops.sub(place, low)
    if mode == "linear":
        return [(low, ops.sub(number(1.0), rest)), (ops.add(low, number(1.0)), rest)]
    distances = [ops.add(rest, number(1.0)), rest, ops.sub(number(1.0), rest), ops.sub(number(2.0), rest)]
    return [(ops.add(low, number(float(k))), _keys(ops, t, near=k in (0, 1))) for k, t in zip((-1, 0, 1, 2), distances)]


def _keys(ops: Ops[R], t: R, *, near: bool) -> R:
    """Return Keys' cubic kernel with a = -0.75, at a distance up to 1 if `near`, else from 1 to 2."""
    a = Fraction(-3, 4)
    terms = (a + 2, -(a + 3), Fraction(0), Fraction(1)) if near else (a, -5 * a, 8 * a, -4 * a)
    out = ops.full(shape=t.shape, value=terms[0], dtype=t.dtype)
    for c in terms[1:]:
        out = ops.add(ops.mul(out, t), ops.full(shape=t.shape, value=c, dtype=t.dtype))
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
