"""Values that a later loop makes again, from what lives anyway, where that moves fewer bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage.compiler.codegen import fusion
from opstage.compiler.codegen.composites import Expander
from opstage.compiler.codegen.cpu.kernels import fused
from opstage.compiler.codegen.cuda.source import CUDA
from opstage.compiler.codegen.formulas import has_formula
from opstage.compiler.codegen.lowered import Lowered
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.graph import Graph
from opstage.ops.attention import SCALED_DOT_PRODUCT_ATTENTION_GRAD
from opstage.ops.normalization import BATCH_NORM, BATCH_NORM_GRAD, GROUP_NORM
from opstage.ops.primitive import Primitive
from opstage.ops.types import TensorType
from opstage.options import Options
from tests.graph.lowered_meaning import Memory, run_groups

SHAPE = (4, 6, 16, 16)
CHANNELS = {"channel_axis": 1}
CASES: list[tuple[Primitive, int, dict[str, Any]]] = [
    (BATCH_NORM, 2, {"has_gamma": True, "has_beta": True, "eps": 1e-5, **CHANNELS}),
    (BATCH_NORM_GRAD, 6, {"has_gamma": True, **CHANNELS}),
    (GROUP_NORM, 2, {"has_gamma": True, "has_beta": True, "eps": 1e-5, "groups": 3}),
]


def operands(primitive: Primitive, vectors: int) -> list[Any]:
    rng = np.random.default_rng(7)
    made = [rng.standard_normal(SHAPE), *rng.standard_normal((vectors, SHAPE[1]))]
    if primitive is BATCH_NORM_GRAD:
        made[4] = rng.standard_normal(SHAPE)  # g, after x, gamma, mean and rstd
    return made


def types(arrays: list[Any]) -> tuple[TensorType, ...]:
    return tuple([TensorType(x.shape, x.dtype) for x in arrays])


@pytest.mark.parametrize(("primitive", "vectors", "static"), CASES, ids=lambda v: getattr(v, "name", None))
def test_it_gives_the_same_values_and_takes_no_memory(
    primitive: Primitive, vectors: int, static: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = operands(primitive, vectors)
    kernel = fused(primitive, types(arrays), static)
    monkeypatch.setattr(fusion, "recomputed", lambda lowered, groups: groups)
    written = fused(primitive, types(arrays), static)
    assert kernel is not None and written is not None
    for ours, theirs in zip(kernel(*arrays), written(*arrays)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)  # other loops may add in another order
    assert kernel.scratch < arrays[0].nbytes <= written.scratch or primitive is GROUP_NORM


def test_a_loop_of_which_only_what_its_rows_have_once_is_left() -> None:
    """A loop over elements that does along with them what each row has once, until another one makes its elements."""
    rng = np.random.default_rng(7)
    shapes = ((32, 4, 64, 2),) * 3 + ((32, 4, 64, 1),) * 2 + ((32, 4, 64, 2),)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    arrays[4] = np.abs(arrays[4]) + 64
    static = {"has_mask": False, "causal": True}
    primitive = SCALED_DOT_PRODUCT_ATTENTION_GRAD
    body = Expander(has_formula, loops=False).body(primitive, types(arrays), static)
    lowered = Lowered(body, CUDA, own_outputs=True)
    groups = fusion.fuse(lowered)
    names = [str(i) for i in range(len(arrays))]
    graph = Graph(body, names, ["a", "b", "c"], np.dtype("float32"), 0)
    found = run_groups(Memory(lowered, graph, arrays), groups)
    expected = NumpyOps(Options(fast_kernels=False)).bind(primitive, tuple(arrays), static)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
