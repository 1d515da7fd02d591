"""Whether two graphs say the same, down to the bits of constants and the lines of the program."""

from __future__ import annotations

from typing import Any

from opstage.interpreters.graph import Graph
from opstage.ops.body import Body
from opstage.transforms.tracer import Composite, statics_of


def same_graphs(a: Graph, b: Graph) -> None:
    assert (a.input_names, a.output_names, a.dtype, a.seed) == (b.input_names, b.output_names, b.dtype, b.seed)
    assert described(a.body) == described(b.body)


def described(body: Body) -> Any:
    """All that a body holds, as text and bytes; the types and lines that nothing uses left out."""
    defined = {*body.inputs, *[c.slot for c in body.constants]}.union(*[e.outputs for e in body.equations])
    return (
        body.inputs,
        body.outputs,
        [(c.slot, c.value.dtype, c.value.shape, content(c.value), str(c.type)) for c in body.constants],
        [
            (
                (e.primitive.name,) if type(e.primitive) is Composite else e.primitive,
                [(name, static(value)) for name, value in statics_of(e).items()],
                e.inputs,
                e.outputs,
                e.region.path,
                e.ordinal,
                e.opened,
                e.backward,
                body.lines.get(e.ordinal),
            )
            for e in body.equations
        ],
        {slot: str(body.types[slot]) for slot in defined},
    )


def content(array: Any) -> Any:
    return list(array.flat) if array.dtype == object else array.tobytes()


def static(value: Any) -> Any:
    if isinstance(value, Body):
        return described(value)
    if type(value) is tuple:
        return tuple(map(static, value))
    return type(value).__name__, repr(value)
