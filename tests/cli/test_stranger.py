"""A stranger's way from nothing to predictions: a new model, a CSV with names of classes, eight commands at most."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from opstage.runs.trained_model import load
from tests.cli.conftest import Command

NAMES = ("setosa", "versicolor", "virginica")
COLUMNS = ("sepal length", "sepal width", "petal length", "petal width")
CENTERS = np.array([[5.0, 3.4, 1.5, 0.2], [5.9, 2.8, 4.3, 1.3], [6.6, 3.0, 5.6, 2.0]])


def flowers(rows: int, seed: int) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 3, rows)
    x = np.round(CENTERS[kinds] + rng.normal(0, [0.35, 0.3, 0.25, 0.15], (rows, 4)), 1)
    return x, [NAMES[kind] for kind in kinds]


def write(path: Path, x: np.ndarray, names: list[str] | None) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["species", *COLUMNS] if names is not None else COLUMNS)
        for i, row in enumerate(x.tolist()):
            writer.writerow([names[i], *row] if names is not None else row)


def test_from_a_csv_to_predictions_and_an_onnx_model(opstage: Command, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    write(tmp_path / "flowers.csv", *flowers(300, seed=1))
    x, truth = flowers(60, seed=2)
    write(tmp_path / "new.csv", x, None)
    commands = 0

    def done(*words: str) -> str:
        nonlocal commands
        commands += 1
        code, out, err = opstage(*words)
        assert code == 0, (words, out, err)
        return out

    done("new", "iris")
    code, _, err = opstage("train", "iris.py", "--data", "flowers.csv", "--data.label", "species")
    commands += 1
    assert code == 2 and "--model.inputs 4 --model.classes 3" in err, err  # a mistake, and what to set
    sizes = ("--model.inputs", "4", "--model.classes", "3", "--model.hidden", "32")
    done("check", "iris.py", *sizes)
    told = done(
        *("train", "iris.py", *sizes, "--data", "flowers.csv", "--data.label", "species", "--data.scale", "standard"),
        *("--epochs", "30", "--lr", "0.02", "--batch-size", "32", "--out", "runs/iris"),
    )
    assert "data: 240 samples to train on, 60 held out" in told
    assert float(done("evaluate", "runs/iris").split("accuracy ")[1].split(" %")[0]) > 90
    assert done("predict", "runs/iris", "--data", "new.csv", "--out", "predictions.csv") == (
        "60 predictions in predictions.csv\n"
    )
    done("export", "runs/iris", "-o", "iris.onnx")
    assert commands <= 8

    with open(tmp_path / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["class", *(f"probabilities.{name}" for name in NAMES)]
    assert np.mean([row["class"] == name for row, name in zip(rows, truth, strict=True)]) > 0.9

    session = onnxruntime.InferenceSession(tmp_path / "iris.onnx")
    assert [given.name for given in session.get_inputs()] == ["x"]
    found = session.run(["class", "probabilities"], {"x": x.astype(np.float32)})
    assert [NAMES[kind] for kind in found[0]] == [row["class"] for row in rows]
    ours = np.array([[float(row[f"probabilities.{name}"]) for name in NAMES] for row in rows])
    assert np.allclose(found[1], ours, rtol=1e-4, atol=1e-6)

    trained = load(tmp_path / "runs/iris")
    for given in (x, x.tolist(), {"x": x}):
        again = trained.predict(given)  # in the units of the file, as everywhere
        assert np.allclose(again["probabilities"], ours, rtol=1e-5, atol=1e-7)
    assert trained.evaluate(tmp_path / "flowers.csv")["accuracy"] > 0.9
