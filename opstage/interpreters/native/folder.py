"""The folder in which machine code is kept between processes.

It is named after a digest of every source file that is compiled: numba itself looks at the file of the outermost
function alone, and would not notice a change in a formula that this calls. It lies in NUMBA_CACHE_DIR if that is set,
else beside this file, else in the user's cache. If none of them can be written to, a warning says so and code is kept
in memory.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_COMPILED = (_HERE, _HERE.parent / "scalar", _HERE.parent / "eager_cpu" / "loops")

compiling = threading.RLock()
"""Held by whoever compiles: numba's setting of the folder is one for the process."""


def kept(compile_with: Callable[[bool], Any]) -> Any:
    """`compile_with(True)` with the folder for machine code in place, `compile_with(False)` if it cannot be used."""
    with compiling:
        folder = cache_folder()
        if folder is not None:
            with _numba_keeps_in(folder), suppress(OSError):  # the disk is full, or the folder was taken away
                try:
                    return compile_with(True)
                except OSError:
                    raise
                except Exception:  # numba does not check what it reads, so a damaged file may raise anything
                    for index in folder.rglob("*.nbi"):
                        index.unlink(missing_ok=True)
                    return compile_with(True)
        return compile_with(False)


@contextmanager
def _numba_keeps_in(folder: Path) -> Iterator[None]:
    config = import_module("numba").config
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


@cache
def cache_folder() -> Path | None:
    """The folder for machine code, made if need be; None, with a warning, when there is none that can be written to."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    bases = [Path(chosen)] if chosen else [_HERE / "__pycache__", Path(home)]
    folders = [base / f"opstage-{compiled_sources()}" for base in bases]
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        return folder
    warnings.warn(
        f"compiled kernels cannot be kept on disk, because {' and '.join(map(str, folders))} cannot be written to; "
        "every process will compile them again. Set NUMBA_CACHE_DIR to a folder that can be written to, or use "
        "Options(fast_kernels=False)",
        stacklevel=2,
    )
    return None


def compiled_sources() -> str:
    """A digest of every source file that is compiled."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in _COMPILED for path in folder.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
