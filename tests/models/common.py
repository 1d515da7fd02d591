"""What tests of several models ask of each."""

from __future__ import annotations

from typing import Any

import numpy as np

import opstage
from opstage.init import build
from opstage.models import MODELS, Model
from opstage.ops.trees import flatten, map_leaves, paths
from opstage.training.trainer import scalar_trainer

FLOAT64 = opstage.Options(dtype="float64")


def batch_of(name: str, rows: int) -> tuple[np.ndarray, ...]:
    """The first rows of the recipe's training data."""
    return tuple(array[:rows] for array in MODELS[name].RECIPE.data(0)[0].arrays)


def built(declarations: Any, seed: int = 0) -> Any:
    return None if declarations is None else build(declarations, dtype="float64", seed=seed)


def require_gradients(made: Model, *batch: np.ndarray, none: tuple[str, ...] = ()) -> None:
    """Every parameter has a gradient, but those whose path ends in one of `none`, which must not have any; and all of
    them together are the slope of the loss along a random direction, by a central difference."""
    state = built(made.state)
    generator = np.random.default_rng(0)
    # Off the first values: with biases of 0, blank parts of an image stand on the kink of relu.
    params = map_leaves(lambda p: p + 0.05 * generator.normal(size=p.shape), built(made.init))
    trainer = scalar_trainer(made.loss, params, options=FLOAT64, state=state)
    _, gradient = trainer.loss_and_backward(*batch)
    leaves, _ = flatten(gradient)
    largest = max(np.abs(leaf).max() for leaf in leaves)
    for path, leaf in zip(paths(gradient), leaves):
        reached = bool(np.abs(leaf).max() > 1e-9 * largest)
        assert reached != path.endswith(none), path
    direction = map_leaves(lambda p: generator.normal(size=p.shape), params)
    step = 1e-6

    def along(distance: float) -> float:
        trainer.set_params(map_leaves(lambda p, d: p + distance * d, params, direction))
        return float(trainer.forward(*batch, train=True))

    slope = sum(float(np.sum(g * d)) for g, d in zip(leaves, flatten(direction)[0]))
    np.testing.assert_allclose(slope, (along(step) - along(-step)) / (2 * step), rtol=1e-5)
