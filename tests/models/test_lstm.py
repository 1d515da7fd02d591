"""The LSTM: its cell against the equations in NumPy, its gradients, and its accuracy on the digits."""

from __future__ import annotations

import numpy as np
import pytest

import opstage
from opstage.init import build
from opstage.models import lstm
from tests.searches import share

from .by_recipe import trained
from .common import FLOAT64

CONFIG = lstm.Config(height=5, width=3, hidden=4, classes=6)


def parameters() -> dict:
    params = build(lstm.init(CONFIG), dtype="float64", seed=1)
    params["cell"]["bias"][...] = np.random.default_rng(2).normal(size=params["cell"]["bias"].shape)
    return params


def images(batch: int = 3) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(batch, 1, 5, 3))


def by_hand(params: dict, x: np.ndarray) -> np.ndarray:
    """Logits, gate by gate: Goodfellow, Bengio, Courville, Deep Learning, 2016, equations 10.40 to 10.44."""

    def sigmoid(z: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-z))

    w = np.split(params["cell"]["input"], 4)
    r = np.split(params["cell"]["recurrent"], 4)
    b = np.split(params["cell"]["bias"], 4)
    h = np.zeros((len(x), 4))
    s = np.zeros((len(x), 4))
    for row in range(5):
        z = [x[:, 0, row] @ w[k].T + h @ r[k].T + b[k] for k in range(4)]
        s = sigmoid(z[1]) * s + sigmoid(z[0]) * np.tanh(z[2])
        h = sigmoid(z[3]) * np.tanh(s)
    return h @ params["head"]["weight"].T + params["head"]["bias"]


def test_logits_are_those_of_the_equations() -> None:
    params, x = parameters(), images()
    got = opstage.run(lambda ops, p, x: lstm.logits(ops, p, x, config=CONFIG), params, x, options=FLOAT64)
    np.testing.assert_allclose(got, by_hand(params, x), rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(share(3)))
def test_the_recipe_reaches_its_goal(seed: int) -> None:
    assert lstm.RECIPE.goal == 0.97
    assert trained("lstm", seed=seed)[1].held_out["accuracy"] >= 0.97
