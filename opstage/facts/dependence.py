"""The dependence domain: which indices of a named axis of the inputs an element of a tensor may read.

A fact is None (no element of an input that has the axis), `Along(axis, relation)`, or ANY. An op without a rule gives
ANY, as does whatever a rule does not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ..ops.closed import Equation
from ..ops.dims import Dim, DimExpr, prod
from ..ops.kinds import Effect, Kind
from ..ops.types import TensorType

SAME: Final = "same"
LE: Final = "at or before"


class Along(NamedTuple):
    """An element at index i of `axis` reads sources s that are `relation` to t = i mod T, where T divides the axis."""

    axis: int
    relation: str


class _Any:
    """The fact that says nothing."""

    def __repr__(self) -> str:
        return "anything"


ANY: Final = _Any()
Fact: TypeAlias = "Along | _Any | None"
Types: TypeAlias = Sequence[TensorType]
Rule: TypeAlias = Callable[[Equation, Sequence[Fact], Types, Types, Dim], Fact]


def equal(a: Dim, b: Dim) -> bool:
    """Whether two sizes are one polynomial; asks for no condition."""
    difference = a - b
    return isinstance(difference, int) and difference == 0


def source_fact(type_: TensorType, dim: Dim) -> Fact:
    """The fact of an input: along its axis of size `dim`; ANY where the dim is there twice or inside a formula."""
    at = [axis for axis, size in enumerate(type_.shape) if equal(size, dim)]
    mentioned = [size for size in type_.shape if isinstance(size, DimExpr) and str(dim) in str(size)]
    if not mentioned:
        return None
    return Along(at[0], SAME) if len(at) == 1 and len(mentioned) == 1 else ANY


def join(facts: Sequence[Fact]) -> Fact:
    """The least fact that all of these imply, of tensors whose indices are the same."""
    found: Fact = None
    for fact in facts:
        if fact is None:
            continue
        if isinstance(fact, _Any):
            return ANY
        if found is None:
            found = fact
        elif not isinstance(found, Along) or found.axis != fact.axis:
            return ANY
        elif fact.relation == LE:
            found = fact
    return found


def transfer(equation: Equation, facts: Sequence[Fact], inputs: Types, outputs: Types, dim: Dim) -> list[Fact]:
    """The facts of an op's results."""
    primitive, effects = equation.primitive, equation.effects
    if Effect.EXTERNAL in effects or primitive.kind is Kind.COLLECTIVE:
        return [ANY] * len(outputs)
    if all(fact is None for fact in facts):
        return [None] * len(outputs)
    rule = _POINTWISE if primitive.kind is Kind.POINTWISE else RULES.get(primitive.name)
    if primitive.declared or rule is None or any(isinstance(fact, _Any) for fact in facts):
        return [ANY] * len(outputs)
    return [rule(equation, facts, inputs, [output], dim) for output in outputs]


def _keeps(fact: Along, before: TensorType, after: TensorType) -> bool:
    """Whether the axis of a fact is there, of the same size, in a result."""
    axis = fact.axis
    return axis < len(after.shape) and equal(before.shape[axis], after.shape[axis])


def _pointwise(equation: Equation, facts: Sequence[Fact], inputs: Types, outputs: Types, dim: Dim) -> Fact:
    for fact, type_ in zip(facts, inputs):
        if isinstance(fact, Along) and not (
            len(type_.shape) == len(outputs[0].shape) and _keeps(fact, type_, *outputs)
        ):
            return ANY
    return join(facts)


def _permute(equation: Equation, facts: Sequence[Fact], inputs: Types, outputs: Types, dim: Dim) -> Fact:
    fact = facts[0]
    return Along(equation.static["axes"].index(fact.axis), fact.relation) if isinstance(fact, Along) else ANY


def _reshape(equation: Equation, facts: Sequence[Fact], inputs: Types, outputs: Types, dim: Dim) -> Fact:
    """The order of elements stays, so the index is at the axis behind which as many elements lie."""
    fact, before, after = facts[0], inputs[0].shape, outputs[0].shape
    if not isinstance(fact, Along):
        return ANY
    behind = prod(before[fact.axis + 1 :])
    for axis, size in enumerate(after):
        if equal(prod(after[axis + 1 :]), behind) and (equal(size, before[fact.axis]) or _divides(dim, size)):
            return Along(axis, fact.relation)
    return ANY


def _divides(dim: Dim, size: Dim) -> bool:
    return isinstance(size, DimExpr) and equal((size // dim) * dim, size)


def _broadcast(equation: Equation, facts: Sequence[Fact], inputs: Types, outputs: Types, dim: Dim) -> Fact:
    fact = facts[0]
    if not isinstance(fact, Along):
        return ANY
    axis = fact.axis + len(outputs[0].shape) - len(inputs[0].shape)
    same = equal(inputs[0].shape[fact.axis], outputs[0].shape[axis])
    return Along(axis, fact.relation) if same else ANY


def _other_axis(equation: Equation, facts: Sequence[Fact], inputs: Types, outputs: Types, dim: Dim) -> Fact:
    """Ops that mix one axis, `axis`, and leave the others."""
    mixed = equation.static.get("axis", len(inputs[0].shape) - 1)
    found = join(facts)
    if not isinstance(found, Along) or not isinstance(mixed, int) or mixed < 0 or found.axis == mixed:
        return ANY
    return found if len(inputs[0].shape) == len(outputs[0].shape) and _keeps(found, inputs[0], *outputs) else ANY


def _last_axis(equation: Equation, facts: Sequence[Fact], inputs: Types, outputs: Types, dim: Dim) -> Fact:
    """Normalisations of the last axis of the first operand; the others are parameters."""
    return ANY if any(fact is not None for fact in facts[1:]) else _other_axis(equation, facts, inputs, outputs, dim)


def _linear(equation: Equation, facts: Sequence[Fact], inputs: Types, outputs: Types, dim: Dim) -> Fact:
    fact, x = facts[-1], inputs[-1]
    if any(other is not None for other in facts[:-1]) or not isinstance(fact, Along) or fact.axis == len(x.shape) - 1:
        return ANY
    return fact if len(x.shape) == len(outputs[0].shape) else ANY


def _gather_rows(equation: Equation, facts: Sequence[Fact], inputs: Types, outputs: Types, dim: Dim) -> Fact:
    table, index = facts
    return index if table is None else ANY


def _attention(equation: Equation, facts: Sequence[Fact], inputs: Types, outputs: Types, dim: Dim) -> Fact:
    """Leading axes stay apart; with `causal` a query reads the keys and values at or before it."""
    found, at = join(facts[:3]), len(inputs[0].shape) - 2
    if any(fact is not None for fact in facts[3:]) or not isinstance(found, Along) or found.axis > at:
        return ANY
    if found.axis < at:
        return found
    alone = facts[1] is None and facts[2] is None
    if alone:
        return found
    whole = all(equal(x.shape[at], dim) for x in inputs[:3])
    return Along(at, LE) if equation.static["causal"] and whole else ANY


_POINTWISE: Rule = _pointwise
RULES: Mapping[str, Rule] = {
    "permute": _permute,
    "reshape": _reshape,
    "broadcast_to": _broadcast,
    "softmax": _other_axis,
    "log_softmax": _other_axis,
    "layer_norm": _last_axis,
    "rms_norm": _last_axis,
    "linear": _linear,
    "gather_rows": _gather_rows,
    "scaled_dot_product_attention": _attention,
}
"""Rules by the name of the op; pointwise ops have theirs by their kind."""
