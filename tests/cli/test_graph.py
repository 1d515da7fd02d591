"""`opstage graph`: what it writes, and one clear line for each thing that cannot be used."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from opstage import Options
from opstage.interpreters.graph import Graph
from opstage.models import MODELS, model
from opstage.training.program_check import record_model
from tests.cli.conftest import Command

WITH_WARNING = """import opstage
from opstage import Spec
from opstage.init import Declaration, zeros

@opstage.shapes("x: B 1", params={"w": Declaration((1,), zeros)})
def loss(ops, params, x):
    h = ops.softmax(x, axis=-1)
    return ops.sum(ops.mul(h, ops.broadcast_to(params["w"], shape=x.shape)))
"""


def written(result: tuple[int, str, str]) -> str:
    code, out, err = result
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_text_of_a_training_step_reads_back(opstage: Command, name: str) -> None:
    text = written(opstage("graph", name))
    graph = Graph.parse(text)
    assert str(graph) == text
    assert graph.output_names[0] == "loss"
    assert "_update(" in text and " backward\n" in text and "size B\n" in text


def test_the_forward_pass_alone(opstage: Command) -> None:
    text = written(opstage("graph", "mlp", "--forward"))
    assert text == str(record_model(model("mlp"), Options()))
    assert " backward\n" not in text and "_update(" not in text and "bernoulli" not in text
    assert len(Graph.parse(text).output_names) == 1


def test_sizes_and_settings_are_taken(opstage: Command) -> None:
    text = written(opstage("graph", "gpt", "--at", "B=32, T=16", "--model.depth", "1", "--dtype", "float64"))
    assert " x: (32, 16) int64\n" in text and "(32, 16, 128) float64" in text
    assert "blocks.0" in text and "blocks.1" not in text
    half = written(opstage("graph", "gpt", "--at", "T=16", "--forward"))
    assert " x: (B, 16) int64\n" in half and "size B\n" in half and "size T\n" not in half


def test_the_optimizer_of_the_settings_is_taken(opstage: Command) -> None:
    text = written(opstage("graph", "mlp", "--optimizer.name", "sgd", "--optimizer.clip_norm", "1"))
    assert "sgd_update(" in text and "adamw" not in text
    assert "sqrt(" in text  # the norm


def test_other_forms(opstage: Command) -> None:
    assert written(opstage("graph", "cnn", "--format", "dot")).startswith("digraph opstage {")
    assert ET.fromstring(written(opstage("graph", "cnn", "--format", "svg"))).tag.endswith("svg")
    page = written(opstage("graph", "cnn", "--format", "html", "--at", "B=8"))
    assert page.startswith("<!doctype html>") and "<title>cnn, one training step at B=8</title>" in page


def test_an_onnx_model(opstage: Command, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    assert written(opstage("graph", "mlp", "--forward", "--format", "onnx", "-o", "mlp.onnx")) == ""
    stored = onnx.load(str(tmp_path / "mlp.onnx"))
    onnx.checker.check_model(stored)
    assert stored.graph.output[0].name == "loss"


def test_a_file_is_written_whole(opstage: Command, tmp_path: Path) -> None:
    assert written(opstage("graph", "mlp", "-o", "mlp.txt")) == ""
    assert (tmp_path / "mlp.txt").read_text() == written(opstage("graph", "mlp"))
    assert [path.name for path in tmp_path.iterdir()] == ["mlp.txt"]


@pytest.mark.parametrize(
    ("file", "begins"),
    [
        ("g.html", "<!doctype html>"),
        ("g.HTM", "<!doctype html>"),
        ("g.svg", "<svg "),
        ("g.dot", "digraph "),
        ("g.gv", "digraph "),
        ("g.txt", "graph 1: float32"),
        ("g", "graph 1: float32"),
    ],
)
def test_a_suffix_says_what_is_written(opstage: Command, tmp_path: Path, file: str, begins: str) -> None:
    assert written(opstage("graph", "mlp", "--forward", "-o", file)) == ""
    assert (tmp_path / file).read_text().startswith(begins)


def test_a_page_shows_what_a_check_finds(opstage: Command, tmp_path: Path) -> None:
    assert 'id="remarks"' not in written(opstage("graph", "mlp", "--format", "html"))
    (tmp_path / "model.py").write_text(WITH_WARNING)
    for words in (["--step"], ["--forward"], ["--at", "B=4"]):
        page = written(opstage("graph", "model.py", "--format", "html", *words))
        assert '<section id="remarks"><pre class="warning">warning: softmax at model.py:7' in page.replace(
            str(tmp_path) + "/", ""
        )
        assert page.count('<span class="remark warning">') == 1
