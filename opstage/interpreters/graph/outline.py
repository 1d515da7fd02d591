"""A graph arranged for readers: forward, backward and update, in nested regions, with blocks of one form folded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, final

from ...ops.closed import Body, Equation
from ...ops.dims import Dim, prod
from ...ops.errors import SourceLine
from ...ops.primitive import Cost
from ...ops.types import TensorType
from ..folding import UPDATE, Fold, Group, Tree, folded
from ..formula import show_formula, show_size
from .graph import Graph
from .notation import show_static

PARTS = ("forward", "backward", "update")
"""The three parts of a training step, in the order in which they run."""

_PART = re.compile(r"[^.]+(?:\.\d+)*")
"""A part of a parameter's path, with the indices of a list: `blocks.0`."""

UPDATED = "params"
"""The block of an update that has more than one op for each parameter."""


def part_of(equation: Equation) -> str:
    """Return the part of an equation: "forward", "backward" or "update"."""
    path = equation.region.path
    if path and path[0][0] == UPDATE:
        return UPDATE
    return "backward" if equation.backward else "forward"


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
    """The parts of a graph, each a group with members in order; see `folded` for a compact form."""

    def __init__(self, graph: Graph):
        self.graph = graph
        trees: dict[str, Tree[OutlineNode]] = {part: Tree() for part in PARTS}
        blocks = {} if _has_regions(graph) else _blocks(graph)
        for equation in graph.body.equations:
            part = part_of(equation)
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
    return any(part_of(each) != UPDATE and each.region.path for each in graph.body.equations)


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
        if part_of(equation) == "forward":
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
