"""Graphs in Graphviz's language: a node per op, a cluster per region, a colour per part of the training step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from .graph import Graph
from .outline import PHASES, Group, Outline, OutlineNode, phase_of

COLOURS = {"forward": "#cfe3f5", "backward": "#f9d5d0", "update": "#d3edd6"}
_OPERAND = "#eeeeee"


def to_dot(graph: Graph) -> str:
    """Return the text of a directed graph, whose edges are tensors labelled with their types."""
    body = graph.body
    lines = [
        "digraph opstage {",
        '  graph [rankdir="TB", fontname="sans-serif"];',
        '  node [shape="box", style="filled,rounded", fontname="sans-serif", fontsize="11"];',
        '  edge [fontname="sans-serif", fontsize="9"];',
    ]
    maker = {slot: f"op{position}" for position, e in enumerate(body.equations) for slot in e.outputs}
    position = {id(equation): number for number, equation in enumerate(body.equations)}
    read = body.read()
    for slot, name in zip(body.inputs, graph.input_names):
        if slot in read:
            maker[slot] = f"in{slot}"
            lines.append(_drawn(maker[slot], f"{name}\n{body.types[slot]}", _OPERAND, "  "))
    for constant in body.constants:
        maker[constant.slot] = f"const{constant.slot}"
        lines.append(_drawn(maker[constant.slot], f"constant\n{constant.type}", _OPERAND, "  "))
    outline = Outline(graph)
    clusters = count()
    for part in PHASES:
        lines += _members(outline.parts[part], position, clusters, "  ")
    for number, (slot, name) in enumerate(zip(body.outputs, graph.output_names)):
        lines.append(_drawn(f"out{number}", f"{name}\n{body.types[slot]}", _OPERAND, "  "))
        lines.append(f"  {maker[slot]} -> out{number};")
    for number, equation in enumerate(body.equations):
        for slot in dict.fromkeys(equation.inputs):
            lines.append(f"  {maker[slot]} -> op{number} [label={_quoted(str(body.types[slot]))}];")
    return "\n".join([*lines, "}"]) + "\n"


def _members(group: Group[OutlineNode], position: dict[int, int], clusters: Iterator[int], indent: str) -> list[str]:
    lines = []
    for member in group.members:
        if isinstance(member, OutlineNode):
            lines.append(_drawn_node(member, position[id(member.equation)], indent))
        else:
            number = next(clusters)
            lines.append(f"{indent}subgraph cluster{number} {{")
            lines.append(f'{indent}  label={_quoted(member.name)}; color="#999999"; style="rounded";')
            lines += _members(member, position, clusters, indent + "  ")
            lines.append(f"{indent}}}")
    return lines


def _drawn_node(node: OutlineNode, number: int, indent: str) -> str:
    tip = f", tooltip={_quoted(str(node.source))}" if node.source is not None else ""
    label = "\n".join([node.op, *map(str, node.outputs)])
    return _drawn(f"op{number}", label, COLOURS[phase_of(node.equation.region, node.equation.backward)], indent, tip)


def _drawn(name: str, label: str, colour: str, indent: str, more: str = "") -> str:
    return f'{indent}{name} [label={_quoted(label)}, fillcolor="{colour}"{more}];'


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
