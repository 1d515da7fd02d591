"""Paths that can be read to their end: files, and what the caller's shell has opened for this process."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .ops.errors import UsageError

_OPEN_ALREADY = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # `command <file`, `a | b`, `<(command)`


def require_file(path: str | os.PathLike[str], *, streams: bool = False) -> None:
    """Raise a UsageError for a pipe or a device, since a pipe may never say anything and a device never end.

    What is not there, and a folder, is left to the reader. With `streams` standard input, what else the shell has
    opened for this process, and /dev/null are taken too: that is for formats that are read once, from the beginning.
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
