"""Small programs as one op each: a program's ops are recorded, then computed by one kernel if there is one.

The program still runs each time it is called, on refs without values, so it reads Python's state and has its side
effects as usual. The kernel for the ops of its last run is kept; as long as the program binds the same ops, no types
are inferred again. So a plain program, such as an optimizer's update, is as fast as a single op, and never uses a stale
result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, final

from typing_extensions import override

from ..ops.closed import Body, Equation
from ..ops.errors import ProgramError, SourceLine, user_frame
from ..ops.primitive import NO_STATIC, Primitive, R, Static, distinct
from ..ops.types import TensorType
from .interpreter import BaseInterpreter, Interpreter, Variable, Wrapper
from .tracer import Composite, evaluate

_MOST_NEW = 8
"""After this many different runs in a row, a program's ops are no longer recorded."""


class NotComposable(Exception):
    """A program that cannot run on refs without values."""


class _NotedOp(NamedTuple):
    """A recorded op; `told` are its static parameters in a form that equality distinguishes."""

    equation: Equation
    types: tuple[TensorType, ...]
    told: tuple[Any, ...]


@final
class _Path:
    """The ops of one run of a program.

    round       in which the path was first taken
    steps       its ops, in order
    captured    slots of the values that it uses besides its operands
    types       of all slots
    composite   all of it as one op, once there is a kernel for it
    """

    __slots__ = ("round", "steps", "captured", "types", "composite", "body")

    def __init__(
        self,
        round: int,
        operands: int,
        steps: list[_NotedOp],
        captured: list[int],
        types: list[TensorType],
        outputs: tuple[int, ...],
        lines: dict[int, SourceLine | None],
    ):
        self.round = round
        self.steps = steps
        self.captured = captured
        self.types = types
        self.composite: Composite | None = None
        equations = tuple([step.equation for step in steps])
        self.body = Body((*range(operands), *captured), (), equations, outputs, tuple(types), lines)

    @property
    def apart(self) -> bool:
        """Whether its ops are better bound one by one: there is only one, or they draw, raise or have external
        effects."""
        return len(self.steps) < 2 or bool(self.body.effects)


@final
class _Notes(Wrapper[Variable, R]):
    """Follows a path as long as the program binds the same ops, then records a new one."""

    __slots__ = ("path", "steps", "captured", "types", "values", "lines", "_at", "_known")
    ref_type = Variable
    misplaced = "a ref of an optimizer's update was used outside of it; return it as a slot instead"

    def __init__(self, inner: Interpreter[R], operands: Sequence[R], path: _Path | None):
        super().__init__(inner, differentiates=False)
        self.path = path
        self.steps: list[_NotedOp] = []
        self.captured: list[int] = []
        self.types: list[TensorType] = []
        self.values = list(operands)
        self.lines: dict[int, SourceLine | None] = {}
        self._at = 0
        self._known: dict[int, Variable] = {}
        if path is None:
            self.types += [TensorType(x.shape, x.dtype) for x in operands]

    def operands(self) -> list[Variable]:
        """Refs of the operands."""
        types = self.types if self.path is None else self.path.types
        return [Variable(slot, types[slot], self) for slot in range(len(self.values))]

    def _leave(self) -> None:
        """Leave the path: the program binds a different op."""
        path = self.path
        assert path is not None
        self.path, self.types, self.steps = None, [*path.types], path.steps[: self._at]
        self.lines.update(path.body.lines)

    @override
    def wrap(self, value: R, /) -> Variable:
        type_ = TensorType(value.shape, value.dtype)
        path, count = self.path, len(self.captured)
        if path is not None and (count >= len(path.captured) or path.types[path.captured[count]] != type_):
            self._leave()
            path = None
        if path is None:
            self.types.append(type_)
            slot = len(self.types) - 1
        else:
            slot = path.captured[count]
        self.captured.append(slot)
        self.values.append(value)
        return Variable(slot, type_, self)

    @override
    def adopt(self, ref: Any, /) -> Variable:
        if type(ref) is Variable and ref.ops is self:
            if self.closed is not None:
                raise ProgramError(self.closed)
            return ref
        known = self._known.get(id(ref))  # `values` holds the ref, so that its id stays its own
        if known is None:
            value = self.inner.adopt(ref)
            known = self.wrap(value)
            if value is ref:
                self._known[id(ref)] = known
        return known

    @override
    def iterations(self) -> tuple[Variable, ...]:
        return tuple(map(self.adopt, self.inner.iterations()))

    @override
    def bind(self, primitive: Primitive, refs: tuple[Variable, ...], static: Static, /) -> tuple[Variable, ...]:
        slots = tuple([r.slot if type(r) is Variable and r.ops is self else self.adopt(r).slot for r in refs])
        if self.path is not None:
            steps = self.path.steps
            if self._at < len(steps):
                equation, types, told = steps[self._at]
                if (
                    equation[0] is primitive
                    and equation[2] == slots
                    and equation[1] == static
                    and (all(static.values()) or told == distinct(static))
                ):
                    self._at += 1
                    return tuple([Variable(slot, type_, self) for slot, type_ in zip(equation[3], types)])
            self._leave()
        cursor = self.cursor
        if cursor.ordinal not in self.lines:
            self.lines[cursor.ordinal] = user_frame()
        types = self.inner.infer(primitive, tuple([self.types[slot] for slot in slots]), static)
        outputs = tuple(range(len(self.types), len(self.types) + len(types)))
        self.types += types
        equation = Equation(primitive, static, slots, outputs, cursor.region, cursor.ordinal, False, cursor.backward)
        self.steps.append(_NotedOp(equation, types, distinct(static)))
        return tuple([Variable(slot, type_, self) for slot, type_ in zip(outputs, types)])

    def finish(self, outputs: Sequence[Any], operands: int, round: int) -> _Path:
        """The path that the program took; its refs cannot be used afterwards."""
        slots = tuple([self.adopt(ref).slot for ref in outputs])
        path = self.path
        if path is not None and (
            self._at < len(path.steps) or len(self.captured) < len(path.captured) or slots != path.body.outputs
        ):
            self._leave()
            path = None
        self.close(self.misplaced)
        self._known.clear()  # it and its refs hold each other until the garbage collector finds them
        if path is None:
            path = _Path(round, operands, self.steps, self.captured, self.types, slots, self.lines)
        return path


@final
class Composing:
    """Memory of programs that run repeatedly; a `round` is one run of all of them.

    A path is compiled when it occurs in a second round, so that nothing is compiled for numbers that change in every
    round.

    written     whether the ops of any program were recorded in this round
    """

    __slots__ = ("written", "_round", "_paths", "_new", "_alone")

    def __init__(self) -> None:
        self.written = False
        self._round = 0
        self._paths: dict[Hashable, _Path] = {}  # by types of operands: what was done the last time
        self._new: dict[Hashable, int] = {}  # how often in a row that was new
        self._alone: set[Hashable] = set()  # types for which ops are better bound as they come

    def begin(self) -> None:
        """Start a round."""
        self._round += 1
        self.written = False

    def run(
        self, ops: BaseInterpreter[R], name: str, program: Callable[..., Sequence[R]], refs: Sequence[R]
    ) -> Sequence[R]:
        """`program(ops, *refs)`, computed as one op called `name` if `ops` has a kernel for all of it.

        Raises NotComposable where the program does anything with its refs other than pass them to ops.
        """
        types = tuple([(ref.shape, ref.dtype) for ref in refs])
        if types in self._alone:
            return program(ops, *refs)
        known = self._paths.get(types) if ops.executes else None
        notes = _Notes(ops, refs, known)
        try:
            path = notes.finish(program(notes, *notes.operands()), len(refs), self._round)
        except Exception as error:
            raise NotComposable from error
        if not ops.executes:  # the run whose shapes or memory are asked for has had its first rounds
            self.written = True
            path.composite = None if path.apart else _fused(ops, name, path.body)
            if path.composite is None:
                return program(ops, *refs)
            return ops.bind(path.composite, tuple(notes.values), NO_STATIC)
        if path is not known:
            self._keep(types, path)
        self.written |= types not in self._alone
        if path.composite is None and path.round != self._round:
            self._new.pop(types, None)
            path.composite = _fused(ops, name, path.body)
            if path.composite is None:
                self._alone.add(types)
        if path.composite is None:
            return evaluate(ops, path.body, notes.values, ())
        return ops.bind(path.composite, tuple(notes.values), NO_STATIC)

    def _keep(self, types: Hashable, path: _Path) -> None:
        """Store a path that occurred for the first time."""
        self._new[types] = self._new.get(types, 0) + 1
        if path.apart or self._new[types] > _MOST_NEW:
            self._paths.pop(types, None)
            self._alone.add(types)
            return
        self._paths[types] = path


def _fused(ops: BaseInterpreter[R], name: str, body: Body) -> Composite | None:
    """A body as one op, if there is a kernel for it."""
    made = Composite(name, body)
    return made if ops.has_fused(made, body.input_types) else None
