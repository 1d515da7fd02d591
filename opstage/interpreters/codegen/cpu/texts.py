"""Texts of kernels, and their compilation, two at a time.

llvmlite lets one thread at a time into LLVM, so where there are many texts another process takes some of them, and both
leave what they compile on disk, where they find each other's. If that process fails, this one compiles what is
missing.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from ...native import access
from ...native.compiler import Kernel, compile_kernel, is_known
from ...native.folder import cache_folder
from .namespace import namespace

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


class LoopSource(NamedTuple):
    """A kernel as text.

    preamble    definitions of its constants
    body        `def kernel(lo, hi, worker, arguments): …`
    accesses    (name, "load" or "store", dtype, scope) of the functions with which it reads and writes
    """

    name: str
    preamble: str
    body: str
    accesses: tuple[tuple[str, str, str, str], ...]

    @property
    def content(self) -> str:
        """All that decides what it does."""
        return f"{self.preamble}\n{self.body}\n{self.accesses}"

    def compiled(self) -> Kernel:
        """The kernel, from memory, from disk, or compiled."""
        return compile_kernel(self.name, self.content, self._function, passing=True)

    def _function(self) -> Any:
        frontend = import_module("opstage.interpreters.native.frontend")
        space = dict(namespace())
        for name, kind, dtype, scope in self.accesses:
            space[name] = (access.load if kind == "load" else access.store)(dtype, scope)
        exec(self.preamble, space)
        return frontend.source_of_text(self.body, space)


def compile_texts(texts: Sequence[LoopSource]) -> dict[LoopSource, Kernel]:
    """The kernels of all texts."""
    distinct = list(dict.fromkeys(texts))
    missing = sorted((text for text in distinct if not is_known(text.content)), key=lambda text: -len(text.body))
    other, share = None, set(missing[1::2][: max(0, len(missing) - _START) // 2])
    if share and (os.cpu_count() or 1) > 1 and cache_folder() is not None:
        other = _elsewhere([text for text in missing if text in share])
    try:
        if other is not None:
            for text in missing:
                if text not in share:
                    text.compiled()
            if other.wait() != 0:
                _log.debug("another process compiled none or not all of its kernels")
    finally:
        if other is not None and other.poll() is None:  # this one was interrupted
            other.kill()
            other.wait()
    return {text: text.compiled() for text in distinct}


def _elsewhere(texts: Sequence[LoopSource]) -> subprocess.Popen[bytes] | None:
    """Another process that compiles these texts."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CHILD, *_roots()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process, which ends that one
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(texts).encode())
        process.stdin.close()
    except OSError as error:
        _log.debug("kernels are compiled one at a time: %s", error)
        return None
    return process


def _roots() -> list[str]:
    """The folders from which this process has, or would have, what the other one imports."""
    specs = [find_spec(name) for name in _NEEDED]
    origins = [os.path.abspath(spec.origin) for spec in specs if spec is not None and spec.origin]
    packages = [os.path.dirname(origin) if origin.endswith("__init__.py") else origin for origin in origins]
    return list(dict.fromkeys(map(os.path.dirname, packages)))


def _main() -> None:
    for name, preamble, body, accesses in json.load(sys.stdin):
        LoopSource(name, preamble, body, tuple(tuple(each) for each in accesses)).compiled()
