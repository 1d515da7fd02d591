"""Files: written completely or not at all, read where a read ends, and plain data from them with its types checked."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from .ops.errors import UsageError, brief

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
    path: Path, chunks: Iterable[bytes | memoryview], *, disk: Disk = DISK, called: Callable[[], Path] | None = None
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


# Paths that can be read to the end: files, and streams that the caller's shell opened for this process ----------------

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


# Plain data from files, with type checks: JSON objects, lists, numbers and texts --------------------------------------

LARGEST = 2**53
"""The largest count accepted: not every JSON reader holds larger integers exactly."""


@final
class Document:
    """A value in a document, and its path there. A value that is not of the requested type is a UsageError."""

    __slots__ = ("value", "where", "advice")

    def __init__(self, value: Any, where: str, advice: str = ""):
        """`where` names the file, and the part of it; `advice` tells the user what to do when the value is wrong."""
        self.value = value
        self.where = where
        self.advice = advice

    @classmethod
    def of(cls, text: str | bytes, where: str, advice: str = "", *, what: str = "JSON") -> Document:
        """Parse JSON text; error messages call the format `what`."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: not {what}: {error or type(error).__name__}{_after(advice)}") from error
        return cls(value, where, advice)

    def __getitem__(self, key: str) -> Document:
        """The value of a required key."""
        if key not in self._object():
            raise self.error(f"there is no {key!r}")
        return self.at(key)

    def get(self, key: str) -> Document | None:
        """The value of a key, None if it is missing or null."""
        return None if self._object().get(key) is None else self.at(key)

    def at(self, key: str) -> Document:
        """The value of an existing key."""
        return Document(self._object()[key], f"{self.where}: {key if len(key) <= 80 else brief(key)}", self.advice)

    def items(self) -> Iterator[tuple[str, Document]]:
        """The keys and values of an object."""
        for key in self._object():
            yield key, self.at(key)

    def elements(self) -> list[Document]:
        """The values of a list."""
        if not isinstance(self.value, (list, tuple)):
            raise self.expected("a list")
        return [Document(value, f"{self.where}[{i}]", self.advice) for i, value in enumerate(self.value)]

    def object(self) -> dict[str, Any]:
        """The object itself, as a dict."""
        return dict(self._object())

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            raise self.expected("a string")
        return self.value

    def count(self) -> int:
        """An integer >= 0."""
        if type(self.value) is not int or not 0 <= self.value <= LARGEST:
            raise self.expected("a whole number from 0 on")
        return self.value

    def number(self) -> float:
        """A number; non-finite numbers are written as by `plain_number`."""
        value = self.value
        if isinstance(value, str) and value in _NOT_FINITE:
            return float(value)
        if type(value) is float:
            return value
        if type(value) is int and abs(value) <= LARGEST:
            return float(value)
        raise self.expected("a number")

    def number_or_null(self) -> float | None:
        """A number, or None for null."""
        return None if self.value is None else self.number()

    def expected(self, what: str) -> UsageError:
        """The error for a value of the wrong type, which names the expected one."""
        return self.error(f"expected {what} but found {brief(self.value)}")

    def error(self, what: str) -> UsageError:
        """An error about this value."""
        return UsageError(f"{self.where}: {what}{_after(self.advice)}")

    def _object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.expected("an object")
        return self.value


def plain_number(value: float) -> float | str:
    """A number in a form that JSON can hold: nan and the infinities become 'nan', 'inf' and '-inf'."""
    return value if math.isfinite(value) else repr(value)


_NOT_FINITE = ("nan", "inf", "-inf")


def _after(advice: str) -> str:
    return f"; {advice}" if advice else ""
