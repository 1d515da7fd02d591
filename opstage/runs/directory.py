"""The run directory: written by one process at a time, with files that are never partial."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from ..atomic import NO_LINK, TEMPORARY, WriteError, make_folder, write_file
from ..documents import Document
from ..forks import tell_in_child
from ..ops.errors import DtypeError, MeshError, ProgramError, RangeError, ShapeError, UnsupportedError, UsageError
from ..tensors import read_bytes

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
EVENTS = "events.out.tfevents."
"""How TensorBoard's files begin."""

_UNUSABLE = (UsageError, ProgramError, ShapeError, DtypeError, RangeError, UnsupportedError, MeshError)

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
    """A directory locked by this process from `create` or `reopen` until `close`, or the end of a `with` block.

    As with a file, garbage collection releases it too.

    It is an operating-system lock on a file that contains our process id, for the error in other processes. It ends
    with the process, so the directory of a killed run can be taken over.
    """

    def __init__(self, path: Path, lock: FileIO, before: Collection[str] | None = None, *, started: bool = False):
        """`before` are the names that were in a directory which is not new."""
        self.path = path
        self._lock: FileIO | None = lock
        self._before = before
        self.started = started
        """Whether the run has taken a step. An error before the first one, by what is unusable, leaves no run."""
        self._inherited = False
        tell_in_child(self, RunDirectory._in_child)

    def _in_child(self) -> None:
        """Drop the lock in a forked child: it stays with the parent."""
        self._inherited = True
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _require_own(self) -> None:
        if self._inherited:
            raise UsageError(f"{self.path} is being written by the process that this one was forked from")

    @classmethod
    def create(cls, path: Path) -> RunDirectory:
        """Create the directory of a new run. Raises UsageError if it already holds a run or cannot be written."""
        made = not os.path.exists(path)
        try:
            make_folder(path)
            before = None if made else os.listdir(path)
            directory = cls(path, _take(path), before)
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
        """Reopen the directory of a run to continue. Raises UsageError if it holds no run."""
        if not os.path.isfile(path / CONFIG):
            raise UsageError(f"{path} holds no run to resume: it has no {CONFIG}")
        directory = cls(path, _take(path), started=True)
        with suppress(OSError):
            for left in path.iterdir():  # by a run that was killed while writing
                if TEMPORARY.fullmatch(left.name):
                    left.unlink()
        return directory

    def write(self, name: str, data: str | bytes) -> None:
        """Write a file atomically. Raises UsageError, and leaves the old file, on failure."""
        self._require_own()
        if "/" in name:
            make_folder((self.path / name).parent)
        write_file(self.path / name, [data.encode() if isinstance(data, str) else data])

    def abandon(self) -> None:
        """Remove the files of a run that could not start, and release the directory."""
        self._require_own()
        for name in set(os.listdir(self.path)).difference(self._before or ()):
            with suppress(OSError):
                if name in (CHECKPOINT, BEST, SOURCE):
                    shutil.rmtree(self.path / name)
                elif name in (CONFIG, ORIGINS, RUN, METRICS, PLOT, REPORT, PREPARATION) or name.startswith(EVENTS):
                    (self.path / name).unlink()
        self.close()
        if self._before is None:
            with suppress(OSError):
                self.path.rmdir()

    def close(self) -> None:
        """Release the directory."""
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
        if not self.started and isinstance(error, _UNUSABLE):
            self.abandon()
        else:
            self.close()


def _take(path: Path) -> FileIO:
    """Return the locked lock file of a directory."""
    file = path / LOCK
    while True:
        try:
            # in one bytecode, so that no exception can leak an open file, and with it the lock
            (lock,) = map(FileIO, map(os.open, [file], [os.O_RDWR | os.O_CREAT | NO_LINK], [0o644]), ["r+"])
        except OSError as error:
            raise WriteError(file, error) from error
        try:
            try:
                _lock(lock.fileno())
            except OSError:
                raise UsageError(f"{path} is being written by another run{_owner(lock.fileno())}") from None
            if not _is_at(lock.fileno(), file):  # the previous holder has removed it since we opened it
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


# Origins of settings --------------------------------------------------------------------------------------------------

_ADVICE = "without the file the run goes on, and names its config.toml as their origin"


def origins_json(literals: Mapping[str, str], origins: Mapping[str, str]) -> str:
    """Map each dotted path to its value, spelled as TOML, and to where the value came from, as JSON."""
    return json.dumps({path: {"value": literals[path], "origin": origins[path]} for path in literals}, indent=1) + "\n"


def first_origins(file: Path, literals: Mapping[str, str], origins: Mapping[str, str]) -> dict[str, str]:
    """Return the origins kept in `file`; for a value that has changed since, its current one in `origins`.

    An older run has no such file and gets the current origins. Raises `UsageError` for a file that cannot be read.
    """
    if not file.exists():
        return dict(origins)
    document = Document.of(read_bytes(file), f"{file}: cannot be read as the origins of a run's settings", _ADVICE)
    kept = {path: (entry["value"].text(), entry["origin"].text()) for path, entry in document.items()}
    return {
        path: kept[path][1] if path in kept and kept[path][0] == literals[path] else origin
        for path, origin in origins.items()
    }
