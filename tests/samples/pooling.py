"""Samples: pools. The references visit the cells of each window, one window at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, distinct, given, halves, normal, zeros

Place = tuple[int, ...]


def _each(value: Any, rank: int) -> Place:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _windows(shape: Place, kernel: Any, stride: Any, padding: Any) -> Iterator[tuple[Place, list[Place]]]:
    """Each window with its cells that are no padding, in row-major order."""
    rank = len(shape)
    kernel = _each(kernel, rank)
    stride, padding = kernel if stride is None else _each(stride, rank), _each(padding, rank)
    counts = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(shape, kernel, stride, padding))
    for i in np.ndindex(counts):
        cells = [tuple(i[a] * stride[a] - padding[a] + j[a] for a in range(rank)) for j in np.ndindex(kernel)]
        yield i, [cell for cell in cells if all(0 <= c < n for c, n in zip(cell, shape))]


def _counts(shape: Place, kernel: Any, stride: Any, padding: Any) -> Place:
    return tuple(n + 1 for n in max(i for i, _ in _windows(shape, kernel, stride, padding)))


def _reduced(x: Any, rank: int, window: Any, reduce: Callable[[list[float]], float]) -> Any:
    """`reduce` over the cells of each window of the last `rank` axes."""
    lead, shape = x.shape[:-rank], x.shape[-rank:]
    out = np.zeros((*lead, *_counts(shape, *window)))
    for place in np.ndindex(lead):
        for i, cells in _windows(shape, *window):
            out[(*place, *i)] = reduce([x[(*place, *cell)] for cell in cells])
    return out


def _rank(kernel: Any) -> int:
    return 1 if isinstance(kernel, int) else len(kernel)


def _first_of_greatest(values: list[float]) -> float:
    best = values[0]
    for value in values[1:]:
        if value > best or np.isnan(value):
            best = value
    return best


def _max_pool(x: Any, kernel: Any, stride: Any = None, padding: Any = 0) -> Any:
    return _reduced(x, _rank(kernel), (kernel, stride, padding), _first_of_greatest)


def _positions(x: Any, kernel: Any, stride: Any, padding: Any) -> Any:
    """The flat position of each window's first maximum."""
    rank = len(kernel)
    lead, shape = x.shape[:-rank], x.shape[-rank:]
    out = np.zeros((*lead, *_counts(shape, kernel, stride, padding)), np.int64)
    for place in np.ndindex(lead):
        for i, cells in _windows(shape, kernel, stride, padding):
            values = [x[(*place, *cell)] for cell in cells]
            out[(*place, *i)] = np.ravel_multi_index(cells[values.index(max(values))], shape)
    return out


def _max_pool_scatter(g: Any, index: Any, shape: Place, kernel: Any, stride: Any, padding: Any) -> Any:
    lead = g.shape[: -len(shape)]
    out = np.zeros((*lead, *shape))
    for place in np.ndindex(lead):
        for i in np.ndindex(g.shape[len(lead) :]):
            out[(*place, *np.unravel_index(index[(*place, *i)], shape))] += g[(*place, *i)]
    return out


def _max_pool_gather(x: Any, index: Any, kernel: Any, stride: Any, padding: Any) -> Any:
    rank = len(kernel)
    out = np.zeros(index.shape)
    for place in np.ndindex(index.shape):
        lead = place[: index.ndim - rank]
        out[place] = x[(*lead, *np.unravel_index(index[place], x.shape[-rank:]))]
    return out


def _avg_pool(x: Any, kernel: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True) -> Any:
    rank = _rank(kernel)
    size = np.prod(_each(kernel, rank))
    return _reduced(
        x, rank, (kernel, stride, padding), lambda cells: sum(cells) / (size if count_include_pad else len(cells))
    )


def _avg_pool_grad(g: Any, shape: Place, kernel: Any, stride: Any, padding: Any, count_include_pad: bool) -> Any:
    lead = g.shape[: -len(shape)]
    out = np.zeros((*lead, *shape))
    for place in np.ndindex(lead):
        for i, cells in _windows(shape, kernel, stride, padding):
            for cell in cells:
                share = np.prod(kernel) if count_include_pad else len(cells)
                out[(*place, *cell)] += g[(*place, *i)] / share
    return out


def _smooth_max_pool(x: Any, kernel: Any, beta: float, stride: Any = None, padding: Any = 0) -> Any:
    def smooth(cells: list[float]) -> float:
        if beta * max(cells) == np.inf or beta * min(cells) == np.inf:
            return np.inf / beta
        return float(np.logaddexp.reduce(beta * np.array(cells)) / beta)

    return _reduced(x, _rank(kernel), (kernel, stride, padding), smooth)


def _with_positions(shape: Place, first: Callable[[Any, Any], Any], **window: Any) -> Any:
    """Operands for scatter and gather: positions that come from the maxima of random numbers."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        index = _positions(rng.standard_normal(shape), **window)
        return first(rng, index), index

    return make


def _scatter_case(case: str, shape: Place, *, exact: bool = False, **window: Any) -> Sample:
    def cotangents(rng: np.random.Generator, index: Any) -> Any:
        return rng.integers(-4, 5, index.shape) / 2 if exact else rng.standard_normal(index.shape)

    static = {"shape": shape[-len(window["kernel"]) :], **window}
    arrays = _with_positions(shape, cotangents, **window)
    return Sample("max_pool_scatter", case, arrays, _max_pool_scatter, static, exact=exact)


def _gather_case(case: str, shape: Place, *, exact: bool = False, **window: Any) -> Sample:
    def values(rng: np.random.Generator, index: Any) -> Any:
        return rng.integers(-4, 5, shape) / 2 if exact else rng.standard_normal(shape)

    arrays = _with_positions(shape, values, **window)
    return Sample("max_pool_gather", case, arrays, _max_pool_gather, window, exact=exact)


def _image_case(op: str, case: str, shape: Place, reference: Callable[..., Any], **static: Any) -> Sample:
    """One of the 2d names, whose kernel may be an int that stands for both axes."""

    def of_pairs(x: Any, kernel: Any, **rest: Any) -> Any:
        return reference(x, kernel=_each(kernel, 2), **rest)

    return Sample(op, case, distinct(shape), of_pairs, static)


def _max_case(case: str, shape: Place, **static: Any) -> Sample:
    return Sample("max_pool", case, distinct(shape), _max_pool, static)


def _max_of(case: str, values: Any, *, order: int = 0, **static: Any) -> Sample:
    """Chosen values: ties, infinities and nan, where the maximum has no derivative or differences say nothing."""
    return Sample("max_pool", case, given(np.array(values, float)), _max_pool, static, order=order)


def _avg_case(case: str, shape: Place, **static: Any) -> Sample:
    return Sample("avg_pool", case, normal(shape), _avg_pool, static)


def _avg_grad_case(case: str, g: Place, /, **static: Any) -> Sample:
    return Sample("avg_pool_grad", case, normal(g), _avg_pool_grad, {"count_include_pad": True, **static})


def _smooth_case(case: str, shape: Place, **static: Any) -> Sample:
    return Sample("smooth_max_pool", case, normal(shape), _smooth_max_pool, static)


def _smooth_of(case: str, values: Any, *, order: int = 0, **static: Any) -> Sample:
    return Sample("smooth_max_pool", case, given(np.array(values, float)), _smooth_max_pool, static, order=order)


_NAN, _INF = float("nan"), float("inf")

SAMPLES: list[Sample] = [
    _max_case("1d", (2, 6), kernel=(2,)),
    _max_case("1d-batch", (2, 2, 5), kernel=(3,), stride=1),
    _max_case("1d-int-kernel", (1, 4), kernel=2),
    _max_case("2d", (1, 2, 4, 4), kernel=(2, 2)),
    _max_case("2d-one-image", (2, 3, 4), kernel=(2, 3), stride=1),
    _max_case("2d-leaves-cells", (1, 1, 5, 7), kernel=(2, 3)),
    _max_case("2d-overlapping-padding", (1, 2, 4, 3), kernel=(3, 2), stride=(2, 1), padding=(1, 1)),
    _max_case("2d-windows-apart", (1, 1, 5, 5), kernel=(1, 2), stride=(2, 3)),
    _max_case("2d-narrower-than-kernel", (1, 2, 4, 1), kernel=(2, 3), stride=1, padding=(1, 1)),
    _max_case("3d", (1, 2, 2, 3), kernel=(1, 2, 2), stride=1, padding=(0, 1, 0)),
    _max_case("no-channels", (2, 0, 3, 3), kernel=(2, 2)),
    _max_of("nothing-above-padding", [[[-5.0, -7.0], [-_INF, -_INF]]], kernel=(2, 2), stride=1, padding=1),
    _max_of("nan-wins", [[1.0, _NAN, 3.0, 4.0, 6.0, 5.0, _INF, _NAN]], kernel=(2,)),
    Sample("max_pool", "exact", halves((1, 3, 4)), _max_pool, kernel=(2, 2), stride=1, padding=1, order=0, exact=True),
    _image_case("max_pool2d", "2d", (1, 2, 4, 4), _max_pool, kernel=2),
    _image_case("max_pool2d", "one-image", (1, 4, 5), _max_pool, kernel=(2, 2), stride=1),
    _image_case("max_pool2d_pad", "2d", (1, 1, 4, 4), _max_pool, kernel=3, stride=2, padding=1),
    _scatter_case("1d", (2, 6), kernel=(2,), stride=(2,), padding=(0,)),
    _scatter_case("2d-overlapping", (1, 2, 4, 3), kernel=(3, 2), stride=(1, 1), padding=(1, 1)),
    _scatter_case("exact", (1, 4, 4), kernel=(2, 2), stride=(1, 2), padding=(0, 0), exact=True),
    _gather_case("1d", (2, 6), kernel=(2,), stride=(2,), padding=(0,)),
    _gather_case("2d-overlapping", (1, 2, 4, 3), kernel=(3, 2), stride=(1, 1), padding=(1, 1)),
    _gather_case("exact", (1, 4, 4), kernel=(2, 2), stride=(1, 2), padding=(0, 0), exact=True),
    _avg_case("1d", (2, 6), kernel=(2,)),
    _avg_case("1d-batch", (2, 2, 5), kernel=(3,), stride=1),
    _avg_case("2d", (1, 2, 4, 4), kernel=(2, 2)),
    _avg_case("2d-one-image", (2, 3, 4), kernel=(2, 3), stride=1),
    _avg_case("2d-padding", (1, 2, 4, 3), kernel=(3, 2), stride=(2, 1), padding=(1, 1)),
    _avg_case("2d-padding-not-counted", (1, 2, 4, 3), kernel=(3, 2), stride=(2, 1), padding=1, count_include_pad=False),
    _avg_case("2d-windows-apart", (1, 1, 5, 7), kernel=(1, 2), stride=(2, 3)),
    _avg_case("3d", (1, 2, 2, 3), kernel=(1, 2, 2), stride=1, padding=(0, 1, 0)),
    _avg_case("empty-batch", (0, 1, 2, 2), kernel=(2, 2)),
    Sample("avg_pool", "exact", halves((1, 3, 4)), _avg_pool, kernel=(3, 2), stride=1, padding=1, exact=True),
    Sample(
        "avg_pool",
        "exact-padding-not-counted",
        halves((1, 3, 4)),
        _avg_pool,
        kernel=(3, 2),
        stride=1,
        padding=1,
        count_include_pad=False,
        exact=True,
    ),
    _image_case("avg_pool2d", "2d", (1, 2, 4, 4), _avg_pool, kernel=2),
    _image_case("avg_pool2d", "one-image", (1, 4, 5), _avg_pool, kernel=(2, 2), stride=1),
    _image_case("avg_pool2d_pad", "2d", (1, 1, 4, 4), _avg_pool, kernel=3, stride=2, padding=1),
    _avg_grad_case("1d", (2, 3), shape=(7,), kernel=(2,), stride=(2,), padding=(0,)),
    _avg_grad_case("2d", (1, 2, 2, 4), shape=(4, 3), kernel=(3, 2), stride=(2, 1), padding=(1, 1)),
    _avg_grad_case(
        "2d-padding-not-counted",
        (1, 2, 2, 4),
        shape=(4, 3),
        kernel=(3, 2),
        stride=(2, 1),
        padding=(1, 1),
        count_include_pad=False,
    ),
    Sample(
        "avg_pool_grad",
        "exact",
        halves((1, 2, 2)),
        _avg_pool_grad,
        shape=(3, 4),
        kernel=(2, 3),
        stride=(1, 1),
        padding=(0, 0),
        count_include_pad=True,
        exact=True,
    ),
    _smooth_case("1d", (2, 6), kernel=(2,), beta=2.0),
    _smooth_case("2d", (1, 2, 3, 4), kernel=(2, 2), beta=1.0, stride=1),
    _smooth_case("2d-padding", (1, 1, 4, 3), kernel=(3, 2), beta=3, stride=(2, 1), padding=(1, 1)),
    _smooth_case("smooth-minimum", (2, 3, 3), kernel=(2, 2), beta=-1.5, stride=1, padding=1),
    _smooth_case("3d", (1, 2, 2, 3), kernel=(2, 1, 2), beta=0.5, stride=1),
    _image_case("smooth_max_pool2d", "2d", (1, 1, 4, 4), _smooth_max_pool, kernel=2, beta=2.0),
    _smooth_of("never-overflows", [[1e30, 9e29, -1e30, -1e30]], kernel=(2,), beta=1e3),
    _smooth_of("minimum-never-overflows", [[1e30, 9e29, -1e30, -2e30]], kernel=(2,), beta=-1e3),
    _smooth_of("far-apart", [[700.0, -700.0, 0.0, 800.0]], order=1, kernel=(2,), stride=1, beta=5.0),
    _smooth_of("infinite", [[_INF, 1.0, -_INF, -_INF, -_INF, 2.0]], kernel=(2,), beta=1.0),
]


def _bad(op: str, case: str, operand: Place, message: str, /, **static: Any) -> BadCall:
    return BadCall(op, case, zeros(operand), message, static)


def _indexed(g: Place, index: Place, dtype: Any = np.int64) -> Callable[[], tuple[Any, ...]]:
    return lambda: (np.zeros(g), np.zeros(index, dtype))


_WINDOW = {"kernel": (2,), "stride": (2,), "padding": (0,)}

BAD_CALLS: list[BadCall] = [
    _bad("max_pool", "rank", (2, 2, 4, 4, 4), r"x must be \(C, \*S\) or \(N, C, \*S\).*rank 3 or 4", kernel=(2, 2)),
    _bad("max_pool", "int-kernel-is-1d", (1, 1, 4, 4), r"entry of kernel \(2,\), so of rank 2 or 3", kernel=2),
    _bad(
        "max_pool",
        "kernel-larger-than-x",
        (1, 3, 4),
        r"covers 5 cells along spatial axis 1 of .* but there are 4",
        kernel=(2, 5),
    ),
    _bad(
        "max_pool",
        "padding",
        (1, 4),
        r"padding 2 along spatial axis 0 is more than half of the kernel's 3",
        kernel=(3,),
        padding=2,
    ),
    _bad("max_pool", "nothing-to-pool", (1, 0), r"spatial axis 0 must have a cell", kernel=(2,), padding=1),
    _bad("max_pool", "no-kernel", (1, 4), r"kernel is \(\)", kernel=()),
    _bad("max_pool", "kernel-of-0", (1, 4), r"kernel must be ints that are at least 1", kernel=(0,)),
    _bad("max_pool", "stride-of-0", (1, 4), r"stride must be ints that are at least 1", kernel=(2,), stride=0),
    _bad("max_pool", "negative-padding", (1, 4), r"padding must be ints that are at least 0", kernel=(2,), padding=-1),
    _bad(
        "max_pool",
        "strides-for-another-rank",
        (1, 4),
        r"stride has 2 entries but there are 1",
        kernel=(2,),
        stride=(1, 1),
    ),
    BadCall("max_pool", "integers", given(np.zeros((1, 4), int)), r"x must be a float tensor", kernel=(2,)),
    _bad("max_pool2d", "rank", (4, 4), r"max_pool2d.*x must be \(C, H, W\) or \(N, C, H, W\)", kernel=2),
    _bad("max_pool2d_pad", "rank", (1, 1, 1, 4, 4), r"max_pool2d_pad.*x must be \(C, H, W\)", kernel=2, padding=1),
    _bad("max_pool2d", "kernel", (1, 4, 4), r"max_pool2d.*kernel has 3 entries but there are 2", kernel=(2, 2, 2)),
    BadCall(
        "max_pool_scatter",
        "index-dtype",
        _indexed((1, 2), (1, 2), float),
        r"index must be an integer",
        shape=(4,),
        **_WINDOW,
    ),
    BadCall(
        "max_pool_scatter",
        "windows",
        _indexed((1, 3), (1, 3)),
        r"g is \(1, 3\) but the windows make it \(1, 2\)",
        shape=(4,),
        **_WINDOW,
    ),
    BadCall(
        "max_pool_scatter",
        "index-shape",
        _indexed((1, 2), (1, 3)),
        r"index is \(1, 3\) but the windows make it \(1, 2\)",
        shape=(4,),
        **_WINDOW,
    ),
    BadCall(
        "max_pool_scatter",
        "rank",
        _indexed((1, 2), (1, 2)),
        r"shape \(4, 4\) has 2 spatial axes but kernel",
        shape=(4, 4),
        **_WINDOW,
    ),
    BadCall("max_pool_gather", "index-dtype", _indexed((1, 4), (1, 2), float), r"index must be an integer", _WINDOW),
    BadCall(
        "max_pool_gather",
        "index-shape",
        _indexed((1, 4), (2, 2)),
        r"index is \(2, 2\) but the windows make it \(1, 2\)",
        _WINDOW,
    ),
    _bad("avg_pool", "rank", (4,), r"x must be \(C, \*S\)", kernel=(2,)),
    _bad("avg_pool", "padding", (1, 4), r"more than half of the kernel's 2", kernel=(2,), padding=2),
    _bad("avg_pool2d", "rank", (4, 4), r"avg_pool2d.*x must be \(C, H, W\)", kernel=2),
    _bad("avg_pool2d_pad", "rank", (4, 4), r"avg_pool2d_pad.*x must be \(C, H, W\)", kernel=2, padding=1),
    _bad(
        "avg_pool_grad",
        "windows",
        (1, 3),
        r"g is \(1, 3\) but the windows make it \(1, 2\)",
        shape=(4,),
        count_include_pad=True,
        **_WINDOW,
    ),
    _bad("smooth_max_pool", "beta-of-0", (1, 4), r"beta must be finite and not 0 but is 0", kernel=(2,), beta=0),
    _bad("smooth_max_pool", "infinite-beta", (1, 4), r"beta must be finite", kernel=(2,), beta=_INF),
    _bad("smooth_max_pool", "kernel-larger-than-x", (1, 4), r"covers 5 cells", kernel=(5,), beta=1.0),
    _bad("smooth_max_pool2d", "rank", (4, 4), r"smooth_max_pool2d.*x must be \(C, H, W\)", kernel=2, beta=1.0),
]
