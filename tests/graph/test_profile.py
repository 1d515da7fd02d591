"""What a compiled program is said to cost and to take, against counts by hand; no fusion is lost unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.compiler.native import workers
from opstage.interpreters.graph import Graph, record
from opstage.interpreters.graph.cpu.cost import Limits, Work, measure_limits, works
from opstage.interpreters.graph.cpu.plan import CpuPlan, HostStep, optimise
from opstage.interpreters.graph.executor import CpuExecutor
from opstage.interpreters.graph.profile import Explanation, profile
from opstage.models import MODELS, model
from opstage.ops.dims import DimScope
from opstage.ops.errors import UsageError
from opstage.ops.primitive import Cost
from opstage.ops.types import EXACT, FLOAT32, TensorType
from opstage.optim import sgd
from opstage.training.program_check import record_model
from tests.graph.executor_common import left_to_eager_cpu, step_of
from tests.graph.kernel_counts import COUNTS, counts_of, explained
from tests.graph.passes_common import graph_of


@pytest.mark.parametrize("name", sorted(MODELS))
def test_kernels_per_step_are_what_they_were(name: str) -> None:
    """If this fails and is meant to: python -m tests.graph.kernel_counts."""
    assert counts_of(explained(name)) == COUNTS[name]


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet", "vit", "gpt", "unet"])
def test_no_op_is_left_to_eager_cpu(name: str) -> None:
    assert explained(name).host == {}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_step_takes_about_as_much_memory_as_unfused_or_less(name: str) -> None:
    """What the backward pass reads decides, and is kept either way; sums over workers need some room."""
    found = explained(name)
    assert found.memory.results == found.unfused.results
    assert found.memory.peak <= 1.02 * found.unfused.peak + workers() * (16 << 10)


def small() -> Graph:
    def program(ops: Any, x: Any, w: Any) -> Any:
        h = ops.softmax(ops.matmul(x, w), axis=-1)
        return ops.reduce_sum(ops.mul(h, h), axis=(0,)), ops.argmax(h, axis=1)

    return graph_of(program, (16, 16), (16, 16))


def test_the_numbers_of_a_small_program() -> None:
    found = small().explain()
    assert isinstance(found, Explanation)
    assert (found.fused, found.sums, found.products, found.by_hand) == (1, 1, 1, {"argmax": 1})
    assert found.host == {}
    assert (found.kernels, found.distinct, found.groups) == (4, 2, 3)
    assert found.memory.results == 16 * 4 + 16 * 8
    tensor, rows = 16 * 16 * 4, workers() * 64
    assert tensor <= found.memory.arena <= 2 * tensor + 2 * rows
    assert found.unfused.arena >= 2 * tensor
    assert found.passes.after < found.passes.before + 20


def test_a_chain_needs_no_memory_but_its_result() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.exp(ops.sin(ops.cos(x)))

    found = graph_of(program, (100,)).explain()
    assert (found.fused, found.groups, found.memory.arena, found.memory.results) == (1, 1, 0, 400)
    assert found.unfused.arena == 2 * 448  # of two neighbours at a time, in whole cache lines
    assert found.unfused.peak == 896 + 400


def test_a_loop_counts_every_turn() -> None:
    def program(ops: Any, x: Any, w: Any) -> Any:
        last, _ = ops.scan(lambda ops, h, row: (ops.tanh(ops.matmul(h, w) + row), None), x, ops.stack([x] * 7, axis=0))
        return last

    found = graph_of(program, (2, 3), (3, 3)).explain()
    assert found.products == 7 and found.host == {}
    assert found.distinct < found.kernels


def test_it_can_be_read() -> None:
    text = str(step_of("cnn").explain())
    for part in (
        "expansion",
        "ops became",
        "kernels per step",
        "fused loops",
        "conv_kernel_grad",
        "peak memory",
        "arena",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 100
    assert "gather_rows (left to eager_cpu)" in str(graph_of(left_to_eager_cpu, (16, 16)).explain())


def test_what_was_recorded_can_be_explained() -> None:
    graph = opstage.record(lambda ops, x: ops.exp(ops.neg(x)), np.ones((3, 4), np.float32))
    assert graph.explain().kernels == 1
    assert graph.explain(Options(backend="compiled")).kernels == 1


def test_what_has_no_plan_says_why() -> None:
    rows = DimScope().dim("B")
    symbolic = record(lambda ops, x: (ops.neg(x),), [TensorType((rows, 3), FLOAT32)], FLOAT32, 0, ["x"])
    with pytest.raises(
        UsageError, match=r"input x: expected a number for every size, got .*B.*Record the graph with numbers"
    ):
        symbolic.explain()
    exact = record(lambda ops, x: (ops.neg(x),), [TensorType((2,), EXACT)], EXACT, 0)
    with pytest.raises(UsageError, match="fractions"):
        exact.explain()
    with pytest.raises(UsageError, match="cpu"):
        small().explain(Options(device="cuda"))


# Costs and profiles ---------------------------------------------------------------------------------------------------


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
