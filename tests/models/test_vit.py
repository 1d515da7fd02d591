"""The vision transformer: how it cuts images, its two forms, its accuracy on the digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage.models import vit

from .by_recipe import trained
from .common import FLOAT64, batch_of, built, require_gradients, require_right_for_every_batch_size

CONFIG = vit.Config(embedding=8, depth=2, heads=2, hidden=12)


def logits(params: Any, x: np.ndarray, train: bool = False) -> np.ndarray:
    def program(ops: Any, p: Any, x: Any) -> Any:
        return vit.logits(ops, p, x, config=CONFIG, train=train)

    return np.asarray(opstage.run(program, params, x, options=FLOAT64))


def test_the_training_step_is_right_for_every_batch_size() -> None:
    require_right_for_every_batch_size("vit")


def test_every_parameter_has_its_gradient() -> None:
    # A key's bias adds the same to all scores of a query, which softmax does not see.
    require_gradients(vit.make(CONFIG), *batch_of("vit", 3), none=("key.bias",))


def test_patches_may_change_places_if_their_positions_do() -> None:
    params = built(vit.init(CONFIG), seed=1)
    (x,) = batch_of("vit", 2)[:1]
    order = np.random.default_rng(0).permutation(16)
    patches = x.reshape(2, 4, 2, 4, 2).swapaxes(2, 3).reshape(2, 16, 2, 2)
    moved = patches[:, order].reshape(2, 4, 4, 2, 2).swapaxes(2, 3).reshape(2, 1, 8, 8)
    places = {**params, "positions": params["positions"][order]}
    np.testing.assert_allclose(logits(places, moved), logits(params, x), rtol=1e-9, atol=1e-12)
    assert np.abs(logits(params, moved) - logits(params, x)).max() > 1e-3


def test_dropout_is_for_training_alone() -> None:
    params = built(vit.init(CONFIG))
    (x,) = batch_of("vit", 2)[:1]
    np.testing.assert_array_equal(logits(params, x), logits(params, x))
    assert np.abs(logits(params, x, train=True) - logits(params, x)).max() > 1e-3


def test_patches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(opstage.UsageError, match="8x8 pixels cannot be cut into patches of 3x3"):
        vit.Config(patch=3)


def test_a_short_run_reads_eight_digits_of_ten() -> None:
    assert trained("vit", epochs=3)[1].held_out["accuracy"] > 0.8


@pytest.mark.slow
def test_the_recipe_reaches_its_goal() -> None:
    assert vit.RECIPE.goal == 0.96
    assert trained("vit")[1].held_out["accuracy"] >= 0.96
