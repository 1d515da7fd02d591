"""A graph as one self-contained HTML page: a drawing, then all ops in collapsible regions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

from ...ops.body import Body, Equation
from ...ops.errors import SourceLine
from ...ops.types import TensorType, dtype_name, show_shape
from ...pages import render
from .drawing import block_svgs
from .graph import Graph
from .outline import PHASES, Fold, Group, Item, Outline, OutlineNode, body_nodes, show_bytes, show_count, total_cost
from .text import names_of, static_bodies


class Remark(NamedTuple):
    """A message about an op: its severity, its text, and the op with its source line."""

    severity: str
    text: str
    op: str
    source: SourceLine | None


def to_html(graph: Graph, title: str, remarks: Sequence[Remark] = ()) -> str:
    """Return the page. `title` identifies the program.

    All `remarks` are listed above the drawing, and each next to the forward ops of its name on its line.
    """

    def anchor(item: Item) -> str:
        first = next(item.nodes()).equation.outputs[:1]
        return f"n{first[0]}" if first else ""

    page = _GraphPage(graph, remarks)
    return render(
        "graph.html", title=title, page=page, graph=graph, body=graph.body, drawings=block_svgs(graph, anchor)
    )


@final
class _GraphPage:
    """The values of the template."""

    def __init__(self, graph: Graph, remarks: Sequence[Remark]):
        self.remarks = remarks
        outline = Outline(graph)
        self.parts = {part: outline.parts[part] for part in PHASES if outline.parts[part].members}
        count = outline.parameters
        self.parameters = "" if isinstance(count, int) and count == 0 else show_count(count)
        self._names = names_of(graph.body.inputs, graph.input_names)

    def totals(self) -> list[tuple[str, str, str, str]]:
        """Return for each part, and for all together, its name, ops, flops and bytes."""
        every = {part: list(group.nodes()) for part, group in self.parts.items()}
        every[""] = [node for nodes in every.values() for node in nodes]
        costs = [(part, nodes, total_cost(iter(nodes))) for part, nodes in every.items()]
        return [
            (part, f"{len(nodes):,}", show_count(cost.flops), show_bytes(cost.bytes)) for part, nodes, cost in costs
        ]

    def all_remarks(self) -> list[tuple[Remark, int | None]]:
        """Return every remark, with the first result of the first op that it is about, if the graph has it."""
        nodes = [node for group in self.parts.values() for node in group.nodes() if node.equation.outputs]
        return [
            (remark, next((node.equation.outputs[0] for node in nodes if _is_about(remark, node)), None))
            for remark in self.remarks
        ]

    def about(self, node: OutlineNode) -> list[Remark]:
        """Return the remarks about an op."""
        return [remark for remark in self.remarks if _is_about(remark, node)]

    def inputs(self, body: Body, names: Sequence[str] | None) -> list[tuple[int, str]]:
        """Return the slots of inputs and constants with their names."""
        given = zip(body.inputs, names if names is not None else ["input"] * len(body.inputs))
        return [*given, *[(constant.slot, "constant") for constant in body.constants]]

    def bodies(self, equation: Equation) -> list[Body]:
        return static_bodies(equation) if equation.static else []  # a composite is shown as one op

    def nodes(self, body: Body) -> list[OutlineNode]:
        return list(body_nodes(body))

    def name(self, slot: int, prefix: str) -> str:
        """Return the name of a tensor; those of closed bodies, which have a prefix, are numbered."""
        return (None if prefix else self._names.get(slot)) or f"%{slot}"

    def file_name(self, node: OutlineNode) -> str:
        return Path(node.source.file).name if node.source is not None else ""

    def flops(self, node: OutlineNode) -> str:
        return show_count(node.cost.flops)

    def shapes(self, types: Sequence[TensorType]) -> list[str]:
        return [show_shape(type_.shape) for type_ in types]

    def dtypes(self, types: Sequence[TensorType]) -> list[str]:
        return [dtype_name(type_.dtype) for type_ in types]

    def sizes(self, types: Sequence[TensorType]) -> list[str]:
        return [show_bytes(type_.nbytes) for type_ in types]

    def summary(self, item: Group[OutlineNode] | Fold[OutlineNode]) -> str:
        """Return `12 ops · 1,024 flops · 4.0 KiB`."""
        nodes = list(item.nodes())
        cost = total_cost(iter(nodes))
        ops = f"{len(nodes):,} op{'s' if len(nodes) > 1 else ''}"
        return f"{ops} · {show_count(cost.flops)} flops · {show_bytes(cost.bytes)}"


def _is_about(remark: Remark, node: OutlineNode) -> bool:
    return (
        node.source is not None
        and remark.source is not None
        and remark.source[:2] == node.source[:2]
        and remark.op == node.op
        and not node.equation.backward
    )
