"""The guide's tables speak of what there is: the recipes' results, and our names beside PyTorch's."""

from __future__ import annotations

import re

import numpy as np
import pytest

from opstage.init import build
from opstage.models import MODELS, model
from opstage.ops.trees import flatten
from tests.docs.blocks import DOCS
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
