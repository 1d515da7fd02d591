"""The table of a check as a notebook shows it, looked at and used in a headless Chromium."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import opstage
from opstage import Spec
from opstage.models import model
from tests.browser.test_report import Page, assert_readable, looked_at, told

DO = """<script>{
const all = s => [...document.querySelectorAll(s)];
const visible = s => all(s).filter(e => e.checkVisibility());
const right = e => Math.round(e.getBoundingClientRect().right);
const seen = {ops: visible(".r.op").length, folds: all(".fold").length};
seen.edges = [...Array(all(".head .amount").length).keys()].map(
  i => new Set(visible(".r").map(e => right(e.querySelectorAll(".amount")[i]))).size);
all(".fold").forEach(e => e.querySelector("summary").click());
seen.opened = visible(".r.op").length;
seen.overlaps = visible(".r").filter(row => { let at = -1; return [...row.children].some(cell => {
  const box = cell.getBoundingClientRect(), before = at; at = box.right; return box.left < before; }); }).length;
all("details[open] > summary").reverse().forEach(e => e.click());
seen.closed = visible(".r.op").length;
TELL(seen);
}</script></body>"""


def page_of(html: str) -> str:
    """What a notebook makes of it."""
    return f'<!doctype html><html lang="en"><head><meta charset="utf-8"></head><body>{html}</body></html>'


@pytest.fixture(scope="module")
def html() -> str:
    made = model("gpt")
    return page_of(opstage.check_step(made.loss, made.init, *made.batch).at(B=64, T=128)._repr_html_())


@pytest.fixture(scope="module")
def page(html: str, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return looked_at(html, tmp_path_factory.mktemp("table"), width=1500, height=900)


@pytest.fixture(scope="module")
def used(html: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return told(html, DO, tmp_path_factory.mktemp("used"), width=1500)


def test_nothing_complains_and_nothing_comes_from_elsewhere(page: Page) -> None:
    assert page.console == []
    assert page.measured["outside"] == 0
    assert page.measured["width"] <= page.measured["window"]


def test_a_reader_sees_blocks_ops_and_totals(page: Page) -> None:
    text = re.sub(r"\s+", " ", page.measured["text"])
    assert "at B=64, T=128" in text
    assert "params.bytes (256, 128) x (64, 128) (64, 128, 128) 32,768" in text
    assert re.search(r"blocks\.0 … blocks\.3 \(4 x\) 793,088 [\d.]+ GFLOP 9\d\.\d %", text)
    assert re.search(r"total 875,264 [\d.]+ GFLOP 100\.0 % [\d.]+ GFLOP [\d.]+ MFLOP [\d.]+ GiB [\d.]+ MiB", text)


def test_columns_are_straight_and_folds_open(used: dict[str, Any]) -> None:
    assert set(used["edges"]) == {1}
    assert used["folds"] == 1
    assert used["opened"] == used["ops"] + 20  # the ops of one block
    assert used["overlaps"] == 0
    assert used["closed"] == 3  # those that stand in no block


def test_findings_come_first_in_their_colours(tmp_path: Path) -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return ops.add(x, y)

    seen = looked_at(page_of(opstage.check(program, Spec("B 3"), Spec("B 4"))._repr_html_()), tmp_path)
    assert seen.console == []
    text = seen.measured["text"]
    assert text.index("error: add") < text.index("^^^") < text.index("1 error") < text.index("block / op")
    pixels = (seen.pixels[..., :3] * 255).round().astype(int)
    assert (abs(pixels - (192, 112, 95)).sum(axis=-1) < 12).sum() > 100


@pytest.mark.parametrize("colours", ["background: #fff; color: #16191d", "background: #16191d; color: #e8eaed"])
def test_texts_stand_out_in_a_notebook_of_either_scheme(html: str, tmp_path: Path, colours: str) -> None:
    coloured = html.replace("<body>", f'<body style="{colours}">')
    assert_readable(coloured, tmp_path, texts=100, schemes=(1,))
