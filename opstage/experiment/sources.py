"""Where a run's data come from: the recipe of its model, or a file."""

from __future__ import annotations

from ..data import Dataset, from_file, train_test_split
from ..models import Model
from ..training.recipes import Recipe
from .settings import Settings


def load_data(settings: Settings, model: Model, recipe: Recipe) -> tuple[Dataset, Dataset]:
    """(training data, held-out data); of a file's arrays x and y as many as the model's batch has."""
    seed, file = settings.options.seed, settings.data.file
    if recipe.read is not None:
        return recipe.read(file, settings.data.held_out, model.config)
    if file is None:
        return recipe.data(seed)
    training, held_out = train_test_split(from_file(file), test=settings.data.held_out, seed=seed)
    if len(model.batch) == 1:
        return training.only("x"), held_out.only("x")
    return training, held_out
