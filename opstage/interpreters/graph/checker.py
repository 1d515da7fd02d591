"""The invariants of graphs, as a table, and the check of a graph against them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...ops.body import Body, Equation
from ...ops.dims import DimExpr, DimFloat
from ...ops.dispatch import Region
from ...ops.errors import OpstageError, a_type, brief
from ...ops.primitive import Primitive
from ...ops.types import EXACT, TensorType
from ...transforms.tracer import graph_statics
from .graph import Graph

_MOST_SHOWN = 20  # violations of one rule


class GraphError(OpstageError):
    """A graph violates invariants of its form: a pass is wrong, or a file was altered. The message lists all
    violations."""


Violation: TypeAlias = "tuple[int | None, str]"
"""The position of an equation, or None for the whole body, and a description."""


class Invariant(NamedTuple):
    """A statement that holds for every body, and a function that yields its violations.

    `needs` names the rules that this one relies on; if one of them is violated, this one is not checked.
    """

    name: str
    statement: str
    violations: Callable[[Body], Iterator[Violation]]
    needs: tuple[str, ...] = ()


# The rules ------------------------------------------------------------------------------------------------------------


def _typed(body: Body) -> Iterator[Violation]:
    for where, slots in _mentions(body):
        for slot in slots:
            if type(slot) is not int or not 0 <= slot < len(body.types):
                yield where, f"%{_number(slot)} lacks a type: the body has {len(body.types)} slots"
    for slot, type_ in enumerate(body.types):
        if not isinstance(type_, TensorType):
            yield None, f"%{slot} has the type {type_!r}, which is not a TensorType"


def _number(slot: object) -> str:
    """Return a slot's number, or a short form of an invalid one."""
    return slot if isinstance(slot, str) else brief(slot)


def _mentions(body: Body) -> Iterator[tuple[int | None, tuple[int, ...]]]:
    yield None, (*body.inputs, *[constant.slot for constant in body.constants], *body.outputs)
    for position, equation in enumerate(body.equations):
        yield position, (*equation.inputs, *equation.outputs)


def _defined_once(body: Body) -> Iterator[Violation]:
    known: dict[int, str] = {}
    for slot, count in Counter(body.inputs).items():
        known[slot] = "an input"
        if count > 1:
            yield None, f"%{slot} is {count} inputs"
    for constant in body.constants:
        if constant.slot in known:
            yield None, f"%{constant.slot} is a constant and also {known[constant.slot]}"
        known.setdefault(constant.slot, "a constant")
    for position, equation in enumerate(body.equations):
        for slot in equation.outputs:
            if slot in known:
                yield position, f"%{slot} is defined here and also {known[slot]}"
            known.setdefault(slot, f"a result of equation {position}")


def _defined_before_use(body: Body) -> Iterator[Violation]:
    defined = {*body.inputs, *[constant.slot for constant in body.constants]}
    for position, equation in enumerate(body.equations):
        for slot in equation.inputs:
            if slot not in defined:
                yield position, f"%{slot} is read here but not defined before"
        defined.update(equation.outputs)


def _outputs_exist(body: Body) -> Iterator[Violation]:
    defined = {*body.inputs, *[constant.slot for constant in body.constants]}
    defined.update(slot for equation in body.equations for slot in equation.outputs)
    for number, slot in enumerate(body.outputs):
        if slot not in defined:
            yield None, f"output {number} is %{slot}, which nothing defines"


def _static_canonical(body: Body) -> Iterator[Violation]:
    for position, equation in enumerate(body.equations):
        for name, value in equation.static.items():
            for wrong in _not_canonical(value):
                yield position, f"{name} holds {brief(wrong)}, {a_type(wrong)}"


_CANONICAL = (bool, int, float, str, Fraction, DimExpr, Body, type(None))


def _not_canonical(value: Any) -> Iterator[Any]:
    if type(value) is tuple:
        for entry in value:
            yield from _not_canonical(entry)
    elif type(value) not in _CANONICAL and not isinstance(value, DimFloat):
        yield value


def _types_follow(body: Body) -> Iterator[Violation]:
    for position, equation in enumerate(body.equations):
        operands = tuple([body.types[slot] for slot in equation.inputs])
        stated = tuple([body.types[slot] for slot in equation.outputs])
        try:
            _require_signature(equation, operands)
            # as text: an invalid static parameter may pass a shape rule and only fail when shown
            inferred = [str(t) for t in equation.primitive.infer(operands, equation.static, equation.region.name)]
        except OpstageError as error:
            yield position, f"its operands do not fit: {getattr(error, 'reason', error)}"
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            yield position, f"its operands or static parameters are not those of {equation.primitive.name}: {error}"
        else:
            if len(inferred) != len(stated):
                yield position, f"it has {len(stated)} results, but {equation.primitive.name} has {len(inferred)}"
            for slot, found, expected in zip(equation.outputs, stated, inferred):
                if str(found) != expected:
                    yield position, f"%{slot} is {found}, but the shape rule says {expected}"


def _require_signature(equation: Equation, operands: tuple[TensorType, ...]) -> None:
    """Raise TypeError for static parameters that a composite does not have or that have the wrong type. Its shape rule
    may accept anything that it does not use."""
    decomposition = equation.primitive.decomposition
    if decomposition is not None:
        signature = inspect.signature(decomposition)
        signature.bind(None, *operands, **equation.static)
        for name, value in equation.static.items():
            kind = signature.parameters[name].annotation if name in signature.parameters else ""
            if not isinstance(value, _KINDS.get(kind, object)):
                raise TypeError(f"{name}: expected a {kind}, got {brief(value)}")


_KINDS: dict[str, Any] = {"bool": bool, "str": str, "float": (int, float, Fraction, DimExpr, DimFloat)}


def _constants_fit(body: Body) -> Iterator[Violation]:
    for slot, value, type_ in body.constants:
        if not isinstance(value, np.ndarray):
            yield None, f"constant %{slot} holds {a_type(value)}, not an array"
        elif type_ != body.types[slot]:
            yield None, f"constant %{slot} says {type_}, but the slot is {body.types[slot]}"
        elif not all(isinstance(n, int) for n in type_.shape) or value.shape != type_.shape:
            yield None, f"constant %{slot} is {type_}, but its value has the shape {value.shape}"
        elif value.dtype != type_.dtype and type_.dtype != EXACT and not _casts(value.dtype, type_.dtype):
            yield None, f"constant %{slot} is {type_}, but its value is {value.dtype}"
        elif value.flags.writeable:
            yield None, f"constant %{slot} can be written to"


def _casts(held: np.dtype[Any], stated: np.dtype[Any]) -> bool:
    """Return whether a constant's array may have another dtype: bodies keep numbers as written, and convert on use."""
    return "biufO".index(held.kind) <= "biufO".index(stated.kind) if held.kind in "biufO" else False


def _placed(body: Body) -> Iterator[Violation]:
    for position, equation in enumerate(body.equations):
        if not isinstance(equation.region, Region):
            yield position, f"its region is {a_type(equation.region)}"
        if type(equation.ordinal) is not int or equation.ordinal < 0:
            yield position, f"its ordinal: expected an integer from 0 on, got {brief(equation.ordinal)}"
        elif equation.ordinal not in body.lines:
            yield position, f"its ordinal {equation.ordinal} does not belong to an op of the program"


def _primitives(body: Body) -> Iterator[Violation]:
    for position, equation in enumerate(body.equations):
        if not isinstance(equation.primitive, Primitive):
            yield position, f"{equation.primitive!r} is not a Primitive"


def _opened(body: Body) -> Iterator[Violation]:
    read = set(body.outputs).union(*[equation.inputs for equation in body.equations])
    for position, equation in enumerate(body.equations):
        residuals = equation.outputs[len(equation.outputs) - len(equation.primitive.residuals) :]
        if not equation.opened and not read.isdisjoint(residuals):
            slot = min(read.intersection(residuals))
            yield position, f"the residual %{slot} is read, but the equation is not opened"


def _hashable(body: Body) -> Iterator[Violation]:
    for position, equation in enumerate(body.equations):
        for name, value in equation.static.items():
            try:
                hash(value)
            except TypeError as error:
                yield position, f"{name} cannot be hashed: {error}"


RULES: tuple[Invariant, ...] = (
    Invariant("primitive", "the op of every equation is a primitive", _primitives),
    Invariant("typed", "every slot that is named has a type", _typed),
    Invariant("once", "every slot is defined once: inputs are distinct, and nothing is written again", _defined_once),
    Invariant("before use", "every slot is defined before it is read", _defined_before_use, needs=("typed",)),
    Invariant("outputs", "every output is defined", _outputs_exist),
    Invariant(
        "canonical", "static parameters are numbers, sizes, texts, closed bodies, or tuples of them", _static_canonical
    ),
    Invariant("hashable", "static parameters can be hashed", _hashable),
    Invariant(
        "types",
        "results have the types that the primitive's shape rule finds",
        _types_follow,
        needs=("primitive", "typed"),
    ),
    Invariant(
        "constants", "the value of a constant is a read-only array of its type", _constants_fit, needs=("typed",)
    ),
    Invariant("place", "every equation is in a region and belongs to an op of the program", _placed),
    Invariant("opened", "an equation is opened if one of its residuals is read", _opened, needs=("primitive",)),
)
"""The rules of one body. Bodies in static parameters obey the same rules; they are closed, so values from outside are
operands."""


def violations(body: Body, path: str = "") -> list[str]:
    """Return the violations in a body and in the closed bodies within it, one per line; long lists are cut."""
    found: list[str] = []
    broken: set[str] = set()
    for rule in RULES:
        if not broken.isdisjoint(rule.needs):
            continue
        for where, what in islice(rule.violations(body), _MOST_SHOWN):
            broken.add(rule.name)
            place = path + ("" if where is None else f"equation {where}")
            shown = "" if where is None else f"\n      {_show(body, body.equations[where])}"
            found.append(f"{rule.name}: {place}{': ' if place else ''}{what}{shown}")
    for position, equation in enumerate(body.equations):
        for name, value in graph_statics(equation).items():
            for inner in _bodies(value) if len(found) < _MOST_SHOWN else ():
                found += violations(inner, f"{path}equation {position}, {name}, ")
    return found


def _bodies(value: Any) -> Iterator[Body]:
    if type(value) is Body:
        yield value
    elif isinstance(value, tuple):
        for entry in value:
            yield from _bodies(entry)


def check_graph(graph: Graph) -> Graph:
    """Return the graph itself if it obeys `RULES`. Raises GraphError with all violations and their equations."""
    found = violations(graph.body)
    for kind, names, slots in (
        ("inputs", graph.input_names, graph.body.inputs),
        ("outputs", graph.output_names, graph.body.outputs),
    ):
        if len(names) != len(slots):
            found.append(f"names: {len(names)} names for {len(slots)} {kind}")
    if found:
        count = f"{len(found)} rules are" if len(found) > 1 else "a rule is"
        raise GraphError(f"{count} broken in {graph!r}:\n    " + "\n    ".join(found))
    return graph


def _show(body: Body, equation: Equation) -> str:
    """Return the text of an equation, even if the equation is malformed."""

    def typed(slot: int) -> str:
        known = type(slot) is int and 0 <= slot < len(body.types)
        return f"%{slot}: {body.types[slot]}" if known else f"%{_number(slot)}"

    words = [f"%{_number(slot)}" for slot in equation.inputs[:_MOST_SHOWN]]
    words += [f"{name}={brief(value)}" for name, value in equation.static.items()]
    line = body.lines.get(equation.ordinal) if isinstance(equation.ordinal, int) else None
    results = ", ".join(map(typed, equation.outputs[:_MOST_SHOWN]))
    return f"{results} = {equation.primitive!r}({', '.join(words)})" + (f"  # {line}" if line is not None else "")
