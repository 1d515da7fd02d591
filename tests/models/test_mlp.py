"""The multilayer perceptron against its formula."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

import opstage
from opstage.models import mlp

from .common import FLOAT64, batch_of, built

CONFIG = mlp.Config(hidden=(12, 9))


def logits(params: Any, x: np.ndarray, train: bool = False) -> np.ndarray:
    def program(ops: Any, p: Any, x: Any) -> Any:
        return mlp.logits(ops, p, x, config=CONFIG, train=train)

    return np.asarray(opstage.run(program, params, x, options=FLOAT64))


def test_evaluation_is_products_and_ramps_without_dropout() -> None:
    params, (x, _) = built(mlp.init(CONFIG)), batch_of("mlp", 3)
    h = x.reshape(3, 64).astype(np.float64)
    for layer, following in pairwise([*params["layers"], None]):
        h = h @ layer["weight"].T + layer["bias"]
        h = h if following is None else np.maximum(h, 0)
    np.testing.assert_allclose(logits(params, x), h, rtol=1e-12, atol=1e-13)
    assert np.abs(logits(params, x, train=True) - h).max() > 1e-2
