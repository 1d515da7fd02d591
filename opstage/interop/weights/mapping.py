"""`WeightMap`: maps tensors of a file to parameters, in both directions, by their names and layouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.table import Table
from rich.text import Text

from ...ops.array_conversion import as_numpy
from ...ops.errors import UsageError, nearest, printable
from ...ops.trees import flatten, paths, show_path, unflatten
from ...ops.types import show_shape

# Names ----------------------------------------------------------------------------------------------------------------
#
# A name has three meaningful parts: the *role* of the tensor in its layer (weight, bias, mean, variance), the *words*
# that identify the layer, and the *numbers* that index it.

_ROLES = {
    "weight": "weight",
    "kernel": "weight",
    "gamma": "weight",
    "bias": "bias",
    "beta": "bias",
    "running_mean": "mean",
    "mean": "mean",
    "running_var": "variance",
    "variance": "variance",
    "var": "variance",
}

# Synonyms; "" for words that do not help to identify a layer.
_SAME = {
    **dict.fromkeys(("module", "model", "transformer", "net", "self", "c", "orig", "mod", "weight", "table"), ""),
    **dict.fromkeys(("linear", "dense", "conv", "lin", "features"), ""),
    **dict.fromkeys(("h", "layers", "layer", "blocks", "block"), "block"),
    **dict.fromkeys(("attn", "attention"), "attention"),
    **dict.fromkeys(("q", "query", "wq"), "query"),
    **dict.fromkeys(("k", "key", "wk"), "key"),
    **dict.fromkeys(("v", "value", "wv"), "value"),
    **dict.fromkeys(("ln", "layernorm", "bn", "batchnorm", "groupnorm", "gn", "norms"), "norm"),
    **dict.fromkeys(("wte", "tok", "token", "tokens", "emb", "embed", "embedding", "embeddings", "bytes"), "embedding"),
    **dict.fromkeys(("wpe", "pos", "position", "positions", "positional"), "position"),
    **dict.fromkeys(("mlp", "ffn", "ff", "feedforward"), "mlp"),
    **dict.fromkeys(("head", "lm", "classifier", "logits"), "head"),
    **dict.fromkeys(("cell", "lstm", "rnn"), "cell"),
    **dict.fromkeys(("downsample", "shortcut", "projection", "skip"), "shortcut"),
}
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4}
_OUT = {"proj", "o", "out", "wo"}


class TensorName(NamedTuple):
    """A parsed tensor name; `module` is the name without the role."""

    module: str
    role: str
    words: tuple[str, ...]
    numbers: tuple[int, ...]


def read_name(name: str) -> TensorName:
    """`h.0.ln_1.bias` -> module `h.0.ln_1`, role bias, words (block, norm), numbers (0, 1).

    A name without a role, such as `positions`, is all module, with role weight.
    """
    module, role = _split_role(name)
    words: list[str] = []
    numbers: list[int] = []
    for part in re.findall(r"[0-9]{1,18}|[A-Z]?[a-z]+|[A-Z]+", module):
        if part.isdigit():
            numbers.append(int(part))
            continue
        word = part.lower()
        if word in _OUT and "attention" in words:
            word = "out"
        elif "mlp" in words and word in ("up", "fc", "down", *_OUT):  # the two linear layers of a transformer's MLP
            numbers.append(1 if word in ("up", "fc") else 2)
            continue
        if word in _ORDINALS:
            numbers.append(_ORDINALS[word])
        elif _SAME.get(word, word) and _SAME.get(word, word) not in words:
            words.append(_SAME.get(word, word))
    return TensorName(module, role, tuple(words), tuple(numbers))


def likeness(a: TensorName, b: TensorName) -> float:
    """Return the similarity of the words, from 0 to 1 (Dice's coefficient)."""
    if not a.words and not b.words:
        return 0.5
    return 2 * len(set(a.words) & set(b.words)) / (len(a.words) + len(b.words))


def pytorch_name(path: str) -> str:
    """Return the name in PyTorch's layers: `blocks.0.norm.gamma` -> `blocks.0.norm.weight`."""
    head, _, last = path.rpartition(".")
    theirs = {"kernel": "weight", "gamma": "weight", "beta": "bias", "mean": "running_mean", "variance": "running_var"}
    return f"{head}.{theirs.get(last, last)}" if head else theirs.get(last, last)


def _split_role(name: str) -> tuple[str, str]:
    head, _, last = name.rpartition(".")
    if last in _ROLES:
        return head, _ROLES[last]
    for word in ("weight", "bias"):  # in_proj_weight, and the LSTM's weight_ih_l0
        if last.endswith(f"_{word}") or last.startswith(f"{word}_"):
            rest = last.removesuffix(f"_{word}").removeprefix(f"{word}_")
            return f"{head}.{rest}" if head else rest, word
    return name, "weight"


# Names by a table of the model ----------------------------------------------------------------------------------------

_NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")
_MOST = 20


def read_named(
    declared: Any, tensors: Mapping[str, Array], names: Mapping[str, str], *, ignore: Iterable[str] = ()
) -> Any:
    """A tree like `declared` whose leaves are the tensors of the names given, as they are: nothing is copied or cast.

    names    path of a parameter -> name of its tensor; `{}` in both stands for the number of a layer:
             `{"blocks.{}.mlp.up": "model.layers.{}.mlp.up_proj.weight"}`
    ignore   what tensors that are not parameters have in their names

    Raises UsageError that lists all parameters without a name or a tensor, tensors of other shapes than their
    declarations, and tensors that nothing takes.
    """
    leaves, structure = flatten(declared)
    own = names_by_path(declared, names)
    problems = []
    for path, leaf in zip(paths(declared), leaves):
        name, expected = own[path], tuple(leaf.shape)
        if name not in tensors:
            problems.append(f"{show_path(path)}: there is no tensor {name}{nearest(name, tensors)}")
        elif tensors[name].shape != expected:
            found = show_shape(tensors[name].shape)
            problems.append(f"{show_path(path)}: expected {show_shape(expected)}, but {name} is {found}")
    ignored = tuple(ignore)
    taken = set(own.values())
    unused = [name for name in tensors if name not in taken and not any(part in name for part in ignored)]
    problems += [f"no parameter takes {name} {show_shape(tensors[name].shape)}" for name in unused]
    if problems:
        more = f"\n  … and {len(problems) - _MOST} more" if len(problems) > _MOST else ""
        raise UsageError("the weights do not fit the model:" + "".join(f"\n  {p}" for p in problems[:_MOST]) + more)
    return unflatten(structure, [tensors[own[path]] for path in paths(declared)])


def write_named(params: Any, names: Mapping[str, str]) -> dict[str, Array]:
    """Return the arrays of a tree by the given names: the inverse of `read_named`. Raises UsageError for a missing
    name."""
    own = names_by_path(params, names)
    return {own[path]: as_numpy(leaf) for path, leaf in zip(paths(params), flatten(params)[0])}


def names_by_path(tree: Any, names: Mapping[str, str]) -> dict[str, str]:
    """Return the tensor name for each path of a tree. Raises UsageError if the table lacks one, or has one for two
    paths."""
    found: dict[str, str] = {}
    for path in paths(tree):
        form = _NUMBERS.sub("{}", path)
        if form not in names:
            raise UsageError(f"{show_path(path)} has no name in the table{nearest(form, names)}")
        numbers = _NUMBERS.findall(path)
        if names[form].count("{}") != len(numbers):
            raise UsageError(f"{names[form]} must have as many {{}} as {form}, for the numbers of layers")
        found[path] = names[form].format(*numbers)
    twice = sorted(name for name in set(found.values()) if list(found.values()).count(name) > 1)
    if twice:
        raise UsageError(f"{twice[0]} is the name of two parameters")
    return found


Array = npt.NDArray[Any]


# The map --------------------------------------------------------------------------------------------------------------


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


# Recurrent cells ------------------------------------------------------------------------------------------------------


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


# Layouts of weights ---------------------------------------------------------------------------------------------------

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
