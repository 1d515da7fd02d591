"""Graphs drawn as SVG, and in Graphviz's language.

A drawing has forward down the left, backward up next to its forward ops, the update on the right. Regions and folds are
closed boxes; an edge shows the largest tensor between two boxes. Parameters are not drawn; a box shows how many
parameter elements it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby
from typing import NamedTuple, final

from ...ops.dims import Dim
from ...ops.types import TensorType
from ...pages import render
from .graph import Graph
from .outline import (
    PHASES,
    UPDATE,
    Fold,
    Group,
    Item,
    Outline,
    OutlineNode,
    folded,
    phase_of,
    show_bytes,
    show_count,
    total_cost,
)

WIDTH, HEIGHT = 252, 62
ROW, COLUMN = 104, 372
MARGIN = 60
DECK = 8
MOST_BOXES = 32
_MOST_OUTPUTS = 3


class DrawnBox(NamedTuple):
    """A box of the drawing: title, further lines, and its part (`io` for inputs and outputs)."""

    title: str
    lines: tuple[str, ...]
    part: str
    column: int
    row: int
    anchor: str = ""
    deck: bool = False
    """Whether it represents several blocks of one form."""
    ops: str = ""
    """The slots of its ops, as ranges for the page's search: `3-7,9`."""
    block: str = ""
    """The block that a click opens, on a page with drawings of blocks."""

    @property
    def x(self) -> int:
        return MARGIN + self.column * COLUMN

    @property
    def y(self) -> int:
        return MARGIN + self.row * ROW

    @property
    def height(self) -> int:
        return HEIGHT if self.part != "io" else 30 + 15 * len(self.lines)

    @property
    def bottom(self) -> int:
        return self.y + self.height + (DECK if self.deck else 0)

    @property
    def middle(self) -> int:
        return self.y + self.height // 2

    @property
    def width(self) -> int:
        return WIDTH

    @property
    def shadows(self) -> tuple[int, ...]:
        """The offsets of the frames behind it."""
        return (DECK, DECK // 2) if self.deck else ()

    def texts(self) -> list[tuple[str, int, str]]:
        """Return its lines, cut to its width: class, y, text."""
        lines = [("small", self.y + 36 + 15 * i, _cut(line, 44)) for i, line in enumerate(self.lines)]
        return [("title", self.y + 19, _cut(self.title, 30 if self.block else 34)), *lines]


class DrawnEdge(NamedTuple):
    """An edge: its kind, which has a colour, its curve, and its label with the position, if it has one."""

    kind: str
    title: str
    curve: str
    label: tuple[int, int, str] | None = None


def to_svg(graph: Graph, anchors: Callable[[Item], str] = lambda item: "") -> str:
    """Return the drawing of a graph; `anchors` returns the link target of each box."""
    outline = Outline(graph)
    return _Drawing(graph, whole_scene(graph, outline), anchors).svg()


def block_svgs(graph: Graph, anchors: Callable[[Item], str]) -> dict[str, str]:
    """Return the drawing of the graph under the empty name, with the attributes that a page needs to find and open
    boxes, and one drawing of each block.

    A block is a region, with forward and backward side by side, named by its path. Of several blocks of one form, which
    share a box, the first is drawn.
    """
    outline = Outline(graph)
    scenes = {"": whole_scene(graph, outline), **block_scenes(graph, outline)}
    return {
        path: _Drawing(graph, scene, anchors, frozenset(scenes), number).svg()
        for number, (path, scene) in enumerate(scenes.items())
    }


@final
class _Drawing:
    def __init__(
        self,
        graph: Graph,
        scene: Scene,
        anchors: Callable[[Item], str],
        blocks: Collection[str] | None = None,
        number: int = 0,
    ):
        """`blocks` are those that can be opened, if any; `number` distinguishes drawings on one page."""
        self.graph = graph
        self.anchors = anchors
        self.blocks = blocks
        self.number = number
        items = {part: few(scene.parts.get(part, ()), part) for part in PHASES}
        self.boxes: list[DrawnBox] = []
        self.maker: dict[int, int] = {}
        self.shown_outputs: list[tuple[int, int]] = []
        self.inputs = scene.inputs
        rows = _rows(items)
        for part, column in zip(PHASES, range(len(PHASES))):
            for item, row in zip(items[part], rows[part]):
                self._add(item, part, column, row + (1 if self.inputs else 0))
        self._add_inputs()
        self._add_outputs(scene.outputs)

    def _add(self, item: Item, part: str, column: int, row: int) -> None:
        nodes = list(item.nodes())
        for node in nodes:
            self.maker |= dict.fromkeys(node.equation.outputs, len(self.boxes))
        cost = total_cost(iter(nodes))
        moves = isinstance(cost.flops, int) and cost.flops == 0
        work = f"{show_count(cost.flops)} flops"
        if moves:
            work = (
                f"{show_bytes(cost.bytes)} read and written"
                if isinstance(cost.bytes, int) and cost.bytes
                else "no bytes move"
            )
        lines = [_described(item, len(nodes)), work]
        numbers = self._parameters(nodes)
        if numbers and part != "backward":
            lines[0] += f", {show_count(numbers)} parameters"
        title = item.op if isinstance(item, OutlineNode) else item.name
        deck = part == UPDATE if not isinstance(item, Fold) else isinstance(item.members[0], Group) or part == UPDATE
        block, ops = "", ""
        if self.blocks is not None:
            ops = _ranges(slot for node in nodes for slot in node.equation.outputs)
            block = opened(item) if opened(item) in self.blocks and part != UPDATE else ""
        self.boxes.append(
            DrawnBox(title, tuple(lines), part, column, row, self.anchors(item), deck and len(nodes) > 1, ops, block)
        )

    def _parameters(self, nodes: Sequence[OutlineNode]) -> Dim:
        read = {slot for node in nodes for slot in node.equation.inputs}
        total: Dim = 0
        for slot, name in zip(self.graph.body.inputs, self.graph.input_names):
            if slot in read and name.startswith("params."):
                total = total + self.graph.body.types[slot].size
        return total

    def _add_inputs(self) -> None:
        shown = self.inputs[:1] if len(self.inputs) > 3 else self.inputs
        if not shown:
            return
        for slot, _ in self.inputs:
            self.maker[slot] = len(self.boxes)
        names = ", ".join(name for _, name in self.inputs)
        types = tuple(f"{name} {self.graph.body.types[slot]}" for slot, name in shown)
        self.boxes.append(DrawnBox(names if len(names) < 30 else f"{len(self.inputs)} inputs", types[:2], "io", 0, 0))

    def _add_outputs(self, outputs: Sequence[tuple[int, str]]) -> None:
        bottom = 1 + max((box.row for box in self.boxes), default=0)
        for slot, name in [(slot, name) for slot, name in outputs if slot in self.maker][:_MOST_OUTPUTS]:
            self.shown_outputs.append((len(self.boxes), slot))
            self.boxes.append(DrawnBox(name, (str(self.graph.body.types[slot]),), "io", 0, bottom))
            bottom += 1

    def _edges(self) -> dict[tuple[int, int], TensorType]:
        """Return, for every two connected boxes, the largest tensor between them."""
        found: dict[tuple[int, int], TensorType] = {}
        equations = [e for e in self.graph.body.equations if e.outputs and e.outputs[0] in self.maker]
        reads = [(self.maker[e.outputs[0]], slot) for e in equations for slot in e.inputs]
        reads += self.shown_outputs
        for box, slot in reads:
            source = self.maker.get(slot)
            if source is None or source == box:
                continue
            type_ = self.graph.body.types[slot]
            known = found.get((source, box))
            if known is None or len(type_.shape) > len(known.shape):
                found[source, box] = type_
        return found

    def svg(self) -> str:
        return render(
            "drawing.html",
            boxes=self.boxes,
            edges=[_edge(self.boxes[a], self.boxes[b], type_) for (a, b), type_ in self._edges().items()],
            headings=[
                (MARGIN + column * COLUMN, MARGIN // 2, part)
                for column, part in enumerate(PHASES)
                if any(box.part == part for box in self.boxes)
            ],
            width=2 * MARGIN + WIDTH + COLUMN * max((box.column for box in self.boxes), default=0),
            height=MARGIN + ROW * max((box.row for box in self.boxes), default=0) + HEIGHT + MARGIN // 2,
            number=self.number,
        )


def few(members: Sequence[OutlineNode | Group[OutlineNode]], part: str) -> list[Item]:
    """Reduce the members to at most MOST_BOXES if possible: fold them, then merge ops outside of regions by the op that
    they differentiate (in the backward pass), by line, and finally all together."""
    items = folded(members)
    for key in (_served, _line, _loose) if part == "backward" else (_line, _loose):
        if len(items) > MOST_BOXES or key is _served:
            merged: list[Item] = []
            for where, run in groupby(items, key=key):
                together = list(run)
                nodes = tuple(node for item in together for node in item.nodes())
                ops = ", ".join(dict.fromkeys(node.op for node in nodes))
                merged += together if not where or len(together) == 1 else [Fold(ops, nodes)]
            items = merged
    return items


def _served(item: Item) -> str:
    return str(next(item.nodes()).equation.ordinal) if isinstance(item, OutlineNode) else ""


def _line(item: Item) -> str:
    return "" if _is_region(item) else str(next(item.nodes()).source)


def _loose(item: Item) -> str:
    return "" if _is_region(item) else "ops"


def _is_region(item: Item) -> bool:
    return isinstance(item, Group) or (isinstance(item, Fold) and isinstance(item.members[0], Group))


def _described(item: Item, count: int) -> str:
    if isinstance(item, OutlineNode):
        return str(item.outputs[0]) if item.outputs else ""
    if isinstance(item, Fold) and _is_region(item):
        return f"{len(item.members)} × {_ops(count // len(item.members))}"
    return _ops(count)


def _ops(count: int) -> str:
    return f"{count} ops" if count > 1 else "1 op"


def _rows(items: dict[str, list[Item]]) -> dict[str, list[int]]:
    """Return the row of every box: backward boxes next to the forward boxes they differentiate, as far as the order
    allows."""
    forward = [{node.equation.ordinal for node in item.nodes()} for item in items["forward"]]
    backward: list[int] = []
    free = max(len(forward), 1)
    for item in items["backward"]:
        ordinals = {node.equation.ordinal for node in item.nodes()}
        beside = [row for row, those in enumerate(forward[: max(free, 0)]) if not ordinals.isdisjoint(those)]
        free = max(beside) if beside else free - 1
        backward.append(free)
    shift = max(0, -min(backward, default=0))
    middle = (len(forward) + shift - len(items[UPDATE])) // 2
    return {
        "forward": [row + shift for row in range(len(forward))],
        "backward": [row + shift for row in backward],
        UPDATE: [max(0, middle) + row for row in range(len(items[UPDATE]))],
    }


def _ranges(slots: Iterable[int]) -> str:
    """Format numbers as ranges: `3-7,9`."""
    runs: list[list[int]] = []
    for slot in sorted(slots):
        if runs and slot == runs[-1][1] + 1:
            runs[-1][1] = slot
        else:
            runs.append([slot, slot])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def _edge(a: DrawnBox, b: DrawnBox, type_: TensorType) -> DrawnEdge:
    """Return the curve between two boxes; one between neighbours of a column has a label."""
    kind = "saved" if (a.column, b.column) == (0, 1) else (b.part if b.part != "io" else "forward")
    title = f"{a.title} → {b.title}: {type_}"
    if a.column != b.column:
        x, y = (a.x + WIDTH, a.middle) if a.column < b.column else (a.x, a.middle)
        to_x, to_y = (b.x, b.middle) if a.column < b.column else (b.x + WIDTH, b.middle)
        bend = (to_x - x) // 2
        return DrawnEdge(kind, title, f"M{x},{y} C{x + bend},{y} {to_x - bend},{to_y} {to_x},{to_y}")
    if abs(a.row - b.row) == 1:
        x = a.x + WIDTH // 2
        y, to_y = (a.bottom, b.y - 2) if a.row < b.row else (a.y, b.bottom + 2)
        return DrawnEdge(kind, title, f"M{x},{y} L{x},{to_y}", (x + 8, (y + to_y) // 2 + 4, str(type_)))
    side = -1 if a.column == 0 else 1
    x = a.x if side < 0 else a.x + WIDTH
    y, to_y = a.middle, b.middle
    out = x + side * min(MARGIN - 8, 14 + 5 * abs(a.row - b.row))
    return DrawnEdge(kind, title, f"M{x},{y} C{out},{y} {out},{to_y} {x},{to_y}")


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


# Scenes ---------------------------------------------------------------------------------------------------------------


class Scene(NamedTuple):
    """The content of a drawing: the members of each part, and the incoming and outgoing tensors by slot and name."""

    parts: Mapping[str, Sequence[OutlineNode | Group[OutlineNode]]]
    inputs: Sequence[tuple[int, str]]
    outputs: Sequence[tuple[int, str]]


def whole_scene(graph: Graph, outline: Outline) -> Scene:
    """Return the scene of the whole graph. Its inputs are those that change on every call: not parameters, state,
    step."""
    forward = {slot for node in outline.parts["forward"].nodes() for slot in node.equation.inputs}
    given = zip(graph.body.inputs, graph.input_names)
    inputs = [(s, n) for s, n in given if s in forward and not _is_persistent(n)]
    outputs = list(zip(graph.body.outputs, graph.output_names))[:1]
    return Scene({part: outline.parts[part].members for part in PHASES}, inputs, outputs)


def _is_persistent(name: str) -> bool:
    return name.split(".")[0] in ("params", "state", "step")


def block_scenes(graph: Graph, outline: Outline) -> dict[str, Scene]:
    """Return a scene for each region that can be opened, outer ones first."""
    found: dict[str, dict[str, Group[OutlineNode]]] = {}

    def walk(members: Sequence[OutlineNode | Group[OutlineNode]], part: str) -> None:
        for item in folded(members):
            if opens := opened(item):
                found.setdefault(opens, {})
            for group in item.members if isinstance(item, Fold) else (item,):
                if isinstance(group, Group):
                    regions[group.path, part] = group
                    walk(group.members, part)

    regions: dict[tuple[str, str], Group[OutlineNode]] = {}
    for part in ("forward", "backward"):
        walk(outline.parts[part].members, part)
    names = dict(zip(graph.body.inputs, graph.input_names))
    forward = list(outline.parts["forward"].nodes())
    scenes = {}
    for path in found:
        parts = {part: regions[path, part].members for part in ("forward", "backward") if (path, part) in regions}
        inside = list(regions[path, "forward"].nodes()) if "forward" in parts else []
        made = {slot for node in inside for slot in node.equation.outputs}
        read = dict.fromkeys(slot for node in inside for slot in node.equation.inputs if slot not in made)
        own = {id(node) for node in inside}
        wanted = {slot for node in forward if id(node) not in own for slot in node.equation.inputs}
        scenes[path] = Scene(
            parts,
            [(slot, names.get(slot, f"%{slot}")) for slot in read if not _is_persistent(names.get(slot, ""))],
            [(slot, f"%{slot}") for slot in sorted(made & (wanted | set(graph.body.outputs)))],
        )
    return scenes


def opened(item: Item) -> str:
    """Return the path of the block that a box opens: a region, or the first of several of one form; empty if none."""
    first = item.members[0] if isinstance(item, Fold) else item
    return first.path if isinstance(first, Group) else ""


# Graphviz -------------------------------------------------------------------------------------------------------------


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
