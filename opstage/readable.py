"""Paths that can be read to the end: files, and streams that the caller's shell opened for this process."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .ops.errors import UsageError

_OPEN_ALREADY = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # `command <file`, `a | b`, `<(command)`


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a file's name in lower case, without .gz: `.csv` of DATA.CSV and of data.csv.gz."""
    return Path(Path(path).name.lower().removesuffix(".gz")).suffix


def require_file(path: str | os.PathLike[str], *, streams: bool = False) -> None:
    """Raise a UsageError for a pipe or a device, since reading a pipe may block for ever and a device may never end.

    A missing path or a folder is left to the reader. With `streams`, standard input, other streams opened by the shell
    and /dev/null are accepted too, for formats that are read once, from the beginning.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return
    if streams and (os.fsdecode(path).startswith(_OPEN_ALREADY) or Path(os.fsdecode(path)) == Path(os.devnull)):
        return
    raise UsageError(f"{path}: cannot be read: it is a pipe or a device; expected a file")
