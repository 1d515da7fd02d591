"""What the tests of the compiled executor share: graphs of models, agreement with what a graph means."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from opstage import Options, optim
from opstage.interpreters.eager_cpu.interpreter import NumpyOps
from opstage.interpreters.graph import Graph
from opstage.interpreters.graph.cpu.plan import CpuPlan, optimise
from opstage.interpreters.graph.executor import CpuExecutor
from opstage.interpreters.graph.recorder import replay
from opstage.models import model
from opstage.ops.types import dtype_name
from opstage.training.program_check import record_model

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def left_to_eager_cpu(ops: Any, x: Any) -> Any:
    """How many numbers below 0 rows of x have; rows of masks are gathered by eager_cpu, in Python."""
    below = ops.less(x, ops.full(shape=x.shape, value=0.0, dtype=x.dtype))
    rows = ops.gather_rows(below, ops.argmax(x, axis=1), mode="zero")
    return ops.reduce_sum(ops.cast(rows, dtype=x.dtype), axis=(1,))


def options_of(graph: Graph) -> Options:
    return Options(dtype=dtype_name(graph.dtype), fast_kernels=False, seed=graph.seed)


def executor_of(graph: Graph) -> CpuExecutor:
    return CpuExecutor(graph, options_of(graph))


def planned(graph: Graph) -> CpuPlan:
    return CpuPlan(optimise(graph, checked=True)[0].body)


@cache
def step_of(name: str, rows: int = 8, **sizes: int) -> Graph:
    """The training step of a shipped model, for a batch of so many rows."""
    every = {"B": rows, **({"T": 16} if name == "gpt" else {}), **sizes}
    return record_model(model(name), Options(), optim.adamw(lr=0.1), sizes=every)


def values_for(graph: Graph, seed: int = 0) -> list[Any]:
    """Small positive floats, for a square root is taken of some, and integers that any index may be."""
    rng = np.random.default_rng(seed)
    values = []
    for type_ in graph.input_types:
        shape: Any = type_.shape
        made = rng.uniform(0.01, 0.1, shape) if type_.dtype.kind == "f" else rng.integers(0, 2, shape)
        values.append(made.astype(type_.dtype))
    return values


def meant(graph: Graph, inputs: Sequence[Any], step: int = 0) -> list[Any]:
    """What a graph means: its recorded ops, one by one, by NumPy's kernels."""
    return [np.asarray(out) for out in replay(NumpyOps(options_of(graph)), graph, inputs, step)]


def magnitude(graph: Graph, inputs: Sequence[Any]) -> float:
    """The largest finite number that the program meets: rounding is relative to that where it is subtracted again."""
    body = graph.body
    slots = [s for e in body.equations for s in e.outputs if body.types[s].dtype.kind == "f"]
    with np.errstate(all="ignore"):
        every = meant(graph.with_body(body.replace(outputs=[*slots, *body.outputs])), inputs)
    return max(
        [1.0, *[float(np.max(np.abs(v), where=np.isfinite(v), initial=0)) for v in every if v.dtype.kind == "f"]]
    )


def assert_agree(graph: Graph, inputs: Sequence[Any], found: Sequence[Any], step: int = 0) -> None:
    """Within the tolerance of the dtype, by the square root of how many roundings a value may have gone through."""
    terms = max([1, *[math.prod(map(int, t.shape)) for t in graph.body.types]]) + len(graph.body.equations)
    tolerance = TOLERANCE[dtype_name(graph.dtype)] * math.sqrt(terms)
    scale = magnitude(graph, inputs)
    for i, (wanted, got) in enumerate(zip(meant(graph, inputs, step), found, strict=True)):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), f"output {i}"
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * scale, err_msg=f"output {i}")
        else:
            np.testing.assert_array_equal(got, wanted, err_msg=f"output {i}")


def same_arrays(found: Iterable[Any], wanted: Iterable[Any]) -> None:
    """Arrays one by one, bit for bit."""
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def close_arrays(found: Iterable[Any], wanted: Iterable[Any], **tolerance: float) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, **tolerance)  # type: ignore[arg-type]


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Do `work(i)` in so many threads at once."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def floats_of(graph: Graph) -> list[int]:
    """The positions of inputs of floats."""
    return [i for i, type_ in enumerate(graph.input_types) if type_.dtype.kind == "f"]
