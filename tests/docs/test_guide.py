"""Every page of the guide, done literally: its blocks run in order and print what stands under each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, run_steps, steps
from tests.docs.self_contained import faults

GUIDE = [*sorted((DOCS / "guide").glob("*.md")), DOCS / "api" / "options.md"]
ANYTHING = "…"
"""In what a command prints it stands for anything: times differ."""


LONG = ("planning", "checking-in-ci", "memory")
"""Pages whose commands take seconds, by the first a calibration of 22 models."""


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.stem, marks=pytest.mark.slow if p.stem in LONG else ()) for p in GUIDE]
)
def test_page_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    expected = steps(page)
    if not expected:
        return
    printed = run_steps(page, tmp_path)
    assert len(printed) == len(expected)
    for step, text in zip(expected, printed):
        if step.language == "python":
            assert text == step.printed, step.code
        elif step.printed:
            pattern = ".*".join(re.escape(part) for part in step.printed.split(ANYTHING))
            assert re.fullmatch(pattern, text, re.DOTALL), text


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_faults_of_pages_are_what_others_serve_and_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "b.html").touch()
    (tmp_path / "folder").mkdir()
    page = tmp_path / "a.html"
    for text, found in (
        (
            '<script src="https://a.example/x.js"></script><a href="https://b.example">b</a>',
            ["loads https://a.example/x.js"],
        ),
        ('<link rel="canonical" href="https://a.example"><img src="x.png">', []),
        ('<a href="b.html#there">b</a><a href="#here">here</a><a href="mailto:a@b.example">mail</a>', []),
        (
            '<a href="folder/">f</a><a href="none.html">n</a>',
            ["links to folder/, not a file", "links to none.html, not a file"],
        ),
    ):
        page.write_text(text)
        assert faults(page) == found
