"""Expansion: composites written out by their decomposition, but for those that the executor has a kernel for."""

from __future__ import annotations

from collections.abc import Hashable

from ....ops.closed import Body
from ...codegen.decomposition import Expander, Keep, stays
from .keys import static_key
from .rewrite import Rewrite


def expand(body: Body, keep: Keep, *, loops: bool = False) -> Body:
    """The body without composites, except those that `keep` says stay; decompositions are expanded recursively.

    The parts stand in the region, and at the ordinal, of the op that they serve. Loops stay loops; with `loops`
    they are unrolled.
    """
    rewrite = Rewrite(body)
    types = rewrite.types
    written: dict[Hashable, Body] = {}  # a decomposition is run once for operands of the same types
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
