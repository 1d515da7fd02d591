"""An mkdocs hook: the page that lists source files by their docstrings, and the page of ARCHITECTURE.md."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = "internals/source-files.md"
ARCHITECTURE = "internals/architecture.md"


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
    return text.replace("](docs/internals/", "](").replace("](docs/", "](../")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    if page.file.src_uri == ARCHITECTURE:
        return architecture()
    return f"{markdown}\n\n{source_files()}\n" if page.file.src_uri == PAGE else markdown
