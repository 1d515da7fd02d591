"""Algebraic identities: an op whose result is that of a simpler one, or is an operand, gives way to it."""

from __future__ import annotations

from collections.abc import Mapping

from .....ops.closed import Body
from .....ops.primitive import Primitive
from ..rewrite import Rewrite
from . import arithmetic, layout, logic, reduction
from .surroundings import Rule, Surroundings

RULES: Mapping[Primitive, tuple[Rule, ...]] = (
    arithmetic.RULES | logic.RULES | layout.RULES | reduction.RULES
)  # of disjoint primitives


def simplify(body: Body) -> Body:
    """The body with every identity applied that holds in IEEE arithmetic, for zeros of either sign, infinities and nan.

    Not distinguished: which nan it is, and whether the sum of the one element -0.0 is 0.0. Identities of real numbers
    that floats do not keep, such as x - x = 0, are not applied.

    Layout ops of one axis order or shape are written as `permute` and `reshape`, so that they combine.
    """
    rewrite = Rewrite(body)
    surroundings = Surroundings(rewrite, RULES)
    for equation in body.equations:
        inputs = rewrite.inputs(equation)
        if equation.primitive in RULES:
            surroundings.place = equation
            types = rewrite.types
            (result,) = equation.outputs
            slot = surroundings.simpler(equation.primitive, inputs, equation.static, types[result])
            if slot is not None:
                rewrite.replace((result,), (slot,))
                continue
        surroundings.see(rewrite.keep(equation, inputs))
    return rewrite.close()
