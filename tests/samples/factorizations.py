"""Samples: orthogonal factors, from characteristic polynomials."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, normal


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
        lambda rng: (_LOWER,),
        lambda x: (
            np.array([[1.0, 3.0], [-5.0, 5.0], [np.nan] * 2]),
            np.array(
                [
                    [[_HALF, _HALF], [-_HALF, _HALF]],
                    [[-(0.2**0.5), 0.8**0.5], [0.8**0.5, 0.2**0.5]],
                    [[np.nan] * 2] * 2,
                ]
            ),
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
]

BAD_CALLS = [
    BadCall("eigh", "not square", lambda: (np.ones((2, 3)),), "2 rows and 3 columns"),
    BadCall("eigh", "vector", lambda: (np.ones(2),), r"must be \(..., n, n\) but is \(2,\)"),
]
