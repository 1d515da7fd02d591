"""docs/reference.md speaks of what there is: every name on its right side resolves, every error is what happens."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import opstage
from opstage import Options
from opstage.ops.protocol import OPS, Ops

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "reference.md").read_text()
NOT_HERE = "not in this release"

_CELLS = re.compile(r"(?<!\\)\|")


def table(header: str) -> list[tuple[str, ...]]:
    """The cells of all rows of all tables under this header line."""
    rows, inside = [], False
    for line in DOCUMENT.splitlines():
        if line == header:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            rows.append(tuple(cell.strip() for cell in _CELLS.split(line)[1:-1]))
    return rows


NAMES = table("| TorchLean | Opstage | note |")
METHODS = table("| op | arguments | meaning |")
ERRORS = table("| asked for | error |")
OURS = sorted(
    {name for row in NAMES for cell in row[1:] for name in re.findall(r"`((?:opstage|ops)(?:\.\w+)*)`", cell)}
)


def resolve(name: str) -> Any:
    """The object of a dotted name; an AttributeError or ModuleNotFoundError when there is none."""
    first, *rest = name.split(".")
    found: Any = Ops if first == "ops" else import_module(first)
    path = first
    for part in rest:
        path += f".{part}"
        if isinstance(found, type) and part in {
            name for base in found.__mro__ for name in inspect.get_annotations(base)
        }:
            return found  # a field of a dataclass or a slot: a class knows that it has one, not what it holds
        if inspect.ismodule(found) and not hasattr(found, part):
            import_module(path)
        found = getattr(found, part)
    return found


def test_names_resolve() -> None:
    assert len(OURS) > 200
    assert [name for name in OURS if resolve(name) is None] == []


def test_resolution_fails_on_what_is_not_there() -> None:
    for name in ("ops.frobnicate", "opstage.Options.colour"):
        with pytest.raises(AttributeError):
            resolve(name)
    with pytest.raises(ModuleNotFoundError):
        resolve("opstage.frobnicate")


def test_rows_say_where_their_names_went() -> None:
    assert len(NAMES) > 250
    silent = [row for row in NAMES if not (re.search(r"`(opstage|ops)\b", row[1]) or (row[1] == NOT_HERE and row[2]))]
    assert silent == []


def test_each_name_stands_once() -> None:
    counts = Counter(row[0] for row in NAMES)
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("missing", sorted(set(re.findall(r"`opstage` has no `(\w+)`", DOCUMENT))))
def test_what_is_not_in_this_release_is_not(missing: str) -> None:
    assert not hasattr(opstage, missing)


@pytest.mark.parametrize(("asked_for", "error"), ERRORS, ids=lambda cell: cell)
def test_errors_are_what_the_table_says(asked_for: str, error: str) -> None:
    options = eval(asked_for.strip("`"), {"Options": Options})
    kind, _, message = error.partition(": ")
    with pytest.raises(getattr(opstage, kind), match=re.escape(message)):
        opstage.run(lambda ops, x: x, 1.0, options=options)


def row_of(name: str, method: Callable[..., Any]) -> tuple[str, str, str]:
    arguments = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        text = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            text = f"*{text}"
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            text += "="
        if parameter.default is not parameter.empty:
            text += repr(parameter.default).replace("'", '"')
        arguments.append(text)
    listed = ", ".join(arguments)
    summary = " ".join((inspect.getdoc(method) or "").split("\n\n")[0].split()).removeprefix("Return ")
    meaning = summary.split(" PyTorch:")[0].rstrip(".").replace("|", r"\|")
    return f"`{name}`", f"`{listed}`" if listed else "", meaning


def test_list_of_methods_is_that_of_ops() -> None:
    """Each method, its arguments, its docstring's summary up to PyTorch; in any order; a difference is the row."""
    methods = {name: getattr(Ops, name) for name in OPS | Ops.__abstractmethods__}
    assert set(METHODS) == {row_of(name, method) for name, method in methods.items()}
    assert len(METHODS) == len(methods)
