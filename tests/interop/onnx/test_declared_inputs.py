"""Inputs that a model does not declare: one error, since its numbers stand for the sizes that it was exported with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
import opstage.onnx
from opstage.interop.model import require_declared
from opstage.ops.errors import DtypeError, ShapeError
from opstage.ops.spec import Spec
from opstage.options import Options
from tests.interop.onnx.models import load, model, node

F, INT = np.float32, np.int64


def _program(declared: dict[str, Any]) -> Any:
    def program(ops: Any, *given: Any) -> Any:
        require_declared(ops, "net", declared, given)
        return ops.full(shape=(), value=1.0)

    return program


GOOD: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "names": ({"x": Spec("B T"), "y": Spec("T")}, (np.ones((2, 3), F), np.ones(3, F))),
    "an expression": ({"x": Spec("B 2*B+1")}, (np.ones((3, 7), F),)),
    "an expression alone": ({"x": Spec("2*k+1"), "y": Spec("k")}, (np.ones(7, F), np.ones(3, F))),
    "steps that end": ({"x": Spec("min(k, 4)")}, (np.ones(4, F),)),
    "one that is not linear": ({"x": Spec("k*k")}, (np.ones(7, F),)),
    "1, which an exporter does not try": ({"x": Spec("B", where=["B >= 2"])}, (np.ones(1, F),)),
    "a tree": (
        {"x": {"a": Spec("B"), "b": [Spec("B 2", "int64")]}},
        ({"a": np.ones(3, F), "b": [np.ones((3, 2), INT)]},),
    ),
    "no axes": ({"x": Spec("")}, (np.float32(1),)),
    "none": ({"x": Spec("B 3")}, (np.ones((0, 3), F),)),
}
BAD: dict[str, tuple[dict[str, Any], tuple[Any, ...], type[Exception], str]] = {
    "a number": ({"x": Spec("B 8")}, (np.ones((4, 9), F),), ShapeError, r"x is .*\(4, 9\): axis 1 must have 8"),
    "a rank": ({"x": Spec("B 8")}, (np.ones((8,), F),), ShapeError, "ranks 2 and 1 differ"),
    "one name twice": (
        {"x": Spec("B T"), "y": Spec("T")}, (np.ones((2, 3), F), np.ones(4, F)), ShapeError, "axis 0 must have T = 3",
    ),
    "an expression": ({"x": Spec("B 2*B")}, (np.ones((3, 7), F),), ShapeError, r"axis 1 must have 2\*B = 6"),
    "an expression alone": ({"x": Spec("2*k")}, (np.ones(7, F),), ShapeError, r"axis 0 must have 2\*k = "),
    "beyond its greatest": ({"x": Spec("min(k, 4)")}, (np.ones(7, F),), ShapeError, r"must have min\(k, 4\) = 4"),
    "expressions alone": (
        {"x": Spec("2*k"), "y": Spec("3*k")}, (np.ones(6, F), np.ones(6, F)), ShapeError, r"y .* must have 3\*k = 9",
    ),
    "a constraint": (
        {"x": Spec("B", where=["B <= 16"])}, (np.ones(17, F),), ShapeError, "B <= 16, which does not hold of B = 17",
    ),
    "a multiple": ({"x": Spec("B", where=["B % 4 == 0"])}, (np.ones(6, F),), ShapeError, "does not hold of B = 6"),
    "a strict one": ({"x": Spec("B", where=["B < 6"])}, (np.ones(6, F),), ShapeError, "does not hold of B = 6"),
    "a least": ({"x": Spec("B", where=["B >= 5"])}, (np.ones(4, F),), ShapeError, "does not hold of B = 4"),
    "a leaf of a tree": ({"x": {"a": Spec("B 2")}}, ({"a": np.ones((3, 3), F)},), ShapeError, r"x\.a is declared"),
    "ints for floats": ({"x": Spec("B")}, (np.ones(3, INT),), DtypeError, "of floats, but is int64"),
    "floats for ints": ({"x": Spec("B", "int64")}, (np.ones(3, F),), DtypeError, "of integers, but is float32"),
}  # fmt: skip
BACKENDS = [Options(), Options(backend="compiled")]


@pytest.mark.parametrize("options", BACKENDS, ids=["eager", "compiled"])
@pytest.mark.parametrize("name", GOOD)
def test_declared_inputs_are_taken(name: str, options: Options) -> None:
    declared, given = GOOD[name]
    assert opstage.run(_program(declared), *given, options=options) == 1


@pytest.mark.parametrize("options", BACKENDS, ids=["eager", "compiled"])
@pytest.mark.parametrize("name", BAD)
def test_others_are_refused(name: str, options: Options) -> None:
    declared, given, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        opstage.run(_program(declared), *given, options=options)


def test_a_check_holds_its_own_specs_to_the_declared_ones() -> None:
    declared = {"x": Spec("B 8", where=["B <= 16"])}
    assert opstage.check(_program(declared), Spec("N 8", where=["N <= 12"])).ok
    assert opstage.check(_program(declared), declared["x"]).ok
    for spec in (Spec("N 8"), Spec("N M"), Spec("N 9", where=["N <= 12"])):
        assert not opstage.check(_program(declared), spec).ok


def test_a_fixed_size_of_a_file_is_no_other() -> None:
    """A mean is a sum divided by 8 in many a file: of 9 it would be another; onnxruntime refuses 9."""
    nodes = [node("ReduceSum", ["x", "axes"], ["s"]), node("Div", ["s", "eight"], ["y"])]
    constants = {"axes": np.array([1]), "eight": F(8)}
    loaded = load(model(nodes, {"x": ["B", 8]}, ["y"], constants))
    trees = loaded.trees
    assert float(opstage.run(loaded, *trees, np.ones((1, 8), F))["y"][0, 0]) == 1
    with pytest.raises(ShapeError, match="axis 1 must have 8; a size that is to be open"):
        opstage.run(loaded, *trees, np.ones((1, 9), F))


def test_a_name_of_a_file_may_stand_for_several_sizes() -> None:
    """PaddlePaddle's exporter calls height and width alike; sizes are those of the tensors."""
    nodes = [node("Shape", ["x"], ["s"]), node("Transpose", ["x"], ["t"], perm=[1, 0])]
    loaded = load(model(nodes, {"x": ["n", "n"]}, ["s", "t"]))
    found = opstage.run(loaded, loaded.params, np.ones((2, 3), F))
    assert found["s"].tolist() == [2, 3] and found["t"].shape == (3, 2)
