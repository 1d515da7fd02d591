"""A CPU kernel's arguments as its source refers to them: words, and memory accesses."""

from __future__ import annotations

from typing import NamedTuple, final

from ...native import access
from ..printing import from_memory, to_memory
from .words import ErrorFlag, Scratch, Word


class ScopedElements(NamedTuple):
    """Memory with an alias scope; the text `at` is the index of an element, relative to the address `name`_at."""

    name: str
    dtype: str
    scope: str
    at: str


@final
class KernelMemory:
    """The argument words of a kernel, and the memory that they point to.

    head        lines that run once before the loop and compute addresses
    accesses    the load and store functions of the source, see `LoopSource`
    """

    def __init__(self) -> None:
        self.words: list[Word] = []
        self.head: list[str] = []
        self._scopes = 0
        self._names: dict[str, tuple[str, str, str]] = {}

    @property
    def accesses(self) -> tuple[tuple[str, str, str, str], ...]:
        return tuple([(name, *of) for name, of in sorted(self._names.items())])

    def word(self, value: Word) -> str:
        self.words.append(value)
        return f"w[{len(self.words) - 1}]"

    def elements(self, name: str, dtype: str, at: str, *, written: bool) -> ScopedElements:
        """Return named memory; written memory gets its own alias scope."""
        if not written:
            return ScopedElements(name, dtype, access.READ, at)
        self._scopes += 1
        return ScopedElements(name, dtype, access.written(self._scopes - 1), at)

    def scratch(self, name: str, dtype: str, nbytes: int, at: str) -> ScopedElements:
        """Return scratch memory of the worker."""
        nbytes = rounded(nbytes)
        self.head.append(f"{name}_at = {self.word(Scratch(name, nbytes))} + worker * {self.word(nbytes)}")
        return self.elements(name, dtype, at, written=True)

    def load(self, elements: ScopedElements) -> str:
        """Return an expression that loads an element."""
        text = f"{self._access('load', elements)}({elements.name}_at, {elements.at})"
        return from_memory(text, mask=elements.dtype == "bool")

    def store(self, elements: ScopedElements, value: str) -> str:
        stored = to_memory(value, mask=elements.dtype == "bool")
        return f"{self._access('store', elements)}({elements.name}_at, {elements.at}, {stored})"

    def flagged(self) -> str:
        """Return a line that sets the error flag."""
        flag = self._access("store", self.elements("", "int64", "0", written=True))
        return f"{flag}({self.word(ErrorFlag())}, 0, 1)"

    def _access(self, kind: str, elements: ScopedElements) -> str:
        name = f"{kind}_{elements.dtype}_{elements.scope.replace(' ', '_')}"
        self._names[name] = (kind, elements.dtype, elements.scope)
        return name


def rounded(nbytes: int) -> int:
    """Round up to whole cache lines, so that workers do not share them."""
    return -(-nbytes // 64) * 64
