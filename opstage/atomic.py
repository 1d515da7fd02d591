"""Files that are written completely or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import final

from .ops.errors import UsageError

TEMPORARY = re.compile(r"\.(.{1,50})\.[0-9a-f]{16}\.tmp", re.DOTALL)
"""The name of a file that is still being written: the first 50 characters of its final name, and a random part."""

NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
"""Flag for opening a file for writing: a symbolic link in its place is an error and is not followed."""


class Disk:
    """The system calls by which a file reaches the disk. Tests substitute one whose calls fail."""

    def create(self, path: Path) -> int:
        """A descriptor of a new file at `path`; OSError if anything is there, also a link."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK | getattr(os, "O_CLOEXEC", 0), 0o666)

    def write(self, file: int, data: memoryview) -> int:
        """Write at least one byte; return the number of bytes written."""
        return os.write(file, data)

    def sync(self, file: int) -> None:
        """Return once the file's bytes are on the disk."""
        os.fsync(file)

    def close(self, file: int) -> None:
        """Close the descriptor."""
        os.close(file)

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` with `source` in one atomic step."""
        os.replace(source, target)

    def sync_folder(self, folder: Path) -> None:
        """Return once the names in `folder` are on the disk."""
        if os.name == "nt":  # Windows has no descriptors of folders; its renames are journalled
            return
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def make_folder(self, folder: Path) -> None:
        """Make `folder` and its missing parents."""
        folder.mkdir(parents=True, exist_ok=True)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()


@final
class WriteError(UsageError):
    """A file could not be written; `replaced` says whether the new file is in place nevertheless."""

    def __init__(self, path: Path, error: OSError, *, replaced: bool = False):
        reason = error.strerror or str(error)
        advice = {
            errno.ENOSPC: "; make room on the disk and try again",
            errno.EDQUOT: "; make room in the quota and try again",
            errno.EACCES: "; choose a folder that you may write to",
            errno.EROFS: "; choose a folder that you may write to",
            errno.ENOTDIR: "; a part of this path is a file, not a folder",
            errno.ELOOP: "; it is a link that was not made by Opstage: remove it",
            errno.EEXIST: "; a part of this path is a file, not a folder",
        }.get(error.errno or 0, "")
        fate = "it is written, but the disk has not confirmed it" if replaced else "nothing was changed"
        super().__init__(f"{path}: cannot be written: {reason}; {fate}{advice}")
        self.replaced = replaced


DISK = Disk()


def write_file(
    path: Path,
    chunks: Iterable[bytes | memoryview],
    *,
    disk: Disk = DISK,
    called: Callable[[], Path] | None = None,
) -> None:
    """Write `chunks` to `path` so that at every moment, even after a power loss, either the old or the new file is
    there.

    The bytes are written to a temporary name in the same folder and synced; one rename puts them in the place of
    `path`; then the folder is synced. Raises WriteError, and leaves no temporary file. `called` is called after the
    last chunk and returns the path to use, in the same folder, for a file whose name is only known at the end.
    """
    temporary = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.tmp")
    replaced = False
    try:
        _write(temporary, chunks, disk)
        if called is not None:
            path = called()
        disk.rename(temporary, path)
        replaced = True
        disk.sync_folder(path.parent)
    except BaseException as error:
        if not replaced:
            with suppress(OSError):
                disk.remove(temporary)
        if isinstance(error, OSError):
            raise WriteError(path, error, replaced=replaced) from error
        raise


def make_folder(folder: Path, *, disk: Disk = DISK) -> None:
    """Make `folder` if it is missing. Raises WriteError."""
    if os.path.isdir(folder):  # returns False where the path is too long
        return
    try:
        disk.make_folder(folder)
        disk.sync_folder(folder.parent)
    except OSError as error:
        raise WriteError(folder, error) from error


def _write(path: Path, chunks: Iterable[bytes | memoryview], disk: Disk) -> None:
    file = disk.create(path)
    try:
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                rest = rest[disk.write(file, rest) :]
        disk.sync(file)
    finally:
        disk.close(file)
