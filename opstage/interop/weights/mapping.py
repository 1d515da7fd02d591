"""`WeightMap`: maps tensors of a file to parameters, in both directions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table
from rich.text import Text

from ...ops.arrays import as_numpy
from ...ops.errors import UsageError
from ...ops.trees import show_path
from ...ops.types import show_shape
from ...ops.untrusted import printable

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Source:
    """A tensor of a file, or the `part`-th of the `parts` that it is cut into along `axis`, converted to our layout.

    `plus` names another tensor of the same shape that is added; `write` stores the value in the first and 0 in the
    other. `axes` permutes the part, unless None. Then it is reshaped to the parameter's shape, which only adds or drops
    axes of size 1.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...] | None = None
    part: int = 0
    parts: int = 1
    axis: int = 0
    plus: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that it reads."""
        return (self.name, self.plus) if self.plus else (self.name,)

    def read(self, tensors: Mapping[str, Array], shape: tuple[int, ...]) -> Array:
        """Return the parameter's value."""
        piece = self._piece(tensors[self.name])
        if self.plus:
            piece = piece + self._piece(tensors[self.plus])
        return np.ascontiguousarray(piece if self.axes is None else piece.transpose(self.axes)).reshape(shape)

    def write(self, tensors: Mapping[str, Array], value: Array) -> None:
        """Store the parameter's value where `read` finds it."""
        place = self._piece(tensors[self.name])
        if self.plus:
            self._piece(tensors[self.plus])[...] = 0
        axes = tuple(range(place.ndim)) if self.axes is None else self.axes
        permuted = value.reshape(tuple(place.shape[axis] for axis in axes))
        place[...] = permuted.transpose(np.argsort(axes))

    def _piece(self, whole: Array) -> Array:
        """Return a view of the part that the parameter uses."""
        return whole if self.parts == 1 else np.split(whole, self.parts, axis=self.axis)[self.part]

    def __str__(self) -> str:
        how = [f"part {self.part + 1} of {self.parts}"] if self.parts > 1 else []
        if self.axes is not None:
            how.append("transposed" if len(self.axes) == 2 else f"axes {self.axes}")
        name = " + ".join(self.names)
        return f"{name} ({', '.join(how)})" if how else name


@dataclass(frozen=True)
class MappedParameter:
    """One parameter: its source and the reason for the match, or the error that it has none."""

    path: str
    shape: tuple[int, ...]
    source: Source | None
    why: str


@dataclass(frozen=True)
class WeightMap:
    """A proposal for every parameter, and the unused tensors."""

    rows: Sequence[MappedParameter]
    unused: Sequence[str] = ()

    @property
    def errors(self) -> list[str]:
        """The reasons why the map cannot be applied, one per line."""
        missing = [f"{show_path(row.path)} {show_shape(row.shape)}: {row.why}" for row in self.rows if not row.source]
        return missing + [f"{name}: no parameter takes it" for name in self.unused]

    def require_complete(self, what: str) -> None:
        """Raise a UsageError that lists the errors, if there are any."""
        if self.errors:
            raise UsageError(
                f"{what} does not fit the model:"
                + "".join(f"\n  {error}" for error in self.errors)
                + "\nname a tensor with --map PATH=NAME (NAME:T transposes it), or --map -=NAME to leave one out"
            )

    def read(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Return the parameters by path, read from a file's tensors."""
        return {row.path: row.source.read(tensors, row.shape) for row in self.rows if row.source is not None}

    def write(self, values: Mapping[str, Array], like: Mapping[str, Array]) -> dict[str, Array]:
        """Return the tensors of a file like `like` that hold these parameters: the inverse of `read`."""
        tensors = {name: np.array(as_numpy(array)) for name, array in like.items()}
        for row in self.rows:
            if row.source is not None:
                row.source.write(tensors, values[row.path])
        return tensors

    def table(self) -> Table:
        """Return the proposal as a table for a terminal."""
        table = Table("parameter", "shape", "tensor", "its shape", "why")
        for row in self.rows:
            theirs = ("—", "") if row.source is None else (str(row.source), show_shape(row.source.shape))
            style = "red" if row.source is None else None
            cells = (show_path(row.path), show_shape(row.shape), *theirs, row.why)
            table.add_row(*map(_cell, cells), style=style)
        for name in self.unused:
            table.add_row("—", "", _cell(name), "", "no parameter takes it", style="red")
        return table


def _cell(text: str) -> Text:
    """Return a text with names from a file, without markup or terminal control codes."""
    return Text(printable(text))


# Recurrent cells -----------------------------------------------------------------------------------------------------


_SIDES = {"ih": "input", "hh": "recurrent"}
_MODULE = re.compile(r"(.*?)\.?\b(ih|hh)((?:_l\d+)?(?:_reverse)?)")


def cell_and_side(module: str) -> tuple[str, str] | None:
    """`lstm.hh_l0`, from `lstm.weight_hh_l0`, -> (`lstm_l0`, `recurrent`); None if it is not part of a cell."""
    match = _MODULE.fullmatch(module)
    return None if match is None else (match[1] + match[3], _SIDES[match[2]])


def pytorch_cells(values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the values with each cell (`input`, `recurrent`, `bias`) as `torch.nn.LSTM` stores it; its second bias is
    0."""
    found: dict[str, Array] = {}
    for path, array in values.items():
        prefix, last = _split(path)
        if not _is_cell(values, prefix):
            found[path] = array
        elif last == "bias":
            found[f"{prefix}bias_ih_l0"], found[f"{prefix}bias_hh_l0"] = array, np.zeros_like(array)
        elif last in _SIDES.values():
            found[f"{prefix}weight_{'ih' if last == 'input' else 'hh'}_l0"] = array
        else:
            found[path] = array
    return found


def _split(path: str) -> tuple[str, str]:
    head, dot, last = path.rpartition(".")
    return head + dot, last


def _is_cell(values: Mapping[str, Array], prefix: str) -> bool:
    parts = [values.get(f"{prefix}{name}") for name in ("input", "recurrent", "bias")]
    rows = {part.shape[0] if part is not None and part.ndim else None for part in parts}
    return len(rows) == 1 and None not in rows


# Layouts of weights --------------------------------------------------------------------------------------------------

Shapes = Mapping[str, tuple[int, ...]]


class WeightLayout(Enum):
    """SAME: (out, in, …), PyTorch's; TRANSPOSED: (in, out); CHANNELS_LAST: (…, in, out), Flax's convolutions."""

    SAME = "same"
    TRANSPOSED = "transposed"
    CHANNELS_LAST = "channels last"

    def axes(self, rank: int) -> tuple[int, ...] | None:
        """Return the permutation from this layout to ours, or None if it is the identity."""
        if self is WeightLayout.TRANSPOSED:
            return (1, 0)
        if self is WeightLayout.CHANNELS_LAST:
            return (rank - 1, rank - 2, *range(rank - 2))
        return None


def square(weight: tuple[int, ...]) -> bool:
    """Whether a weight is square, so that its shape does not reveal its layout."""
    return len(weight) == 2 and weight[0] == weight[1]


def layouts(ours: Shapes, theirs: Shapes) -> list[WeightLayout]:
    """Return the layouts in which their layer can be ours, the most likely first; none if shapes do not match."""
    for role, shape in ours.items():
        if role != "weight" and role in theirs and theirs[role] != shape:
            return []
    if "weight" not in ours:
        return [WeightLayout.SAME] if set(ours) <= set(theirs) else []
    if "weight" not in theirs:
        return []
    mine, other = ours["weight"], theirs["weight"]
    found = []
    if [n for n in mine if n != 1] == [n for n in other if n != 1]:
        found.append(WeightLayout.SAME)
    if len(other) == 2 and mine == other[::-1]:
        found.append(WeightLayout.TRANSPOSED)
    if len(other) > 2 and mine == (other[-1], other[-2], *other[:-2]) and mine != other:
        found.append(WeightLayout.CHANNELS_LAST)
    return found
