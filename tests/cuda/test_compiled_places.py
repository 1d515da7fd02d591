"""Where compiled programs on a simulated device read and write: parts of memory, and memory that others hold too."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import optim
from opstage.compiler.gpu.simulator import Simulator
from opstage.interpreters.eager_cuda import CudaOps
from opstage.interpreters.graph.cuda.executor import CompiledCudaOps
from opstage.ops.errors import OutOfMemoryError
from opstage.options import Options
from opstage.training.trainer import scalar_trainer
from tests.cuda.traffic import stand_in, watch
from tests.optim.updates import sgd_update
from tests.searches import MARKS, share

COMPILED = Options(device="cuda", seed=1, backend="compiled")
ADAMW = optim.adamw(lr=0.05)
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def close(left: Any, right: Any) -> None:
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_part_of_a_concatenation_is_read_where_it_stands() -> None:
    """By loops over elements, rows and columns, by a product, and by whoever gets a copy of it."""

    def program(ops: Any, x: Any) -> Any:
        y = ops.tanh(x)
        joined = ops.concat([x, y], axis=0)
        turned = ops.permute(y, axes=(1, 0))
        sums = ops.reduce_sum(y, axis=0), ops.reduce_sum(y, axis=1)
        return joined, ops.exp(turned), *sums, ops.matmul(y, turned), turned

    close(opstage.run(program, X, options=COMPILED), opstage.run(program, X))


# Memory that others hold too -----------------------------------------------------------------------------------------

N = 6
RATE = np.float32(0.5)


def step_graph(updates: int = 1) -> Any:
    """(x, p, …, lr): each p moved by the gradient x, and 2·p of the first."""

    def program(ops: Any, x: Any, *rest: Any) -> Any:
        *ps, lr = rest
        return [sgd_update(ops, p, x, lr, weight_decay=0.0) for p in ps] + [ops.scale(ps[0], c=2.0)]

    return opstage.record(program, numbers(0), *[numbers(0) for _ in range(updates)], RATE)


def numbers(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(N).astype(np.float32)


def test_an_input_that_is_read_follows_memory_that_moves() -> None:
    """It comes first, and is what the run before has written over another one."""
    ops = CompiledCudaOps(COMPILED, Simulator())
    executor = ops.compile(step_graph(), {1})
    lr = ops.put(RATE)

    def step(x: Any, p: Any) -> Any:
        outputs, finish = executor.start((x, p, lr), free={1})
        finish(())
        return outputs

    x, p = numbers(1), numbers(2)
    for _ in range(4):
        moved, _ = step(ops.put(x), ops.put(p))
        again, _ = step(moved, ops.put(p))
        once = p - RATE * x
        close([ops.get(moved), ops.get(again)], [once, p - RATE * once])
        del moved, again


def test_an_update_that_waits_reads_what_was_there_before_it_is_written_over() -> None:
    ops = CompiledCudaOps(COMPILED, Simulator())
    eager = CudaOps(COMPILED.replace(backend="eager"), ops.device)
    executor = ops.compile(step_graph(), {1})
    x, p, lr = ops.put(numbers(1)), ops.put(numbers(2)), ops.put(RATE)
    waiting = sgd_update(eager, p, x, lr, weight_decay=0.0)
    _, finish = executor.start((x, p, lr), free={1})
    finish(())
    close([ops.get(waiting), ops.get(p)], [numbers(2) - RATE * numbers(1)] * 2)


def test_what_a_started_run_needs_outlives_a_trim() -> None:
    ops = CompiledCudaOps(COMPILED, Simulator())

    def program(ops: Any, x: Any, p: Any, lr: Any) -> Any:
        return (sgd_update(ops, p, ops.exp(x), lr, weight_decay=0.0),)

    executor = ops.compile(opstage.record(program, numbers(0), numbers(0), RATE), {1})
    for _ in range(3):
        x, p, lr = ops.put(numbers(1)), ops.put(numbers(2)), ops.put(RATE)
        (moved,), finish = executor.start((x, p, lr), free={1})
        executor.empty_cache()
        ops.empty_cache()
        finish(())
        close([ops.get(moved)], [numbers(2) - RATE * np.exp(numbers(1))])


def test_steps_on_batches_of_two_shapes_share_one_place_for_each_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the parameters were set: nothing is copied to and fro."""
    stand_in(monkeypatch, Simulator())
    traffic = watch(monkeypatch)
    rng = np.random.default_rng(3)
    first = {"w": rng.standard_normal((4, 2))}

    def loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(ops.tanh(ops.matmul(x, params["w"])))

    trainers = [scalar_trainer(loss, first, options=o) for o in (COMPILED, COMPILED.replace(backend="eager"))]
    states = [t.init_optim(ADAMW) for t in trainers]
    launches = []
    for step in range(16):
        if step == 8:
            for t in trainers:
                t.set_params({"w": np.ones((4, 2))})
        for t, s in zip(trainers, states):
            traffic.clear()
            t.advance(ADAMW, s, X if step % 2 else X[:2])
            if t is trainers[0]:
                launches.append(len(traffic.launches))
    close(*[[t.get_params()["w"]] for t in trainers])
    assert launches[6:8] == launches[14:], launches


def moved(p: Any, g: Any) -> Any:
    return p - RATE * g


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[int, ...]]] = {
    "one update": (
        lambda ops, lr, x, p, q: [sgd_update(ops, p, ops.mul(x, q), lr, weight_decay=0.0), ops.add(x, p)],
        lambda x, p, q: [moved(p, x * q), x + p],
        (2,),
    ),
    "two updates": (
        lambda ops, lr, x, p, q: [
            sgd_update(ops, p, x, lr, weight_decay=0.0),
            sgd_update(ops, q, ops.add(p, q), lr, weight_decay=0.0),
        ],
        lambda x, p, q: [moved(p, x), moved(q, p + q)],
        (2, 3),
    ),
    "an update given twice, and inputs": (
        lambda ops, lr, x, p, q: [(u := sgd_update(ops, q, p, lr, weight_decay=0.0)), u, x, q, ops.neg(u)],
        lambda x, p, q: [moved(q, p), moved(q, p), x, q, -moved(q, p)],
        (3,),
    ),
    "no update": (lambda ops, lr, x, p, q: [ops.mul(x, p), ops.sub(q, x), q], lambda x, p, q: [x * p, q - x, q], ()),
}


@pytest.mark.parametrize("seed", [*range(8), *[pytest.param(n, marks=MARKS) for n in range(8, 8 + share(92))]])
def test_whatever_is_held_given_again_or_freed_every_buffer_keeps_its_elements(seed: int) -> None:
    """Runs of several programs on buffers of one pool: results of others, the same one twice, some written over."""
    choose, device = random.Random(seed), Simulator()
    ops = CompiledCudaOps(COMPILED, device)
    lr = ops.put(RATE)
    makers = [(k, opstage.record(f, RATE, *[numbers(0)] * 3), donated) for k, (f, _, donated) in PROGRAMS.items()]
    executors = [(k, ops.compile(graph, donated), donated) for k, graph, donated in makers for _ in range(2)]
    pool: list[tuple[Any, Any]] = []  # buffers, and what is in them
    for step in range(25):
        while len(pool) < 4 or choose.random() < 0.3:
            array = numbers(choose.randrange(1000))
            pool.append((ops.put(array), array))
        name, executor, donated = choose.choice(executors)
        at = [choose.randrange(len(pool)) for _ in range(3)]
        given = [pool[i] for i in at]
        alone = {
            n + 1: sum(b.memory is given[n][0].memory for b, _ in pool) == 1 and at.count(at[n]) == 1 for n in range(3)
        }
        free = {n for n in donated if alone[n] and choose.random() < 0.7}
        before = choose.random() < 0.2
        outputs, finish = executor.start((lr, *[b for b, _ in given]), step, free)
        if choose.random() < 0.1:
            executor.empty_cache()
        if before:  # cut short: nothing was written over
            del outputs, finish
        else:
            finish(())
            over = {executor.plan.aliased[o] for o in executor.plan.aliased}
            gone = {at[n - 1] for n in free if n in over}
            results = PROGRAMS[name][1](*[array for _, array in given])
            made = list(zip(outputs, results))
            pool = [pair for i, pair in enumerate(pool) if i not in gone] + made
            del outputs, finish, made
        del given
        choose.shuffle(pool)
        if choose.random() < 0.3:
            pool = pool[: choose.randrange(len(pool) + 1)]
        if pool and choose.random() < 0.2:
            pool.pop()[0].free()
            pool = [pair for pair in pool if pair[0].memory.handle is not None]
        if choose.random() < 0.1:
            choose.choice(executors)[1].empty_cache()
        close([ops.get(pair[0]) for pair in pool], [pair[1] for pair in pool])
    pool.clear()
    for _, executor, _ in executors:
        executor.empty_cache()
    ops.empty_cache()
    del executors, executor
    gc.collect()
    assert device.used <= 64, "all was given back but for the rate and the like"


def test_no_other_thread_moves_a_result_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = CompiledCudaOps(COMPILED, Simulator())
    (result,) = ops.compile(opstage.record(lambda ops, x: ops.neg(x), numbers(0))).run([ops.put(numbers(1))])
    found, download = [], Simulator.download

    def looked_at(device: Simulator, buffer: Any) -> Any:
        other = threading.Thread(target=lambda: found.append(ops.programs.lock.acquire(blocking=False)))
        other.start()
        other.join()
        return download(device, buffer)

    monkeypatch.setattr(Simulator, "download", looked_at)
    close([ops.get(result)], [-numbers(1)])
    assert found == [False]


def test_a_program_that_finds_no_room_gets_that_of_idle_ones() -> None:
    device = Simulator()
    ops = CompiledCudaOps(COMPILED, device)

    def program(ops: Any, x: Any) -> Any:
        return (ops.sum(ops.matmul(ops.exp(x), ops.matmul(x, x))),)

    executors = []
    for n in (40, 41, 40, 42):
        x = np.full((n, n), 0.01, np.float32)
        executor = ops.compile(opstage.record(program, x))
        (result,) = executor.run([ops.put(x)])
        close([ops.get(result)], [np.sum(np.exp(x) @ (x @ x))])
        if not executors:
            device.limit = 2 * device.used
        executors.append(executor)
    with pytest.raises(OutOfMemoryError):
        x = np.zeros((80, 80), np.float32)
        ops.compile(opstage.record(program, x)).run([ops.put(x)])
