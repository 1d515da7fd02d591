"""Functions that numba compiles for callers in Python, kept on disk as kernels are.

numba has files of its own for that, with an index beside them. They hold no digest, so a damaged one may be run, and
their name says nothing of what a function calls. Here numba's cache writes to `kept` instead.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, final

from .folder import cache_folder, compiling
from .kept import read_kept, write_kept


def kept(compile_with: Callable[[bool], Any]) -> Any:
    """`compile_with(True)` with the folder for machine code in place, `compile_with(False)` if it cannot be used."""
    with compiling:
        folder = cache_folder()
        if folder is not None:
            with _numba_keeps_in(folder), suppress(OSError):  # the disk is full, or the folder was taken away
                try:
                    return compile_with(True)
                except RuntimeError as error:
                    if not str(error).startswith("cannot cache function"):  # numba did not find the folder
                        raise
        return compile_with(False)


@final
class Overloads:
    """In the place of numba's `IndexDataCacheFile`: what one function was compiled to, by its types."""

    __slots__ = ("_folder", "_function")

    def __init__(self, folder: Path, cache_path: str, filename_base: str, source_stamp: Any):
        self._folder = folder
        self._function = f"{cache_path} {filename_base} {source_stamp}"  # its file, its name and line, the file's time

    def load(self, key: Any) -> Any:
        """Load the entry saved under `key`; None without one."""
        text = self._text(key)
        found = read_kept(self._path(text), text)
        return None if found is None else pickle.loads(found)

    def save(self, key: Any, data: Any) -> None:
        """Keep `data`."""
        text = self._text(key)
        write_kept(self._path(text), text, import_module("numba.core.serialize").dumps(data))

    def flush(self) -> None:
        """Nothing: what is out of date has another name."""

    def _text(self, key: Any) -> str:
        return f"{self._function} {key!r}"

    def _path(self, text: str) -> Path:
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.nbc"


@contextmanager
def _numba_keeps_in(folder: Path) -> Iterator[None]:
    config: Any = import_module("numba").config
    caching: Any = import_module("numba.core.caching")
    before = config.CACHE_DIR, caching.IndexDataCacheFile
    config.CACHE_DIR = str(folder)
    caching.IndexDataCacheFile = lambda **names: Overloads(folder, **names)
    try:
        yield
    finally:
        config.CACHE_DIR, caching.IndexDataCacheFile = before
