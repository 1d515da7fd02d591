"""Ops in their regions, as a tree, and neighbours of one form folded: how graphs and tables of cost are shown."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import groupby
from typing import Generic, Protocol, TypeVar, final

from ..ops.cursor import Region

LONG_RUN = 8
"""So many equal ops in a row are shown as one line that can be opened."""

UPDATE = "update"
"""The region of a training step's update, outermost."""


class Op(Protocol):
    """One op of what is shown."""

    @property
    def op(self) -> str:
        """Its name."""
        ...

    @property
    def form(self) -> Hashable:
        """A key equal for the same op in another block."""
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
        """All ops in it, those of inner groups too."""
        for member in self.members:
            if isinstance(member, Group):
                yield from member.nodes()
            else:
                yield member

    @cached_property
    def form(self) -> Hashable:
        """Two regions of one form do the same on tensors of the same shapes."""
        return tuple([(m.name if isinstance(m, Group) else "", m.form) for m in self.members])


@final
@dataclass(frozen=True)
class Fold(Generic[N]):
    """Neighbours of one form: blocks of a model, or one op many times over."""

    name: str
    members: tuple[N | Group[N], ...]

    def nodes(self) -> Iterator[N]:
        for member in self.members:
            if isinstance(member, Group):
                yield from member.nodes()
            else:
                yield member


@final
class Tree(Generic[N]):
    """A group that is filled op by op; regions within it are made when they are first entered."""

    def __init__(self) -> None:
        self.root: Group[N] = Group("", "")
        self._known: dict[tuple[tuple[str, int], ...], Group[N]] = {(): self.root}

    def add(self, node: N, path: tuple[tuple[str, int], ...], *, skip: int = 0) -> None:
        """Put an op into the region of a path, `skip` outermost ones left out."""
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
    """The members, where neighbours of one form are one `Fold`: regions from two on, ops from `LONG_RUN` on."""
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


def nested_html(
    members: Sequence[N | Group[N]],
    line: Callable[[N | Group[N] | Fold[N], int], str],
    *,
    opened: bool = False,
    first_of_fold: bool = False,
) -> str:
    """The members as HTML: the `line` of each at its depth, that of a region or `Fold` above its members, opened by it.

    opened         whether regions are open from the start
    first_of_fold  whether a fold of regions shows only the first, which stands for all
    """

    def html(item: N | Group[N] | Fold[N], depth: int) -> str:
        if isinstance(item, Group):
            inner = "".join([html(each, depth + 1) for each in folded(item.members)])
            kind = f'class="group" data-path="{escape(item.path)}"{" open" if opened else ""}'
        elif isinstance(item, Fold):
            shown = item.members[:1] if first_of_fold and isinstance(item.members[0], Group) else item.members
            inner, kind = "".join([html(each, depth + 1) for each in shown]), 'class="fold"'
        else:
            return line(item, depth)
        return f"<details {kind}><summary>{line(item, depth)}</summary>{inner}</details>"

    return "".join([html(item, 0) for item in folded(members)])


def title_html(group: Group[N]) -> str:
    """The attribute that shows the path of a region whose name is not the whole of it."""
    return f' title="{escape(group.path)}"' if group.path != group.name else ""
