"""Load the data of a run, from the file in its settings, its model's recipe, or Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from ..config import spelled
from ..data import Dataset, Loader, train_test_split
from ..data.csv_and_parquet import read_table
from ..data.file import array_names, is_array_folder, read_arrays
from ..data.image_folder import read_image_data
from ..data.memory_map import is_mapped
from ..data.preparation import ArgumentData, Form, Preparation, from_table, learn
from ..data.table import (
    TABLES,
    Named,
    ScaleName,
    Scaling,
    assign,
    cast,
    encoded_columns,
    fit_shape,
    label_position,
    learn_categories,
    number_kind,
    numbered,
    read_columns,
    require_columns,
)
from ..files import suffix_of
from ..models import Model, Recipe
from ..ops.errors import OpstageError, UsageError, brief, shown
from ..ops.loss import IGNORED
from ..ops.spec import Spec
from ..program_arguments import batch_arguments
from ..training.predictor import input_specs
from .directory import data_digest
from .settings import DataSettings, Settings

_EVALUATED_ROWS = 256
"""Rows per batch of an evaluation."""


@final
@dataclass(frozen=True, eq=False)
class Loaded:
    """The data of a run. `preparation` is None if they come from the recipe.

    `unscaled` is the digest of the held-out data before scaling; None if they are not scaled.
    """

    training: Dataset
    held_out: Dataset
    preparation: Preparation | None = None
    unscaled: dict[str, Any] | None = None


def load_data(settings: Settings, model: Model, recipe: Recipe) -> Loaded:
    """Load the data that the settings name: from a file, matched to the model's batch arguments, cast, checked and
    scaled.

    Raises UsageError for a file that cannot be read, and for one that does not fit the model; the message suggests
    settings that would fit, if they follow from the data.
    """
    seed, file, data = settings.options.seed, settings.data.file, settings.data
    if recipe.read is not None:
        return Loaded(*recipe.read(file, data.held_out, model.config))
    if file is None:
        if recipe.data is None:
            raise UsageError(
                f"{settings.run.model} lacks default data; name a file with --data FILE, in Python give data, or "
                "give it a RECIPE = opstage.Recipe(data=…)"
            )
        require_file_settings(data, "; name one with --data FILE, in Python give it as data")
        return Loaded(*recipe.data(seed))
    specs = argument_specs(model)
    labels = label_arguments(model, tuple(specs)) or _label_left(data, tuple(specs))
    form = _form(file)
    if data.size and form != "images":
        raise UsageError(f"{file}: data.size is for a folder of images")
    if form != "table":
        for name, value, usual in (("columns", data.columns, ""), ("categories", data.categories, "auto")):
            if value != usual:
                raise UsageError(f"{file}: data.{name} is for a table: {', '.join(TABLES)}")
    if form == "table":
        raw, made = _of_table(file, data, specs, labels)
    elif form == "images":
        raw, made = _of_images(settings, specs, labels)
    else:
        raw, made = _of_arrays(file, data.label, specs)
    preparation = replace(learn(raw, made, specs, labels, form), resized=bool(data.size))
    if data.scale != "none":
        if not any(part.kind == "float" and not part.label for part in preparation.parts):
            raise UsageError(
                f"{file}: data.scale={data.scale} is for inputs of floats, and {model.name} takes integers; leave "
                "data.scale out, or declare the inputs as floats in the model's batch"
            )
        mapped = next((name for name, array in zip(raw.names, raw.arrays) if is_mapped(array)), None)
        if mapped is not None:
            raise UsageError(
                f"{file}: {mapped} is read row by row, being large; scale it in its file instead of by data.scale"
            )
        unscaled = tuple(part if part.label else replace(part, image=False) for part in preparation.parts)
        preparation = replace(preparation, parts=unscaled)
        raw = _as_floats(raw, preparation)
    only = _only_class(raw, specs, labels)
    if only is not None:
        raise UsageError(f"{file}: all rows are of one class, {only}; expected two or more classes")
    dataset = preparation.apply(raw)
    _check_shapes(dataset, specs, settings, model, labels)
    _check_labels(dataset, settings, model, specs, labels)
    training, held_out = split(dataset, labels[-1] if labels else None, data.held_out, seed)
    if data.scale == "none":
        return Loaded(training, held_out, preparation)
    preparation = replace(preparation, parts=tuple(_scaled(part, data.scale, training) for part in preparation.parts))
    return Loaded(preparation.apply(training), preparation.apply(held_out), preparation, data_digest(held_out))


def _only_class(dataset: Dataset, specs: dict[str, Spec], labels: Sequence[str]) -> str | None:
    """Return the class of all rows, by its name or number; None for several, or if the label is not a class."""
    if dataset.classes is not None:
        return brief(dataset.classes[0]) if len(dataset.classes) == 1 else None
    if len(labels) != 1 or number_kind(specs[labels[0]]) != "int" or dataset[labels[0]].ndim != 1:
        return None
    values = dataset[labels[0]]
    return str(values[0]) if values.size and (values == values[0]).all() else None


def require_file_settings(data: DataSettings, cure: str) -> None:
    """Raise UsageError for a setting about a data file if there is none."""
    usual = DataSettings()
    for name in ("label", "columns", "categories", "scale", "size"):
        if getattr(data, name) != getattr(usual, name):
            raise UsageError(f"data.{name} is for a data file{cure}")


def in_order(dataset: Dataset) -> Loader:
    """Return a loader of all rows in order, for evaluation."""
    return Loader(dataset, min(_EVALUATED_ROWS, len(dataset)), shuffle=False)


def arguments(model: Model) -> tuple[str, ...]:
    """Return the names of the arguments of a model's batch."""
    known = batch_arguments(model.forward, skip=model.batch_starts)
    if known is None:
        return tuple([f"batch{i}" for i in range(len(model.batch))])
    return (*known.required, *known.optional)[: len(model.batch) or None]


def split(dataset: Dataset, label: str | None, held_out: float, seed: int) -> tuple[Dataset, Dataset]:
    """Split into (training, held out), stratified if the label is integers with at most as many values as held-out
    rows."""
    stratify = None
    if label is not None and label in dataset.names:
        labels = dataset[label]
        by_class = labels.ndim == 1 and labels.dtype.kind in "iu"
        if by_class and len(np.unique(labels)) <= max(1, round(held_out * len(dataset))):
            stratify = label
    return train_test_split(dataset, test=held_out, seed=seed, stratify=stratify)


def argument_specs(model: Model) -> dict[str, Spec]:
    """Return the Specs of a model's batch by argument. Raises UsageError for one that is a tree of arrays."""
    names = arguments(model)
    trees = [name for name, spec in zip(names, model.batch) if not isinstance(spec, Spec)]
    if trees:
        raise UsageError(
            f"{model.name} takes {trees[0]}, a tree of arrays, which data files do not support; give the "
            "data in Python, "
            "opstage.fit(model, …), or in a RECIPE"
        )
    return dict(zip(names, model.batch))


def label_arguments(model: Model, names: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments to be predicted: those that are not arguments of `outputs`, or without it the last of
    two."""
    if model.outputs is not None:
        inputs = input_specs(model)
        return tuple(name for name in names if name not in inputs)
    return tuple(names[1:]) if len(names) == 2 else ()


def _label_left(data: DataSettings, names: Sequence[str]) -> tuple[str, ...]:
    """Return the argument of `data.label` if the model does not determine the label: the one without columns."""
    left = tuple(name for name in names if name not in read_columns(data.columns))
    return left if data.label and len(left) == 1 else ()


def _of_table(
    file: Path, data: DataSettings, specs: dict[str, Spec], labels: Sequence[str]
) -> tuple[Dataset, dict[str, ArgumentData]]:
    """Return the arrays by argument, and the columns of each: those in the settings, those of the same name, or the
    label and all the others."""
    found: dict[str, tuple[str, ...]] = {}
    may_name: dict[str, Named] = {}
    label, given = data.label, read_columns(data.columns)

    def choose(names: Sequence[str]) -> tuple[Sequence[str], dict[str, Named]]:
        by_name = set(names) == set(specs) or len(specs) > 2
        if given:
            found.update(assign(file, given, names, tuple(specs), labels, label))
        elif by_name and not label:
            require_columns(file, names, tuple(specs))
            found.update({name: (name,) for name in specs})
        else:
            if label and len(specs) > 2:
                raise UsageError(
                    f"data.label={label!r} is for a model of inputs and one label; this one takes {shown(list(specs))},"
                    " whose columns are those of these names"
                )
            position = label_position(file, names, label or None, True)
            first, *rest = specs
            found[first] = tuple(name for i, name in enumerate(names) if i != position)
            for name in rest:
                found[name] = (names[position],)
            require_columns(file, names, found[first])
        for name, columns in found.items():
            if name in labels:
                may_name.update(dict.fromkeys(columns, "class"))
            elif data.categories != "auto" or number_kind(specs[name]) == "int":
                may_name.update(dict.fromkeys(columns, "category"))
        return [column for columns in found.values() for column in columns], may_name

    hint = f"; names in an input are taken with {spelled({'data.categories': 'one_hot'})}, or number for their numbers"
    table = read_table(file, choose, hint)
    classes = None
    for name in labels:
        if len(found[name]) == 1 and isinstance(table.columns[found[name][0]], list):
            if classes is not None:
                raise UsageError(f"{file}: two labels hold names; expected one at most: {shown(labels)}")
            _, classes = numbered(table, found[name][0])
            if number_kind(specs[name]) != "int":
                raise UsageError(
                    f"{file}: {table.place(0)}: column {found[name][0]} holds names of classes, but {name} is declared "
                    f"as {specs[name]}, which are not classes"
                )
    parts = {name: ArgumentData(name, columns, "float", (), label=name in labels) for name, columns in found.items()}
    for name, columns in found.items():
        if name not in labels:
            categories = learn_categories(table, columns, data.categories)
            one_hot = bool(categories) and data.categories == "one_hot"
            parts[name] = replace(parts[name], categories=categories, one_hot=one_hot)
    return from_table(file, list(parts.values()), classes, table, new=False), parts


def _scaled(part: ArgumentData, scale: ScaleName, training: Dataset) -> ArgumentData:
    """Return the part with the scaling of its training rows; labels and category numbers are not scaled."""
    if part.label or part.kind != "float":
        return part
    named = encoded_columns(part.categories, one_hot=part.one_hot)
    return replace(part, scaling=Scaling.of(scale, training[part.argument], fixed=named))


def _form(file: Path) -> Form:
    if suffix_of(file) in TABLES:
        return "table"
    of_arrays = suffix_of(file) in (".npz", ".npy") or not file.is_dir() or is_array_folder(file)
    return "arrays" if of_arrays else "images"


def _of_images(
    settings: Settings, specs: dict[str, Spec], labels: Sequence[str]
) -> tuple[Dataset, dict[str, ArgumentData]]:
    """Return images, grey if the model has one channel, and their classes."""
    file, data = settings.data.file, settings.data
    assert file is not None
    inputs = [name for name in specs if name not in labels]
    if len(inputs) != 1 or len(labels) > 1 or len(specs[inputs[0]].entries) != 4:
        raise UsageError(
            f"{file}: a folder of images is for a model of images (B, channels, height, width) and their classes; this "
            f"one takes {', '.join(f'{name}: {spec}' for name, spec in specs.items())}"
        )
    if data.label:
        raise UsageError(f"{file}: data.label is the name of a column; classes of images are the folders' names")
    channels = 1 if str(specs[inputs[0]].entries[1]) == "1" else 3
    found = read_image_data(file, size=data.image_size(), channels=channels, labelled=bool(labels))
    own = {name: "y" if name in labels else "x" for name in specs}
    arrays, origins = [found[n] for n in own.values()], [found.origins[found.names.index(n)] for n in own.values()]
    dataset = Dataset(tuple(own), tuple(arrays), tuple(origins), classes=found.classes)
    return dataset, {name: ArgumentData(name, (array,), "float", ()) for name, array in own.items()}


def _of_arrays(file: Path, label: str, specs: dict[str, Spec]) -> tuple[Dataset, dict[str, ArgumentData]]:
    """Return the arrays named like the arguments, or x and y for a model of two arguments."""
    if label:
        raise UsageError(f"{file}: data.label is the name of a column; arrays are known by the names of the arguments")
    has, names = array_names(file), tuple(specs)
    if not set(names) <= set(has) and {"x", "y"} >= set(has) and len(names) <= len(has):
        names = ("x", "y")[: len(names)]
    dataset = read_arrays(file, names)
    made = {name: ArgumentData(name, (own,), "float", ()) for name, own in zip(specs, names)}
    return Dataset(tuple(specs), dataset.arrays, dataset.origins, classes=dataset.classes), made


def _as_floats(dataset: Dataset, preparation: Preparation) -> Dataset:
    """Convert inputs to floats before scaling: bytes are then not divided by 255. Raises UsageError as `cast` does."""
    inputs = {part.argument for part in preparation.parts if not part.label and part.kind == "float"}
    arrays = [
        cast(array, "float", image=False, origin=origin) if name in inputs else array
        for name, array, origin in zip(dataset.names, dataset.arrays, dataset.origins)
    ]
    return replace(dataset, arrays=tuple(arrays))


def _check_shapes(
    dataset: Dataset, specs: dict[str, Spec], settings: Settings, model: Model, labels: Sequence[str]
) -> None:
    for name, spec in specs.items():
        if not _fits(dataset[name].shape, spec):
            origin = dataset.origins[dataset.names.index(name)]
            row = tuple(dataset[name].shape[1:])
            raise UsageError(
                f"{origin}: {name} has rows of shape {row}, but {model.name} takes {name} of {spec}"
                f"{_cure(dataset, settings, specs, labels)}"
            )


def _fits(shape: Sequence[int], spec: Spec) -> bool:
    """Return whether a shape matches the numeric sizes of a Spec."""
    entries = spec.entries
    return len(shape) == len(entries) and all(
        not str(entry).isdecimal() or int(entry) == size for size, entry in zip(shape[1:], entries[1:])
    )


def _check_labels(
    dataset: Dataset, settings: Settings, model: Model, specs: dict[str, Spec], names: Sequence[str]
) -> None:
    """Raise unless labels are valid classes; the error names the row, which is unknown once batches are shuffled."""
    classes = getattr(model.config, "classes", None)
    if not isinstance(classes, int):
        return
    if dataset.classes is not None and len(dataset.classes) != classes:
        raise UsageError(
            f"{settings.data.file}: the label has {len(dataset.classes)} classes, {shown(dataset.classes)}, but "
            f"{model.name} has {classes} classes{_cure(dataset, settings, specs, names)}"
        )
    for name in names:
        labels = dataset[name]
        if number_kind(specs[name]) != "int" or labels.ndim != 1:
            continue
        outside = (labels < 0) | (labels >= classes)
        if specs[name].range is None:  # the model leaves it to its ops, of which cross_entropy ignores some labels
            outside &= labels != IGNORED
        (wrong, *_) = np.nonzero(outside)
        if len(wrong):
            row = int(wrong[0])
            origin = dataset.origins[dataset.names.index(name)]
            cure = _cure(dataset, settings, specs, names)
            if labels[row] == IGNORED:
                cure = f"; {model.name} does not ignore labels, so leave such rows out"
            raise UsageError(
                f"{origin}: row {row} holds label {labels[row]} (rows are counted from 0), but {model.name} has "
                f"{classes} classes: labels are 0 … {classes - 1}{cure}"
            )


def _cure(dataset: Dataset, settings: Settings, specs: dict[str, Spec], labels: Sequence[str]) -> str:
    """Suggest settings of the model with which the data would fit, or "" if none are known."""
    config = settings.model
    if not is_dataclass(config) or isinstance(config, type):
        return ""
    own = {f.name for f in fields(config)}
    wanted: dict[str, Any] = {}
    inputs = [name for name in specs if name not in labels]
    if len(inputs) == 1:
        row = tuple(dataset[inputs[0]].shape[1:])
        now = getattr(config, "inputs", None)
        if isinstance(now, tuple):
            wanted["inputs"] = row or (1,)
        elif row:
            wanted["inputs"] = row[0]
            if len(row) == 3:
                wanted |= {"height": row[1], "width": row[2]}
    for name in labels:
        if number_kind(specs[name]) == "int" and dataset[name].min() >= 0:
            known = dataset.classes
            wanted["classes"] = len(known) if known is not None else int(dataset[name].max()) + 1
    changed = {name: value for name, value in wanted.items() if name in own and getattr(config, name) != value}
    if not changed:
        return ""
    try:
        made = settings.defined.make(replace(config, **changed))
        fitting = argument_specs(made)
        if not all(_fits(fit_shape(dataset[name], spec.entries).shape, spec) for name, spec in fitting.items()):
            return ""
    except (OpstageError, KeyError):
        return ""
    return "; set " + spelled({f"model.{name}": value for name, value in changed.items()})


# Data given in Python -------------------------------------------------------------------------------------------------


def load_python_data(training: Dataset, held_out: Dataset, model: Model) -> Loaded:
    """Load both parts. If the training rows have columns or classes, the data are cast, and the held-out rows are
    converted to the same order of columns and numbering of classes.

    Raises UsageError for held-out rows that cannot be converted.
    """
    preparation = learn_preparation(training, model)
    if preparation is None:
        for what in ("classes", "columns"):
            ours, theirs = getattr(training, what), getattr(held_out, what)
            if ours and theirs and ours != theirs:
                raise UsageError(
                    f"the held-out data have other {what} than the data to train on, {theirs} and {ours}, so their "
                    "numbers differ in meaning; give both in one order"
                )
        return Loaded(training, held_out)
    names = _names(training, model)
    if not set(names) <= set(held_out.names):
        raise UsageError(f"the held-out data have the arrays {shown(held_out.names)}; expected {shown(names)}")
    arguments = tuple(argument_specs(model))
    parts = [replace(part.only(*names), names=arguments) for part in (training, held_out)]
    return Loaded(preparation.apply(parts[0]), preparation.labelled(parts[1]), preparation)


def learn_preparation(dataset: Dataset, model: Model) -> Preparation | None:
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
