"""The user's files that a file depends on, found in its text: local imports and the like."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_FRAMEWORK = Path(__file__).resolve().parent
"""The framework's folder. A user's file may be in its checkout; the framework's files are never the user's."""


def source_root(file: Path) -> Path:
    """The folder from which a file's own imports are found."""
    root = file.absolute().parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return root


def files_of(file: Path) -> tuple[Path, ...]:
    """The file, and the local files that it imports, directly or indirectly, anywhere in their code."""
    file = file.absolute()
    root, found = source_root(file), {file: None}
    waiting = [file]
    while waiting:
        each = waiting.pop()
        packages = [folder / "__init__.py" for folder in each.parents if folder.is_relative_to(root) and folder != root]
        for path in (*packages, *(path for _, paths in _imports(each, _tree(each), root) for path in paths)):
            if path.is_file() and path not in found:
                found[path] = None
                waiting.append(path)
    return tuple(found)


def late_import(file: Path) -> tuple[Path, int] | None:
    """The file and line of the first local import that is inside a function."""
    root = source_root(file)
    for each in files_of(file):
        tree = _tree(each)
        inside = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for node in ast.walk(function)
        }
        for node, paths in _imports(each, tree, root):
            if id(node) in inside and paths:
                return each, node.lineno
    return None


def _tree(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ast.Module([], [])


def _imports(file: Path, tree: ast.Module, root: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, list[Path]]]:
    """The imports of a file, each with the files under `root` that it reads."""
    for node in ast.walk(tree):
        names: list[str] = []
        base = root
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = file.parents[min(node.level, len(file.parents)) - 1]
            start = f"{node.module}." if node.module else ""
            names = [*([node.module] if node.module else []), *(f"{start}{alias.name}" for alias in node.names)]
        else:
            continue
        found = [path for name in names for path in _files(base, name)]
        yield node, [path for path in found if not path.resolve().is_relative_to(_FRAMEWORK)]


def _files(base: Path, dotted: str) -> list[Path]:
    """The files that importing a dotted name from a folder reads there."""
    found, place = [], base
    for part in dotted.split("."):
        place = place / part
        found += [path for path in (place / "__init__.py", place.with_name(f"{place.name}.py")) if path.is_file()]
    return found
