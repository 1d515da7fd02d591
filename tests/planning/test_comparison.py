"""Steps that are planned and run: every kernel that runs is predicted, and no other. No figure is looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.predicted import fastest_rates
from opstage import Options
from opstage.ops.errors import UsageError
from opstage.planning.rates import MEASURED, KernelPoint
from opstage.planning.step_plan import Compared, StepComparison, compare, plan_step
from opstage.runs.plan import measure_settings, model_settings, plan, timed_step
from tests.planning.flat import FLAT

SIZES: dict[str, dict[str, int]] = {"mlp": {"B": 4}, "lstm": {"B": 2}, "pinn": {"B": 4}}
RATES = replace(FLAT, origin=MEASURED)


def comparison(name: str, backend: str) -> StepComparison:
    settings = replace(model_settings(name), options=Options(backend=backend))
    made = plan(settings, at=SIZES[name], on=RATES)
    return compare(made, timed_step(settings, SIZES[name]), rounds=1, seconds=0.0)


@pytest.mark.parametrize(
    ("name", "backend"),
    [("mlp", "eager"), ("lstm", "eager"), ("pinn", "eager"), ("mlp", "compiled"), ("lstm", "compiled")],
)
def test_the_kernels_that_run_are_those_that_are_predicted(name: str, backend: str) -> None:
    found = comparison(name, backend)
    assert {row.name for row in found.kernels if not row.measured} == set()
    assert {row.name for row in found.kernels if not row.predicted and backend == "compiled"} == set()
    assert {row.name for row in found.groups} == {row.name for row in found.plan.groups}
    assert sum(row.predicted for row in found.groups) == pytest.approx(found.plan.seconds)
    assert sum(row.measured for row in found.groups) >= sum(row.measured for row in found.kernels)
    assert "predicted" in str(found) and found.as_data()["measured_ms"] > 0


def test_a_prediction_that_is_off_is_named() -> None:
    made = comparison("mlp", "eager").plan
    rows = (Compared("right", 1.2, 1.0), Compared("wrong", 1.3, 1.0), Compared("tiny", 1e-6, 1e-5))
    found = StepComparison(made, Compared("step", 2.5, 2.0), (), rows)
    assert [row.name for row in found.off] == ["wrong"]
    assert "wrong" in str(found) and "tiny" not in str(found)


def test_a_step_that_is_planned_for_another_device_is_not_measured() -> None:
    settings = model_settings("mlp")
    made = plan(settings, at={"B": 4}, on="h100")
    with pytest.raises(UsageError, match="planned for NVIDIA H100 SXM, and measured on this machine"):
        measure_settings(settings, made)


def test_the_best_of_several_calibrations() -> None:
    point = KernelPoint((1,), 1, 8, 2e-6)
    slow = replace(FLAT, kernels={"mul": (point,)}, loops={"any": 1.0}, step=2e-3)
    fast = replace(FLAT, kernels={"mul": (replace(point, seconds=1e-6),)}, loops={"any": 2.0}, bandwidths=((1, 2e8),))
    best = fastest_rates([slow, fast])
    assert best.kernels["mul"] == (replace(point, seconds=1e-6),)
    assert (best.loops, best.bandwidths, best.step) == ({"any": 2.0}, ((1, 2e8),), 1e-3)


def test_every_parameter_that_moves_counts() -> None:
    from opstage import optim
    from opstage.models import model
    from opstage.training.memory import model_memory

    memory = model_memory(model("mlp"), optim.sgd(lr=0.1))
    without, with_ = (plan_step(memory, {"B": 4}, replace(FLAT, per_parameter=s)).seconds for s in (0.0, 1e-3))
    assert with_ - without == pytest.approx(6e-3)  # three layers, each a weight and a bias
