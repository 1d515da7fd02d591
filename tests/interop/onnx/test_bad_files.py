"""Files that are not models, damaged and hostile ones: one clear error each, and nothing read outside of the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import opstage
import opstage.onnx
from opstage.onnx import InternalError
from opstage.ops.errors import OpstageError, UnsupportedError, UsageError
from tests.interop.onnx.models import classifier, load, model, node


def _of(*nodes: Any, output: str = "y", **settings: Any) -> Any:
    return model(list(nodes), {"x": [3]}, [output], {"w": np.ones(3, np.float32)}, **settings)


RELU = node("Relu", ["x"], ["y"])


def _sized(size: int) -> Any:
    proto = _of(RELU)
    proto.graph.initializer[0].dims[0] = size
    return proto


def _itself() -> Any:
    body = [node("Loopy", ["a"], ["b"], domain="mine")]
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    function = helper.make_function("mine", "Loopy", ["a"], ["b"], body, imports)
    nodes = [node("Loopy", ["x"], ["y"], domain="mine")]
    return model(nodes, {"x": [3]}, ["y"], functions=[function], domains=("mine",))


def _doubling() -> Any:
    """Functions that call the next one twice: 2³¹ nodes."""
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    functions = []
    for i in range(31):
        name = f"F{i + 1}" if i < 30 else "Neg"
        domain = "mine" if i < 30 else ""
        body = [node(name, ["a"], ["t"], domain=domain), node(name, ["t"], ["b"], domain=domain)]
        functions.append(helper.make_function("mine", f"F{i}", ["a"], ["b"], body, imports))
    nodes = [node("F0", ["x"], ["y"], domain="mine")]
    return model(nodes, {"x": [3]}, ["y"], functions=functions, domains=("mine",))


GRAPHS: dict[str, tuple[Any, str]] = {
    "twice": (lambda: _of(RELU, node("Exp", ["x"], ["y"])), "gives 'y', which is given already"),
    "cycle": (
        lambda: _of(node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"]), output="b"),
        "reads what is computed from its own result",
    ),
    "missing": (lambda: _of(node("Add", ["x", "gone"], ["y"])), "reads 'gone', which nothing gives"),
    "no output": (lambda: _of(RELU, output="z"), "nothing gives the output 'z'"),
    "itself": (_itself, "functions call each other more than"),
    "doubling": (_doubling, "more than 100,000 nodes"),
    "short": (lambda: _sized(1 << 40), "initializer 'w' of shape .* has 12 bytes"),
    "negative": (lambda: _sized(-3), "initializer 'w' has the shape .*-3"),
    "old": (lambda: _of(RELU, opset=6), "its operators are of version 6; those from 7 to"),
    "new": (lambda: _of(RELU, opset=99), "its operators are of version 99"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_that_are_none(name: str) -> None:
    make, message = GRAPHS[name]
    with pytest.raises((UsageError, UnsupportedError), match=message):
        load(make())


@pytest.mark.parametrize(
    "node",
    [
        node("Softmax", ["x"], ["y"], axis="one"),
        node("Transpose", ["x"], ["y"], perm=["a"]),
        node("Conv", ["x"], ["y"]),
        node("Conv", ["x", "x"], ["y"], strides="2"),
        node("Resize", ["x"], ["y"], mode="wide"),
        node("LSTM", ["x", "x", "x"], ["y"], direction="up"),
        node("Cast", ["x"], ["y"]),
        node("If", ["x"], ["y"]),
    ],
    ids=lambda node: node.op_type,
)
def test_nodes_of_odd_attributes_and_inputs(node: Any) -> None:
    with pytest.raises(OpstageError):
        loaded = load(model([node], {"x": [3]}, ["y"]))
        opstage.run(loaded, {}, np.ones(3))


def test_an_attribute_that_nothing_reads() -> None:
    with pytest.raises(UnsupportedError, match="its attribute steepness is not known"):
        load(_of(node("Gelu", ["x"], ["y"], steepness=2.0)))


@pytest.mark.parametrize("data", [b"", b"not a model at all", b"\xff" * 100])
def test_bytes_that_are_no_model(data: bytes) -> None:
    with pytest.raises(UsageError, match="is not an ONNX model"):
        opstage.onnx.load(data)


def _external(location: str, offset: str = "0", length: str = "12") -> Any:
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": [3]}, ["y"], {"w": np.ones(3, np.float32)})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return proto


@pytest.mark.parametrize(
    ("location", "offset", "length", "message"),
    [
        ("../secret.bin", "0", "12", "which is not in the model's folder"),
        ("link.bin", "0", "12", "which is not in the model's folder"),
        ("/etc/passwd", "0", "12", "which is not in the model's folder"),
        ("gone.bin", "0", "12", "which is not there"),
        ("", "0", "12", "no name is given"),
        ("data.bin", "1000", "12", "needs 12 bytes"),
        ("data.bin", "-4", "12", "needs 12 bytes"),
        ("data.bin", "0", "8", "needs 12 bytes"),
        ("data.bin", "x", "12", "are not numbers"),
    ],
)
def test_external_data_of_elsewhere_are_not_read(
    tmp_path: Path, location: str, offset: str, length: str, message: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(12))
    (folder / "data.bin").write_bytes(bytes(12))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    onnx.save(_external(location, offset, length), folder / "net.onnx")
    with pytest.raises(UsageError, match=message):
        opstage.onnx.load(folder / "net.onnx")


def test_bytes_have_no_folder() -> None:
    with pytest.raises(UsageError, match="load the model by its path"):
        load(_external("data.bin"))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_models_say_what_they_are(seed: int) -> None:
    """Bytes changed at random: an error of Opstage's, or a model that is one still."""
    rng = np.random.default_rng(seed)
    text = bytearray(classifier().SerializeToString())
    for _ in range(60):
        damaged = bytearray(text)
        for at in rng.integers(0, len(text), rng.integers(1, 6)):
            damaged[at] = rng.integers(0, 256)
        if rng.random() < 0.3:
            del damaged[rng.integers(0, len(text)) :]
        try:
            opstage.onnx.load(bytes(damaged))
        except OpstageError:
            pass


def test_loops_in_loops_are_not_written_out_without_end() -> None:
    value = helper.make_empty_tensor_value_info
    graph = None
    for level in range(12):
        nodes = [node("Identity", ["go"], ["goes"]), node("Identity", ["i"], [f"at{level}"])]
        if graph is not None:
            nodes.append(node("Loop", ["n", "go"], [f"loop{level}"], body=graph))
        given = [helper.make_tensor_value_info("i", TensorProto.INT64, [])]
        given.append(helper.make_tensor_value_info("go", TensorProto.BOOL, []))
        graph = helper.make_graph(nodes, "body", given, [value("goes"), value(f"at{level}")])
    weights = {"n": np.array(16), "go": np.array(True)}
    proto = model([node("Loop", ["n", "go"], ["y"], body=graph)], {"x": [1]}, ["y"], weights)
    with pytest.raises(UnsupportedError, match="with loops written out its graphs have more than"):
        load(proto)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (node("Softmax", ["x"], ["y"], axis="one"), "'axis' is of kind STRING; the operator takes INT"),
        (node("Conv", ["x"], ["y"]), "it has 1 inputs; the operator takes 2 to 3"),
        (node("Relu", ["x", "x"], ["y"]), "it has 2 inputs; the operator takes 1"),
    ],
    ids=lambda each: getattr(each, "op_type", None),
)
def test_nodes_that_are_not_their_operators(node: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(model([node], {"x": [3]}, ["y"]))


@pytest.mark.parametrize("error", [KeyError, ZeroDivisionError, AssertionError])
def test_faults_of_opstage_are_not_the_file_s(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """What fails deeper than the rules of operators is said to be a fault of Opstage's, with its cause."""

    def fails(*_: Any, **__: Any) -> Any:
        raise error("inside")

    globals_of_opstage = {"__name__": "opstage.ops.odd", "fails": fails}
    exec("def odd(ops, x): return fails()", globals_of_opstage)
    from opstage.interop.onnx.graph import RULES

    monkeypatch.setitem(RULES, "Relu", lambda call: globals_of_opstage["odd"](call.ops, call.x()))
    text = model([node("Relu", ["x"], ["y"])], {"x": [3]}, ["y"]).SerializeToString()
    with pytest.raises(
        InternalError, match=r"the Relu that gives 'y': Opstage failed here with .*a fault of Opstage's"
    ) as found:
        opstage.onnx.load(text)
    assert isinstance(found.value.__cause__, error)


def test_names_that_are_no_text() -> None:
    text = model([node("Relu", ["x"], ["y"], name="name")], {"x": [3]}, ["y"]).SerializeToString()
    with pytest.raises(UsageError, match=r"b'na\\xffe' is a name in it, which is not text in UTF-8"):
        opstage.onnx.load(text.replace(b"name", b"na\xffe"))


def test_a_file_s_name_that_no_system_has(tmp_path: Path) -> None:
    onnx.save(_external("x" * 5000), tmp_path / "net.onnx")
    with pytest.raises(UsageError, match="which cannot be read: "):
        opstage.onnx.load(tmp_path / "net.onnx")
