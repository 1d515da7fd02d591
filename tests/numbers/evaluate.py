"""A call's results and the gradients of its float operands, on any interpreter that executes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optree

from opstage.ops.trees import flatten, unflatten
from opstage.transforms.derivatives import vjp
from opstage.transforms.interpreter import BaseInterpreter
from tests.conformance.harness import is_float

SEED = 20261122


class Outcome(NamedTuple):
    """Results in order, and the gradients of the float operands in order."""

    values: list[Any]
    gradients: list[Any]

    def named(self) -> list[tuple[str, Any]]:
        """Each array with what it is."""
        named = [(f"result {i}", v) for i, v in enumerate(self.values)]
        return named + [(f"gradient {i}", v) for i, v in enumerate(self.gradients)]


class Evaluation:
    """`call(ops, *args)` as one program, and the pullback of `cotangents`, one for each result, None for one that is
    not a float; with None for them all, no gradient is taken.

    It may be asked again with other numbers of the same shapes: what an interpreter compiled it then has.
    """

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...], cotangents: list[Any] | None):
        self._given = [c for c in cotangents or [] if c is not None]
        self._results = len(cotangents or []) if self._given else None
        self._program = _program(call, (args, self._given), tuple(c is not None for c in cotangents or []))

    def on(self, base: BaseInterpreter[Any], args: tuple[Any, ...]) -> Outcome:
        leaves, _ = flatten((args, self._given))
        with np.errstate(all="ignore"):
            results = base.execute(self._program, tuple(base.put(leaf) for leaf in leaves))
            found = [np.asarray(base.get(r)) for r in results]
        return Outcome(found[: self._results], found[len(found) if self._results is None else self._results :])


def _program(call: Callable[..., Any], operands: Any, pulls: tuple[bool, ...]) -> Callable[..., tuple[Any, ...]]:
    """Results, then gradients, of flat operands; a list that it filled would be something that changes under it."""
    _, structure = flatten(operands)
    with_gradients = any(pulls)

    def program(ops: Any, *refs: Any) -> tuple[Any, ...]:
        arguments, pulled = unflatten(structure, refs)

        def f(inner: Any, *operands: Any) -> Any:
            return optree.tree_leaves(call(inner, *operands))

        if not with_gradients:
            return tuple(f(ops, *arguments))
        supplied = iter(pulled)
        values, pullback = vjp(ops, f, *arguments)
        found = pullback([next(supplied) if pull else None for pull in pulls])
        return (*values, *[g for g in optree.tree_leaves(found) if g.dtype.kind == "f"])

    return program


def evaluate(
    base: BaseInterpreter[Any], call: Callable[..., Any], args: tuple[Any, ...], cotangents: list[Any] | None
) -> Outcome:
    """An `Evaluation` that is asked once."""
    return Evaluation(call, args, cotangents).on(base, args)


def ones_for(values: list[Any]) -> list[Any]:
    """Cotangents near 1 that tell results apart, and their elements."""
    rng = np.random.default_rng(SEED)
    return [(0.5 + rng.random(np.shape(v))).astype(v.dtype) if is_float(v) else None for v in values]
