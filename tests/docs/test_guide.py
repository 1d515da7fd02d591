"""The guide, README.md and the examples, done literally: blocks run in order and print what stands under each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, run_python, run_steps, steps
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


# README.md's Python blocks, run in order as one file, print what stands under each ------------------------------------

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


# Every program in examples/ runs and prints what it is there to show --------------------------------------------------

EXAMPLES = ROOT / "examples"
SHOWN = {
    "quickstart.py": r"held-out accuracy 9[5-9]\.\d %",
    "hessian_vector_product.py": r"minimum at \[1\. 1\. 1\. 1\. 1\. 1\.\]\nreverse over reverse agrees: True",
    "llama.py": r"held-out loss [12]\.\d\d nats a byte\n(?s:.{10,})",
    "bert.py": r"for x in\ndef f\(x\)\nimport x\nreturn x",
    "certified.py": r"accuracy 9[5-9]\.\d %\n.* interval bounds: [78]\d\.\d %\n.* crown bounds: 8\d\.\d %",
    "session.py": r"accuracy (9[7-9]\.\d|100\.0) %(?s:.*)ProgramError: this ref was made before reset_tape\(\)",
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHOWN)


LONG_OF_EXAMPLES = ("llama.py",)
"""Those that take seconds, and whose parts have tests of their own."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LONG_OF_EXAMPLES else ()) for n in SHOWN]
)
def test_example(name: str, tmp_path: Path) -> None:
    assert re.search(SHOWN[name], run_python(str(EXAMPLES / name), cwd=tmp_path, path=[ROOT]))
