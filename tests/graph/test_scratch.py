"""Memory that the programs of an interpreter share: nothing of one run is seen by another, and all of it comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, optim
from opstage.init import build
from opstage.interpreters.eager_cpu.interpreter import NumpyOps
from opstage.interpreters.graph.compiled import CompiledOps
from opstage.interpreters.graph.executor import CpuExecutor, CpuScratch, ScratchBlock
from opstage.models import model
from opstage.ops.errors import OutOfMemoryError
from tests.graph.counting_allocator import Counted
from tests.graph.executor_common import (
    close_arrays,
    executor_of,
    in_threads,
    left_to_eager_cpu,
    meant,
    same_arrays,
    step_of,
    values_for,
)
from tests.memory.measured import batch_of, forget_workspace

Array = np.ndarray[Any, Any]
COMPILED = Options(backend="compiled", validate=False)


def program(ops: Any, x: Any, w: Any) -> Any:
    """What loops leave behind in the arena, an op that Python computes, and a sum of both."""
    hidden = ops.tanh(ops.matmul(x, w))
    return ops.add(ops.reduce_sum(ops.matmul(hidden, w), axis=(1,)), left_to_eager_cpu(ops, hidden))


def arrays(rows: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 16)).astype(np.float32), rng.normal(0, 0.1, size=(16, 16)).astype(np.float32)


def interpreter() -> CompiledOps:
    return CompiledOps(Options(backend="compiled"))


def compiled(ops: CompiledOps, rows: int) -> CpuExecutor:
    return ops.compile(opstage.record(program, *arrays(rows)))


def expected(rows: int, seed: int = 0) -> Array:
    return np.asarray(opstage.run(program, *arrays(rows, seed), options=Options(fast_kernels=False)))


@contextmanager
def during_a_host_op(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> Iterator[None]:
    """Let `act` happen while a program runs, in an op that Python computes."""
    with monkeypatch.context() as patch:
        execute_each = NumpyOps.execute_each

        def acting(self: NumpyOps, run: Any, refs: Any, step: int = 0) -> Any:
            patch.setattr(NumpyOps, "execute_each", execute_each)
            act()
            return execute_each(self, run, refs, step)

        patch.setattr(NumpyOps, "execute_each", acting)
        yield


# One room ------------------------------------------------------------------------------------------------------------


def test_programs_of_an_interpreter_work_in_one_room_as_large_as_the_largest_needs() -> None:
    ops = interpreter()
    executors = [compiled(ops, rows) for rows in (64, 4096, 7, 1000)]
    plans = [executor.plan for executor in executors]
    largest = max(plan.arena_bytes for plan in plans if plan is not None)
    assert largest >= 4096 * 16 * 4
    for executor, rows in zip(executors, (64, 4096, 7, 1000)):
        executor.run(arrays(rows))  # makes what is made once in a process
    ops.empty_cache()
    with Counted() as count:
        for _ in range(3):
            for executor, rows in zip(executors, (64, 4096, 7, 1000)):
                executor.run(arrays(rows))
        assert largest <= count.live <= largest + 4 * 3 * 4096 + 20_000  # with results: rows of one number, three times
        ops.empty_cache()
        assert count.live <= 1000


@pytest.mark.parametrize("name", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_batches_of_many_sizes_take_no_more_than_the_largest_of_them(name: str) -> None:
    made, optimizer = model(name), optim.adamw(lr=1e-3)
    params = build(made.init, dtype="float32", seed=0)
    sizes = [5, 80, 33]

    def peak(sizes: Sequence[int]) -> int:
        forget_workspace()
        with Counted() as count:
            trainer = opstage.scalar_trainer(made.loss, params, *made.batch, options=COMPILED)
            state = trainer.init_optim(optimizer)
            for _ in range(2):
                for size in sizes:
                    trainer.advance(optimizer, state, *batch_of(made, {"B": size}))
            return count.peak

    peak(sizes)  # makes what is made once in a process
    one = peak([80])
    # Each shape has tables of its own, and inputs: what is given is made while that of the time before is still there.
    assert peak(sizes) <= 1.02 * one + len(sizes) * 20_000


def test_what_trim_gives_back_is_taken_anew() -> None:
    ops = interpreter()
    executor = compiled(ops, 500)
    first = executor.run(arrays(500))[0].copy()
    with Counted() as count:
        ops.empty_cache()
        (again,) = executor.run(arrays(500))
        assert count.live >= again.nbytes
        np.testing.assert_array_equal(again, first)
        ops.empty_cache()
        np.testing.assert_array_equal(again, first)  # who holds a result keeps it
        del again
        assert count.live <= 1000


def test_a_trainer_gives_its_memory_back() -> None:
    trainer, made = trained("mlp")
    batch = batch_of(made, {"B": 200})
    with Counted() as count:
        trainer.step(0.1, *batch)
        held = count.live
        trainer.empty_cache()
        assert held - count.live >= 200 * 256 * 4
        loss = trainer.forward(*batch)
    assert trainer.forward(*batch) == loss


def test_questions_about_programs_give_their_memory_back() -> None:
    options = Options(backend="compiled", seed=987)  # an interpreter that nobody has used yet
    with Counted() as count:
        first = opstage.run(program, *arrays(3000), options=options)
        assert count.live >= 3000 * 16 * 4
        opstage.empty_cache()
        assert count.live <= first.nbytes + 4000
        np.testing.assert_array_equal(opstage.run(program, *arrays(3000), options=options), first)
        kept = opstage.compile(program, *arrays(3000))
        opstage.empty_cache()
        kept.forward(*arrays(3000))
        assert count.live >= 3000 * 16 * 4
        kept.empty_cache()
        assert count.live <= first.nbytes + 4000


def trained(name: str) -> tuple[opstage.ScalarTrainer, Any]:
    made = model(name)
    params = build(made.init, dtype="float32", seed=0)
    return opstage.scalar_trainer(made.loss, params, *made.batch, options=COMPILED), made


# Nothing of another run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["mlp", *[pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "cnn", "gpt", "vae", "pinn")]]
)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0xFF])
def test_what_stands_in_a_room_has_no_influence(name: str, byte: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = step_of(name)
    inputs = values_for(graph)
    take = CpuScratch.take

    def soiled(self: CpuScratch, nbytes: int) -> ScratchBlock:
        room = take(self, nbytes)
        room.memory[:] = byte
        return room

    executor = executor_of(graph)
    clean = [np.array(out) for out in executor.run(inputs, 1)]
    monkeypatch.setattr(CpuScratch, "take", soiled)
    for _ in range(2):
        same_arrays(executor.run(inputs, 1), clean)


def test_results_that_are_held_stay_as_they_are() -> None:
    ops = interpreter()
    rows = (30, 900, 30, 31, 900, 5)
    executors = {n: compiled(ops, n) for n in set(rows)}
    held = [(n, seed, executors[n].run(arrays(n, seed))) for seed, n in enumerate(rows * 3)]
    for n, seed, (found,) in held:
        np.testing.assert_allclose(found, expected(n, seed), rtol=1e-4, atol=1e-4)
    addresses = {found.__array_interface__["data"][0] for _, _, (found,) in held}
    assert len(addresses) == len(held)


def test_two_results_of_one_run_and_of_one_kind_are_two_arrays() -> None:
    ops = interpreter()
    twice = ops.compile(opstage.record(lambda ops, x: (ops.exp(x), ops.neg(x), ops.sin(x)), arrays(20)[0]))
    x = arrays(20)[0]
    for seed in range(8):
        held = twice.run([x + np.float32(seed)])
        again = twice.run([x - np.float32(seed)])
        for found, f in zip((*held, *again), (np.exp, np.negative, np.sin) * 2):
            sign = 1 if any(found is out for out in held) else -1
            np.testing.assert_allclose(found, f(x + np.float32(sign * seed)), rtol=1e-4, atol=1e-6)
        del again


@pytest.mark.parametrize("view", [lambda a: a[3:], memoryview, lambda a: a.reshape(-1).view(np.int32)])
def test_a_view_of_a_result_holds_it(view: Callable[[Array], Any]) -> None:
    ops = interpreter()
    executor = compiled(ops, 40)
    seen = view(executor.run(arrays(40))[0])
    before = np.array(seen)
    for seed in range(1, 5):
        executor.run(arrays(40, seed))
    np.testing.assert_array_equal(np.array(seen), before)


def test_a_result_that_nobody_holds_is_written_over_by_the_next() -> None:
    ops = interpreter()
    executor = compiled(ops, 4000)
    found = {executor.run(arrays(4000))[0].__array_interface__["data"][0] for _ in range(6)}
    assert len(found) == 1


# One run within another ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [60, 4000], ids=["the same program", "a larger one"])
def test_a_run_within_a_run_has_a_room_of_its_own(inner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = interpreter()
    outer, other = compiled(ops, 60), compiled(ops, inner)
    if inner == 60:
        other = outer
    outer.run(arrays(60))
    found: list[Array] = []

    def run_another() -> None:
        found.append(other.run(arrays(inner, 1))[0])

    with during_a_host_op(monkeypatch, run_another):
        (result,) = outer.run(arrays(60))
    np.testing.assert_allclose(result, expected(60), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[0], expected(inner, 1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outer.run(arrays(60, 2))[0], expected(60, 2), rtol=1e-4, atol=1e-4)


def test_memory_trimmed_in_the_middle_of_a_run_is_kept_by_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = interpreter()
    executor = compiled(ops, 3000)
    executor.run(arrays(3000))

    def empty_cache() -> None:
        ops.empty_cache()
        np.full(1 << 20, np.nan)  # who took what was given back would be seen

    with during_a_host_op(monkeypatch, empty_cache):
        (result,) = executor.run(arrays(3000))
    np.testing.assert_allclose(result, expected(3000), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_a_run_that_is_broken_off_leaves_nothing_behind(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = interpreter()
    executor = compiled(ops, 3000)
    executor.run(arrays(3000))

    def fail() -> None:
        raise error

    with Counted() as count:
        for _ in range(5):
            with during_a_host_op(monkeypatch, fail), pytest.raises(error):
                executor.run(arrays(3000))
        np.testing.assert_allclose(executor.run(arrays(3000))[0], expected(3000), rtol=1e-4, atol=1e-4)
        ops.empty_cache()
        assert count.live <= 1000


def test_a_room_that_cannot_grow_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = interpreter()
    small, large = compiled(ops, 50), compiled(ops, 5000)
    small.run(arrays(50))
    empty = np.empty
    with monkeypatch.context() as patch:

        def refuse(shape: Any, *rest: Any, **more: Any) -> Any:
            if isinstance(shape, int) and shape > 100_000:
                raise MemoryError
            return empty(shape, *rest, **more)

        patch.setattr(np, "empty", refuse)
        for _ in range(2):
            with pytest.raises(OutOfMemoryError, match=r"needs \d+\.\d KiB for intermediate .* opstage check --memory"):
                large.run(arrays(5000))
            np.testing.assert_allclose(small.run(arrays(50))[0], expected(50), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(large.run(arrays(5000))[0], expected(5000), rtol=1e-4, atol=1e-4)


def test_threads_on_one_interpreter_do_not_see_each_other() -> None:
    """Of executors themselves, without the lock that the interpreter's `execute` takes."""
    ops = interpreter()
    rows = [20, 300, 45, 1200]
    executors = [compiled(ops, n) for n in rows]
    wrong: list[str] = []
    wanted = [[expected(n, seed) for seed in range(3)] for n in rows]

    def work(own: int) -> None:
        for turn in range(60):
            i, seed = (own + turn) % len(rows), turn % 3
            (found,) = executors[i].run(arrays(rows[i], seed))
            if not np.allclose(found, wanted[i][seed], rtol=1e-4, atol=1e-4):
                wrong.append(f"{rows[i]} rows in turn {turn} of thread {own}")

    in_threads(4, work)
    assert not wrong


def test_a_step_begun_on_one_shape_is_completed_after_a_run_on_another() -> None:
    """A trainer's step is begun, then completed; what comes between must not take its memory."""
    graph, between = step_of("mlp", 8), step_of("mlp", 24)
    ops = CompiledOps(Options(backend="compiled", fast_kernels=False))
    inputs = [np.array(x) for x in values_for(graph)]
    floats = [i for i, x in enumerate(inputs) if x.dtype.kind == "f"]
    wanted = meant(graph, inputs)
    executor, other = ops.compile(graph, floats), ops.compile(between)
    assert executor.plan is not None and executor.plan.aliased
    outputs, finish = executor.start(inputs, 0, floats)
    other.run(values_for(between, 1))
    finish(())
    close_arrays(outputs, wanted, rtol=1e-3, atol=1e-4)
