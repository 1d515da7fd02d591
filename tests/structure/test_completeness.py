"""Catalogue, methods, kernels, samples and documents name the same ops, and no op is identified by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import opstage
from opstage.interpreters.eager_cpu.kernels import kernel_table
from opstage.ops.catalogue import FAMILIES, has_kernel, primitives
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


# What is done to an op follows from what its primitive is, never from how it is called --------------------------------

ROOT = Path(opstage.__file__).parent
FILES = sorted(
    file for part in ("ops", "compiler", "interpreters", "distributed") for file in (ROOT / part).rglob("*.py")
)
DEFINING = {f"ops/{family}.py" for family in (*FAMILIES, "collective")}
"""Where primitives are defined."""

IN_SOURCE = {"interpreters/shape_check/fixes.py": "node.func.attr != primitive.name"}
"""Where a name is looked for in what the user wrote."""


def is_name(node: ast.AST) -> bool:
    """Whether it is the name of a primitive."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "name"
        and (
            (isinstance(node.value, ast.Name) and node.value.id == "primitive")
            or (isinstance(node.value, ast.Attribute) and node.value.attr == "primitive")
        )
    )


def names_asked(tree: ast.AST) -> Iterator[ast.AST]:
    """Where the name of a primitive is compared, or looked up in a table."""
    for node in ast.walk(tree):
        asked: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Store):
            asked = [node.slice]
        elif isinstance(node, ast.Match):
            asked = [node.subject]
        elif isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
            asked = [node.value]  # for a comparison further down
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            wanted = ("get", "startswith", "endswith", "isdisjoint", "pop", "setdefault")
            asked = [*node.args[:1], node.func.value] if node.func.attr in wanted else []
        if any(map(is_name, asked)):
            yield node


def test_no_op_is_told_by_its_name() -> None:
    """Ask for `primitive.kind`, `primitive.effects`, or for the primitive itself: `is ADD`, `in {ADD, MUL}`."""
    wrong: dict[str, list[str]] = {}
    for file in FILES:
        place = file.relative_to(ROOT).as_posix()
        if place in DEFINING:
            continue
        tree = ast.parse(file.read_text())
        asked = [ast.unparse(node) for node in names_asked(tree)]
        wrong[place] = [text for text in asked if IN_SOURCE.get(place) != text]
    assert len(wrong) > 200
    assert {place: found for place, found in wrong.items() if found} == {}


def test_comparisons_are_found() -> None:
    """The test of the test: every form in which a name has been asked for."""
    forms = (
        'e.primitive.name == "conv"',
        'primitive.name in ("matmul", "bmm")',
        "TABLE[e.primitive.name](e)",
        "TABLE.get(primitive.name)",
        "name = e.primitive.name",
        'primitive.name.startswith("max_")',
    )
    assert all(list(names_asked(ast.parse(form))) for form in forms)
