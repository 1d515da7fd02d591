"""The memory of compiled programs: what a run takes, against what was planned, and what programs keep."""

from __future__ import annotations

import gc
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.interpreters.graph.compiled import CompiledOps
from opstage.interpreters.graph.executor import CpuExecutor
from opstage.interpreters.graph.profile import explain
from opstage.interpreters.graph.program_cache import ProgramCache
from opstage.interpreters.registry import shared_interpreter
from opstage.ops.errors import ProgramWarning
from tests.graph.counting_allocator import Counted, counts_what_numpy_takes
from tests.graph.executor_common import executor_of, options_of, step_of, values_for

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


# Kept programs --------------------------------------------------------------------------------------------------------


def program(ops: Any, x: Any) -> Any:
    return ops.sum(ops.exp(x) * 0.5)


def trainer(limit: str) -> opstage.ScalarTrainer:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(ops.tanh(ops.matmul(x, params)))

    options = Options(backend="compiled", validate=False, program_memory=limit)
    return opstage.scalar_trainer(loss, np.full((4, 4), 0.1), options=options)


def programs_of(trainer: opstage.ScalarTrainer) -> list[CpuExecutor]:
    interpreter: Any = trainer._interpreter
    executors: list[CpuExecutor] = interpreter.programs.executors
    return executors


def rows(n: int) -> Any:
    return np.full((n, 4), 0.1, np.float32)


def test_programs_are_kept_within_the_limit_those_that_ran_last() -> None:
    made = trainer("100KiB")
    for n in range(1, 30):
        made.forward(rows(n))
        made.forward(rows(1))
    kept = programs_of(made)
    shapes = [executor.graph.input_types[-1].shape[0] for executor in kept]
    assert sum(executor.nbytes for executor in kept) <= 100 * 1024
    assert len(kept) > 1
    assert shapes[-1] == 1 and shapes[:-1] == sorted(shapes[:-1]) and shapes[-2] == 29


def test_the_program_in_use_is_kept_whatever_it_takes() -> None:
    made = trainer("1B")
    first = made.forward(rows(3))
    (kept,) = programs_of(made)
    assert made.forward(rows(3)) == first
    assert programs_of(made) == [kept]


def test_a_dropped_program_that_comes_back_gives_what_it_gave_and_says_what_to_do() -> None:
    made = trainer("1B")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = [made.forward(rows(n)) for n in (3, 4, 5)]
    with pytest.warns(ProgramWarning, match=r"option program_memory, 1B; raise it, Options\(program_memory="):
        assert made.forward(rows(3)) == first[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert [made.forward(rows(n)) for n in (4, 5, 3)] == [*first[1:], first[0]]


def test_what_the_warning_proposes_is_an_amount() -> None:
    bound: ProgramCache[Any] = ProgramCache("100MiB", lambda _: 0, lambda *_: [])
    bound._dropped.append(7)
    with pytest.warns(ProgramWarning) as said:
        bound.compiling(7)
    text = str(said[0].message)
    assert Options(program_memory=text.partition("program_memory='")[2].partition("'")[0]).program_memory == "400.0MiB"


def test_a_session_keeps_what_it_compiled_within_the_limit() -> None:
    session = opstage.Session(Options(backend="compiled", program_memory="60KiB"))
    for n in range(1, 20):
        session.get_value(session.sum(session.exp(session.input(rows(n)))))
        session.reset_tape()
    executors: Any = session._base._executors.entries  # type: ignore[attr-defined]
    assert 1 < len(executors) < 19
    assert sum(kept.nbytes for kept in executors.values()) <= 60 * 1024


def test_constants_count() -> None:
    table = np.ones((1000, 100), np.float32)
    ops = CompiledOps(Options(backend="compiled"))
    with_table = ops.compile(opstage.record(lambda ops, x: ops.sum(x + ops.const(table)), table))
    without = ops.compile(opstage.record(lambda ops, x: ops.sum(x + 1.0), table))
    assert without.nbytes < 20_000 and table.nbytes <= with_table.nbytes < table.nbytes + 20_000


def test_what_a_program_reads_from_outside_counts() -> None:
    """Each lambda is another program; the array that it reads is compared in every call, and so is kept."""
    options = Options(backend="compiled", program_memory="1MiB", seed=4321)
    x = np.ones((100, 100), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(40):
            table = np.full((100, 100), i, np.float32)
            assert opstage.run(lambda ops, x: ops.sum(x * ops.const(table)), x, options=options) == i * 10_000
    programs: Any = shared_interpreter(options).programs  # type: ignore[attr-defined]
    assert 1 < len(programs.executors) <= (1 << 20) // (3 * table.nbytes)


@pytest.mark.parametrize(
    "name", ["mlp", *[pytest.param(name, marks=pytest.mark.slow) for name in ("cnn", "lstm", "gpt", "vae", "pinn")]]
)
def test_a_program_keeps_about_what_it_says(name: str) -> None:
    graph = step_of(name, 8)
    CpuExecutor(graph, options_of(graph))  # makes what is made once in a process
    step_of.cache_clear()
    del graph
    gc.collect()
    tracemalloc.start()
    try:
        graph = step_of(name, 9)
        step_of.cache_clear()
        executor = CpuExecutor(graph, options_of(graph), range(2))
        said = executor.nbytes
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
        del graph, executor
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()  # a table of the process, such as of known types, may have grown
    finally:
        tracemalloc.stop()
    assert 0.85 * (taken - left) <= said <= 1.8 * taken
