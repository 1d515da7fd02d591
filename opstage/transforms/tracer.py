"""Tracing a program into a closed body, running a body on an interpreter, and a body as one op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

from typing_extensions import override

from ..ops.body import Body, Equation, Trace
from ..ops.dims import evaluate as at
from ..ops.errors import LocatedError, ProgramError, SourceLine, user_frame
from ..ops.host_arrays import as_array
from ..ops.infix import Infix
from ..ops.primitive import Primitive, R, Static
from ..ops.rule_helpers import type_of
from ..ops.trees import no_ref
from ..ops.types import INT64, DType, TensorType, as_dtype
from .interpreter import BaseInterpreter, Interpreter, Variable, Wrapper


class Tracer(Wrapper[Variable, R]):
    """Records the body of a loop over `inner`. A ref from outside becomes an input of the body.

    With `loops` False it is a branch, which runs at most once.

    captured    those inputs, each with the inner ref that it replaces
    lines       the user's line of every op, by ordinal; given when the body is derived from another one
    iteration   the input with the position of the loop along xs, an int64 scalar, once something uses it
    """

    __slots__ = ("trace", "captured", "lines", "iteration", "_known", "_step", "_iterations", "_loops")
    ref_type = Variable
    misplaced = (
        "a ref of the body of a scan, a while_loop, a branch or a remat was used with ops from outside of it; the body "
        "has ops of its own, its first argument, and returns what is wanted outside"
    )
    leaked = (
        "a ref of the body of a scan, a while_loop, a branch or a remat was used after the body was traced; return it "
        "from the body"
    )

    def __init__(
        self, inner: Interpreter[R], lines: Mapping[int, SourceLine | None] | None = None, *, loops: bool = True
    ):
        super().__init__(inner, differentiates=False)
        self.trace = Trace()
        self.captured: list[tuple[Variable, R]] = []
        self.lines: dict[int, SourceLine | None] = dict(lines) if lines is not None else {}
        self.iteration: Variable | None = None
        self._known: dict[int, tuple[Any, Variable]] = {}  # by id; the ref is held, so that its id stays its own
        self._step: Variable | None = None
        self._iterations: tuple[Variable, ...] | None = None
        self._loops = loops

    def input(self, type: TensorType) -> Variable:
        """Return a new input of the body."""
        return Variable(self.trace.slot(type), type, self)

    def ref(self, slot: int) -> Variable:
        """Return the ref of a slot."""
        return Variable(slot, self.trace.types[slot], self)

    @override
    def wrap(self, value: R, /) -> Variable:
        traced = self.input(TensorType(value.shape, value.dtype))
        self.captured.append((traced, value))
        return traced

    @override
    def adopt(self, ref: Any, /) -> Variable:
        if self.closed is not None:
            raise ProgramError(self.closed)
        if type(ref) is Variable and ref.ops is self:
            return ref
        known = self._known.get(id(ref))
        if known is None:
            known = self._known[id(ref)] = ref, self._read(self.inner.adopt(ref))
        return known[1]

    def _read(self, value: R) -> Variable:
        """Return the input for a ref of `inner`: one, by however many refs from further outside it is known."""
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = value, self.wrap(value)
        return known[1]

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> Variable:
        like = self.inner.const(value, dtype=dtype)
        type_ = TensorType(like.shape, like.dtype)
        return Variable(self.trace.constant(value, type_), type_, self)

    @override
    def step(self) -> Variable:
        if self._step is None:
            self._step = self._read(self.inner.step())
        return self._step

    @override
    def iterations(self) -> tuple[Variable, ...]:
        if self._iterations is None:
            self._iterations = tuple([self.adopt(i) for i in self.inner.iterations()])
            if self._loops:
                if self.iteration is None:
                    self.iteration = self.input(TensorType((), INT64))
                self._iterations = (*self._iterations, self.iteration)
        return self._iterations

    @override
    def bind(self, primitive: Primitive, refs: tuple[Variable, ...], static: Static, /) -> tuple[Variable, ...]:
        if self.closed:
            raise ProgramError(self.closed)
        refs = tuple([r if type(r) is Variable and r.ops is self else self.adopt(r) for r in refs])
        cursor = self.cursor
        if cursor.ordinal not in self.lines:
            self.lines[cursor.ordinal] = user_frame()
        types = self.infer(primitive, tuple([r.type for r in refs]), static)
        slots = self.trace.equation(primitive, tuple([r.slot for r in refs]), static, types, cursor)
        return tuple([Variable(slot, type_, self) for slot, type_ in zip(slots, types)])

    def finish(self, inputs: Sequence[Variable], outputs: Sequence[Variable], *, prune: bool = False) -> Body:
        """Return the body, from inputs to outputs; the tracer's refs cannot be used afterwards."""
        self.close(self.leaked)
        self._known.clear()  # the tracer and its refs hold each other until the garbage collector finds them
        return self.trace.close([r.slot for r in inputs], [r.slot for r in outputs], self.lines, prune=prune)


@contextmanager
def structural_op(ops: Interpreter[Any], op: str) -> Iterator[None]:
    """Trace the bodies of an op within it: they count as one op, and an error in a body names the op."""
    region = ops.cursor.region
    before = region.mark()
    try:
        yield
    except BaseException as error:
        region.rewind(before)
        if isinstance(error, LocatedError):
            error.place(op, region.name)
        raise
    if not ops.cursor.quiet:
        ops.cursor.ordinal += 1


def close_traces(
    traced: Sequence[tuple[Tracer[R], Sequence[Variable], Sequence[Variable]]], *, prune: bool
) -> tuple[list[Body], list[R]]:
    """Return traces with their inputs and outputs as bodies that take the same operands: their inputs, then all the
    captured refs that any of them reads, which are returned as well."""
    captured = {id(ref): ref for tracer, _, _ in traced for _, ref in tracer.captured}
    bodies = []
    for tracer, inputs, outputs in traced:
        own = {id(ref): inside for inside, ref in tracer.captured}
        inside = [own[key] if key in own else tracer.input(type_of(ref)) for key, ref in captured.items()]
        bodies.append(tracer.finish([*inputs, *inside], outputs, prune=prune))
        tracer.captured.clear()
    count = len(traced[0][1])
    reads = [body.read() for body in bodies]
    read = [i for i in range(len(captured)) if any(b.inputs[count + i] in r for b, r in zip(bodies, reads))]
    refs = list(captured.values())
    closed = [b.taking([*b.inputs[:count], *[b.inputs[count + i] for i in read]]) for b in bodies]
    return closed, [refs[i] for i in read]


def constants(ops: Interpreter[R], body: Body) -> tuple[R, ...]:
    """Return the body's constants, as refs of `ops`; made once for any number of runs."""
    return tuple([ops.const(constant.value, dtype=constant.type.dtype) for constant in body.constants])


def evaluate(
    ops: Interpreter[R],
    body: Body,
    inputs: Sequence[R],
    held: Sequence[R],
    operands: Callable[[Equation, tuple[R, ...]], tuple[R, ...]] = lambda equation, refs: refs,
    *,
    inside: bool = False,
) -> tuple[R, ...]:
    """Return the outputs of a body on `ops`, with the same ops as when it was traced; `held` are its `constants`.

    Each op is bound on what `operands` makes of its operands. A result is released after its last use. An error of an
    op names the user's line in the body, no matter where the loop was called or derived. With `inside` the ops are
    parts of the op at the cursor, and belong to its place.
    """
    values: list[Any] = [None] * len(body.types)
    for slot, value in zip(body.inputs, inputs):
        values[slot] = value
    for constant, value in zip(body.constants, held):
        values[constant.slot] = value
    bind, cursor, expands = ops.bind, ops.cursor, ops.differentiates
    region, ordinal, outside = cursor.region, cursor.ordinal, cursor.backward
    try:
        for equation, last in zip(body.equations, body.last_reads()):
            primitive, static, slots, results, within, number, opened, backward = equation
            if not inside:
                cursor.region, cursor.ordinal, cursor.backward = within, number, max(backward, outside)
            refs = operands(equation, tuple([values[slot] for slot in slots]))
            if opened and expands and primitive.expandable:
                outs = ops.decompose(primitive, refs, static)
            else:
                outs = bind(primitive, refs, static)
                if opened and expands and primitive.differentiable:
                    primitive.require_closed(outs[len(primitive.outputs) :])
            for slot, value in zip(results, outs):
                values[slot] = value
            for slot in last:
                values[slot] = None
    except LocatedError as error:
        if not inside:
            error.relocate(body.lines.get(cursor.ordinal), cursor.region.name)
        raise
    finally:
        cursor.region, cursor.ordinal, cursor.backward = region, ordinal, outside
    return tuple([values[slot] for slot in body.outputs])


DEFINITION = "definition"
"""The name under which the body of an op is written among its static parameters."""


def graph_statics(equation: Equation) -> Static:
    """Return the static parameters of an equation as graphs are written: those of a composite are its body."""
    primitive = equation.primitive
    return {DEFINITION: primitive.body} if type(primitive) is Composite else equation.static


@final
class Composite(Primitive):
    """A closed body as one op: Python's state was read when it was traced, so the op always does the same.

    Its operands have the types of the body's inputs. Its cost is the sum of its parts' costs.

    elements   the same program on tensors of two elements, if it is elementwise: kernels for all sizes are made of it
    """

    __slots__ = ("body", "elements")

    def __init__(self, name: str, body: Body):
        self.body = body
        self.elements: Body | None = None
        types = body.output_types
        super().__init__(
            name,
            operands=tuple([f"x{i}" for i in range(len(body.inputs))]),
            outputs=tuple([f"y{i}" for i in range(len(types))]),
            shape=lambda *operands: types,
            decomposition=lambda ops, /, *refs: evaluate(ops, body, refs, constants(ops, body), inside=True),
            flops=lambda inputs, outputs, /: body.cost().flops,
        )

    def over(self, body: Body) -> Composite:
        """Return an op of the same name that computes `body`."""
        return Composite(self.name, body)

    def at(self, sizes: Mapping[str, int]) -> Composite:
        """Return the same op, with the named sizes in its shapes substituted."""
        body = self.body
        types = [TensorType(at(type_.shape, sizes), type_.dtype) for type_ in body.types]
        equations = [
            e._replace(static={name: at(value, sizes) for name, value in e.static.items()}) for e in body.equations
        ]
        return self.over(body.replace(equations=equations, types=types))


# Base interpreters that record ----------------------------------------------------------------------------------------


class Writing(BaseInterpreter[Variable]):
    """Records a `Trace`. Symbolic sizes in the types of the inputs stay symbolic. A subclass supplies `bind`.

    closed      the message for a ref that is used when the trace is closed; None before
    """

    __slots__ = ("trace", "closed")
    no_values = "the values of a program that is recorded are not available yet, so its structure cannot depend on them"
    """The message where a value is requested."""

    def __init__(self, dtype: DType, seed: int):
        super().__init__(dtype, seed)
        self.trace = Trace()
        self.closed: str | None = None

    def input(self, type: TensorType) -> Variable:
        """Return a new input."""
        return Variable(self.trace.slot(type), type, self)

    def write(
        self, primitive: Primitive, refs: Sequence[Variable], static: Static, types: Sequence[TensorType]
    ) -> tuple[Variable, ...]:
        """Return the outputs and residuals, of the given types, of an op that is bound at the cursor."""
        slots = self.trace.equation(primitive, tuple([ref.slot for ref in refs]), static, types, self.cursor)
        return tuple([Variable(slot, type_, self) for slot, type_ in zip(slots, types)])

    @override
    def put(self, value: Any, /) -> Variable:
        return self.const(value)

    @override
    def get(self, ref: Variable, /) -> Any:
        raise ProgramError(self.no_values)

    @override
    def adopt(self, ref: Any, /) -> Variable:
        if type(ref) is Variable and ref.ops is self:
            if self.closed is not None:
                raise ProgramError(self.closed)
            return ref
        if isinstance(ref, Infix):
            why = getattr(getattr(ref, "ops", None), "closed", None) or "this one belongs to another run"
            raise ProgramError(f"refs of two interpreters were mixed: {why}")
        raise no_ref(ref)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> Variable:
        array = as_array(value, self.dtype if dtype is None else as_dtype(dtype), force=dtype is not None)
        type_ = TensorType(array.shape, array.dtype)
        return Variable(self.trace.constant(array, type_), type_, self)
