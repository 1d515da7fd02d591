"""Adaptive, global and p-norm pooling, and normalisations composed of other ops."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from .dims import Dim
from .primitive import R
from .rule_helpers import error, full_like, known, read_dim, read_int, read_number, read_sequence, weighted, zeros
from .static_arguments import IntOrTuple
from .types import show_shape

if TYPE_CHECKING:
    from .protocol import Ops


def adaptive_avg_pool(ops: Ops[R], x: R, /, *, size: Sequence[int | None]) -> R:
    """Return the mean over windows that divide each of the last axes into `size` parts: ([N,] C, *S) -> ([N,] C,
    *size).

    Part j of m covers the entries floor(j·n/m) … ceil((j + 1)·n/m) - 1 of n, so parts may overlap; None keeps an
    axis unchanged. The size of an axis with several parts must be a number.
    PyTorch: torch.nn.functional.adaptive_avg_pool1d … 3d.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: an invalid argument; operands that do not fit each other.
    """
    op = "adaptive_avg_pool"
    for axis, parts in _targets(ops, op, x, size):
        if parts == 1:
            x = ops.reduce_mean(x, axis=axis, keepdims=True)
            continue
        n = _entries(ops, op, x, axis)
        if n % parts == 0:
            apart = ops.reshape(x, shape=(*x.shape[:axis], parts, n // parts, *x.shape[axis + 1 :]))
            x = ops.reduce_mean(apart, axis=axis + 1)
            continue
        starts, ends, longest = _bounds(n, parts)
        table = [[min(s + i, e - 1) for i in range(longest)] for s, e in zip(starts, ends)]
        weights = [[Fraction(s + i < e, e - s) for i in range(longest)] for s, e in zip(starts, ends)]
        x = weighted(ops, x, axis, table, weights)
    return x


def adaptive_max_pool(ops: Ops[R], x: R, /, *, size: Sequence[int | None]) -> R:
    """Return the maximum over the windows of adaptive_avg_pool; nan if a window has nan. Equal maxima share the
    gradient.

    PyTorch: torch.nn.functional.adaptive_max_pool1d … 3d, where the first one gets it.

    Raises:
        DtypeError: x a mask.
        ShapeError: an invalid argument; operands that do not fit each other.
    """
    op = "adaptive_max_pool"
    for axis, parts in _targets(ops, op, x, size):
        if parts == 1:
            x = ops.reduce_max(x, axis=axis, keepdims=True)
            continue
        starts, ends, _ = _bounds(_entries(ops, op, x, axis), parts)
        windows = [ops.slice(x, axis=axis, start=s, length=e - s) for s, e in zip(starts, ends)]
        x = ops.concat([ops.reduce_max(window, axis=axis, keepdims=True) for window in windows], axis=axis)
    return x


def _targets(ops: Ops[R], op: str, x: R, size: Sequence[int | None]) -> list[tuple[int, int]]:
    """Return the axes to pool, with their numbers of parts."""
    size = read_sequence(ops, op, "size", size)
    rank, spatial = len(x.shape), len(size)
    if rank not in (spatial + 1, spatial + 2):
        raise error(
            ops,
            op,
            f"size names {spatial} spatial axes, so x must be ([N,] C, *S) of rank {spatial + 1} or {spatial + 2}, but "
            f"it is {show_shape(x.shape)}",
        )
    return [(rank - spatial + i, read_int(ops, op, "a size", d, 1)) for i, d in enumerate(size) if d is not None]


def _entries(ops: Ops[R], op: str, x: R, axis: int) -> int:
    n = known(ops, op, x.shape[axis], lambda: f"parts are counted on axis {axis} of x, {show_shape(x.shape)}")
    if n == 0:
        raise error(ops, op, f"x is {show_shape(x.shape)}: axis {axis} must have at least one entry to pool")
    return n


def _bounds(n: int, parts: int) -> tuple[list[int], list[int], int]:
    starts = [j * n // parts for j in range(parts)]
    ends = [-(-(j + 1) * n // parts) for j in range(parts)]
    return starts, ends, max(e - s for s, e in zip(starts, ends))


def global_max_pool(ops: Ops[R], x: R, /, *, spatial: int = 2) -> R:
    """Return the maximum over the last `spatial` axes: (C, *S) -> (C), (N, C, *S) -> (N, C). ONNX: GlobalMaxPool.

    Raises:
        DtypeError: x a mask.
        ShapeError: an invalid argument; an axis is empty; x of another shape.
    """
    rank, spatial = len(x.shape), read_int(ops, "global_max_pool", "spatial", spatial)
    if rank not in (spatial + 1, spatial + 2):
        raise error(
            ops,
            "global_max_pool",
            f"x must be (C, *S) or (N, C, *S) with {spatial} spatial axes but is {show_shape(x.shape)}; pass spatial= "
            "for another number of them",
        )
    return ops.reduce_max(x, axis=tuple(range(rank - spatial, rank)))


def lp_pool(
    ops: Ops[R],
    x: R,
    /,
    *,
    p: float,
    kernel: tuple[int, ...],
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
) -> R:
    """Return (Σ |x|^p)^(1/p) over windows, shapes as in avg_pool, for p >= 1. The derivative of a window of zeros is 0.

    PyTorch: torch.nn.functional.lp_pool1d … 3d, which uses x^p, so odd p may give nan, and its derivative is nan
    for zeros. ONNX: LpPool.

    Raises:
        DtypeError: x not a float tensor; x a mask.
        ShapeError: an invalid argument; windows do not fit; x of another shape.
    """
    if not isinstance(p, (int, float, Fraction)) or not p >= 1:
        raise error(ops, "lp_pool", f"p must be a number that is at least 1 but is {p!r}")
    power = ops.mul(x, x) if p == 2 else ops.abs(x) if p == 1 else ops.pow(ops.abs(x), exponent=p)
    mean = ops.avg_pool(power, kernel=kernel, stride=stride, padding=padding)
    cells = 1
    for k in kernel:
        cells *= k
    total = ops.scale(mean, c=cells)
    if p == 1:
        return total
    nothing = ops.equal(total, zeros(ops, total))
    one = full_like(ops, total, 1.0)
    root = ops.pow(ops.select(nothing, one, total), exponent=1 / Fraction(p))
    return ops.select(nothing, zeros(ops, total), root)


def instance_norm(ops: Ops[R], x: R, gamma: R | None, beta: R | None, /, *, eps: float = 1e-5) -> R:
    """Normalise each channel of each sample of x (N, C, *S) over S; gamma and beta (C,).

    group_norm with a group for each channel. PyTorch: torch.nn.functional.instance_norm. Source: Ulyanov et al. 2016.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: an invalid argument; an axis is empty; x of another shape.
    """
    if len(x.shape) < 3:
        raise error(ops, "instance_norm", f"x must be (N, C, *S) but is {show_shape(x.shape)}")
    channels = known(ops, "instance_norm", x.shape[1], lambda: f"x is {show_shape(x.shape)} with channels on axis 1")
    return ops.group_norm(x, gamma, beta, groups=channels, eps=eps)


def local_response_norm(
    ops: Ops[R],
    x: R,
    /,
    *,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    before: int | None = None,
) -> R:
    """Return x / (k + alpha/size · Σ x²)^beta, summed over `size` neighbouring channels of (N, C, *S), fewer at the
    ends.

    `before` of them precede the channel, by default size // 2. PyTorch: torch.nn.functional.local_response_norm.
    ONNX: LRN, with before = (size - 1) // 2, which differs for an even size. Source: Krizhevsky et al. 2012.

    Raises:
        DtypeError: x not a float tensor; x a mask.
        ShapeError: an invalid argument; x of another shape.
    """
    op = "local_response_norm"
    if len(x.shape) < 3:
        raise error(ops, op, f"x must be (N, C, *S) but is {show_shape(x.shape)}")
    size, rate = read_int(ops, op, "size", size, 1), Fraction(read_number(ops, op, "alpha", alpha))
    before = read_int(ops, op, "before", size // 2 if before is None else before, 0)
    if before >= size:
        raise error(ops, op, f"before must be less than size, which is {size}, but is {before}")
    channels: Dim = read_dim(ops, op, "channels", x.shape[1])
    around = [(before, size - 1 - before) if axis == 1 else (0, 0) for axis in range(len(x.shape))]
    squares = ops.pad(ops.mul(x, x), padding=around)
    total = ops.slice(squares, axis=1, start=0, length=channels)
    for i in range(1, size):
        total = ops.add(total, ops.slice(squares, axis=1, start=i, length=channels))
    base = ops.add(full_like(ops, x, k), ops.scale(total, c=rate / size))
    return ops.div(x, ops.pow(base, exponent=beta))
