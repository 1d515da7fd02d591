"""Values for inputs that become constants of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.dims import DimExpr
from ....ops.errors import UsageError, nearest
from ....ops.trees import flatten, paths
from ....ops.types import TensorType, show_shape
from ..graph import Graph


def arrays(graph: Graph, values: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the values for inputs by input name, converted to the types of the inputs."""
    types = dict(zip(graph.input_names, graph.input_types))
    found: dict[str, npt.NDArray[Any]] = {}
    for argument, tree in values.items():
        for path, leaf in zip(paths(tree), flatten(tree)[0]):
            name = f"{argument}.{path}" if path else argument
            if name not in types:
                raise UsageError(f"no input is called {name!r}{nearest(name, types)}; there are {', '.join(types)}")
            found[name] = _array(name, leaf, types[name])
    _require_one_size(found, types)
    return found


def _require_one_size(found: Mapping[str, npt.NDArray[Any]], types: Mapping[str, TensorType]) -> None:
    """Raise UsageError if the values assign two numbers to one symbolic size."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, array in found.items():
        for n, d in zip(array.shape, types[name].shape):
            if isinstance(d, DimExpr):
                known, first = sizes.setdefault(str(d), (n, name))
                if known != n:
                    raise UsageError(
                        f"the size {d} is {known} in the value given for {first} but {n} in that for {name}"
                    )


def _array(name: str, leaf: Any, type_: TensorType) -> npt.NDArray[Any]:
    array = np.asarray(leaf)
    if type_.dtype.kind == "f" and array.dtype.kind == "f":
        array = array.astype(type_.dtype, copy=False)
    fits = len(array.shape) == len(type_.shape) and all(
        isinstance(d, DimExpr) or n == d for n, d in zip(array.shape, type_.shape)
    )
    if array.dtype != type_.dtype or not fits:
        raise UsageError(
            f"the value given for {name} is {show_shape(array.shape)} {array.dtype} but the input is {type_}"
        )
    return array
