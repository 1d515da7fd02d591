"""Data given in Python, read like those of a file: by arguments, columns and classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..data import Dataset
from ..data.preparation import ArgumentData, Preparation, learn
from ..models import Model
from ..ops.errors import UsageError
from ..ops.spec import Spec
from ..ops.untrusted import shown
from .sources import Loaded, argument_specs, label_arguments


def load_given(training: Dataset, held_out: Dataset, model: Model) -> Loaded:
    """Load both parts. If the training rows have columns or classes, the data are cast, and the held-out rows are
    converted to the same order of columns and numbering of classes.

    Raises UsageError for held-out rows that cannot be converted.
    """
    preparation = preparation_of(training, model)
    if preparation is None:
        for what in ("classes", "columns"):
            ours, theirs = getattr(training, what), getattr(held_out, what)
            if ours and theirs and ours != theirs:
                raise UsageError(
                    f"the held-out data have other {what} than the data to train on, {theirs} and {ours}, so their "
                    "numbers do not mean the same; give both in one order"
                )
        return Loaded(training, held_out)
    names = _names(training, model)
    if not set(names) <= set(held_out.names):
        raise UsageError(f"the held-out data have the arrays {shown(held_out.names)}; expected {shown(names)}")
    arguments = tuple(argument_specs(model))
    parts = [replace(part.only(*names), names=arguments) for part in (training, held_out)]
    return Loaded(preparation.apply(parts[0]), preparation.labelled(parts[1]), preparation)


def preparation_of(dataset: Dataset, model: Model) -> Preparation | None:
    """Return how to read new data like a dataset with columns or classes, or None for any other dataset."""
    if not (dataset.columns or dataset.classes) or not all(isinstance(spec, Spec) for spec in model.batch):
        return None
    specs = argument_specs(model)
    labels = label_arguments(model, tuple(specs))
    if len(dataset.names) != len(specs) or (dataset.classes and not labels):
        return None
    names = _names(dataset, model)
    own = replace(dataset.only(*names), names=tuple(specs))
    columns = own.columns or tuple((name,) for name in names)
    made = {name: ArgumentData(name, columns[i], "float", ()) for i, name in enumerate(specs)}
    images = any(array.dtype == np.uint8 and array.ndim == 4 for array in own.arrays) and len(names) == 2
    return learn(own, made, specs, labels, "table" if dataset.columns else "images" if images else "arrays")


def _names(dataset: Dataset, model: Model) -> tuple[str, ...]:
    """Return a dataset's array names in the order of the model's arguments, whether or not they have these names."""
    specs = argument_specs(model)
    return tuple(specs) if set(dataset.names) == set(specs) else dataset.names
