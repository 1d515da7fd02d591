"""Twins: convolutions and pools of one, two and three spatial axes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional, grad

from tests.parity.twin import INF, NAN, Arrays, Case, Twin, fixed, normal, tied, uniform

_FORWARD = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
_KERNEL_GRAD = {1: grad.conv1d_weight, 2: grad.conv2d_weight, 3: grad.conv3d_weight}
_SIZES = {1: ((9,), (3,)), 2: ((7, 8), (3, 2)), 3: ((5, 4, 6), (2, 3, 2))}
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


# Pools ----------------------------------------------------------------------------------------------------------------

aten = torch.ops.aten

_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_MEAN = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
_SPATIAL = {1: (9,), 2: (7, 8), 3: (5, 4, 6)}
_KERNELS = {1: ((2,), (3,), (1,)), 2: ((2, 2), (3, 2), (1, 4)), 3: ((2, 2, 2), (2, 3, 1))}


def _windows() -> Iterator[tuple[int, dict[str, Any], bool]]:
    """(rank, statics, batched): overlapping windows, gaps between them, and windows that reach into the padding."""
    for rank, kernels in _KERNELS.items():
        for kernel, stride, batched in itertools.product(kernels, (None, 1, 2, 3), (True, False)):
            for padding in {(0,) * rank, tuple(k // 2 for k in kernel)}:
                yield rank, {"kernel": kernel, "stride": stride, "padding": padding}, batched


def _pools(arrays: Callable[..., Arrays], **static: Any) -> tuple[Case, ...]:
    return tuple(
        Case(
            f"{rank}d {window} {'' if batched else 'unbatched'} {static or ''}",
            arrays((*((2,) if batched else ()), 3, *_SPATIAL[rank])),
            {**window, **static},
            terms=2 * math.prod(window["kernel"]),
        )
        for rank, window, batched in _windows()
    )


def _max_pool(x: torch.Tensor, kernel: Any, stride: Any, padding: Any) -> torch.Tensor:
    return _MAX[len(kernel)](x, kernel, stride, padding)


def _avg_pool(x: torch.Tensor, kernel: Any, stride: Any, padding: Any, count_include_pad: bool) -> torch.Tensor:
    return _MEAN[len(kernel)](x, kernel, stride, padding, count_include_pad=count_include_pad)


def _smooth_max_pool(x: torch.Tensor, kernel: Any, stride: Any, padding: Any, beta: float) -> torch.Tensor:
    """PyTorch has no such pool: the log-sum-exp of unfolded windows."""
    rank = len(kernel)
    stride = kernel if stride is None else (stride,) * rank if isinstance(stride, int) else stride
    padding = (padding,) * rank if isinstance(padding, int) else padding
    out = functional.pad(x, [p for p in reversed(padding) for _ in (0, 1)], value=-INF)
    first = x.ndim - rank
    for axis, (k, s) in enumerate(zip(kernel, stride)):
        out = out.unfold(first + axis, k, s)
    return torch.logsumexp(beta * out, dim=tuple(range(-rank, 0))) / beta


def _positions(x: torch.Tensor, **window: Any) -> torch.Tensor:
    (kernel, stride, padding) = (window[name] for name in ("kernel", "stride", "padding"))
    return _MAX[len(kernel)](x.detach(), kernel, stride, padding, return_indices=True)[1]


def _scattered(g: torch.Tensor, index: torch.Tensor, shape: Any, **window: Any) -> torch.Tensor:
    """PyTorch's max_unpool keeps one of the values that meet in a cell; the adjoint of the pool adds them."""
    planes = g.shape[: -len(shape)]
    out = g.new_zeros((*planes, math.prod(shape)))
    out = out.scatter_add(-1, index.flatten(len(planes)), g.flatten(len(planes)))
    return out.reshape(*planes, *shape)


def _gathered(x: torch.Tensor, index: torch.Tensor, kernel: Any, **window: Any) -> torch.Tensor:
    planes = index.ndim - len(kernel)
    return x.flatten(planes).gather(-1, index.flatten(planes)).reshape(index.shape)


def _with_positions(shape: tuple[int, ...], scattered: bool, **window: Any) -> Arrays:
    """Window values (or cells) and the places of the maxima of a random image."""

    def make(rng: Any) -> tuple[Any, ...]:
        image = torch.from_numpy(rng.standard_normal(shape))
        index = _positions(image, **window).numpy()
        return rng.standard_normal(index.shape if scattered else shape), index

    return make


def _placed(scattered: bool) -> tuple[Case, ...]:
    found = []
    for rank, window, _ in _windows():
        stride = window["kernel"] if window["stride"] is None else (window["stride"],) * rank
        whole = {**window, "stride": stride}
        static = {"shape": _SPATIAL[rank], **whole} if scattered else whole
        arrays = _with_positions((2, 3, *_SPATIAL[rank]), scattered, **whole)
        found.append(Case(f"{rank}d {window}", arrays, static, terms=math.prod(window["kernel"])))
    return tuple({case.name: case for case in found}.values())


def _avg_pool_grad(g: torch.Tensor, shape: Any, kernel: Any, **static: Any) -> Any:
    """The gradient of the pool at zeros: it is linear, so any place does."""
    cells = g.new_zeros((*g.shape[: -len(shape)], *shape)).requires_grad_()
    return torch.autograd.grad(_avg_pool(cells, kernel, **static), cells, g, create_graph=True)


def _pulled_back(include: bool) -> tuple[Case, ...]:
    found = []
    for rank, window, _ in _windows():
        kernel, padding = window["kernel"], window["padding"]
        stride = kernel if window["stride"] is None else (window["stride"],) * rank
        counts = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(_SPATIAL[rank], padding, kernel, stride)]
        static = {"shape": _SPATIAL[rank], **window, "stride": stride, "count_include_pad": include}
        found.append(Case(f"{rank}d {window} {include}", normal((2, 3, *counts)), static, terms=math.prod(kernel)))
    return tuple({case.name: case for case in found}.values())


_NANS = fixed([[[1.0, NAN, 2.0, 3.0, NAN, NAN, INF, -INF, -INF, -INF]]])
_EDGE_WINDOWS = tuple(
    Case(f"edges {k} {s} {p}", _NANS, {"kernel": (k,), "stride": s, "padding": p}, edge=True)
    for k, s, p in ((2, 2, 0), (3, 1, 1), (2, 1, 0))
)
_IMAGE = normal((2, 3, 7, 8))
_IMAGE_POOLS = (("max_pool", functional.max_pool2d), ("avg_pool", functional.avg_pool2d))
_FAR_APART = {"kernel": (2, 2), "stride": None, "padding": 1, "beta": 10.0}

TWINS += [
    Twin("max_pool", _max_pool, (*_pools(normal), *_EDGE_WINDOWS)),
    Twin("max_pool", _max_pool, tuple(Case(f"ties {c.name}", c.arrays, c.static, c.terms, True) for c in _pools(tied))),
    Twin("avg_pool", _avg_pool, (*_pools(normal, count_include_pad=True), *_pools(normal, count_include_pad=False))),
    Twin("smooth_max_pool", _smooth_max_pool, (*_pools(normal, beta=1.0), *_pools(normal, beta=7.5))),
    Twin(
        "smooth_max_pool",
        _smooth_max_pool,
        (Case("far apart", uniform(-500.0, 500.0, (1, 2, 6, 6)), _FAR_APART, terms=16),),
    ),
    Twin("max_pool_scatter", _scattered, _placed(True)),
    Twin("max_pool_gather", _gathered, _placed(False)),
    Twin("avg_pool_grad", _avg_pool_grad, (*_pulled_back(True), *_pulled_back(False))),
    *(
        Twin(
            f"{name}2d",
            lambda x, kernel, stride, call=call: call(x, kernel, stride),
            tuple(Case(f"{k} {s}", _IMAGE, {"kernel": k, "stride": s}, terms=8) for k, s in ((2, None), ((3, 2), 1))),
        )
        for name, call in _IMAGE_POOLS
    ),
    *(
        Twin(
            f"{name}2d_pad",
            lambda x, kernel, stride, padding, call=call: call(x, kernel, stride, padding),
            (Case("padded", _IMAGE, {"kernel": 3, "stride": 2, "padding": 1}, terms=8),),
        )
        for name, call in _IMAGE_POOLS
    ),
    Twin(
        "smooth_max_pool2d",
        lambda x, kernel, stride, beta: _smooth_max_pool(x, (kernel, kernel), stride, 0, beta),
        (Case("plain", _IMAGE, {"kernel": 2, "stride": 2, "beta": 3.0}, terms=8),),
    ),
]
