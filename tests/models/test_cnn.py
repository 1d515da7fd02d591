"""The convolutional network: its two forms, its accuracy on the digits."""

from __future__ import annotations

from typing import Any

import numpy as np

import opstage
from opstage.models import cnn

from .by_recipe import trained
from .common import FLOAT64, batch_of, built, require_gradients, require_right_for_every_batch_size

CONFIG = cnn.Config(channels=(3, 4), dense=12)


def logits(params: Any, x: np.ndarray, train: bool = False) -> np.ndarray:
    def program(ops: Any, p: Any, x: Any) -> Any:
        return cnn.logits(ops, p, x, config=CONFIG, train=train)

    return np.asarray(opstage.run(program, params, x, options=FLOAT64))


def test_the_training_step_is_right_for_every_batch_size() -> None:
    require_right_for_every_batch_size("cnn")


def test_every_parameter_has_its_gradient() -> None:
    require_gradients(cnn.make(CONFIG), *batch_of("cnn", 8))


def test_dropout_is_for_training_alone() -> None:
    params, (x, _) = built(cnn.init(CONFIG)), batch_of("cnn", 3)
    np.testing.assert_array_equal(logits(params, x), logits(params, x))
    assert np.abs(logits(params, x, train=True) - logits(params, x)).max() > 1e-3


def test_a_short_run_reads_nine_digits_of_ten() -> None:
    assert trained("cnn", epochs=2)[1].held_out["accuracy"] > 0.9
