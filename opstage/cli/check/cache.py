"""Outcomes of earlier checks, kept in the user's cache and used while none of their dependencies has changed.

The key of a check is its request (the target, the flags, options and limits), the working directory, the environment,
the versions of Opstage and Python, and the machine. It is valid while every file that it read, every folder that it
listed and every path that it looked up is unchanged: the file itself, its imports, Opstage's own modules, data. See
`witness.py`. Failed checks and checks for a device are never kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ... import __version__
from ...atomic import write_file
from ...forks import usable_cores
from ...interpreters.shape_check.formats import CheckOutcome, from_document, to_document
from ...ops.errors import UsageError
from .fingerprint import OF, PYTHON, forget
from .request import Request

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
