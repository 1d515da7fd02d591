"""Pooling over windows; the kernel's length determines the spatial rank."""

from __future__ import annotations

from typing import Any

from ..arguments import IntOrTuple, Number, as_shape, per_axis
from ..calls import Calls
from ..catalogue.pooling import (
    AVG_POOL,
    AVG_POOL_GRAD,
    MAX_POOL,
    MAX_POOL_GATHER,
    MAX_POOL_SCATTER,
    SMOOTH_MAX_POOL,
)
from ..dims import Dim
from ..invalid_static import InvalidStatic
from ..numbers import plain_sequence
from ..primitive import R
from ..types import show_shape


def _window(op: str, kernel: Any, stride: Any, padding: Any) -> dict[str, Any]:
    """Return the static parameters with an entry for each spatial axis; an invalid kernel is passed on."""
    if isinstance(kernel, InvalidStatic):
        return {"kernel": kernel, "stride": kernel, "padding": kernel}
    kernel = plain_sequence(kernel)
    rank = len(kernel) if isinstance(kernel, (tuple, list)) else 1
    sizes = per_axis(op, "kernel", kernel, rank, least=1)
    return {
        "kernel": sizes,
        "stride": sizes if stride is None else per_axis(op, "stride", stride, rank, least=1),
        "padding": per_axis(op, "padding", padding, rank, least=0),
    }


def _images(op: str, x: Any, kernel: IntOrTuple) -> Any:
    """Return the kernel of pooling over height and width, or an `InvalidStatic`."""
    if len(x.shape) not in (3, 4):
        return InvalidStatic(
            f"x must be (C, H, W) or (N, C, H, W) but is {show_shape(x.shape)}; "
            f"{op.split('2d')[0]} takes any number of spatial axes",
            op,
        )
    return per_axis(op, "kernel", kernel, 2, least=1)


class PoolingOps(Calls[R]):
    __slots__ = ()

    def max_pool(
        self, x: R, /, *, kernel: tuple[int, ...], stride: IntOrTuple | None = None, padding: IntOrTuple = 0
    ) -> R:
        """Maximum over windows; the first maximum gets the gradient. PyTorch: torch.nn.functional.max_pool1d … 3d.

        x ([N,] C, *S) gives ([N,] C, *O), O = floor((S + 2·padding - kernel) / stride) + 1; the stride defaults to
        the kernel, and padding is at most half of it. Padding is ignored, and nan counts as larger than every number.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: kernel and shape of other spatial axes; an invalid argument; windows do not fit; x of another
                shape.
        """
        return self._call(MAX_POOL, (x,), _window("max_pool", kernel, stride, padding))

    def max_pool_scatter(
        self,
        g: R,
        index: R,
        /,
        *,
        shape: tuple[Dim, ...],
        kernel: tuple[int, ...],
        stride: IntOrTuple,
        padding: IntOrTuple,
    ) -> R:
        """Window values scattered to the positions of their maxima: the cotangent of max_pool's x.

        Zeros ([N,] C, *shape) to which each window's element of g is added at flat position `index` of the channel's
        plane. The index comes from max_pool with the same windows, so it is inside its window.

        Raises:
            DtypeError: g not a float tensor; index not an integer tensor.
            RangeError: an index out of range, when it runs.
            ShapeError: kernel and shape of other spatial axes; an invalid argument; no such shape; windows do not fit;
                index, g of another shape.
        """
        static = _window("max_pool_scatter", kernel, stride, padding)
        return self._call(MAX_POOL_SCATTER, (g, index), {"shape": as_shape("max_pool_scatter", shape), **static})

    def max_pool_gather(
        self, x: R, index: R, /, *, kernel: tuple[int, ...], stride: IntOrTuple, padding: IntOrTuple
    ) -> R:
        """The entries of x at the positions of the window maxima: the tangent of max_pool.

        The index comes from max_pool with the same windows: a flat position in the plane of the window's channel.

        Raises:
            DtypeError: x not a float tensor; index not an integer tensor.
            RangeError: an index out of range, when it runs.
            ShapeError: an invalid argument; windows do not fit; index, x of another shape.
        """
        return self._call(MAX_POOL_GATHER, (x, index), _window("max_pool_gather", kernel, stride, padding))

    def avg_pool(
        self,
        x: R,
        /,
        *,
        kernel: tuple[int, ...],
        stride: IntOrTuple | None = None,
        padding: IntOrTuple = 0,
        count_include_pad: bool = True,
    ) -> R:
        """Mean over windows, with shapes as in max_pool. PyTorch: torch.nn.functional.avg_pool1d … 3d.

        Padded cells count as 0, or are excluded if count_include_pad is False.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: kernel and shape of other spatial axes; an invalid argument; windows do not fit; x of another
                shape.
        """
        static = _window("avg_pool", kernel, stride, padding)
        return self._call(AVG_POOL, (x,), static | {"count_include_pad": count_include_pad})

    def avg_pool_grad(
        self,
        g: R,
        /,
        *,
        shape: tuple[Dim, ...],
        kernel: tuple[int, ...],
        stride: IntOrTuple,
        padding: IntOrTuple,
        count_include_pad: bool,
    ) -> R:
        """The adjoint of avg_pool.

        Each window's element of g is distributed evenly over its cells; the parts of padded cells are dropped.

        Raises:
            DtypeError: g not a float tensor.
            ShapeError: kernel and shape of other spatial axes; an invalid argument; no such shape; windows do not fit;
                g of another shape.
        """
        static = _window("avg_pool_grad", kernel, stride, padding)
        return self._call(
            AVG_POOL_GRAD,
            (g,),
            {"shape": as_shape("avg_pool_grad", shape), **static, "count_include_pad": count_include_pad},
        )

    def smooth_max_pool(
        self,
        x: R,
        /,
        *,
        kernel: tuple[int, ...],
        beta: Number,
        stride: IntOrTuple | None = None,
        padding: IntOrTuple = 0,
    ) -> R:
        """(1/beta) · log Σ e^(beta·x) over windows, shapes as in max_pool. PyTorch: torch.logsumexp, unfolded.

        Padded cells are excluded. It exceeds the maximum by at most log(cells)/beta; a negative beta gives a smooth
        minimum. Shifted by the window's maximum (minimum for a negative beta), so there is no overflow.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: kernel and shape of other spatial axes; an invalid argument; windows do not fit; x of another
                shape.
        """
        static = _window("smooth_max_pool", kernel, stride, padding)
        return self._call(SMOOTH_MAX_POOL, (x,), static | {"beta": beta})

    def max_pool2d(self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None) -> R:
        """max_pool for images, without padding.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument; windows do not fit; x of another shape.
        """
        return self.max_pool(x, kernel=_images("max_pool2d", x, kernel), stride=stride)

    def max_pool2d_pad(
        self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None, padding: IntOrTuple
    ) -> R:
        """max_pool for images.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument; windows do not fit; x of another shape.
        """
        return self.max_pool(x, kernel=_images("max_pool2d_pad", x, kernel), stride=stride, padding=padding)

    def avg_pool2d(self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None) -> R:
        """avg_pool for images, without padding.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument; windows do not fit; x of another shape.
        """
        return self.avg_pool(x, kernel=_images("avg_pool2d", x, kernel), stride=stride)

    def avg_pool2d_pad(
        self, x: R, /, *, kernel: IntOrTuple, stride: IntOrTuple | None = None, padding: IntOrTuple
    ) -> R:
        """avg_pool for images.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument; windows do not fit; x of another shape.
        """
        return self.avg_pool(x, kernel=_images("avg_pool2d_pad", x, kernel), stride=stride, padding=padding)

    def smooth_max_pool2d(self, x: R, /, *, kernel: IntOrTuple, beta: Number, stride: IntOrTuple | None = None) -> R:
        """smooth_max_pool for images.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: an invalid argument; windows do not fit; x of another shape.
        """
        return self.smooth_max_pool(x, kernel=_images("smooth_max_pool2d", x, kernel), beta=beta, stride=stride)
