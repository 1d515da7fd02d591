"""A call's results and the gradients of its float operands, on any interpreter that executes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optree

from opstage.interpreters.derivatives import vjp
from opstage.interpreters.interpreter import BaseInterpreter
from opstage.ops.trees import flatten, unflatten
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


def evaluate(
    base: BaseInterpreter[Any], call: Callable[..., Any], args: tuple[Any, ...], cotangents: list[Any] | None
) -> Outcome:
    """`call(ops, *args)`, and the pullback of `cotangents`, one for each result, None for one that is not a float.

    With None for them all, no gradient is taken.
    """
    given = [c for c in cotangents or [] if c is not None]
    leaves, structure = flatten((args, given))
    shapes: list[Any] = []

    def program(ops: Any, *refs: Any) -> tuple[Any, ...]:
        arguments, pulled = unflatten(structure, refs)

        def f(inner: Any, *operands: Any) -> Any:
            return optree.tree_leaves(call(inner, *operands))

        if given:
            supplied = iter(pulled)
            values, pullback = vjp(ops, f, *arguments)
            found = pullback([next(supplied) if c is not None else None for c in cotangents or []])
            outcome: Any = (values, [g for g in optree.tree_leaves(found) if g.dtype.kind == "f"])
        else:
            outcome = (f(ops, *arguments), [])
        flat, shape = flatten(outcome)
        shapes.append(shape)
        return tuple(flat)

    with np.errstate(all="ignore"):
        results = base.execute(program, tuple(base.put(leaf) for leaf in leaves))
        return Outcome(*unflatten(shapes[0], [np.asarray(base.get(r)) for r in results]))


def ones_for(values: list[Any]) -> list[Any]:
    """Cotangents near 1 that tell results apart, and their elements."""
    rng = np.random.default_rng(SEED)
    return [(0.5 + rng.random(np.shape(v))).astype(v.dtype) if is_float(v) else None for v in values]
