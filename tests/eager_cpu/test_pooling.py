"""Pools in the pool of threads, against the definition: a loop over windows, written cell by cell."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from opstage.interpreters.eager_cpu.kernels import pooling

Array = npt.NDArray[Any]
Sizes = tuple[int, ...]


class Case(NamedTuple):
    leading: Sizes
    cells: Sizes
    kernel: Sizes
    stride: Sizes
    padding: Sizes

    @property
    def counts(self) -> Sizes:
        return tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(self.cells, self.kernel, self.stride, self.padding))

    @property
    def window(self) -> dict[str, Sizes]:
        return {"kernel": self.kernel, "stride": self.stride, "padding": self.padding}


CASES = [
    Case((2, 3), (8, 8), (2, 2), (2, 2), (0, 0)),
    Case((2, 1), (6, 70), (2, 2), (2, 2), (0, 0)),
    Case((1, 2), (5, 67), (3, 3), (1, 1), (1, 1)),
    Case((3,), (9, 35), (3, 3), (2, 2), (1, 1)),
    Case((2,), (7, 60), (2, 3), (1, 3), (1, 0)),
    Case((2,), (5, 66), (2, 2), (3, 5), (1, 1)),
    Case((2, 2), (4, 4), (4, 4), (4, 4), (0, 0)),
    Case((2, 2), (1, 1), (2, 2), (2, 2), (1, 1)),
    Case((2, 2), (37,), (4,), (2,), (2,)),
    Case((3,), (6, 5, 19), (2, 3, 2), (1, 2, 2), (1, 0, 1)),
    Case((2,), (4, 6, 8), (2, 3, 2), (2, 3, 2), (0, 0, 0)),
    Case((0, 3), (6, 6), (2, 2), (2, 2), (0, 0)),
]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code also where it does not pay."""
    monkeypatch.setattr(pooling, "_WORTH_A_CALL", dict.fromkeys(pooling._WORTH_A_CALL, 0))


def windows(case: Case) -> list[tuple[Sizes, list[Sizes]]]:
    """Each window with those of its cells that are no padding, in row-major order."""
    out = []
    for window in np.ndindex(case.counts):
        along = (
            [c for c in range(i * s - p, i * s - p + k) if 0 <= c < n]
            for i, n, k, s, p in zip(window, case.cells, case.kernel, case.stride, case.padding)
        )
        out.append((window, list(itertools.product(*along))))
    return out


def maxima(case: Case, x: Array) -> tuple[Array, Array]:
    best = np.empty((*case.leading, *case.counts), x.dtype)
    index = np.empty(best.shape, np.int64)
    for plane in np.ndindex(case.leading):
        for window, cells in windows(case):
            chosen = cells[0]
            for cell in cells[1:]:
                if x[plane + cell] > x[plane + chosen] or math.isnan(x[plane + cell]):
                    chosen = cell
            best[plane + window] = x[plane + chosen]
            index[plane + window] = np.ravel_multi_index(chosen, case.cells)
    return best, index


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("values", ["ties", "infinite", "nan"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_max_pool_of_each_case_equals_definition(case: Case, values: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, (*case.leading, *case.cells)).astype(dtype)
    if values != "ties":
        x[rng.random(x.shape) < 0.7] = -math.inf
    if values == "nan":
        x[rng.random(x.shape) < 0.2] = math.nan
    best, index = pooling.fast_max_pool(x, **case.window)
    expected, places = maxima(case, x)
    np.testing.assert_array_equal(best, expected)
    np.testing.assert_array_equal(index, places)
    assert best.dtype == x.dtype and index.dtype == np.int64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_max_pool_scatter_and_gather_equal_definition(case: Case, dtype: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(-9, 9, (*case.leading, *case.cells)).astype(dtype)
    g = rng.integers(-9, 9, (*case.leading, *case.counts)).astype(dtype)
    _, index = maxima(case, x)
    scattered, gathered = np.zeros_like(x), np.zeros_like(g)
    for at in np.ndindex(g.shape):
        plane, cell = at[: len(case.leading)], tuple(map(int, np.unravel_index(index[at], case.cells)))
        scattered[plane + cell] += g[at]
        gathered[at] = x[plane + cell]
    for places in (index, index.astype(np.int32)):
        out = pooling.fast_max_pool_scatter(g, places, case.cells, **case.window)
        np.testing.assert_array_equal(out, scattered)
        np.testing.assert_array_equal(pooling.fast_max_pool_gather(x, places, **case.window), gathered)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_avg_pool_and_its_gradient_equal_definition(case: Case, count_include_pad: bool, dtype: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((*case.leading, *case.cells)).astype(dtype)
    g = rng.standard_normal((*case.leading, *case.counts)).astype(dtype)
    means, shares = np.zeros_like(g), np.zeros_like(x)
    for plane in np.ndindex(case.leading):
        for window, cells in windows(case):
            count = math.prod(case.kernel) if count_include_pad else len(cells)
            means[plane + window] = sum(x[plane + cell] for cell in cells) / count
            for cell in cells:
                shares[plane + cell] += g[plane + window] / count
    near: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-12, "atol": 1e-12}
    static: dict[str, Any] = {**case.window, "count_include_pad": count_include_pad}
    np.testing.assert_allclose(pooling.fast_avg_pool(x, **static), means, **near)
    np.testing.assert_allclose(pooling.fast_avg_pool_grad(g, shape=case.cells, **static), shares, **near)


def test_pools_of_strided_arrays_equal_packed() -> None:
    case = CASES[3]
    rng = np.random.default_rng(4)
    x = np.asarray(rng.standard_normal((35, 9, 3)), order="C").transpose(2, 1, 0)
    best, index = pooling.fast_max_pool(x, **case.window)
    expected, places = maxima(case, x)
    np.testing.assert_array_equal(best, expected)
    np.testing.assert_array_equal(index, places)


@pytest.mark.parametrize("place", [-(2**40), 64])
def test_pools_with_a_position_outside_its_plane_raise(place: int) -> None:
    case = CASES[0]
    index = np.zeros((*case.leading, *case.counts), np.int64)
    index[-1, -1, -1, -1] = place
    g, x = np.ones(index.shape), np.ones((*case.leading, *case.cells))
    with pytest.raises(IndexError):
        pooling.fast_max_pool_scatter(g, index, case.cells, **case.window)
    with pytest.raises(IndexError):
        pooling.fast_max_pool_gather(x, index, **case.window)
