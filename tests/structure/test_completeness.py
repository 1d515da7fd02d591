"""The catalogue, the methods of Ops, the kernels, the samples and the documentation name the same ops."""

from __future__ import annotations

from pathlib import Path

import pytest

from opstage.interpreters.eager_cpu.kernels import kernel_table
from opstage.ops.catalogue import has_kernel, primitives
from opstage.ops.collective import CollectiveOps
from opstage.ops.primitive import Primitive
from opstage.ops.protocol import OPS
from tests.samples import SAMPLES

PRIMITIVES = primitives()
DOCS = Path(__file__).resolve().parents[2] / "docs"

# Primitives that one method stands for, depending on its arguments.
BEHIND_A_METHOD = {
    "scatter_add_scalar": "scatter_add_vec",
    "scatter_add_rows": "scatter_add_row",
    "biased_attention": "scaled_dot_product_attention",
}


def test_every_method_of_ops_has_a_sample() -> None:
    of_meshes = {name for name in vars(CollectiveOps) if not name.startswith("_")}  # tests/distributed has theirs
    assert OPS - {sample.op for sample in SAMPLES} - of_meshes == set()


def test_every_primitive_is_reached_by_a_method() -> None:
    names = {BEHIND_A_METHOD.get(name, name) for name in PRIMITIVES}
    assert names - OPS == set()


def test_every_core_primitive_has_a_kernel() -> None:
    table = kernel_table("float32", False)
    assert [name for name, primitive in PRIMITIVES.items() if primitive.core and primitive not in table] == []


def test_kernels_are_of_catalogued_primitives() -> None:
    for dtype in ("float32", "exact"):
        for fast in (False, True):
            from_outside = {p for kind in ("cpu", "exact") for p in kernel_table(dtype, fast) if has_kernel(kind, p)}
            catalogued = set(kernel_table(dtype, fast)) - from_outside
            assert catalogued <= set(PRIMITIVES.values())


@pytest.mark.parametrize("primitive", PRIMITIVES.values(), ids=repr)
def test_block_is_whole(primitive: Primitive) -> None:
    """A differentiable core primitive has both rules; what it saves has a name."""
    if primitive.core and primitive.differentiable:
        assert primitive.vjp is not None and primitive.jvp is not None
    known = {operand.strip("*?") for operand in primitive.operands} | {*primitive.outputs, *primitive.residuals}
    assert set(primitive.saves) <= known


def test_every_op_is_in_the_documentation() -> None:
    table = (DOCS / "reference.md").read_text()
    missing = [name for name in sorted(OPS) if f"`{name}`" not in table]
    assert missing == []
