"""Samples: optimizer updates. The references are the formulas of the papers, element by element where they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, halves, normal, positive

Arrays = Callable[[np.random.Generator], tuple[Any, ...]]


def _sgd(p: Any, g: Any, lr: Any, weight_decay: float = 0.0) -> Any:
    return p - lr * (g + weight_decay * p)


def _momentum(
    p: Any, g: Any, velocity: Any, lr: Any, momentum: float, nesterov: bool = False, weight_decay: float = 0.0
) -> Any:
    g = g + weight_decay * p
    velocity = momentum * velocity + g
    return p - lr * (g + momentum * velocity if nesterov else velocity), velocity


def _adagrad(p: Any, g: Any, total: Any, lr: Any, eps: float, weight_decay: float = 0.0) -> Any:
    g = g + weight_decay * p
    total = total + g**2
    return p - lr * g / (total**0.5 + eps), total


def _rmsprop(p: Any, g: Any, square: Any, lr: Any, alpha: float, eps: float, weight_decay: float = 0.0) -> Any:
    g = g + weight_decay * p
    square = alpha * square + (1 - alpha) * g**2
    return p - lr * g / (square**0.5 + eps), square


def _adadelta(
    p: Any, g: Any, square: Any, delta: Any, lr: Any, rho: float, eps: float, weight_decay: float = 0.0
) -> Any:
    g = g + weight_decay * p
    square = rho * square + (1 - rho) * g**2
    step = g * (delta + eps) ** 0.5 / (square + eps) ** 0.5
    return p - lr * step, square, rho * delta + (1 - rho) * step**2


def _adam(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    lr: Any,
    c1: Any,
    c2: Any,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float = 0.0,
) -> Any:
    g = g + weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    return p - lr * (m / c1) / ((v / c2) ** 0.5 + eps), m, v


def _adamw(p: Any, g: Any, *rest: Any, weight_decay: float, **static: Any) -> Any:
    lr = rest[2]
    return _adam(p - lr * weight_decay * p, g, *rest, **static)


def _muon(
    p: Any,
    g: Any,
    buffer: Any,
    lr: Any,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    steps: int,
    eps: float,
) -> Any:
    """By singular values: each iteration sends the singular value s to a·s + b·s³ + c·s⁵ and keeps the vectors."""
    buffer = momentum * buffer + (1 - momentum) * g
    update = momentum * buffer + (1 - momentum) * g if nesterov else buffer
    left, singular, right = np.linalg.svd(update, full_matrices=False)
    singular = singular / max(math.sqrt(sum(singular**2)), eps)
    for _ in range(steps):
        singular = 3.4445 * singular - 4.7750 * singular**3 + 2.0315 * singular**5
    rows, columns = p.shape
    step = math.sqrt(max(1.0, rows / columns)) * (left * singular) @ right
    return p - lr * weight_decay * p - lr * step, buffer


def _state(shape: tuple[int, ...], signed: int, nonnegative: int = 0, scalars: int = 1) -> Arrays:
    """p and g and `signed` state tensors, then `nonnegative` ones (away from 0), then positive scalars."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        return (*normal(*[shape] * (2 + signed))(rng), *positive(*[shape] * nonnegative, *[()] * scalars)(rng))

    return make


_ADAM = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0}
_MUON = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "steps": 3, "eps": 1e-7}
_EXACT = {"momentum": 0.5, "weight_decay": 0.25}

SAMPLES = [
    Sample("sgd_update", "matrix", _state((2, 3), 0), _sgd),
    Sample("sgd_update", "decay", halves((3,), (3,), ()), _sgd, {"weight_decay": 0.5}, exact=True),
    Sample("sgd_update", "scalar", halves((), (), ()), _sgd, exact=True),
    Sample("sgd_update", "no elements", _state((0, 2), 0), _sgd),
    Sample("momentum_update", "matrix", _state((2, 3), 1), _momentum, {"momentum": 0.9}),
    Sample("momentum_update", "decay", halves((3,), (3,), (3,), ()), _momentum, _EXACT, exact=True),
    Sample("momentum_update", "nesterov", _state((4,), 1), _momentum, {"momentum": 0.9, "nesterov": True}),
    Sample(
        "momentum_update",
        "nesterov, decay",
        halves((2, 2), (2, 2), (2, 2), ()),
        _momentum,
        {**_EXACT, "nesterov": True},
        exact=True,
    ),
    Sample("adagrad_update", "matrix", _state((2, 3), 0, 1), _adagrad, {"eps": 1e-10}),
    Sample("adagrad_update", "decay", _state((3,), 0, 1), _adagrad, {"eps": 0.1, "weight_decay": 0.5}),
    Sample("rmsprop_update", "matrix", _state((2, 3), 0, 1), _rmsprop, {"alpha": 0.9, "eps": 1e-8}),
    Sample("rmsprop_update", "decay", _state((3,), 0, 1), _rmsprop, {"alpha": 0.5, "eps": 0.1, "weight_decay": 0.5}),
    Sample("adadelta_update", "matrix", _state((2, 2), 0, 2), _adadelta, {"rho": 0.9, "eps": 1e-6}),
    Sample("adadelta_update", "decay", _state((3,), 0, 2), _adadelta, {"rho": 0.5, "eps": 0.1, "weight_decay": 0.5}),
    Sample("adam_update", "matrix", _state((2, 3), 1, 1, 3), _adam, _ADAM),
    Sample("adam_update", "decay", _state((3,), 1, 1, 3), _adam, {**_ADAM, "weight_decay": 0.5, "eps": 0.1}),
    Sample("adam_update", "scalar", _state((), 1, 1, 3), _adam, _ADAM),
    Sample("adamw_update", "matrix", _state((2, 3), 1, 1, 3), _adamw, {**_ADAM, "weight_decay": 0.1}),
    Sample("adamw_update", "no decay", _state((3,), 1, 1, 3), _adamw, {**_ADAM, "beta1": 0.0}),
    Sample("muon_update", "wide", _state((2, 3), 1), _muon, _MUON, float32=(1e-5, 1e-5)),
    Sample("muon_update", "tall", _state((4, 2), 1), _muon, {**_MUON, "nesterov": False}, float32=(1e-5, 1e-5)),
    Sample("muon_update", "square", _state((2, 2), 1), _muon, {**_MUON, "weight_decay": 0.0}, float32=(1e-5, 1e-5)),
    Sample("muon_update", "no steps", _state((1, 3), 1), _muon, {**_MUON, "steps": 0}),
]


def _zeros(*shapes: tuple[int, ...]) -> Callable[[], tuple[Any, ...]]:
    return lambda: tuple(np.zeros(shape) for shape in shapes)


BAD_CALLS = [
    BadCall("sgd_update", "gradient of another shape", _zeros((3,), (4,), ()), r"p is \(3,\) but g is \(4,\)"),
    BadCall("sgd_update", "rate a vector", _zeros((3,), (3,), (1,)), r"lr must be a scalar but is \(1,\)"),
    BadCall(
        "sgd_update",
        "integers",
        lambda: (np.zeros(3, int), np.zeros(3, int), np.zeros(())),
        r"p must be a float tensor",
    ),
    BadCall(
        "momentum_update",
        "velocity of another rank",
        _zeros((3,), (3,), (3, 1), ()),
        r"p is \(3,\) but velocity is \(3, 1\)",
        {"momentum": 0.9},
    ),
    BadCall("adagrad_update", "scalar state", _zeros((3,), (3,), (), ()), r"total is \(\)", {"eps": 0.1}),
    BadCall("rmsprop_update", "rate a vector", _zeros(*[(3,)] * 4), r"lr must be a scalar", {"alpha": 0.9, "eps": 0.1}),
    BadCall(
        "adadelta_update",
        "delta of another shape",
        _zeros((3,), (3,), (3,), (2,), ()),
        r"delta is \(2,\)",
        {"rho": 0.9, "eps": 0.1},
    ),
    BadCall(
        "adam_update", "correction a vector", _zeros(*[(3,)] * 4, (), (3,), ()), r"c1 must be a scalar", dict(_ADAM)
    ),
    BadCall("adamw_update", "v of another shape", _zeros((3,), (3,), (3,), (1,), (), (), ()), r"v is \(1,\)", _ADAM),
    BadCall("muon_update", "vector", _zeros((3,), (3,), (3,), ()), r"p must be a matrix but is \(3,\)", _MUON),
    BadCall("muon_update", "no entries", _zeros((0, 3), (0, 3), (0, 3), ()), r"a matrix without entries", _MUON),
]
