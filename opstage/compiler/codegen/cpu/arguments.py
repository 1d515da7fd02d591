"""The source of a generated kernel, and its arguments as words: numbers, or addresses that planning memory resolves."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

from ....ops.host_arrays import Array, address_of
from ...native import access
from ...native.compiler import Kernel, compile_kernel
from ...native.thread_pool import workers
from ..lowering import Lowered
from ..views import View
from .math_functions import namespace

# Source ---------------------------------------------------------------------------------------------------------------


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
        from ...native.frontend import source_of_text

        space = dict(namespace())
        for name, kind, dtype, scope in self.accesses:
            space[name] = (access.load if kind == "load" else access.store)(dtype, scope)
        exec(self.preamble, space)
        return source_of_text(self.body, space)


# Words ----------------------------------------------------------------------------------------------------------------


class Address(NamedTuple):
    """A word: the address of a slot's memory, at `offset` bytes."""

    slot: int
    offset: int


def view_address(lowered: Lowered, view: View) -> Address:
    """Return the address of a view's first element; a part is addressed in its whole's memory."""
    view = lowered.in_memory(view)
    return Address(view.root, view.offset * lowered.types[view.root].dtype.itemsize)


class Scratch(NamedTuple):
    """A word: the address of scratch memory, `nbytes` for each of `parts` of the work, or for each worker where that
    is 0; `key` tells those of a kernel apart."""

    key: str
    nbytes: int
    parts: int = 0

    @property
    def room(self) -> int:
        """Bytes in all."""
        return self.nbytes * (self.parts or workers())


class ErrorFlag(NamedTuple):
    """A word: the address of the flag that is set when an index is out of range."""


Word = int | Address | Scratch | ErrorFlag


class LoweredLoop(NamedTuple):
    """A kernel and its arguments.

    kernel      its source until it is compiled, together with those of other loops
    totals      (scratch, slot) of the sums over rows, which are partial sums in the scratch of each part of the rows
    """

    kernel: Kernel | LoopSource
    tasks: int
    words: tuple[Word, ...]
    totals: tuple[tuple[Scratch, int], ...]


# Tables of words ------------------------------------------------------------------------------------------------------


class Patch(NamedTuple):
    """A word with the address of one of a call's arrays, at `offset` bytes."""

    word: int
    array: int
    offset: int


class InScratch(NamedTuple):
    """A word with an address in a call's scratch memory, at `offset` bytes; `key` is a slot, or (group, key) of a
    loop."""

    word: int
    key: Hashable
    offset: int


@final
class ArgumentTable:
    """The argument words of loops, each with the number of its group, in order.

    words       known values; 0 where a call patches an address
    starts      the first word of each loop
    patches     words for the arrays of a call, which hold the slots `moving`
    scratch     words for memory that is in neither these nor `constants`
    flags       words for the error flag of indices out of range
    """

    def __init__(
        self, loops: Iterable[tuple[int, Sequence[Word]]], moving: Mapping[int, int], constants: Mapping[int, Array]
    ):
        self.words: list[int] = []
        self.starts: list[int] = []
        self.patches: list[Patch] = []
        self.scratch: list[InScratch] = []
        self.flags: list[int] = []
        for group, words in loops:
            self.starts.append(len(self.words))
            for word in words:
                self.words.append(self._known(len(self.words), word, group, moving, constants))

    def _known(self, at: int, word: Word, group: int, moving: Mapping[int, int], constants: Mapping[int, Array]) -> int:
        """Return a word's value if it is known, else register a patch and return 0."""
        if isinstance(word, int):
            return word
        if isinstance(word, ErrorFlag):
            self.flags.append(at)
        elif isinstance(word, Scratch):
            self.scratch.append(InScratch(at, (group, word.key), 0))
        elif word.slot in moving:
            self.patches.append(Patch(at, moving[word.slot], word.offset))
        elif word.slot in constants:
            return address_of(constants[word.slot]) + word.offset
        else:
            self.scratch.append(InScratch(at, word.slot, word.offset))
        return 0
