"""Compilation of a plan's kernels on all cores.

llvmlite runs LLVM in one thread at a time, so with many kernels other processes help. They start while this process
still plans and compiles hand-written kernels. They compile the largest sources first and this process the smallest
first; each stores compiled kernels on disk, where the others find them, so none waits for the share of another. If they
fail, this process compiles the remaining kernels.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import final

from ....forks import usable_cores
from ...native.compiler import Kernel, is_known
from ...native.folder import cache_folder
from .texts import LoopSource

_log = logging.getLogger(__name__)

_START = 12
"""The number of kernels that compile in the time that a process takes to start."""

_NEEDED = ("opstage", "numpy", "optree", "typing_extensions", "llvmlite")

# The standard library comes first, so a fractions.py in the current folder or next to the package is not imported.
# PYTHONPATH, PYTHONSTARTUP and sitecustomize.py are ignored too.
_CHILD = f"""import sys
sys.path += sys.argv[1:]
from {__name__} import _main
_main()"""


@final
class Compilation:
    """The compilation of one plan; leaving the context stops all other processes."""

    def __init__(self) -> None:
        self._others: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Compilation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._others:
            process.terminate()
        for process in self._others:
            process.wait()

    def begin(self, texts: Sequence[LoopSource]) -> None:
        """Start other processes on these sources, if there are many."""
        missing = _missing(texts)
        count = min(usable_cores() - 1, len(missing) // _START)
        if count > 0 and cache_folder() is not None:
            try:
                for place in range(count):
                    self._others.append(_elsewhere(missing[place::count]))
            except OSError as error:
                _log.debug("kernels are compiled by fewer processes: %s", error)

    def end(self, texts: Sequence[LoopSource]) -> dict[LoopSource, Kernel]:
        """Return the kernels of all sources, including those of `begin`."""
        if not self._others:
            self.begin(texts)
        for text in reversed(_missing(texts)):
            text.compiled()
        return {text: text.compiled() for text in dict.fromkeys(texts)}


def _missing(texts: Sequence[LoopSource]) -> list[LoopSource]:
    """Return the distinct sources without a cached kernel, the largest first."""
    return sorted((t for t in dict.fromkeys(texts) if not is_known(t.content)), key=lambda text: -len(text.body))


def _elsewhere(texts: Sequence[LoopSource]) -> subprocess.Popen[bytes]:
    """Start a process that compiles these sources."""
    with tempfile.TemporaryFile() as given:  # a pipe would block this process until the other one reads
        given.write(json.dumps(texts).encode())
        given.seek(0)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CHILD, *_roots()],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C only reaches this process, which stops the other one
        )


def _roots() -> list[str]:
    """Return the import paths of the packages that the other process needs."""
    specs = [find_spec(name) for name in _NEEDED]
    origins = [os.path.abspath(spec.origin) for spec in specs if spec is not None and spec.origin]
    packages = [os.path.dirname(origin) if origin.endswith("__init__.py") else origin for origin in origins]
    return list(dict.fromkeys(map(os.path.dirname, packages)))


def _main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # partially written files are removed
    for name, preamble, body, accesses in json.load(sys.stdin):
        text = LoopSource(name, preamble, body, tuple(tuple(each) for each in accesses))
        if not is_known(text.content):
            text.compiled()
