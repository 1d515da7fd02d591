"""Discrete Fourier transforms along an axis."""

from __future__ import annotations

from ..arguments import as_dim, normalize_axis
from ..calls import Calls
from ..catalogue.fourier import FFT, IRFFT, RFFT
from ..dims import Dim
from ..primitive import R


class FourierOps(Calls[R]):
    """Fourier transforms. A complex tensor is a real one whose last axis is (real, imaginary), as in PyTorch's
    view_as_real.

    `norm` determines the scaling, as in NumPy: "backward", 1/n in the inverse; "forward", 1/n in the transform;
    "ortho", 1/√n in both. Apply transforms along several axes in sequence. If a line along the axis has nan or inf, all
    of its transform is nan. Raises ShapeError for an empty axis.
    """

    __slots__ = ()

    def fft(self, x: R, /, *, axis: int = -2, norm: str = "backward") -> R:
        """Σ x[j]·e^(-2πi·jk/n) over an axis of a complex x (..., 2), of the same shape. PyTorch: torch.fft.fft.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: a transform along the real and imaginary parts; no such axis; an invalid argument; an axis is
                empty; x of another shape.
        """
        axis = normalize_axis("fft", axis, len(x.shape))
        return self._call(FFT, (x,), {"axis": axis, "inverse": False, "norm": norm})

    def ifft(self, x: R, /, *, axis: int = -2, norm: str = "backward") -> R:
        """1/n·Σ x[k]·e^(2πi·jk/n) over an axis of a complex x (..., 2), of the same shape. PyTorch: torch.fft.ifft.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: a transform along the real and imaginary parts; no such axis; an invalid argument; an axis is
                empty; x of another shape.
        """
        axis = normalize_axis("ifft", axis, len(x.shape))
        return self._call(FFT, (x,), {"axis": axis, "inverse": True, "norm": norm})

    def rfft(self, x: R, /, *, axis: int = -1, norm: str = "backward") -> R:
        """The first n // 2 + 1 entries of the transform of a real x: the rest are conjugates. PyTorch: torch.fft.rfft.

        x (*a, n, *b) -> (*a, n // 2 + 1, *b, 2): real and imaginary parts along a new last axis.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: no such axis; an invalid argument; an axis is empty.
        """
        return self._call(RFFT, (x,), {"axis": normalize_axis("rfft", axis, len(x.shape)), "norm": norm})

    def irfft(self, x: R, /, *, n: Dim | None = None, axis: int = -2, norm: str = "backward") -> R:
        """The real tensor whose `rfft` is x: (*a, n // 2 + 1, *b, 2) -> (*a, n, *b). PyTorch: torch.fft.irfft.

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
