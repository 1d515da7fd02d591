"""Algebraic identities: an op whose result is that of a simpler one, or is an operand, gives way to it."""

from __future__ import annotations

from collections.abc import Mapping

from .....ops.closed import Body
from .....ops.primitive import Primitive
from ..rewrite import Rewrite
from . import arithmetic, inexact, layout, logic, reduction
from .surroundings import Rule, Surroundings

EXACT: Mapping[Primitive, tuple[Rule, ...]] = (
    arithmetic.RULES | logic.RULES | layout.RULES | reduction.RULES
)  # of disjoint primitives
INEXACT: Mapping[Primitive, tuple[Rule, ...]] = {
    primitive: (*EXACT.get(primitive, ()), *inexact.RULES.get(primitive, ())) for primitive in {*EXACT, *inexact.RULES}
}


def simplify(body: Body, *, exact: bool = True) -> Body:
    """The body with every identity applied that holds in IEEE arithmetic, for zeros of either sign, infinities and nan.

    Not told apart: which nan it is, and whether the sum of the one element -0.0 is 0.0. With `exact=False` also
    identities of real numbers: x + 0, x·0, x - x, sums and scales put in another order.

    Layout ops of one axis order or shape are written as `permute` and `reshape`, so that they combine.
    """
    rewrite = Rewrite(body)
    surroundings = Surroundings(rewrite, EXACT if exact else INEXACT)
    rules = surroundings.rules
    for equation in body.equations:
        inputs = rewrite.inputs(equation)
        if equation.primitive in rules:
            surroundings.place = equation
            types = rewrite.types
            (result,) = equation.outputs
            slot = surroundings.simpler(equation.primitive, inputs, equation.static, types[result])
            if slot is not None:
                rewrite.replace((result,), (slot,))
                continue
        surroundings.see(rewrite.keep(equation, inputs))
    return rewrite.close()
