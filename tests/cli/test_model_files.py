"""A model file is a model: checked, trained, drawn and measured by its name, and kept with its run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from opstage import fit, load
from opstage import source_files as written_files
from opstage.data import digits
from tests.cli.conftest import Command

BARE = """
import opstage
from opstage.init import Declaration, kaiming_uniform

@opstage.shapes("x: B 64", "y: B int64", params={"w": Declaration((10, 64), kaiming_uniform())})
def loss(ops, params, x, y):
    return ops.cross_entropy(ops.linear(params["w"], None, x), y)
"""
HELPED = """
import helper
import numpy as np
import opstage
from dataclasses import dataclass

@dataclass(frozen=True)
class Config:
    factor: float = 1.0

def loss(ops, params, x, y):
    return ops.mse_loss(helper.predict(ops, params, x), y)

def outputs(ops, params, x):
    return helper.predict(ops, params, x)

def rows(seed):
    x = np.linspace(0, 1, 64).reshape(32, 2)
    each = opstage.data.from_arrays(x=x, y=x.sum(axis=1))
    return each, each

RECIPE = opstage.Recipe(data=rows, batch_size=8)

def make(config):
    line = {"w": opstage.Declaration((1, 2), opstage.init.zeros)}
    return opstage.Model("line", config, line, loss, None, (opstage.Spec("B 2"), opstage.Spec("B")), outputs=outputs)
"""
ALONE = HELPED.replace("import helper", "")
HELPER = 'def predict(ops, params, x):\n    return ops.squeeze(ops.linear(params["w"], None, x), axis=1)\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    return tmp_path


def test_a_new_file_is_checked_trained_drawn_and_measured(opstage: Command, folder: Path) -> None:
    code, out, err = opstage("new", "mine")
    assert (code, err) == (0, "") and "wrote mine.py" in out
    code, out, err = opstage("check", "mine.py", "--model.hidden", "7")
    assert code == 0 and "ok" in out, out + err
    code, out, err = opstage("train", "mine.py", "--epochs", "1", "--model.hidden", "8", "--out", "run")
    assert code == 0 and out.startswith("mine: 610 parameters") and "accuracy" in out, out + err
    code, out, err = opstage("graph", "mine.py", "--forward", "--model.hidden", "7")
    assert code == 0 and "(7, 64)" in out, out + err
    code, out, err = opstage("bench", "mine.py", "--seconds", "0", "--json")
    assert code == 0 and json.loads(out)["model"] == "mine", out + err
    code, out, err = opstage("new", "mine")
    assert (code, out) == (2, "") and "mine.py exists; choose another name" in err


def test_a_file_in_a_checkout_of_the_framework(opstage: Command, folder: Path) -> None:
    """What stands beside it is the framework, and none of the file's own."""
    (folder / "opstage").symlink_to(Path(written_files.__file__).parent)
    assert opstage("new", "mine")[0] == 0
    assert opstage("check", "mine.py")[::2] == (0, "")
    code, _, err = opstage("train", "mine.py", "--epochs", "1", "--out", "run")
    assert (code, err) == (0, "")
    assert not (folder / "run" / "source" / "opstage").exists()
    assert opstage("evaluate", "run")[0] == 0


def test_the_commands_of_a_run(opstage: Command, folder: Path) -> None:
    opstage("new", "mine")
    code, out, err = opstage("evaluate", "mine.py", "--model.hidden", "8")
    assert code == 0 and out.startswith("359 samples, before training: accuracy"), out + err
    again = opstage("evaluate", "mine.py", "--model.hidden", "8", "--options.mesh", "data=2", "--run.accumulate", "3")
    assert again[0] == 0 and again[1] == out, again
    assert opstage("train", "mine.py", "--epochs", "1", "--model.hidden", "8", "--out", "run")[0] == 0
    (folder / "mine.py").unlink()
    code, out, err = opstage("evaluate", "run", "--backend", "compiled")
    assert code == 0 and out.startswith("359 samples: accuracy") and "mine.py has changed since run" in err
    code, out, err = opstage("graph", "run", "--forward")
    assert code == 0 and "(8, 64)" in out, out + err
    for form, words in (("onnx", []), ("safetensors", []), ("weights", ["--format", "safetensors"])):
        code, out, err = opstage("export", "run", "-o", f"m.{form}", *words)
        assert code == 0 and (folder / f"m.{form}").is_file(), out + err
    for words, message in [
        (["evaluate", "run", "--model.hidden", "8"], "is a run, which has its own settings"),
        (["evaluate", "nowhere"], "unknown model 'nowhere'"),
        (["predict", "nowhere", "--data", "rows.npz", "--out", "p.csv"], "nowhere: the run directory does not exist"),
        (["predict", "run", "--data", "rows.npz", "--out", "p.txt"], "predictions are written as .csv or .npz"),
        (["export", "run", "-o", "m.txt"], "the suffix is not that of a format"),
        (["export", "run", "-o", "no/where/m.onnx", "--which", "ema"], "lacks a moving average"),
        (["graph", "run", "--model.hidden", "9"], "is a run, which has its own settings"),
    ]:
        code, out, err = opstage(*words)
        assert (code, out) == (2, "") and message in err, (words, out, err)


def test_a_bare_loss_with_declared_shapes_trains(opstage: Command, folder: Path) -> None:
    (folder / "bare.py").write_text(BARE)
    images = digits()
    np.savez(folder / "rows.npz", x=images["x"].reshape(-1, 64), y=images["y"])
    for word in ("bare.py", "bare.py:loss"):
        code, out, err = opstage("train", word, "--data", "rows.npz", "--epochs", "1")
        assert code == 0 and "held-out loss" in out, out + err


def test_a_run_keeps_its_models_files_and_goes_on_with_them(opstage: Command, folder: Path) -> None:
    (folder / "line.py").write_text(HELPED)
    (folder / "helper.py").write_text(HELPER)
    code, out, err = opstage("train", "line.py", "--epochs", "2", "--out", "run")
    assert code == 0, out + err
    assert (folder / "run/source/line.py").read_text() == HELPED
    assert (folder / "run/source/helper.py").read_text() == HELPER
    (folder / "helper.py").write_text(HELPER.replace("return ops", "return 1 / 0 * ops"))
    code, out, err = opstage("train", "--resume", "run")
    assert code == 0 and "helper.py has changed since" in out + err, out + err
    (folder / "run/source/helper.py").write_text("")
    code, out, err = opstage("train", "--resume", "run")
    assert (code, out) == (2, "") and "has changed since the run was started" in err


@pytest.mark.parametrize(
    ("text", "word", "message"),
    [
        ("x = 1\n", "m.py", "m.py: lacks a model"),
        ("import nowhere\n", "m.py", "ModuleNotFoundError: No module named 'nowhere' (m.py:1)"),
        ("def make(config): pass\n", "m.py", "expected a dataclass Config"),
        (f"{BARE}\n{BARE.replace('def loss', 'def other')}", "m.py", "has 2 models: loss, other; name one"),
        (ALONE, "m.py --model.factr 2", "[model] has no key 'factr' (did you mean 'factor'?)"),
        (ALONE.replace("return opstage.Model", "return 3, opstage.Model"), "m.py", "returned a tuple"),
        (ALONE.replace("line =", "1 / 0; line ="), "m.py", "ZeroDivisionError"),
        ("", "gone.py", "no such file"),
        (BARE, "m.py:los", "has no 'los' (did you mean 'loss'?)"),
        (BARE, "m.py", "lacks default data; name a file with --data FILE"),
        ("import opstage\nRECIPE = 3\ndef make(): pass\n", "m.py", "RECIPE is an int; expected an opstage.Recipe"),
    ],
)
def test_a_file_that_is_no_model_is_one_error(
    opstage: Command, folder: Path, text: str, word: str, message: str
) -> None:
    (folder / "m.py").write_text(text)
    code, out, err = opstage("train", *word.split(), "--out", "run")
    assert code == 2 and out == "" and message in err and err.count("\n") == 1, out + err
    assert not (folder / "run").exists()


BATCH = '(Spec(("B", config.inputs)), Spec("B", dtype="int64"))'


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("ops.argmax(out, axis=-1)", "ops.argmax(out, dim=-1)", "in the outputs: TypeError"),
        ("correct_count(", "correct_counts(", "in the metrics: AttributeError"),
        ("def outputs(ops, params, x,", "def outputs(ops, params, z,", "its outputs take z, which is none of the loss"),
        ('Spec("B", dtype="int64")),', 'Spec("B", dtype="int64"), Spec("B")),', "x, y, and batch= has 3 Specs"),
        (BATCH, 'Spec("B 64")', "batch= is a Spec; give a tuple"),
        (BATCH, '("B 64", "B int64")', "batch= has a string"),
        ("loss=partial(loss, config=config)", "loss=3", "loss= must be a program"),
    ],
)
def test_a_model_whose_parts_are_wrong_does_not_train(
    opstage: Command, folder: Path, before: str, after: str, message: str
) -> None:
    opstage("new", "mine")
    text = (folder / "mine.py").read_text()
    assert before in text
    (folder / "mine.py").write_text(text.replace(before, after))
    code, out, err = opstage("train", "mine.py", "--out", "run")
    assert code == 2 and message in err and "Traceback" not in err, out + err
    assert not (folder / "run").exists()
    code, out, err = opstage("check", "mine.py")
    assert code in (1, 2) and message in out + err, out + err


def test_a_new_models_metrics_leave_out_labels_that_are_ignored(opstage: Command) -> None:
    """Half of the held-out labels are -100: the share that is right is of the others."""
    opstage("new", "my_model")
    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    ignored = np.where(np.arange(64) % 2, -100, y)
    run = fit(
        "my_model.py",
        {"x": x, "y": y},
        held_out={"x": x, "y": ignored},
        settings={"model": {"inputs": 4, "classes": 2, "hidden": 8}},
        epochs=1,
        batch_size=16,
    )
    kept = ignored >= 0
    right = run.predict(x)["class"][kept] == ignored[kept]
    assert run.evaluate({"x": x, "y": ignored})["accuracy"] == pytest.approx(right.mean())


def test_ignored_labels_of_a_file_train_a_new_model_and_are_no_wrong_answers(opstage: Command) -> None:
    opstage("new", "my_model")
    x = np.random.default_rng(0).standard_normal((60, 4))
    y = np.where(np.arange(60) % 3 == 0, -100, (x.sum(axis=1) > 0).astype(np.int64))
    np.savez("rows.npz", x=x, y=y)
    flags = ["--data", "rows.npz", "--model.inputs", "4", "--model.classes", "2", "--batch-size", "16"]
    code, out, err = opstage("train", "my_model.py", *flags, "--epochs", "2", "--out", "run")
    assert code == 0, err
    shown = re.search(r"accuracy ([\d.]+) % \((\d+) of (\d+)\)", out)
    assert shown is not None, out
    share, right, counted = float(shown[1]), int(shown[2]), int(shown[3])
    assert counted == 8 and share == pytest.approx(100 * right / counted, abs=0.01)  # 8 of 12 held-out rows count
    assert load("run").results[-1].counted == 8


def test_predictions_do_not_take_the_place_of_the_rows_that_they_are_of(opstage: Command) -> None:
    opstage("new", "my_model")
    rows = "".join(f"{i},{-i},{'ab'[i % 2]}\n" for i in range(40))
    Path("rows.csv").write_text(f"a,b,kind\n{rows}")
    flags = ["--model.inputs", "2", "--model.classes", "2", "--batch-size", "16", "--epochs", "1", "--out", "run"]
    assert opstage("train", "my_model.py", "--data", "rows.csv", *flags)[0] == 0
    Path("also.csv").symlink_to("rows.csv")
    for out in ("rows.csv", "./rows.csv", "also.csv"):
        code, _, err = opstage("predict", "run", "--data", "rows.csv", "--out", out)
        assert (code, "is the file of --data, which would be overwritten" in err) == (2, True), err
    assert Path("rows.csv").read_text() == f"a,b,kind\n{rows}"
    assert opstage("predict", "run", "--data", "rows.csv", "--out", "out.csv")[0] == 0
