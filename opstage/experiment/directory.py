"""The run directory: one process writes it at a time, and every file in it is whole."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from ..atomic import NO_LINK, TEMPORARY, WriteError, make_folder, write_file
from ..forks import tell_in_child
from ..ops.errors import UsageError

CONFIG = "config.toml"
ORIGINS = "origins.json"
RUN = "run.json"
METRICS = "metrics.jsonl"
PLOT = "loss.png"
REPORT = "report.html"
CHECKPOINT = "checkpoint"
PREPARATION = "preparation.json"
BEST = "best"
SOURCE = "source"
LOCK = "lock"

if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@final
class RunDirectory:
    """A directory held by this process from `create` or `reopen` to `close`, or to the end of a `with` block.

    Like a file it is let go, too, when nobody has this object any more.

    The lock is the operating system's, on a file that holds our process id for whoever is refused; it dies with its
    process, so what a killed run leaves behind is taken over.
    """

    def __init__(self, path: Path, lock: FileIO, made: bool):
        self.path = path
        self._lock: FileIO | None = lock
        self._made = made
        self._written: list[str] = []
        self._inherited = False
        tell_in_child(self, RunDirectory._in_child)

    def _in_child(self) -> None:
        """In a process forked from the one that holds it: the lock stays with that one, and ends with it."""
        self._inherited = True
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _require_own(self) -> None:
        if self._inherited:
            raise UsageError(f"{self.path} is being written by the process that this one was forked from")

    @classmethod
    def create(cls, path: Path) -> RunDirectory:
        """A directory for a new run; a `UsageError` when it holds a run already or cannot be written."""
        made = not os.path.exists(path)
        try:
            make_folder(path)
            directory = cls(path, _take(path), made)
        except UsageError:
            if made:
                with suppress(OSError):
                    path.rmdir()
            raise
        if os.path.exists(path / CONFIG):
            directory.close()
            raise UsageError(
                f"{path} holds a run already; continue it with --resume {path}, in Python resume=True, or choose "
                "another --out"
            )
        return directory

    @classmethod
    def reopen(cls, path: Path) -> RunDirectory:
        """The directory of a run that is to be continued; a `UsageError` when it holds none."""
        if not os.path.isfile(path / CONFIG):
            raise UsageError(f"{path} holds no run to resume: it has no {CONFIG}")
        directory = cls(path, _take(path), False)
        with suppress(OSError):
            for left in path.iterdir():  # by a run that was killed while it wrote
                if TEMPORARY.fullmatch(left.name):
                    left.unlink()
        return directory

    def write(self, name: str, data: str | bytes) -> None:
        """Write a file whole, or leave it as it was and raise a `UsageError`."""
        self._require_own()
        if not (self.path / name).exists():
            self._written.append(name)
        if "/" in name:
            make_folder((self.path / name).parent)
        write_file(self.path / name, [data.encode() if isinstance(data, str) else data])

    def abandon(self) -> None:
        """Take back what was written for a run that could not start, and let go of the directory."""
        self._require_own()
        for name in self._written:
            with suppress(OSError):
                (self.path / name).unlink()
                for folder in Path(name).parents[:-1]:
                    (self.path / folder).rmdir()
        self.close()
        if self._made:
            with suppress(OSError):
                self.path.rmdir()

    def close(self) -> None:
        """Let another process have the directory."""
        if self._lock is not None:
            with suppress(OSError):
                (self.path / LOCK).unlink()
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _take(path: Path) -> FileIO:
    """The locked lock file of a directory."""
    file = path / LOCK
    while True:
        try:
            # in one bytecode: whatever is raised, nobody is left with an open file, and so a lock, that he cannot close
            (lock,) = map(FileIO, map(os.open, [file], [os.O_RDWR | os.O_CREAT | NO_LINK], [0o644]), ["r+"])
        except OSError as error:
            raise WriteError(file, error) from error
        try:
            try:
                _lock(lock.fileno())
            except OSError:
                raise UsageError(f"{path} is being written by another run{_owner(lock.fileno())}") from None
            if not _is_at(lock.fileno(), file):  # the one who held it has removed it since we opened it
                lock.close()
                continue
            try:
                os.ftruncate(lock.fileno(), 0)
                os.pwrite(lock.fileno(), f"{os.getpid()}\n".encode(), 0)
            except OSError as error:
                with suppress(OSError):
                    file.unlink()
                raise WriteError(file, error) from error
        except BaseException:
            lock.close()
            raise
        return lock


def _is_at(descriptor: int, path: Path) -> bool:
    ours = os.fstat(descriptor)
    try:
        theirs: Any = path.stat()
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


def _owner(descriptor: int) -> str:
    pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return f", process {pid}" if pid else ""
