"""Where compiled programs on a simulated device read and write: parts of memory, and memory that others hold too."""

from __future__ import annotations

from typing import Any

import numpy as np

import opstage
from opstage.interpreters.eager_cuda import CudaOps
from opstage.interpreters.eager_cuda.device.simulator import Simulator
from opstage.interpreters.graph.cuda.compiled import CompiledCudaOps
from opstage.options import Options

COMPILED = Options(device="cuda", seed=1, backend="compiled")
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def close(left: Any, right: Any) -> None:
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


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
        return [ops.sgd_update(p, x, lr, weight_decay=0.0) for p in ps] + [ops.scale(ps[0], c=2.0)]

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
        finish()
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
    waiting = eager.sgd_update(p, x, lr, weight_decay=0.0)
    _, finish = executor.start((x, p, lr), free={1})
    finish()
    close([ops.get(waiting), ops.get(p)], [numbers(2) - RATE * numbers(1)] * 2)


def test_what_a_started_run_needs_outlives_a_trim() -> None:
    ops = CompiledCudaOps(COMPILED, Simulator())

    def program(ops: Any, x: Any, p: Any, lr: Any) -> Any:
        return (ops.sgd_update(p, ops.exp(x), lr, weight_decay=0.0),)

    executor = ops.compile(opstage.record(program, numbers(0), numbers(0), RATE), {1})
    for _ in range(3):
        x, p, lr = ops.put(numbers(1)), ops.put(numbers(2)), ops.put(RATE)
        (moved,), finish = executor.start((x, p, lr), free={1})
        executor.trim()
        ops.trim()
        finish()
        close([ops.get(moved)], [numbers(2) - RATE * np.exp(numbers(1))])
