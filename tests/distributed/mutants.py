"""Wrong versions of a step's body: each collective left out, called twice, moved, or another, within loops too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opstage.ops.body import Body, Equation
from opstage.ops.collective import ALL_MAX, ALL_REDUCE, REDUCE_SCATTER, SHARD, VARY
from opstage.transforms.control_flow import get_bodies

_KEEPS_THE_TYPE = (VARY, ALL_REDUCE, ALL_MAX)


def mutants(body: Body) -> Iterator[tuple[str, Body]]:
    """Every mutant with a word on it; of the collectives that keep a type, as others would break the shapes."""
    for i, equation in enumerate(body.equations):
        if equation.primitive in _KEEPS_THE_TYPE:
            name = f"{equation.primitive.name} {i}"
            yield f"{name} left out", _left_out(body, i)
            yield f"{name} doubled", _doubled(body, i)
            for what, made in (("late", _late(body, i)), ("early", _early(body, i))):
                if made is not None:
                    yield f"{name} {what}", made
        for part, inner in get_bodies(equation.static):
            for what, made in mutants(inner):
                changed = equation._replace(static={**equation.static, part: made})
                equations = [*body.equations[:i], changed, *body.equations[i + 1 :]]
                yield f"{what} within {equation.primitive.name} {i}", body.replace(equations=equations)
        if equation.primitive in (REDUCE_SCATTER, SHARD) and any(e.backward for e in body.equations[:i]):
            yield f"{equation.primitive.name} {i} is the other", _another(body, i)


def _another(body: Body, i: int) -> Body:
    """The own part of a sum in place of that of x, and the reverse: of gradients, moments and parameters."""
    equation = body.equations[i]
    other = equation._replace(primitive=SHARD if equation.primitive is REDUCE_SCATTER else REDUCE_SCATTER)
    return body.replace(equations=[*body.equations[:i], other, *body.equations[i + 1 :]])


def _left_out(body: Body, i: int) -> Body:
    (x,), (out,) = body.equations[i].inputs, body.equations[i].outputs
    rest = [_reading(e, out, x) for e in (*body.equations[:i], *body.equations[i + 1 :])]
    return body.replace(equations=rest, outputs=[x if slot == out else slot for slot in body.outputs])


def _doubled(body: Body, i: int) -> Body:
    equation = body.equations[i]
    between, types = _slot(body, equation.outputs[0])
    twice = [equation._replace(outputs=(between,)), equation._replace(inputs=(between,))]
    return body.replace(equations=[*body.equations[:i], *twice, *body.equations[i + 1 :]], types=types)


def _late(body: Body, i: int) -> Body | None:
    """Behind the op that reads its result, where there is one."""
    equation = body.equations[i]
    (x,), (out,) = equation.inputs, equation.outputs
    readers = [j for j, e in enumerate(body.equations) if out in e.inputs]
    if len(readers) != 1 or out in body.outputs or len(body.equations[readers[0]].outputs) != 1:
        return None
    reader = _reading(body.equations[readers[0]], out, x)
    if reader.primitive in _KEEPS_THE_TYPE or body.types[reader.outputs[0]].dtype.kind != "f":
        return None
    before, types = _slot(body, reader.outputs[0])
    moved = [reader._replace(outputs=(before,)), equation._replace(inputs=(before,), outputs=reader.outputs)]
    j = readers[0]
    rest = [*body.equations[:i], *body.equations[i + 1 : j], *moved, *body.equations[j + 1 :]]
    return body.replace(equations=rest, types=types)


def _early(body: Body, i: int) -> Body | None:
    """Before the op that makes its operand, at the first float that one reads."""
    equation = body.equations[i]
    (x,) = equation.inputs
    makers = [e for e in body.equations[:i] if x in e.outputs]
    if not makers or len(makers[0].outputs) != 1 or makers[0].primitive in _KEEPS_THE_TYPE:
        return None
    floats = [slot for slot in makers[0].inputs if body.types[slot].dtype.kind == "f"]
    if not floats:
        return None
    between, types = _slot(body, floats[0])
    collective = equation._replace(inputs=(floats[0],), outputs=(between,))
    maker = _reading(makers[0], floats[0], between)._replace(outputs=equation.outputs)
    return body.replace(equations=[*body.equations[:i], collective, maker, *body.equations[i + 1 :]], types=types)


def _slot(body: Body, like: int) -> tuple[int, Sequence[object]]:
    return len(body.types), [*body.types, body.types[like]]  # type: ignore[return-value]


def _reading(equation: Equation, old: int, new: int) -> Equation:
    return equation._replace(inputs=tuple([new if slot == old else slot for slot in equation.inputs]))
