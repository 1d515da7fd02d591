"""Every sample of every op: what it gives at points of a box lies inside its interval bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opstage import Box, Options, bounds
from opstage.ops.errors import UnsupportedError
from tests.analysis.inside import check_inside
from tests.samples import SAMPLES
from tests.samples.parts import all_samples
from tests.samples.sample import Sample

WITHOUT_RULES = frozenset(
    {
        *("solve", "triangular_solve", "cholesky", "det", "cofactor", "slogdet", "eigh", "qr", "svd"),
        *("fft", "ifft", "rfft", "irfft"),
    }
)
"""Ops without bounds: an error reports this."""

ROUNDS_ITS_NUMBERS = frozenset(
    {"clamp", "hardtanh", "hardshrink", "softshrink", "threshold", "safe_log", "pad", "full"}
)
"""Static numbers mean what the dtype holds, so float64 runs of these are other programs."""


def boxed(sample: Sample, dtype: str, width: float) -> tuple[Callable[..., Any], list[Any], list[Any], list[Any]]:
    """A sample as a program of arrays in a row, with its operands as boxes, and their ends; nan is left open."""
    rng = np.random.default_rng(1)
    lower: list[Any] = []
    upper: list[Any] = []
    args: list[Any] = []

    def take(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, (list, tuple)):
            return [take(each) for each in value]
        array = np.asarray(value)
        if array.dtype.kind == "f":
            array = array.astype(dtype)
            radius = (rng.random(array.shape) * width).astype(dtype)
            lower.append(np.where(np.isnan(array), -np.inf, array - radius).astype(dtype))
            upper.append(np.where(np.isnan(array), np.inf, array + radius).astype(dtype))
            args.append(Box(lower[-1], upper[-1]))
        else:
            lower.append(array)
            upper.append(array)
            args.append(array)
        return (len(args) - 1,)

    taken = [take(value) for value in sample.arrays(rng)]

    def given(place: Any, refs: tuple[Any, ...]) -> Any:
        if isinstance(place, list):
            return [given(each, refs) for each in place]
        return None if place is None else refs[place[0]]

    def program(ops: Any, *refs: Any) -> Any:
        return sample.apply(ops, *[given(place, refs) for place in taken])

    return program, args, lower, upper


def check(sample: Sample, dtype: Any, width: float, backend: Any, count: int) -> None:
    program, args, lower, upper = boxed(sample, dtype, width)
    options = Options(dtype=dtype, backend=backend)
    if sample.op in WITHOUT_RULES:
        with pytest.raises(UnsupportedError, match=r"bounds of .* are not supported"):
            bounds(program, *args, options=options)
        return
    found = bounds(program, *args, options=options)
    exactly = sample.op not in ROUNDS_ITS_NUMBERS
    check_inside(program, found, lower, upper, np.random.default_rng(2), options, count, exactly=exactly)


@pytest.mark.parametrize("sample", all_samples(SAMPLES))
def test_values_lie_inside(sample: Sample) -> None:
    check(sample, "float32", 0.3, "eager", 2)


WIDTHS = (
    ("float32", 0.0, "eager"),
    ("float64", 1e-3, "eager"),
    ("float32", 3.0, "compiled"),
    ("float64", 30.0, "eager"),
)


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)
def test_values_lie_inside_at_every_width(sample: Sample) -> None:
    for dtype, width, backend in WIDTHS:
        check(sample, dtype, width, backend, 4)
