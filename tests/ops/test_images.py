"""Borders, patches, pools to a size and normalisations made of others: against NumPy and windows by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import derived
from opstage.ops.errors import ShapeError
from tests.ops.functions import FLOAT64, Row, assert_row, of


def _padded(mode: str, padding: Any) -> Row:
    def reference(x: Any) -> Any:
        for axis, (before, after) in enumerate(padding):
            ends = slice(max(-before, 0), x.shape[axis] - max(-after, 0))
            x = x[(slice(None),) * axis + (ends,)]
        return np.pad(x, [(max(b, 0), max(a, 0)) for b, a in padding], mode=mode)  # type: ignore[call-overload]

    return Row(f"pad {mode}", ((3, 4),), lambda ops, x: derived.pad(ops, x, padding=padding, mode=mode), reference)


def _shuffled(r: int, place: Callable[..., int]) -> Callable[..., Any]:
    def reference(x: Any) -> Any:
        *lead, channels, height, width = x.shape
        out = np.zeros((*lead, channels // r**2, height * r, width * r))
        for c, h, w, i, j in product(range(channels // r**2), range(height), range(width), range(r), range(r)):
            out[..., c, h * r + i, w * r + j] = x[..., place(c, i, j, channels // r**2), h, w]
        return out

    return reference


def _columns(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    x = np.pad(x, [(0, 0), (0, 0), *[(p, p) for p in padding]])
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation)]
    out = np.zeros((x.shape[0], x.shape[1] * int(np.prod(kernel)), int(np.prod(counts))))
    for at, window in enumerate(np.ndindex(*counts)):
        for c, (k, cell) in product(range(x.shape[1]), enumerate(np.ndindex(*kernel))):
            place = tuple(w * s + o * d for w, s, o, d in zip(window, stride, cell, dilation))
            out[:, c * int(np.prod(kernel)) + k, at] = x[(slice(None), c, *place)]
    return out


_WINDOW: Any = {"kernel": (2, 3), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}


def _adjoint(x: Any) -> Any:
    """fold by its definition: <fold(x), e> = <x, unfold(e)> for each unit e."""
    out = np.zeros((2, 2, 3, 7))
    for index in np.ndindex(out.shape):
        unit = np.zeros(out.shape)
        unit[index] = 1
        out[index] = np.sum(x * _columns(unit, **_WINDOW))
    return out


def _adaptive(size: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    def reference(x: Any) -> Any:
        first = x.ndim - len(size)
        sizes = [n if m is None else m for n, m in zip(x.shape[first:], size)]
        out = np.zeros((*x.shape[:first], *sizes))
        for window in np.ndindex(*sizes):
            cells = tuple(slice(j * n // m, -((j + 1) * n // -m)) for j, m, n in zip(window, sizes, x.shape[first:]))
            out[(..., *window)] = f(x[(..., *cells)], axis=tuple(range(first, x.ndim)))
        return out

    return reference


def _lp(x: Any) -> Any:
    return np.stack([np.sum(np.abs(x[..., i : i + 2]) ** 3, -1) ** (1 / 3) for i in (0, 1, 2)], -1)


def _response(x: Any, before: int) -> Any:
    out = np.zeros(x.shape)
    for c in range(x.shape[1]):
        total = np.sum(x[:, max(c - before, 0) : c - before + 4] ** 2, axis=1)
        out[:, c] = x[:, c] / (2.0 + 0.5 / 4 * total) ** 0.75
    return out


def _instance(x: Any, gamma: Any, beta: Any) -> Any:
    mean, var = x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * gamma[:, None, None] + beta[:, None, None]


ROWS = [
    _padded("constant", ((1, 0), (-1, 2))),
    _padded("edge", ((2, 1), (0, 5))),
    _padded("reflect", ((2, 1), (-1, 2))),
    _padded("symmetric", ((3, 0), (1, 4))),
    _padded("wrap", ((3, 1), (0, 2))),
    of("pixel_shuffle", ((2, 8, 2, 3),), _shuffled(2, lambda c, i, j, n: c * 4 + i * 2 + j), factor=2),
    of("depth_to_space", ((18, 1, 2),), _shuffled(3, lambda c, i, j, n: (i * 3 + j) * n + c), block=3),
    Row("pixel_unshuffle", ((2, 8, 2, 3),),
        lambda ops, x: derived.pixel_unshuffle(ops, derived.pixel_shuffle(ops, x, factor=2), factor=2), lambda x: x),
    Row("space_to_depth", ((2, 8, 2, 3),),
        lambda ops, x: derived.space_to_depth(ops, derived.depth_to_space(ops, x, block=2), block=2), lambda x: x),
    Row("unfold", ((2, 2, 3, 7),), lambda ops, x: derived.unfold(ops, x, **_WINDOW), lambda x: _columns(x, **_WINDOW)),
    of("unfold without a batch", ((2, 5),), lambda x: _columns(x[None], (2,), (1,), (0,), (1,))[0], kernel=(2,)),
    Row("fold", ((2, 12, 6),), lambda ops, x: derived.fold(ops, x, size=(3, 7), **_WINDOW), _adjoint),
    *(
        Row(f"adaptive_avg_pool {size}", ((2, 4, 7),),
            lambda ops, x, size=size: derived.adaptive_avg_pool(ops, x, size=size), _adaptive(size, np.mean))
        for size in ((2, 3), (1, None), (6, 7))
    ),
    of("adaptive_max_pool", ((2, 4, 7),), _adaptive((1, 3), np.max), size=(1, 3)),
    of("global_max_pool", ((2, 3, 2, 2),), lambda x: x.max((2, 3))),
    of("lp_pool", ((2, 4),), _lp, p=3, kernel=(2,), stride=1),
    of("instance_norm", ((2, 3, 2, 2), (3,), (3,)), _instance),
    *(
        Row(f"local_response_norm {before}", ((2, 5, 3),),
            lambda ops, x, b=before: derived.local_response_norm(ops, x, size=4, alpha=0.5, k=2.0, before=b),
            lambda x, b=before: _response(x, 2 if b is None else b))
        for before in (None, 1)
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_is_as_written_out(row: Row) -> None:
    assert_row(row)


@pytest.mark.parametrize(
    ("call", "spec", "expected"),
    [
        (lambda ops, x: derived.pad(ops, x, padding=[(0, 0), (1, 2)], mode="edge"), "B 3", "B 6"),
        (lambda ops, x: derived.pixel_shuffle(ops, x, factor=2), "B 8 H W", "B 2 2*H 2*W"),
        (lambda ops, x: derived.unfold(ops, x, kernel=(3, 3), padding=1), "B C H W", "B 9*C H*W"),
        (lambda ops, x: derived.adaptive_avg_pool(ops, x, size=(1, 1)), "B C H W", "B C 1 1"),
        (lambda ops, x: derived.global_max_pool(ops, x), "B C H W", "B C"),
        (lambda ops, x: derived.local_response_norm(ops, x, size=3), "B C H", "B C H"),
    ],
)
def test_sizes_may_be_named(call: Any, spec: str, expected: str) -> None:
    report = opstage.check(call, opstage.Spec(spec))
    assert report.ok, report
    assert " ".join(map(str, report.outputs.shape)) == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ops, x: derived.pad(ops, x, padding=[(0, 0)] * 3, mode="circular"), "mode must be one of .*'circular'"),
        (lambda ops, x: derived.pad(ops, x, padding=[(1, 1)]), r"a pair \(before, after\) for each of the 3 axes"),
        (lambda ops, x: derived.pad(ops, x, padding=[(0, 0), (0, 0), (0, 4)], mode="reflect"),
         "axis 2 has 4 entries, so mode 'reflect' has at most 3 cells"),
        (lambda ops, x: derived.pixel_shuffle(ops, x, factor=2), "^pixel_shuffle at .*axis 0 has 2, which 4 does not"),
        (lambda ops, x: derived.space_to_depth(ops, x, block=2), "^space_to_depth at .*axis 1 has 3, which 2 does not"),
        (lambda ops, x: derived.unfold(ops, x, kernel=(4, 1)), "^unfold at .*the kernel covers 4 cells"),
        (lambda ops, x: derived.unfold(ops, x, kernel=(2,) * 3), "^unfold at .*with the 3 spatial axes of the kernel"),
        (lambda ops, x: derived.fold(ops, x, size=(2, 2), kernel=(2, 1)), "4 windows but size .* has 2"),
        (lambda ops, x: derived.adaptive_avg_pool(ops, x, size=(0, 1)), "a size must be at least 1 but is 0"),
        (lambda ops, x: derived.adaptive_max_pool(ops, x, size=(1,) * 3), "size names 3 spatial axes"),
        (lambda ops, x: derived.lp_pool(ops, x, p=0.5, kernel=(2, 2)), "p must be a number that is at least 1"),
        (lambda ops, x: derived.local_response_norm(ops, x, size=3, before=3), "before must be less than size"),
    ],
)  # fmt: skip
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        opstage.run(call, np.ones((2, 3, 4)), options=FLOAT64)


def test_a_window_of_zeros_has_a_norm_with_derivative_0() -> None:
    def total(ops: Any, x: Any) -> Any:
        return ops.sum(derived.lp_pool(ops, x, p=2, kernel=(2,)))

    value, gradient = opstage.value_and_grad(total, np.array([[0.0, 0.0, 3.0, 4.0]]), options=FLOAT64)
    assert value == 5
    np.testing.assert_allclose(gradient, [[0, 0, 0.6, 0.8]])


def test_nan_wins_in_a_pool() -> None:
    x = np.array([[1.0, np.nan, 3.0, 4.0, 5.0]])
    pooled = opstage.run(lambda ops, x: derived.adaptive_max_pool(ops, x, size=(2,)), x)
    np.testing.assert_array_equal(pooled, [[np.nan, 5.0]])
