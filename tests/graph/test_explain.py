"""graph.explain(): what it says is so, and no fusion of a shipped model is lost unseen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.compiler.native import workers
from opstage.interpreters.graph import Graph, record
from opstage.interpreters.graph.profile import Explanation
from opstage.models import MODELS
from opstage.ops.dims import DimScope
from opstage.ops.errors import UsageError
from opstage.ops.types import EXACT, FLOAT32, TensorType
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
    with pytest.raises(UsageError, match=r"input x is .*B.*record the graph with a number"):
        symbolic.explain()
    exact = record(lambda ops, x: (ops.neg(x),), [TensorType((2,), EXACT)], EXACT, 0)
    with pytest.raises(UsageError, match="fractions"):
        exact.explain()
    with pytest.raises(UsageError, match="cpu"):
        small().explain(Options(device="cuda"))
