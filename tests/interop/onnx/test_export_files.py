"""The file that is written, the names in it, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import opstage
from opstage import Options, Spec
from opstage.interop.onnx import export
from opstage.interop.onnx.export import IR_VERSION, OPSET, model_of
from opstage.interop.onnx.operators import EXPORTS
from opstage.ops import elementwise
from opstage.ops.catalogue import primitives
from opstage.ops.errors import ShapeError, UnsupportedError, UsageError
from opstage.transforms.control_flow import CONTROL
from tests.interop.onnx.runs import checked, run_session, session_of
from tests.interop.onnx.table import NOT_IN_ONNX

HERE = "tests/interop/onnx/test_export_files.py"


def affine(ops: Any, params: Any, x: Any) -> Any:
    return {"y": ops.region("layer", lambda ops: ops.linear(params["w"], params["b"], x)), "x": x}


PARAMS = {"w": np.eye(3), "b": np.ones(3)}
AFFINE = opstage.record(affine, PARAMS, Spec("B 3"))


def test_a_file(tmp_path: Path) -> None:
    AFFINE.to_onnx(tmp_path / "affine.onnx")
    written = onnx.load(tmp_path / "affine.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert list(tmp_path.iterdir()) == [tmp_path / "affine.onnx"]
    assert (written.opset_import[0].version, written.ir_version) == (OPSET, IR_VERSION)
    assert written.producer_name == "opstage" and written.producer_version == opstage.__version__
    assert [given.name for given in written.graph.input] == ["params.b", "params.w", "x"]
    assert [made.name for made in written.graph.output] == ["output.x", "output.y"]


def test_nodes_say_where_they_come_from() -> None:
    (gemm,) = (node for node in checked(AFFINE).graph.node if node.op_type == "Gemm")
    assert gemm.name == "layer/Gemm"
    assert gemm.doc_string.startswith("linear at tests/interop/onnx/test_export_files.py:")


def test_the_same_program_gives_the_same_bytes() -> None:
    assert model_of(AFFINE).SerializeToString() == model_of(AFFINE).SerializeToString()


def test_outputs_that_are_inputs_constants_or_twice_the_same() -> None:
    def program(ops: Any, x: Any) -> Any:
        y = ops.exp(x)
        return x, y, y, ops.const([1.0, 2.0]), ops.detach(x)

    graph = opstage.record(program, Spec("B"))
    x = np.array([0.0, 1.0, 2.0], np.float32)
    actual = run_session(session_of(checked(graph)), graph, x)
    for a, e in zip(actual, (x, np.exp(x), np.exp(x), [1.0, 2.0], x)):
        np.testing.assert_allclose(a, e, rtol=1e-6)


def test_what_nobody_reads_is_left_out() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.max_pool(x, kernel=(2,))

    nodes = checked(opstage.record(program, Spec("N C L", where=["L >= 2"]))).graph.node
    assert [(node.op_type, len(node.output)) for node in nodes] == [("MaxPool", 1), ("Identity", 1)]


@pytest.fixture
def _without_cos(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op of one's own that is neither a rule nor made of others."""
    monkeypatch.delitem(EXPORTS, elementwise.COS)


@pytest.mark.usefixtures("_without_cos")
def test_an_op_that_onnx_cannot_say(tmp_path: Path) -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.add(x, ops.region("wave", lambda ops: ops.cos(x)))

    graph = opstage.record(program, Spec("B 3"))
    path = tmp_path / "wave.onnx"
    path.write_bytes(b"before")
    with pytest.raises(UnsupportedError) as caught:
        graph.to_onnx(path)
    line = program.__code__.co_firstlineno + 1
    place = f"cos at {HERE}:{line} (wave): ONNX cannot express cos: it has neither a rule nor a "
    assert str(caught.value).startswith(place)
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("_without_cos")
def test_a_part_of_an_op_that_onnx_cannot_say() -> None:
    """The error names the op that the user called, in a loop as well, and the part that is at fault."""

    def program(ops: Any, x: Any) -> Any:
        def turn(ops: Any, total: Any, entry: Any) -> Any:
            return ops.add(total, ops.mul(entry, ops.rand_normal(shape=(3,)))), None

        return ops.scan(turn, ops.full(shape=(3,), value=0.0), x)[0]

    graph = opstage.record(program, Spec("T 3"))
    line = program.__code__.co_firstlineno + 2
    with pytest.raises(UnsupportedError, match=rf"^rand_normal at {HERE}:{line}: ONNX cannot express cos: "):
        model_of(graph)


def test_a_size_that_no_input_has() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.full(shape=(x.shape[0] // x.shape[1],), value=1.0)

    with pytest.raises(
        UnsupportedError, match="the size A cannot be computed in the model: no axis of an input has it"
    ):
        model_of(opstage.record(program, Spec("A*B B")))


def test_fractions_have_no_element_type() -> None:
    graph = opstage.record(affine, PARAMS, Spec("B 3"), options=Options(dtype="exact"))
    with pytest.raises(UnsupportedError, match="dtype exact is not supported by ONNX; record the program in float64"):
        model_of(graph)


MISFITS: list[tuple[Any, str]] = [
    ({"param": PARAMS}, "no input is called 'param.b' (did you mean 'params.b'?); there are params.b, params.w, x"),
    ({"params": {"w": np.eye(2)}}, "given for params.w is (2, 2) float32 but the input is (3, 3) float32"),
    ({"params.b": np.array([1, 2, 3])}, "given for params.b is (3,) int64 but the input is (3,) float32"),
]


@pytest.mark.parametrize(("values", "message"), MISFITS)
def test_values_that_do_not_fit(values: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        AFFINE.to_onnx(tmp_path / "affine.onnx", values)
    assert list(tmp_path.iterdir()) == []


def test_values_whose_sizes_disagree() -> None:
    graph = opstage.record(lambda ops, x, y: ops.add(x, y), Spec("B"), Spec("B"))
    first, second = graph.input_names
    with pytest.raises(UsageError, match=f"the size B is 2 in the value given for {first} but 3 in that for {second}"):
        model_of(graph, {first: np.zeros(2), second: np.zeros(3)})
    x = np.array([1.0, 2.0], np.float32)
    (actual,) = run_session(session_of(checked(graph, {first: x})), graph, x, x)
    np.testing.assert_array_equal(actual, [2.0, 4.0])


def test_a_model_that_one_file_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_LARGEST", 40)
    with pytest.raises(UsageError, match=r"larger than 2 GiB.*leave parameters out of `values`"):
        model_of(AFFINE, {"params": PARAMS})
    model_of(AFFINE)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(export, "import_module", missing)
    with pytest.raises(
        UsageError, match=r"needs the package onnx, which is not installed: pip install 'opstage\[onnx\]'"
    ):
        AFFINE.to_onnx(tmp_path / "affine.onnx")


def test_errors_of_ops_stay_errors_of_ops() -> None:
    """A shape that is wrong is found when the program is recorded, before any export."""
    with pytest.raises(ShapeError):
        opstage.record(affine, PARAMS, Spec("B 4"))


def test_every_core_op_has_a_rule() -> None:
    """All other ops are said by their decompositions, but for those that ONNX has no words for."""
    assert {name for name, primitive in primitives().items() if primitive.core and primitive not in EXPORTS} == {
        *NOT_IN_ONNX
    }
    assert set(EXPORTS) <= {*primitives().values(), *CONTROL}


def test_operators_repeat_their_operands_themselves() -> None:
    """No number is written out in the size of what it meets, and no row is repeated before it is added."""

    def program(ops: Any, x: Any, row: Any) -> Any:
        return ops.relu_grad(x, ops.add(x, ops.broadcast_to(row, shape=x.shape)))

    graph = opstage.record(program, Spec("B 3"), Spec("3"))
    assert [node.op_type for node in checked(graph).graph.node] == ["Add", "LessOrEqual", "Where", "Identity"]
