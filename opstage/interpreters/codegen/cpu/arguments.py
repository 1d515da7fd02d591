"""The arguments of a plan's loops as one table of words, with patches for memory that moves between calls."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, final

from ...host import Array, address_of
from .words import ErrorFlag, Scratch, Word


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
        self,
        loops: Iterable[tuple[int, Sequence[Word]]],
        moving: Mapping[int, int],
        constants: Mapping[int, Array],
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
