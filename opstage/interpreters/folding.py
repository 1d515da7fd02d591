"""Ops grouped in a tree by region, with repeated neighbours folded, to show graphs and cost tables."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Generic, Protocol, TypeVar, final

from ..ops.cursor import Region

LONG_RUN = 8
"""From this many equal ops in a row on, they are shown as one line that can be opened."""

UPDATE = "update"
"""The outermost region of a training step's update."""


class Op(Protocol):
    """One op to show."""

    @property
    def op(self) -> str:
        """Its name."""
        ...

    @property
    def form(self) -> Hashable:
        """A key that is equal for the same op in another block."""
        ...


N = TypeVar("N", bound=Op)


@final
@dataclass(eq=False)
class Group(Generic[N]):
    """The contents of one region, in the order in which they were first entered."""

    name: str
    path: str
    members: list[N | Group[N]] = field(default_factory=list)

    def nodes(self) -> Iterator[N]:
        """All ops in it, including those of inner groups."""
        for member in self.members:
            if isinstance(member, Group):
                yield from member.nodes()
            else:
                yield member

    @property
    def folded(self) -> list[N | Group[N] | Fold[N]]:
        """The members, with neighbours of one form folded."""
        return folded(self.members)

    @cached_property
    def form(self) -> Hashable:
        """Two regions with the same form do the same on tensors of the same shapes."""
        return tuple([(m.name if isinstance(m, Group) else "", m.form) for m in self.members])


@final
@dataclass(frozen=True)
class Fold(Generic[N]):
    """Neighbours with the same form: blocks of a model, or one op many times."""

    name: str
    members: tuple[N | Group[N], ...]

    @property
    def folded(self) -> Sequence[N | Group[N]]:
        """The members, each by itself."""
        return self.members

    def nodes(self) -> Iterator[N]:
        for member in self.members:
            if isinstance(member, Group):
                yield from member.nodes()
            else:
                yield member


@final
class Tree(Generic[N]):
    """A group that is filled op by op; inner regions are created when they are first entered."""

    def __init__(self) -> None:
        self.root: Group[N] = Group("", "")
        self._known: dict[tuple[tuple[str, int], ...], Group[N]] = {(): self.root}

    def add(self, node: N, path: tuple[tuple[str, int], ...], *, skip: int = 0) -> None:
        """Add an op to the region of a path, leaving out the `skip` outermost parts."""
        group = self._known.get(path)
        if group is None:
            group = self.root
            for depth in range(skip, len(path)):
                key = path[: depth + 1]
                inner = self._known.get(key)
                if inner is None:
                    inner = self._known[key] = Group(Region(path[depth : depth + 1]).name, Region(key).name)
                    group.members.append(inner)
                group = inner
            self._known[path] = group
        group.members.append(node)


def folded(members: Sequence[N | Group[N]]) -> list[N | Group[N] | Fold[N]]:
    """The members, with neighbours of the same form in one `Fold`: two or more regions, `LONG_RUN` or more ops."""
    items: list[N | Group[N] | Fold[N]] = []
    for _, run in groupby(members, key=lambda m: ("region", m.form) if isinstance(m, Group) else ("op", m.op)):
        alike = tuple(run)
        first, last = alike[0], alike[-1]
        if isinstance(first, Group) and isinstance(last, Group) and len(alike) > 1:
            items.append(Fold(f"{first.name} … {last.name}", alike))
        elif not isinstance(first, Group) and len(alike) >= LONG_RUN:
            items.append(Fold(first.op, alike))
        else:
            items += alike
    return items
