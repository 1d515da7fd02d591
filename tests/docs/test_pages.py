"""Tables of pages state what is there: models, names beside PyTorch's, options, ops, ratios, packages."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from opstage.config import toml_literal
from opstage.init import build
from opstage.models import MODELS, model
from opstage.ops import derived
from opstage.ops.matmul import LINEAR
from opstage.ops.protocol import OPS
from opstage.ops.trees import flatten
from opstage.options import Options
from opstage.runs.settings import MAY_CHANGE_ON_RESUME, CallbackSettings, DataSettings, OptimizerSettings, RunSettings
from tests.conformance.harness import EXECUTING
from tests.docs.blocks import DOCS, ROOT
from tests.structure.test_import_direction import AMONG_INTERPRETERS, HOUSE
from tests.structure.test_reference_table import resolve

_ROW = re.compile(r"^\| `(\w+)` \| .* \| ([\d,]+) \| (\d+) \| (.+) \|$", re.MULTILINE)
ROWS = {name: rest for name, *rest in _ROW.findall((DOCS / "guide" / "models.md").read_text())}

_CELLS = re.compile(r"^\| (`torch[^|]*) \| (`(?:ops|opstage)[^|]*) \|", re.MULTILINE)
PAIRS = _CELLS.findall((DOCS / "guide" / "from-pytorch.md").read_text())


def names(cells: list[str]) -> list[str]:
    return sorted({name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)})


def test_every_model_is_in_the_table() -> None:
    assert set(ROWS) == set(MODELS)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_is_as_its_row_says(name: str) -> None:
    recipe, (parameters, epochs, result) = MODELS[name].RECIPE, ROWS[name]
    leaves, _ = flatten(build(model(name).init))
    assert int(parameters.replace(",", "")) == sum(int(np.prod(leaf.shape)) for leaf in leaves)
    assert int(epochs) == recipe.epochs
    assert recipe.metric in result
    assert ("at most" in result) == recipe.lower_is_better
    (stated,) = re.findall(r"at (?:least|most) (-?[\d.]+)", result)
    assert float(stated) / (100 if "%" in result else 1) == pytest.approx(recipe.goal)


def test_the_table_for_pytorch_is_read() -> None:
    assert len(PAIRS) > 70


def test_our_names_exist() -> None:
    found = names([ours for _, ours in PAIRS])
    assert len(found) > 200
    for name in found:
        resolve(name)


# docs/api/options.md lists every option and every setting of a run, with its default ----------------------------------

PAGE = (DOCS / "api" / "options.md").read_text(encoding="utf-8")
SECTIONS = {
    "run": RunSettings,
    "data": DataSettings,
    "optimizer": OptimizerSettings,
    "callbacks": CallbackSettings,
}


def test_options_table_names_every_field_with_its_variable_and_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(OPSTAGE_\w+)` \| [^|]+ \| `([^|]+)` \|", PAGE, re.MULTILINE)
    assert rows == [
        (f.name, f"OPSTAGE_{f.name.upper()}", toml_literal(getattr(Options(), f.name))) for f in fields(Options)
    ]


@pytest.mark.parametrize("name", SECTIONS)
def test_settings_table_names_every_key_with_its_default(name: str) -> None:
    section = PAGE.partition(f"### [{name}]\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| `([^|]+)` \|", section, re.MULTILINE)
    made = SECTIONS[name]()
    assert rows == [(f.name, toml_literal(getattr(made, f.name))) for f in fields(made)]


def test_list_of_settings_that_may_change_on_resume_is_complete() -> None:
    section = PAGE.partition("## Settings that a resumed run may change\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`((?:run|options|data)\.\w+)`", section)) == MAY_CHANGE_ON_RESUME


# The page that `make parity` generates speaks of every op, and of every interpreter that executes ---------------------

PAGE_OF_PARITY = (Path(__file__).resolve().parents[2] / "docs" / "parity.md").read_text(encoding="utf-8")


def test_every_op_has_a_row() -> None:
    rows = set(re.findall(r"^\| `([\w.]+)` \|", PAGE_OF_PARITY, re.MULTILINE))
    missing = (OPS | {f"derived.{name}" for name in derived.__all__}) - rows
    assert missing == set(), "run `make parity`"


def test_every_interpreter_and_dtype_has_a_column() -> None:
    for dtype in ("float32", "float64"):
        head = PAGE_OF_PARITY.split(f"## {dtype}\n")[1].splitlines()[1]
        assert [name for name in EXECUTING if f"| {name} " not in head] == [], "run `make parity`"


# The ratios in the guide's page on multiple processes are those of the recorded measurement ---------------------------


def test_the_cpu_time_of_a_rank_is_the_recorded_one() -> None:
    record = json.loads((ROOT / "benchmarks" / "results" / "scaling.json").read_text())
    text = (ROOT / "docs" / "guide" / "multiple-processes.md").read_text()
    said = {name: float(ratio) for name, ratio in re.findall(r"^\| ([a-z-]+) \| (\d\.\d\d) \|$", text, re.MULTILINE)}
    measured = {}
    for each in record["workloads"]:
        runs = each["sides"]["compiled"]
        measured[each["workload"]] = round(runs["strong"]["cpu_ms"] / runs["own rows"]["cpu_ms"], 2)
    assert said == measured


# ARCHITECTURE.md names every package, in the order in which imports point ---------------------------------------------

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
