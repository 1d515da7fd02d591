"""Words of the house: a class has a name of its own, and a docstring says what a thing is or does."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
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


JOINED = re.compile(r"^ *\S+(?: [\w,.`()\[\]]+){3,} \w+ {3,}[a-z]")
"""A line of prose that goes on with the name of a field and its description, as in a table that was filled as prose."""


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


def test_names_of_classes_and_docstrings() -> None:
    """A class has a name of its own. A docstring begins with a noun phrase or an imperative in the field's terms, "The
    kernel of …", "Return …", and not with "What computes …"; its fields begin lines.

    One test, since all files are parsed, which takes seconds, in each process that runs a part of it."""
    names: dict[str, list[str]] = defaultdict(list)
    roundabout, joined = [], []
    for file in FILES:
        classes, texts = words_of(file)
        for line, name in classes:
            names[name].append(f"{file.relative_to(ROOT)}:{line}")
        for line, text in texts:
            place = f"{file.relative_to(ROOT)}:{line}"
            if text.lstrip().startswith("What"):
                roundabout.append(f"{place}: {text.splitlines()[0]}")
            joined += [f"{place}: {each.strip()}" for each in text.splitlines() if JOINED.match(each)]
    assert {name: places for name, places in names.items() if len(places) > 1 and name not in SHARED} == {}
    assert roundabout == []
    assert joined == []


def test_files_have_no_archaic_forms() -> None:
    """In code, comments, docstrings and messages."""
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in FILES
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if ARCHAIC.search(line)
    ]
    assert found == []
