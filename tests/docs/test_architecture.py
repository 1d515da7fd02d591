"""ARCHITECTURE.md names every package, in the order in which imports point."""

from __future__ import annotations

import re
from pathlib import Path

from opstage.ops.matmul import LINEAR
from tests.docs.blocks import ROOT
from tests.structure.test_import_direction import AMONG_INTERPRETERS, HOUSE

TEXT = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGES = [Path(name) for name in re.findall(r"^\| `(opstage/[\w/]+)` \|", TEXT, re.MULTILINE)]


def test_every_package_is_in_the_table_and_exists() -> None:
    packages = {path.parent.relative_to(ROOT) for path in (ROOT / "opstage").glob("*/__init__.py")}
    assert packages <= set(PACKAGES)
    assert [str(package) for package in PACKAGES if not (ROOT / package).is_dir()] == []


def test_packages_are_in_the_order_in_which_imports_point() -> None:
    parts = [package.name for package in PACKAGES if len(package.parts) == 2]
    floors = ["interpreters" if name in AMONG_INTERPRETERS else name for name in parts]
    assert floors == sorted(floors, key=HOUSE.index)


def test_linear_saves_what_the_life_of_an_op_says() -> None:
    (quoted,) = re.findall(r"`saves=(\{.*?\})`", TEXT)
    assert eval(quoted) == LINEAR.saves
