"""Tensor names of other libraries, parsed into a form that can be compared.

A name has three meaningful parts: the *role* of the tensor in its layer (weight, bias, mean, variance), the *words*
that identify the layer, and the *numbers* that index it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...ops.arrays import as_numpy
from ...ops.errors import UsageError, nearest
from ...ops.trees import flatten, paths, show_path, unflatten
from ...ops.types import show_shape
from .mapping import Array

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


# Names by a table of the model ---------------------------------------------------------------------------------------

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
