"""A graph as one self-contained HTML page: a drawing, then all ops in collapsible regions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple, final

from ...ops.closed import Body
from ...ops.errors import SourceLine
from ...ops.types import TensorType, dtype_name, show_shape
from ..folding import Fold, Group, nested_html, title_html
from .drawing import block_svgs
from .graph import Graph
from .outline import PARTS, Item, Outline, OutlineNode, body_nodes, show_bytes, show_count, total_cost
from .page_files import SCRIPT, STYLE
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
    return _Page(graph, title, remarks).html()


@final
class _Page:
    def __init__(self, graph: Graph, title: str, remarks: Sequence[Remark]):
        self.graph = graph
        self.remarks = remarks
        self.title = title
        self.outline = Outline(graph)
        self.names = names_of(graph.body.inputs, graph.input_names)
        self.inputs = set(graph.body.inputs)
        self.anchors: dict[int, str] = {}

    def html(self) -> str:
        parts = [self._part(part) for part in PARTS if self.outline.parts[part].members]
        body = "\n".join(
            [
                f"<header><h1>{escape(self.title)}</h1>{self._totals()}</header>",
                self._all_remarks(),
                self._controls(),
                self._drawing(),
                _COLUMNS,
                self._inputs(),
                *parts,
                self._outputs(),
            ]
        )
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f"<title>{escape(self.title)}</title>\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
            f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
        )

    # Above the ops ----------------------------------------------------------------------------------------------------

    def _totals(self) -> str:
        parts = [(part, list(self.outline.parts[part].nodes())) for part in PARTS]
        rows = [_row(part, f"<i></i>{part}", nodes) for part, nodes in parts if nodes]
        rows.append(_row("", "together", [node for _, nodes in parts for node in nodes]))
        parameters = self.outline.parameters
        has_none = isinstance(parameters, int) and parameters == 0
        return (
            ("" if has_none else f'<p id="parameters">{escape(show_count(parameters))} parameters</p>')
            + '<table id="totals"><thead><tr><th></th><th>ops</th><th>flops</th><th>bytes read and written</th></tr>'
            f"</thead><tbody>{''.join(rows)}</tbody></table>"
        )

    def _all_remarks(self) -> str:
        """Return the list of all remarks, each with a link to the first op that it is about, if the graph has it."""
        nodes = [node for part in PARTS for node in self.outline.parts[part].nodes()]
        rows = []
        for remark in self.remarks:
            about = next((node for node in nodes if node.equation.outputs and _is_about(remark, node)), None)
            link = f' <a href="#n{about.equation.outputs[0]}">the op</a>' if about is not None else ""
            rows.append(f'<pre class="{remark.severity}">{escape(f"{remark.severity}: {remark.text}")}{link}</pre>')
        return f'<section id="remarks">{"".join(rows)}</section>' if rows else ""

    def _drawing(self) -> str:
        def anchor(item: Item) -> str:
            first = next(item.nodes()).equation.outputs[:1]
            return f"n{first[0]}" if first else ""

        whole, *blocks = block_svgs(self.graph, anchor).items()
        templates = "".join(f'<template data-block="{escape(path)}">{svg}</template>' for path, svg in blocks)
        buttons = "".join(
            f'<button type="button" data-zoom="{what}" aria-label="{label}" title="{label}">{sign}</button>'
            for what, label, sign in (("in", "Closer", "+"), ("out", "Farther", "−"), ("fit", "The whole", "⤢"))
        )
        return (
            '<details id="drawing" open><summary>Drawing</summary><div class="tools" hidden><span id="trail"></span>'
            f'{buttons}</div><div class="wide">{whole[1]}</div>{templates}</details>'
        )

    def _controls(self) -> str:
        boxes = "".join(
            f'<label class="{part}"><input type="checkbox" data-part="{part}" checked><i></i>{part}</label>'
            for part in PARTS
            if self.outline.parts[part].members
        )
        return (
            f'<nav>{boxes}<input type="search" id="search" placeholder="Search: op, shape, region, file…" '
            'aria-label="Search"><span id="found" role="status"></span>'
            '<button type="button" id="open">Open all</button><button type="button" id="close">Close all</button></nav>'
        )

    def _inputs(self) -> str:
        body = self.graph.body
        rows = [self._given(slot, name, body, "") for slot, name in zip(body.inputs, self.graph.input_names)]
        return _end("inputs", rows + self._constants(body, ""))

    def _outputs(self) -> str:
        named = zip(self.graph.body.outputs, self.graph.output_names)
        rows = [_plain("", name, self._ref(slot, ""), self.graph.body.types[slot]) for slot, name in named]
        return _end("outputs", rows)

    def _given(self, slot: int, name: str, body: Body, prefix: str) -> str:
        return _plain(f"n{prefix}{slot}", name, "", body.types[slot], f"%{slot}")

    def _constants(self, body: Body, prefix: str) -> list[str]:
        return [self._given(constant.slot, "constant", body, prefix) for constant in body.constants]

    # The ops ----------------------------------------------------------------------------------------------------------

    def _part(self, part: str) -> str:
        group = self.outline.parts[part]
        return (
            f'<details class="part {part}" id="{part}" open><summary><i></i><b>{part}</b> {_said(group)}</summary>'
            f"{nested_html(group.members, self._item)}</details>"
        )

    def _item(self, item: Item, _: int) -> str:
        if isinstance(item, OutlineNode):
            return self._node(item, "")
        if isinstance(item, Group):
            return f"<b{title_html(item)}>{escape(item.name)}</b> {_said(item)}"
        first = item.members[0]
        said = f'<span class="muted">each</span> {_said(first)}' if isinstance(first, Group) else _said(item)
        return f'<b>{escape(item.name)}</b> <span class="times">{len(item.members)} alike</span> {said}'

    def _node(self, node: OutlineNode, prefix: str) -> str:
        equation = node.equation
        slots = equation.outputs
        marks = "".join(f'<a id="n{prefix}{slot}"></a>' for slot in slots)
        operands = ", ".join(self._ref(slot, prefix) for slot in equation.inputs)
        line = '<span class="line"></span>'
        if node.source is not None:
            file, number = node.source.file, node.source.line
            line = f'<span class="line" title="{escape(file)}:{number}">{escape(Path(file).name)}:{number}</span>'
        flops = show_count(node.cost.flops)
        statics = f'<small title="{escape(node.statics)}">{escape(node.statics)}</small>' if equation.static else ""
        row = (
            f'<div class="n">{marks}<span class="id">{"<br>".join(f"%{slot}" for slot in slots)}</span>'
            f'<span class="op">{escape(node.op)}{statics}</span><span class="from">{operands}</span>'
            f'{_typed(node.outputs)}<span class="flops">{escape(flops)}</span>{line}{self._beside(node)}</div>'
        )
        for number, body in enumerate(static_bodies(equation)):
            row += self._body(body, f"{prefix}{slots[0]}b{number}-")
        return row

    def _beside(self, node: OutlineNode) -> str:
        """Return the remarks about an op."""
        about = [remark for remark in self.remarks if _is_about(remark, node)]
        lines = [(remark.severity, f"{remark.severity}: {remark.text}".splitlines()[0]) for remark in about]
        return "".join(f'<span class="remark {severity}">{escape(line)}</span>' for severity, line in lines)

    def _body(self, body: Body, prefix: str) -> str:
        rows = [self._given(slot, "input", body, prefix) for slot in body.inputs] + self._constants(body, prefix)
        rows += [self._node(node, prefix) for node in body_nodes(body)]
        said = f'<span class="muted">{len(body.equations)} ops per iteration</span>'
        return f'<details class="group"><summary><b>body</b> {said}</summary>{"".join(rows)}</details>'

    def _ref(self, slot: int, prefix: str) -> str:
        name = self.names.get(slot) if not prefix else None
        return f'<a href="#n{prefix}{slot}">{escape(name or f"%{slot}")}</a>'


def _is_about(remark: Remark, node: OutlineNode) -> bool:
    return (
        node.source is not None
        and remark.source is not None
        and remark.source[:2] == node.source[:2]
        and remark.op == node.op
        and not node.equation.backward
    )


_COLUMNS = (
    '<div class="n head"><span class="id"></span><span>op</span><span>of</span><span>shape</span><span>dtype</span>'
    "<span>bytes</span><span>flops</span><span>line</span></div>"
)


def _typed(types: Iterable[TensorType]) -> str:
    """Return three columns: shapes, dtypes, bytes."""
    every = list(types)
    columns = (
        [escape(show_shape(type_.shape)) for type_ in every],
        [escape(dtype_name(type_.dtype)) for type_ in every],
        [escape(show_bytes(type_.nbytes)) for type_ in every],
    )
    names = ("shape", "dtype", "bytes")
    return "".join(f'<span class="{name}">{"<br>".join(cells)}</span>' for name, cells in zip(names, columns))


def _plain(mark: str, name: str, of: str, type_: TensorType, number: str = "") -> str:
    """Return the row of an input, constant or output."""
    identity = f' id="{mark}"' if mark else ""
    return (
        f'<div class="n"{identity}><span class="id">{number}</span><span class="op">{escape(name)}</span>'
        f'<span class="from">{of}</span>{_typed([type_])}<span></span><span></span></div>'
    )


def _end(kind: str, rows: Sequence[str]) -> str:
    return (
        f'<details class="part io" id="{kind}"><summary><b>{kind}</b> <span class="muted">{len(rows)}</span></summary>'
        f"{''.join(rows)}</details>"
    )


def _row(part: str, name: str, nodes: Sequence[OutlineNode]) -> str:
    cost = total_cost(iter(nodes))
    return (
        f'<tr class="{part}"><th>{name}</th><td>{len(nodes):,}</td><td>{escape(show_count(cost.flops))}</td>'
        f"<td>{escape(show_bytes(cost.bytes))}</td></tr>"
    )


def _said(item: Group[OutlineNode] | Fold[OutlineNode]) -> str:
    nodes = list(item.nodes())
    cost = total_cost(iter(nodes))
    ops = f"{len(nodes):,} op{'s' if len(nodes) > 1 else ''}"
    said = f"{ops} · {show_count(cost.flops)} flops · {show_bytes(cost.bytes)}"
    return f'<span class="muted">{escape(said)}</span>'
