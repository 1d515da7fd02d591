"""Twins: normalisations, and the fused cotangents of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.parity.twin import Arrays, Case, Twin, both, normal, uniform

aten = torch.ops.aten

_SECOND = "its derivatives are second derivatives of the norm, compared as such"
_AFFINE = ((True, True), (True, False), (False, True), (False, False))


def _with_affine(x: tuple[int, ...], channels: int, gamma: bool, beta: bool, shift: float = 0.0) -> Arrays:
    def make(rng: Any) -> tuple[Any, ...]:
        weight = 1 + 0.5 * rng.standard_normal(channels) if gamma else None
        return shift + rng.standard_normal(x), weight, rng.standard_normal(channels) if beta else None

    return make


def _without_beta(x: tuple[int, ...], gamma: bool) -> Arrays:
    return lambda rng: _with_affine(x, x[-1], gamma, False)(rng)[:2]


def _label(x: tuple[int, ...], gamma: bool, beta: bool) -> str:
    return f"{x}{' gamma' if gamma else ''}{' beta' if beta else ''}"


def _present(gamma: Any, beta: Any) -> Any:
    """PyTorch 2.13 fails in the backward passes, first or second, of a beta without a gamma: so it gets one of ones."""
    return torch.ones_like(beta) if gamma is None and beta is not None else gamma


def _layer_norm(x: torch.Tensor, gamma: Any, beta: Any, eps: float = 1e-5) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], _present(gamma, beta), beta, eps)


def _rms_norm(x: torch.Tensor, gamma: Any, eps: float = 1e-5) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-1:], gamma, eps)


def _group_norm(x: torch.Tensor, gamma: Any, beta: Any, groups: int) -> torch.Tensor:
    return functional.group_norm(x, groups, _present(gamma, beta), beta)


def _batch_norm(
    x: torch.Tensor, gamma: Any, beta: Any, channel_axis: int = 1, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The result, and the batch statistics that PyTorch takes into the running ones."""
    moved = x.movedim(channel_axis, 1) if x.ndim > 1 else x
    others = tuple(i for i in range(moved.ndim) if i != 1)
    out = functional.batch_norm(moved, None, None, _present(gamma, beta), beta, training=True, eps=eps)
    return out.movedim(1, channel_axis), moved.mean(others), moved.var(others, correction=1)


def _batch_norm_eval(
    x: torch.Tensor, gamma: Any, beta: Any, mean: Any, variance: Any, channel_axis: int = 1, eps: float = 1e-5
) -> torch.Tensor:
    """By its formula: torch.batch_norm takes no gradient to the running statistics."""
    moved = x.movedim(channel_axis, -1)
    out = (moved - mean) * torch.rsqrt(variance + eps)
    out = out if gamma is None else out * gamma
    return (out if beta is None else out + beta).movedim(-1, channel_axis)


def _running(x: tuple[int, ...], channels: int, gamma: bool, beta: bool) -> Arrays:
    affine = _with_affine(x, channels, gamma, beta)
    return both(affine, normal((channels,)), uniform(0.5, 2.0, (channels,)))


def _terms(normalised: int, largest: int) -> dict[str, Any]:
    """Two values or one are normalised to ±1 or 0, so that gradients cancel, all but their rounding times 1/√eps."""
    return {"terms": 100_000, "edge": True} if normalised <= 2 else {"terms": 4 * largest}


_LAYERS = ((5,), (3, 4), (2, 3, 8), (2, 3, 1), (16, 300), (0, 4))
_GROUPED = (((2, 6), 3), ((2, 6, 4), 2), ((2, 6, 3, 4), 3), ((2, 6, 3, 4), 1), ((2, 6, 3, 4), 6), ((2, 4, 2, 3, 2), 2))
_BATCHES = (((8, 3), 1), ((4, 3, 5), 1), ((4, 3, 5, 2), 1), ((4, 5, 3), -1), ((3, 4, 5), 0), ((2, 3, 2, 2, 2), 1))


def _statistics(axes: Any, keepdims: bool) -> Any:
    """What the fused cotangents are given: operands, mean, 1/√(variance + eps) and a cotangent, from the operands."""

    def of(x: Any) -> tuple[Any, Any]:
        mean = x.mean(axis=axes, keepdims=keepdims)
        return mean, 1 / (x.var(axis=axes, keepdims=keepdims) + 1e-5) ** 0.5

    return of


def _layer_norm_operands(x: tuple[int, ...], gamma: bool) -> Arrays:
    def make(rng: Any) -> tuple[Any, ...]:
        values, weight, _ = _with_affine(x, x[-1], gamma, False)(rng)
        return values, weight, *_statistics(-1, True)(values), rng.standard_normal(x)

    return make


def _rms_norm_operands(x: tuple[int, ...], gamma: bool) -> Arrays:
    def make(rng: Any) -> tuple[Any, ...]:
        values, weight, _ = _with_affine(x, x[-1], gamma, False)(rng)
        return values, weight, 1 / ((values**2).mean(axis=-1, keepdims=True) + 1e-5) ** 0.5, rng.standard_normal(x)

    return make


def _group_norm_operands(x: tuple[int, ...], gamma: bool, groups: int) -> Arrays:
    def make(rng: Any) -> tuple[Any, ...]:
        values, weight, _ = _with_affine(x, x[1], gamma, False)(rng)
        return values, weight, *_statistics(-1, False)(values.reshape(x[0], groups, -1)), rng.standard_normal(x)

    return make


def _batch_norm_operands(x: tuple[int, ...], gamma: bool, channel_axis: int) -> Arrays:
    axis = channel_axis % len(x)

    def make(rng: Any) -> tuple[Any, ...]:
        values, weight, _ = _with_affine(x, x[axis], gamma, False)(rng)
        mean, rstd = _statistics(tuple(i for i in range(len(x)) if i != axis), False)(values)
        cotangents = rng.standard_normal(x), rng.standard_normal(x[axis]), rng.standard_normal(x[axis])
        return values, weight, mean, rstd, *cotangents

    return make


def _layer_norm_grad(x: Any, gamma: Any, mean: Any, rstd: Any, g: Any) -> Any:
    weight = torch.ones(x.shape[-1], dtype=x.dtype) if gamma is None else gamma
    return aten.native_layer_norm_backward(g, x, x.shape[-1:], mean, rstd, weight, weight, [True] * 3)


def _rms_norm_grad(x: Any, gamma: Any, rstd: Any, g: Any) -> Any:
    weight = torch.ones(x.shape[-1], dtype=x.dtype) if gamma is None else gamma
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    return torch.autograd.grad(_rms_norm(x, weight), (x, weight), g)


def _group_norm_grad(x: Any, gamma: Any, mean: Any, rstd: Any, g: Any, groups: int) -> Any:
    weight = torch.ones(x.shape[1], dtype=x.dtype) if gamma is None else gamma
    sizes = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    return aten.native_group_norm_backward(g, x, mean, rstd, weight, *sizes, groups, [True] * 3)


def _batch_norm_grad(
    x: Any, gamma: Any, mean: Any, rstd: Any, g: Any, g_mean: Any, g_variance: Any, channel_axis: int
) -> Any:
    channels = x.shape[channel_axis]
    weight = torch.ones(channels, dtype=x.dtype) if gamma is None else gamma
    leaves = x.detach().requires_grad_(), weight.detach().requires_grad_(), torch.zeros_like(weight).requires_grad_()
    return torch.autograd.grad(_batch_norm(*leaves, channel_axis), leaves, (g, g_mean, g_variance))


_GAMMA = ((True,), (False,))


def _layers(arrays: Callable[..., Arrays], affine: Any, factor: int = 1, count: int | None = None) -> tuple[Case, ...]:
    """Of rows, whose operands depend on which parameters there are."""
    return tuple(
        Case(_label(x, *a, *(False,) * (2 - len(a))), arrays(x, *a), **_terms(factor * x[-1], max(x)))
        for x in _LAYERS[:count]
        for a in affine
    )


def _groups(arrays: Callable[..., Arrays], affine: Any) -> tuple[Case, ...]:
    return tuple(
        Case(
            f"{_label(x, *a, *(False,) * (2 - len(a)))} {groups}",
            arrays(x, *a, groups),
            {"groups": groups},
            **_terms(math.prod(x[1:]) // groups, math.prod(x)),
        )
        for x, groups in _GROUPED
        for a in affine
    )


def _batches(arrays: Callable[..., Arrays], affine: Any, *, whole: bool = False) -> tuple[Case, ...]:
    return tuple(
        Case(
            f"{_label(x, *a, *(False,) * (2 - len(a)))} axis {axis}",
            arrays(x, *a, axis),
            {"channel_axis": axis},
            terms=4 * math.prod(x) if whole else 2 * math.prod(x) // x[axis],
        )
        for x, axis in _BATCHES
        for a in affine
    )


TWINS: list[Twin] = [
    Twin(
        "layer_norm",
        _layer_norm,
        (
            *_layers(lambda x, *a: _with_affine(x, x[-1], *a), _AFFINE),
            Case("eps", _with_affine((3, 4), 4, True, True), {"eps": 0.1}, terms=8),
            Case("far from 0", _with_affine((3, 40), 40, True, True, shift=50.0), terms=5000),
        ),
    ),
    Twin("rms_norm", _rms_norm, _layers(_without_beta, _GAMMA, 2)),
    Twin("group_norm", _group_norm, _groups(lambda x, g, b, _: _with_affine(x, x[1], g, b), _AFFINE)),
    Twin(
        "batch_norm",
        _batch_norm,
        (
            *_batches(lambda x, g, b, axis: _with_affine(x, x[axis], g, b), _AFFINE),
            Case("eps", _with_affine((6, 3), 3, True, True), {"eps": 0.1}, terms=12),
        ),
    ),
    Twin("batch_norm_eval", _batch_norm_eval, _batches(lambda x, g, b, axis: _running(x, x[axis], g, b), _AFFINE)),
    Twin(
        "batch_norm_eval",
        lambda x, gamma, beta, mean, variance: functional.batch_norm(x, mean, variance, gamma, beta, eps=1e-5),
        tuple(
            Case(f"PyTorch's own {_label(x, *a)}", _running(x, x[1], *a), terms=2)
            for x, _ in _BATCHES[:3]
            for a in _AFFINE
        ),
        gradient="PyTorch takes none to the running statistics; the twin above does",
    ),
    *(
        Twin(f"{name}_grad", call, cases, gradient=_SECOND)
        for name, call, cases in (
            ("layer_norm", _layer_norm_grad, _layers(_layer_norm_operands, _GAMMA, count=5)),
            ("rms_norm", _rms_norm_grad, _layers(_rms_norm_operands, _GAMMA, 2, count=5)),
            ("group_norm", _group_norm_grad, _groups(_group_norm_operands, _GAMMA)),
            ("batch_norm", _batch_norm_grad, _batches(_batch_norm_operands, _GAMMA, whole=True)),
        )
    ),
]
