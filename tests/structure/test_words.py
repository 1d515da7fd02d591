"""Words of the house: a class has a name of its own, and a docstring says what a thing is or does."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "opstage").rglob("*.py"))

SHARED = {
    "Config",  # of each shipped model, in its own module, which `model(name, config)` takes
}
"""Names of several classes that are one concept each time."""


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, its classes, functions and attributes, with their lines."""
    for node in ast.walk(tree):
        for a_field in ("body", "orelse", "finalbody"):
            statements = getattr(node, a_field, None)  # the body of a lambda is an expression
            for statement in statements if isinstance(statements, list) else ():
                match statement:
                    case ast.Expr(ast.Constant(str() as text)):
                        yield statement.lineno, text


def test_no_two_classes_have_one_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for file in FILES:
        for node in classes(ast.parse(file.read_text())):
            found[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert {name: places for name, places in found.items() if len(places) > 1 and name not in SHARED} == {}


def test_docstrings_say_what_a_thing_is() -> None:
    """A noun phrase or an imperative in the field's terms: "The kernel of …", "Return …", and not "What computes …"."""
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in FILES
        for line, text in docstrings(ast.parse(file.read_text()))
        if text.lstrip().startswith("What")
    ]
    assert found == []
