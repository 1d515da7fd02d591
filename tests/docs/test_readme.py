"""README.md's Python blocks, run in order as one file, print what stands under each."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks, run_python

README = ROOT / "README.md"
DOCUMENTS = (README, ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md"))
BETWEEN = "\x1e"


def steps() -> list[tuple[str, str]]:
    """(code, what it prints) of each Python block."""
    every = [*blocks(README), None]
    return [
        (block.text, after.text if after is not None and after.language == "text" else "")
        for block, after in pairwise(every)
        if block is not None and block.language == "python"
    ]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("readme")
    (folder / "model.py").write_text(f"print({BETWEEN!r}, end='')\n".join(code for code, _ in steps()))
    return run_python("model.py", cwd=folder, path=[ROOT]).split(BETWEEN)


@pytest.mark.parametrize("number", range(len(steps())))
def test_block_prints_what_the_readme_says(number: int, printed: list[str]) -> None:
    assert len(printed) == len(steps())
    assert printed[number] == steps()[number][1]


def test_the_model_has_15_lines() -> None:
    assert len(steps()[0][0].splitlines()) == 15


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_paths_named_in_documents_exist() -> None:
    for document in DOCUMENTS:
        for path in re.findall(r"`((?:opstage|tests|docs|examples)/[\w/.]*)`", document.read_text()):
            assert Path(ROOT, path).exists(), f"{document.name} names {path}"
