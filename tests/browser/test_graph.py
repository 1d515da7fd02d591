"""The page of a graph, looked at and used in a headless Chromium."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_report import Page, looked_at
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
const link = all("svg a").at(-1);
location.hash = link.getAttribute("href");
link.dispatchEvent(new MouseEvent("click", {bubbles: true}));
seen.shown = visible(".flash");
seen.colours = all(".part:not(.io) > summary > i").map(e => getComputedStyle(e).backgroundColor);
seen.lines = all(".n .line").filter(e => e.textContent && !e.closest(".head")).length;
const told = document.createElement("pre");
told.id = "told"; told.textContent = JSON.stringify(seen);
document.body.append(told);
}</script></body>"""


@pytest.fixture(scope="module")
def html() -> str:
    return training_step("gpt").to_html("gpt, one training step")


@pytest.fixture(scope="module")
def page(html: str, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return looked_at(html, tmp_path_factory.mktemp("graph"), width=1400)


@pytest.fixture(scope="module")
def used(html: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    seen = looked_at(html.replace("</body>", DO), tmp_path_factory.mktemp("used"), width=1400)
    assert seen.console == []
    found = re.search(r'<pre id="told">(.*?)</pre>', seen.dom, re.DOTALL)
    assert found is not None
    return json.loads(unescape(found[1]))  # type: ignore[no-any-return]


def test_nothing_complains_and_nothing_comes_from_elsewhere(page: Page) -> None:
    assert page.console == []
    assert page.measured["outside"] == 0
    assert page.measured["width"] <= page.measured["window"]


def test_a_reader_sees_the_totals_and_the_parts(page: Page) -> None:
    text = page.measured["text"]
    assert re.search(r"^gpt, one training step$", text, re.MULTILINE)
    assert "875,264 parameters" in text
    for part, ops in (("forward", 90), ("backward", 246), ("update", 69), ("together", 405)):
        assert re.search(rf"^{part}\s+{ops}\b", text, re.MULTILINE), part
    assert re.search(r"blocks\.0 … blocks\.3\s+4 alike\s+each 20 ops", text)


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


def test_a_phone_does_not_scroll_sideways(html: str, tmp_path: Path) -> None:
    seen = looked_at(html, tmp_path, width=500, height=900)
    assert seen.console == []
    assert seen.measured["width"] <= seen.measured["window"]
