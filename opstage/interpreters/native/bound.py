"""The size limit of the disk cache: the least recently used files are removed first.

Several processes may write and remove files at once. A file removed by another process is simply gone, and a process
that misses a kernel compiles it again, so no lock is needed.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...ops.amounts import parse_bytes
from ...ops.errors import UsageError
from ...options import KERNEL_CACHE

_log = logging.getLogger(__name__)

DEFAULT = 512 << 20
_FOLDER = re.compile(r"opstage-[0-9a-f]{16}")  # of this environment and of others, including earlier ones
_SHARE = 16  # a sixteenth of the limit may be written between two scans of the folders

_written: dict[Path, int] = {}
"""Bytes written since the last scan, by the parent of the cache folders."""


class _File(NamedTuple):
    used: float
    nbytes: int
    path: str


def limit() -> int:
    """Return the limit of machine code on disk in bytes, 0 for none. Raises UsageError if the variable is not an
    amount."""
    text = os.environ.get(KERNEL_CACHE, "").strip()
    if not text or text == "0":
        return 0 if text else DEFAULT
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"environment variable {KERNEL_CACHE}: {error}; 0 keeps nothing on disk") from None


def note_written(folder: Path, nbytes: int) -> None:
    """Record that bytes were written to `folder`, and scan if that may exceed the limit, also the first time."""
    bound, base = limit(), folder.parent
    since = _written.get(base)
    if since is not None and since + nbytes < bound // _SHARE:
        _written[base] = since + nbytes
        return
    _written[base] = 0
    shrink(base, bound)


def shrink(base: Path, bound: int) -> None:
    """Remove files from the cache folders in `base`, down to `bound` bytes minus what may be written unnoticed."""
    files = sorted(file for folder in _folders(base) for file in _files(folder))
    total = sum(file.nbytes for file in files)
    if total <= bound:
        return
    for file in files:
        if total <= bound - bound // _SHARE:
            break
        with suppress(OSError):
            os.unlink(file.path)
        total -= file.nbytes
    _log.debug("kernels in %s were shrunk to %d bytes", base, total)


def _folders(base: Path) -> Iterator[str]:
    """Yield this user's cache folders."""
    user = os.geteuid() if hasattr(os, "geteuid") else None
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            ours = user in (None, entry.stat(follow_symlinks=False).st_uid)
            if ours and _FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield entry.path


def _files(folder: str) -> Iterator[_File]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    yield from _files(entry.path)
                else:
                    yield _File(status.st_mtime, max(status.st_size, 1), entry.path)
