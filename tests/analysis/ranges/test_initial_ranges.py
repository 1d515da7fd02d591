"""Ranges of what has a first value: of declared parameters, whatever the seed, and of what optimizers keep."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, init
from opstage.analysis.ranges import INITIAL
from opstage.facts import ranges_of
from opstage.ops.splitmix import LARGEST_NORMAL, LARGEST_UNIFORM
from opstage.training.validate import check_step
from tests.analysis.ranges.test_ranges_of_ops import outside

SCHEMES: dict[str, Any] = {
    "zeros": init.zeros,
    "ones": init.ones,
    "a constant that is rounded": init.Constant(0.1),
    "uniform": init.uniform(-0.3, 0.7),
    "uniform about a large number": init.uniform(1e6, 1e6 + 0.1),
    "normal": init.normal(0.25, 3.0),
    "xavier": init.xavier_uniform(),
    "kaiming": init.kaiming_uniform(negative_slope=math.sqrt(5)),
    "flat": init.flat(np.arange(-5.0, 7.0).reshape(3, 4)),
}


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_first_values_lie_in_their_range(name: str, dtype: str) -> None:
    declared = {"w": init.Declaration((3, 4), SCHEMES[name])}

    options = Options(dtype=dtype)  # type: ignore[arg-type]
    found = ranges_of(opstage.check(lambda ops, params: params["w"] * 1.0, declared, options=options), initial=True)
    ((_, range_),) = found.outputs
    assert found.given == (INITIAL,) and range_.bounded
    for seed in range(20):
        assert outside(range_, init.build(declared, dtype=dtype, seed=seed)["w"]) == ""


def test_the_streams_end_where_it_is_said() -> None:
    last = (2**24 - 1) * 2.0**-24
    assert last == LARGEST_UNIFORM
    assert math.sqrt(-2 * math.log(1 - last)) <= LARGEST_NORMAL < 5.77
    low, high = init.uniform(-1, 1e-3).range_for((2,))
    assert low == -1 and high == (1e-3 + 1) * last - 1


def test_nothing_is_taken_of_first_values_unless_it_is_asked() -> None:
    model = opstage.models.model("mlp")
    report = opstage.check(model.forward, model.init, *model.batch)
    assert INITIAL not in ranges_of(report).given
    assert INITIAL in ranges_of(report, {"x": (0, 1)}, initial=True).given


def test_stated_bounds_of_trained_parameters_take_their_place() -> None:
    report = opstage.check(lambda ops, params: ops.exp(params["w"]), {"w": init.Declaration((3,), init.zeros)})
    found = ranges_of(report, {"params.*": (-2, 2)}, initial=True)
    assert found.given == ("params.* is in [-2, 2], as stated",) and found.outputs[0][1].high > 7


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adagrad", "adadelta", "rmsprop"])
def test_the_first_step_of_an_optimizer_is_proved_finite(optimizer: str) -> None:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(ops.tanh(x @ params["w"]))

    made = getattr(opstage.optim, optimizer)(lr=0.1)
    declared = {"w": init.Declaration((4, 3), init.normal(std=0.1))}
    report = check_step(loss, declared, Spec("8 4", range=(0, 1)), optimizer=made)
    found = ranges_of(report, initial=True)
    assert found.safe, found
    built = init.build(declared)
    trainer = opstage.scalar_trainer(loss, built)
    trainer.step_with(made, trainer.init_optim(made), np.random.default_rng(3).uniform(size=(8, 4)))
    range_ = dict(found.outputs)["params.w"]
    assert range_.bounded and outside(range_, trainer.get_params()["w"]) == ""


def test_the_loss_of_a_new_model_lies_in_its_range() -> None:
    model = opstage.models.model("mlp")
    bounds = {"x": (0, 1)}
    report = opstage.check(model.forward, model.init, Spec((4, 1, 8, 8)), Spec((4,), dtype="int64"), train=False)
    found = ranges_of(report, bounds | {"y": (0, 9)}, initial=True)
    rng = np.random.default_rng(5)
    for seed in range(3):
        params = init.build(model.init, seed=seed)
        x, y = rng.uniform(size=(4, 1, 8, 8)), rng.integers(0, 10, 4)
        assert found.safe and outside(found.outputs[0][1], opstage.run(model.forward, params, x, y)) == ""
