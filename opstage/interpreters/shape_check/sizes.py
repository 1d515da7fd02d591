"""Substitute sizes for the named dims in a check's results."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...ops.closed import Body, Equation
from ...ops.dims import UNKNOWN, DimScope, Verdict, at_most, evaluate
from ...ops.errors import ShapeError, UsageError, nearest
from ...ops.primitive import Static
from ...ops.types import TensorType
from ..tracer import Composite
from .program import CheckedProgram
from .report import Assumption


def allowed_sizes(
    scope: DimScope, conditions: Sequence[Assumption], sizes: Mapping[str, Any], names: Sequence[str]
) -> dict[str, int]:
    """Return the sizes, one for each of `names`, as ints. Raises UsageError for a missing or unknown name, ShapeError
    if they violate a declared fact or an undecided condition."""
    for name in sizes:
        if name not in names:
            known = f"the dims are: {', '.join(names)}" if names else "the program has no named dims"
            raise UsageError(f"unknown dim {name!r}{nearest(name, names)}; {known}")
    missing = [name for name in names if name not in sizes]
    if missing:
        given = ", ".join(f"{name}={size}" for name, size in sizes.items())
        wanted = ", ".join(f"{name}=…" for name in missing)
        raise UsageError(f"no size was given for {' and '.join(missing)}: add {wanted}{given and f' to {given}'}")
    found = {name: _as_size(name, sizes[name]) for name in names}
    at = ", ".join(f"{name}={size}" for name, size in found.items())
    for name, size in found.items():
        if size < 0:
            raise ShapeError(f"{name} is {size}, but a dim is never negative")
        if size == 0 and at_most(1, scope.dim(name)) is Verdict.proved:
            raise ShapeError(f'{name} is 0, but a dim is at least 1; declare where=["{name} >= 0"]')
    for fact in scope.facts:
        if not fact.holds(found):
            raise ShapeError(f"{fact}, which was declared, does not hold at {at}")
    for condition in conditions:
        if condition.holds is not None and not condition.holds(found):
            raise ShapeError(f"{condition} does not hold at {at}")
    return found


def _as_size(name: str, size: Any) -> int:
    try:
        if not isinstance(size, bool):
            return operator.index(size)
    except TypeError:
        pass
    raise UsageError(f"{name} is {size!r} of type {type(size).__name__}, but a size is an int")


def program_at(program: CheckedProgram, sizes: Mapping[str, int]) -> CheckedProgram:
    """Return the same program on tensors with numeric sizes."""
    return replace(program, body=_Put(sizes).body(program.body))


def value_at(tree: Any, sizes: Mapping[str, int]) -> Any:
    """Return a dim, a type or a tuple of them with sizes substituted; unknown dims stay unknown."""
    return _Put(sizes).value(tree)


class _Put:
    """Substitutes sizes; repeated values are evaluated once."""

    def __init__(self, sizes: Mapping[str, int]):
        self._sizes = sizes
        self._types: dict[TensorType, TensorType] = {}
        self._bodies: dict[Body, Body] = {}

    def value(self, value: Any) -> Any:
        if isinstance(value, int):
            return value
        if isinstance(value, TensorType):
            return self.type(value)
        if isinstance(value, Body):
            return self.body(value)
        if type(value) is tuple:
            return tuple([self.value(element) for element in value])
        return UNKNOWN if value is UNKNOWN else evaluate(value, self._sizes)

    def type(self, type_: TensorType) -> TensorType:
        found = self._types.get(type_)
        if found is None:
            found = self._types[type_] = TensorType(self.value(type_.shape), type_.dtype)
        return found

    def body(self, body: Body) -> Body:
        found = self._bodies.get(body)
        if found is None:
            found = self._bodies[body] = body.replace(
                equations=[self.equation(e) for e in body.equations],
                types=[self.type(type_) for type_ in body.types],
            )
        return found

    def equation(self, e: Equation) -> Equation:
        if type(e.primitive) is Composite:
            return e._replace(primitive=e.primitive.over(self.body(e.primitive.body)))
        return e._replace(static=self.static(e.static)) if e.static else e

    def static(self, static: Static) -> Static:
        return {name: self.value(value) for name, value in static.items()}
