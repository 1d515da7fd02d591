"""Parameters by another library's names, by a table in the model that works in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...ops.arrays import as_numpy
from ...ops.errors import UsageError, nearest
from ...ops.trees import flatten, paths, show_path, unflatten
from ...ops.types import show_shape
from .mapping import Array

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
