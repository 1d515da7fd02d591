"""Graphs to look at: the outline, the text for Graphviz, the drawing and the page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import opstage
from opstage import Spec
from opstage.interpreters.graph import Graph, record
from opstage.interpreters.graph.outline import PHASES, Fold, Group, Outline, OutlineNode, folded, show_bytes, show_count
from opstage.ops.dims import DimScope
from opstage.ops.types import FLOAT32, TensorType
from tests.graph.recorded import NAMES, training_step, with_gradients
from tests.property.ops import MAKERS
from tests.property.programs import RandomProgram, programs

SVG = "{http://www.w3.org/2000/svg}"


def blocks(count: int, *, other: int | None = None) -> Graph:
    """`count` blocks of one form, but for the one numbered `other`."""

    def program(ops: Any, x: Any) -> tuple[Any, ...]:
        for i in range(count):
            x = ops.region(f"blocks.{i}", lambda ops, x: ops.tanh(ops.relu(x) if i != other else x), x)
        return (x,)

    return record(program, [TensorType((2, 3), FLOAT32)], FLOAT32, 0, ["x"])


def shape(items: list[Any]) -> list[Any]:
    return [(type(item).__name__, item.op if isinstance(item, OutlineNode) else item.name) for item in items]


def test_neighbours_of_one_form_are_folded() -> None:
    assert shape(folded(Outline(blocks(4)).parts["forward"].members)) == [("Fold", "blocks.0 … blocks.3")]
    assert shape(folded(Outline(blocks(1)).parts["forward"].members)) == [("Group", "blocks.0")]
    items = folded(Outline(blocks(5, other=2)).parts["forward"].members)
    assert shape(items) == [("Fold", "blocks.0 … blocks.1"), ("Group", "blocks.2"), ("Fold", "blocks.3 … blocks.4")]


def test_the_blocks_of_gpt_are_folded_both_ways() -> None:
    outline = Outline(training_step("gpt"))
    forward, backward, update = (folded(outline.parts[part].members) for part in PHASES)
    assert ("Fold", "blocks.0 … blocks.3") in shape(forward)
    assert ("Fold", "blocks.3 … blocks.0") in shape(backward)
    assert shape(update) == [("Fold", "adamw_update")]
    block = next(item for item in forward if isinstance(item, Fold)).members[0]
    assert isinstance(block, Group)
    assert [item[1] for item in shape(folded(block.members)) if item[0] == "Group"] == ["attention", "mlp"]


def test_a_program_without_regions_is_grouped_by_its_parameters() -> None:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        h = ops.matmul(x, ops.transpose2d(params["embed"]))
        for layer in params["layers"]:
            h = ops.tanh(ops.linear(layer["dense"]["w"], layer["dense"]["b"], h))
        return ops.sum(ops.mul(h, h))

    layers = [{"dense": {"w": np.ones((3, 3)), "b": np.ones(3)}} for _ in range(3)]
    params = {"embed": np.ones((3, 4)), "layers": layers}
    graph = opstage.record(loss, params, Spec("B 4"))
    members = Outline(graph).parts["forward"].members
    assert shape(folded(members)) == [("Group", "embed"), ("Fold", "layers.0 … layers.1"), ("Group", "layers.2")]
    assert isinstance(members[1], Group) and [each.name for each in members[1].members] == ["dense"]
    assert sum(1 for member in members for _ in member.nodes()) == len(graph.body.equations)
    step = opstage.scalar_trainer(loss, params, Spec("B 4")).report(Spec("B 4"), optimizer=opstage.optim.sgd()).graph
    backward = Outline(step).parts["backward"].members
    assert {each.name for each in backward if isinstance(each, Group)} >= {"layers.0", "layers.1", "layers.2"}


@pytest.mark.parametrize("name", NAMES)
def test_every_equation_stands_in_one_part(name: str) -> None:
    graph = training_step(name)
    outline = Outline(graph)
    shown = [id(node.equation) for part in PHASES for node in outline.parts[part].nodes()]
    assert sorted(shown) == sorted(map(id, graph.body.equations))
    assert all(outline.parts[part].members for part in PHASES)
    assert {node.op for node in outline.parts["update"].nodes()} == {"adamw_update"}


def test_parameters_are_counted() -> None:
    assert Outline(training_step("mlp")).parameters == 64 * 256 + 256 + 256 * 256 + 256 + 2560 + 10


def test_numbers_are_shown_for_reading() -> None:
    size = DimScope().dim("B")
    assert [show_count(n) for n in (0, 999_999, 1_234_567, 2 * 10**9)] == ["0", "999,999", "1.23 million", "2 billion"]
    assert [show_bytes(n) for n in (512, 8192, 3 * 2**20)] == ["512 bytes", "8.0 KiB", "3.0 MiB"]
    assert (show_count(1024 * size**2 + 3), show_bytes(4 * size)) == ("1,024*B² + 3", "4*B bytes")
    assert show_count(size**12) == "B¹²"


# Graphviz -------------------------------------------------------------------------------------------------------------


def dot(graph: Graph) -> tuple[dict[str, str], list[tuple[str, str]], list[str]]:
    """Labels of nodes, edges and labels of clusters, read by the grammar of what is written."""
    text = graph.to_dot()
    string = r'"(?:[^"\\]|\\.)*"'
    assert text.startswith("digraph opstage {\n") and text.endswith("\n}\n")
    bare = re.sub(string, '""', text)
    assert bare.count("{") == bare.count("}")
    assert re.sub(string, "", text).count('"') == 0
    nodes = dict(re.findall(rf"^ +(\w+) \[label=({string})", text, re.MULTILINE))
    return (
        nodes,
        re.findall(r"^ +(\w+) -> (\w+)", text, re.MULTILINE),
        re.findall(rf"^ +label=({string})", text, re.MULTILINE),
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_op_and_every_tensor_is_in_the_text_for_graphviz(name: str) -> None:
    graph = training_step(name)
    nodes, edges, _ = dot(graph)
    assert sum(node.startswith("op") for node in nodes) == len(graph.body.equations)
    assert {end for edge in edges for end in edge} <= set(nodes)
    read = [len(set(e.inputs)) for e in graph.body.equations]
    assert len(edges) == sum(read) + len(graph.body.outputs)


def test_regions_are_clusters_and_parts_are_colours() -> None:
    graph = training_step("gpt")
    _, _, clusters = dot(graph)
    assert Counter(clusters)['"blocks.0"'] == 2  # forward and backward
    colours = Counter(re.findall(r'op\d+ \[.*fillcolor="(#\w+)"', graph.to_dot()))
    assert sorted(colours.values()) == sorted(len(list(Outline(graph).parts[p].nodes())) for p in PHASES)


def test_names_are_quoted() -> None:
    graph = record(lambda ops, x: (ops.relu(x),), [TensorType((2,), FLOAT32)], FLOAT32, 0, ['say "x" \\ {'])
    nodes, _, _ = dot(graph)
    assert nodes["in0"] == '"say \\"x\\" \\\\ {\\n(2,) float32"'


# The drawing ----------------------------------------------------------------------------------------------------------


def drawn(graph: Graph) -> tuple[list[tuple[float, ...]], list[str], Any]:
    """Boxes, titles, and the whole."""
    svg = ET.fromstring(graph.to_svg())
    boxes = []
    for group in svg.iter(f"{SVG}g"):
        rect = list(group.iter(f"{SVG}rect"))[-1]
        boxes.append(tuple(float(rect.get(name, "")) for name in ("x", "y", "width", "height")))
    return boxes, [t.text or "" for t in svg.iter(f"{SVG}text") if t.get("class") == "title"], svg


@pytest.mark.parametrize("name", NAMES)
def test_boxes_lie_within_the_sheet_and_apart(name: str) -> None:
    boxes, titles, svg = drawn(training_step(name))
    width, height = (float(svg.get(side)) for side in ("width", "height"))
    assert len(boxes) == len(titles) >= 4
    for i, (x, y, w, h) in enumerate(boxes):
        assert x >= 0 and x + w <= width and y >= 0 and y + h <= height
        for ox, oy, ow, oh in boxes[:i]:
            assert x + w <= ox or ox + ow <= x or y + h <= oy or oy + oh <= y


def test_backward_stands_beside_forward() -> None:
    boxes, titles, _ = drawn(training_step("gpt"))
    at = {}
    for box, title in zip(boxes, titles):
        at.setdefault(title, []).append(box)
    for title in ("embed", "norm", "head"):
        (left, right) = at[title]
        assert left[1] == right[1] and left[0] < right[0]
    assert at["blocks.0 … blocks.3"][0][1] == at["blocks.3 … blocks.0"][0][1]


@settings(max_examples=15)
@given(programs(MAKERS))
def test_random_programs_can_be_looked_at(program: RandomProgram) -> None:
    graph = with_gradients(program)
    dot(graph)
    drawn(graph)
    Rows(graph.to_html())


def test_graphs_of_nothing_can_be_looked_at() -> None:
    for graph in (
        record(lambda ops: (ops.const([1.0]),), [], FLOAT32, 0),
        record(lambda ops, x: (x,), [TensorType((), FLOAT32)], FLOAT32, 0),
        record(lambda ops, x: (ops.add(x, ops.const(np.ones(2))),), [TensorType((2,), FLOAT32)], FLOAT32, 0),
    ):
        dot(graph)
        ET.fromstring(graph.to_svg())
        Rows(graph.to_html())


# The page -------------------------------------------------------------------------------------------------------------

VOID = {"meta", "link", "input", "br"}


class Rows(HTMLParser):
    """The rows of ops of a page, as texts of their cells; tags are checked to close in order."""

    def __init__(self, html: str):
        super().__init__()
        self.rows: list[dict[str, str]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.cell = ""
        self.open: list[str] = []
        self.feed(html)
        assert self.open == []
        assert len(set(self.ids)) == len(self.ids)
        assert set(self.links) <= set(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag not in VOID:
            self.open.append(tag)
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"].removeprefix("#"))
        if given.get("class") == "n":
            self.rows.append({})
        if tag == "span" and self.rows:
            self.cell = given.get("class", "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag
        if tag == "span":
            self.cell = ""

    def handle_data(self, data: str) -> None:
        if self.cell and self.rows:
            self.rows[-1][self.cell] = f"{self.rows[-1].get(self.cell, '')} {data}".strip()


@pytest.mark.parametrize("name", ["gpt", "lstm", "resnet"])
def test_every_op_is_on_the_page(name: str) -> None:
    graph = training_step(name)
    html = graph.to_html(f"{name}, one training step")
    page = Rows(html)
    shown: dict[str, dict[str, str]] = {}
    for row in page.rows:
        shown.setdefault(row.get("id", "").split(" ")[0], row)  # a number comes again in the body of a loop
    bodies = [graph.body, *[e.static["body"] for e in graph.body.equations if "body" in e.static]]
    rows = sum(len(body.equations) + len(body.inputs) + len(body.constants) for body in bodies)
    assert len(page.rows) == rows + len(graph.body.outputs)
    for equation in graph.body.equations[-20:]:
        row = shown[f"%{equation.outputs[0]}"]
        type_ = graph.body.types[equation.outputs[0]]
        assert row["op"].split()[0] == equation.primitive.name
        assert row["shape"].startswith(str(type_).rpartition(" ")[0]) and row["dtype"].startswith("float32")
        assert "bytes" in row["bytes"] or "iB" in row["bytes"]
    lines = [row["line"] for row in page.rows if row.get("line")]
    assert len(lines) > len(graph.body.equations) / 2
    assert all(re.fullmatch(r"\w+\.py:\d+", line) for line in lines)


def test_the_page_needs_nothing_else() -> None:
    html = training_step("mlp").to_html("mlp")
    assert re.findall(r"(?:src|href)=\"(?!#|data:)", html) == []
    assert "@import" not in html and "url(" not in html.replace("url(#", "")
    assert set(re.findall(r"https?://[^\"]*", html)) == {"http://www.w3.org/2000/svg"}
