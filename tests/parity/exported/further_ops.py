"""More of ATen's ops: maxima and their places, bags of embeddings, systems of equations, complex tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from tests.parity.exported.ops import IMAGE, INT, LINE, MASK, POSITIVE, SQUARE, VOLUME, Table, X, Y, _x

TIES = (IMAGE * 2).round()
STACK = torch.stack([SQUARE, SQUARE.T + torch.eye(4, dtype=torch.float64)])
BAGS, STARTS = torch.tensor([0, 2, 1, 1, 0]), torch.tensor([0, 2, 2])
ORDERED = X.sort(1).values


def _put_back(x: torch.Tensor) -> torch.Tensor:
    return F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)


def _put(x: torch.Tensor, where: Any, values: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[where] = values
    return y


MAXIMA: Table = {
    "max_pool_places": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[1], (TIES,)),
    "max_pool_places_ceil": (lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True, return_indices=True)[1], (TIES,)),
    "max_pool_places_gaps": (lambda x: F.max_pool2d(x, 2, 1, 1, dilation=2, return_indices=True)[1], (TIES,)),
    "max_pool_values": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[0] * 2, (IMAGE,)),
    "max_pool1d_places": (lambda x: F.max_pool1d(x, 3, return_indices=True)[1], (LINE,)),
    "max_pool3d_places": (lambda x: F.max_pool3d(x, 2, return_indices=True)[1], (VOLUME,)),
    "max_unpool2d": (_put_back, (_x(2, 4, 6, 4),)),
    "cummax": (lambda x: x.cummax(1)[0], (X,)),
    "cummax_places": (lambda x: x.cummax(1)[1], ((X * 2).round(),)),
    "cummin": (lambda x: x.cummin(0)[0], (X,)),
    "histc": (lambda x: torch.histc(x, 5, -1.5, 2), (X,)),
    "histc_of_experts": (lambda x: torch.histc((x.abs() * 3).floor(), 8, 0, 7), (X,)),
    "kthvalue": (lambda x: x.kthvalue(2, dim=1)[0], (X,)),
    "kthvalue_place": (lambda x: x.kthvalue(3, dim=0, keepdim=True)[1], (X,)),
    "fmax": (lambda x, y: torch.fmax(x / (x > 0), y), (X, Y)),
    "fmin_of_ints": (lambda i: torch.fmin(i, i.flip(0)), (INT,)),
    "searchsorted": (lambda x, y: torch.searchsorted(x, y), (ORDERED, Y)),
    "searchsorted_right": (lambda x: torch.searchsorted(x, x[:, :2], right=True), (ORDERED,)),
    "searchsorted_side": (lambda x, y: torch.searchsorted(x[0], y, side="right", out_int32=True), (ORDERED, Y)),
    "bucketize": (lambda x: torch.bucketize(x, torch.tensor([-1, 0, 1])), (X,)),
}

WRITTEN: Table = {
    "embedding_bag": (lambda w: F.embedding_bag(BAGS, w, STARTS, mode="sum"), (X,)),
    "embedding_bag_mean": (lambda w: F.embedding_bag(BAGS, w, STARTS), (X,)),
    "embedding_bag_max": (lambda w: F.embedding_bag(BAGS, w, STARTS, mode="max"), (X,)),
    "embedding_bag_padded": (lambda w: F.embedding_bag(BAGS, w, STARTS, padding_idx=1), (X,)),
    "embedding_bag_weights": (
        lambda w, s: F.embedding_bag(BAGS, w, STARTS, mode="sum", per_sample_weights=s),
        (X, _x(5, seed=4)),
    ),
    "embedding_bag_last": (lambda w: F.embedding_bag(BAGS, w, torch.tensor([0, 3, 5]), include_last_offset=True), (X,)),
    "index_copy": (lambda x, y: x.index_copy(1, torch.tensor([3, 0]), y[:, :2]), (X, Y)),
    "index_fill": (lambda x: x.index_fill(2, torch.tensor([3, 0]), 0.5), (IMAGE,)),
    "index_put_apart": (
        lambda x, y: _put(x, (torch.tensor([0, 1]), slice(None), torch.tensor([3, 0])), y),
        (IMAGE, _x(2, 4, 5, seed=1)),
    ),
    "index_put_middle": (
        lambda x, y: _put(x, (slice(None), torch.tensor([0, 2]), torch.tensor([3, 3])), y),
        (IMAGE, _x(2, 2, 5, seed=1)),
    ),
    "masked_scatter": (lambda x, m, y: x.masked_scatter(m, y), (X, MASK, Y)),
    "masked_scatter_spread": (lambda x, y: x.masked_scatter(torch.tensor([True, False, True, False]), y), (X, Y)),
    "triangle": (lambda x: x[tuple(torch.tril_indices(4, 4, -1))], (SQUARE,)),
    "triangle_above": (lambda x: torch.triu_indices(3, 5, 1) + x[:, :1].long(), (_x(2, 4),)),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3, training=False), (X,)),
    "hypot": (torch.hypot, (X, Y)),
    "hypot_large": (lambda x, y: torch.hypot(x * 1e200, y * 1e200), (X, Y)),
    "copysign": (torch.copysign, (X, Y)),
    "copysign_zero": (lambda x: torch.copysign(x, -torch.zeros_like(x)), (X,)),
    "copysign_number": (lambda x: torch.copysign(x, -2.0), (X,)),
}

SYSTEMS: Table = {
    "inverse": (torch.linalg.inv, (STACK,)),
    "det": (torch.linalg.det, (STACK,)),
    "slogdet": (lambda x: torch.linalg.slogdet(x)[1], (STACK,)),
    "slogdet_sign": (lambda x: torch.linalg.slogdet(-x[:, :3, :3])[0], (STACK,)),
    "logdet": (torch.logdet, (STACK,)),
    "solve": (torch.linalg.solve, (STACK, _x(2, 4, 3))),
    "solve_vector": (torch.linalg.solve, (SQUARE, _x(4))),
    "solve_vectors": (torch.linalg.solve, (STACK, _x(2, 4))),
    "solve_spread": (torch.linalg.solve, (SQUARE, _x(2, 4, 3))),
    "solve_right": (lambda a, b: torch.linalg.solve(a, b, left=False), (STACK, _x(2, 3, 4))),
    "bilinear": (F.bilinear, (X, _x(3, 5, seed=1), _x(2, 4, 5, seed=2), _x(2, seed=3))),
    "cdist": (torch.cdist, (X, Y)),
    "cdist_of_batches": (lambda x, y: torch.cdist(x, y, p=1.0), (_x(2, 3, 4), _x(1, 5, 4, seed=1))),
    "cdist_largest": (lambda x, y: torch.cdist(x, y, p=float("inf")), (X, Y)),
    "log_of": (lambda x: torch.linalg.det(x).log(), (POSITIVE[:, :1].unsqueeze(-1),)),
}

FURTHER: dict[str, Table] = {"maxima": MAXIMA, "written": WRITTEN, "systems": SYSTEMS}


# Ops of complex tensors, as functions of real ones: a complex tensor goes in and out as its parts ---------------------

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
