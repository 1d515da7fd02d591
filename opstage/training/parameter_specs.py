"""The parameters that a program is checked with, from whatever its author has them in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from numbers import Number
from typing import Any

import numpy as np

from ..ops.errors import OpstageError, UsageError
from ..ops.spec import Spec, as_specs
from ..ops.trees import flatten, map_leaves, paths

_SUPPLIED: dict[str, Callable[[], Any]] = {
    "seed": lambda: 0,
    "key": lambda: 0,
    "rng": lambda: np.random.default_rng(0),
    "dtype": lambda: "float32",
}
"""What a function that makes parameters may ask for, by the names of its arguments."""


def parameter_specs(source: Any, name: str = "params") -> Any:
    """A pytree of Specs from `source`, called `name` in messages: a pytree of Specs, arrays, declarations or shapes, a
    module with a `state_dict()`, or a function that returns one of these.

    The function may take arguments called seed, key, rng or dtype, and others that have a default. Raises UsageError,
    with the path, for what has no shape; what the function raises passes through.
    """
    if _makes(source):
        source = source(**_arguments(source, name))
    state = getattr(source, "state_dict", None)
    tree = dict(state()) if callable(state) else source
    leaves, _ = flatten(tree)
    if not leaves:
        raise UsageError(f"{name} holds no parameters: it is {_short(source)}")
    for path, leaf in zip(paths(tree), leaves):
        try:
            if not (isinstance(leaf, (Spec, Number)) or hasattr(leaf, "shape")):
                raise TypeError
            as_specs(_plain(leaf))
        except (OpstageError, ValueError, TypeError):
            raise UsageError(
                f"{name}.{path}".removesuffix(".") + f" has no shape: it is {_short(leaf)}; expected Specs, arrays, "
                "declared parameters, or a function that returns them"
            ) from None
    return as_specs(map_leaves(_plain, tree))


def _makes(source: Any) -> bool:
    """Whether it is to be called for the parameters: a function or a class, not a module that is callable itself."""
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


def _plain(leaf: Any) -> Any:
    """A leaf that `as_specs` knows: arrays of other libraries may have dtypes that NumPy has not."""
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if isinstance(leaf, Spec) or not isinstance(shape, tuple):
        return leaf
    kind = str(dtype).rpartition(".")[2] if dtype is not None else "float32"
    if "float" in kind or kind == "object":
        return Spec(tuple(shape))
    if kind == "bool":
        return Spec(tuple(shape), "bool")
    return Spec(tuple(shape), "int32" if kind == "int32" else "int64") if "int" in kind else leaf


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
