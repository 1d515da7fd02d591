"""Twins: convolutions of one, two and three spatial axes, over strides, paddings, dilations and groups."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional, grad

from tests.parity.twin import Arrays, Case, Twin, fixed, normal

_FORWARD = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
_KERNEL_GRAD = {1: grad.conv1d_weight, 2: grad.conv2d_weight, 3: grad.conv3d_weight}
_SIZES = {1: ((9,), (3,)), 2: ((7, 8), (3, 2)), 3: ((5, 4, 6), (2, 3, 2))}
_DEPTHWISE = 4
_SAMPLED = 60  # of all combinations of a rank


def _conv(kernel: torch.Tensor, bias: Any, x: torch.Tensor, **static: Any) -> torch.Tensor:
    return _FORWARD[kernel.ndim - 2](x, kernel, bias, **static)


def _conv_transpose(kernel: torch.Tensor, bias: Any, x: torch.Tensor, **static: Any) -> torch.Tensor:
    return _TRANSPOSED[kernel.ndim - 2](x, kernel, bias, **static)


def _conv_kernel_grad(
    x: torch.Tensor, g: torch.Tensor, kernel: tuple[int, ...], groups: int, **static: Any
) -> torch.Tensor:
    shape = (g.shape[1], x.shape[1] // groups, *kernel)
    return _KERNEL_GRAD[len(kernel)](x, shape, g, groups=groups, **static)


def _operands(kernel: tuple[int, ...], x: tuple[int, ...], bias: int | None) -> Arrays:
    def make(rng: Any) -> tuple[Any, ...]:
        return rng.standard_normal(kernel), None if bias is None else rng.standard_normal(bias), rng.standard_normal(x)

    return make


def _combinations(rank: int) -> Iterator[tuple[int, Any, Any, Any, int, bool, bool]]:
    """(kernel size, stride, padding, dilation, groups, batched, biased): every pair of settings, some of the rest."""
    rng = random.Random(rank)
    mixed = {1: (2,), 2: (2, 1), 3: (1, 2, 1)}[rank]
    every = list(
        itertools.product(
            (1, 0), (1, 2, 3, mixed), (0, 1, mixed), (1, 2, mixed), (1, 2, 4), (True, False), (True, False)
        )
    )
    yield from rng.sample(every, _SAMPLED)


def _label(static: dict[str, Any], batched: bool, biased: bool, rank: int, pointwise: bool) -> str:
    settings = " ".join(f"{name}={value}" for name, value in static.items())
    extra = f"{'' if batched else ' unbatched'}{'' if biased else ' plain'}{' pointwise' if pointwise else ''}"
    return f"{rank}d {settings}{extra}"


def _cases(transposed: bool, rank: int) -> Iterator[Case]:
    for whole, stride, padding, dilation, groups, batched, biased in _combinations(rank):
        spatial, window = _SIZES[rank]
        window = window if whole else (1,) * rank
        if transposed:
            inner = [d * (k - 1) for d, k in zip(_each(dilation, rank), window)]
            if any(
                (n - 1) * s + i - 2 * p < 0
                for n, s, i, p in zip(spatial, _each(stride, rank), inner, _each(padding, rank))
            ):
                continue
        elif any(
            n + 2 * p < d * (k - 1) + 1
            for n, p, d, k in zip(spatial, _each(padding, rank), _each(dilation, rank), window)
        ):
            continue
        inputs, outputs = 4, 8
        kernel = (inputs, outputs // groups, *window) if transposed else (outputs, inputs // groups, *window)
        static: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        if transposed and (max(_each(stride, rank)) > 1 or max(_each(dilation, rank)) > 1):
            extra = tuple(int(max(s, d) > 1) for s, d in zip(_each(stride, rank), _each(dilation, rank)))
            static["output_padding"] = extra if biased else 0
        x = (*((3,) if batched else ()), inputs, *spatial)
        terms = max(outputs * math.prod(window), 3 * 4 * math.prod(spatial))
        yield Case(
            _label(static, batched, biased, rank, not whole),
            _operands(kernel, x, outputs if biased else None),
            static,
            terms=terms,
        )


def _each(value: Any, rank: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * rank


def _kernel_grads() -> Iterator[Case]:
    """x (3, 4, *S) and a cotangent of the result; its own derivatives are those of conv and conv_transpose."""
    for rank, (spatial, window) in _SIZES.items():
        for stride, padding, dilation, groups in itertools.product((1, 2), (0, 1), (1, 2), (1, 2)):
            counts = [(n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(spatial, window)]
            if min(counts) < 1:
                continue
            static = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
            yield Case(
                _label(static, True, False, rank, False),
                normal((3, 4, *spatial), (3, 8, *counts)),
                {"kernel": window, **static},
                terms=3 * math.prod(counts),
            )


_IMAGES = tuple(
    Case(f"stride={s} padding={p}", _operands((6, 3, 3, 3), (2, 3, 9, 8), 6), {"stride": s, "padding": p}, terms=400)
    for s in (1, 2)
    for p in (0, 1)
)
_IMAGES_BACK = tuple(
    Case(
        f"stride={s} padding={p} output_padding={o}",
        _operands((3, 6, 3, 3), (2, 3, 5, 4), 6),
        {"stride": s, "padding": p, "output_padding": o},
        terms=400,
    )
    for s in (1, 2)
    for p in (0, 1)
    for o in range(s)
)
_BIG = Case("large", _operands((32, 16, 3, 3), (8, 16, 16, 16), 32), {"padding": 1}, terms=8 * 256)
_INFINITE = fixed([[[1.0, -1.0]]], [0.5], [[[1.0, float("inf"), 2.0, float("nan"), 3.0, 4.0]]])

TWINS: list[Twin] = [
    Twin(
        "conv",
        _conv,
        (*(case for rank in (1, 2, 3) for case in _cases(False, rank)), _BIG, Case("edges", _INFINITE, edge=True)),
    ),
    Twin("conv_transpose", _conv_transpose, tuple(case for rank in (1, 2, 3) for case in _cases(True, rank))),
    Twin("conv_kernel_grad", _conv_kernel_grad, tuple(_kernel_grads())),
    Twin("conv2d", _conv, _IMAGES),
    Twin("conv_transpose2d", _conv_transpose, _IMAGES_BACK),
]
