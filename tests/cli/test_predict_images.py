"""Predictions of a folder of images name the files."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from .conftest import Command

Image = pytest.importorskip("PIL.Image")


def _write(folder: Path, names: list[str]) -> None:
    rng = np.random.default_rng(0)
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (4, 4), np.uint8)).save(path)


@pytest.fixture
def run(opstage: Command, tmp_path: Path) -> Path:
    _write(tmp_path / "pictures", [f"{kind}/{i}.png" for kind in ("cat", "dog") for i in range(10)])
    words = "train mlp --data pictures --model.inputs 1,4,4 --model.classes 2 --epochs 1 --batch-size 4 --out run"
    code, out, err = opstage(*words.split())
    assert code == 0, out + err
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("names", "data", "files"),
    [
        (["b.png", "a.png"], "new", ["a.png", "b.png"]),
        (["two/b, c.png", "one/é.png"], "new", ["one/é.png", "two/b, c.png"]),
        (["a.png"], "new/a.png", ["a.png"]),
    ],
)
def test_each_row_names_its_file(
    run: Path, opstage: Command, tmp_path: Path, names: list[str], data: str, files: list[str]
) -> None:
    _write(tmp_path / "new", names)
    for out in ("p.csv", "p.npz"):
        code, _, err = opstage("predict", "run", "--data", data, "--out", out)
        assert code == 0, err
    with open(tmp_path / "p.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == files
    with np.load(tmp_path / "p.npz") as arrays:
        assert arrays["path"].tolist() == files
        assert arrays["class"].tolist() == [row["class"] for row in rows]
