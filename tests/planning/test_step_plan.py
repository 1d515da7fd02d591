"""Whole steps: nothing is lost between the programs and the prediction, and more samples never take less."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import opstage
from opstage import Options, Spec, optim
from opstage.interpreters.graph.cpu.cost import works
from opstage.interpreters.graph.cpu.plan import ControlStep, CpuPlan
from opstage.models import Model, model
from opstage.ops.errors import UsageError
from opstage.planning.rates import PUBLISHED_DEVICES
from opstage.planning.roofline import step_kernels
from opstage.planning.step_plan import StepPlan, plan_step
from opstage.training.memory import StepMemory, model_memory
from tests.planning.flat import FLAT

BACKENDS = ("eager", "compiled")
SIZES: dict[str, dict[str, int]] = {"mlp": {"B": 8}, "cnn": {"B": 4}, "lstm": {"B": 4}, "gpt": {"B": 2, "T": 8}}


def memory_of(made: Model, backend: str) -> StepMemory:
    return model_memory(made, optim.adamw(lr=1e-3), Options(backend=backend))


@cache
def planned(name: str, backend: str, **sizes: int) -> StepPlan:
    return plan_step(memory_of(model(name), backend), {**SIZES[name], **sizes}, FLAT, model=name)


def one_layer() -> Model:

    init = {"w": opstage.Declaration((32, 16), opstage.init.zeros)}
    return Model("one", None, init, lambda ops, params, x: ops.sum(ops.matmul(x, params["w"])), None, (Spec("B 32"),))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SIZES)
def test_the_parts_add_up_to_the_whole(name: str, backend: str) -> None:
    made = planned(name, backend)
    assert sum(row.seconds for row in made.groups) == pytest.approx(made.seconds)
    assert sum(row.calls for row in made.groups) == sum(time.kernel.times for time in made.times)
    by_hand = 1e-3  # of the step
    for kernel in (time.kernel for time in made.times):
        overhead = (1e-7 if kernel.looped else 1e-6) + 1e-5 * (kernel.parallel and kernel.fused)
        by_hand += kernel.times * (overhead + max(kernel.flops / 1e9, kernel.nbytes / 1e8))
    assert made.seconds == pytest.approx(by_hand)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SIZES)
def test_more_samples_take_longer(name: str, backend: str) -> None:
    seconds = [planned(name, backend, B=size).seconds for size in (SIZES[name]["B"], 32)]
    assert seconds == sorted(seconds)


def _costs(plan: CpuPlan, times: int = 1) -> tuple[int, int, int]:
    kernels = flops = nbytes = 0
    for work in works(plan):
        step = plan.steps[work.first]
        if isinstance(step, ControlStep):
            inner = _costs(step.plans[0], times * step.equation.static["length"])
            kernels, flops, nbytes = kernels + inner[0], flops + inner[1], nbytes + inner[2]
        else:
            kernels, flops, nbytes = (
                kernels + times,
                flops + times * int(work.cost.flops),
                nbytes + times * int(work.cost.bytes),
            )
    return kernels, flops, nbytes


@pytest.mark.parametrize("name", SIZES)
def test_every_compiled_kernel_is_counted(name: str) -> None:
    memory = memory_of(model(name), "compiled")
    calls = step_kernels(memory, SIZES[name]).kernels
    found = [sum(c.times * getattr(c, what) for c in calls) for what in ("flops", "nbytes")]
    assert (sum(c.times for c in calls), *found) == _costs(memory.plan(**SIZES[name]))


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_eager_arithmetic_is_that_of_the_check(name: str) -> None:
    """As the check counts it, whose ops may be written out where the interpreter has a kernel: within two percent."""
    made = model(name)
    report = opstage.check_step(made.loss, made.init, *made.batch, optimizer=optim.adamw(lr=1e-3))
    checked = report.at(**SIZES[name]).table.total.flops
    assert planned(name, "eager").flops == pytest.approx(checked, rel=0.02)


def test_one_layer_by_hand() -> None:
    """x (8, 32) · w (32, 16): forward, and backward for w alone; sums; and the update of 512 numbers."""
    made = plan_step(memory_of(one_layer(), "eager"), {"B": 8}, FLAT)
    products = [time for time in made.times if time.kernel.name == "matmul"]
    assert [time.kernel.flops for time in products] == [2 * 8 * 32 * 16] * 2
    forward, backward = products
    assert forward.memory == pytest.approx(4 * (8 * 32 + 32 * 16 + 8 * 16) / 1e8)
    assert backward.memory == pytest.approx(4 * (32 * 8 + 8 * 16 + 32 * 16) / 1e8)
    (update,) = [time for time in made.times if time.kernel.phase == "update"]
    assert update.kernel.nbytes == 4 * (7 * 512 + 3)  # parameter, gradient and two moments read, three written


def test_what_a_run_takes() -> None:
    memory = memory_of(model("mlp"), "eager")
    made = plan_step(memory, {"B": 8}, FLAT, batch="B", steps=1000)
    assert made.run is not None and made.run.seconds == pytest.approx(1000 * made.seconds)
    assert made.run.joules == pytest.approx(100 * made.run.seconds)
    assert made.largest is not None
    name, size = made.largest
    assert name == "B" and memory.at(B=size).needed <= 10**8 < memory.at(B=size + 1).needed
    assert plan_step(memory, {"B": 8}, replace(FLAT, watts=None), steps=10).run.joules is None  # type: ignore[union-attr]


def test_a_loop_of_unknown_length_is_said() -> None:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        def body(ops: Any, carry: Any) -> Any:
            return carry * params["w"]

        last = ops.while_loop(lambda ops, c: ops.less(ops.sum(c), 100.0), body, x, max_iterations=8)
        return ops.sum(last)

    init = {"w": opstage.Declaration((4,), opstage.init.ones)}
    looped = Model("looped", None, init, loss, None, (Spec("B 4"),))
    for backend in BACKENDS:
        made = plan_step(memory_of(looped, backend), {"B": 2}, FLAT)
        assert any("not counted: the iterations of a while_loop" in remark for remark in made.remarks), backend


def test_published_peaks_say_so() -> None:
    made = opstage.plan("mlp", at={"B": 8}, on="h100")
    assert made.rates.peak == 67e12 and made.rates.watts == 700
    assert any("published peaks" in remark and "was not measured" in remark for remark in made.remarks)
    assert all(device.source.startswith("https://") for device in PUBLISHED_DEVICES.values())


def test_a_model_without_named_sizes() -> None:
    fixed = one_layer()
    fixed = Model("fixed", None, fixed.init, fixed.loss, None, (Spec("8 32"),))
    made = opstage.plan(fixed, at={}, on=FLAT, optimizer=optim.sgd(lr=0.1))
    assert made.largest is None and made.seconds > 0


def test_a_model_without_a_recipe_needs_its_sizes() -> None:
    with pytest.raises(UsageError, match="depends on B: give a number"):
        opstage.plan(one_layer(), on=FLAT, optimizer=optim.sgd(lr=0.1))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"at": {"B": 8}, "on": "h10"}, "did you mean 'h100'"),
        ({"at": {"B": 8, "C": 1}, "on": "h100"}, "C"),
        ({"at": {"B": 8}, "steps": 0}, "at least 1"),
        ({"at": {"B": 8}, "steps": 1, "epochs": 1}, "one of them"),
        ({"at": {"B": 8}, "options": Options(dtype="exact")}, "calibration of dtype 'exact' is not supported"),
        ({"at": {"B": 8}, "options": Options(backend="shape_check")}, "backend 'shape_check' on cpu is not"),
        ({"at": {"B": 8}, "options": Options(mesh="data=2"), "on": "h100"}, "planned on the eager backend of the CPU"),
        ({"at": {"B": 8}, "options": Options(mesh="data=N"), "on": FLAT}, "depends on N"),
        ({"at": {"B": 9}, "options": Options(mesh="data=2"), "on": FLAT}, "does not hold"),
    ],
)
def test_what_there_is_no_prediction_for(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        opstage.plan("mlp", **arguments)


def test_a_rank_of_a_mesh_by_hand() -> None:
    """Four ranks share 16 rows: products of 4 rows each, and messages as the model of machines has them."""
    machines = "ranks_per_host=1,alpha=1e-3,beta=1e6,flops=1e9"
    options = Options(mesh="data=4")
    alone = opstage.plan("mlp", at={"B": 16}, on=FLAT)
    rank = opstage.plan("mlp", at={"B": 16}, on=FLAT, options=options, cluster=machines, steps=10)
    assert rank.wire is not None and rank.wire.seconds is not None
    assert sum(row.seconds for row in rank.groups) == pytest.approx(rank.seconds)
    products = [[t.kernel.flops for t in made.times if t.kernel.name == "matmul"] for made in (alone, rank)]
    assert [4 * flops for flops in products[1]] == products[0]
    parameters = 4 * 85_002
    # a ring of four sends 2 · 3/4 of each gradient, the scalars of loss and count beside
    assert rank.wire.sent == pytest.approx(parameters * 2 * 3 / 4, rel=1e-3)
    assert rank.wire.seconds > rank.wire.sent / 1e6
    assert rank.run is not None and rank.run.joules == pytest.approx(4 * 100 * 10 * rank.seconds)
    unknown = opstage.plan("mlp", at={"B": 16, "N": 4}, on=FLAT, options=Options(mesh="data=N"))
    assert unknown.seconds == pytest.approx(rank.seconds - rank.wire.seconds)
    assert any("not counted: the time of its messages" in remark for remark in unknown.remarks)
