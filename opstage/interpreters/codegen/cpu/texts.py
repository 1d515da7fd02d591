"""The source of kernels, and their compilation."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from ...native import access
from ...native.compiler import Kernel, compile_kernel
from .namespace import namespace


class LoopSource(NamedTuple):
    """The source of a kernel.

    preamble    definitions of its constants
    body        `def kernel(lo, hi, worker, arguments): …`
    accesses    (name, "load" or "store", dtype, scope) of its load and store functions
    """

    name: str
    preamble: str
    body: str
    accesses: tuple[tuple[str, str, str, str], ...]

    @property
    def content(self) -> str:
        """The text that determines the compiled code."""
        return f"{self.preamble}\n{self.body}\n{self.accesses}"

    def compiled(self) -> Kernel:
        """Return the kernel from memory, from disk, or by compiling it."""
        return compile_kernel(self.name, self.content, self._function, passing=True)

    def _function(self) -> Any:
        frontend = import_module("opstage.interpreters.native.frontend")
        space = dict(namespace())
        for name, kind, dtype, scope in self.accesses:
            space[name] = (access.load if kind == "load" else access.store)(dtype, scope)
        exec(self.preamble, space)
        return frontend.source_of_text(self.body, space)
