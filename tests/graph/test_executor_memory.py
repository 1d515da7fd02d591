"""The planned peak of memory against what an allocator counts that knows nothing of plans."""

from __future__ import annotations

import tracemalloc

import pytest

from opstage.interpreters.graph.profile import explain
from tests.graph.counting_allocator import Counted, counts_what_numpy_takes
from tests.graph.executor_common import executor_of, step_of, values_for

STEPS = [
    ("mlp", 64, {}),
    pytest.param("cnn", 32, {}, marks=pytest.mark.slow),
    pytest.param("gpt", 4, {"T": 64}, marks=pytest.mark.slow),
]


def test_the_allocator_counts() -> None:
    assert counts_what_numpy_takes()


@pytest.mark.parametrize(("name", "rows", "sizes"), STEPS)
def test_a_step_takes_what_was_planned(name: str, rows: int, sizes: dict[str, int]) -> None:
    """From nothing to the results of a first step: arena, workspaces, results, and all that Python adds."""
    graph = step_of(name, rows, **sizes)
    planned = explain(graph)
    inputs = values_for(graph)
    executor_of(graph).run(inputs)  # makes what is made once in a process
    with Counted() as count:
        executor = executor_of(graph)
        results = executor.run(inputs, 1)
        assert planned.memory.peak <= count.peak <= 1.01 * planned.memory.peak
        assert count.peak - count.live <= 0.01 * planned.memory.peak  # nothing was taken for a moment
        for step in range(2, 8):
            results = executor.run(inputs, step)
        assert count.peak <= 1.01 * (
            planned.memory.peak + planned.memory.results
        )  # the old are held while new are made
        del results, executor
        assert count.live == 0


@pytest.mark.parametrize(("name", "rows", "sizes"), STEPS)
def test_a_step_in_steady_state_takes_next_to_nothing(name: str, rows: int, sizes: dict[str, int]) -> None:
    graph = step_of(name, rows, **sizes)
    executor, inputs = executor_of(graph), values_for(graph)
    for _ in range(3):
        results = executor.run(inputs)
    with Counted() as count:
        for _ in range(3):
            results = executor.run(inputs)
        assert count.peak < 20_000 + 24 * len(graph.body.inputs)
    tracemalloc.start()
    try:
        for _ in range(3):
            results = executor.run(inputs)
        assert tracemalloc.get_traced_memory()[1] < 40_000 + 1000 * (len(inputs) + len(results))
    finally:
        tracemalloc.stop()
