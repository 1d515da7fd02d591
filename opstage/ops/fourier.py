# mypy: disable-error-code=empty-body
"""Discrete Fourier transforms along an axis. A complex tensor is a real one whose last axis is (real, imaginary)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .dims import Dim, DimExpr, floor_div, ratio, require_at_most, require_equal
from .errors import ShapeError
from .method import Calls
from .primitive import Context, Linearity, Primitive, R, Row, Some, Types
from .static_arguments import Axis, as_dim, normalize_axis
from .types import TensorType, require_float, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


_OTHER_WAY = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
"""The norm for which the inverse transform is the transpose."""


def _require_norm(norm: str) -> None:
    if norm not in _OTHER_WAY:
        raise ShapeError(f'norm must be "backward", "ortho" or "forward" but is {norm!r}')


def _require_length(x: TensorType, axis: int) -> None:
    require_at_most(
        1,
        x.shape[axis],
        lambda: f"x is {show_shape(x.shape)}: axis {axis} is empty, and a transform needs at least one element",
    )


def _require_complex(x: TensorType, axis: int) -> None:
    require_float(x, "x")
    rank = len(x.shape)
    message = "x must be complex, (..., 2) with real and imaginary parts along its last axis, but is {}; {}"
    if rank < 2:
        raise ShapeError(message.format(show_shape(x.shape), "of a real tensor use ops.rfft"))
    require_equal(x.shape[-1], 2, lambda: message.format(show_shape(x.shape), "of a real tensor use ops.rfft"))
    if axis == rank - 1:
        raise ShapeError(f"axis {axis} of x, {show_shape(x.shape)}, holds real and imaginary parts; transform another")
    _require_length(x, axis)


def _fft_shape(x: TensorType, *, axis: int, inverse: bool, norm: str) -> Types:
    _require_norm(norm)
    _require_complex(x, axis)
    return (x,)


def _rfft_shape(x: TensorType, *, axis: int, norm: str) -> Types:
    _require_norm(norm)
    require_float(x, "x")
    _require_length(x, axis)
    bins = floor_div(x.shape[axis], 2) + 1
    return (TensorType((*x.shape[:axis], bins, *x.shape[axis + 1 :], 2), x.dtype),)


def _irfft_shape(x: TensorType, *, n: Dim, axis: int, norm: str) -> Types:
    _require_norm(norm)
    _require_complex(x, axis)
    require_at_most(1, n, lambda: f"n must be at least 1 but is {n}")
    require_equal(
        floor_div(n, 2) + 1,
        x.shape[axis],
        lambda: (
            f"x is {show_shape(x.shape)} and n is {n}: axis {axis} must have n // 2 + 1 entries; slice or pad it, or "
            "name another n"
        ),
    )
    return (TensorType((*x.shape[:axis], n, *x.shape[axis + 1 : -1]), x.dtype),)


def _flops(inputs: Types, outputs: Types, /, *, axis: int, **_: Any) -> Dim:
    return 4 * inputs[0].size * outputs[0].shape[axis]


def _fft_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axis: int, inverse: bool, norm: str) -> Some[R]:
    """Apply the conjugate transform, the transpose in terms of real and imaginary parts."""
    (g,) = cotangents
    back = ops.fft if inverse else ops.ifft
    return (back(g, axis=axis, norm=_OTHER_WAY[norm]),)


def _inside(ops: Ops[R], x: R, n: Dim, axis: int, factor: Any) -> R:
    """Scale the bins that also represent their mirror images: all except the first, and the middle one for even n."""
    place = ops.iota(shape=x.shape, axis=axis)
    size = ops.full(shape=x.shape, value=ratio(n, 1) if isinstance(n, DimExpr) else n, dtype="int64")
    zero = ops.full(shape=x.shape, value=0, dtype="int64")
    inside = ops.logical_and(ops.less(zero, place), ops.less(ops.add(place, place), size))
    return ops.select(inside, ops.scale(x, c=factor), x)


def _rfft_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, axis: int, norm: str) -> Some[R]:
    (g,), n = cotangents, ctx.inputs[0].shape[axis]
    return (ops.irfft(_inside(ops, g, n, axis, ratio(1, 2)), n=n, axis=axis, norm=_OTHER_WAY[norm]),)


def _irfft_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, n: Dim, axis: int, norm: str) -> Some[R]:
    (g,) = cotangents
    return (_inside(ops, ops.rfft(g, axis=axis, norm=_OTHER_WAY[norm]), n, axis, 2),)


FFT = Primitive("fft", operands=("x",), shape=_fft_shape, vjp=_fft_vjp, jvp=Linearity.JOINT, flops=_flops)
RFFT = Primitive(shape=_rfft_shape, vjp=_rfft_vjp, jvp=Linearity.JOINT, flops=_flops)
IRFFT = Primitive("irfft", operands=("x",), shape=_irfft_shape, vjp=_irfft_vjp, jvp=Linearity.JOINT, flops=_flops)


# The methods of Ops ------------------------------------------------------------------------------------------


class FourierOps(Calls[R]):
    """Fourier transforms. A complex tensor is a real one whose last axis is (real, imaginary), as in PyTorch's
    view_as_real.

    `norm` determines the scaling, as in NumPy: "backward", 1/n in the inverse; "forward", 1/n in the transform;
    "ortho", 1/√n in both. Apply transforms along several axes in sequence. If a line along the axis has nan or inf, all
    of its transform is nan. Raises ShapeError for an empty axis.
    """

    __slots__ = ()

    def fft(self, x: R, /, *, axis: int = -2, norm: str = "backward") -> R:
        """Return Σ x[j]·e^(-2πi·jk/n) over an axis of a complex x (..., 2), of the same shape. PyTorch: torch.fft.fft.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: a transform along the real and imaginary parts; no such axis; an invalid argument; an axis is
                empty; x of another shape.
        """
        axis = normalize_axis("fft", axis, len(x.shape))
        return self._call(FFT, (x,), {"axis": axis, "inverse": False, "norm": norm})

    def ifft(self, x: R, /, *, axis: int = -2, norm: str = "backward") -> R:
        """Return 1/n·Σ x[k]·e^(2πi·jk/n) over an axis of a complex x (..., 2), of the same shape. PyTorch:
        torch.fft.ifft.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: a transform along the real and imaginary parts; no such axis; an invalid argument; an axis is
                empty; x of another shape.
        """
        axis = normalize_axis("ifft", axis, len(x.shape))
        return self._call(FFT, (x,), {"axis": axis, "inverse": True, "norm": norm})

    @RFFT.method
    def rfft(self, x: R, /, *, axis: Axis = -1, norm: str = "backward") -> R:
        """Return the first n // 2 + 1 entries of the transform of a real x: the rest are conjugates. PyTorch:
        torch.fft.rfft.

        x (*a, n, *b) -> (*a, n // 2 + 1, *b, 2): real and imaginary parts along a new last axis.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: no such axis; an invalid argument; an axis is empty.
        """

    def irfft(self, x: R, /, *, n: Dim | None = None, axis: int = -2, norm: str = "backward") -> R:
        """Return the real tensor whose `rfft` is x: (*a, n // 2 + 1, *b, 2) -> (*a, n, *b). PyTorch: torch.fft.irfft.

        n defaults to 2·(entries - 1); another n must agree with x, which is neither cut nor padded. The
        imaginary parts of the first entry, and of the middle one for even n, are ignored.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: n does not fit x; a transform along the real and imaginary parts; no such axis; an invalid
                argument; an axis is empty; x of another shape.
        """
        axis = normalize_axis("irfft", axis, len(x.shape))
        if n is None:
            n = 2 * (x.shape[axis] - 1) if isinstance(axis, int) and axis < len(x.shape) else 0
        return self._call(IRFFT, (x,), {"n": as_dim("irfft", "n", n), "axis": axis, "norm": norm})
