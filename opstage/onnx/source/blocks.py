"""The regions of a program as a tree of blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, final

from .calls import DRAWN
from .steps import CallStep, ChoiceStep, Path, Step


def draws_in(step: Step) -> bool:
    """Whether a step draws random numbers."""
    if isinstance(step, ChoiceStep):
        return any(draws_in(each) for each in (*step.evaluated, *step.trained))
    return isinstance(step, CallStep) and step.primitive.name in DRAWN


@final
@dataclass(eq=False)
class RegionBlock:
    """A region: its steps and the regions within it, in order."""

    name: str
    path: Path
    members: list[Member] = field(default_factory=list)
    first: int = 0
    last: int = 0
    arguments: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    prefix: str | None = None
    key: int = -1

    def steps(self) -> list[Step]:
        """Return all steps in the region."""
        found: list[Step] = []
        for member in self.members:
            found += member.steps() if isinstance(member, RegionBlock) else [member]
        return found


Member: TypeAlias = "Step | RegionBlock"
