"""The calls of derived functions in the API's examples, as samples that wrong calls are made of."""

from __future__ import annotations

import inspect
import re
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import optree

from opstage import derived
from opstage.training.session_tape import SessionRef
from tests.docs.session import EXAMPLES, answered, read
from tests.samples.sample import Sample

ODD = (99, -99, 1.5, "nonsense")
"""Static arguments that few functions take."""

_OF_TENSORS = re.compile(r"\bR\b|Callable|Activation|tuple\[Any")
"""Annotations of arguments that hold tensors or functions, left out in the examples."""


@cache
def derived_samples() -> dict[str, Sample]:
    """By name the first call of each function in its own example."""
    found: dict[str, Sample] = {}
    for qualified, lines in read(EXAMPLES / "derived.txt"):
        name = qualified.rpartition(".")[2]
        calls: list[Sample] = []
        answered(lines, derived=_recording(name, calls))
        found[f"derived.{name}"] = calls[0]
    return found


def _recording(name: str, calls: list[Sample]) -> Any:
    """The module of derived functions, of which one also notes how it is called."""
    function = getattr(derived, name)

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        calls.append(_sample(name, function, inspect.signature(function).bind(*arguments, **keywords)))
        return function(*arguments, **keywords)

    return SimpleNamespace(**{**vars(derived), name: recorded})


def _sample(name: str, function: Any, bound: inspect.BoundArguments) -> Sample:
    """Arguments that hold tensors as operands, all others as static arguments, by name."""
    given = {key: value for key, value in bound.arguments.items() if key != "ops"}
    leaves, structure = optree.tree_flatten(given, none_is_leaf=True)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, SessionRef)]
    arrays = tuple(np.array(leaves[i].value) for i in places)
    holding = optree.tree_unflatten(structure, [isinstance(leaf, SessionRef) for leaf in leaves])
    parameters = inspect.signature(function).parameters
    static = {
        key: given.get(key, parameter.default)
        for key, parameter in parameters.items()
        if (key in given and not any(optree.tree_leaves(holding[key], none_is_leaf=True)))
        or (key not in given and parameter.kind is parameter.KEYWORD_ONLY)
        if not _OF_TENSORS.search(parameter.annotation)
    }

    def call(ops: Any, *refs: Any, **static: Any) -> Any:
        filled = [*leaves]
        for place, ref in zip(places, refs, strict=True):
            filled[place] = ref
        arguments = {**optree.tree_unflatten(structure, filled), **static}
        again = inspect.BoundArguments(bound.signature, {"ops": ops, **arguments})  # type: ignore[arg-type]
        return function(*again.args, **again.kwargs)

    return Sample(name, "example", lambda _: arrays, None, static, call=call)
