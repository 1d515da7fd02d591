"""ARCHITECTURE.md's tree is the house as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from opstage.ops.catalogue.linalg import LINEAR
from tests.docs.blocks import ROOT, blocks
from tests.structure.test_import_direction import HOUSE

DOCUMENT = ROOT / "ARCHITECTURE.md"


def tree() -> list[Path]:
    """The paths of the tree, in its order."""
    (text,) = (block.text for block in blocks(DOCUMENT) if block.language == "text")
    paths: list[Path] = []
    parents: list[str] = []
    for line in text.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [name]
        paths.append(Path(*parents))
    return paths


def test_everything_in_the_tree_exists() -> None:
    assert [str(path) for path in tree() if not (ROOT / path).exists()] == []


def test_every_package_is_in_the_tree() -> None:
    packages = {path.parent.relative_to(ROOT) for path in (ROOT / "opstage").rglob("__init__.py")}
    named = set(tree())
    assert {str(path) for path in packages if path not in named and path.parent not in named} == set()


def test_house_is_in_the_order_in_which_imports_point() -> None:
    parts = [
        path.parts[1].removesuffix(".py") for path in tree() if len(path.parts) == 2 and path.parts[0] == "opstage"
    ]
    assert tuple(parts) == HOUSE


def test_linear_saves_what_the_walk_says() -> None:
    (quoted,) = re.findall(r"`saves=(\{.*?\})`", DOCUMENT.read_text())
    assert eval(quoted) == LINEAR.saves
