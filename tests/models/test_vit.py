"""The vision transformer: how it cuts images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage.models import vit

from .common import FLOAT64, batch_of, built

CONFIG = vit.Config(embedding=8, depth=2, heads=2, hidden=12)


def logits(params: Any, x: np.ndarray) -> np.ndarray:
    def program(ops: Any, p: Any, x: Any) -> Any:
        return vit.logits(ops, p, x, config=CONFIG)

    return np.asarray(opstage.run(program, params, x, options=FLOAT64))


def test_patches_may_change_places_if_their_positions_do() -> None:
    params = built(vit.init(CONFIG), seed=1)
    (x,) = batch_of("vit", 2)[:1]
    order = np.random.default_rng(0).permutation(16)
    patches = x.reshape(2, 4, 2, 4, 2).swapaxes(2, 3).reshape(2, 16, 2, 2)
    moved = patches[:, order].reshape(2, 4, 4, 2, 2).swapaxes(2, 3).reshape(2, 1, 8, 8)
    places = {**params, "positions": params["positions"][order]}
    np.testing.assert_allclose(logits(places, moved), logits(params, x), rtol=1e-9, atol=1e-12)
    assert np.abs(logits(params, moved) - logits(params, x)).max() > 1e-3


def test_patches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(opstage.UsageError, match="8x8 pixels cannot be cut into patches of 3x3"):
        vit.Config(patch=3)
