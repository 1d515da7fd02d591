"""How a file is named: from the directory in which the command was started, where it lies in there."""

from __future__ import annotations

from pathlib import Path


def shown_path(file: str) -> str:
    """The path from the working directory, with forward slashes; the whole path for a file elsewhere."""
    path = Path(file)
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()
