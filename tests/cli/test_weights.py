"""`opstage import-weights` and `export-weights`, as a person at a terminal sees them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opstage.init import build
from opstage.interop.weights import read_state_dict, write_named, write_state_dict, write_weights
from opstage.source_files import load_file
from opstage.training import checkpoint
from tests.cli.conftest import Command
from tests.docs.blocks import ROOT

SIZE = ["--model.hidden", "8"]
SHAPES = {"net.1.weight": (8, 64), "net.1.bias": (8,), "net.4.weight": (10, 8), "net.4.bias": (10,)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    write_state_dict(tmp_path / "net.safetensors", {n: rng.standard_normal(s) for n, s in SHAPES.items()})
    return tmp_path / "net.safetensors"


def test_weights_come_in_are_trained_and_go_out_again(opstage: Command, file: Path, tmp_path: Path) -> None:
    code, out, _ = opstage("import-weights", "mlp", str(file), "--out", "run", "--dtype", "float64", *SIZE)
    assert code == 0
    assert "│ layers.1.weight │ (10, 8) │ net.4.weight │ (10, 8)   │ place and shape │" in out
    assert "a tensor for 4 of 4 parameters, 0 errors" in out
    assert "continue with: opstage train --resume run" in out
    held = checkpoint.load(tmp_path / "run" / "checkpoint")
    given = read_state_dict(file)
    assert np.array_equal(held.trainer.params["layers.1.weight"], given["net.4.weight"])
    assert held.optimizer is not None and held.optimizer.t == held.trainer.steps_taken == 0

    code, out, _ = opstage("export-weights", "run", "out.safetensors", "--like", str(file))
    assert (code, out.splitlines()[-1]) == (0, "4 tensors, 610 numbers in out.safetensors")
    again = read_state_dict(tmp_path / "out.safetensors")
    assert all(np.array_equal(again[name], given[name]) for name in SHAPES)
    code, _, _ = opstage("export-weights", "run/checkpoint", "own.safetensors")
    assert (code, list(read_state_dict(tmp_path / "own.safetensors"))[-1]) == (0, "layers.1.weight")


def test_an_import_is_where_a_run_begins(opstage: Command, file: Path, tmp_path: Path) -> None:
    words = [*SIZE, "--run.epochs", "1", "--data.batch_size", "256"]
    assert opstage("import-weights", "mlp", str(file), "--out", "run", *words)[0] == 0
    code, out, err = opstage("train", "--resume", "run")
    assert (code, err) == (0, "")
    assert "saved in run: report.html" in out
    assert checkpoint.load(tmp_path / "run" / "checkpoint").position.epoch == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cnn", "net.safetensors"], "the file does not fit the model:\n  blocks.0.first."),
        (["mlp", "none.safetensors"], "none.safetensors: cannot be read: No such file"),
        (["mlp", "notes.txt"], "notes.txt: not a safetensors file"),
        (["mlp", "net.safetensors", "--map", "x", *SIZE], "--map x: expected PATH=NAME"),
        (["mlp", "net.safetensors", "--map", "layers.0.weight=net.9", *SIZE], "there is no tensor 'net.9' in the file"),
        (["mpl", "net.safetensors"], "unknown model 'mpl' (did you mean 'mlp'?)"),
    ],
)
def test_bad_imports_are_one_message_and_leave_nothing(
    opstage: Command, file: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "notes.txt").write_text("a note that is not a file of tensors at all")
    code, _, err = opstage("import-weights", *words, "--out", "run")
    assert (code, err.startswith("opstage: ")) == (2, True)
    assert message in err
    assert not (tmp_path / "run").exists()


def test_bad_exports(opstage: Command, file: Path, tmp_path: Path) -> None:
    assert opstage("import-weights", "mlp", str(file), "--out", "run", *SIZE)[0] == 0
    for words, message in [
        (["none", "out.safetensors"], "none: no such folder"),
        (["run", "out.safetensors", "--map", "a=b"], "--map: requires --like"),
        (["run", "none/out.safetensors"], "none/out.safetensors: cannot be written: No such file or directory"),
    ]:
        code, _, err = opstage("export-weights", *words)
        assert (code, message in err) == (2, True)
    assert not list(tmp_path.glob("out*"))


def test_a_folder_comes_in_by_the_names_that_the_model_file_gives(opstage: Command, tmp_path: Path) -> None:
    """Layers of one shape everywhere, which no likeness of names could tell apart."""
    llama = load_file(ROOT / "examples" / "llama.py")
    params = build(llama.parameters(llama.Config()), seed=7)
    write_weights(tmp_path / "weights", write_named(params, llama.NAMES), shard_size="1MB")
    file = str(ROOT / "examples" / "llama.py")
    code, out, err = opstage("import-weights", file, "weights", "--out", "run")
    assert (code, err) == (0, "")
    assert "a tensor for 39 of 39 parameters, 0 errors" in out
    held = checkpoint.load(tmp_path / "run" / "checkpoint").trainer.params
    assert np.array_equal(held["blocks.3.up"], params["blocks"][3]["up"])
