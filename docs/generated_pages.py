"""An mkdocs hook: pages made of the sources: files, ARCHITECTURE.md, ops by family, commands."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from opstage import derived
from opstage.cli.commands import COMMANDS, cli
from opstage.ops.method import Calls
from opstage.ops.protocol import Ops

ROOT = Path(__file__).resolve().parent.parent


def summary(path: Path) -> str:
    """The first paragraph of a module's docstring, in one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def source_files(root: Path = ROOT) -> str:
    """A heading for each package of `opstage`, the package's docstring and a table of its files."""
    parts = []
    for package in sorted({path.parent for path in (root / "opstage").rglob("*.py")}):
        files = sorted(path for path in package.glob("*.py") if path.name != "__init__.py")
        if not files:
            continue
        start = package / "__init__.py"
        rows = [f"| `{path.name}` | {summary(path).replace('|', chr(92) + '|')} |" for path in files]
        heading = f"## {package.relative_to(root).as_posix()}"
        table = "\n".join(["| file | content |", "|---|---|", *rows])
        parts += [heading, summary(start) if start.exists() else "", table]
    return "\n\n".join(part for part in parts if part)


def architecture(root: Path = ROOT) -> str:
    """ARCHITECTURE.md, whose links go from the root of the repository, as a page of docs/internals."""
    text = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return text.removeprefix("# Architecture\n").replace("](docs/internals/", "](").replace("](docs/", "](../")


def op_list() -> str:
    """A table for each family of ops, then one of derived functions; names lead to descriptions."""
    families = [base for base in Ops.__mro__[1:] if base.__module__.startswith("opstage.ops.") and base is not Calls]
    parts = [
        table(family.__module__.rpartition(".")[2].replace("_", " "), "ops", functions)
        for family in families
        if (functions := dict(public(family)))
    ]
    found = {name: f for name, f in public(derived) if inspect.isfunction(f) and f.__module__.startswith("opstage.ops")}
    return "\n\n".join([*parts, table("derived functions", "derived", found)])


def public(holder: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    names = getattr(holder, "__all__", vars(holder))
    return ((name, vars(holder)[name]) for name in names if not name.startswith("_") and callable(vars(holder)[name]))


def table(family: str, holder: str, functions: dict[str, Callable[..., Any]]) -> str:
    target = "opstage.Ops" if holder == "ops" else "opstage.derived"
    rows = [f"| [`{holder}.{name}`][{target}.{name}] | {first_line(f)} |" for name, f in sorted(functions.items())]
    return "\n".join([f"## {family.capitalize()}", "", "| op | result |", "|---|---|", *rows])


def first_line(function: Callable[..., Any]) -> str:
    """The first sentence of a docstring, for a cell of a table."""
    text = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split()).removeprefix("Return ")
    parts = re.split(r"(`[^`]*`)", re.split(r"(?<=\.) (?=[A-Z])", text)[0])
    return "".join(part if part.startswith("`") else re.sub(r"([*_\[\]|])", r"\\\1", part) for part in parts)


def command_line() -> str:
    """The help of every command."""
    parts = []
    for name in sorted(COMMANDS):
        context = click.Context(cli, info_name="opstage")
        command = cli.get_command(context, name)
        assert command is not None
        text = command.get_help(click.Context(command, info_name=name, parent=context, max_content_width=100))
        parts.append(f"## opstage {name}\n\n```text\n{text}\n```")
    return "\n\n".join(parts)


PAGES = {
    "internals/source-files.md": source_files,
    "internals/architecture.md": architecture,
    "api/op-list.md": op_list,
    "api/command-line.md": command_line,
}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    made = PAGES.get(page.file.src_uri)
    return markdown if made is None else f"{markdown}\n\n{made()}\n"
