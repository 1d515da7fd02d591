"""Ops of complex tensors, as functions of real ones: a complex tensor goes in and out as its parts."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

from tests.parity.exported.ops import POSITIVE, Table, X, Y, _x

PAIRS, OTHERS, TIMES = _x(3, 4, 2), _x(3, 4, 2, seed=8), _x(2, 3, 8)


def _z(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x)


def _r(z: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(z.resolve_conj())


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions as products of complex numbers."""
    angles = torch.outer(torch.arange(3, dtype=x.dtype), 10.0 ** -torch.arange(4, dtype=x.dtype))
    return _r(_z(x) * torch.polar(torch.ones_like(angles), angles)).flatten(1)


CONSTANT = torch.complex(X, Y)

COMPLEX: Table = {
    "parts": (lambda x: _z(x).real - 2 * _z(x).imag, (PAIRS,)),
    "of parts": (lambda x, y: _r(torch.complex(x, y)), (X, Y)),
    "polar": (lambda x, y: _r(torch.polar(x, y)), (POSITIVE, Y)),
    "conjugate": (lambda x, y: _r(_z(x).conj() * _z(y)), (PAIRS, OTHERS)),
    "abs": (lambda x: _z(x).abs(), (PAIRS,)),
    "abs at 0": (lambda x: _z(x * 0.0).abs(), (PAIRS,)),
    "angle": (lambda x: _z(x).angle(), (PAIRS,)),
    "add": (lambda x, y: _r(_z(x) + _z(y)), (PAIRS, OTHERS)),
    "add alpha": (lambda x, y: _r(torch.add(_z(x), _z(y), alpha=3)), (PAIRS, OTHERS)),
    "add real": (lambda x, y: _r(_z(x) + y), (PAIRS, X)),
    "add to real": (lambda x, y: _r(y - _z(x)), (PAIRS, X)),
    "add number": (lambda x: _r(_z(x) + 1), (PAIRS,)),
    "add complex number": (lambda x: _r(_z(x) + (1 - 2j)), (PAIRS,)),
    "real and complex number": (lambda x: _r(x + (1 - 2j)), (X,)),
    "number less": (lambda x: _r(1 - _z(x)), (PAIRS,)),
    "mul": (lambda x, y: _r(_z(x) * _z(y)), (PAIRS, OTHERS)),
    "mul real": (lambda x, y: _r(_z(x) * y), (PAIRS, X)),
    "mul spread": (lambda x, y: _r(_z(x) * _z(y)), (PAIRS, _x(4, 2))),
    "mul number": (lambda x: _r(2.5 * _z(x)), (PAIRS,)),
    "mul complex number": (lambda x: _r(_z(x) * 1j), (PAIRS,)),
    "real times complex number": (lambda x: _r(x * (2 + 1j)), (X,)),
    "div": (lambda x, y: _r(_z(x) / _z(y)), (PAIRS, OTHERS)),
    "div by large": (lambda x: _r(_z(x) / _z(OTHERS * 1e200)) * 1e200, (PAIRS,)),
    "div by a constant": (lambda x: _r(_z(x) / CONSTANT), (PAIRS,)),
    "div real": (lambda x, y: _r(_z(x) / y), (PAIRS, POSITIVE)),
    "real div": (lambda x, y: _r(y / _z(x)), (PAIRS, POSITIVE)),
    "div number": (lambda x: _r(_z(x) / (1 + 2j)), (PAIRS,)),
    "number div": (lambda x: _r(2 / _z(x)), (PAIRS,)),
    "reciprocal": (lambda x: _r(_z(x).reciprocal()), (PAIRS,)),
    "pow": (lambda x: _r(_z(x) ** 3), (PAIRS,)),
    "square": (lambda x: _r(_z(x).square()), (PAIRS,)),
    "exp": (lambda x: _r(_z(x).exp()), (PAIRS,)),
    "log": (lambda x: _r(_z(x).log()), (PAIRS,)),
    "neg": (lambda x: _r(-_z(x)), (PAIRS,)),
    "matmul": (lambda x, y: _r(_z(x) @ _z(y).mT), (PAIRS, OTHERS)),
    "matmul real": (lambda x, y: _r(_z(x) @ y.mT.to(torch.complex128)), (PAIRS, X)),
    "stack": (lambda x, y: _r(torch.stack([_z(x), _z(y)], 1)), (PAIRS, OTHERS)),
    "cat real": (lambda x, y: _r(torch.cat([_z(x), y.to(torch.complex128)])), (PAIRS, X)),
    "where": (lambda x, y: _r(torch.where(y > 0, _z(x), 2 * _z(x))), (PAIRS, X)),
    "layout": (lambda x: _r(_z(x).reshape(2, 6).mT[1:, None].flip(0)), (PAIRS,)),
    "split": (lambda x: _r(_z(x).split(2, 1)[1] * _z(x).unbind(1)[0][:, None]), (PAIRS,)),
    "pad": (lambda x: _r(F.pad(_z(x), (1, 2), value=3.0)), (PAIRS,)),
    "sum": (lambda x: _r(_z(x).sum(0)), (PAIRS,)),
    "mean": (lambda x: _r(_z(x).mean()), (PAIRS,)),
    "no_grad": (lambda x: _r(_without_gradient(x) * _z(x)), (PAIRS,)),
    "rotary": (_rotated, (PAIRS,)),
    "ones": (lambda x: _r(torch.ones_like(_z(x)) * _z(x)), (PAIRS,)),
    "fft": (lambda x: _r(torch.fft.fft(_z(x))), (PAIRS,)),
    "fft of real": (lambda x: _r(torch.fft.fft(x, dim=1, norm="forward")), (TIMES,)),
    "fft cut": (lambda x: _r(torch.fft.fft(_z(x), n=3, norm="ortho")), (PAIRS,)),
    "fft padded": (lambda x: _r(torch.fft.fft(_z(x), n=7)), (PAIRS,)),
    "ifft": (lambda x: _r(torch.fft.ifft(_z(x), dim=0, norm="ortho")), (PAIRS,)),
    "fft2": (lambda x: _r(torch.fft.fft2(_z(x))), (PAIRS,)),
    "ifftn": (lambda x: _r(torch.fft.ifftn(_z(x), norm="forward")), (PAIRS,)),
    "rfft": (lambda x: _r(torch.fft.rfft(x)), (TIMES,)),
    "rfft2": (lambda x: _r(torch.fft.rfft2(x, norm="ortho")), (TIMES,)),
    "irfft": (lambda x: torch.fft.irfft(_z(x)), (PAIRS,)),
    "irfft odd": (lambda x: torch.fft.irfft(_z(x), n=7, norm="forward"), (PAIRS,)),
    "irfft2": (lambda x: torch.fft.irfft2(_z(x), norm="ortho"), (PAIRS,)),
    "hfft": (lambda x: torch.fft.hfft(_z(x)), (PAIRS,)),
    "ihfft": (lambda x: _r(torch.fft.ihfft(x)), (TIMES,)),
    "fftshift": (lambda x: _r(torch.fft.fftshift(torch.fft.fft(_z(x)))), (PAIRS,)),
    "convolved": (lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 16) * torch.fft.rfft(y, 16), 16), (TIMES, TIMES[:1])),
    "stft": (
        lambda x: torch.stft(x[0], 4, 2, window=torch.hann_window(4, dtype=x.dtype), return_complex=True).abs(),
        (TIMES,),
    ),
}


def _without_gradient(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return _z(x) * 2
