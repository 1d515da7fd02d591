"""`DataTable`: columns of a file, each with numbers or names; exact casts to the types of a model's Specs, and
columns assigned to arguments."""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..config import spelled
from ..files import Document
from ..ops.array_conversion import as_numpy, get_columns, is_table
from ..ops.errors import UsageError, a_type, brief, nearest, shown
from ..ops.spec import Spec
from ..ops.static_arguments import plain
from ..ops.tracebacks import called_by_users
from ..ops.types import as_dtype, is_float
from .dataset import Dataset

# Casts ----------------------------------------------------------------------------------------------------------------

Array: TypeAlias = "npt.NDArray[Any]"
Kind: TypeAlias = Literal["float", "int", "bool"]
ScaleName: TypeAlias = Literal["none", "standard", "minmax"]

_EXACT = 2**53


def number_kind(spec: Spec) -> Kind:
    """Return the kind of numbers that a Spec declares."""
    dtype = as_dtype(spec.dtype or "float32")
    return "float" if is_float(dtype) else "bool" if dtype == np.bool_ else "int"


def cast(array: Array, kind: Kind, *, image: bool, origin: str, start: int = 0) -> Array:
    """Cast the array to a kind of numbers. Raises UsageError, with the row, if that would lose information.

    float   integers become float64, exactly, so they must be within 2**53, and booleans 0 and 1.
            With `image`, bytes (uint8, or integers from 0 to 255) become float32, x/255; floats must be in 0 … 1.
    int     floats must be whole, and become int64, as booleans do.
    bool    numbers must be 0 and 1.

    `start` is the number of the array's first row.
    """

    def require(good: Array, expected: str) -> None:
        if not good.all():
            place = tuple(np.argwhere(~good)[0])
            holds = f"row {start + place[0]} holds {array[place]} (rows are counted from 0)"
            raise UsageError(f"{origin}: {holds}; expected {expected}")

    if kind != "bool" and array.dtype.kind == "b":
        return array.astype(np.float64 if kind == "float" else np.int64)
    if kind == "bool" and array.dtype.kind != "b":
        require((array == 0) | (array == 1), "0 or 1, for false and true")
        return array.astype(np.bool_)
    if kind == "float" and array.dtype.kind in "iu":
        if image:
            require((array >= 0) & (array <= 255), "a byte, 0 … 255, as in the training data")
            return array.astype(np.float32) / np.float32(255)
        exact = (array <= _EXACT) & (array >= -_EXACT)
        require(exact, "an integer that a float holds exactly, none beyond 2**53")
        return array.astype(np.float64)
    if kind == "float" and image and array.dtype.kind == "f":
        require((array >= 0) & (array <= 1), "a number from 0 to 1: the training data were bytes over 255")
    if kind == "int" and array.dtype.kind == "f":
        require((array == np.floor(array)) & (np.abs(array) <= _EXACT), "a whole number")
        return array.astype(np.int64)
    return array


@final
@dataclass(frozen=True)
class Scaling:
    """The map (x - center)/width, per column of a table, or for an array of more axes with one pair of numbers."""

    center: tuple[float, ...]
    width: tuple[float, ...]

    @classmethod
    def of(cls, name: ScaleName, array: Array, *, fixed: Sequence[int] = ()) -> Scaling | None:
        """Return the scaling of an array with one row per example. A constant column is shifted to 0, and columns at
        positions in `fixed` are unchanged.

        standard   mean and standard deviation (over n, not n - 1)
        minmax     the minimum, and the maximum minus it: 0 … 1
        """
        if name == "none":
            return None
        x = (array[:, np.newaxis] if array.ndim == 1 else array if array.ndim == 2 else array.reshape(-1, 1)).astype(
            np.float64
        )
        center, width = (x.mean(0), x.std(0)) if name == "standard" else (x.min(0), np.ptp(x, axis=0))
        level = np.ptp(x, axis=0) == 0
        center, width = np.where(level, x[0], center), np.where(level, 1.0, width)
        center[list(fixed)], width[list(fixed)] = 0.0, 1.0
        if not (np.isfinite(center).all() and np.isfinite(width).all() and (width > 0).all()):
            raise UsageError(f"data.scale={name}: the numbers are too large or too small to be scaled")
        return cls(tuple(center.tolist()), tuple(width.tolist()))

    def apply(self, x: Any) -> Any:
        """Scale x, an array (as float64) or a ref."""
        center, width = self.numbers(len(x.shape))
        return (x - center) / width

    def undo(self, array: Array) -> Array:
        """Return the original array, up to rounding."""
        center, width = self.numbers(array.ndim)
        found: Array = array * width + center
        return found

    def numbers(self, rank: int) -> tuple[Any, Any]:
        """Return center and width in the form for a tensor of this rank."""
        if rank == 1 or len(self.center) == 1:
            return self.center[0], self.width[0]
        return np.array(self.center), np.array(self.width)

    @classmethod
    def of_document(cls, document: Document) -> Scaling:
        """Read a scaling from its fields. Raises UsageError."""
        parts = [tuple(each.number() for each in document[name].elements()) for name in ("center", "width")]
        if not parts[0] or len(parts[0]) != len(parts[1]) or not all(np.isfinite(parts).ravel()) or min(parts[1]) <= 0:
            raise document.expected("as many finite centers as widths above 0")
        return cls(*parts)


def fit_shape(array: Array, shape: Sequence[Any]) -> Array:
    """Return the array with rows of a Spec's shape if that only adds or drops an axis of size 1: (n,) and (n, 1)."""
    row = tuple(map(str, shape[1:]))
    if array.ndim == 1 and row == ("1",):
        return array[:, np.newaxis]
    return array[:, 0] if row == () and array.ndim == 2 and array.shape[1] == 1 else array


Numbers: TypeAlias = "npt.NDArray[Any]"
Names: TypeAlias = "list[str]"

Named: TypeAlias = Literal["class", "category"]
Choice: TypeAlias = Callable[[Sequence[str]], "tuple[Sequence[str], Mapping[str, Named]]"]
"""Maps the names of a file's columns to (those to read, those of them that may hold names, and of what)."""

TABLES = (".csv", ".tsv", ".parquet")
PLURAL: dict[Named, str] = {"class": "classes", "category": "categories"}
_LABELS = ("y", "label", "labels", "target", "targets", "class", "classes")


@final
@dataclass(frozen=True, eq=False)
class DataTable:
    """Columns read from a file.

    path     the file, or what else holds the columns, for errors
    columns  by name, in the requested order: finite numbers in an array, or texts in a list
    place    row -> its place in the file: `row at line 3`
    """

    path: str
    columns: dict[str, Numbers | Names]
    place: Callable[[int], str]

    def numbers(self, name: str) -> Numbers:
        """Return a column of numbers. Raises UsageError for one of names."""
        values = self.columns[name]
        if isinstance(values, list):
            raise UsageError(
                f"{self.path}: {self.place(0)}: column {name} is {brief(values[0])}; expected a finite number"
            )
        return values


def numbered(
    table: DataTable, name: str, classes: Sequence[str] | None = None, what: Named = "class"
) -> tuple[Numbers, tuple[str, ...] | None]:
    """Return a label column as (its numbers, None), or (class numbers, class names).

    Names are numbered in sorted order, or in the order of `classes`, which requires a column of names. Whole numbers
    become int64. Raises UsageError, with the row, for a name that is not in `classes`.
    """
    values = table.columns[name]
    if not isinstance(values, list):
        if classes is not None:
            values = table.numbers(name)
            raise UsageError(
                f"{table.path}: column {name} holds numbers; expected the names of {PLURAL[what]}: {shown(classes)}"
            )
        return as_labels(values), None
    found = tuple(sorted(set(values))) if classes is None else tuple(classes)
    numbers = {text: i for i, text in enumerate(found)}
    for row, text in enumerate(values):
        if text not in numbers:
            raise UsageError(
                f"{table.path}: {table.place(row)}: column {name} is {brief(text)}, which is not a {what} of the "
                f"training data{nearest(text, found)}; these are {shown(found)}"
            )
    return np.array([numbers[text] for text in values], np.int64), found


def with_label(
    path: str | os.PathLike[str], read: Callable[[Choice], DataTable], label: str | int | None, header: bool = True
) -> Dataset:
    """Return x and y of a file that `read` reads: y is the column `label`, see `label_position`, and x all others."""
    chosen: list[str] = []

    def choose(names: Sequence[str]) -> tuple[Sequence[str], dict[str, Named]]:
        chosen.append(names[label_position(path, names, label, header)])
        return names, {chosen[0]: "class"}

    table = read(choose)
    (column,) = chosen
    y, classes = numbered(table, column)
    inputs = tuple(name for name in table.columns if name != column)
    x = stack_columns(table, inputs)
    origins = f"{path}: all columns but {column}", f"{path}: column {column}"
    return Dataset(("x", "y"), (x, y), origins, classes=classes, columns=(inputs, (column,)) if header else ())


@called_by_users
def from_frame(frame: Any, *, label: str | int | None = None) -> Dataset:
    """Return x and y of a data frame of pandas, polars or pyarrow, or of a structured array: y is the column `label`,
    and x all others; see `from_csv`.

    Raises:
        UsageError: no such column; a column other than the label that does not hold finite numbers alone.
    """
    if not is_table(frame):
        raise UsageError(f"from_frame takes a data frame, not {a_type(frame)}")
    columns = get_columns(frame)
    return with_label("the frame", lambda choose: columns_table("the frame", columns, choose), label)


def columns_table(
    path: str | os.PathLike[str], columns: Mapping[str, Any], choose: Choice, hint: str = ""
) -> DataTable:
    """Return the columns that `choose` selects as a table. `hint` ends the error about a name in a column of numbers.

    Raises UsageError, with column and row, for what is neither numbers nor, if the choice allows them, names, for a
    missing entry, and for a number that is not finite.
    """
    names = list(columns)
    wanted, may_name = choose(names)
    require_columns(path, names, wanted)
    found = {name: _column(path, name, columns[name], may_name.get(name), hint) for name in wanted}
    lengths = {name: len(values) for name, values in found.items()}
    for name, length in lengths.items():
        if length != lengths[wanted[0]]:
            raise UsageError(f"{path}: column {name} has {length} rows, but {wanted[0]} has {lengths[wanted[0]]}")
    return DataTable(str(path), found, lambda row: f"row {row}")


def _column(path: str | os.PathLike[str], name: str, values: Any, what: Named | None, hint: str) -> Numbers | Names:
    expected = f"a finite number{hint}" if what is None else f"the name of a {what}"
    try:
        array = as_numpy(values)
    except UsageError as error:
        raise UsageError(f"{path}: column {name}: {error}") from None
    if array.ndim != 1 or array.dtype.kind not in "fiubUOT":
        raise UsageError(f"{path}: column {name} is {array.dtype} of shape {array.shape}; expected (rows,), of numbers")
    if array.dtype.kind in "fiub":
        found: Numbers | Names = array
        good = np.isfinite(array)
    else:
        found = [text.strip() if isinstance(text, str) else text for text in array.tolist()]
        good = np.array([what is not None and isinstance(text, str) and text != "" for text in found], np.bool_)
    for row in np.flatnonzero(~good)[:1]:
        is_ = "is empty" if isinstance(found[row], str) and not found[row] else f"is {brief(plain(found[row]))}"
        raise UsageError(f"{path}: row {row}: column {name} {is_}; expected {expected}")
    return found


def stack_columns(table: DataTable, names: Sequence[str]) -> Numbers:
    """Return columns of numbers as float64 (rows, columns). Raises UsageError for an integer that rounding changes."""
    columns = [cast(table.numbers(name), "float", image=False, origin=f"{table.path}: column {name}") for name in names]
    return np.stack(columns, axis=1, dtype=np.float64)


def as_labels(values: Numbers) -> Numbers:
    """Return labels as int64 if all are whole, else unchanged."""
    if values.dtype.kind != "f":
        return values if values.dtype == np.uint64 else values.astype(np.int64)
    whole = bool((values == np.floor(values)).all() and (np.abs(values) < 2.0**53).all())
    return values.astype(np.int64) if whole else values.copy()


def label_position(path: str | os.PathLike[str], names: Sequence[str], label: str | int | None, header: bool) -> int:
    """Return the position of the label's column, 0 <= position < columns."""
    columns = len(names)
    if columns < 2:
        has = f"one column, {brief(names[0])}" if names else "no column"
        raise UsageError(
            f"{path}: has {has}; expected the label's and at least one more. Cells are separated by commas, tabs or ';'"
        )
    if label is None:
        label = "y" if header and "y" in names else -1
        likely = [name for name in names[:-1] if is_label(name)]
        if label == -1 and likely and not is_label(names[-1]):
            raise UsageError(
                f"{path}: the label is ambiguous: the last column is {names[-1]}, but one is called "
                f"{likely[0]}; choose "
                f"--data.label {likely[0]} or --data.label {names[-1]}, in Python label={likely[0]!r}. By "
                "default it is the column called y"
            )
    if isinstance(label, str):
        if not header:
            raise UsageError(f"{path}: label={label!r} is a name, but header=False says that columns have none")
        if names.count(label) != 1:
            raise UsageError(f"{path}: {not_one(label, names)}; the columns are {', '.join(names)}")
        return names.index(label)
    if not isinstance(label, SupportsIndex) or isinstance(label, bool):
        raise UsageError(f"{path}: label={brief(label)}; expected a column's name or its position")
    at = operator.index(label)
    if not -columns <= at < columns:
        raise UsageError(f"{path}: label={at} is not one of its {columns} columns")
    if header and str(at) in names and names[at] != str(at):
        raise UsageError(
            f"{path}: label={at} is a position, that of {names[at]!r}, but another column is called {str(at)!r}; give "
            f"the name: label={names[at]!r} or label={str(at)!r}"
        )
    return at % columns


def is_label(name: str) -> bool:
    """Return whether a column has a usual name of labels."""
    return name.lower() in _LABELS


def require_columns(path: str | os.PathLike[str], names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise UsageError unless each of `wanted` is exactly one of a file's columns."""
    times = Counter(names)
    for name in wanted:
        if times[name] != 1:
            raise UsageError(f"{path}: {not_one(name, names)}; the columns are {shown(names)}")


def not_one(name: str, names: Sequence[str]) -> str:
    """Return the words for a name of several columns, or of none, with the nearest that there is."""
    return (
        f"two columns are called {name!r}" if name in names else f"no column is called {name!r}{nearest(name, names)}"
    )


# One-hot columns ------------------------------------------------------------------------------------------------------

CategoriesName: TypeAlias = Literal["auto", "number", "one_hot"]
Categories: TypeAlias = "tuple[tuple[str, ...], ...]"
"""For each column the names in the order of their numbers, or () for a column of numbers; () if no column has names."""

MOST_ONE_HOT = 1000
"""The most names in a column that is one-hot encoded: a column of identifiers is not categorical."""


def learn_categories(table: DataTable, columns: Sequence[str], how: CategoriesName) -> Categories:
    """Return the sorted names in each column. Raises UsageError if a one-hot column has more than `MOST_ONE_HOT`."""
    found = tuple(_sorted_names(table, column) for column in columns)
    for column, names in zip(columns, found):
        if how == "one_hot" and len(names) > MOST_ONE_HOT:
            raise UsageError(
                f"{table.path}: column {column} holds {len(names):,} different names, of which one_hot would make a "
                f"column each; at most {MOST_ONE_HOT:,}: leave it out, or number them, "
                f"{spelled({'data.categories': 'number'})}"
            )
    return found if any(found) else ()


def encode(table: DataTable, columns: Sequence[str], categories: Categories, *, one_hot: bool) -> Array:
    """Return float64 (rows, widths): the columns side by side, names as numbers or one-hot.

    Raises UsageError, with row and column, for an unknown name.
    """
    parts = []
    for column, names in zip(columns, categories or [()] * len(columns)):
        if not names:
            parts.append(stack_columns(table, [column]))
            continue
        numbers, _ = numbered(table, column, names, "category")
        parts.append(np.eye(len(names))[numbers] if one_hot else numbers[:, np.newaxis])
    return np.concatenate(parts, axis=1, dtype=np.float64)


def encoded_columns(categories: Categories, *, one_hot: bool) -> tuple[int, ...]:
    """Return the positions of `encode`'s columns that encode names."""
    widths = [len(names) if names and one_hot else 1 for names in categories]
    named = np.repeat([bool(names) for names in categories], widths)
    return tuple(np.flatnonzero(named).tolist())


def _sorted_names(table: DataTable, column: str) -> tuple[str, ...]:
    values = table.columns[column]
    return tuple(sorted(set(values))) if isinstance(values, list) else ()


# Columns assigned to arguments, as spelled in settings: `x=weight,height; kind=species` -------------------------------


REST = "*"
"""All columns that are not named elsewhere."""


def read_columns(text: str) -> dict[str, tuple[str, ...]]:
    """Parse a map from argument to columns. Raises UsageError for other text, and for a name that occurs twice."""
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(str.strip, text.split(";")):
        argument, equals, columns = (each.strip() for each in part.partition("="))
        names = tuple(name.strip() for name in columns.split(","))
        if not (equals and argument and all(names)):
            raise UsageError(
                f"columns must be ARGUMENT=COLUMN,COLUMN; ARGUMENT=…, as in 'x=weight,height; z=kind', but holds "
                f"{brief(part.strip())}"
            )
        if argument in found:
            raise UsageError(f"columns name the argument {argument!r} twice; name it once, with all its columns")
        found[argument] = names
    named = [name for names in found.values() for name in names]
    times = Counter(named)
    for name in named:
        if times[name] > 1:
            raise UsageError(f"columns name {name!r} twice; a column goes to one place of one argument")
    return found


def assign(
    path: str | os.PathLike[str],
    given: dict[str, tuple[str, ...]],
    names: Sequence[str],
    arguments: Sequence[str],
    labels: Sequence[str],
    label: str,
) -> dict[str, tuple[str, ...]]:
    """Return the columns of each argument, in the order of `arguments`, for a file with the columns `names`.

    An argument that is not in `given` gets the column of the same name; a label without one gets `label`, or the column
    of `label_position`. Raises UsageError for an unknown argument or column, and for one without columns.
    """
    for argument in given:
        if argument not in arguments:
            raise UsageError(
                f"{path}: data.columns names {argument!r}, which is not an argument of the model"
                f"{nearest(argument, arguments)}; it takes {shown(arguments)}"
            )
    found: dict[str, tuple[str, ...]] = {}
    for argument in arguments:
        if argument in given:
            found[argument] = given[argument]
        elif argument in labels and label:
            found[argument] = (label,)
        elif argument in names:
            found[argument] = (argument,)
        elif argument in labels:
            found[argument] = (names[label_position(path, names, None, True)],)
        else:
            raise UsageError(
                f"{path}: data.columns lacks columns for {argument!r}, and no column has its name; add "
                f"'; {argument}=COLUMN,…'. The columns are {shown(names)}"
            )
    taken = [name for columns in found.values() for name in columns if name != REST]
    for argument, columns in found.items():
        if REST in columns:
            at, rest = columns.index(REST), [name for name in names if name not in taken]
            if not rest:
                raise UsageError(f"{path}: data.columns gives {argument!r} the columns left over, and none is")
            found[argument] = (*columns[:at], *rest, *columns[at + 1 :])
    every = [name for columns in found.values() for name in columns]
    times = Counter(every)
    for name in every:
        if times[name] > 1:
            raise UsageError(f"{path}: column {name!r} would go to two places; assign it with data.columns")
    require_columns(path, names, every)
    return found
