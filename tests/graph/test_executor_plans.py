"""Plans without their machine code: lowered forms, clusters, lives in memory and the text of kernels, against NumPy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opstage.compiler.codegen.clusters import FusionGroup, Level
from opstage.compiler.codegen.cpu.arguments import ErrorFlag, LoopSource, Scratch
from opstage.compiler.codegen.cpu.kernels import NativeStep
from opstage.compiler.codegen.formulas import ASSEMBLE, COLUMN_SUM, CONTIGUOUS, REDUCTIONS, ROW_MAX, ROW_SUM
from opstage.compiler.codegen.fusion import fuse
from opstage.compiler.codegen.lowering import Lowered
from opstage.interpreters.graph import Graph
from opstage.interpreters.graph.cpu.kernel_library import CPU
from opstage.interpreters.graph.cpu.plan import ControlStep, CpuPlan, HostStep, optimise
from opstage.ops.types import FLOAT32, INT64, TensorType
from tests.graph.executor_common import assert_agree, left_to_eager_cpu, planned, step_of
from tests.graph.lowered_meaning import Arena, Memory, run_groups
from tests.graph.passes_common import graph_of
from tests.graph.random_programs import random_graph
from tests.searches import share

SHIPPED = ("cnn", "gpt", "lstm", "mlp", "pinn", "resnet", "unet", "vae", "vit")


def lowered_of(graph: Graph) -> Lowered:
    return Lowered(optimise(graph, checked=True)[0].body, CPU)


def names(lowered: Lowered) -> list[str]:
    return [e.primitive.name for e in lowered.equations]


def values(graph: Graph, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    made = []
    for type_ in graph.input_types:
        shape: Any = type_.shape
        made.append(
            rng.standard_normal(shape).astype(type_.dtype) if type_.dtype.kind == "f" else rng.integers(0, 2, shape)
        )
    return made


def require_right(graph: Graph, inputs: list[Any]) -> None:
    """Lowered forms in order, groups in order, and both on the memory that a plan gives, compute what is meant."""
    lowered = lowered_of(graph)
    one_by_one = [FusionGroup(e, i) for i, e in enumerate(lowered.equations)]
    assert_agree(graph, inputs, run_groups(Memory(lowered, graph, inputs), one_by_one))
    groups = fuse(lowered)
    require_order(lowered, groups)
    assert_agree(graph, inputs, run_groups(Memory(lowered, graph, inputs), groups))
    plan = planned(graph)
    assert_agree(graph, inputs, run_groups(Arena(plan, graph, inputs), plan.groups))
    require_lives(plan)


def require_order(lowered: Lowered, groups: list[FusionGroup]) -> None:
    """Every equation stands in one group, which reads from itself and earlier ones alone: so there is no circle.

    A value that a later group makes again comes from an equation like one of the graph, under a name of its own; where
    all readers do so, nobody makes the first one.
    """
    every = [e for group in groups for e in group.equations]
    originals = {e.outputs: e for e in lowered.equations}
    forms = {(e.primitive, tuple(e.static.items())) for e in lowered.equations}
    for e in every:
        original = originals.get(e.outputs)
        assert (e.primitive, tuple(e.static.items())) in forms
        assert original is None or (original.primitive, original.static) == (e.primitive, e.static)
    outputs = {lowered.views[slot].root for slot in lowered.outputs if slot not in lowered.literals}
    assert outputs <= {*lowered.body.inputs, *lowered.constants, *[slot for e in every for slot in e.outputs]}
    made = {*lowered.body.inputs, *lowered.constants}
    for e in every:
        for slot in e.inputs:
            if slot not in lowered.literals:
                assert lowered.views[slot].root in made, f"{e.primitive} reads what comes later"
        assert made.isdisjoint(e.outputs)
        made.update(e.outputs)
    for group in groups:
        if group.cluster is None:
            assert len(group.equations) == 1
        else:
            assert list(group.cluster.levels) == [e.outputs[0] for e in group.equations]


def require_lives(plan: CpuPlan) -> None:
    """What any later group reads, and what is given out, has a place; and no two that live at one time the same."""
    lowered = plan.lowered
    made = {slot: i for i, group in enumerate(plan.groups) for e in group.equations for slot in e.outputs}
    lives: dict[int, list[int]] = {}

    def touch(slot: int, group: int) -> None:
        root = lowered.views[slot].root
        while root in lowered.parts:
            root = lowered.parts[root].whole
        if root in made:
            lives.setdefault(root, []).append(group)

    for i, group in enumerate(plan.groups):
        for e in group.equations:
            for slot in (*e.inputs, *e.outputs):
                if slot not in lowered.literals:
                    touch(slot, i)
    for root, groups in lives.items():
        assert root in plan.offsets or root in plan.results or len(set(groups)) == 1, f"slot {root} is lost"
    spans: list[tuple[int, int, int, int]] = []
    for root, groups in lives.items():
        if root in plan.offsets and lowered.views[root].size:
            nbytes: Any = lowered.types[root].nbytes
            spans.append((plan.offsets[root], plan.offsets[root] + nbytes, min(groups), max(groups)))
    for step in plan.steps:
        if isinstance(step, NativeStep):
            for word in step.loop.words:
                if isinstance(word, Scratch):
                    start = plan.offsets[step.group, word.key]
                    spans.append((start, start + word.room, step.group, step.group))
    for i, (start, stop, first, last) in enumerate(spans):
        assert stop <= plan.arena_bytes
        for other_start, other_stop, other_first, other_last in spans[:i]:
            if start < other_stop and other_start < stop and first <= other_last and other_first <= last:
                handed_on = (start, stop) == (other_start, other_stop) and (last == other_first or other_last == first)
                assert handed_on, "two lives in one place"


# Random programs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, pytest.param(20, marks=pytest.mark.slow)])
def test_plans_of_random_programs_compute_what_is_meant(first: int) -> None:
    for seed in range(first, first + 20):
        print("seed", seed)
        require_right(*random_graph(seed, size=4 + seed % 20))


NOISE = {11_897}
"""A gradient that is 0 but for rounding, of which adam makes a step of full length: nothing to compare with."""


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("first", range(10_000, 10_000 + share(2000), 250))
def test_plans_of_many_more_random_programs(first: int) -> None:
    for seed in sorted(set(range(first, first + 250)) - NOISE):
        print("seed", seed)
        require_right(*random_graph(seed, size=3 + seed % 40))


@pytest.mark.parametrize("name", SHIPPED)
def test_plans_of_the_shipped_models_keep_order_and_lives(name: str) -> None:
    plan = planned(step_of(name))
    require_order(plan.lowered, plan.groups)
    require_lives(plan)


# Lowered forms --------------------------------------------------------------------------------------------------------


def forms(program: Callable[..., Any], *shapes: Any) -> list[str]:
    """The ops of a program in lowered form, having seen that they compute the same."""
    graph = graph_of(program, *shapes, dtype="float64")
    require_right(graph, values(graph))
    return names(lowered_of(graph))


def test_layout_moves_nothing() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        x = ops.permute(ops.reshape(x, shape=(2, 3, 4)), axes=(2, 0, 1))
        row = ops.gather_row(ops.slice(x, axis=0, start=1, length=2, step=1), index=1)
        return ops.add(ops.broadcast_to(ops.unsqueeze(y, axis=0), shape=(2, 3)), ops.detach(row))

    assert forms(program, (6, 4), (3,)) == ["add"]


def test_a_reshape_across_a_permutation_is_one_copy() -> None:
    def program(ops: Any, x: Any) -> Any:
        y = ops.permute(x, axes=(1, 0))
        return ops.sin(ops.reshape(y, shape=(6,))), ops.cos(ops.reshape(y, shape=(3, 2)))

    assert sorted(forms(program, (2, 3))) == ["contiguous", "cos", "sin"]


def test_sums_over_trailing_leading_and_middle_axes() -> None:
    def along(*axes: int) -> list[str]:
        return forms(lambda ops, x: ops.sin(ops.reduce_sum(x, axis=axes, keepdims=False)), (3, 4, 5))

    assert along(2) == along(1, 2) == along(0, 1, 2) == [ROW_SUM.name, "sin"]
    assert along(0) == along(0, 1) == [COLUMN_SUM.name, "sin"]
    assert along(0, 2) == [ROW_SUM.name, COLUMN_SUM.name, "sin"]
    assert along(1)[-2:] == [ROW_SUM.name, "sin"]
    assert forms(lambda ops, x: ops.reduce_max(x, axis=(0,), keepdims=True), (3, 4))[-1] == ROW_MAX.name


def test_a_long_sum_is_one_of_sums() -> None:
    assert forms(lambda ops, x: ops.reduce_sum(x, axis=(0,), keepdims=False), (1 << 15,)) == [ROW_SUM.name] * 2


def test_parts_of_a_concatenation_are_written_where_they_belong() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return ops.neg(ops.concat([ops.sin(x), ops.cos(y)], axis=1))

    assert forms(program, (3, 2), (3, 4)) == ["sin", "cos", ASSEMBLE.name, "neg"]
    repeated = forms(lambda ops, x: ops.concat([s := ops.sin(x), s, x], axis=0), (3, 2))
    assert Counter(repeated) == {
        "sin": 1,
        CONTIGUOUS.name: 3 - 1 + repeated.count(CONTIGUOUS.name) - 2,
        ASSEMBLE.name: 1,
    }
    assert repeated.count(CONTIGUOUS.name) in (2, 3)


def test_padding_is_a_concatenation() -> None:
    program = forms(lambda ops, x: ops.pad(ops.exp(x), padding=((1, 0), (0, 2)), value=0.5), (3, 2))
    assert ASSEMBLE.name in program and "pad" not in program


def test_products_read_transposes_slices_and_batches_as_they_stand() -> None:
    def program(ops: Any, x: Any, y: Any, z: Any) -> Any:
        heads = ops.permute(ops.reshape(z, shape=(2, 5, 3, 4)), axes=(0, 2, 1, 3))  # (2, 3, 5, 4)
        scores = ops.bmm(ops.reshape(heads, shape=(2, 3, 5, 4)), ops.permute(heads, axes=(0, 1, 3, 2)))
        cut = ops.slice(y, axis=1, start=2, length=3, step=1)
        return ops.matmul(ops.transpose2d(x), cut), scores

    assert sorted(forms(program, (4, 6), (4, 7), (10, 12))) == ["bmm", "matmul"]


def test_a_row_that_is_no_row_of_one_stride_is_copied() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.reduce_sum(ops.permute(x, axes=(1, 2, 0)), axis=(1, 2), keepdims=False)

    assert forms(program, (3, 4, 5)) == [CONTIGUOUS.name, ROW_SUM.name]


# Clusters -------------------------------------------------------------------------------------------------------------


def units_of(program: Callable[..., Any], *shapes: Any) -> list[list[str]]:
    graph = graph_of(program, *shapes)
    require_right(graph, values(graph))
    return [[e.primitive.name for e in group.equations] for group in fuse(lowered_of(graph))]


def test_a_chain_is_one_loop() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return ops.tanh(ops.add(ops.mul(x, y), ops.exp(x)))

    assert len(units_of(program, (5, 7), (5, 7))) == 1


def test_softmax_is_one_loop_and_a_layer_norm_too() -> None:
    assert len(units_of(lambda ops, x: ops.softmax(x, axis=-1), (6, 9))) == 1
    assert len(units_of(lambda ops, x, g, b: ops.layer_norm(x, g, b), (6, 9), (9,), (9,))) == 1


def test_a_sum_over_rows_is_taken_on_the_way() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        g = ops.mul(ops.tanh(x), y)
        return ops.neg(g), ops.reduce_sum(g, axis=(0,), keepdims=False)

    (group,) = units_of(program, (6, 9), (6, 9))
    assert sorted(group) == sorted(["tanh", "mul", "neg", COLUMN_SUM.name])


def test_what_needs_a_sum_over_rows_waits_for_another_loop() -> None:
    def program(ops: Any, x: Any) -> Any:
        total = ops.reduce_sum(x, axis=(0,), keepdims=False)
        return ops.add(x, ops.broadcast_to(total, shape=x.shape))

    first, second = units_of(program, (6, 9))
    assert COLUMN_SUM.name in first and "add" in second


def test_a_product_parts_loops_and_no_circle_comes_of_it() -> None:
    """a = sin(x) is read by the product and by the last sum, which reads the product: two loops, never one."""

    def program(ops: Any, x: Any) -> Any:
        a = ops.sin(x)
        return ops.add(ops.matmul(a, a), ops.cos(a))

    groups = units_of(program, (6, 6))
    assert [len(group) for group in groups if "matmul" in group] == [1]
    assert [name for group in groups for name in group].index("matmul") < [n for u in groups for n in u].index("add")
    assert len(groups) == 3


def test_no_loop_takes_more_than_it_can_hold() -> None:
    def program(ops: Any, x: Any) -> Any:
        for _ in range(150):
            x = ops.sin(x)
        return x

    assert [len(group) for group in units_of(program, (5,))] == [48, 48, 48, 6]


def test_levels_are_elements_rows_and_columns() -> None:
    graph = graph_of(
        lambda ops, x: (ops.softmax(x, axis=-1), ops.reduce_sum(ops.softmax(x, axis=-1), axis=(0,))), (6, 9)
    )
    plan = planned(graph)
    levels = Counter(level for group in plan.groups if group.cluster for level in group.cluster.levels.values())
    assert set(levels) == set(Level)
    assert [group.cluster.extent for group in plan.groups if group.cluster] == [9]
    reductions = [e for group in plan.groups for e in group.equations if e.primitive in REDUCTIONS]
    assert len(reductions) == 3


# In place -------------------------------------------------------------------------------------------------------------


def in_place(program: Callable[..., Any], *shapes: Any) -> int:
    """How many results of loops stand where an operand stood."""
    graph = graph_of(program, *shapes, dtype="float64")
    require_right(graph, values(graph))
    plan = planned(graph)
    count = 0
    for group in plan.groups:
        if group.cluster is not None:
            read = {
                plan.lowered.views[s].root for e in group.equations for s in e.inputs if s not in plan.lowered.literals
            }
            places = [plan.offsets[root] for root in read - set(group.cluster.levels) if root in plan.offsets]
            count += sum(plan.offsets.get(slot) in places for slot in group.cluster.levels)
    return count


def test_a_result_takes_the_place_of_what_is_read_for_the_last_time() -> None:
    def program(ops: Any, x: Any) -> Any:
        for _ in range(3):
            x = ops.tanh(ops.matmul(x, x))
        return ops.matmul(x, x)

    assert in_place(program, (6, 6)) == 3


def test_what_a_later_line_of_the_loop_reads_is_not_written_over() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        product = ops.matmul(x, x)
        a = ops.exp(y)
        b = ops.add(a, product)  # may stand where the product stood, and a may not
        return ops.matmul(a, x), ops.matmul(b, x)

    assert in_place(program, (6, 6), (6, 6)) == 1


def test_what_a_later_pass_of_the_loop_reads_is_not_written_over() -> None:
    def program(ops: Any, x: Any) -> Any:
        product = ops.matmul(x, x)
        a = ops.exp(product)
        b = ops.mul(product, ops.softmax(a, axis=-1))
        return ops.matmul(a, x), ops.matmul(b, x)

    assert in_place(program, (6, 6)) == 1


# Text -----------------------------------------------------------------------------------------------------------------


def kernels(plan: CpuPlan) -> list[Any]:
    found: list[Any] = []
    for step in plan.steps:
        if isinstance(step, ControlStep):
            found += kernels(step.plans[0])
        elif isinstance(step, NativeStep):
            found.append(step.loop.kernel)
    return found


@pytest.mark.parametrize("name", ["gpt", "lstm", "mlp", "resnet", "vit"])
def test_texts_do_not_depend_on_the_size_of_the_batch(name: str) -> None:
    """But for numbers of the program that do, as the 1/n of resnet's batch norm."""
    small, large = ({k for k in kernels(planned(step_of(name, rows))) if isinstance(k, LoopSource)} for rows in (6, 10))
    assert {(k.body, k.accesses) for k in small} == {(k.body, k.accesses) for k in large}
    assert small == large or name == "resnet"


def test_layers_that_are_alike_share_their_texts() -> None:
    def deep(layers: int) -> set[Any]:
        def program(ops: Any, x: Any, *weights: Any) -> Any:
            for w in weights:
                x = ops.gelu(ops.layer_norm(ops.matmul(x, w), None, None))
            return x

        return set(kernels(planned(graph_of(program, (6, 8), *[(8, 8)] * layers))))

    assert deep(2) == deep(7)


def test_a_text_says_all_and_nothing_of_sizes() -> None:
    def texts(rows: int, columns: int) -> list[LoopSource]:
        graph = graph_of(lambda ops, x: ops.softmax(ops.scale(x, c=0.3), axis=-1), (rows, columns))
        return [k for k in kernels(planned(graph)) if isinstance(k, LoopSource)]

    (text,) = texts(31, 57)
    assert texts(8, 123) == [text]
    assert "31" not in text.body and "57" not in text.body
    assert float.fromhex(text.preamble.split("fromhex('")[1].split("'")[0]) == np.float32(0.3)
    compile(text.body, "kernel", "exec")
    assert all(f"{name}(" in text.body for name, *_ in text.accesses)
    (other,) = [
        k
        for k in kernels(planned(graph_of(lambda ops, x: ops.softmax(ops.scale(x, c=0.4), axis=-1), (31, 57))))
        if isinstance(k, LoopSource)
    ]
    assert other.content != text.content


def test_what_is_left_to_eager_cpu_and_what_flags_an_index() -> None:
    def program(ops: Any, x: Any, index: Any) -> Any:
        return ops.gather_rows(x, index), left_to_eager_cpu(ops, x)

    plan = planned(graph_of(program, TensorType((4, 3), FLOAT32), TensorType((5,), INT64)))
    assert [step.equation.primitive.name for step in plan.steps if isinstance(step, HostStep)] == ["gather_rows"]
    flags = [w for s in plan.steps if isinstance(s, NativeStep) for w in s.loop.words if isinstance(w, ErrorFlag)]
    assert flags == [ErrorFlag()]
