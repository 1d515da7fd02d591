"""Specs for the parameters that a program is checked with, from whatever form they come in."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np

from ..ops.arrays import as_numpy
from ..ops.errors import OpstageError, UsageError
from ..ops.places import identified, is_identified
from ..ops.spec import Spec, as_specs, shapes_as_specs
from ..ops.trees import flatten, leaf, map_leaves, paths, unflatten
from .sharing import shared_arrays

_SUPPLIED: dict[str, Callable[[], Any]] = {
    "seed": lambda: 0,
    "key": lambda: 0,
    "rng": lambda: np.random.default_rng(0),
    "dtype": lambda: "float32",
}
"""The arguments that a function that creates parameters may have, by name."""


def parameter_specs(source: Any, name: str = "params") -> Any:
    """A pytree of Specs from `source`, called `name` in messages: a pytree of Specs, arrays, declarations or shapes, a
    module with a `state_dict()`, or a function that returns one of these.

    Leaves shared by several places keep their identity, so that ties can be found: a Param, a tensor that a module has
    under several names, and arrays that share memory.

    The function may have arguments called seed, key, rng or dtype, and others with a default. Raises UsageError, with
    the path, for a leaf without a shape; exceptions of the function propagate.
    """
    if _makes(source):
        source = source(**_arguments(source, name))
    state = getattr(source, "state_dict", None)
    tree = _with_tied(dict(state())) if callable(state) else source
    leaves, _ = flatten(tree)
    if not leaves:
        raise UsageError(f"{name} holds no parameters: it is {_short(source)}")
    for path, item in zip(paths(tree), leaves):
        try:
            if not (isinstance(item, (Spec, Number)) or hasattr(item, "shape")):
                raise TypeError
            as_specs(_plain(item))
        except (OpstageError, ValueError, TypeError):
            raise UsageError(
                f"{name}.{path}".removesuffix(".") + f" has no shape: it is {_short(item)}; expected Specs, arrays, "
                "declared parameters, or a function that returns them"
            ) from None
    shared = {path for pair in shared_arrays(tree) for path in pair[:2]}
    kept = [
        as_numpy(x) if path in shared and not is_identified(x) else _plain(x) for path, x in zip(paths(tree), leaves)
    ]
    return map_leaves(
        lambda x: x if is_identified(x) or isinstance(x, np.ndarray) else as_specs(x),
        shapes_as_specs(unflatten(flatten(tree)[1], kept)),
    )


@leaf
@identified
@dataclass(frozen=True, eq=False)
class _Tensor:
    """A tensor that a module has under several names."""

    shape: tuple[int, ...]
    dtype: Any


def _with_tied(state: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of a module by name, with one object for all that are the same view of the same memory."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in state.items():
        if callable(getattr(tensor, "data_ptr", None)) and math.prod(tensor.shape):
            groups.setdefault((tensor.data_ptr(), tuple(tensor.shape), tensor.stride()), []).append(name)
    for names in groups.values():
        if len(names) > 1:
            one = as_specs(_plain(state[names[0]]))
            state |= dict.fromkeys(names, _Tensor(tuple(one.shape), np.dtype(one.dtype or "float32")))
    return state


def _makes(source: Any) -> bool:
    """Whether `source` must be called to get the parameters: a function or class, but not a callable module."""
    if isinstance(source, type):
        return True
    return callable(source) and not hasattr(source, "state_dict") and not hasattr(source, "shape")


def _arguments(function: Any, name: str) -> dict[str, Any]:
    supplied = {}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    for parameter in parameters:
        if (
            parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            or parameter.default is not parameter.empty
        ):
            continue
        if parameter.name not in _SUPPLIED or parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(
                f"{name} is a function that wants an argument {parameter.name!r}; give one that returns the parameters "
                "without, or the parameters themselves"
            )
        supplied[parameter.name] = _SUPPLIED[parameter.name]()
    return supplied


def _plain(value: Any) -> Any:
    """Return the Spec of a value with a shape, unless its identity at several places matters."""
    if isinstance(value, Spec) or is_identified(value) or not isinstance(getattr(value, "shape", None), tuple):
        return value
    return as_specs(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
