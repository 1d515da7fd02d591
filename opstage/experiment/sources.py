"""Where a run's data come from: the recipe of its model, or a file."""

from __future__ import annotations

import numpy as np

from ..data import Dataset, from_file, train_test_split
from ..models import Model
from ..ops.errors import UsageError
from ..training.recipes import Recipe
from .settings import Settings


def load_data(settings: Settings, model: Model, recipe: Recipe) -> tuple[Dataset, Dataset]:
    """(training data, held-out data); of a file's arrays x and y as many as the model's batch has."""
    seed, file = settings.options.seed, settings.data.file
    if recipe.read is not None:
        return recipe.read(file, settings.data.held_out, model.config)
    if file is None:
        return recipe.data(seed)
    dataset = from_file(file)
    _check_labels(dataset, model)
    training, held_out = train_test_split(dataset, test=settings.data.held_out, seed=seed)
    if len(model.batch) == 1:
        return training.only("x"), held_out.only("x")
    return training, held_out


def _check_labels(dataset: Dataset, model: Model) -> None:
    """A classifier's labels must be classes of it; an error names the row, which no error of a shuffled batch could."""
    classes = getattr(model.config, "classes", None)
    if classes is None or "y" not in dataset.names or dataset["y"].dtype.kind not in "iu":
        return
    labels = dataset["y"]
    (wrong, *_) = np.nonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        row = int(wrong[0])
        origin = dataset.origins[dataset.names.index("y")]
        raise UsageError(
            f"{origin}: row {row} holds label {labels[row]} (rows are counted from 0), but {model.name} tells "
            f"{classes} classes apart: labels are 0 … {classes - 1}"
        )
