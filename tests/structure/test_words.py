"""Words of the house: a class has a name of its own, and a docstring says what a thing is or does."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "opstage").rglob("*.py"))

SHARED = {
    "Config",  # of each shipped model, in its own module, which `model(name, config)` takes
}
"""Names of several classes that are one concept each time."""

ARCHAIC = re.compile(
    r"\b(whence|thence|hither|thither|whither|thereof|therein|whereof|wherein|dearer|dearest|to be had|let go of|"
    r"in the midst)\b"
)
"""Forms that nobody writes today: say "from it", "its", "more expensive", "available", "released"."""


@cache
def words_of(file: Path) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """The names of the classes of a file, and its docstrings, with their lines."""
    tree = ast.parse(file.read_text())
    names = [(node.lineno, node.name) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return names, list(docstrings(tree))


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
        for line, name in words_of(file)[0]:
            found[name].append(f"{file.relative_to(ROOT)}:{line}")
    assert {name: places for name, places in found.items() if len(places) > 1 and name not in SHARED} == {}


def test_docstrings_say_what_a_thing_is() -> None:
    """A noun phrase or an imperative in the field's terms: "The kernel of …", "Return …", and not "What computes …"."""
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in FILES
        for line, text in words_of(file)[1]
        if text.lstrip().startswith("What")
    ]
    assert found == []


def test_files_have_no_archaic_forms() -> None:
    """In code, comments, docstrings and messages."""
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in FILES
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if ARCHAIC.search(line)
    ]
    assert found == []


JOINED = re.compile(r"^ *\S+(?: [\w,.`()\[\]]+){3,} \w+ {3,}[a-z]")
"""A line of prose that goes on with the name of a field and its description, as in a table that was filled as prose."""


def test_fields_in_docstrings_begin_lines() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {each.strip()}"
        for file in FILES
        for line, text in words_of(file)[1]
        for each in text.splitlines()
        if JOINED.match(each)
    ]
    assert found == []
