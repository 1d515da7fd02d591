"""README.md's Python blocks, run in order as one file, print what stands under each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, run_steps, steps

README = ROOT / "README.md"
DOCUMENTS = (README, ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return run_steps(README, tmp_path_factory.mktemp("readme"))


@pytest.mark.parametrize("number", range(len(steps(README))))
def test_block_prints_what_the_readme_says(number: int, printed: list[str]) -> None:
    assert len(printed) == len(steps(README))
    assert printed[number] == steps(README)[number].printed


def test_the_model_has_15_lines() -> None:
    assert len(steps(README)[0].code.splitlines()) == 15


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_paths_named_in_documents_exist() -> None:
    for document in DOCUMENTS:
        for path in re.findall(r"`((?:opstage|tests|docs|examples)/[\w/.]*)`", document.read_text()):
            assert Path(ROOT, path).exists(), f"{document.name} names {path}"
