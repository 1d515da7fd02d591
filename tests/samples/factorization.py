"""Samples: orthogonal factors, from characteristic polynomials."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, given, gives, normal


def _signed(vectors: Any) -> Any:
    """Each column with its first great entry positive."""
    out = np.array(vectors)
    for place in np.ndindex(out.shape[:-2]):
        for column in out[place].T:
            great = [v for v in column if abs(v) >= 0.618 * max(abs(column))]
            column *= np.sign(great[0])
    return out


def _eigh(x: Any) -> Any:
    """Values from the roots of the characteristic polynomial, vectors from the null spaces, of the lower triangle."""
    n = x.shape[-1]
    values, vectors = np.empty(x.shape[:-1]), np.empty(x.shape)
    for place in np.ndindex(x.shape[:-2]):
        lower = np.tril(x[place])
        a = lower + np.tril(lower, -1).T
        values[place] = np.sort(np.roots(np.poly(a)).real) if n > 1 else a[0]
        for k in range(n):
            vectors[(*place, slice(None), k)] = np.linalg.svd(a - values[place][k] * np.eye(n))[2][-1]
    return values, _signed(vectors)


def _of_symmetric(ops: Any, x: Any) -> Any:
    """Of (x + xᵀ)/2, where differences are of the symmetric part alone, as gradients are."""
    rank = len(x.shape)
    return ops.eigh(ops.scale(ops.add(x, ops.permute(x, axes=(*range(rank - 2), rank - 1, rank - 2))), c=0.5))


def _symmetric(*leading: int, n: int = 3) -> Any:
    """Of eigenvalues that are apart."""

    def arrays(rng: np.random.Generator) -> tuple[Any, ...]:
        x = rng.uniform(-0.4, 0.4, (*leading, n, n)) + np.diag(np.arange(n) * 1.5 - 1)[::-1, ::-1]
        return ((x + np.swapaxes(x, -1, -2)) / 2,)

    return arrays


def _qr(x: Any) -> Any:
    """By subtraction of what is along the columns before (Gram and Schmidt)."""
    k = min(x.shape[-2:])
    q, r = np.zeros((*x.shape[:-1], k)), np.zeros((*x.shape[:-2], k, x.shape[-1]))
    for j in range(k):
        along = np.einsum("...ij,...i->...j", q, x[..., j])
        rest = x[..., j] - np.einsum("...ij,...j->...i", q, along)
        q[..., j] = rest / np.sqrt((rest**2).sum(-1))[..., None]
    full = np.swapaxes(q, -1, -2) @ x
    r[...] = np.triu(full)
    return q, r


def _tall(*shape: int) -> Any:
    """Of columns that are far from dependent, both ways of the diagonal."""
    return lambda rng: (rng.uniform(-0.5, 0.5, shape) + 1.5 * np.diag([1.0, -1, 1, -1])[: shape[-2], : shape[-1]],)


def _svd(x: Any) -> Any:
    """From the eigenvectors of xᵀ·x, or of x·xᵀ, whichever is smaller."""
    wide = x.shape[-1] > x.shape[-2]
    tall = np.swapaxes(x, -1, -2) if wide else x
    squares, v = np.linalg.eigh(np.swapaxes(tall, -1, -2) @ tall)
    s, v = np.sqrt(squares)[..., ::-1], v[..., ::-1]
    u = tall @ v / s[..., None, :]
    u, v = (v, u) if wide else (u, v)
    signed = _signed(u)
    return signed, s, np.swapaxes(v * (signed * u).sum(-2)[..., None, :], -1, -2)


def _factors_of(ops: Any, x: Any) -> Any:
    """Of factors that are not unique: their product, and their columns' with one another."""
    u, s, vh = ops.svd(x)
    transposed = [ops.permute(each, axes=(0, 2, 1)) for each in (u, vh)]
    scaled = ops.mul(u, ops.broadcast_to(ops.unsqueeze(s, axis=1), shape=u.shape))
    return ops.bmm(scaled, vh), ops.bmm(transposed[0], u), ops.bmm(vh, transposed[1])


def _units(x: Any) -> Any:
    k = min(x.shape[-2:])
    return x, *(np.broadcast_to(np.eye(k), (x.shape[0], k, k)),) * 2


def _spread(*shape: int) -> Any:
    """Of singular values that are apart."""
    return lambda rng: (rng.uniform(-0.3, 0.3, shape) + np.diag([1.0, -2, 3, -4])[: shape[-2], : shape[-1]],)


_RANK = np.stack([np.ones((3, 2)), np.zeros((3, 2)), np.eye(3)[:, :2], np.eye(3)[:, 1:] * 1e-30])

_LOWER = np.array([[[2.0, 9.0], [1.0, 2.0]], [[3.0, np.nan], [4.0, -3.0]], [[np.nan, 0.0], [0.0, 1.0]]])
_HALF = 0.5**0.5
_CLOSE: dict[str, Any] = {"float32": (2e-5, 2e-5)}

SAMPLES = [
    Sample("eigh", "stack", _symmetric(2), _eigh, call=_of_symmetric, float64=(1e-9, 1e-10), **_CLOSE),
    Sample("eigh", "matrix", _symmetric(n=2), _eigh, call=_of_symmetric, **_CLOSE),
    Sample("eigh", "larger", _symmetric(n=5), _eigh, call=_of_symmetric, order=1, float64=(1e-8, 1e-8), **_CLOSE),
    Sample("eigh", "one", normal((2, 1, 1)), lambda x: (x[..., 0], np.ones(x.shape))),
    Sample("eigh", "no entries", normal((2, 0, 0)), lambda x: (np.zeros((2, 0)), x)),
    Sample("eigh", "no matrices", normal((0, 2, 2)), lambda x: (np.zeros((0, 2)), x)),
    Sample(
        "eigh",
        "lower triangle, and not finite",
        given(_LOWER),
        gives(
            [[1.0, 3.0], [-5.0, 5.0], [np.nan] * 2],
            [[[_HALF, _HALF], [-_HALF, _HALF]], [[-(0.2**0.5), 0.8**0.5], [0.8**0.5, 0.2**0.5]], [[np.nan] * 2] * 2],
        ),
        order=0,
    ),
    *(
        Sample(
            "eigh",
            case,
            lambda rng, scale=scale: (np.array([[scale, 0.0], [2 * scale, -2 * scale]]),),
            lambda x: (np.array([-3.0, 2.0]), np.array([[-1, 2], [2, 1]]) / 5**0.5),
            order=0,
            call=lambda ops, x, scale=scale: (ops.scale(ops.eigh(x)[0], c=1 / scale), ops.eigh(x)[1]),
        )
        for case, scale in (("whose squares overflow", 1e30), ("whose squares vanish", 1e-23))
    ),
    *(
        Sample("qr", case, _tall(*shape), _qr, **_CLOSE)
        for case, shape in (("tall", (2, 4, 2)), ("square", (3, 3)), ("wide", (2, 2, 4)))
    ),
    Sample("qr", "one row", given([[-2.0, 4.0]]), _qr),
    Sample("qr", "no rows", normal((2, 0, 3)), lambda x: (np.zeros((2, 0, 0)), x)),
    Sample("qr", "no columns", normal((2, 3, 0)), lambda x: (x, np.zeros((2, 0, 0)))),
    Sample("qr", "no matrices", normal((0, 3, 2)), lambda x: (x, np.zeros((0, 2, 2)))),
    Sample(
        "qr",
        "zeros, and not finite",
        given([[[0.0, 1.0], [0.0, 2.0]], [[np.inf, 1.0], [2.0, 3.0]]]),
        lambda x: (np.stack([np.eye(2), np.full((2, 2), np.nan)]), np.stack([x[0], np.full((2, 2), np.nan)])),
        order=0,
    ),
    *(
        Sample(
            "qr",
            case,
            lambda rng, scale=scale: (np.array([[3 * scale, 7 * scale], [4 * scale, 1 * scale]]),),
            gives([[0.6, 0.8], [0.8, -0.6]], [[5.0, 5.0], [0.0, 5.0]]),
            order=0,
            call=lambda ops, x, scale=scale: (ops.qr(x)[0], ops.scale(ops.qr(x)[1], c=1 / scale)),
        )
        for case, scale in (("whose squares overflow", 1e30), ("whose squares vanish", 1e-23))
    ),
    *(
        Sample("svd", case, _spread(*shape), _svd, float64=(1e-9, 1e-9), **_CLOSE)
        for case, shape in (("tall", (2, 3, 2)), ("square", (3, 3)), ("wide", (2, 2, 3)))
    ),
    Sample("svd", "one row", given([[-2.0, 1.0]]), _svd),
    Sample("svd", "no rows", normal((2, 0, 3)), lambda x: (np.zeros((2, 0, 0)), np.zeros((2, 0)), x)),
    Sample("svd", "no matrices", normal((0, 3, 2)), lambda x: (x, np.zeros((0, 2)), np.zeros((0, 2, 2)))),
    *(
        Sample("svd", case, lambda rng, x=x: (x,), _units, order=0, call=_factors_of)
        for case, x in (("rank, tall", _RANK), ("rank, wide", np.swapaxes(_RANK, 1, 2)))
    ),
    Sample(
        "svd",
        "not finite",
        given([[[2.0, 0.0], [0.0, -3.0]], [[np.inf, 1.0], [2.0, 3.0]]]),
        lambda x: tuple(
            np.stack([np.array(each), np.full(np.shape(each), np.nan)])
            for each in ([[0.0, 1.0], [1.0, 0.0]], [3.0, 2.0], [[0.0, -1.0], [1.0, 0.0]])
        ),
        order=0,
    ),
    *(
        Sample(
            "svd",
            case,
            lambda rng, scale=scale: (np.array([[7.2 * scale, 0.4 * scale], [4.6 * scale, 7.2 * scale]]),),
            gives([[0.6, 0.8], [0.8, -0.6]], [10.0, 5.0], [[0.8, 0.6], [0.6, -0.8]]),
            order=0,
            call=lambda ops, x, scale=scale: (ops.svd(x)[0], ops.scale(ops.svd(x)[1], c=1 / scale), ops.svd(x)[2]),
        )
        for case, scale in (("whose squares overflow", 1e30), ("whose squares vanish", 1e-23))
    ),
]

BAD_CALLS = [
    BadCall("eigh", "not square", given(np.ones((2, 3))), "2 rows and 3 columns"),
    BadCall("eigh", "vector", given(np.ones(2)), r"must be \(..., n, n\) but is \(2,\)"),
    BadCall("qr", "vector", given(np.ones(2)), r"must be \(..., m, n\) but is \(2,\)"),
    BadCall("qr", "integers", given(np.ones((2, 2), int)), "x must be a float tensor"),
    BadCall("svd", "vector", given(np.ones(2)), r"must be \(..., m, n\) but is \(2,\)"),
]
