"""The commands on an ONNX file: checked, drawn, trained from a table, and its run asked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.cli.conftest import Command
from tests.onnx.models import classifier, model


def test_it_is_checked_and_drawn_without_a_loss(opstage: Command, net: str, tmp_path: Path) -> None:
    code, out, _ = opstage("check", net)
    assert code == 0 and out.startswith("ok: net.onnx, the forward pass:")
    code, out, err = opstage("graph", net, "-o", "net.html")
    assert code == 0, err
    assert "batch" in (tmp_path / "net.html").read_text()
    code, _, err = opstage("train", net, "--data", "rows.csv", "--data.label", "kind")
    assert code == 2 and "has no loss" in err and "--model.loss cross_entropy" in err


@pytest.mark.parametrize("apart", [False, True])
def test_it_is_trained_and_predicts(opstage: Command, net: str, tmp_path: Path, apart: bool) -> None:
    """Its run goes on without the file: it has a copy, with the file that holds its weights."""
    if apart:
        (tmp_path / net).unlink()
        onnx.save(classifier(), tmp_path / net, save_as_external_data=True, location="net.bin", size_threshold=0)
    words = ("--model.loss", "cross_entropy", "--data.file", "rows.csv", "--data.label", "kind")
    code, out, err = opstage("train", net, *words, "--epochs", "3", "--batch-size", "16", "--run.out", "run")
    assert code == 0, err
    for each in tmp_path.glob("net.*"):
        each.unlink()
    code, out, err = opstage("evaluate", "run")
    assert code == 0 and "accuracy" in out, err
    code, out, err = opstage("predict", "run", "--data", "rows.csv", "--out", "p.csv")
    assert code == 0, err
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 121


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
        (("bench", net, "--at", "T=3"), "has no size of this name"),
        (("bench", net, "--profile"), "has no loss"),
        (("predict", "gone.onnx", "--data", "x.npz", "--out", "p.npz"), "cannot be read"),
        (("predict", net, "--data", "rows.csv", "--out", "p.txt"), ".csv or .npz"),
        (("predict", net, "--data", "x.npz", "--out", "p.npz", "--backend", "shape_check"), "computes no values"),
    ):
        code, _, err = opstage(*words)
        assert code == 2 and message in err, err


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
