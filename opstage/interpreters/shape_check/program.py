"""A program as traced by a check: its equations, and information that only a check has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...ops.body import Body, Equation, with_opened
from ...ops.dims import DimScope
from ...ops.errors import Place, SourceLine
from ...ops.types import FLOAT32, DType, TensorType

if TYPE_CHECKING:
    from ..graph.graph import Graph


@dataclass(frozen=True, eq=False)
class CheckedProgram:
    """body          every op in order, those on which no output depends too; without outputs where an error kept it
                  from returning
    names         the path of each input; empty for what is not an argument: the random step
    output_names  makes those of what it returned, which takes a while
    parameters    how many of the inputs, from the first on, are the model's parameters
    tied          for each parameter that is at several places the paths of all of them, the first as in `names`
    scope         where the named dims live
    places        where the user's program called each op, by its ordinal
    rules         first results of the ops that a derivative rule or a decomposition bound on behalf of another
    doubtful      tensors whose types are guesses, as an error came before
    dtype, seed   of the interpreter
    ranges        by the paths of inputs what their Specs declare of their elements
    initial       by the paths of inputs between which numbers their first values are, such as those of parameters
    lasting       by the paths of inputs between which numbers they are in every step, such as the optimizer's scalars
    """

    body: Body = field(default_factory=lambda: Body((), (), (), (), (), {}))
    names: tuple[str, ...] = ()
    output_names: Callable[[], list[str]] = list
    parameters: int = 0
    tied: tuple[tuple[str, ...], ...] = ()
    scope: DimScope = field(default_factory=DimScope)
    places: Mapping[int, Place | None] = field(default_factory=dict)
    rules: frozenset[int] | set[int] = frozenset()
    doubtful: frozenset[int] | set[int] = frozenset()
    dtype: DType = FLOAT32
    seed: int = 0
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    initial: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    lasting: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def is_rule(self, equation: Equation) -> bool:
        """Whether a derivative rule or a decomposition bound it."""
        return not self.rules.isdisjoint(equation.outputs)

    def is_doubtful(self, equation: Equation) -> bool:
        """Whether its types are guesses."""
        return not self.doubtful.isdisjoint(equation.outputs)

    def place(self, equation: Equation) -> Place | None:
        """Return the place of the op's call in the user's program; None for ops bound by a rule."""
        return None if self.is_rule(equation) else self.places.get(equation.ordinal)

    def source(self, equation: Equation | None) -> SourceLine | None:
        """Return the user's call that an op is, or implements."""
        if equation is None:
            return None
        place = self.places.get(equation.ordinal)
        return self.body.lines.get(equation.ordinal) if place is None else place.source

    def types(self, slots: tuple[int, ...]) -> tuple[TensorType, ...]:
        """Return the types of these tensors."""
        types = self.body.types
        return tuple([types[slot] for slot in slots])

    def graph(self) -> Graph:
        """Return the ops on which the outputs depend, like `record`."""
        from ..graph.graph import Graph
        from ..graph.passes.pipeline import dead_code

        lines = {at: place and SourceLine(place.code.co_filename, place.number) for at, place in self.places.items()}
        names = [name or "step" for name in self.names]
        body = self.body.replace(equations=with_opened([*self.body.equations], self.body.outputs), lines=lines)
        return Graph(dead_code(body), names, self.output_names(), self.dtype, self.seed)
