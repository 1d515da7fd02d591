"""What is asked of every shipped model: right shapes, right gradients, and that a short run learns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage.models import MODELS, cnn, lstm, mlp, model, resnet, unet, vae, vit
from opstage.training.validate import check_step
from tests.models.by_recipe import trained
from tests.models.common import FLOAT64, batch_of, built, require_gradients


class Shipped(NamedTuple):
    """A small config, as many rows for its gradients, and what `epochs` of training reach."""

    config: Any
    rows: int
    epochs: int = 0
    reached: float = 0.0


KEYS = ("key.bias",)
"""A key's bias adds the same to all scores of a query, which softmax does not see."""
SHIPPED = {
    "mlp": Shipped(mlp.Config(hidden=(12, 9)), 8, epochs=4, reached=0.9),
    "cnn": Shipped(cnn.Config(channels=(3, 4), dense=12), 8, epochs=2, reached=0.9),
    "lstm": Shipped(lstm.Config(hidden=4), 3, epochs=10, reached=0.9),
    "resnet": Shipped(resnet.Config(channels=(4, 6), blocks=1), 6, epochs=3, reached=0.9),
    "vit": Shipped(vit.Config(embedding=8, depth=2, heads=2, hidden=12), 3, epochs=3, reached=0.8),
    "unet": Shipped(unet.Config(channels=(4, 8), groups=2), 3),
    "vae": Shipped(vae.Config(hidden=(12, 10), latent=3), 4),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_training_step_is_right_for_every_batch_size(name: str) -> None:
    made = model(name)
    report = check_step(made.loss, made.init, *made.batch, state=made.state)
    assert report.ok, str(report)
    assert "B" in str(report.cost), "the batch size should be symbolic"


@pytest.mark.parametrize("name", SHIPPED)
def test_every_parameter_has_its_gradient(name: str) -> None:
    config, rows, *_ = SHIPPED[name]
    require_gradients(model(name, config), *batch_of(name, rows), none=KEYS if name == "vit" else ())


@pytest.mark.parametrize("name", ["cnn", "vit"])
def test_dropout_is_for_training_alone(name: str) -> None:
    config, (x, _) = SHIPPED[name].config, batch_of(name, 3)
    params = built(model(name, config).init)

    def logits(train: bool) -> Any:
        program = lambda ops, p, x: MODELS[name].logits(ops, p, x, config=config, train=train)  # noqa: E731
        return opstage.run(program, params, x, options=FLOAT64)

    np.testing.assert_array_equal(logits(False), logits(False))
    assert np.abs(logits(True) - logits(False)).max() > 1e-3


@pytest.mark.parametrize("name", [name for name, shipped in SHIPPED.items() if shipped.epochs])
def test_a_short_run_reads_most_digits(name: str) -> None:
    assert trained(name, epochs=SHIPPED[name].epochs)[1].held_out["accuracy"] > SHIPPED[name].reached


@pytest.mark.slow
@pytest.mark.parametrize(("name", "goal"), [("resnet", 0.97), ("vit", 0.96)])
def test_a_recipe_reaches_its_goal(name: str, goal: float) -> None:
    assert MODELS[name].RECIPE.goal == goal
    assert trained(name)[1].held_out["accuracy"] >= goal
