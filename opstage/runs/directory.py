"""The run directory, written by one process at a time with files that are never partial, and its run.json."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np

from .. import __version__
from ..data import Dataset
from ..data.preparation import Preparation
from ..files import NO_LINK, TEMPORARY, Document, WriteError, make_folder, write_file
from ..ops.errors import DtypeError, MeshError, ProgramError, RangeError, ShapeError, UnsupportedError, UsageError
from ..safetensors_files import read_bytes
from ..threads import tell_in_child

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
            raise UsageError(f"{path}: cannot be resumed: {CONFIG} is missing")
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
            lock = FileIO(os.open(file, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644), "r+")
        except OSError as error:
            raise WriteError(file, error) from error
        try:
            try:
                _lock(lock.fileno())
            except OSError:
                raise UsageError(f"{path} is being written by another run{_owner(lock.fileno())}") from None
            if not _is_same_file(lock.fileno(), file):  # the previous holder has removed it since we opened it
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


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> str:
    pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return f", process {pid}" if pid else ""


# Origins of settings --------------------------------------------------------------------------------------------------

_ADVICE = "without the file the run continues, and names its config.toml as their origin"


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


# run.json: the versions, machine, seed and data of a run, so that it can be reproduced --------------------------------

PACKAGES = ("numpy", "numba", "llvmlite", "optree", "safetensors")
THREADS = ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

UNSCALED = "held_out_unscaled"
"""The key in run.json of the digest of the held-out data before scaling, if they are scaled."""

FORMAT = 1
"""The format of a run directory; without an entry it is the first format."""

_ROWS = 4096


def describe_run(
    *, seed: int, model: str, parameters: int, data: Mapping[str, Any], source: Mapping[str, str]
) -> dict[str, Any]:
    """Return everything but the configuration: versions, machine, seed, the model's size and the digests of its files
    and of the data."""
    return {
        "format": FORMAT,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        **({"commit": commit} if (commit := _commit()) else {}),
        "model": model,
        "parameters": parameters,
        "seed": seed,
        "data": dict(data),
        **({"source": dict(source)} if source else {}),
        "versions": versions_here(),
        "machine": {"platform": platform.platform(), "processors": os.cpu_count(), "blas": _blas()},
        "environment": {name: os.environ[name] for name in THREADS if name in os.environ},
    }


def versions_here() -> dict[str, str]:
    """Return the versions of Opstage, Python and the packages that numbers depend on."""
    versions = {"opstage": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _commit() -> str:
    """Return the git commit of the current folder, with `, changed` if files differ from it; "" outside of git."""
    try:
        asked: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 5, "check": True}
        commit = subprocess.run(["git", "rev-parse", "HEAD"], **asked).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **asked).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{commit}, changed" if changed else commit


def run_document(path: Path) -> Document:
    """Return the description that `describe_run` made, read from its file.

    Raises `UsageError` for a file that is not JSON, and for a run directory of another format.
    """
    document = Document.of(
        read_bytes(path), f"{path}: cannot be read as the description of a run", "restore it from a copy"
    )
    found = document.get("format")
    if found is not None and found.count() != FORMAT:
        raise UsageError(
            f"{path}: is of format {found.count()}, written by Opstage {_writer(document)}; this is Opstage "
            f"{__version__}, which reads format {FORMAT}: use the version that wrote it"
        )
    return document


def other_version(directory: Path) -> str:
    """Return a sentence if the run in a directory was started with another version of Opstage; else, or without a
    description, "". Raises `UsageError`."""
    path = directory / RUN
    began = _writer(run_document(path)) if path.exists() else __version__
    if began == __version__:
        return ""
    return f"{directory} was started with Opstage {began} and this is {__version__}: numbers may differ"


def _writer(document: Document) -> str:
    """Return the version of Opstage in a description."""
    versions = document.get("versions")
    writer = None if versions is None else versions.get("opstage")
    return "of an unknown version" if writer is None else writer.text()


def read_run(path: Path) -> dict[str, Any]:
    """Read the description made by `describe_run` from its file. Raises `UsageError`."""
    document = run_document(path)
    return {**document.object(), "data": read_digests(document["data"])}


def read_preparation(directory: Path) -> Preparation | None:
    """Return the preparation that a run has learned from its data file, or None. Raises UsageError."""
    file = directory / PREPARATION
    if file.exists() and not (directory / RUN).exists():
        raise UsageError(
            f"{directory / RUN}: is missing, and with it the description of the run's data; restore it from a copy"
        )
    digest = read_run(directory / RUN).get("preparation") if (directory / RUN).exists() else None
    if not file.exists() and digest is None:
        return None
    text = read_bytes(file) if file.exists() else None
    if text is None or hashlib.sha256(text).hexdigest() != digest:
        what = "is missing" if text is None else "has changed"
        raise UsageError(
            f"{file}: {what}, without which the run's data cannot be read in the same way; restore it from a copy"
        )
    return Preparation.of(Document.of(text, str(file), "restore it from a copy"))


def read_digests(document: Document) -> dict[str, dict[str, Any]]:
    """Return the digests of the data by part, as `data_digest` returns them. Raises `UsageError`."""
    return {
        part: {"rows": digest["rows"].count(), "arrays": {name: text.text() for name, text in digest["arrays"].items()}}
        for part, digest in document.items()
    }


def show_digest(part: Mapping[str, Any]) -> str:
    """Describe a part of the data, with abbreviated checksums: `1438 rows (x <f4 [1438, 64] sha256:0123456789ab)`."""
    arrays = ", ".join(f"{name} {_short(text)}" for name, text in part["arrays"].items())
    return f"{part['rows']} rows ({arrays})"


def _short(digest: str) -> str:
    head, mark, digits = digest.partition("sha256:")
    return f"{head}{mark}{digits[:12]}"


def data_digest(dataset: Dataset) -> dict[str, Any]:
    """Return the number of rows, and for each array its type and the SHA-256 of its bytes: equal for equal data,
    wherever stored."""
    arrays = {
        name: f"{array.dtype.str} {list(array.shape)} sha256:{_digest(array)}"
        for name, array in zip(dataset.names, dataset.arrays)
    }
    return {"rows": len(dataset), "arrays": arrays}


def _digest(array: Any) -> str:
    """Hash some rows at a time: the windows of a text overlap, and all at once would be many times the text."""
    digest = hashlib.sha256()
    for start in range(0, len(array), _ROWS):
        digest.update(np.ascontiguousarray(array[start : start + _ROWS]).tobytes())
    return digest.hexdigest()


def _blas() -> list[str]:
    from threadpoolctl import threadpool_info

    return [
        f"{library['internal_api']} {library.get('version')}, {library.get('architecture', 'unknown')}, "
        f"{library['num_threads']} threads"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
