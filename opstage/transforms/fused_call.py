"""Small programs as one op each: a program is traced into a composite, which one kernel computes if there is one.

The rule of an op depends on its key and on the types of its operands alone, so it is traced once (`fused_call`). An
optimizer of a user may read any state of Python, so it runs in every step, on refs without values, and the ops that it
binds are its key (`RepeatedPrograms`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias, cast, final

from typing_extensions import override

from ..ops.body import Body, Equation
from ..ops.catalogue import CHEAP, own
from ..ops.dispatch import Region
from ..ops.elementwise import DIV
from ..ops.errors import OpstageError, ProgramError
from ..ops.logic import FULL
from ..ops.primitive import NO_STATIC, Context, Kind, Primitive, R, Static, distinct
from ..ops.protocol import Ops
from ..ops.types import DType, TensorType
from .interpreter import BaseInterpreter, Interpreter, Variable
from .tape import Tape
from .tracer import Composite, Tracer, evaluate

Program: TypeAlias = Callable[[Tracer[Any], Sequence[Variable]], tuple[Sequence[Variable], Any]]
"""From an interpreter and operands to results, and anything that is the same in every run."""

_NOWHERE = Region()
_MOST = 1 << 10
_TRACED: dict[Hashable, TracedProgram | None] = {}
_MOST_NEW = 8
"""After this many different runs in a row, a program's ops are no longer recorded."""


class TracedProgram(NamedTuple):
    """A program as one op, and what else it returned."""

    composite: Composite
    more: Any


def ref_types(refs: Sequence[Any]) -> tuple[TensorType, ...]:
    """Return the types of refs."""
    return tuple([TensorType(ref.shape, ref.dtype) for ref in refs])


def computing(body: Body) -> list[Equation]:
    """Return the ops of a body that compute something: neither views nor constants."""
    return [e for e in body.equations if not e.primitive.view and e.primitive is not FULL]


def fused_call(
    ops: Interpreter[Any], key: Hashable, name: str, program: Program, refs: Sequence[Any]
) -> tuple[tuple[Any, ...], Any] | None:
    """Return the results of `program(ops, refs)`, computed as one op called `name`, and what else the
    program returned.

    None if `ops` has no kernel for that op. The key tells apart all that the program reads but the types of its refs.
    """
    if not ops.fuses:
        return None
    types = ref_types(refs)
    traced = traced_program(ops, key, name, program, types)
    if traced is None or not ops.has_fused(traced.composite, types):
        return None
    return ops.bind(traced.composite, tuple(refs), NO_STATIC), traced.more


def traced_program(
    ops: Interpreter[Any],
    key: Hashable,
    name: str,
    program: Program,
    types: tuple[TensorType, ...],
    admits: Callable[[Body], bool] = lambda body: len(computing(body)) > 1,
) -> TracedProgram | None:
    """Return a program on operands of these types, traced once per key; None if its ops are better bound one by one.

    They are if it does not `admit` the body, if they have effects, if the program uses refs that are not its operands,
    and if it raises an error, which it then raises again.
    """
    key = (name, key, types)
    try:
        return _TRACED[key]
    except KeyError:
        pass
    if len(_TRACED) >= _MOST:
        _TRACED.clear()
    found = None
    tracer = Tracer(ops, loops=False)
    inputs = [tracer.input(type_) for type_ in types]
    try:
        outputs, more = program(tracer, inputs)
    except OpstageError:
        pass
    else:
        body = tracer.finish(inputs, outputs, prune=True)
        nowhere = [e._replace(region=_NOWHERE, ordinal=0) for e in body.equations]  # the first of many calls
        body = body.replace(lines={0: None}, equations=nowhere)
        if not (tracer.captured or body.effects) and admits(body):
            found = TracedProgram(Composite(name, body), more)
    _TRACED[key] = found
    return found


class NotTraceable(Exception):
    """A program that cannot run on refs without values."""


@final
class _Retrace(Tracer[R]):
    """Traces a program again; while it binds the ops of `body`, no types are inferred."""

    __slots__ = ("body", "_at")
    misplaced = "a ref of an optimizer's update was used outside of it; return it as a slot instead"
    leaked = misplaced

    def __init__(self, inner: Interpreter[R], body: Body | None):
        super().__init__(inner, loops=False)
        self.body = body
        self._at = 0

    def finish_as(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Body:
        """Return the body with what is captured as further inputs: the one that it began with if the program did the
        same."""
        slots = (*[ref.slot for ref in inputs], *[ref.slot for ref, _ in self.captured])
        same = self.body
        if (
            same is not None
            and (slots, tuple([ref.slot for ref in outputs])) == (same.inputs, same.outputs)
            and self._at == len(same.equations)
        ):
            self.close(self.leaked)
            self._known.clear()
            return same
        return self.finish([self.ref(slot) for slot in slots], outputs).replace(lines={})

    @override
    def wrap(self, value: R, /) -> Variable:
        traced = super().wrap(value)
        if self.body is not None and self.body.types[traced.slot : traced.slot + 1] != (traced.type,):
            self.body = None
        return traced

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> Variable:
        return self.wrap(self.inner.const(value, dtype=dtype))  # it may be another one in the next run

    @override
    def bind(self, primitive: Primitive, refs: tuple[Variable, ...], static: Static, /) -> tuple[Variable, ...]:
        body = self.body
        if body is not None and self._at < len(body.equations):
            slots = tuple([r.slot if type(r) is Variable and r.ops is self else self.adopt(r).slot for r in refs])
            e = body.equations[self._at]
            if (
                e[0] is primitive
                and e[2] == slots
                and e[1] == static
                and e[3][:1] == (len(self.trace.types),)
                and (all(static.values()) or distinct(e[1]) == distinct(static))
            ):
                self._at += 1
                self.trace.equations.append(e)
                types = [body.types[slot] for slot in e[3]]
                self.trace.types += types
                return tuple([Variable(slot, type_, self) for slot, type_ in zip(e[3], types)])
        self.body = None
        return super().bind(primitive, refs, static)


class _Run(NamedTuple):
    """The ops of a program as of the round in which it first bound them, and as one op once there is a kernel."""

    round: int
    body: Body
    composite: Composite | None


@final
class RepeatedPrograms:
    """Programs that run in every round and may read anything; a round is one run of all of them.

    A program's ops become one op when it binds the same ones in a second round, so that nothing is compiled for numbers
    that change in every round.

    recorded   whether the ops of any program were recorded in this round
    """

    __slots__ = ("recorded", "_round", "_runs", "_new", "_alone")

    def __init__(self) -> None:
        self.recorded = False
        self._round = 0
        self._runs: dict[Hashable, _Run] = {}  # the last, by types of operands
        self._new: dict[Hashable, int] = {}  # how often in a row it was new
        self._alone: set[Hashable] = set()  # types for which ops are better bound as they come

    def begin(self) -> None:
        """Start a round."""
        self._round += 1
        self.recorded = False

    def run(
        self, ops: BaseInterpreter[R], name: str, program: Callable[..., Sequence[R]], refs: Sequence[R]
    ) -> Sequence[R]:
        """Return `program(ops, *refs)`, computed as one op called `name` if `ops` has a kernel for all of it.

        Raises NotTraceable where the program does anything with its refs other than pass them to ops.
        """
        types = ref_types(refs)
        if types in self._alone:
            return program(ops, *refs)
        last = self._runs.get(types) if ops.executes else None
        tracer = _Retrace(ops, None if last is None else last.body)
        inputs = [tracer.input(type_) for type_ in types]
        try:
            body = tracer.finish_as(inputs, [tracer.adopt(ref) for ref in program(tracer, *inputs)])
        except Exception as error:
            raise NotTraceable from error
        alone = len(body.equations) < 2 or bool(body.effects)
        if last is None or last.body is not body:
            last = _Run(self._round, body, None)
            self._new[types] = self._new.get(types, 0) + 1
            alone = alone or self._new[types] > _MOST_NEW
        if last.composite is None and not alone and (last.round != self._round or not ops.executes):
            composite = Composite(name, body)
            last = last._replace(composite=composite)
            self._new.pop(types, None)
            alone = not ops.has_fused(composite, body.input_types)
        if not ops.executes:  # its memory is that of a later round
            self._new.clear()
            self.recorded = True
        elif alone:
            self._alone.add(types)
        else:
            self._runs[types] = last
            self.recorded = True
        if alone and not ops.executes:
            return program(ops, *refs)
        values = (*refs, *[value for _, value in tracer.captured])
        if alone or last.composite is None:
            return evaluate(ops, body, values, ())
        return ops.bind(last.composite, values, NO_STATIC)


# Derivatives of elementwise ops ---------------------------------------------------------------------------------------
#
# A vjp rule is traced once, as a composite, and run by one kernel. Run op by op, the rule of `hardswish` makes ten
# passes over memory. `elu` has no rule: its parts go onto the tape one by one, with twenty passes.

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
    """Return whether the rule of a primitive may be recorded: it is elementwise and our own, so it always does the
    same."""
    return primitive.kind is Kind.POINTWISE and not primitive.effects and primitive in own()


def pulled(
    ops: Interpreter[R], primitive: Primitive, ctx: Context[R], cotangent: R, static: Static
) -> tuple[R | None, ...] | None:
    """Return the cotangents of the operands of an elementwise op by one kernel; None where `ops` has none for it."""
    if primitive in _SIMPLE:
        return None
    refs = (*[x for x in ctx.saved if x is not None], cotangent)
    types = ref_types(refs)
    traced = _traced(ops, primitive, ctx.needs, tuple([x is not None for x in ctx.saved]), types, static)
    if traced is None or not ops.has_fused(traced.composite, types):
        return None
    results = ops.bind(traced.composite, refs, NO_STATIC)
    return tuple([None if place is None else results[place] for place in traced.more])


def whole(
    ops: Interpreter[R], primitive: Primitive, operands: Sequence[TensorType], needs: tuple[bool, ...], static: Static
) -> Primitive | None:
    """Return a composite without rules as a primitive with one, if `ops` has a kernel for that rule; else None.

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
    """Return a rule as one op of the saved values that are present and of the cotangent, and which of its results the
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
    """Return a composite of ours with its own rule: backward through its decomposition."""
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
