"""Fourier transforms: of named sizes, in float32, and beside NumPy's along two axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage.options import Options


def _there_and_back(ops: Any, x: Any) -> Any:
    return ops.irfft(ops.rfft(x, axis=1), n=x.shape[1], axis=1)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 127])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_there_and_back(n: int, dtype: str) -> None:
    x = np.random.default_rng(n).standard_normal((2, n, 3)).astype(dtype)
    out: Any = opstage.run(_there_and_back, x, options=Options(dtype=dtype))
    assert out.dtype == dtype
    np.testing.assert_allclose(out, x, rtol=1e-5, atol=1e-6 if dtype == "float32" else 1e-14)


def test_named_sizes() -> None:
    report = opstage.check(lambda ops, x: (ops.rfft(x), ops.fft(ops.rfft(x))), opstage.Spec(("b", "n")))
    assert report.ok, report
    first: Any = report.outputs[0]
    assert str(first.shape[1]) == "n//2 + 1" and first.shape[2] == 2
    assert opstage.check(_there_and_back, opstage.Spec(("b", "n", 3))).ok


def test_two_axes_are_one_after_the_other() -> None:
    x = np.random.default_rng(0).standard_normal((4, 6))
    out: Any = opstage.run(lambda ops, x: ops.fft(ops.rfft(x), axis=0), x, options=Options(dtype="float64"))
    np.testing.assert_allclose(out[..., 0] + 1j * out[..., 1], np.fft.rfft2(x), rtol=1e-12, atol=1e-12)
