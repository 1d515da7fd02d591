"""Records everything that a check of a file reads, so that its result can be reused while none of that changes.

Python's audit hooks report every opened file and listed folder, a wrapped `os.stat` every path that is looked up, and
modules know their files. A check that starts a process, opens a connection or writes a file depends on more than files
and is never kept. The time of day and random numbers are not tracked.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any, final

from .fingerprint import OF, is_installed

_NOT_KEPT = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.utime",
    "shutil.",
    "tempfile.",
    "sqlite3.",
    "urllib.",
    "ftplib.",
    "http.",
    "smtplib.",
    "pty.",
    "winreg.",
)
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
