"""A loss that gives no float scalar is told so wherever it is used, and by a check that had checked half of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Aux, Options, Spec
from opstage.ops.errors import OpstageError, ProgramError
from opstage.ops.spec import Shapes
from opstage.testing import assert_shapes
from opstage.training.program_check import FORWARD, STEP, check_program
from opstage.training.trainer import scalar_trainer

Program = Callable[..., Any]


def _scaled(ops: Any, params: Any, x: Any) -> Any:
    return ops.mul(x, ops.broadcast_to(params["w"], shape=x.shape))


def _sum(ops: Any, params: Any, x: Any) -> Any:
    return ops.sum(_scaled(ops, params, x))


SCALAR = "must be a scalar but is"
NO_SCALARS: dict[str, tuple[Program, str]] = {
    "vector": (_scaled, rf"{SCALAR} \((B|2), 4\); reduce it"),
    "kept axis": (lambda ops, p, x: ops.reshape(_sum(ops, p, x), shape=(1,)), rf"{SCALAR} \(1,\)"),
    "tuple": (lambda ops, p, x: (_sum(ops, p, x), _sum(ops, p, x)), r"\(loss, Aux\(state=, metrics=\)\); got "),
    "three": (lambda ops, p, x: (_sum(ops, p, x), Aux(), x), "loss is one scalar; got"),
    "two of a dict": (lambda ops, p, x: {"a": _sum(ops, p, x), "b": _sum(ops, p, x)}, "one scalar; got 2 tensors"),
    "metrics": (lambda ops, p, x: (_sum(ops, p, x), {"m": x}), r"got dict"),
    "Aux of a vector": (lambda ops, p, x: (_scaled(ops, p, x), Aux(metrics={"m": x})), SCALAR),
    "integer": (lambda ops, p, x: ops.sum(ops.cast(_scaled(ops, p, x), dtype="int64")), "float scalar, not int64"),
    "boolean": (lambda ops, p, x: ops.less(_sum(ops, p, x), _sum(ops, p, x)), "float scalar, not bool"),
    "nothing": (lambda ops, p, x: None, "returns no tensor|got 0 tensors"),
    "a number": (lambda ops, p, x: 3.0, "got a float where it needs a ref"),
}
SHAPES = Shapes({"x": Spec("B 4")}, params={"w": Spec("4")})
PARAMS, X = {"w": np.ones(4)}, np.ones((2, 4))


def called(program: Program, name: str) -> Program:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        return program(ops, params, x)

    loss.__name__ = name
    return loss


@pytest.mark.parametrize("case", NO_SCALARS)
def test_what_is_called_a_loss_is_held_to_be_one(case: str) -> None:
    program, message = NO_SCALARS[case]
    for name in ("loss", "my_loss_fn", "Objective"):
        checked = check_program(called(program, name), SHAPES)
        assert not checked.report.ok
        assert re.search(message, str(checked.report)), str(checked.report)


@pytest.mark.parametrize("case", NO_SCALARS)
def test_any_other_program_is_said_to_be_checked_by_half(case: str) -> None:
    program, _ = NO_SCALARS[case]
    checked = check_program(called(program, "predict"), SHAPES)
    if case in ("nothing", "a number", "three", "Aux of a vector"):  # errors in any case, and what has an Aux is a loss
        assert not checked.report.ok
        return
    assert checked.report.ok and checked.what == FORWARD
    (warning,) = [w for w in checked.report.warnings if "forward pass" in w.reason]
    assert "no scalar loss: only its forward pass was checked, no backward pass and no update" in warning.reason
    assert "--forward" in warning.fix and warning.source is not None
    asked = check_program(called(program, "predict"), SHAPES, step=False)
    assert asked.report.ok and not [w for w in asked.report.warnings if "forward pass" in w.reason]


def test_what_is_a_loss_is_checked_whole() -> None:
    for program in (
        _sum,
        lambda ops, params, x: (_sum(ops, params, x), Aux(metrics={"m": ops.sum(x)})),
        lambda ops, params, x: {"total": _sum(ops, params, x)},
    ):
        for name in ("loss", "predict"):
            checked = check_program(called(program, name), SHAPES)
            assert checked.report.ok and checked.what == STEP, str(checked.report)
    without = check_program(
        called(lambda ops, params, x: x, "predict"), Shapes({"params": Spec("4"), "x": Spec("B 4")})
    )
    assert without.report.ok


def test_assert_shapes_says_it() -> None:
    program = called(_scaled, "loss")
    with pytest.raises(AssertionError, match=SCALAR):
        assert_shapes(program, "x: B 4", params={"w": Spec("4")})


@pytest.mark.parametrize("case", NO_SCALARS)
def test_steps_trainers_and_gradients_say_it(case: str) -> None:
    program, message = NO_SCALARS[case]
    report = opstage.check_step(program, {"w": Spec("4")}, Spec("B 4"))
    assert not report.ok and re.search(message, str(report)), str(report)
    with pytest.raises(OpstageError, match=message):
        scalar_trainer(program, PARAMS, Spec("B 4"))
    for backend in ("eager", "compiled"):
        t = scalar_trainer(program, PARAMS, options=Options(backend=backend, validate=False))
        for use in (t.forward, t.backward, lambda x: t.step(0.1, x)):
            with pytest.raises(OpstageError, match=message):
                use(X)
        assert t.get_params()["w"].tolist() == [1.0] * 4 and t.steps_taken == 0
    with pytest.raises(OpstageError):
        opstage.value_and_grad(program, PARAMS, X)


def test_an_aux_that_is_none_of_its_own() -> None:
    t = scalar_trainer(
        lambda ops, p, s, x: (_sum(ops, p, x), Aux(state={"other": x})),
        PARAMS,
        options=Options(validate=False),
        state=X,
    )
    with pytest.raises(ProgramError, match="the new state is not built like the old one"):
        t.step(0.1, X)
