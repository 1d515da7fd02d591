"""What the tests of passes share: small graphs, what is in them, and that two graphs compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opstage import Options
from opstage.interpreters.eager_cpu.interpreter import NumpyOps
from opstage.interpreters.graph import Graph, record
from opstage.interpreters.graph.checker import check_graph
from opstage.interpreters.graph.passes.pipeline import expand
from opstage.interpreters.graph.recorder import replay
from opstage.ops.body import Body
from opstage.ops.primitive import Primitive
from opstage.ops.types import TensorType, as_dtype, dtype_name


def graph_of(program: Callable[..., Any], *shapes: Any, dtype: str = "float32") -> Graph:
    """The graph of a program on floats of these shapes; a shape may be a `TensorType` for another dtype."""
    float_type = as_dtype(dtype)
    types = [s if isinstance(s, TensorType) else TensorType(s, float_type) for s in shapes]

    def base(ops: Any, *refs: Any) -> tuple[Any, ...]:
        result = program(ops, *refs)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    return record(base, types, float_type, 0)


def no_kernels(primitive: Primitive, types: Any, static: Any) -> bool:
    """An executor that has kernels for core primitives alone."""
    return False


def to_core(body: Body) -> Body:
    """The body with every composite written out."""
    return expand(body, no_kernels)


def names(body: Body | Graph) -> list[str]:
    """The ops, in order."""
    return [e.primitive.name for e in (body.body if isinstance(body, Graph) else body).equations]


def outcome(graph: Graph, inputs: Sequence[Any], step: int = 0) -> list[Any]:
    """What a graph computes with NumPy's kernels."""
    ops = NumpyOps(Options(dtype=dtype_name(graph.dtype), fast_kernels=False, seed=graph.seed))
    return [np.asarray(out) for out in replay(ops, graph, inputs, step)]


def same_bits(x: Any, y: Any) -> bool:
    """Whether two arrays hold the same numbers, zeros with their signs; any nan is like any other."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind != "f":
        return bool(np.array_equal(x, y))
    numbers = ~np.isnan(x)
    return bool(np.array_equal(x, y, equal_nan=True) and np.array_equal(np.signbit(x)[numbers], np.signbit(y)[numbers]))


def assert_same(graph: Graph, changed: Graph, inputs: Sequence[Any], tolerance: float | None = None) -> None:
    """Both graphs give the same, bit for bit, or within a tolerance relative to the largest element."""
    check_graph(changed)
    for i, (before, after) in enumerate(zip(outcome(graph, inputs), outcome(changed, inputs), strict=True)):
        what = f"output {i}"
        assert (before.shape, before.dtype) == (after.shape, after.dtype), what
        if tolerance is None or before.dtype.kind != "f":
            assert same_bits(before, after), what
        else:
            scale = 1 + np.max(np.abs(before), initial=0.0)
            np.testing.assert_allclose(after, before, rtol=tolerance, atol=tolerance * scale, err_msg=what)


def passed(run: Callable[[Body], Body], graph: Graph) -> Graph:
    """The graph after a pass, which leaves it well formed, and finds nothing more in what it made."""
    body = run(graph.body)
    assert run(body) is body
    changed = graph.with_body(body)
    check_graph(changed)
    return changed
