"""`Preparation`: everything learned from the data of a run, to read new data the same way."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np

from ..files import Document, suffix_of
from ..ops.array_conversion import column_names, get_columns, is_table
from ..ops.errors import UsageError, nearest, shown
from ..ops.spec import Spec
from ..ops.trees import lists_as_arrays
from .csv_and_parquet import read_table
from .dataset import Dataset
from .file import read_arrays
from .image_folder import SUFFIXES, image_names, read_image_data
from .memory_map import is_mapped, pieces, row_view
from .table import (
    TABLES,
    Array,
    Categories,
    DataTable,
    Kind,
    Named,
    Scaling,
    cast,
    columns_table,
    encode,
    fit_shape,
    number_kind,
    numbered,
    require_columns,
)

Form: TypeAlias = Literal["table", "arrays", "images"]
Source: TypeAlias = "str | os.PathLike[str] | Dataset | Mapping[str, Any] | Sequence[Any]"
FORMAT = 1


@final
@dataclass(frozen=True)
class ArgumentData:
    """How the array of one argument is built.

    argument   the model's argument
    columns    its columns in a table; for other data the name of its array
    kind       the kind of numbers that the model expects
    shape      the shape of a row
    image      whether it was bytes that are divided by 255: inputs, and labels that are images
    label      whether it is to be predicted
    categories for each column its names; (): all hold numbers
    one_hot    whether columns of names are one-hot encoded; else they are numbered
    """

    argument: str
    columns: tuple[str, ...]
    kind: Kind
    shape: tuple[int, ...]
    image: bool = False
    label: bool = False
    scaling: Scaling | None = None
    categories: Categories = ()
    one_hot: bool = False


@final
@dataclass(frozen=True)
class Preparation:
    """The columns, class names, scaling and casts learned from training data.

    form      the form of the data: a table (.csv, .parquet), arrays or images
    parts     one for each argument of the model's batch, in order
    classes   the names of the classes of the label, in the order of their numbers; None if it has numbers
    resized   whether images were resized
    """

    form: Form
    parts: tuple[ArgumentData, ...]
    classes: tuple[str, ...] | None = None
    resized: bool = False

    @property
    def features(self) -> tuple[str, ...] | None:
        """Return the columns of a table that form the inputs, in order; None for arrays."""
        return tuple(c for part in self.parts if not part.label for c in part.columns) if self.form == "table" else None

    def inputs(self, source: Source, names: Sequence[str]) -> Dataset:
        """Read new data for the model's arguments `names`: a file, or arrays by name or in the order of `names`.

        Labels are optional, and further columns and arrays are ignored. Raises UsageError, with the nearest name, for
        missing data.
        """
        return self._read(source, [self._part(name) for name in names])

    def labelled(self, source: Source) -> Dataset:
        """Read new data with labels, for all arguments of the batch. Raises UsageError, with the row, for an unknown
        class."""
        return self._read(source, self.parts)

    def apply(self, dataset: Dataset) -> Dataset:
        """Cast and scale arrays named by the arguments."""
        made = []
        for part in self.parts:
            if part.argument in dataset.names:
                origin = dataset.origins[dataset.names.index(part.argument)]
                made.append(_each_prepared(dataset[part.argument], part, origin))
        chosen = dataset.only(*[part.argument for part in self.parts if part.argument in dataset.names])
        return replace(chosen, arrays=tuple(made))

    def _part(self, name: str) -> ArgumentData:
        for part in self.parts:
            if part.argument == name:
                return part
        known = [part.argument for part in self.parts]
        raise UsageError(f"the run's data have no {name!r}{nearest(name, known)}; they have {', '.join(known)}")

    def _read(self, source: Source, parts: Sequence[ArgumentData]) -> Dataset:
        chosen = replace(self, parts=tuple(parts))
        if isinstance(source, (str, os.PathLike)):
            if self.form == "table" and suffix_of(source) in TABLES:
                return chosen.apply(from_table(source, parts, self.classes))
            if self._is_of_images(source):
                return chosen.apply(self._of_images(source, parts))
            return chosen.apply(_of_file(source, parts, self.form, self.classes))
        if self.form == "table" and is_table(source):
            columns = get_columns(source)
            _require_only("the frame", columns, self._columns)
            return chosen.apply(from_table("the frame", parts, self.classes, columns))
        if self.form == "table" and isinstance(source, Mapping) and _is_table(source, parts):
            return chosen.apply(from_table("the columns", parts, self.classes, source))
        return chosen.apply(self._of_arrays(self._by_argument(source), parts))

    @property
    def _columns(self) -> list[str]:
        """Return the columns of all arguments, labels included."""
        return [column for part in self.parts for column in part.columns]

    def _by_argument(self, source: Any) -> Any:
        """Return a dataset under the arguments' names; if it has none of these, its arrays are in their order."""
        own = tuple(part.argument for part in self.parts)
        if not isinstance(source, Dataset) or not source.ordered or len(source.names) != len(own):
            return source
        return source if set(source.names) & set(own) else replace(source, names=own)

    def _of_arrays(self, source: Any, parts: Sequence[ArgumentData]) -> Dataset:
        """Read arrays in memory: a Dataset, a dict by argument, or in the order of the arguments."""
        names, classes = tuple(part.argument for part in parts), self.classes
        if not isinstance(source, (Dataset, Mapping)):
            given = (source,) if len(names) == 1 else source
            if not isinstance(given, (tuple, list)) or len(given) != len(names):
                raise UsageError(f"expected arrays for {', '.join(names)}: that many in a tuple, or a dict of them")
            source = dict(zip(names, given))
        if isinstance(source, Dataset):
            arrays = [_renumber_classes(source, self._by_column(source, part), part, classes) for part in parts]
            return Dataset(names, tuple(arrays), classes=classes)
        given = arrays_named(source, names)
        for name, value in given.items():
            if self.form == "table" and is_table(value):
                _require_only(name, column_names(value), self._columns)
        dataset = Dataset(names, tuple(given.values()))
        return Dataset(names, tuple([self._by_column(dataset, part) for part in parts]))

    def _by_column(self, source: Dataset, part: ArgumentData) -> Array:
        """Return a dataset's array for an argument, with its columns in the run's order if they have names."""
        array = source[part.argument]
        at = source.names.index(part.argument)
        named = self.form == "table" and not part.label and source.columns and array.ndim == 2
        if not named or source.columns[at] == part.columns:
            return array
        require_columns(source.origins[at], source.columns[at], part.columns)
        if part.categories:
            raise UsageError(
                f"{source.origins[at]}: its columns hold numbers, but the training data had names in some; give the "
                "file, or the whole frame"
            )
        return array[:, [source.columns[at].index(column) for column in part.columns]]

    def files(self, source: Source) -> tuple[str, ...] | None:
        """Return the file of each row, by its path in the folder, for a folder of images or one image; else None."""
        if not isinstance(source, (str, os.PathLike)) or not self._is_of_images(source):
            return None
        return image_names(source)

    def _is_of_images(self, source: str | os.PathLike[str]) -> bool:
        return self.form == "images" and (Path(source).is_dir() or Path(source).suffix.lower() in SUFFIXES)

    def _of_images(self, path: str | os.PathLike[str], parts: Sequence[ArgumentData]) -> Dataset:
        """Read images and, if requested, their classes."""
        channels, height, width = next(part.shape for part in self.parts if not part.label)
        size = (height, width) if self.resized else None
        labelled = any(part.label for part in parts)
        found = read_image_data(path, size=size, channels=channels, labelled=labelled, classes=self.classes)
        arrays = [found["y" if part.label else "x"] for part in parts]
        return Dataset(tuple(part.argument for part in parts), tuple(arrays), classes=self.classes)

    def to_document(self) -> dict[str, Any]:
        """Return plain data, for JSON, that `of` reads."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def of(cls, document: Document) -> Preparation:
        """Read the data of `to_document`. Raises UsageError."""
        if document["format"].count() != FORMAT:
            raise document["format"].expected(f"format {FORMAT}, that of this version of opstage")
        parts = []
        for each in document["parts"].elements():
            scaling = each.get("scaling")
            parts.append(
                ArgumentData(
                    each["argument"].text(),
                    tuple(column.text() for column in each["columns"].elements()),
                    _choice(each["kind"], get_args(Kind)),
                    tuple(size.count() for size in each["shape"].elements()),
                    _flag(each["image"]),
                    _flag(each["label"]),
                    None if scaling is None else Scaling.of_document(scaling),
                    _categories(each),
                    (one_hot := each.get("one_hot")) is not None and _flag(one_hot),
                )
            )
        classes = document.get("classes")
        names = None if classes is None else tuple(name.text() for name in classes.elements())
        if names is not None and (not names or len(set(names)) != len(names)):
            raise document["classes"].expected("names of classes that differ")
        if not parts or len({part.argument for part in parts}) != len(parts):
            raise document["parts"].expected("parts of arguments that differ")
        form = _choice(document["form"], get_args(Form))
        if form == "images" and any(len(part.shape) != 3 for part in parts if not part.label):
            raise document["parts"].expected("images of (channels, height, width)")
        return cls(form, tuple(parts), names, _flag(document["resized"]))


def learn(
    dataset: Dataset, made: Mapping[str, ArgumentData], specs: Mapping[str, Spec], labels: Sequence[str], form: Form
) -> Preparation:
    """Return the preparation of data with arrays named like the arguments; without scaling yet, see `scaled`.

    made      argument -> its source: columns with their categories, or the name of an array
    labels    the arguments to be predicted
    """
    parts = []
    for name, spec in specs.items():
        array, kind = dataset[name], number_kind(spec)
        shape = fit_shape(array[:1], spec.entries).shape[1:]
        label = name in labels
        # bytes to be predicted are counts and ratings, unless they form images
        image = kind == "float" and array.dtype == np.uint8 and (not label or len(shape) > 1)
        parts.append(replace(made[name], kind=kind, shape=shape, image=image, label=label))
    return Preparation(form, tuple(parts), dataset.classes)


def from_table(
    path: str | os.PathLike[str],
    parts: Sequence[ArgumentData],
    classes: Sequence[str] | None,
    table: DataTable | Mapping[str, Any] | None = None,
    *,
    new: bool = True,
) -> Dataset:
    """Return the columns of `parts` as arrays by argument: (rows,) for a label of one column, else (rows, columns).

    `table` is the content of the file, if already read, or columns by name. `new` says whether these are new data for a
    run that was trained with `classes`.
    """
    wanted = [column for part in parts for column in part.columns]
    may_name: dict[str, Named] = {column: "class" for part in parts if part.label for column in part.columns}
    for part in parts:
        may_name |= {column: "category" for column, names in zip(part.columns, part.categories) if names}
    if not isinstance(table, DataTable):
        read: Callable[..., DataTable] = read_table if table is None else partial(columns_table, columns=table)
        table = read(path, choose=lambda _: (wanted, may_name))
    arrays, origins = [], []
    for part in parts:
        if part.label and len(part.columns) == 1:
            numbers, names_found = numbered(table, part.columns[0], classes)
            if names_found is not None and classes is None and new:
                raise UsageError(
                    f"{path}: column {part.columns[0]} holds names, but the training data had numbers for labels"
                )
            arrays.append(numbers)
        else:
            arrays.append(encode(table, part.columns, part.categories, one_hot=part.one_hot))
        origins.append(f"{path}: {shown(part.columns)}")
    names = tuple(part.argument for part in parts)
    labels = None if classes is None else tuple(classes)
    return Dataset(names, tuple(arrays), tuple(origins), classes=labels)


def _renumber_classes(source: Dataset, array: Array, part: ArgumentData, classes: tuple[str, ...] | None) -> Array:
    """Return the labels of a dataset as numbers of the run's own classes. Raises UsageError for an unknown class."""
    numbered_label = part.label and part.kind == "int"
    if not numbered_label or (source.classes is None and classes is None) or source.classes == classes:
        return array
    if source.classes is None or classes is None:
        has = "numbers for labels" if source.classes is None else f"the classes {shown(source.classes)}"
        own = "numbers" if classes is None else f"the classes {shown(classes)}"
        raise UsageError(f"the dataset has {has}, but the training data had {own}, which may differ")
    for name in source.classes:
        if name not in classes:
            raise UsageError(
                f"the dataset has a class {name!r}{nearest(name, classes)}, which the training data lacked; they had "
                f"{shown(classes)}"
            )
    return np.array([classes.index(name) for name in source.classes], np.int64)[array]


def _of_file(
    path: str | os.PathLike[str], parts: Sequence[ArgumentData], form: Form, classes: tuple[str, ...] | None
) -> Dataset:
    found = read_arrays(path, [part.argument if form == "table" else part.columns[0] for part in parts])
    arrays = [_renumber_classes(found, array, part, classes) for array, part in zip(found.arrays, parts)]
    return Dataset(tuple(part.argument for part in parts), tuple(arrays), found.origins, classes=classes)


def _require_only(origin: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise UsageError for a column of a frame that the data trained on did not have."""
    extra = next((name for name in given if name not in known), None)
    if extra is not None:
        raise UsageError(
            f"{origin}: has a column {extra!r}{nearest(extra, known)}, which the training data lacked; drop it. They "
            f"had {shown(known)}"
        )


def _is_table(source: Mapping[str, Any], parts: Sequence[ArgumentData]) -> bool:
    """Return whether a dict holds columns, and not arrays for the arguments."""
    columns = [column for part in parts for column in part.columns]
    return any(column in source for column in columns) and not all(part.argument in source for part in parts)


def arrays_named(source: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the arrays with these names. Raises UsageError, with the nearest name, for a missing one."""
    for name in names:
        if name not in source:
            raise UsageError(f"array {name!r} is missing{nearest(name, source)}; expected {shown(list(source))}")
    return {name: source[name] for name in names}


def _each_prepared(array: Array, part: ArgumentData, origin: str) -> Any:
    """Return all rows, prepared. Rows of a memory-mapped array are checked now, and prepared again when used."""
    if not is_mapped(array):
        return _prepared(array, part, origin)
    if part.label:
        return _prepared(np.asarray(array), part, origin)
    for start, rows in pieces(array):
        _prepared(rows, part, origin, start)
    return row_view(array).then(lambda rows: _prepared(rows, part, origin))


def _prepared(array: Array, part: ArgumentData, origin: str, start: int = 0) -> Array:
    if part.scaling is not None and array.dtype.kind in "iu":
        array = cast(array, "float", image=False, origin=origin, start=start)
    elif array.dtype == np.uint8 and part.kind == "float" and not part.image and not part.label:
        raise UsageError(
            f"{origin}: holds bytes (uint8), but the training data had other numbers; give floats in the same units"
        )
    array = fit_shape(cast(array, part.kind, image=part.image, origin=origin, start=start), (None, *part.shape))
    if array.shape[1:] != part.shape:
        raise UsageError(
            f"{origin}: has rows of shape {array.shape[1:]}; expected {part.shape}, as in the training data"
        )
    return array if part.scaling is None else part.scaling.apply(array)


def _categories(part: Document) -> Categories:
    columns = part.get("categories")
    if columns is None:
        return ()
    found = tuple(tuple(name.text() for name in column.elements()) for column in columns.elements())
    if any(len(set(names)) != len(names) for names in found) or len(found) not in (0, len(part["columns"].elements())):
        raise columns.expected("for each column names that differ")
    return found


def _choice(document: Document, choices: Sequence[Any]) -> Any:
    if document.text() not in choices:
        raise document.expected(" or ".join(choices))
    return document.value


def _flag(document: Document) -> bool:
    if not isinstance(document.value, bool):
        raise document.expected("true or false")
    return document.value


# A few rows -----------------------------------------------------------------------------------------------------------

_MOST = 1 << 16
"""The largest array, in bytes, for which the overhead of a call matters."""


@final
class FewRows:
    """Prepares inputs like `Preparation.inputs`, with the same bits, if they are a few rows of finite floats."""

    def __init__(self, preparation: Preparation, names: Sequence[str]):
        parts = [part for name in names for part in preparation.parts if part.argument == name]
        plain = len(parts) == len(names) and all(map(_is_plain, parts))
        self._parts: list[tuple[tuple[int, ...], Any]] = []
        if plain:
            scalings = [part.scaling and part.scaling.numbers(1 + len(part.shape)) for part in parts]
            self._parts = [(part.shape, scaling) for part, scaling in zip(parts, scalings)]

    def __call__(self, inputs: Sequence[Any]) -> list[Array] | None:
        """Return the prepared arrays; None if the inputs need the general path: other types or shapes, or errors."""
        if len(inputs) != len(self._parts):
            return None
        made = []
        for x, (shape, scaling) in zip(inputs, self._parts):
            if type(x) is list:
                x = lists_as_arrays(x)
            if type(x) is not np.ndarray or x.dtype.char not in "df" or x.shape[1:] != shape or x.ndim == 0:
                return None
            if not 0 < x.nbytes <= _MOST or not math.isfinite(np.vdot(x, x)):  # that is not finite if one of x is not
                return None
            x = x.astype(x.dtype.newbyteorder("="), copy=False)
            made.append(x if scaling is None else (x - scaling[0]) / scaling[1])
        return made if made and all(len(x) == len(made[0]) for x in made) else None


def _is_plain(part: ArgumentData) -> bool:
    return part.kind == "float" and not part.image and not part.categories and not part.label
