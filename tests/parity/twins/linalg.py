"""Twins: products of matrices, linear systems, factors and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from opstage import derived
from tests.parity.twin import INF, NAN, Arrays, Case, Twin, fixed, normal

_MATRICES = ((2, 3, 4), (1, 7, 1), (5, 1, 5), (0, 2, 3), (2, 0, 3), (64, 300, 48), (33, 1000, 17))
_BATCHES = ((2,), (2, 3), (), (0,), (16,))
_INFIX = (
    ((3, 4), (4, 2)),
    ((4,), (4, 2)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((5, 3, 4), (4, 2)),
    ((5, 3, 4), (5, 4, 2)),
    ((5, 1, 3, 4), (2, 4, 6)),
    ((4,), (5, 4, 2)),
    ((5, 3, 4), (4,)),
)
_LINEAR = (((4,), 3), ((2, 4), 3), ((2, 5, 4), 3), ((0, 4), 3), ((64, 300), 10), ((1, 4), 1))


def _linear(x: tuple[int, ...], out: int, bias: bool) -> Arrays:
    def make(rng: Any) -> tuple[Any, ...]:
        weight = rng.standard_normal((out, x[-1]))
        return weight, rng.standard_normal(out) if bias else None, rng.standard_normal(x)

    return make


def _products(x: Callable[..., Any], y: Callable[..., Any], batches: Any) -> tuple[Case, ...]:
    return tuple(
        Case(f"{b} {m} {k} {n}", normal((*b, *x(m, k)), (*b, *y(k, n))), terms=max(m, k, n))
        for b in batches
        for m, k, n in (_MATRICES if b in ((), (2,)) else _MATRICES[:3])
    )


def _rows_of_groups(ends: list[int], n: int) -> Iterator[slice]:
    """The rows of each group, for ends that never fall, and those of none."""
    return (slice(a, b) for a, b in pairwise([0, *ends, n]))


def _grouped_matmul(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    matrices = [*w, torch.zeros_like(w[0])]
    rows = _rows_of_groups(ends.tolist(), len(x))
    return torch.cat([x[at] @ matrix for at, matrix in zip(rows, matrices, strict=True)])


def _grouped_outer(x: torch.Tensor, g: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    *rows, _ = _rows_of_groups(ends.tolist(), len(x))
    return torch.stack([x[at].T @ g[at] for at in rows])


def _in_groups(*shapes: tuple[int, ...], ends: list[int]) -> Arrays:
    return lambda rng: (*(rng.standard_normal(shape) for shape in shapes), np.array(ends))


_GROUPS = ((9, 4, 5, [2, 2, 7]), (600, 150, 70, [200, 450, 590]))

_EDGES = fixed([[INF, 1.0], [NAN, 0.0], [1e30, 1.0]], [[1.0, 0.0, 2.0], [1.0, 1.0, -1.0]])

TWINS: list[Twin] = [
    Twin(
        "matmul",
        torch.matmul,
        (*_products(lambda m, k: (m, k), lambda k, n: (k, n), ((),)), Case("edges", _EDGES, edge=True)),
    ),
    Twin("bmm", torch.matmul, _products(lambda m, k: (m, k), lambda k, n: (k, n), _BATCHES)),
    Twin(
        "matmul",
        lambda x, y: x @ y,
        tuple(Case(f"infix {a} {b}", normal(a, b), terms=30) for a, b in _INFIX),
        call=lambda ops, x, y: x @ y,
    ),
    Twin(
        "linear",
        lambda weight, bias, x: functional.linear(x, weight, bias),
        tuple(
            Case(f"{x} to {out} {'biased' if bias else 'plain'}", _linear(x, out, bias), terms=max(x[-1], x[0], out))
            for x, out in _LINEAR
            for bias in (True, False)
        ),
    ),
    Twin(
        "grouped_matmul",
        _grouped_matmul,
        tuple(
            Case(f"{n} {k} {m}", _in_groups((n, k), (len(ends), k, m), ends=ends), terms=n) for n, k, m, ends in _GROUPS
        ),
    ),
    Twin(
        "grouped_outer",
        _grouped_outer,
        tuple(Case(f"{n} {k} {m}", _in_groups((n, k), (n, m), ends=ends), terms=n) for n, k, m, ends in _GROUPS),
    ),
]


# Linear systems, and the Cholesky factor ------------------------------------------------------------------------------


def _system(*leading: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: (rng.uniform(-1, 1, (*leading, 4, 4)) + 4 * np.eye(4), rng.standard_normal((*leading, 4, 3)))


def _triangular(a: torch.Tensor, b: torch.Tensor, lower: bool, transpose: bool) -> torch.Tensor:
    if transpose:
        a, lower = a.mT, not lower
    return torch.linalg.solve_triangular(a.tril() if lower else a.triu(), b, upper=not lower)


def _square(ops: Any, x: Any) -> Any:
    return ops.cholesky(ops.add(ops.bmm(x, ops.permute(x, axes=(0, 2, 1))), ops.const(np.stack([2 * np.eye(4)] * 2))))


TWINS += [
    Twin("solve", torch.linalg.solve, tuple(Case(f"{n}", _system(*n), terms=50) for n in ((), (3,), (2, 2)))),
    Twin(
        "triangular_solve",
        _triangular,
        tuple(
            Case(f"{lower} {transpose}", _system(2), {"lower": lower, "transpose": transpose}, terms=50)
            for lower in (True, False)
            for transpose in (True, False)
        ),
    ),
    Twin(
        "cholesky",
        lambda x: torch.linalg.cholesky(x @ x.mT + 2 * torch.eye(4, dtype=x.dtype)),
        (Case("stack", lambda rng: (rng.standard_normal((2, 4, 4)),), terms=50),),
        call=_square,
    ),
]


# Determinants, cofactors, inverses ------------------------------------------------------------------------------------


def _regular(*leading: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: (rng.uniform(-1, 1, (*leading, 4, 4)) + 3 * np.eye(4)[::-1],)


_CASES = tuple(Case(f"{n}", _regular(*n), terms=50) for n in ((), (3,), (2, 2)))

TWINS += [
    Twin("det", torch.linalg.det, _CASES),
    Twin("cofactor", lambda x: torch.linalg.det(x)[..., None, None] * torch.linalg.inv(x).mT, _CASES),
    Twin("slogdet", torch.linalg.slogdet, _CASES),
    Twin("derived.inverse", torch.linalg.inv, _CASES, call=derived.inverse),
]


# Orthogonal factors, with signs as Opstage fixes them -----------------------------------------------------------------


def _sign(vectors: torch.Tensor) -> torch.Tensor:
    """Of the first great entry of each column, (..., 1, k)."""
    sizes = vectors.detach().abs()
    first = (sizes >= 0.618 * sizes.amax(-2, keepdim=True)).byte().argmax(-2, keepdim=True)
    return vectors.detach().gather(-2, first).sign()


def _symmetric(*leading: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: (rng.uniform(-0.4, 0.4, (*leading, 4, 4)) + np.diag([2.0, -1, 0.5, 3.5]),)


def _eigh(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values, vectors = torch.linalg.eigh((x + x.mT) / 2)
    return values, vectors * _sign(vectors)


def _qr(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    q, r = torch.linalg.qr(x)
    signs = torch.diagonal(r.detach(), dim1=-2, dim2=-1).sign()
    return q * signs.unsqueeze(-2), r * signs.unsqueeze(-1)


def _svd(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    signs = _sign(u)
    return u * signs, s, vh * signs.mT


def _full(*shape: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: (rng.uniform(-0.5, 0.5, shape) + np.diag([2.0, -3.5, 5, -6.5])[: shape[-2], : shape[-1]],)


def _of_symmetric(ops: Any, x: Any) -> Any:
    rank = len(x.shape)
    other = ops.permute(x, axes=(*range(rank - 2), rank - 1, rank - 2))
    return ops.eigh(ops.scale(ops.add(x, other), c=0.5))


TWINS += [
    Twin("eigh", _eigh, tuple(Case(f"{n}", _symmetric(*n), terms=50) for n in ((), (3,), (2, 2))), call=_of_symmetric),
    Twin("svd", _svd, tuple(Case(f"{n}", _full(*n), terms=50) for n in ((4, 4), (3, 4, 2), (2, 2, 4)))),
    Twin("qr", _qr, tuple(Case(f"{n}", _full(*n), terms=50) for n in ((4, 4), (3, 4, 2)))),
]


# Fourier transforms, whose complex tensors are PyTorch's view_as_real -------------------------------------------------


def _made(transform: Callable[..., Any], takes: bool, gives: bool) -> Callable[..., Any]:
    """The transform on real tensors, of complex ones where it takes or gives them."""

    def call(x: torch.Tensor, axis: int = -1, norm: str = "backward", n: int | None = None) -> torch.Tensor:
        options: dict[str, Any] = {"dim": axis, "norm": norm} if n is None else {"dim": axis, "norm": norm, "n": n}
        y = transform(torch.view_as_complex(x.contiguous()) if takes else x, **options)
        return torch.view_as_real(y) if gives else y

    return call


def _cases(*shape: int, **static: Any) -> tuple[Case, ...]:
    return (
        Case("last", lambda rng: (rng.standard_normal(shape),), static, terms=20),
        Case("inner", lambda rng: (rng.standard_normal((2, *shape)),), {"axis": 0, "norm": "ortho"}, terms=20),
    )


TWINS += [
    Twin("fft", _made(torch.fft.fft, True, True), _cases(3, 6, 2)),
    Twin("ifft", _made(torch.fft.ifft, True, True), _cases(3, 5, 2)),
    Twin("rfft", _made(torch.fft.rfft, False, True), _cases(3, 6)),
    Twin("irfft", _made(torch.fft.irfft, True, False), _cases(3, 4, 2, n=7)),
]
