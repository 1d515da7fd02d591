"""Ranges that Specs declare: proofs go by them, and whatever runs is held to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, init
from opstage.data.loader import OwnRows
from opstage.facts import ranges_of
from opstage.interpreters.shape_check.contract import Contract
from opstage.models.gpt import Config, make
from opstage.ops.errors import RangeError, UsageError
from opstage.ops.spec import read_inputs, sized
from opstage.training.predictor import Predictor

X = Spec("B 4", range=(0, 1))


def exponential(ops: Any, x: Any) -> Any:
    return ops.exp(x)


def test_proofs_go_by_them() -> None:
    report = opstage.check(exponential, X)
    found = ranges_of(report, dtype="float16")
    (_, range_), *_ = found.outputs
    assert found.safe and range_.low <= 1 and np.e <= range_.high < 2.75
    assert found.given == ("x is in [0, 1], as its Spec declares and runs check",)
    assert "as its Spec declares" in str(found)
    assert ranges_of(report.at(B=3), dtype="float16").given == found.given


def test_a_bound_that_is_stated_takes_their_place() -> None:
    found = ranges_of(opstage.check(exponential, X), {"*": (0, 12)}, dtype="float16")
    assert not found.safe and found.given == ("* is in [0, 12], as stated",)


def test_the_ends_are_rounded_outward() -> None:
    (_, range_), *_ = ranges_of(opstage.check(lambda ops, x: x, Spec("B", range=(0.1, 0.1)))).outputs
    assert range_.low <= float(np.float32(0.1)) <= range_.high


READ: dict[str, tuple[str, Any]] = {
    "floats": ("x: B 3 in [0, 1]", Spec("B 3", range=(0, 1))),
    "integers": ("x: B int64 in [0, 9]", Spec("B", "int64", range=(0, 9))),
    "open": ("x: B in [0 inf]", Spec("B", range=(0, np.inf))),
    "none": ("x: B T", Spec("B T")),
}


@pytest.mark.parametrize("name", READ)
def test_texts_declare_them(name: str) -> None:
    text, spec = READ[name]
    assert read_inputs([text], ["B <= 4"])["x"] == Spec(spec.shape, spec.dtype, ("B <= 4",), spec.range)


def test_a_spec_at_sizes_keeps_it() -> None:
    assert sized(X, {"B": 2}).range == (0, 1)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "order": (lambda: Spec("B", range=(1, 0)), "low <= high"),
    "nan": (lambda: Spec("B", range=(float("nan"), 1)), "low <= high"),
    "nothing finite": (lambda: Spec("B", range=(np.inf, np.inf)), "low <= high"),
    "one number": (lambda: Spec("B", range=3), "low <= high"),  # type: ignore[arg-type]
    "three": (lambda: Spec("B", range=(0, 1, 2)), "low <= high"),  # type: ignore[arg-type]
    "of a mask": (lambda: Spec("B", "bool", range=(0, 1)), "A mask is True or False"),
    "text": (lambda: read_inputs(["x: B in [0, a]"]), "a range is two numbers"),
    "text without brackets": (lambda: read_inputs(["x: B in 0 1"]), "a range is two numbers"),
    "box without one": (lambda: opstage.bounds(exponential, Spec("2 4")), "expected a Spec with a range"),
    "box with a name": (lambda: opstage.bounds(exponential, X), "expected numbers for all sizes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_one_is_one_error(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(UsageError, match=message):
        call()


# Whatever runs is held to them ----------------------------------------------------------------------------------------


def square(ops: Any, params: Any, x: Any) -> Any:
    return ops.reduce_mean(x * x * params["w"], axis=(0, 1))


def trained(x: Any, **options: Any) -> Any:
    trainer = opstage.scalar_trainer(square, {"w": np.ones(4)}, X, options=Options(**options))
    trainer.step(0.1, np.full((2, 4), 0.5))  # the signature is known from then on
    return trainer.step(0.1, x)


def compiled(x: Any) -> Any:
    program = opstage.compile(exponential, X)
    program.forward(np.full((2, 4), 0.5))
    return program.forward(x)


RUNS: dict[str, Callable[[Any], Any]] = {
    "trainer": trained,
    "compiled trainer": lambda x: trained(x, backend="compiled"),
    "compiled program": compiled,
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("bad", [1.5, -1e-9, np.nan, np.inf, -np.inf])
def test_data_outside_are_an_error(run: str, bad: float) -> None:
    x = np.full((2, 4), 0.5)
    x[1, 2] = bad
    with pytest.raises(RangeError, match=r"x is \S+ at \(1, 2\), outside of what Spec\(\"B 4\", range=\(0, 1\)\)"):
        RUNS[run](x)
    RUNS[run](np.array([[0.0, -0.0, 1.0, 0.25]]))


def test_an_open_end_is_of_finite_numbers() -> None:
    program = opstage.compile(exponential, Spec("B", range=(-np.inf, 0)))
    program.forward(np.array([-1e30]))
    with pytest.raises(RangeError, match="x is -inf"):
        program.forward(np.array([-np.inf]))


def test_inputs_of_a_prediction_are_held_to_them() -> None:
    model = opstage.models.model("gpt")
    predictor = Predictor(model, opstage.scalar_trainer(model.require_loss(), init.build(model.init)))
    for _ in range(3):  # the quick calls too
        predictor(np.full((1, 2), 255))
        with pytest.raises(RangeError, match="x is 256"):
            predictor(np.full((1, 2), 256))


def test_the_shipped_classifiers_declare_their_labels() -> None:
    for name in ("mlp", "cnn", "resnet", "vit", "lstm"):
        model = opstage.models.model(name)
        held = [tree for tree in (model.init, model.state) if tree is not None]
        found = ranges_of(opstage.check(model.forward, *held, *model.batch))
        assert "y is in [0, 9], as its Spec declares and runs check" in found.given


@pytest.mark.parametrize("method", ["interval", "crown"])
def test_a_box_of_bounds_may_be_declared(method: Any) -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return ops.tanh(x) * ops.cast(y, dtype="float32")

    box = opstage.bounds(program, Spec("2 4", range=(0, 1)), np.ones((2, 4), "int64"), method=method)
    assert box.lower.shape == (2, 4) and (box.lower <= 0).all() and (np.tanh(1) <= box.upper).all()
    assert (box.upper < 1).all() and (box.lower > -0.5).all()


def test_rows_that_a_process_holds_are_held_to_it_by_their_numbers_in_the_batch() -> None:
    contract = Contract((Spec("B", dtype="int64", range=(0, 9)),), ["y"], "the trainer", "batch")
    rows = np.array([2, 3])
    contract.check_values([OwnRows(4, rows, np.array([0, 9]))])
    with pytest.raises(RangeError, match=r"y is 11 at \(3,\)"):
        contract.check_values([OwnRows(4, rows, np.array([0, 11]))])


def test_labels_of_text_that_do_not_count_may_be_any() -> None:
    text, labels = make(Config()).batch
    assert text.range == (0, 255) and labels.range is None
