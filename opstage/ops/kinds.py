"""Properties of ops that passes rely on: the kind, and the effects."""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """How the elements of an op's results depend on those of its operands.

    The kind licenses transformations: an op with a wrong kind computes wrong numbers. OPAQUE licenses nothing.
    """

    __hash__ = object.__hash__  # members are singletons, and Enum's own hash is Python code

    POINTWISE = "pointwise"
    """Each element is the same function of the operands' elements at its index (add, exp, select)."""
    LAYOUT = "layout"
    """Each element is an element of an operand, selected by types and static parameters (reshape, slice, concat)."""
    REDUCTION = "reduction"
    """Each element is the same function of all elements along some axes (sum, max, argmax)."""
    CONTRACTION = "contraction"
    """Each element is a sum of products with one factor from each of two operands (matmul, convolution)."""
    COLLECTIVE = "collective"
    """Each element also depends on other ranks of a mesh: computed by the mesh's interpreter, not by a kernel."""
    OPAQUE = "opaque"
    """Anything else, and the default: computed by its own kernel or decomposition."""


class Effect(Enum):
    """A side effect: anything other than results that only depend on operands and static parameters."""

    __hash__ = object.__hash__

    DRAWS = "draws"
    """Random bits: draws are not merged, and not made before the program runs."""
    RAISES = "raises"
    """May raise for values of its operands, such as an index out of range; removed if its results are unused."""
    EXTERNAL = "external"
    """An external effect (printing, counting, sending): it runs once per run, whether or not its results are used, and
    never ahead of time. In a loop, the backward pass repeats it if a derivative reads its results. The results are
    zeros: a program compiled for a GPU continues with those, and the host runs the op after its launches."""


ONCE_PER_RUN = frozenset({Effect.DRAWS, Effect.EXTERNAL})
"""Ops with one of these are never merged, and never computed before the program runs."""
