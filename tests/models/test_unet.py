"""The U-Net: what its parts see, and that it removes noise better than any linear map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage.data import Dataset, digits, noisy
from opstage.models import unet

from .by_recipe import trained
from .common import FLOAT64, batch_of, built

CONFIG = unet.Config(channels=(4, 8), groups=2)


def denoised(params: Any, x: np.ndarray) -> np.ndarray:
    def program(ops: Any, p: Any, x: Any) -> Any:
        return unet.denoise(ops, p, x, config=CONFIG)

    return np.asarray(opstage.run(program, params, x, options=FLOAT64))


def linear_error(training: Dataset, held_out: Dataset) -> float:
    """The held-out error of a pixel of the affine map that is best, in least squares, on the training data."""

    def rows(images: np.ndarray) -> np.ndarray:
        return images.reshape(len(images), -1).astype(np.float64)

    def inputs(data: Dataset) -> np.ndarray:
        return np.column_stack([rows(data["x"]), np.ones(len(data))])

    map_, *_ = np.linalg.lstsq(inputs(training), rows(training["y"]), rcond=None)
    return float(np.mean((inputs(held_out) @ map_ - rows(held_out["y"])) ** 2))


def test_what_the_way_down_saw_is_handed_across() -> None:
    """With nothing let through from below, the image is still seen, and what stands below is not."""
    params = built(unet.init(CONFIG))
    for name in ("kernel", "bias"):
        params["up"][0]["grow"][name][...] = 0
    (x,) = batch_of("unet", 1)[:1]
    before = denoised(params, x)
    assert np.abs(denoised(params, x[:, :, ::-1].copy()) - before).max() > 0.01
    params["down"][1]["first"]["conv"]["kernel"][...] = 1
    np.testing.assert_array_equal(denoised(params, x), before)


def test_metrics_are_sums_of_the_loss() -> None:
    made, params, batch = unet.make(CONFIG), built(unet.init(CONFIG)), batch_of("unet", 5)
    error = float(np.mean((denoised(params, batch[0]) - batch[1]) ** 2))
    assert float(opstage.run(made.loss, params, *batch, options=FLOAT64)) == pytest.approx(error, rel=1e-10)
    assert float(opstage.run(made.metrics, params, *batch, options=FLOAT64)["loss"]) == pytest.approx(5 * error)


def test_images_that_cannot_be_halved_are_refused() -> None:
    with pytest.raises(opstage.UsageError, match="8x8 pixels cannot be halved 4 times"):
        unet.Config(channels=(4, 4, 4, 4, 4))


def test_noise_has_its_deviation_and_is_drawn_once_for_each_copy() -> None:
    data = noisy(digits(), deviation=0.5, copies=2, seed=3)
    noise = data["x"].astype(np.float64) - data["y"]
    assert noise.std() == pytest.approx(0.5, rel=0.01)
    assert abs(noise.mean()) < 0.005
    first, second = np.split(noise, 2)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.01
    np.testing.assert_array_equal(data["y"][: len(digits())], digits()["x"])
    np.testing.assert_array_equal(data["x"], noisy(digits(), deviation=0.5, copies=2, seed=3)["x"])
    assert not np.array_equal(data["x"], noisy(digits(), deviation=0.5, copies=2, seed=3, part=1)["x"])


@pytest.mark.parametrize(("arguments", "message"), [({"deviation": 0.0}, "deviation=0.0"), ({"copies": 0}, "copies=0")])
def test_noise_that_is_none_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(opstage.UsageError, match=message):
        noisy(digits(), **{"deviation": 0.5, **arguments})


def test_a_short_run_learns_to_denoise() -> None:
    training, held_out = unet.RECIPE.data(0)
    some = training.take(np.arange(len(training) // 8))  # one noisy copy of each
    error = trained("unet", epochs=2, data=(some, held_out))[1].held_out["loss"]
    untouched = float(np.mean((held_out["x"] - held_out["y"]) ** 2))
    assert error < untouched / 3


@pytest.mark.slow
def test_the_recipe_is_clearly_better_than_the_best_linear_map() -> None:
    error = trained("unet")[1].held_out["loss"]
    assert error <= unet.RECIPE.goal
    assert error < 0.87 * linear_error(*unet.RECIPE.data(0))
