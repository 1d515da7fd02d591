"""Domains whose facts have the indices of the loops around a tensor, which are its first ones."""

from __future__ import annotations

from typing_extensions import override

from ...ops.dims import Dim
from ...ops.types import Shape
from ..domain import Domain
from .fact import Fact, lifted


class Nested(Domain[Fact]):
    """The loops that a run is in.

    outer   the lengths of these loops, from the outermost on
    """

    def __init__(self) -> None:
        self.outer: Shape = ()

    @property
    @override
    def context(self) -> Shape:
        return self.outer

    @override
    def enter(self, length: Dim) -> None:
        self.outer = (*self.outer, length)

    @override
    def leave(self) -> None:
        self.outer = self.outer[:-1]

    def within(self, fact: Fact) -> Fact:
        """The fact of the same tensor in the loops around: it is alike in all their iterations."""
        return lifted(fact, self.outer)

    @override
    def invariant(self, fact: Fact, length: Dim) -> Fact:
        return self.within(fact)
