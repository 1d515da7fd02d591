"""What is done to an op follows from what its primitive is, never from how it is called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import opstage
from opstage.ops.catalogue import FAMILIES, primitives
from opstage.transforms.control_flow import CONTROL

ROOT = Path(opstage.__file__).parent
FILES = sorted(
    file for part in ("ops", "compiler", "interpreters", "distributed") for file in (ROOT / part).rglob("*.py")
)
NAMES = {*primitives(), *[primitive.name for primitive in CONTROL]}

OF_OTHER_THINGS = {
    "compiler/captures/bytecode.py": {"add"},  # a method of a set
    "compiler/codegen/formulas.py": {
        "tanh",
        *(
            "sigmoid",
            "sigmoid_grad",
            "tanh_grad",
            "silu",
            "silu_grad",
            "mod",
            "floor_divide",
        ),  # functions that the text of a kernel calls
    },
    "compiler/codegen/cpu/math_functions.py": {
        *("add", "cos", "erf", "exp", "floor", "log", "power", "sin", "sqrt", "tanh"),
        *("atan", "exp2", "log1p", "log2", "log10"),
    },
    "interpreters/eager_cpu/loops/convolution.py": {"conv", "conv_kernel_grad"},  # parts of a convolution's steps
    "ops/interpolation.py": {"linear", "floor", "ceil"},  # modes of interpolation
    "ops/advanced_indexing.py": {"add", "mul"},  # how updates are combined
    "interpreters/graph/profile.py": {"sum"},  # a loop that adds up what workers summed
    "interpreters/graph/notation.py": {"sqrt"},  # of a real number in a text
    "ops/statistics.py": {"linear"},  # how a quantile lies between two elements
}
"""Texts that are compared, and are not the names of primitives though they look like some."""

DEFINING = {f"ops/{family}.py" for family in (*FAMILIES, "collective")}
"""Where primitives are defined."""

IN_SOURCE = {"interpreters/shape_check/fixes.py": "node.func.attr != primitive.name"}
"""Where a name is looked for in what the user wrote."""


def texts_compared(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that are compared, matched, or the keys of a dict or the elements of a set."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            parts += [e for p in parts if isinstance(p, ast.Tuple | ast.List | ast.Set) for e in p.elts]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Set):
            parts = [*node.elts]
        elif isinstance(node, ast.Dict):
            parts = [*node.keys]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("frozenset", "set"):
            parts = [e for a in node.args if isinstance(a, ast.Tuple | ast.List) for e in a.elts]
        yield from (p for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str))


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
        known = NAMES - OF_OTHER_THINGS.get(place, set())
        wrong[place] = [f"line {c.lineno}: {c.value!r}" for c in texts_compared(tree) if c.value in known]
        asked = [ast.unparse(node) for node in names_asked(tree)]
        wrong[place] += [text for text in asked if IN_SOURCE.get(place) != text]
    assert len(wrong) > 200
    assert {place: found for place, found in wrong.items() if found} == {}


def test_what_is_excused_is_there() -> None:
    for place, texts in OF_OTHER_THINGS.items():
        assert texts <= {c.value for c in texts_compared(ast.parse((ROOT / place).read_text()))}, place


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
    tables = ('SET = frozenset({"add"})', 'SET = frozenset(("add", "x"))', 'TABLE = {"add": 1}', 'name in ("add",)')
    assert all([c.value for c in texts_compared(ast.parse(form))][:1] == ["add"] for form in tables)
