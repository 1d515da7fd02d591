"""Ops arranged for readers: by phase, in nested regions, with neighbours of one form folded; their costs."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, final

from ...ops.body import Body, Equation
from ...ops.dims import Dim, prod
from ...ops.dispatch import Region
from ...ops.errors import SourceLine
from ...ops.primitive import Cost
from ...ops.readable_amounts import show_formula, show_size
from ...ops.types import TensorType
from .graph import Graph
from .notation import show_static

# Regions and folds ----------------------------------------------------------------------------------------------------


LONG_RUN = 8
"""From this many equal ops in a row on, they are shown as one line that can be opened."""

UPDATE = "update"
"""The outermost region of a training step's update."""

PHASES = ("forward", "backward", UPDATE)
"""The phases of a training step, in the order in which they run."""


def phase_of(region: Region, backward: int) -> str:
    """Return the phase of an op called in `region`: "forward", "backward" or "update"."""
    if region.path and region.path[0][0] == UPDATE:
        return UPDATE
    return "backward" if backward else "forward"


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


_PART = re.compile(r"[^.]+(?:\.\d+)*")
"""A part of a parameter's path, with the indices of a list: `blocks.0`."""

UPDATED = "params"
"""The block of an update that has more than one op for each parameter."""


@final
@dataclass(frozen=True, eq=False)
class OutlineNode:
    """An equation with its types, source line and cost; `inputs` are the types of its operands."""

    equation: Equation
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    source: SourceLine | None

    @property
    def op(self) -> str:
        return self.equation.primitive.name

    @cached_property
    def cost(self) -> Cost:
        return self.equation.primitive.cost(self.inputs, self.outputs, self.equation.static)

    @property
    def nbytes(self) -> Dim:
        """Return the bytes of its results."""
        total: Dim = 0
        for type_ in self.outputs:
            total = total + type_.nbytes
        return total

    @property
    def statics(self) -> str:
        return ", ".join(f"{name}={show_static(value, [])}" for name, value in self.equation.static.items())

    @property
    def form(self) -> tuple[Any, ...]:
        """A key that is equal for the same op in another block: everything except names and the sites of random
        draws."""
        static = tuple((name, show_static(v, [])) for name, v in self.equation.static.items() if name != "site")
        return self.op, static, tuple(map(str, self.inputs)), tuple(map(str, self.outputs))

    def nodes(self) -> Iterator[OutlineNode]:
        yield self


Path: TypeAlias = tuple[tuple[str, int], ...]
"""A region: names from the outermost on, each with its occurrence."""

Item: TypeAlias = OutlineNode | Group[OutlineNode] | Fold[OutlineNode]


@final
class Outline:
    """The phases of a graph, each a group with members in order; see `folded` for a compact form."""

    def __init__(self, graph: Graph):
        self.graph = graph
        trees: dict[str, Tree[OutlineNode]] = {part: Tree() for part in PHASES}
        blocks = {} if _has_regions(graph) else _blocks(graph)
        for equation in graph.body.equations:
            part = phase_of(equation.region, equation.backward)
            path = equation.region.path if part == UPDATE else equation.region.path or blocks.get(equation.ordinal, ())
            trees[part].add(_node(graph.body, equation), path, skip=1 if part == UPDATE else 0)
        self.parts = {part: tree.root for part, tree in trees.items()}
        update = self.parts[UPDATE]
        if len(folded(update.members)) > 1:  # several ops for each parameter of a tree
            update.members = [Group(UPDATED, UPDATED, update.members)]

    @property
    def parameters(self) -> Dim:
        """Return the total size of the inputs named as parameters."""
        total: Dim = 0
        for name, type_ in zip(self.graph.input_names, self.graph.input_types):
            if name.partition(".")[0] == "params":
                total = total + prod(type_.shape)
        return total


def _has_regions(graph: Graph) -> bool:
    return any(phase_of(each.region, each.backward) != UPDATE and each.region.path for each in graph.body.equations)


def _blocks(graph: Graph) -> dict[int, Path]:
    """Return a block for each op of a program without regions, by ordinal: that of the parameter which it reads,
    `layers.0` of `params.layers.0.weight`, else that of the op before it."""
    of: dict[int, Path] = {}
    for name, slot in zip(graph.input_names, graph.body.inputs):
        root, _, path = name.partition(".")
        if root == "params" and path:
            inside = path.rpartition(".")[0] or path
            of[slot] = tuple([(part, 0) for part in _PART.findall(inside)])
    found: dict[int, Path] = {}
    block: Path = ()
    for equation in graph.body.equations:
        if phase_of(equation.region, equation.backward) == "forward":
            read = [of[slot] for slot in equation.inputs if slot in of]
            if read and len(read) == len(equation.inputs):  # a view of parameters, or what is computed of them alone
                of.update(dict.fromkeys(equation.outputs, read[0]))
            block = read[0] if read else block
            found.setdefault(equation.ordinal, block)
    return found


def _node(body: Body, equation: Equation) -> OutlineNode:
    inputs, outputs = (tuple([body.types[slot] for slot in slots]) for slots in (equation.inputs, equation.outputs))
    return OutlineNode(equation, inputs, outputs, body.lines.get(equation.ordinal))


def body_nodes(body: Body) -> Iterator[OutlineNode]:
    """Yield the equations of a closed body, in order."""
    return (_node(body, equation) for equation in body.equations)


def total_cost(nodes: Iterator[OutlineNode]) -> Cost:
    """Return the total flops of the nodes and the bytes they read and write."""
    flops: Dim = 0
    moved: Dim = 0
    for node in nodes:
        flops, moved = flops + node.cost.flops, moved + node.cost.bytes
    return Cost(flops, moved)


# Numbers --------------------------------------------------------------------------------------------------------------


def show_count(number: Dim) -> str:
    """Format a count: `8,192`, `8.19 million`, `2,128*B*T²`."""
    if isinstance(number, int):
        for limit, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
            if number >= limit:
                return f"{number / limit:.3g} {name}"
    return show_formula(number)


def show_bytes(number: Dim) -> str:
    """Format bytes: `512 bytes`, `8.0 KiB`, `4*B bytes`."""
    return show_size(number) if isinstance(number, int) else f"{show_formula(number)} bytes"
