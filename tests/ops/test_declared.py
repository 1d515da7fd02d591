"""Shapes declared beside a program, and parameters read from whatever they are kept in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec, UsageError
from opstage.init import Declaration, zeros
from opstage.ops.spec import declared, read_inputs
from opstage.training.validate import parameter_specs


class Size(tuple[int, ...]):
    """PyTorch's shapes are tuples of a kind of their own."""


class Foreign:
    """A tensor of another library, whose dtypes NumPy has not."""

    def __init__(self, shape: Size, dtype: Any):
        self.shape, self.dtype = shape, dtype


class Dtype:
    def __init__(self, name: str):
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


class Module:
    """Callable, as a module of PyTorch is, and not a function that makes parameters."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "fc.weight": Foreign(Size((10, 64)), Dtype("bfloat16")),
            "fc.steps": Foreign(Size(()), Dtype("int64")),
            "fc.mask": Foreign(Size((10,)), Dtype("bool")),
        }

    def __call__(self, x: Any) -> Any:
        raise AssertionError


def test_a_program_stays_as_it_is() -> None:
    def loss(ops: Any, x: Any) -> Any:
        return x

    assert declared(loss) is None and opstage.shapes("x: B 3", where="B <= 4")(loss) is loss
    shapes = declared(loss)
    assert shapes is not None and shapes.inputs == {"x": Spec("B 3", where=("B <= 4",))}
    source = shapes.inputs["x"].source
    assert source is not None and source.file == __file__ and "opstage.shapes" in source.text


@pytest.mark.parametrize(
    ("text", "name", "spec"),
    [
        ("x: B 3 32 32", "x", Spec("B 3 32 32")),
        ("y:B int64", "y", Spec("B", "int64")),
        ("batch.x : B 2*T+1 float64", "batch.x", Spec("B 2*T+1", "float64")),
        ("lr:", "lr", Spec("")),
        ("n: int32", "n", Spec("", "int32")),
        ("xs.0: (B, 3)", "xs.0", Spec("B 3")),
        ("m: (B,)", "m", Spec("B")),
        ("s: ()", "s", Spec("")),
    ],
)
def test_texts_are_read(text: str, name: str, spec: Spec) -> None:
    assert read_inputs([text]) == {name: spec}


@pytest.mark.parametrize("text", ["", "x", ": B", "x y: B", "x.: B", "x-1: B", "x: B float46", "x: B int8"])
def test_texts_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError) as error:
        read_inputs([text])
    assert repr(text) in str(error.value)


def test_constraints_want_an_input() -> None:
    with pytest.raises(UsageError, match="needs an input to constrain"):
        read_inputs([], ["T <= 3"])


@pytest.mark.parametrize(
    "source",
    [
        {"w": Spec("3 4"), "n": Spec("2", "int64")},
        {"w": np.zeros((3, 4)), "n": np.zeros(2, np.int64)},
        {"w": (3, 4), "n": np.zeros(2, np.uint8)},
        {"w": Declaration((3, 4), zeros), "n": Spec("2", "int64")},
        lambda: {"w": np.zeros((3, 4), np.float16), "n": np.zeros(2, int)},
        lambda seed, rng, scale=2.0: {"w": rng.random((3, 4)) * scale + seed, "n": np.zeros(2, int)},
    ],
)
def test_parameters_are_read(source: Any) -> None:
    specs = parameter_specs(source)
    assert (tuple(map(str, specs["w"].entries)), specs["w"].dtype) == (("3", "4"), None)
    assert (tuple(map(str, specs["n"].entries)), specs["n"].dtype) == (("2",), "int64")


def test_modules_of_another_library_are_read() -> None:
    for source in (Module(), Module):
        specs = parameter_specs(source)
        assert specs == {"fc.weight": Spec((10, 64)), "fc.steps": Spec((), "int64"), "fc.mask": Spec((10,), "bool")}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, "params holds no parameters"),
        (None, "params holds no parameters"),
        ({"blocks": [{"w": "big"}]}, r"params\.blocks\.0\.w has no shape: it is 'big'"),
        (object(), "params has no shape: it is <object"),
        (lambda width: None, "wants an argument 'width'"),
    ],
)
def test_what_holds_no_parameters(source: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parameter_specs(source)
