"""A small regression to train: its loss, its first parameters, its data."""

from __future__ import annotations

from typing import Any

import numpy as np


def regression(ops: Any, params: Any, x: Any, y: Any) -> Any:
    h = ops.tanh(ops.linear(params["w1"], params["b1"], x))
    return ops.mse_loss(ops.linear(params["w2"], None, h), y)


def start(width: int = 8) -> Any:
    rng = np.random.default_rng(1)
    return {"w1": rng.normal(size=(width, 3)), "b1": np.zeros(width), "w2": rng.normal(size=(1, width))}


def sample(rows: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(rows).normal(size=(rows, 3))
    return x, np.sin(x.sum(1, keepdims=True))
