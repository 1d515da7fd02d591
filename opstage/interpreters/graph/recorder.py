"""The recorder: an interpreter whose refs are variables, and whose work is to write down what the program does.

A tape or forward mode on top of it has its derivatives recorded by the rules that every interpreter uses. Recording
takes time and memory linear in the number of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from typing_extensions import override

from ...compiler.captures import observation
from ...distributed.compiled_collectives import apart
from ...ops.body import Body
from ...ops.collective import VARY
from ...ops.errors import SourceLine, user_frame
from ...ops.mesh import ALONE, Mesh
from ...ops.primitive import NO_STATIC, Primitive, Static
from ...ops.types import INT64, DType, TensorType
from ...transforms.control_flow import communicates
from ...transforms.interpreter import BaseInterpreter, Variable
from ...transforms.scan import SCAN, run_loop
from ...transforms.tracer import Writing, constants, evaluate
from .graph import Graph


@final
class Recorder(Writing):
    """Writes down a program that is right.

    mesh            that of which it records the program of a rank: collectives are ops of it, a loop with some in it
                    is written out
    step_input      the input that holds the number of the training step, once something asked for it
    lines           the user's line of every op, by its ordinal
    """

    __slots__ = ("step_input", "lines", "_inferred", "_mesh")

    def __init__(self, dtype: DType, seed: int, mesh: Mesh = ALONE):
        super().__init__(dtype, seed)
        self._mesh = mesh
        self.step_input: Variable | None = None
        self.lines: dict[int, SourceLine | None] = {}
        self._inferred: dict[Any, tuple[TensorType, ...]] = {}

    @property
    @override
    def mesh(self) -> Mesh:
        return self._mesh

    def finish(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Body:
        """The body from inputs to outputs, without ops that are neither read nor seen outside.

        The step comes after the inputs if it is read.
        """
        self.closed = "a ref of a program was used after the program was recorded; return it from the program instead"
        every = [*inputs, *([self.step_input] if self.step_input is not None else [])]
        self.step_input = None  # it and the recorder hold each other, and with them every constant
        taken, given = [v.slot for v in every], [v.slot for v in outputs]
        return self.trace.close(taken, given, self.lines, prune=True, effects=True)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> Variable:
        seen = observation()
        if seen is not None:
            seen.constant(value)
        return super().const(value, dtype=dtype)

    @override
    def step(self) -> Variable:
        if self.step_input is None:
            self.step_input = self.input(TensorType((), INT64))
        return self.step_input

    @override
    def bind1(self, primitive: Primitive, x: Variable, /) -> Variable:
        return self.bind(primitive, (x,), NO_STATIC)[0]

    @override
    def bind(self, primitive: Primitive, refs: tuple[Variable, ...], static: Static, /) -> tuple[Variable, ...]:
        for ref in refs:
            if type(ref) is not Variable or ref.ops is not self or self.closed is not None:
                self.adopt(ref)
        if self._mesh is not ALONE:
            if primitive is VARY:
                return refs
            if communicates(static):
                if primitive is SCAN:
                    return run_loop(self, *refs, **static)
                if primitive.declared:
                    return self.decompose(primitive, refs, static)
                raise apart(primitive, self.cursor.region.name)
        cursor = self.cursor
        if cursor.ordinal not in self.lines:
            self.lines[cursor.ordinal] = user_frame()
        types = self._infer(primitive, tuple([r.type for r in refs]), static)
        return self.write(primitive, refs, static, types)

    def _infer(self, primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> tuple[TensorType, ...]:
        key = (primitive, types, *static.values())
        known = self._inferred.get(key)
        if known is None:
            known = primitive.infer(types, static, self.cursor.region.name)
            if not any(isinstance(value, Body) for value in static.values()):
                self._inferred[key] = known
        return known


def record(
    program: Callable[..., tuple[Variable, ...]],
    types: Sequence[TensorType],
    dtype: DType,
    seed: int,
    input_names: Sequence[str] | None = None,
    mesh: Mesh = ALONE,
) -> Graph:
    """Record a base program on inputs of these types as a graph, for a rank if there is a `mesh`.

    If it reads the step, its last input is `step`.
    """
    recorder = Recorder(dtype, seed, mesh)
    inputs = [recorder.input(type_) for type_ in types]
    outputs = [recorder.adopt(ref) for ref in program(recorder, *inputs)]
    names = list(input_names) if input_names is not None else [f"input {i}" for i in range(len(types))]
    if recorder.step_input is not None:
        names.append("step")
    return Graph(recorder.finish(inputs, outputs), names, [f"output {i}" for i in range(len(outputs))], dtype, seed)


# Replay ---------------------------------------------------------------------------------------------------------------


def replay(ops: BaseInterpreter[Any], graph: Graph, inputs: Sequence[Any], step: int = 0) -> tuple[Any, ...]:
    """Return the outputs of the graph for refs of `ops`; errors have the line of the op in the recorded program."""
    body = graph.body

    def program(inner: BaseInterpreter[Any], *refs: Any) -> tuple[Any, ...]:
        every = [*refs, inner.step()] if len(body.inputs) > len(refs) else refs
        return evaluate(inner, body, every, constants(inner, body))

    return ops.execute_each(program, tuple(inputs), step)
