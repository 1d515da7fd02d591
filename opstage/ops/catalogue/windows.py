"""Windows of convolutions and pooling: their number along an axis, and the resulting shape check."""

from __future__ import annotations

from typing import Any

from ..arguments import IntOrTuple, per_axis
from ..dims import Dim, floor_div, require_at_most, require_equal
from ..errors import ShapeError
from ..invalid_static import InvalidStatic
from ..types import Shape, TensorType, show_shape


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
