"""Records everything that a check of a file reads, so that its result can be reused while none of that changes.

Python's audit hooks report every opened file and listed folder, a wrapped `os.stat` every path that is looked up, and
modules know their files. A check that starts a process, opens a connection or writes a file depends on more than files
and is never kept. The time of day and random numbers are not tracked.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any, final

from ... import __version__
from ...files import write_file
from ...interpreters.shape_check.formats.document import CheckOutcome, from_document, to_document
from ...ops.errors import UsageError
from ...source_files import is_own_file
from ...threads import usable_cores
from .request import Request

# Fingerprints ---------------------------------------------------------------------------------------------------------

_LARGEST = 8 << 20
_PYTHON = os.path.dirname(os.__file__) + os.sep
MISSING = "missing"


def is_installed(path: str) -> bool:
    """Whether a file belongs to a library or to Opstage."""
    return not is_own_file(path)


@cache
def content_of(path: str) -> str | None:
    """Return the fingerprint of a file that was read; None for one of Python itself, which its version identifies."""
    if path.startswith(_PYTHON) and "site-packages" not in path and "dist-packages" not in path:
        return None
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return "no file"
        if is_installed(path) or status.st_size > _LARGEST:
            return f"{status.st_size} {status.st_mtime_ns}"
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return MISSING


@cache
def folder_of(path: str) -> str | None:
    """Return the fingerprint of a listed folder, the names in it; None for one of Python itself."""
    if f"{path}{os.sep}".startswith(_PYTHON) and "site-packages" not in path and "dist-packages" not in path:
        return None
    try:
        names = sorted(name for name in os.listdir(path) if name != "__pycache__")
    except OSError:
        return MISSING
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()


@cache
def status_of(path: str) -> str | None:
    """Return the fingerprint of a path that was looked up."""
    if path.startswith(_PYTHON):
        return None
    try:
        status = os.stat(path)
    except OSError:
        return MISSING
    return "folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_mode} {status.st_size} {status.st_mtime_ns}"


def forget() -> None:
    """Clear the caches, so that every path is examined again."""
    for known in (content_of, folder_of, status_of):
        known.cache_clear()


OF = {"content": content_of, "folder": folder_of, "status": status_of}
"""The functions by kind of access."""

PYTHON = f"{sys.version} {sys.executable} {sys.prefix}"


# The cache ------------------------------------------------------------------------------------------------------------

_FORMAT = 1
_MOST = 2000  # the limit of kept checks; beyond it the oldest half is deleted
_OF_THE_TERMINAL = frozenset({"_", "SHLVL", "OLDPWD", "PWD", "COLUMNS", "LINES"})


class Cache:
    """The cache of checks; `folder` is None if nothing is kept."""

    def __init__(self, folder: Path | None):
        self._folder = folder
        forget()

    def get(self, request: Request) -> list[CheckOutcome] | None:
        """Return the outcomes of an earlier check if they are still valid."""
        if self._folder is None or _asks_a_device(request):
            return None
        try:
            kept = json.loads((self._folder / _name(request)).read_text())
            for kind, pairs in kept["read"].items():
                if any(OF[kind](path) != found for path, found in pairs):
                    return None
            return [from_document(document) for document in kept["outcomes"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def keep(self, request: Request, outcomes: Sequence[CheckOutcome], read: Any) -> None:
        """Keep the outcomes of a check with the dependencies in `read`, unless a check failed to run."""
        unusable = any(outcome.unusable is not None for outcome in outcomes)
        if self._folder is None or not read or unusable or _asks_a_device(request):
            return
        kept = {"read": read, "outcomes": [to_document(outcome) for outcome in outcomes]}
        with suppress(OSError, UsageError, UnicodeError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_file(self._folder / _name(request), [json.dumps(kept).encode()])

    def trim(self) -> None:
        """Delete the oldest checks if there are too many."""
        with suppress(OSError):
            every = os.listdir(self._folder) if self._folder is not None else []
            names = [name for name in every if name.endswith(".json")]
            if len(names) > _MOST:
                paths = sorted((Path(str(self._folder), name) for name in names), key=lambda path: path.stat().st_mtime)
                for path in paths[: len(paths) - _MOST // 2]:
                    path.unlink()


def cache_folder() -> Path | None:
    """Return the folder of the cache, or None without a home directory."""
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or ""
    if not os.path.isabs(base):
        home = os.path.expanduser("~") if os.environ.get("HOME") != "" else ""
        if not os.path.isabs(home) or not os.path.isdir(home):
            return None
        base = os.path.join(home, ".cache")
    return Path(base, "opstage", "check")


def _asks_a_device(request: Request) -> bool:
    """Whether the answer depends on a device, which may not always be present."""
    asked = request.asked
    named = (asked.options.get("device"), asked.settings.get("options.device"), os.environ.get("OPSTAGE_DEVICE"))
    return asked.config is not None or any(device not in (None, "cpu") for device in named)


def _name(request: Request) -> str:
    environment = sorted(item for item in os.environ.items() if item[0] not in _OF_THE_TERMINAL)
    machine = [platform.node(), platform.machine(), usable_cores()]  # kernels, and so memory, depend on the processor
    parts = [_FORMAT, __version__, PYTHON, machine, os.getcwd(), request.text(), environment]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest() + ".json"


# What a check reads ---------------------------------------------------------------------------------------------------

_OF_OS = "system exec fork posix_spawn spawn startfile remove rename mkdir rmdir link symlink truncate utime"
_OF_MODULES = "socket subprocess shutil tempfile sqlite3 urllib ftplib http smtplib pty winreg"
_NOT_KEPT = (*[f"os.{name}" for name in _OF_OS.split()], *[f"{name}." for name in _OF_MODULES.split()])
"""How the events begin after which a check is not kept."""
_BYTECODE = f"{os.sep}__pycache__{os.sep}"
_MARGIN = 20_000_000  # ns: file-system clocks lag slightly
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@final
class Witness:
    """Watches this process until it ends; use it in a process that checks one file."""

    def __init__(self, own: Path):
        """Files in the folder `own` belong to the check itself and are ignored."""
        self._own = f"{own}{os.sep}"
        self._started = time.time_ns()
        self._opened: set[str] = set()
        self._listed: set[str] = set()
        self._asked: set[str] = set()
        self._kept = True
        self._watching = True
        sys.addaudithook(self._hear)
        os.stat = self._told(os.stat)
        os.lstat = self._told(os.lstat)

    def read(self) -> dict[str, list[list[str]]] | None:
        """Return everything that the check has read: paths with fingerprints, by kind of access; None if the check must
        not be kept."""
        self._watching = False
        modules = {str(file) for m in list(sys.modules.values()) if (file := getattr(m, "__file__", None))}
        opened = {os.path.abspath(path) for path in self._opened | modules}
        listed = {os.path.abspath(path) for path in (*self._listed, *sys.path_importer_cache, *sys.path)}
        if not self._kept or any(not is_installed(path) and self._is_new(path) for path in opened):
            return None
        found: dict[str, list[list[str]]] = {}
        for kind, paths in (("content", opened), ("folder", listed), ("status", self._asked)):
            stands = {path: OF[kind](path) for path in sorted(paths)}
            found[kind] = [[path, what] for path, what in stands.items() if what is not None]
        return found

    def _is_new(self, path: str) -> bool:
        """Whether a file was changed after the check began, so that the content that was read is unknown."""
        try:
            return os.stat(path).st_mtime_ns >= self._started - _MARGIN
        except OSError:
            return False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._watching:
            return
        try:
            self._note(event, arguments)
        except Exception:  # an invalid path; the caller gets the system's error
            self._kept = False

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if not isinstance(path, int) and path is not None:
                self._note_open(os.path.abspath(os.fsdecode(path)), mode, flags)
        elif event in ("os.listdir", "os.scandir"):
            path = arguments[0]
            self._kept = self._kept and not isinstance(path, int)
            if not isinstance(path, int):
                self._listed.add(os.path.abspath("." if path is None else os.fsdecode(path)))
        elif event == "ctypes.dlopen":
            if isinstance(arguments[0], str) and os.path.isfile(arguments[0]):
                self._opened.add(os.path.abspath(arguments[0]))
        elif event.startswith(_NOT_KEPT):
            self._kept = self._kept and _BYTECODE in f"{arguments[0] if arguments else ''}{os.sep}"  # the folder too

    def _note_open(self, path: str, mode: object, flags: object) -> None:
        if path == os.devnull or path.startswith(self._own):
            return
        if _BYTECODE in path:
            with suppress(ValueError, NotImplementedError):
                self._opened.add(source_from_cache(path))
            return
        writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool(int(str(flags or 0)) & _WRITES)
        self._kept = self._kept and not writes
        self._opened.add(path)

    def _told(self, ask: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def asked(path: Any, *more: Any, **named: Any) -> os.stat_result:
            if self._watching and not isinstance(path, int):
                self._kept = self._kept and named.get("dir_fd") is None
                self._asked.add(os.path.abspath(os.fsdecode(path)))
            return ask(path, *more, **named)

        return asked
