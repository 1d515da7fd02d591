"""Where a checked program runs: which interpreter has a kernel for each op, in which dtype, and whether it exports to
ONNX.

The answer comes from the check's trace, the kernel tables and the table of ONNX rules, without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from ...ops.errors import OpstageError, SourceLine, UnsupportedError, UsageError
from ...ops.primitive import Primitive, Static
from ...ops.types import TensorType
from ...options import DEVICES, FloatName, Options
from ...transforms.control_flow import get_bodies
from ...transforms.interpreter import BaseInterpreter
from ..registry import GraphFormat, backends, graph_format, graph_formats, make_interpreter
from .interpreter import ShapeOps, require_kernel
from .report import Report

_UPDATE = "update"


@dataclass(frozen=True)
class Obstacle:
    """Why a program does not run somewhere: the op and its call in the program; no op if it is not about one."""

    reason: str
    op: str = ""
    source: SourceLine | None = None

    def __str__(self) -> str:
        place = f"{self.op} at {self.source}: " if self.source is not None else f"{self.op}: " if self.op else ""
        return place + self.reason


@dataclass(frozen=True)
class Answer:
    """Whether a program runs on `where`, in `dtype`: `obstacle` is the reason why not, or None."""

    where: str
    dtype: str
    obstacle: Obstacle | None

    @property
    def runs(self) -> bool:
        return self.obstacle is None


class _OpUse(NamedTuple):
    """One way in which the program uses an op."""

    primitive: Primitive
    types: tuple[TensorType, ...]
    static: Static
    source: SourceLine | None
    step_only: bool


def capabilities(report: Report, options: Options) -> tuple[Answer, ...]:
    """Return an answer for each interpreter, device and dtype, and for ONNX; `options` are those of the check."""
    uses = list(_uses(report))
    answers = []
    for device in DEVICES:
        for backend in backends():
            if backend == "shape_check":
                continue
            for dtype in get_args(FloatName):
                answers.append(_on(uses, options, backend, device, dtype))
    formats = [graph_format(name) for name in graph_formats()]
    return (*answers, *[answer for each in formats for answer in _written_as(each, uses, options)])


def _on(uses: list[_OpUse], options: Options, backend: str, device: str, dtype: str) -> Answer:
    where = f"{backend} on {device}"
    try:
        wanted = options.replace(backend=backend, device=device, dtype=dtype)
        interpreter = make_interpreter(wanted)
    except UsageError as error:
        return Answer(where, dtype, Obstacle(str(error)))
    return Answer(where, dtype, _first(uses, lambda use: _lacks_kernel(interpreter, wanted, use)))


def _written_as(format: GraphFormat, uses: list[_OpUse], options: Options) -> Iterator[Answer]:
    name = format.name
    if options.dtype not in format.dtypes:
        yield Answer(name, options.dtype, Obstacle(f"{name} has no element type for dtype {options.dtype}"))
        return
    memo: dict[Primitive, str] = {}

    def unsaid(use: _OpUse) -> str:
        if format.expresses(use.primitive):
            return ""
        if use.primitive not in memo:
            memo[use.primitive] = ""  # a decomposition never contains its own op
            if use.primitive.decomposition is None:
                memo[use.primitive] = f"{name} cannot say {use.primitive}: no rule says it"
            else:
                memo[use.primitive] = next(filter(None, map(unsaid, _parts(use, options))), "")
        return memo[use.primitive]

    forward = [use for use in uses if not use.step_only]
    yield Answer(f"{name}, the forward pass", options.dtype, _first(forward, unsaid))
    if len(forward) < len(uses):
        yield Answer(f"{name}, one training step", options.dtype, _first(uses, unsaid))


def _first(uses: list[_OpUse], fault: Callable[[_OpUse], str]) -> Obstacle | None:
    for use in uses:
        reason = fault(use)
        if reason:
            return Obstacle(reason, use.primitive.name, use.source)
    return None


def _lacks_kernel(interpreter: BaseInterpreter[Any], options: Options, use: _OpUse) -> str:
    """Return why an interpreter cannot compute an op, directly or by its decomposition; "" if it can."""
    try:
        require_kernel(interpreter, options, use.primitive, use.types, use.static)
    except UnsupportedError as error:
        return error.reason
    except OpstageError:
        pass  # reported by the check itself
    return ""


def _parts(use: _OpUse, options: Options) -> list[_OpUse]:
    """Return the ops of a composite."""
    parts = ShapeOps(options)
    try:
        parts.decompose(use.primitive, tuple([parts.input(type_) for type_ in use.types]), use.static)
    except OpstageError:
        return []
    types = parts.trace.types
    return [
        _OpUse(e.primitive, tuple([types[slot] for slot in e.inputs]), e.static, use.source, use.step_only)
        for e in parts.trace.equations
    ]


def _uses(report: Report) -> Iterator[_OpUse]:
    """Yield each op with each way in which the program uses it, and the first line that does."""
    program = report.program
    met = set()
    for e in program.body.equations:
        step_only = bool(e.backward) or any(name == _UPDATE for name, _ in e.region.path[:1])
        types = program.types(e.inputs)
        key = (e.primitive, types, *e.static.values(), step_only)
        if program.is_doubtful(e) or key in met:
            continue
        met.add(key)
        use = _OpUse(e.primitive, types, e.static, program.source(e), step_only)
        yield use
        yield from _inside(use)


def _inside(use: _OpUse) -> Iterator[_OpUse]:
    """Yield the ops in the body of a loop."""
    for _, body in get_bodies(use.static):
        for equation in body.equations:
            types = tuple(body.types[slot] for slot in equation.inputs)
            source = body.lines.get(equation.ordinal) or use.source
            inner = _OpUse(equation.primitive, types, equation.static, source, use.step_only)
            yield inner
            yield from _inside(inner)
