"""Expansion: replaces composites by their decomposition, except those that the executor has a kernel for."""

from __future__ import annotations

from collections.abc import Hashable

from ....ops.closed import Body
from ...codegen.decomposition import Expander, Keep, stays
from .keys import static_key
from .rewrite import Rewrite


def expand(body: Body, keep: Keep, *, loops: bool = False) -> Body:
    """Expand composites recursively, except those that `keep` selects.

    The parts have the region and ordinal of the composite. With `loops`, loops are unrolled.
    """
    rewrite = Rewrite(body)
    types = rewrite.types
    written: dict[Hashable, Body] = {}  # each decomposition runs once per operand types
    for equation in body.equations:
        primitive, static = equation.primitive, equation.static
        inputs = rewrite.inputs(equation)
        if primitive.decomposition is None:
            rewrite.keep(equation, inputs)
            continue
        operands = tuple([types[slot] for slot in inputs])
        if stays(keep, primitive, operands, static, loops):
            rewrite.keep(equation, inputs)
            continue
        key = (primitive, operands, static_key(static))
        parts = written.get(key)
        if parts is None:
            parts = written[key] = Expander(keep, loops).parts(primitive, operands, static)
        rewrite.replace(equation.outputs, rewrite.inline(parts, inputs, equation))
    return rewrite.close()
