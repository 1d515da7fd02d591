"""The kernels of a plan's texts, compiled on all cores.

llvmlite lets one thread at a time into LLVM, so where there are many texts other processes help. They begin while
this one still plans, and compiles what is written by hand. They go through the texts from the largest on and this one
from the smallest on, and each leaves what it compiles on disk, where the others find it: so nobody waits for anybody's
share. If they fail, this process compiles what is missing.
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

from ...native.compiler import Kernel, is_known
from ...native.folder import cache_folder
from .texts import LoopSource

_log = logging.getLogger(__name__)

_START = 12
"""So many kernels are compiled while another process starts."""

_NEEDED = ("opstage", "numpy", "optree", "typing_extensions", "llvmlite")

# Python's own modules come first: a fractions.py in the current folder, or beside the package, is not run. Nor is what
# PYTHONPATH, PYTHONSTARTUP or a sitecustomize.py say.
_CHILD = f"""import sys
sys.path += sys.argv[1:]
from {__name__} import _main
_main()"""


@final
class Compilation:
    """The compilation of one plan; on leaving it no other process is at work any more."""

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
        """Have other processes compile these texts, if they are many."""
        missing = _missing(texts)
        count = min((os.cpu_count() or 1) - 1, len(missing) // _START)
        if count > 0 and cache_folder() is not None:
            try:
                for place in range(count):
                    self._others.append(_elsewhere(missing[place::count]))
            except OSError as error:
                _log.debug("kernels are compiled by fewer processes: %s", error)

    def end(self, texts: Sequence[LoopSource]) -> dict[LoopSource, Kernel]:
        """The kernels of all texts, those of `begin` and others."""
        if not self._others:
            self.begin(texts)
        for text in reversed(_missing(texts)):
            text.compiled()
        return {text: text.compiled() for text in dict.fromkeys(texts)}


def _missing(texts: Sequence[LoopSource]) -> list[LoopSource]:
    """The distinct texts that no kernel is known for, the largest first."""
    return sorted((t for t in dict.fromkeys(texts) if not is_known(t.content)), key=lambda text: -len(text.body))


def _elsewhere(texts: Sequence[LoopSource]) -> subprocess.Popen[bytes]:
    """Another process that compiles these texts."""
    with tempfile.TemporaryFile() as given:  # a pipe would make this process wait until that one reads
        given.write(json.dumps(texts).encode())
        given.seek(0)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CHILD, *_roots()],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process, which ends that one
        )


def _roots() -> list[str]:
    """The folders from which this process has, or would have, what the other one imports."""
    specs = [find_spec(name) for name in _NEEDED]
    origins = [os.path.abspath(spec.origin) for spec in specs if spec is not None and spec.origin]
    packages = [os.path.dirname(origin) if origin.endswith("__init__.py") else origin for origin in origins]
    return list(dict.fromkeys(map(os.path.dirname, packages)))


def _main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # a file that is half written is removed
    for name, preamble, body, accesses in json.load(sys.stdin):
        text = LoopSource(name, preamble, body, tuple(tuple(each) for each in accesses))
        if not is_known(text.content):
            text.compiled()
