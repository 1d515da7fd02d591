"""A graph as a reader wants to see it: forward, backward and update, in nested regions, those of one form folded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, TypeAlias, final

from ...ops.closed import Body, Equation
from ...ops.cursor import Region
from ...ops.dims import Dim, prod
from ...ops.errors import SourceLine
from ...ops.primitive import Cost
from ...ops.types import TensorType
from .graph import Graph
from .notation import show_static

PARTS = ("forward", "backward", "update")
"""The three parts of a training step, in the order in which they run."""

UPDATE = "update"
"""The region of the update, outermost."""

LONG_RUN = 8
"""So many equal ops in a row are shown as one line that can be opened."""


def part_of(equation: Equation) -> str:
    """Forward, backward or update."""
    path = equation.region.path
    if path and path[0][0] == UPDATE:
        return UPDATE
    return "backward" if equation.backward else "forward"


@final
@dataclass(frozen=True, eq=False)
class Node:
    """An equation and what is said of it; `inputs` are the types of its operands."""

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
        """Bytes of its results."""
        total: Dim = 0
        for type_ in self.outputs:
            total = total + type_.nbytes
        return total

    @property
    def statics(self) -> str:
        return ", ".join(f"{name}={show_static(value, [])}" for name, value in self.equation.static.items())

    @property
    def form(self) -> tuple[Any, ...]:
        """What it has in common with the same op of another block: all but names, and the sites of random draws."""
        static = tuple((name, show_static(v, [])) for name, v in self.equation.static.items() if name != "site")
        return self.op, static, tuple(map(str, self.inputs)), tuple(map(str, self.outputs))

    def nodes(self) -> Iterator[Node]:
        yield self


@final
@dataclass(eq=False)
class Group:
    """What stands in one region, in the order in which it was first entered."""

    name: str
    path: str
    members: list[Node | Group] = field(default_factory=list)

    def nodes(self) -> Iterator[Node]:
        """All equations in it, those of inner groups too."""
        for member in self.members:
            yield from member.nodes()

    @cached_property
    def form(self) -> tuple[Any, ...]:
        """Two regions of one form do the same on tensors of the same shapes."""
        return tuple((getattr(m, "name", "") if isinstance(m, Group) else "", m.form) for m in self.members)


@final
@dataclass(frozen=True)
class Fold:
    """Neighbours of one form: blocks of a model, or one op many times over."""

    name: str
    members: tuple[Node | Group, ...]

    def nodes(self) -> Iterator[Node]:
        for member in self.members:
            yield from member.nodes()


Item: TypeAlias = Node | Group | Fold


@final
class Outline:
    """The parts of a graph, each a group whose members are in order; see `folded` for showing them."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.parts = {part: Group(part, "") for part in PARTS}
        known: dict[tuple[str, tuple[tuple[str, int], ...]], Group] = {(part, ()): self.parts[part] for part in PARTS}
        for equation in graph.body.equations:
            part = part_of(equation)
            group = self.parts[part]
            path = equation.region.path
            for depth in range(1 if part == UPDATE else 0, len(path)):
                key = part, path[: depth + 1]
                if key not in known:
                    known[key] = Group(Region(path[depth : depth + 1]).name, Region(path[: depth + 1]).name)
                    group.members.append(known[key])
                group = known[key]
            group.members.append(_node(graph.body, equation))

    @property
    def parameters(self) -> Dim:
        """Elements of the inputs that are parameters, by their names."""
        total: Dim = 0
        for name, type_ in zip(self.graph.input_names, self.graph.input_types):
            if name.partition(".")[0] == "params":
                total = total + prod(type_.shape)
        return total


def _node(body: Body, equation: Equation) -> Node:
    inputs, outputs = (tuple([body.types[slot] for slot in slots]) for slots in (equation.inputs, equation.outputs))
    return Node(equation, inputs, outputs, body.lines.get(equation.ordinal))


def body_nodes(body: Body) -> Iterator[Node]:
    """The equations of a closed body, in order."""
    return (_node(body, equation) for equation in body.equations)


def total_cost(nodes: Iterator[Node]) -> Cost:
    """The flops of the nodes, and the bytes that they read and write."""
    flops: Dim = 0
    moved: Dim = 0
    for node in nodes:
        flops, moved = flops + node.cost.flops, moved + node.cost.bytes
    return Cost(flops, moved)


def folded(members: Sequence[Node | Group]) -> list[Item]:
    """The members, where neighbours of one form are one `Fold`: regions from two on, ops from `LONG_RUN` on."""
    items: list[Item] = []
    for _, run in groupby(members, key=lambda m: ("op", m.op) if isinstance(m, Node) else ("region", m.form)):
        alike = tuple(run)
        first, last = alike[0], alike[-1]
        if isinstance(first, Group) and isinstance(last, Group) and len(alike) > 1:
            items.append(Fold(f"{first.name} … {last.name}", alike))
        elif isinstance(first, Node) and len(alike) >= LONG_RUN:
            items.append(Fold(first.op, alike))
        else:
            items += alike
    return items


# Numbers --------------------------------------------------------------------------------------------------------------


def show_count(number: Dim) -> str:
    """`8,192`, `8.19 million`, `2,128·B·T²`."""
    if not isinstance(number, int):
        return _symbolic(number)
    for limit, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if number >= limit:
            return f"{number / limit:.3g} {name}"
    return f"{number:,}"


def show_bytes(number: Dim) -> str:
    """`512 bytes`, `8.0 KiB`, `4·B bytes`."""
    if not isinstance(number, int):
        return f"{_symbolic(number)} bytes"
    for limit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= limit:
            return f"{number / limit:.1f} {name}"
    return f"{number} bytes"


def _symbolic(number: Dim) -> str:
    text = re.sub(r"(?<!\w)\d{4,}", lambda found: f"{int(found[0]):,}", str(number))
    return text.replace("**2", "²").replace("**3", "³").replace("*", "·")
