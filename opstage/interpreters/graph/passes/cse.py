"""Common subexpression elimination: an op that occurs twice on the same operands runs once."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.body import Body
from ....ops.collective import ALL_GATHER
from ....ops.dispatch import RULE
from ....ops.elementwise import ADD, MUL
from ....ops.logic import EQUAL, LOGICAL_AND
from ....ops.primitive import ONCE_PER_RUN, Static
from .rewrite import Rewrite

COMMUTATIVE = frozenset((ADD, MUL, EQUAL, LOGICAL_AND))


def common_subexpressions(body: Body) -> Body:
    """Merge equations with the same primitive, operands and static parameters, bit for bit.

    The first one stays in its place. Constants of the same type and bytes are merged. Random draws are not merged, even
    at one site, and neither are gathers over ranks: they are dropped and gathered again to save memory. What a declared
    rule recomputes in the backward pass is merged only with what the same rule computes there.
    """
    rewrite = Rewrite(body)
    _merge_constants(rewrite)
    known: dict[Hashable, tuple[int, ...]] = {}
    keys: dict[int, Hashable] = {}  # by id of static parameters, which equations written by one rule share
    for equation in body.equations:
        primitive, static, _, outputs = equation[:4]
        inputs = rewrite.inputs(equation)
        if not ONCE_PER_RUN.isdisjoint(equation.effects) or primitive is ALL_GATHER:
            rewrite.keep(equation, inputs)
            continue
        operands = inputs
        if primitive in COMMUTATIVE and inputs[1] < inputs[0]:
            operands = inputs[::-1]
        apart = (equation.region, equation.ordinal) if equation.backward == RULE else None
        if static:
            bits = keys.get(id(static))
            if bits is None:
                bits = keys[id(static)] = static_key(static)
            earlier = known.setdefault((primitive, operands, apart, bits), outputs)
        else:
            earlier = known.setdefault((primitive, operands, apart), outputs)
        if earlier is outputs:
            rewrite.keep(equation, inputs)
        else:
            rewrite.replace(outputs, earlier)
    return rewrite.close()


def _merge_constants(rewrite: Rewrite) -> None:
    """Merge equal constants into the first one; the bytes of a constant with a unique type are not compared."""
    constants = rewrite.constants
    alike = Counter((c.value.shape, c.value.dtype) for c in constants)
    known: dict[Hashable, int] = {}
    kept = []
    for constant in constants:
        if alike[constant.value.shape, constant.value.dtype] > 1:
            first = known.setdefault(array_key(constant.value), constant.slot)
            if first != constant.slot:
                rewrite.replace((constant.slot,), (first,))
                continue
        kept.append(constant)
    rewrite.constants = kept


# Keys -----------------------------------------------------------------------------------------------------------------

# Keys for lookup by meaning: static parameters by type and bits, arrays by bytes.
#
# Python's equality identifies 0.0 with -0.0 and 1 with True, and distinguishes a nan from itself.


def static_key(static: Static) -> Hashable:
    """Return a key that is equal for static parameters with the same names, types and bits; bodies are compared by
    content."""
    return tuple([(name, value_key(value)) for name, value in sorted(static.items())]) if static else ()


def value_key(value: Any) -> Hashable:
    """Return the key of one static parameter."""
    kind = type(value)
    if isinstance(value, str):
        return value
    if kind is float:
        return struct.pack("<d", value)
    if kind is tuple:
        return tuple([value_key(entry) for entry in value])
    if kind is Body:
        return body_key(value)
    return kind, value


def array_key(array: npt.NDArray[Any]) -> Hashable:
    """Return a key that is equal for arrays with the same shape, dtype and bits."""
    if array.dtype == object:
        return array.shape, "exact", tuple([(type(value), value) for value in array.flat])
    return array.shape, array.dtype.str, np.ascontiguousarray(array).tobytes()


def body_key(body: Body) -> Hashable:
    """Return a key of a body's computation, equal for bodies with the same equations between the same slots."""
    return (
        body.inputs,
        tuple([(constant.slot, array_key(constant.value)) for constant in body.constants]),
        tuple([(e.primitive, static_key(e.static), e.inputs, e.outputs) for e in body.equations]),
        body.outputs,
        tuple([(len(type_.shape), *type_.shape, type_.dtype.str) for type_ in body.types]),
    )
