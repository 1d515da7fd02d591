"""Windows of convolutions and pooling, and images split into patches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from .dims import Dim, exact_div, floor_div, prod, require_at_most, require_equal
from .errors import ShapeError
from .primitive import R
from .rule_helpers import equal_sizes, error, read_dim, read_int, read_sequence, valid
from .static_arguments import IntOrTuple, InvalidStatic, per_axis
from .types import Shape, TensorType, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


# Windows of convolutions and pooling: their number along an axis, and the resulting shape check -----------------------


def extent(size: Dim, dilation: int) -> Dim:
    """Return the number of cells from the first to the last of a window of `size`."""
    return dilation * (size - 1) + 1


def window_counts(
    spatial: Shape,
    kernel: Shape,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...] | None = None,
) -> Shape:
    """Return floor((S + 2·padding - dilation·(k - 1) - 1) / stride) + 1 for each spatial axis, at least 1."""
    counts: list[Dim] = []
    for axis, (n, k, s, p) in enumerate(zip(spatial, kernel, stride, padding)):
        d = 1 if dilation is None else dilation[axis]
        covered = extent(k, d)
        require_at_most(
            covered,
            n + 2 * p,
            lambda: (
                f"the kernel covers {covered} cells along spatial axis {axis} of {show_shape(spatial)}"
                + (f" (size {k}, dilation {d})" if d != 1 else "")
                + f" but there are {n}"
                + (f" and {p} of padding at each end, {n + 2 * p} in all" if p else "")
                + "; use a smaller kernel or more padding"
            ),
        )
        counts.append(floor_div(n + 2 * p - covered, s) + 1)
    return tuple(counts)


def require_shape(x: TensorType, name: str, expected: Shape) -> None:
    """Require that x has an element for each window."""
    if len(x.shape) != len(expected):
        raise ShapeError(
            f"{name} is {show_shape(x.shape)} of rank {len(x.shape)} but the windows make it {show_shape(expected)}"
        )
    for axis, (a, b) in enumerate(zip(x.shape, expected)):
        require_equal(
            a,
            b,
            lambda: (
                f"{name} is {show_shape(x.shape)} but the windows make it {show_shape(expected)}: axis {axis} has {a} "
                f"instead of {b}"
            ),
        )


def pooled_images(op: str, x: Any, kernel: IntOrTuple) -> Any:
    """Return the kernel of pooling over height and width, or an `InvalidStatic`."""
    if len(x.shape) not in (3, 4):
        return InvalidStatic(
            f"x must be (C, H, W) or (N, C, H, W) but is {show_shape(x.shape)}; "
            f"{op.split('2d')[0]} takes any number of spatial axes",
            op,
        )
    return per_axis(op, "kernel", kernel, 2, least=1)


def convolved_images(op: str, kernel: Any, x: Any, stride: IntOrTuple) -> Any:
    """Return the stride of a convolution over height and width, or an `InvalidStatic`."""
    if len(kernel.shape) != 4:
        return InvalidStatic(
            f"kernel must have rank 4 (two channel axes, height, width) but is {show_shape(kernel.shape)}; "
            f"{op[:-2]} takes any number of spatial axes",
            op,
        )
    if len(x.shape) not in (3, 4):
        return InvalidStatic(f"x must be (C, H, W) or (N, C, H, W) but is {show_shape(x.shape)}", op)
    return per_axis(op, "stride", stride, 2, least=1)


# Functions: images split into patches and reassembled, and channels exchanged for pixels ------------------------------


def pixel_shuffle(ops: Ops[R], x: R, /, *, factor: int) -> R:
    """Return (*, C·r², H, W) -> (*, C, H·r, W·r): element (c, h·r + i, w·r + j) is channel c·r² + i·r + j at (h, w).

    PyTorch: torch.nn.functional.pixel_shuffle. ONNX: DepthToSpace, mode CRD. Source: Shi et al. 2016.

    Raises:
        ShapeError: x of another shape; an invalid argument; operands that do not fit each other.
    """
    return _to_space(ops, "pixel_shuffle", x, factor, channels_first=True)


def pixel_unshuffle(ops: Ops[R], x: R, /, *, factor: int) -> R:
    """Return (*, C, H·r, W·r) -> (*, C·r², H, W), the inverse of pixel_shuffle.

    PyTorch: torch.nn.functional.pixel_unshuffle.

    Raises:
        ShapeError: x of another shape; an invalid argument; operands that do not fit each other.
    """
    return _to_depth(ops, "pixel_unshuffle", x, factor, channels_first=True)


def depth_to_space(ops: Ops[R], x: R, /, *, block: int) -> R:
    """Return (*, r²·C, H, W) -> (*, C, H·r, W·r): element (c, h·r + i, w·r + j) is channel (i·r + j)·C + c at (h, w).

    ONNX: DepthToSpace, mode DCR; mode CRD is pixel_shuffle. TensorFlow: depth_to_space, of NCHW.

    Raises:
        ShapeError: x of another shape; an invalid argument; operands that do not fit each other.
    """
    return _to_space(ops, "depth_to_space", x, block, channels_first=False)


def space_to_depth(ops: Ops[R], x: R, /, *, block: int) -> R:
    """Return (*, C, H·r, W·r) -> (*, r²·C, H, W), the inverse of depth_to_space. ONNX: SpaceToDepth.

    Raises:
        ShapeError: x of another shape; an invalid argument; operands that do not fit each other.
    """
    return _to_depth(ops, "space_to_depth", x, block, channels_first=False)


def _image(ops: Ops[R], op: str, x: R, factor: int) -> int:
    if len(x.shape) < 3:
        raise error(ops, op, f"x must be (*, C, H, W) but is {show_shape(x.shape)}")
    return read_int(ops, op, "the factor", factor, 1)


def _parts(ops: Ops[R], op: str, x: R, axis: int, by: Dim) -> Dim:
    """Return the size of an axis divided by a number that must divide it."""
    size = x.shape[axis]

    def message() -> str:
        return f"x is {show_shape(x.shape)}: axis {len(x.shape) + axis} has {size}, which {by} does not divide"

    try:
        return exact_div(size, by, message)
    except ShapeError as found:
        found.place(op, ops.cursor.region.name)
        raise


def _to_space(ops: Ops[R], op: str, x: R, factor: int, *, channels_first: bool) -> R:
    r = _image(ops, op, x, factor)
    *lead, _, height, width = x.shape
    n, channels = len(lead), _parts(ops, op, x, -3, r * r)
    split = (channels, r, r) if channels_first else (r, r, channels)
    x = ops.reshape(x, shape=(*lead, *split, height, width))
    c, i, j = (n, n + 1, n + 2) if channels_first else (n + 2, n, n + 1)
    x = ops.permute(x, axes=[*range(n), c, n + 3, i, n + 4, j])
    return ops.reshape(x, shape=(*lead, channels, height * r, width * r))


def _to_depth(ops: Ops[R], op: str, x: R, factor: int, *, channels_first: bool) -> R:
    r = _image(ops, op, x, factor)
    *lead, channels, _, _ = x.shape
    n, height, width = len(lead), _parts(ops, op, x, -2, r), _parts(ops, op, x, -1, r)
    x = ops.reshape(x, shape=(*lead, channels, height, r, width, r))
    c, i, j = n, n + 2, n + 4
    order = (c, i, j) if channels_first else (i, j, c)
    x = ops.permute(x, axes=[*range(n), *order, n + 1, n + 3])
    return ops.reshape(x, shape=(*lead, channels * (r * r), height, width))


# Patches --------------------------------------------------------------------------------------------------------------


def unfold(
    ops: Ops[R],
    x: R,
    /,
    *,
    kernel: tuple[int, ...],
    stride: IntOrTuple = 1,
    padding: IntOrTuple = 0,
    dilation: IntOrTuple = 1,
) -> R:
    """Return the windows as columns (im2col): ([N,] C, *S) -> ([N,] C·K, L), K cells per window, L windows.

    Row c·K + k of column l is cell k, in row-major order, of window l of channel c; windows are numbered in row-major
    order, and padded cells are 0. Any number of spatial axes, determined by the kernel.
    PyTorch: torch.nn.functional.unfold.

    Raises:
        ShapeError: an invalid argument; windows do not fit; x of another shape.
    """
    windows = _windows(ops, "unfold", kernel, stride, padding, dilation)
    sizes, steps, around, apart = windows
    spatial, rank = len(sizes), len(x.shape)
    if rank not in (spatial + 1, spatial + 2):
        raise error(
            ops,
            "unfold",
            f"x must be ([N,] C, *S) with the {spatial} spatial axes of the kernel but is {show_shape(x.shape)}",
        )
    lead = x.shape[: rank - spatial]
    counts = _counts(ops, "unfold", x.shape[rank - spatial :], windows)
    x = ops.pad(x, padding=[*[(0, 0)] * len(lead), *((p, p) for p in around)], value=0)
    cells = []
    for offset in product(*map(range, sizes)):
        cell = x
        for i, (o, count, step, d) in enumerate(zip(offset, counts, steps, apart)):
            cell = ops.slice(cell, axis=len(lead) + i, start=o * d, length=count, step=step)
        cells.append(cell)
    columns = ops.stack(cells, axis=len(lead))
    return ops.reshape(columns, shape=(*lead[:-1], lead[-1] * len(cells), prod(counts)))


def fold(
    ops: Ops[R],
    x: R,
    /,
    *,
    size: Sequence[Dim],
    kernel: tuple[int, ...],
    stride: IntOrTuple = 1,
    padding: IntOrTuple = 0,
    dilation: IntOrTuple = 1,
) -> R:
    """Return the sum of windows at their positions (col2im), the adjoint of unfold: ([N,] C·K, L) -> ([N,] C, *size).

    PyTorch: torch.nn.functional.fold. ONNX: Col2Im.

    Raises:
        DtypeError: x a mask.
        ShapeError: an invalid argument; windows do not fit; x of another shape; operands that do not fit each
            other.
    """
    windows = _windows(ops, "fold", kernel, stride, padding, dilation)
    sizes, steps, around, apart = windows
    image = tuple(read_dim(ops, "fold", "a size", d) for d in read_sequence(ops, "fold", "size", size))
    if len(x.shape) not in (2, 3) or len(image) != len(sizes):
        raise error(
            ops,
            "fold",
            f"x must be ([N,] C·K, L), and size as long as the kernel, but x is {show_shape(x.shape)}, size "
            f"{show_shape(image)} and the kernel {sizes}",
        )
    whole = tuple(d + 2 * p for d, p in zip(image, around))
    counts = _counts(ops, "fold", image, windows)
    shape, places = x.shape, prod(counts)
    equal_sizes(
        ops,
        "fold",
        shape[-1],
        places,
        lambda: f"x is {show_shape(shape)} with {shape[-1]} windows but size {show_shape(image)} has {places}",
    )
    channels = _parts(ops, "fold", x, -2, prod(sizes))
    lead = (*shape[:-2], channels)
    x = ops.reshape(x, shape=(*lead, prod(sizes), *counts))
    total = None
    for k, offset in enumerate(product(*map(range, sizes))):
        cell = ops.squeeze(ops.slice(x, axis=len(lead), start=k, length=1), axis=len(lead))
        starts = [o * d for o, d in zip(offset, apart)]
        ends = [w - s - ((c - 1) * step + 1) for w, s, c, step in zip(whole, starts, counts, steps)]
        none = (0,) * len(lead)
        spread = ops.pad(
            cell,
            padding=[*[(0, 0)] * len(lead), *zip(starts, ends)],
            value=0,
            interior=[*none, *(step - 1 for step in steps)],
        )
        total = spread if total is None else ops.add(total, spread)
    assert total is not None
    for i, (d, p) in enumerate(zip(image, around)):
        if p:
            total = ops.slice(total, axis=len(lead) + i, start=p, length=d)
    return total


def _windows(
    ops: Ops[R], op: str, kernel: tuple[int, ...], stride: IntOrTuple, padding: IntOrTuple, dilation: IntOrTuple
) -> tuple[tuple[int, ...], ...]:
    if not isinstance(kernel, Sequence) or not kernel:
        raise error(ops, op, f"kernel must be a tuple with a size for each spatial axis but is {kernel!r}")
    rank = len(kernel)
    given = (("kernel", kernel, 1), ("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1))
    return tuple(valid(ops, op, per_axis(op, name, value, rank, least=least)) for name, value, least in given)


def _counts(ops: Ops[R], op: str, sizes: Shape, windows: tuple[tuple[int, ...], ...]) -> Shape:
    """Return the number of windows along each axis, at least one."""
    try:
        return window_counts(sizes, *windows)
    except ShapeError as found:
        found.place(op, ops.cursor.region.name)
        raise
