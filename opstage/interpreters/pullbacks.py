"""Derivatives of elementwise ops as single ops: a vjp rule is traced once, as a composite, and run by one kernel.

Run op by op, the rule of `hardswish` makes ten passes over memory. `elu` has no rule: its parts go onto the tape one by
one, with twenty passes. An interpreter that `fuses` gets the same program as one composite.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, cast

from ..ops.catalogue import own
from ..ops.catalogue.cheap import CHEAP
from ..ops.catalogue.elementwise import DIV
from ..ops.catalogue.logic import FULL
from ..ops.kinds import Kind
from ..ops.primitive import NO_STATIC, Context, Primitive, R, Static, distinct
from ..ops.protocol import Ops
from ..ops.types import TensorType
from .interpreter import Interpreter, Variable
from .tape import Tape
from .tracer import Composite, Tracer

_FEWEST = 3
"""The least number of ops in a rule, not counting views and constants, for which one kernel is used."""

_KNOWN: dict[Hashable, _Pullback | None] = {}
_MOST_KNOWN = 1 << 10
_SIMPLE: set[Primitive] = set()
"""Our primitives without static parameters whose rules have few ops: asked for each op of a backward pass, so known by
one lookup. Of one with static parameters, these decide."""


class _Use(NamedTuple):
    """An op as a rule sees it, but for its static parameters."""

    primitive: Primitive
    needs: tuple[bool, ...]
    saved: tuple[TensorType | None, ...]
    cotangent: TensorType


@dataclass(frozen=True)
class _Pullback:
    """A rule as a composite of what it saved and the cotangent.

    types     of its operands
    saved     which of the saved values it reads
    places    which of its results the cotangent of each operand is; None where none is wanted
    """

    composite: Composite
    types: tuple[TensorType, ...]
    saved: tuple[int, ...]
    places: tuple[int | None, ...]


class _NotKnown(Exception):
    """The rule reads something that is not known here."""


@dataclass(frozen=True)
class _RuleContext:
    """The forward call as seen by a rule that is being traced."""

    needs: tuple[bool, ...]
    saved: tuple[Variable | None, ...]
    outputs: tuple[TensorType, ...]

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        raise _NotKnown


def is_elementwise(primitive: Primitive) -> bool:
    """Whether the rule of a primitive may be recorded: it is elementwise and our own, so it always does the same."""
    return primitive.kind is Kind.POINTWISE and not primitive.effects and primitive in own()


def pulled(
    ops: Interpreter[R], primitive: Primitive, ctx: Context[R], cotangent: R, static: Static
) -> tuple[R | None, ...] | None:
    """The cotangents of the operands of an elementwise op by one kernel; None where `ops` has none for it."""
    if primitive in _SIMPLE:
        return None
    saved = tuple([None if x is None else TensorType(x.shape, x.dtype) for x in ctx.saved])
    use = _Use(primitive, ctx.needs, saved, TensorType(cotangent.shape, cotangent.dtype))
    found = _known(ops, use, static)
    if found is None or not ops.has_fused(found.composite, found.types):
        return None
    read = cast(tuple[R, ...], tuple([ctx.saved[i] for i in found.saved]))
    results = ops.bind(found.composite, (*read, cotangent), NO_STATIC)
    return tuple([None if place is None else results[place] for place in found.places])


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
    (out,) = ops.infer(primitive, tuple(operands), static)
    found = _known(ops, _Use(twin, needs, tuple(operands), out), static)
    return twin if found is not None and ops.has_fused(found.composite, found.types) else None


def _known(ops: Interpreter[Any], use: _Use, static: Static) -> _Pullback | None:
    key = (use, *static, *distinct(static))
    try:
        return _KNOWN[key]
    except KeyError:
        pass
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    ours = is_elementwise(use.primitive) or use.primitive in _TWINS
    found = _KNOWN[key] = _traced(ops, use, static) if ours else None
    if found is None and ours and all(use.needs) and not static:
        _SIMPLE.add(use.primitive)
    return found


def _traced(ops: Interpreter[Any], use: _Use, static: Static) -> _Pullback | None:
    """Trace the rule; None if it has few ops, or recomputes values that are better saved."""
    rule: Any = use.primitive.vjp
    tracer = Tracer(ops)
    variables = [None if type_ is None else tracer.input(type_) for type_ in use.saved]
    g = tracer.input(use.cotangent)
    outside, tracer.cursor.backward = tracer.cursor.backward, 0  # so that only what a tape pulls is marked
    try:
        results = rule(tracer, _RuleContext(use.needs, tuple(variables), (use.cotangent,)), (g,), **static)
    except _NotKnown:
        return None
    finally:
        tracer.cursor.backward = outside
    wanted = [ref for ref in results if ref is not None]
    positions = iter(range(len(wanted)))
    places = tuple([None if ref is None else next(positions) for ref in results])
    read = tuple([i for i, ref in enumerate(variables) if ref is not None])
    slots = [ref.slot for ref in variables if ref is not None]
    body = tracer.trace.close([*slots, g.slot], [ref.slot for ref in wanted], {}, prune=True)
    computing = [e for e in body.equations if not e.primitive.view and e.primitive is not FULL]
    if tracer.captured or len(computing) < _FEWEST or any(e.primitive.kind is not Kind.POINTWISE for e in computing):
        return None
    # of a composite's parts, which a tape would keep
    again = [e.primitive for e in computing if not e.backward] if use.primitive in _TWINS else []
    if any(primitive not in CHEAP and primitive is not DIV for primitive in again):
        return None
    return _Pullback(Composite(f"{use.primitive.name}_pullback", body), body.input_types, read, places)


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
