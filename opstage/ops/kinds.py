"""The properties of an op that passes may ask for: its kind, and its effects besides its result."""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """How the elements of an op's results come from those of its operands.

    It licenses what is done to an op: an op of a wrong kind makes wrong numbers. OPAQUE licenses nothing.
    """

    __hash__ = object.__hash__  # there is one of each, and Enum's own hash is Python

    POINTWISE = "pointwise"
    """Each element is a function of the elements at its own place, the same one at every place (add, exp, select)."""
    LAYOUT = "layout"
    """Each element is an element of an operand; which one, types and static parameters say (reshape, slice, concat)."""
    REDUCTION = "reduction"
    """Each element is one function of all elements along some axes (sum, max, argmax)."""
    CONTRACTION = "contraction"
    """Each element is a sum of products, an element of either of two operands in each (matmul, convolution)."""
    COLLECTIVE = "collective"
    """Each element comes from other ranks of a mesh too: the interpreter of a mesh does it, and no kernel."""
    OPAQUE = "opaque"
    """Anything else, and whatever does not say: it is done by a kernel of its own, or by its decomposition."""


class Effect(Enum):
    """A side effect: anything besides results that operands and static parameters alone determine."""

    __hash__ = object.__hash__

    DRAWS = "draws"
    """Random bits: two draws stay two, and none is made before the program runs."""
    RAISES = "raises"
    """It may raise for what its operands hold, an index out of range; where its results are not read it is dropped."""
    EXTERNAL = "external"
    """Something that is seen outside (it prints, counts, sends): it is done once per run, whether its results are read
    or not, and never beforehand. In a loop the backward pass does it again where a derivative reads its results. They
    are zeros: a program that is compiled for a GPU goes on with those, and the host does the rest when its launches are
    done."""


ONCE_PER_RUN = frozenset({Effect.DRAWS, Effect.EXTERNAL})
"""Ops with one of these are never merged and never computed before the program runs."""
