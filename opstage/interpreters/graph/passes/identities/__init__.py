"""Algebraic identities: an op is replaced by a simpler one with the same result, or by an operand."""

from __future__ import annotations

from collections.abc import Mapping

from .....ops.closed import Body
from .....ops.primitive import Primitive
from ..rewrite import Rewrite
from . import arithmetic, layout, logic, reduction
from .surroundings import Rule, Surroundings

RULES: Mapping[Primitive, tuple[Rule, ...]] = (
    arithmetic.RULES | logic.RULES | layout.RULES | reduction.RULES
)  # the primitives are disjoint


def simplify(body: Body) -> Body:
    """Apply all identities that hold in IEEE arithmetic, for zeros of either sign, infinities and nan.

    Payloads of nan are not preserved, nor is the sign of a sum of the single element -0.0. Identities of real numbers
    that do not hold for floats, such as x - x = 0, are not applied.

    Layout ops with a fixed permutation or change of shape become `permute` and `reshape`, so that they combine.
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
