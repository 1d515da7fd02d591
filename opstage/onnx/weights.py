"""Classify the tensors of a file as parameters, buffers and constants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..imported.exact import KERNELS
from ..operators.table import OPERATORS
from ..operators.values import KnownValue
from ..ops.errors import UsageError, nearest
from .file import Foreign
from .graph import OnnxGraph, all_nodes
from .rules import HOST_INPUTS

_MOVES = "Cast Concat Dropout Expand Gather Identity Range Reshape Slice Squeeze Transpose Unsqueeze Where"
_EXACT = {*_MOVES.split(), *[each.onnx for each in OPERATORS if each.op in KERNELS]}
"""Operators through which a value stays known before a run."""


@dataclass(frozen=True)
class Weights:
    """The tensors of a file.

    params   arrays by name, from initializers of all nested graphs
    buffers  arrays by name, such as running statistics
    known    the other values of the main graph
    inner    the names of parameters from nested graphs, by graph and name there
    """

    params: dict[str, Any]
    buffers: dict[str, Any]
    known: dict[str, Any]
    inner: Mapping[tuple[OnnxGraph, str], str]


def weights_of(main: OnnxGraph, constants: tuple[str, ...], weights: tuple[str, ...]) -> Weights:
    """Classify the tensors of a graph. Names that match `constants` or `weights`, patterns, are forced to be such.

    Raises UsageError for a pattern that matches no name.
    """
    graphs = list(main.within())
    names = [name for graph in graphs for name in graph.initializers]
    for pattern in (*constants, *weights):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"no initializer is called {pattern!r}{nearest(pattern, names)}")
    settings = _settings(main)
    statistics = {name for node in all_nodes(main) if node.op == "BatchNormalization" for name in node.inputs[3:5]}
    found = Weights({}, {}, {}, inner := {})
    for graph in graphs:
        for name, array in graph.initializers.items():
            if isinstance(array, Foreign):
                kind = "known"
            elif graph is main and array.dtype.kind == "f" and name in statistics:
                kind = "buffer"
            elif any(fnmatchcase(name, pattern) for pattern in weights):
                kind = "param"
            elif array.dtype.kind != "f" or name in settings | statistics or (array.size == 1 and not _is_named(name)):
                kind = "known"
            else:
                kind = "known" if any(fnmatchcase(name, pattern) for pattern in constants) else "param"
            if kind == "buffer":
                found.buffers[name] = _wide(array)
            elif kind == "param":
                own = name if graph is main else _free(name, {*main.initializers, *found.params})
                found.params[own] = _wide(array)
                if graph is not main:
                    inner[graph, name] = own
            elif graph is main:
                found.known[name] = array if isinstance(array, Foreign) else KnownValue(array, array.dtype)
    return found


def _settings(main: OnnxGraph) -> set[str]:
    """Return the values from which shapes, axes and the like are computed, which must be known before a run."""
    givers: dict[str, list[Any]] = {}
    waiting: list[str] = []
    for node in all_nodes(main):
        for name in node.outputs:
            givers.setdefault(name, []).append(node)
        waiting += [node.inputs[i] for i in HOST_INPUTS.get(node.op, ()) if i < len(node.inputs)]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if not name or name in found:
            continue
        found.add(name)
        for node in givers.get(name, ()):
            if node.op in _EXACT:
                waiting += node.inputs
            waiting += [output.name for graph in node.graphs for output in graph.outputs]
    return found


def _free(name: str, taken: set[str]) -> str:
    unique, i = name, 1
    while unique in taken:
        i += 1
        unique = f"{name}_{i}"
    return unique


def _wide(array: Any) -> Any:
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _is_named(name: str) -> bool:
    """Whether a name, like `head.bias`, was chosen by a person and not generated."""
    return re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", name) is not None
