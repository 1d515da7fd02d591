"""The compiled executor against what a graph means, and what it promises of its results, inputs, errors and threads."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.interpreters.graph import Graph
from opstage.interpreters.graph.executor import CpuExecutor
from opstage.ops.errors import OpstageError
from opstage.ops.types import FLOAT32, INT64, TensorType
from tests.graph.executor_common import assert_agree, executor_of, in_threads, meant, same_arrays, step_of, values_for
from tests.graph.passes_common import graph_of
from tests.graph.random_programs import random_graph
from tests.graph.test_interrupts import InterruptAt
from tests.graph.test_passes import adds_nothing_up
from tests.searches import share

# Random programs ------------------------------------------------------------------------------------------------------


def require_agreement(seed: int, size: int, *, wild: bool = False) -> None:
    print("seed", seed)
    graph, inputs = random_graph(seed, size, wild=wild)
    if wild and not adds_nothing_up(graph.body):
        return  # a sum of zeros may have either sign, and 1/0 tells
    executor = executor_of(graph)
    for step in (0, 0, 3):
        with np.errstate(all="ignore"):
            assert_agree(graph, inputs, executor.run(inputs, step), step)


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 8):
        require_agreement(seed, 3)


@pytest.mark.parametrize("first", range(0, 30, 15))
def test_random_programs_with_infinities_and_nan(first: int) -> None:
    for seed in range(first, first + 15):
        require_agreement(seed, 3, wild=True)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("first", range(10_000, 10_000 + share(2000), 100))
def test_many_more_random_programs(first: int) -> None:
    for seed in range(first, first + 100):
        require_agreement(seed, 3 + seed % 7)
        if seed % 4 == 0:
            require_agreement(seed, 8, wild=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reductions_keep_infinities_and_nan(dtype: str) -> None:
    def program(ops: Any, x: Any) -> Any:
        return (
            ops.reduce_max(x, axis=(1,)),
            ops.reduce_sum(x, axis=(1,)),
            ops.reduce_sum(x, axis=(0,)),
            ops.softmax(x, axis=-1),
            ops.maximum(x, ops.neg(x)),
        )

    rows = np.random.default_rng(0).normal(size=(9, 20))
    rows[0, 3], rows[1, 19], rows[2, 0], rows[3, [1, 5]] = np.nan, np.inf, -np.inf, (np.inf, -np.inf)
    rows[4], rows[5], rows[6, 7:9] = -np.inf, -0.0, (np.nan, np.inf)
    graph = graph_of(program, (9, 20), dtype=dtype)
    inputs = [rows.astype(dtype)]
    with np.errstate(all="ignore"):
        assert_agree(graph, inputs, executor_of(graph).run(inputs))


# Results --------------------------------------------------------------------------------------------------------------


def two(ops: Any, x: Any) -> Any:
    y = ops.scale(x, c=2.0)
    return y, ops.exp(ops.neg(y))


@pytest.fixture(scope="module")
def doubler() -> CpuExecutor:
    return executor_of(graph_of(two, (40,), dtype="float64"))


def test_results_that_somebody_holds_are_never_overwritten(doubler: CpuExecutor) -> None:
    held = []
    for i in range(50):
        x = np.full(40, i / 7)
        doubled, shrunk = doubler.run([x])
        held.append((x, doubled if i % 3 else doubled[3:5], shrunk.reshape(8, 5)[::2, 1:]))
        del doubled, shrunk
    for x, doubled, shrunk in held:
        np.testing.assert_array_equal(doubled, 2 * x[: len(doubled)])
        np.testing.assert_allclose(shrunk, np.exp(-2 * x[0]), rtol=1e-14)
    assert len({x.__array_interface__["data"][0] for _, x, _ in held}) == 50


def test_what_holds_a_result_may_be_a_buffer_or_a_result_given_in_again(doubler: CpuExecutor) -> None:
    buffer = memoryview(doubler.run([np.ones(40)])[0])
    x = np.linspace(0, 1, 40)
    expected = x.copy()
    for _ in range(20):
        x = doubler.run([x])[0]  # read and made anew in one call
        x *= 0.5
        np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(np.asarray(buffer), 2)


def test_results_that_nobody_holds_are_used_again(doubler: CpuExecutor) -> None:
    x = np.ones(40)
    places = set()
    for _ in range(20):
        results = doubler.run([x])
        places.add(tuple(r.__array_interface__["data"][0] for r in results))
        del results
    assert len(places) <= 2


def test_results_can_be_written_to_and_are_no_input() -> None:
    executor = executor_of(graph_of(lambda ops, x: (x, ops.neg(x), ops.reshape(x, shape=(2, 3))), (6,)))
    x = np.arange(6, dtype=np.float32)
    for result in executor.run([x])[1:2]:
        result[...] = 7
    np.testing.assert_array_equal(x, np.arange(6))
    np.testing.assert_array_equal(executor.run([x])[1], -x)


def test_two_thousand_replays_take_constant_memory(doubler: CpuExecutor) -> None:
    x = np.ones(40)

    def replays(n: int) -> None:
        for _ in range(n):
            doubler.run([x])

    replays(50)
    gc.collect()
    tracemalloc.start()
    try:
        replays(20)
        before = tracemalloc.get_traced_memory()[0]
        replays(2000)
        assert tracemalloc.get_traced_memory()[0] - before < 1000
    finally:
        tracemalloc.stop()


# Inputs ---------------------------------------------------------------------------------------------------------------


def mixed(ops: Any, x: Any, w: Any, s: Any) -> Any:
    return ops.mul(ops.matmul(x, w), ops.broadcast_to(s, shape=(4, 3)))


@pytest.fixture(scope="module")
def mixer() -> tuple[Graph, CpuExecutor]:
    graph = graph_of(mixed, (4, 5), (5, 3), (), dtype="float64")
    return graph, executor_of(graph)


def unaligned(x: Any) -> Any:
    made = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    made[...] = x
    return made


def frozen(x: Any) -> Any:
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    "lay",
    [
        np.asfortranarray,
        lambda x: np.repeat(x, 2, -1)[..., ::2] if x.ndim else x,
        lambda x: x[::-1][::-1] if x.ndim else x,
        lambda x: np.broadcast_to(x[..., :1], x.shape) if x.ndim else x,
        frozen,
        unaligned,
    ],
    ids=["transposed", "every second", "turned", "one column", "read-only", "unaligned"],
)
def test_inputs_may_lie_as_they_like(mixer: tuple[Graph, CpuExecutor], lay: Callable[[Any], Any]) -> None:
    graph, executor = mixer
    inputs = [lay(x) for x in values_for(graph)]
    before = [x.copy() for x in inputs]
    assert_agree(graph, inputs, executor.run(inputs))
    same_arrays(inputs, before)


def test_one_array_may_be_several_inputs() -> None:
    graph = graph_of(lambda ops, x, y: (ops.sub(x, y), ops.mul(x, y)), (7,), (7,), dtype="float64")
    x = np.arange(7.0)
    assert_agree(graph, [x, x], executor_of(graph).run([x, x]))


def test_tensors_without_elements_and_without_axes() -> None:
    def program(ops: Any, empty: Any, scalar: Any) -> Any:
        row = ops.reduce_sum(empty, axis=(0,))
        return (
            ops.exp(empty),
            ops.add(row, ops.broadcast_to(scalar, shape=(3,))),
            ops.matmul(ops.transpose2d(empty), empty),
            ops.tanh(scalar),
            ops.concat([ops.unsqueeze(row, axis=0), empty], axis=0),
        )

    graph = graph_of(program, (0, 3), (), dtype="float64")
    inputs = [np.empty((0, 3)), np.array(0.25)]
    executor = executor_of(graph)
    for _ in range(2):
        assert_agree(graph, inputs, executor.run(inputs))


def test_programs_that_compute_nothing() -> None:
    def program(ops: Any, x: Any) -> Any:
        constant = ops.const([[1.0, 2.0]])
        return x, ops.permute(x, axes=(1, 0)), constant, ops.transpose2d(constant), ops.full(shape=(2,), value=3.0), x

    graph = graph_of(program, (2, 3), dtype="float64")
    inputs = values_for(graph)
    assert_agree(graph, inputs, executor_of(graph).run(inputs))
    nothing = graph_of(lambda ops: ops.const(2.5), dtype="float64")
    assert executor_of(nothing).run([])[0] == 2.5


# Errors ---------------------------------------------------------------------------------------------------------------


def looked_up(ops: Any, x: Any, index: Any, other: Any) -> Any:
    first = ops.gather_rows(x, index)
    return ops.add(first, ops.gather_rows(x, other))


ROWS, INDEX = TensorType((4, 3), FLOAT32), TensorType((2,), INT64)


def caught(run: Callable[[], Any]) -> str:
    with pytest.raises(OpstageError) as found:
        run()
    return str(found.value)


@pytest.mark.parametrize("bad", [(4, 0), (0, -1), (9, 2)])
@pytest.mark.parametrize("which", [0, 1])
def test_an_index_out_of_range_is_the_eager_error_and_is_forgotten(bad: tuple[int, int], which: int) -> None:
    graph = graph_of(looked_up, ROWS, INDEX, INDEX)
    executor = executor_of(graph)
    good = [np.ones((4, 3), np.float32), np.array([3, 0]), np.array([1, 1])]
    wrong = list(good)
    wrong[1 + which] = np.array(bad)
    for _ in range(2):
        message = caught(lambda: executor.run(wrong))
        assert message == caught(lambda: meant(graph, wrong))
        assert "gather_rows" in message and "test_executor.py" in message
        assert_agree(graph, good, executor.run(good))


def test_an_error_of_a_host_op_behind_one_of_a_loop_is_the_first_one_and_is_forgotten() -> None:
    def program(ops: Any, x: Any, index: Any, mask: Any, other: Any) -> Any:
        return ops.gather_rows(x, index), ops.gather_rows(mask, other)  # rows of truth values are gathered by eager_cpu

    graph = graph_of(program, ROWS, INDEX, TensorType((4, 3), np.dtype(bool)), INDEX)
    executor = executor_of(graph)
    x, mask = np.ones((4, 3), np.float32), np.ones((4, 3), bool)
    good, bad = np.array([0, 1]), np.array([0, 7])
    for index, other in ((bad, bad), (bad, good), (good, bad)):
        wrong = [x, index, mask, other]
        assert caught(lambda wrong=wrong: executor.run(wrong)) == caught(lambda wrong=wrong: meant(graph, wrong))
        assert_agree(graph, [x, good, mask, good], executor.run([x, good, mask, good]))


def test_a_label_out_of_range_is_the_eager_error() -> None:
    def loss(ops: Any, logits: Any, labels: Any) -> Any:
        return ops.cross_entropy(logits, labels)

    logits, labels = np.zeros((3, 4)), np.array([0, 4, 1])
    messages = [
        caught(lambda backend=backend: opstage.run(loss, logits, labels, options=Options(backend=backend)))
        for backend in ("eager", "compiled")
    ]
    assert messages[0] == messages[1]


@pytest.mark.parametrize("good", [True, False])
def test_an_interrupt_leaves_the_executor_fit_for_use(good: bool) -> None:
    graph = graph_of(looked_up, ROWS, INDEX, INDEX)
    executor = executor_of(graph)
    inputs = [np.ones((4, 3), np.float32), np.array([3, 0]), np.array([1, 1])]
    given = inputs if good else [*inputs[:2], np.array([1, 4])]
    broken_off = 0
    for n in range(1, 60):
        try:
            with InterruptAt(n):
                executor.run(given)
        except (KeyboardInterrupt, OpstageError) as error:
            broken_off += isinstance(error, KeyboardInterrupt)
        assert_agree(graph, inputs, executor.run(inputs))
    assert broken_off > 5


# Threads and runs -----------------------------------------------------------------------------------------------------


def test_threads_may_call_at_once() -> None:
    """Two on one interpreter, one on another: each gets the answer to its own inputs, also while programs compile."""

    def program(ops: Any, x: Any) -> Any:
        return ops.reduce_sum(ops.mul(ops.matmul(x, x), x), axis=(1,))

    wrong: list[Any] = []

    def work(number: int) -> None:
        dtype, tolerance = kinds[number]
        rng = np.random.default_rng(number)
        options = Options(backend="compiled", dtype=dtype)
        for _ in range(25):
            x = rng.normal(size=(12, 12)).astype(dtype)
            found = opstage.run(program, x, options=options)
            if not np.allclose(found, (x @ x * x).sum(1), rtol=tolerance, atol=tolerance * 10):
                wrong.append((number, x, found))

    kinds: list[tuple[Any, float]] = [("float64", 1e-11), ("float64", 1e-11), ("float32", 1e-4)]
    in_threads(3, work)
    assert not wrong


DETERMINISTIC = """
import hashlib, numpy as np
from tests.graph.executor_common import executor_of, step_of, values_for
graph = step_of("mlp", 16)
print(hashlib.sha256(b"".join(out.tobytes() for out in executor_of(graph).run(values_for(graph), 2))).hexdigest())
"""


def test_runs_and_processes_agree_bit_for_bit() -> None:
    graph = step_of("mlp", 16)
    inputs = values_for(graph)
    first, second = executor_of(graph), executor_of(graph)
    expected = [out.copy() for out in first.run(inputs, 2)]
    for executor in (first, second, first):
        for a, b in zip(expected, executor.run(inputs, 2), strict=True):
            assert a.tobytes() == b.tobytes()
    said = {
        subprocess.run(
            [sys.executable, "-c", DETERMINISTIC], check=True, capture_output=True, text=True, env=dict(os.environ)
        ).stdout
        for _ in range(2)
    }
    assert said == {hashlib.sha256(b"".join(out.tobytes() for out in expected)).hexdigest() + "\n"}
