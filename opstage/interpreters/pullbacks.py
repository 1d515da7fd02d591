"""Derivatives of elementwise ops as single ops: a vjp rule is traced once, as a composite, and run by one kernel.

Run op by op, the rule of `hardswish` makes ten passes over memory. `elu` has no rule: its parts go onto the tape one by
one, with twenty passes. An interpreter that `fuses` gets the same program as one composite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from ..ops.body import Body
from ..ops.catalogue import CHEAP, own
from ..ops.elementwise import DIV
from ..ops.errors import ProgramError
from ..ops.primitive import NO_STATIC, Context, Kind, Primitive, R, Static, distinct
from ..ops.protocol import Ops
from ..ops.types import TensorType
from .fused_call import TracedProgram, computing, traced_program, types_of
from .interpreter import Interpreter, Variable
from .tape import Tape
from .tracer import Tracer

_FEWEST = 3
"""The least number of ops in a rule, not counting views and constants, for which one kernel is used."""

_SIMPLE: set[Primitive] = set()
"""Our primitives without static parameters whose rules have few ops: asked for each op of a backward pass, so known by
one lookup. Of one with static parameters, these decide."""


@dataclass(frozen=True)
class _RuleContext:
    """The forward call as seen by a rule that is being traced."""

    needs: tuple[bool, ...]
    saved: tuple[Variable | None, ...]
    outputs: tuple[TensorType, ...]

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        raise ProgramError("a traced rule reads the types of operands, which are unknown")


def is_elementwise(primitive: Primitive) -> bool:
    """Whether the rule of a primitive may be recorded: it is elementwise and our own, so it always does the same."""
    return primitive.kind is Kind.POINTWISE and not primitive.effects and primitive in own()


def pulled(
    ops: Interpreter[R], primitive: Primitive, ctx: Context[R], cotangent: R, static: Static
) -> tuple[R | None, ...] | None:
    """The cotangents of the operands of an elementwise op by one kernel; None where `ops` has none for it."""
    if primitive in _SIMPLE:
        return None
    refs = (*[x for x in ctx.saved if x is not None], cotangent)
    types = types_of(refs)
    traced = _traced(ops, primitive, ctx.needs, tuple([x is not None for x in ctx.saved]), types, static)
    if traced is None or not ops.has_fused(traced.composite, types):
        return None
    results = ops.bind(traced.composite, refs, NO_STATIC)
    return tuple([None if place is None else results[place] for place in traced.more])


def whole(
    ops: Interpreter[R], primitive: Primitive, operands: Sequence[TensorType], needs: tuple[bool, ...], static: Static
) -> Primitive | None:
    """A composite without rules as a primitive with one, if `ops` has a kernel for that rule; else None.

    It is then computed by the composite's own kernel and differentiated by the kernel of its derivative, instead of
    being expanded on the tape.
    """
    if not is_elementwise(primitive) or len(primitive.outputs) != 1 or primitive.residuals:
        return None
    twin = _with_rule(primitive)
    types = (*operands, *ops.infer(primitive, tuple(operands), static))
    traced = _traced(ops, twin, needs, (True,) * len(operands), types, static)
    return twin if traced is not None and ops.has_fused(traced.composite, types) else None


def _traced(
    ops: Interpreter[Any],
    primitive: Primitive,
    needs: tuple[bool, ...],
    present: tuple[bool, ...],
    types: tuple[TensorType, ...],
    static: Static,
) -> TracedProgram | None:
    """A rule as one op of the saved values that are present and of the cotangent, and which of its results the
    cotangent of each operand is; None if it has few ops, or recomputes values that are better saved."""
    is_twin = primitive in _TWINS
    if not is_twin and not is_elementwise(primitive):
        return None

    def program(tracer: Tracer[Any], refs: Sequence[Variable]) -> tuple[list[Variable], tuple[int | None, ...]]:
        rule: Any = primitive.vjp
        saved, g = iter(refs[:-1]), refs[-1]
        ctx = _RuleContext(needs, tuple([next(saved) if each else None for each in present]), types[-1:])
        outside, tracer.cursor.backward = tracer.cursor.backward, 0  # so that only what a tape pulls is marked
        try:
            results = rule(tracer, ctx, (g,), **static)
        finally:
            tracer.cursor.backward = outside
        places = iter(range(len(results)))
        return [ref for ref in results if ref is not None], tuple(
            [None if r is None else next(places) for r in results]
        )

    def admits(body: Body) -> bool:
        equations = computing(body)
        if len(equations) < _FEWEST or any(e.primitive.kind is not Kind.POINTWISE for e in equations):
            return False
        # of a composite's parts, which a tape would keep
        again = [e.primitive for e in equations if not e.backward] if is_twin else []
        return all(each in CHEAP or each is DIV for each in again)

    key = (primitive, needs, present, *static, *distinct(static))
    traced = traced_program(ops, key, f"{primitive.name}_pullback", program, types, admits)
    if traced is None and all(needs) and not static:
        _SIMPLE.add(primitive)
    return traced


_TWINS: set[Primitive] = set()


@cache
def _with_rule(primitive: Primitive) -> Primitive:
    """A composite of ours with its own rule: backward through its decomposition."""
    decomposition = primitive.decomposition
    assert decomposition is not None

    def vjp(ops: Ops[Any], ctx: Context[Any], cotangents: tuple[Any, ...], /, **static: Any) -> tuple[Any, ...]:
        tape: Tape[Any] = Tape(cast(Interpreter[Any], ops))
        leaves = [tape.leaf(x) if need else tape.wrap(x) for x, need in zip(ctx.saved, ctx.needs)]
        outputs = decomposition(tape, *leaves, **static)
        found = iter(tape.pull(outputs, cotangents, [x for x, need in zip(leaves, ctx.needs) if need]))
        return tuple([next(found) if need else None for need in ctx.needs])

    twin = Primitive(
        primitive.name,
        operands=primitive.operands,
        shape=primitive.shape_rule,
        vjp=vjp,
        saves=primitive.operands,
        decomposition=decomposition,
        kind=primitive.kind,
    )
    _TWINS.add(twin)
    return twin
