"""The page of a graph, looked at and used in a headless Chromium."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import opstage
from opstage import Options, Spec, optim
from opstage.models import Model, model
from opstage.models.layers import linear_init
from opstage.training.program_check import record_model
from tests.browser.test_report import Page, assert_readable, looked_at, told
from tests.graph.recorded import training_step

DO = """<script>{
const all = s => [...document.querySelectorAll(s)];
const seen = {};
const visible = selector => all(selector).filter(e => e.checkVisibility()).length;
const press = id => document.getElementById(id).click();
const toggle = part => document.querySelector(`[data-part=${part}]`).click();
const field = document.getElementById("search"), found = document.getElementById("found");
const type = text => { field.value = text; field.dispatchEvent(new Event("input")); };
seen.start = {forward: visible(".forward .n"), backward: visible(".backward .n"), update: visible(".update .n"),
  inputs: visible("#inputs .n"), folds: visible(".fold > summary")};
press("open");
seen.opened = visible(".n:not(.head)");
press("close");
seen.closed = visible(".n:not(.head)");
for (const part of ["forward", "backward", "update"]) {
  toggle(part);
  seen["without " + part] = [visible("#forward"), visible("#backward"), visible("#update")];
  toggle(part);
}
type("attention gpt");
type("layer_norm blocks.2");
seen.search = {found: found.textContent, rows: visible(".n:not(.head)"),
  ops: all(".n:not(.head):not(.away) .op").map(e => e.firstChild.data)};
toggle("backward");
seen.off = found.textContent;
toggle("backward");
type("no such op");
seen.nothing = [found.textContent, visible(".n:not(.head)")];
type("");
seen.again = visible(".n:not(.head)");
const link = all("svg a[href]").at(-1);
location.hash = link.getAttribute("href");
link.dispatchEvent(new MouseEvent("click", {bubbles: true}));
seen.shown = visible(".flash");
seen.colours = all(".part:not(.io) > summary > i").map(e => getComputedStyle(e).backgroundColor);
seen.lines = all(".n .line").filter(e => e.textContent && !e.closest(".head")).length;
TELL(seen);
}</script></body>"""


DRAW = """<script>{
const all = s => [...document.querySelectorAll(s)];
const view = document.querySelector(".view"), field = document.getElementById("search");
const titles = () => all(".view .title").map(e => e.textContent);
const seen = () => view.firstElementChild.getAttribute("viewBox").split(" ").map(Number);
const press = what => document.querySelector(`[data-zoom=${what}]`).click();
const point = (type, id, x, y) => view.dispatchEvent(
  new PointerEvent(type, {pointerId: id, clientX: x, clientY: y, bubbles: true}));
const open = block => document.querySelector(`.view .more[data-block="${block}"]`)
  .dispatchEvent(new MouseEvent("click", {bubbles: true, cancelable: true}));
const told = {start: [titles(), seen()]};
press("in"); told.near = seen(); press("fit"); told.fit = seen();
point("pointerdown", 1, 300, 400); point("pointermove", 1, 350, 370); told.moved = seen();
open("blocks.0"); told.dragged = titles().length;
point("pointerup", 1, 350, 370); point("pointerdown", 1, 0, 0); point("pointerup", 1, 0, 0);
press("fit");
point("pointerdown", 1, 300, 400); point("pointerdown", 2, 400, 400); point("pointermove", 2, 500, 400);
told.pinched = seen(); point("pointerup", 1, 0, 0); point("pointerup", 2, 0, 0);
point("pointerdown", 1, 0, 0); point("pointerup", 1, 0, 0); press("fit");
const zoomed = new WheelEvent("wheel", {deltaY: -100, ctrlKey: true, clientX: 300, clientY: 400, cancelable: true});
view.dispatchEvent(zoomed); told.wheeled = seen(); told.prevented = zoomed.defaultPrevented;
const plain = new WheelEvent("wheel", {deltaY: -100, clientX: 300, clientY: 400, cancelable: true});
view.dispatchEvent(plain); told.scrolls = !plain.defaultPrevented;
open("blocks.0"); told.block = titles(); told.trail = document.getElementById("trail").textContent;
open("blocks.0.attention"); told.inner = titles(); told.path = document.getElementById("trail").textContent;
document.querySelector("#trail button").click(); told.back = titles();
field.value = "blocks.2 layer_norm"; field.dispatchEvent(new Event("input"));
told.hit = all(".view .hit .title").map(e => e.textContent); told.dim = all(".view .dim").length;
open("blocks.0"); told.other = all(".view .hit").length;
field.value = ""; field.dispatchEvent(new Event("input"));
told.cleared = all(".view .hit, .view .dim, .view .searched").length;
TELL(told);
}</script></body>"""


@pytest.fixture(scope="module")
def html() -> str:
    return training_step("gpt").to_html("gpt, one training step")


@pytest.fixture(scope="module")
def page(html: str, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return looked_at(html, tmp_path_factory.mktemp("graph"), width=1400)


@pytest.fixture(scope="module")
def used(html: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return told(html, DO, tmp_path_factory.mktemp("used"), width=1400)


def test_nothing_complains_and_nothing_comes_from_elsewhere(page: Page) -> None:
    assert page.console == []
    assert page.measured["outside"] == 0
    assert page.measured["width"] <= page.measured["window"]


def test_a_reader_sees_the_totals_and_the_parts(page: Page) -> None:
    text = page.measured["text"]
    assert re.search(r"^gpt, one training step$", text, re.MULTILINE)
    assert "875,264 parameters" in text
    for part, ops in (("forward", 90), ("backward", 246), ("update", 69), ("total", 405)):
        assert re.search(rf"^{part}\s+{ops}\b", text, re.MULTILINE), part
    assert re.search(r"blocks\.0 … blocks\.3\s+4 identical\s+each 20 ops", text)


def test_labels_of_the_drawing_do_not_collide(page: Page) -> None:
    (svg,), (labels,) = page.measured["svgs"], page.measured["labels"]
    assert len(labels) > 40
    for i, (left, top, right, bottom) in enumerate(labels):
        assert svg[0] <= left < right <= svg[2] and svg[1] <= top < bottom <= svg[3]
        for other in labels[:i]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] + 4 or other[3] <= top + 4


def test_the_parts_have_their_colours(page: Page, used: dict[str, Any]) -> None:
    assert len(set(used["colours"])) == 3
    pixels = (page.pixels[..., :3] * 255).round().astype(int)
    for colour in ((91, 141, 184), (192, 112, 95), (90, 156, 102)):
        assert (abs(pixels - colour).sum(axis=-1) < 12).sum() > 200


def test_blocks_are_folded_until_they_are_opened(used: dict[str, Any]) -> None:
    assert used["start"]["folds"] == 3
    assert used["start"]["forward"] + used["start"]["backward"] < 20
    assert used["start"]["inputs"] == 0
    assert used["opened"] == 405 + 212 + 208
    assert used["closed"] == used["start"]["forward"] + used["start"]["backward"] + used["start"]["update"]
    assert used["lines"] == 405


def test_parts_can_be_switched_off(used: dict[str, Any]) -> None:
    assert [used[f"without {part}"] for part in ("forward", "backward", "update")] == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_a_search_opens_what_it_finds(used: dict[str, Any]) -> None:
    search = used["search"]
    assert search["found"] == f"{search['rows']} found"
    assert set(search["ops"]) == {"layer_norm", "layer_norm_grad"} and len(search["ops"]) == 4
    assert used["off"] == "2 found, 2 more in parts switched off"
    assert used["nothing"] == ["0 found", 0]
    assert used["again"] == used["closed"]


def test_a_box_of_the_drawing_leads_to_its_op(used: dict[str, Any]) -> None:
    assert used["shown"] == 1


def test_the_drawing_pans_zooms_and_opens_blocks(html: str, tmp_path: Path) -> None:
    used = told(html, DRAW, tmp_path)
    titles, start = used["start"]
    assert titles.count("blocks.0 … blocks.3") == 1 and used["fit"] == start
    assert used["near"][2] == pytest.approx(start[2] / 1.4) and used["near"][3] == pytest.approx(start[3] / 1.4)
    scale = start[2] / 1280
    assert used["moved"][0] - start[0] == pytest.approx(-50 * scale, rel=0.1)
    assert used["moved"][1] - start[1] == pytest.approx(30 * scale, rel=0.1)
    assert used["dragged"] == len(titles)  # what ends a drag opens nothing
    assert used["pinched"][2] == pytest.approx(start[2] / 2, rel=0.05)
    assert used["wheeled"][2] < start[2] and used["prevented"] and used["scrolls"]
    assert used["trail"] == "whole graph › blocks.0" and used["path"] == "whole graph › blocks.0 › blocks.0.attention"
    assert used["block"].count("layer_norm") == 2 and used["block"].count("attention") == 2  # forward and backward
    assert "scaled_dot_product_attention" in used["inner"]
    assert used["back"] == titles


def test_a_search_marks_boxes(html: str, tmp_path: Path) -> None:
    used = told(html, DRAW, tmp_path)
    assert used["hit"] == ["blocks.0 … blocks.3", "blocks.3 … blocks.0"] and used["dim"] > 5
    assert used["other"] == 0  # in blocks.0 there is nothing of blocks.2
    assert used["cleared"] == 0


def test_graph_at_three_widths_in_both_schemes_is_readable(html: str, tmp_path: Path) -> None:
    assert_readable(html, tmp_path, texts=50)


def test_model_without_regions_is_grouped_by_parameter_path(tmp_path: Path) -> None:
    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        for name in ("encoder", "middle"):
            x = ops.relu(ops.linear(params[name]["weight"], params[name]["bias"], x))
        return ops.cross_entropy(ops.linear(params["head"]["weight"], params["head"]["bias"], x), y)

    sizes = {"encoder": (32, 64), "middle": (64, 64), "head": (64, 10)}
    params = {name: linear_init(*size) for name, size in sizes.items()}
    made = Model("flat", None, params, loss, None, (Spec("B 32"), Spec("B", dtype="int64", range=(0, 9))))
    html = record_model(made, Options(), optim.adamw(lr=0.1)).to_html("flat")
    seen = looked_at(html, tmp_path)
    assert re.findall(r'class="group" data-path="([^"]+)"', seen.dom) == [*sizes, *reversed(sizes), "params"]
    assert_readable(html, tmp_path, texts=50)


def test_an_update_of_several_ops_a_parameter_is_one_block(tmp_path: Path) -> None:
    graph = record_model(model("mlp"), Options(), optim.adamw(lr=0.1), optim.clip.by_global_norm(1.0))
    seen = looked_at(graph.to_html("mlp"), tmp_path)
    text = re.sub(r"\s+", " ", seen.measured["text"])
    assert re.search(r"params \d+ ops, 85,002 parameters", text)
    assert seen.dom.count('data-path="params"') == 1


ODD = """<script>{
const all = s => [...document.querySelectorAll(s)];
TELL({boxes: all(".view .odd .title").map(e => e.textContent),
  beside: all(".n .remark").map(e => [e.closest(".n").querySelector(".op").firstChild.data, e.textContent]),
  links: all("#remarks a").map(a => document.querySelector(a.getAttribute("href")).closest(".n")
    .querySelector(".op").firstChild.data), above: all("#remarks pre").length});
}</script></body>"""


def test_findings_stand_beside_the_ops_that_they_are_about(tmp_path: Path) -> None:
    """A warning about what no output depends on stands above alone."""

    def program(ops: Any, x: Any, y: Any) -> Any:
        ops.log(ops.softmax(x, axis=-1))
        return ops.sum(ops.relu(x + y))

    report = opstage.check(program, Spec("B 1"), Spec("B"))
    used = told(report.to_html("program"), ODD, tmp_path)
    assert used["boxes"] == ["add"] and used["links"] == ["add"]
    ((op, text),) = used["beside"]
    assert op == "add" and text.startswith("warning: add at ") and "both operands are stretched" in text
    assert used["above"] == len(report.warnings) + len(report.notes) >= 2
    with pytest.raises(opstage.UsageError, match="no graph"):
        opstage.check(lambda ops, x: ops.matmul(x, x), Spec("B 3")).to_html()
