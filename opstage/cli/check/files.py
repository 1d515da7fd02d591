"""The files that folders and patterns on a command line match."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from glob import glob, has_magic
from pathlib import Path

from ...experiment.directory import CONFIG, SOURCE
from ...ops.errors import UsageError
from .target import may_declare

PASSED_OVER = ("__pycache__", "node_modules", "site-packages", "venv", "build", "dist")
"""Folders that are skipped because they hold no user code, as are those with a name that begins with a dot."""


def matches(path: Path, pattern: str, root: Path) -> bool:
    """Whether `pattern`, relative to `root`, matches a file or a folder above it; without a slash it matches at any
    depth.

    `*` matches anything within a name, `**` any number of folders.
    """
    try:
        parts = Path(os.path.abspath(path)).relative_to(os.path.abspath(root)).parts
    except ValueError:
        parts = Path(os.path.abspath(path)).parts[1:]
    pattern = pattern.removeprefix("./").rstrip("/")
    expression = _expression(pattern)
    if "/" not in pattern and any(expression.fullmatch(part) for part in parts):
        return True
    return any(expression.fullmatch("/".join(parts[: i + 1])) for i in range(len(parts)))


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile(
        "".join(tokens.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern) if part)
    )


def is_many(word: str) -> bool:
    """Whether a word is a folder or a pattern."""
    return os.path.isdir(word) or (has_magic(word) and not os.path.exists(word) and ":" not in word)


def files_in(word: str, exclude: Sequence[str], root: Path) -> Iterator[Path]:
    """Return the Python files of a folder, or those that match a pattern, in order, without excluded ones.

    Raises UsageError for a pattern that matches nothing.
    """
    if not os.path.isdir(word):
        matching = sorted(glob(word, recursive=True))
        if not matching:
            raise UsageError(f"{word}: there is no file or folder that it matches")
        for found in matching:
            if os.path.isdir(found):
                yield from files_in(found, exclude, root)
            elif found.endswith(".py") and _is_own(Path(found), exclude, root):
                yield Path(found)
        return
    for folder, folders, names in os.walk(word):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in PASSED_OVER and _is_own(here / name, exclude, root)
        )
        for name in sorted(names):
            if name.endswith(".py") and excluded_by(here / name, exclude, root) is None:
                yield here / name


def _is_own(path: Path, exclude: Sequence[str], root: Path) -> bool:
    """Whether a file or folder is neither excluded nor the copy of a model's files that a run keeps."""
    copied = any(folder.name == SOURCE and (folder.parent / CONFIG).exists() for folder in (path, *path.parents))
    return not copied and excluded_by(path, exclude, root) is None


def excluded_by(path: Path, exclude: Sequence[str], root: Path) -> str | None:
    """Return the first pattern of `exclude` that matches a file or a folder above it, or None."""
    return next((pattern for pattern in exclude if matches(path, pattern, root)), None)


def with_programs(files: Iterator[Path]) -> list[Path]:
    """Return the files with a function that declares its shapes, and model files, found without running anything."""
    return [file for file in files if may_declare(file)]
