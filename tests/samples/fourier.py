"""Samples: Fourier transforms, against sums over all angles."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, given, normal


def _sums(z: Any, axis: int, sign: int, norm: str) -> Any:
    n = z.shape[axis]
    k = np.arange(n)
    matrix = np.exp(sign * 2j * np.pi * (np.outer(k, k) % n) / n)
    scale = {"backward": 1.0 if sign < 0 else 1 / n, "forward": 1 / n if sign < 0 else 1.0, "ortho": n**-0.5}[norm]
    return np.moveaxis(np.moveaxis(z, axis, -1) @ matrix, -1, axis) * scale


def _parts(z: Any) -> Any:
    return np.stack([z.real, z.imag], -1)


def _fft(sign: int) -> Any:
    def reference(x: Any, axis: int = -2, norm: str = "backward") -> Any:
        z = x[..., 0] + 1j * x[..., 1]
        return _parts(_sums(z, axis if axis >= 0 else axis + 1, sign, norm))

    return reference


def _rfft(x: Any, axis: int = -1, norm: str = "backward") -> Any:
    return _parts(np.take(_sums(x, axis, -1, norm), np.arange(x.shape[axis] // 2 + 1), axis))


def _irfft(x: Any, n: int | None = None, axis: int = -2, norm: str = "backward") -> Any:
    """Of the whole transform, its other half mirrored."""
    z = np.moveaxis(x[..., 0] + 1j * x[..., 1], axis if axis >= 0 else axis + 1, -1)
    n = 2 * (z.shape[-1] - 1) if n is None else n
    z[..., 0] = z[..., 0].real
    if n % 2 == 0:
        z[..., -1] = z[..., -1].real
    rest = np.conj(z[..., 1 : n - z.shape[-1] + 1])[..., ::-1]
    y = _sums(np.concatenate([z, rest], -1), -1, 1, norm).real
    return np.moveaxis(y, -1, axis if axis >= 0 else axis + 1)


_BAD = np.array([[1.0, np.nan, 2.0], [np.inf, 0.0, 1.0], [1.0, 2.0, 4.0]])

SAMPLES = [
    *(
        Sample(op, case, normal(shape), _fft(sign), static, float32=(1e-5, 1e-5))
        for op, sign in (("fft", -1), ("ifft", 1))
        for case, shape, static in (
            ("vector", (6, 2), {}),
            ("stack", (2, 5, 2), {"norm": "ortho"}),
            ("inner", (2, 4, 3, 2), {"axis": 1, "norm": "forward"}),
            ("one", (2, 1, 2), {}),
            ("no lines", (0, 3, 2), {}),
        )
    ),
    *(
        Sample("rfft", case, normal(shape), _rfft, static, float32=(1e-5, 1e-5))
        for case, shape, static in (
            ("even", (6,), {}),
            ("odd", (2, 5), {"norm": "ortho"}),
            ("inner", (2, 4, 3), {"axis": 1, "norm": "forward"}),
            ("one", (2, 1), {}),
            ("no lines", (0, 3), {}),
        )
    ),
    *(
        Sample("irfft", case, normal(shape), _irfft, static, float32=(1e-5, 1e-5))
        for case, shape, static in (
            ("even", (4, 2), {}),
            ("odd", (2, 3, 2), {"n": 5, "norm": "ortho"}),
            ("inner", (2, 3, 3, 2), {"axis": 1, "n": 4, "norm": "forward"}),
            ("one", (2, 1, 2), {"n": 1}),
            ("no lines", (0, 3, 2), {}),
        )
    ),
    Sample(
        "rfft",
        "lines that are not finite",
        given(_BAD),
        lambda x: np.where(np.isfinite(x).all(1)[:, None, None], _rfft(x), np.nan),
        order=0,
    ),
]

BAD_CALLS = [
    BadCall("fft", "real", given(np.ones((2, 3))), r"x must be complex, .* but is \(2, 3\); .* ops.rfft"),
    BadCall("fft", "parts", given(np.ones((3, 2))), "axis 1 of x, .* transform another", axis=1),
    BadCall("ifft", "norm", given(np.ones((3, 2))), "norm must be .* but is 'half'", norm="half"),
    BadCall("rfft", "empty", given(np.ones((3, 0))), "axis 1 is empty"),
    BadCall("irfft", "length", given(np.ones((3, 2))), "n is 7: axis 0 must have", n=7),
]
