"""The commands on an ONNX file: checked, drawn, trained from a table, and its run asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.cli.conftest import Command, assert_alone
from tests.interop.onnx.models import classifier, model


def test_it_is_checked_and_drawn_without_a_loss(opstage: Command, net: str, tmp_path: Path) -> None:
    code, out, _ = opstage("check", net)
    assert code == 0 and out.startswith("ok: net.onnx, the forward pass:")
    code, out, err = opstage("graph", net, "-o", "net.html")
    assert code == 0, err
    assert "batch" in (tmp_path / "net.html").read_text()
    code, _, err = opstage("train", net, "--data", "rows.csv", "--data.label", "kind")
    assert code == 2 and "lacks a loss" in err and "--model.loss cross_entropy" in err


@pytest.mark.parametrize("apart", [False, True])
def test_it_is_trained_and_predicts(opstage: Command, net: str, tmp_path: Path, apart: bool) -> None:
    """Its run goes on without the file: it has a copy, with the file that holds its weights."""
    if apart:
        (tmp_path / net).unlink()
        onnx.save(classifier(), tmp_path / net, save_as_external_data=True, location="net.bin", size_threshold=0)
    words = ("--model.loss", "cross_entropy", "--data.file", "rows.csv", "--data.label", "kind")
    code, _, err = opstage("train", net, *words, "--epochs", "3", "--batch-size", "16", "--run.out", "run")
    assert code == 0, err
    assert_alone(opstage, tmp_path.glob("net.*"))


def test_a_file_without_a_loss_predicts_and_is_timed(opstage: Command, net: str, tmp_path: Path) -> None:
    """From arrays of its inputs' names, and from tables with and without a label."""
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    for name, more in (("plain.csv", ""), ("labelled.csv", ",kind")):
        rows = [",".join([*map(repr, row), *(["red"] if more else [])]) for row in x.tolist()]
        (tmp_path / name).write_text("\n".join([f"a,b,c,d{more}", *rows]))
    found = []
    for name in ("x.npz", "plain.csv", "labelled.csv"):
        code, out, err = opstage("predict", net, "--data", name, "--out", "p.npz", "--rows", "2")
        assert code == 0 and out == "5 predictions in p.npz, before training\n", err
        with np.load(tmp_path / "p.npz") as arrays:
            found.append(arrays["logits"])
    session = onnxruntime.InferenceSession(tmp_path / net, providers=["CPUExecutionProvider"])
    for each in found:
        np.testing.assert_allclose(each, session.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)
    for backend in ("eager", "compiled"):
        words = ("--seconds", "0", "--batch-size", "3", "--backend", backend, "--json")
        code, out, err = opstage("bench", net, *words)
        figures = json.loads(out)
        assert (figures["measured"], figures["batch_size"], figures["parameters"]) == ("predictions", 3, 80)
    for words, message in (
        (("bench", net, "--at", "T=3"), "lacks a size of this name"),
        (("bench", net, "--profile"), "a model without a loss"),
        (("predict", "gone.onnx", "--data", "x.npz", "--out", "p.npz"), "cannot be read"),
        (("predict", net, "--data", "rows.csv", "--out", "p.txt"), ".csv or .npz"),
        (("predict", net, "--data", "x.npz", "--out", "p.npz", "--backend", "shape_check"), "computes no values"),
    ):
        code, _, err = opstage(*words)
        assert code == 2 and message in err, err


TABLES: dict[str, tuple[str, int, str, tuple[str, ...], Any]] = {
    # the file's name of the input, its columns, the table, further flags, the sum of what is read, or an error
    "all columns": ("x", 2, "a,b|1,2", (), 3),
    "a label by its name": ("x", 2, "a,b,y|1,2,9", (), 3),
    "a label first": ("x", 2, "Target,a,b|9,1,2", (), 3),
    "a label of names": ("x", 2, "a,b,kind|1,2,red", (), 3),
    "a label that is said": ("x", 2, "id,a,b|9,1,2", ("--data.label", "id"), 3),
    "its columns are said": ("x", 2, "id,a,b,y|7,1,2,9", ("--data.columns", "x=b,a"), 3),
    "said by the file's name": ("input.1", 2, "id,a,b|7,1,2", ("--data.columns", "input.1=a,b"), 3),
    "one column of its name": ("x", 1, "id,x|7,1", (), 1),
    "one of the file's name": ("sepal length (cm)", 1, "id,sepal length (cm)|7,1", (), 1),
    "an id, which may be a feature": ("x", 2, "id,a,b|7,1,2", (), "add '; x=COLUMN"),
    "too many": ("x", 2, "id,a,b,y|7,1,2,9", (), "add '; x=COLUMN"),
    "no such label": ("x", 2, "a,b|1,2", ("--data.label", "c"), "no column is called 'c'"),
    "no such column": ("x", 2, "a,b|1,2", ("--data.columns", "x=a,c"), "no column is called 'c'"),
    "no such input": ("x", 2, "a,b|1,2", ("--data.columns", "z=a,b"), "not an argument of the model"),
}


def assert_summed(
    opstage: Command, name: str, element: int, width: int, data: tuple[str, ...], expected: int | str
) -> None:
    """That a file that sums the rows of its input reads this sum from the data, or refuses them."""
    sums = [helper.make_node("ReduceSum", [name, "axis"], ["out"], keepdims=0)]
    onnx.save(model(sums, {name: (element, ("?", width))}, ["out"], {"axis": np.array([1])}), "n.onnx")
    code, _, err = opstage("predict", "n.onnx", "--out", "p.csv", "--data", *data)
    if isinstance(expected, str):
        assert code == 2 and expected in err, err
    else:
        assert code == 0 and float(Path("p.csv").read_text().split()[1]) == expected, err


@pytest.mark.parametrize("case", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("element", [onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.INT32])
def test_columns_of_tables_go_to_inputs_by_what_is_known(opstage: Command, case: Any, element: int) -> None:
    name, width, text, flags, expected = case
    Path("t.csv").write_text(text.replace("|", "\n"))
    assert_summed(opstage, name, element, width, ("t.csv", *flags), expected)


def test_arrays_have_the_names_of_the_file(opstage: Command) -> None:
    add = [helper.make_node("Sub", ["input.1", "input 2"], ["out"])]
    onnx.save(model(add, {"input.1": ["batch", 2], "input 2": ["batch", 2]}, ["out"]), "n.onnx")
    a, b = np.full((3, 2), 5.0), np.full((3, 2), 2.0)
    for arrays in ({"input.1": a, "input 2": b}, {"input_1": a, "input_2": b}, {"input 2": b, "input_1": a, "more": a}):
        np.savez("x.npz", **arrays)
        code, _, err = opstage("predict", "n.onnx", "--data", "x.npz", "--out", "p.npz")
        assert code == 0, err
        with np.load("p.npz") as found:
            np.testing.assert_array_equal(found["out"], a - b)


ARRAYS: dict[str, tuple[int, Any, int | str]] = {
    # the element of the file's input, what is given, the sum of what is read, or an error
    "whole floats": (onnx.TensorProto.INT64, [[1.0, 2.0]], 3),
    "whole floats, of 32 bits": (onnx.TensorProto.INT32, [[1.0, 2.0]], 3),
    "truth": (onnx.TensorProto.INT64, [[True, True]], 2),
    "integers": (onnx.TensorProto.FLOAT, [[1, 2]], 3),
    "parts": (onnx.TensorProto.INT64, [[1.0, 2.0], [1.5, 1.0]], "x.npz: x: row 1 holds 1.5 (rows are counted from 0)"),
    "rounded": (onnx.TensorProto.FLOAT, [[1, 2**53 + 1]], "row 0 holds 9007199254740993"),
}


@pytest.mark.parametrize("case", ARRAYS.values(), ids=ARRAYS)
def test_arrays_are_cast_like_columns(opstage: Command, case: tuple[int, Any, int | str]) -> None:
    element, x, expected = case
    np.savez("x.npz", x=np.array(x))
    assert_summed(opstage, "x", element, 2, ("x.npz",), expected)


def test_the_exported_model_of_a_run_takes_the_data_of_the_run(opstage: Command) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{i},{rng.random():.3f},{rng.choice(['red', 'blue'])},{rng.choice(['no', 'yes'])}" for i in range(40)]
    Path("t.csv").write_text("\n".join(["id,size,colour,kind", *rows]))
    words = ("--data.label", "kind", "--data.columns", "x=size,colour", "--data.categories", "one_hot")
    flags = ("--data.scale", "standard", "--model.inputs", "3", "--model.classes", "2", "--model.hidden", "8")
    for command in (
        ("train", "mlp", "--data", "t.csv", *words, *flags, "--epochs", "1", "--batch-size", "8", "--out", "run"),
        ("export", "run", "-o", "m.onnx"),
        ("predict", "run", "--data", "t.csv", "--out", "a.npz"),
        ("predict", "m.onnx", "--data", "t.csv", "--out", "b.npz"),
    ):
        code, _, err = opstage(*command)
        assert code == 0, err
    with np.load("a.npz") as ours, np.load("b.npz") as theirs:
        assert set(ours["class"]) <= {"no", "yes"} and list(ours["class"]) == list(theirs["class"])
        np.testing.assert_allclose(theirs["probabilities"], ours["probabilities"], rtol=1e-4)


def test_a_file_with_a_loss_is_judged_as_it_is(opstage: Command, net: str) -> None:
    words = ("--model.loss", "cross_entropy", "--data.file", "rows.csv", "--data.label", "kind")
    code, out, err = opstage("evaluate", net, *words)
    assert code == 0 and "before training: accuracy" in out, err
    lines = Path("rows.csv").read_text().splitlines()
    Path("few.csv").write_text("\n".join(lines[:21]))  # fewer rows than a batch of training has
    words = ("--model.loss", "cross_entropy", "--data", "few.csv", "--data.label", "kind")
    code, out, err = opstage("evaluate", net, *words)
    assert code == 0 and "before training: accuracy" in out, err


def test_inputs_are_fixed_and_sizes_constrained(opstage: Command, tmp_path: Path) -> None:
    nodes = [helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect")]
    proto = model(nodes, {"x": ["T"], "pads": (onnx.TensorProto.INT64, [2])}, ["y"])
    onnx.save(proto, tmp_path / "pad.onnx")
    code, _, err = opstage("check", "pad.onnx")
    assert code == 2 and "pads, its input 1, is computed from values" in err
    fixed = ("--model.fixed", "pads=4 4")
    code, out, err = opstage("check", "pad.onnx", *fixed)
    assert code == 1 and 'where=["T >= 5"]' in out + err
    code, out, err = opstage("check", "pad.onnx", *fixed, "--model.where", "T >= 5")
    assert code == 0, out + err
    code, _, err = opstage("check", "pad.onnx", "--model.fixed", "pads")
    assert code == 2 and "is not a name and its value" in err


def test_what_is_no_model(opstage: Command, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"nothing")
    for word, what in (("net.onnx", "not an ONNX model"), ("gone.onnx", "cannot be read")):
        code, _, err = opstage("check", word)
        assert code == 2 and what in err
