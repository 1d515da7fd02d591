"""Where a run's data come from: the recipe of its model, or a file."""

from __future__ import annotations

from ..data import Dataset, from_npz, train_test_split
from ..training.recipes import Recipe
from .settings import Settings


def load_data(settings: Settings, recipe: Recipe) -> tuple[Dataset, Dataset]:
    """(training data, held-out data)."""
    seed = settings.options.seed
    if settings.data.file is None:
        return recipe.data(seed)
    whole = from_npz(settings.data.file, keys=("x", "y"))
    return train_test_split(whole, test=settings.data.held_out, seed=seed)
