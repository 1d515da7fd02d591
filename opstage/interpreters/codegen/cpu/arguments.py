"""The arguments of loops in one row of words, once it is known which memory stays where it is."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, final

from ...host import Array, address_of
from .words import ErrorFlag, Word, WorkerScratch


class Patch(NamedTuple):
    """A word that says where one of a call's arrays is, `offset` bytes on."""

    word: int
    array: int
    offset: int


class InScratch(NamedTuple):
    """A word that says where something in a call's scratch is, `offset` bytes on: a slot, or (group, key) of a loop."""

    word: int
    key: Hashable
    offset: int


@final
class ArgumentTable:
    """The words of loops, each with the number of its group, one after the other.

    words       those that are known; 0 where one is put in by a call
    starts      where the words of each loop begin
    patches     words for the arrays of a call, which hold the slots `moving`
    scratch     words for what is in neither these nor `constants`
    flags       words for the flag that an index out of range sets
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
        """A word as far as it is known."""
        if isinstance(word, int):
            return word
        if isinstance(word, ErrorFlag):
            self.flags.append(at)
        elif isinstance(word, WorkerScratch):
            self.scratch.append(InScratch(at, (group, word.key), 0))
        elif word.slot in moving:
            self.patches.append(Patch(at, moving[word.slot], word.offset))
        elif word.slot in constants:
            return address_of(constants[word.slot]) + word.offset
        else:
            self.scratch.append(InScratch(at, word.slot, word.offset))
        return 0
