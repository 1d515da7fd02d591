"""File names in messages: relative to the working directory, for files below it."""

from __future__ import annotations

from pathlib import Path


def shown_path(file: str) -> str:
    """Return the path relative to the working directory, with forward slashes; the absolute path for a file
    elsewhere."""
    path = Path(file)
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()
