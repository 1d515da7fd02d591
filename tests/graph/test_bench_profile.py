"""What a plan's loops are said to cost, against counts by hand; and that a profile speaks of every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.compiler.native import workers
from opstage.interpreters.graph.cpu.cost import Limits, Work, measure_limits, works
from opstage.interpreters.graph.cpu.plan import CpuPlan, HostStep, optimise
from opstage.interpreters.graph.executor import CpuExecutor
from opstage.interpreters.graph.profile import profile
from opstage.models import model
from opstage.ops.errors import UsageError
from opstage.ops.primitive import Cost
from opstage.optim import sgd
from opstage.training.program_check import record_model

F32 = 4


def planned(program: Callable[..., Any], *args: Any) -> CpuPlan:
    return CpuPlan(optimise(opstage.record(program, *args))[0].body)


def only(program: Callable[..., Any], *args: Any) -> Work:
    (work,) = works(planned(program, *args))
    return work


def floats(*shape: int) -> Any:
    return np.ones(shape, np.float32)


# Costs ---------------------------------------------------------------------------------------------------------------


def test_a_product() -> None:
    work = only(lambda ops, a, b: ops.matmul(a, b), floats(4, 8), floats(8, 16))
    assert work.cost == Cost(2 * 4 * 8 * 16, F32 * (4 * 8 + 8 * 16 + 4 * 16))
    assert work.detail == "4×8 · 8×16"


def test_what_passes_within_a_loop_moves_nothing() -> None:
    work = only(lambda ops, x, y: ops.add(ops.exp(ops.sin(x)), y), floats(50, 3), floats(50, 3))
    assert work.cost == Cost(3 * 150, F32 * 3 * 150)
    assert work.detail == ""


def test_what_is_broadcast_is_read_once() -> None:
    work = only(lambda ops, x, b: ops.mul(x, ops.broadcast_to(b, shape=(64, 32))), floats(64, 32), floats(32))
    assert work.cost == Cost(64 * 32, F32 * (2 * 64 * 32 + 32))


def test_an_operand_of_several_ops_is_read_once() -> None:
    work = only(lambda ops, x: ops.mul(ops.exp(x), ops.sin(x)), floats(100))
    assert work.cost == Cost(300, F32 * 200)


def test_a_slice_reads_what_it_shows() -> None:
    work = only(lambda ops, x: ops.exp(ops.slice(x, axis=0, start=2, length=5)), floats(100, 3))
    assert work.cost == Cost(15, F32 * 30)


def test_a_sum_over_rows() -> None:
    work = only(lambda ops, x: ops.reduce_sum(ops.exp(x), axis=1), floats(20, 30))
    assert work.cost == Cost(2 * 600, F32 * (600 + 20))


@pytest.mark.parametrize(("rows", "parts"), [(8, 1), (1024, 16)])
def test_a_sum_over_columns_and_the_sum_of_its_parts(rows: int, parts: int) -> None:
    main, total = works(planned(lambda ops, x: ops.reduce_sum(ops.exp(x), axis=0), floats(rows, 32)))
    assert main.cost == Cost(2 * rows * 32, F32 * (rows * 32 + parts * 32))
    assert total.cost == Cost((parts - 1) * 32, F32 * (parts + 1) * 32)
    assert total.name == f"total of {main.name}"


def test_rows_that_are_gathered_are_all_that_is_read_of_a_table() -> None:
    work = only(lambda ops, x, i: ops.gather_rows(x, i), floats(1000, 8), np.arange(5))
    assert work.cost == Cost(0, F32 * 2 * 5 * 8 + 8 * 5)
    assert work.detail == "1000×8 · 5 int64"


def test_the_loops_of_a_convolution_are_one_work() -> None:
    plan = planned(lambda ops, k, x: ops.conv(k, None, x, padding=1), floats(16, 3, 3, 3), floats(2, 3, 32, 32))
    (work,) = works(plan)
    assert work.steps == len(plan.steps)
    assert work.cost == Cost(2 * 2 * 16 * 32 * 32 * 27, F32 * (16 * 27 + 2 * 3 * 1024 + 2 * 16 * 1024))


def test_an_op_that_is_left_to_the_host() -> None:
    plan = planned(lambda ops, a, b: ops.matmul(a, b), floats(4, 8), floats(8, 16))
    (native,) = works(plan)
    plan.steps = [HostStep(plan.groups[0].equations[0], 0)]
    (host,) = works(plan)
    assert host == native._replace(name="matmul (eager_cpu)")


def test_a_loop_costs_its_turns() -> None:
    def program(ops: Any, c: Any, xs: Any) -> Any:
        return ops.scan(lambda o, c, x: (o.tanh(o.add(c, x)),) * 2, c, xs)[0]

    (*_, scan) = works(planned(program, floats(6), floats(7, 6)))
    assert scan.name == "scan, 7 iterations"
    assert scan.cost.flops == 7 * 2 * 6
    assert scan.cost.bytes >= 7 * F32 * 3 * 6


def test_every_step_of_a_plan_has_its_work() -> None:
    for name, sizes in (("mlp", {"B": 8}), ("cnn", {"B": 2}), ("lstm", {"B": 2})):
        graph = record_model(model(name), Options(), sgd(lr=0.1), sizes=sizes)
        plan = CpuPlan(optimise(graph)[0].body)
        at = 0
        for work in works(plan):
            assert work.first == at and work.steps > 0
            assert int(work.cost.flops) >= 0 and int(work.cost.bytes) > 0
            at += work.steps
        assert at == len(plan.steps)


def test_the_products_of_a_gradient_are_those_of_its_formula() -> None:
    batch, a, b, c = 16, 64, 24, 10

    def gradients(ops: Any, first: Any, second: Any, x: Any) -> Any:
        def loss(ops: Any, first: Any, second: Any) -> Any:
            return ops.sum(ops.linear(second, None, ops.tanh(ops.linear(first, None, x))))

        return opstage.transform.grad(ops, loss, first, second)

    plan = planned(gradients, floats(b, a), floats(c, b), floats(batch, a))
    products = sum(int(work.cost.flops) for work in works(plan) if work.name.startswith("product"))
    # first·x and its cotangent; of the second layer the cotangents alone, for its value is not asked for
    assert products == 2 * batch * (2 * a * b + 2 * b * c)


# Limits and profiles -------------------------------------------------------------------------------------------------


def test_the_limit_is_of_what_takes_longer() -> None:
    limits = Limits(flops=1e9, bytes=1e8, threads=2)
    assert limits.seconds(Cost(2e9, 1e6)) == 2  # type: ignore[arg-type]
    assert limits.seconds(Cost(1, 10**8)) == 1
    assert str(limits) == "1 GFLOP/s (a product of matrices), 0.1 GB/s (a copy), 2 threads"


def test_limits_are_measured() -> None:
    limits = measure_limits(np.float64, rows=8, elements=64)
    assert limits.flops > 0 and limits.bytes > 0 and limits.threads == workers()


def test_a_profile_has_a_row_for_all_kernels_of_one_kind() -> None:
    def program(ops: Any, a: Any, b: Any) -> Any:
        return ops.matmul(a, ops.matmul(a, ops.exp(b)))

    a, b = np.eye(6, dtype=np.float32), np.ones((6, 6), np.float32)
    executor = CpuExecutor(opstage.record(program, a, b), Options())
    ran: list[Any] = []
    made = profile(executor, lambda: ran.append(executor.run([a, b])), Limits(1e9, 1e9, 1), rounds=3)
    assert len(ran) == 4 and executor.seconds is None
    for (out,) in ran:
        np.testing.assert_allclose(out, np.exp(b), rtol=1e-6)
    by_name = {row.name: row for row in made.rows}
    assert set(by_name) == {"product_float32", "exp"}
    assert by_name["product_float32"].times == 2
    assert by_name["product_float32"].cost == Cost(2 * 2 * 6**3, 2 * F32 * 3 * 36)
    assert by_name["product_float32"].least_seconds == pytest.approx(2 * F32 * 3 * 36 / 1e9)
    assert made.seconds == pytest.approx(sum(row.seconds for row in made.rows))
    head, *lines, total = made.table().splitlines()
    assert len(lines) == 2 and head.endswith("kernel") and total.endswith("all kernels")
    assert made.table(1).splitlines()[2].endswith("1 more")
    data = made.as_data()
    assert {kernel["kernel"] for kernel in data["kernels"]} == set(by_name)
    assert sum(kernel["share"] for kernel in data["kernels"]) == pytest.approx(1)


def test_a_profile_that_is_broken_off_leaves_the_executor_as_it_was() -> None:
    executor = CpuExecutor(opstage.record(lambda ops, x: ops.exp(x), floats(3)), Options())

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(executor, interrupted, Limits(1e9, 1e9, 1))
    assert executor.seconds is None


def test_fractions_have_no_kernels() -> None:
    options = Options(dtype="exact")
    graph = opstage.record(lambda ops, x: ops.add(x, x), opstage.Spec("2"), options=options)
    with pytest.raises(UsageError, match="replayed op by op"):
        profile(CpuExecutor(graph, options), lambda: None, Limits(1e9, 1e9, 1))
