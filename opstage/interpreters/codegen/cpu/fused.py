"""Composites in one call: the loops that are generated from a decomposition, on arrays at hand.

It is what the compiled interpreter does with a whole program, done with one op: so a composite needs no kernel of its
own to be computed without its parts going to memory one by one. Machine code knows no sizes, so other shapes share it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType
from ...host import Array, address_of, packed
from ...native.compiler import Kernel
from ...native.pool import Schedule, Step, workers
from ..clusters import gather, read_by
from ..decomposition import Expander
from ..formulas import elementwise
from ..legal import Legal
from .source import Address, ErrorFlag, Room
from .steps import NativeStep, cluster_steps
from .target import LOOPS
from .texts import Text, compile_texts

_ALIGNED = 64
_MOST_TABLES = 8


def fused(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> Fused | None:
    """The kernel of a composite for operands of some types; None if its loops cannot do all of it."""
    body = Expander(_has_formula, loops=False).parts(primitive, types, static)
    legal = Legal(body, LOOPS, own_outputs=True)
    units = gather(legal)
    if any(unit.cluster is None for unit in units) or not all(type(slot) is int for slot in legal.outputs):
        return None
    read = read_by(legal, units)
    steps: list[NativeStep] = []
    for number, unit in enumerate(units):
        assert unit.cluster is not None
        kept = [s for s in unit.cluster.levels if s in legal.outputs or read.get(s, set()) - {number}]
        steps += cluster_steps(legal, unit, number, kept)
    return Fused(legal, steps)


def _has_formula(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> bool:
    return elementwise(primitive, types, types[0])


class _Patch(NamedTuple):
    """A word that says where one of a call's arrays is, `offset` bytes on: operands, then results, then the scratch."""

    word: int
    array: int
    offset: int


@final
class Fused:
    """A composite's loops for operands of some shapes; a call makes new results and is safe in any number of threads.

    scratch     bytes that a call takes besides them
    """

    __slots__ = ("scratch", "_results", "_steps", "_words", "_patches", "_constants", "_idle")

    def __init__(self, legal: Legal, steps: Sequence[NativeStep]):
        kernels = compile_texts([step.loop.kernel for step in steps if isinstance(step.loop.kernel, Text)])
        operands = {slot: i for i, slot in enumerate(legal.body.inputs)}
        places = {**operands, **{slot: len(operands) + i for i, slot in enumerate(legal.outputs)}}
        self._results: list[tuple[Any, Any]] = [(legal.types[s].shape, legal.types[s].dtype) for s in legal.outputs]
        self._constants = {slot: packed(value) for slot, value in legal.constants.items()}
        scratch: dict[Hashable, int] = {}
        size = 0
        words: list[int] = []
        self._patches: list[_Patch] = []
        self._steps: list[tuple[Kernel, int, int, int, bool]] = []
        for step in steps:
            kernel = kernels[step.loop.kernel] if isinstance(step.loop.kernel, Text) else step.loop.kernel
            self._steps.append((kernel, step.loop.tasks, len(words), len(step.loop.words), step.parallel))
            for word in step.loop.words:
                if isinstance(word, int):
                    words.append(word)
                    continue
                assert not isinstance(word, ErrorFlag)
                if isinstance(word, Address) and word.slot in self._constants:
                    words.append(address_of(self._constants[word.slot]) + word.offset)
                    continue
                if isinstance(word, Address) and word.slot in places:
                    patch = _Patch(len(words), places[word.slot], word.offset)
                else:
                    key: Hashable = (step.unit, word.key) if isinstance(word, Room) else word.slot
                    if key not in scratch:
                        scratch[key] = size
                        size += -(-_nbytes(word, legal) // _ALIGNED) * _ALIGNED
                    patch = _Patch(len(words), len(places), scratch[key] + getattr(word, "offset", 0))
                self._patches.append(patch)
                words.append(0)
        self.scratch = size
        self._words = words
        self._idle: list[_Table] = []

    def __call__(self, *operands: Array) -> tuple[Array, ...]:
        """The results for `operands`, arrays of the types that this was made for."""
        read = [packed(x) for x in operands]
        results = [np.empty(shape, dtype) for shape, dtype in self._results]
        at = [address_of(x) for x in (*read, *results)]
        if self.scratch:
            scratch = np.empty(self.scratch + _ALIGNED, np.uint8)
            at.append(-(-address_of(scratch) // _ALIGNED) * _ALIGNED)
        try:
            table = self._idle.pop()
        except IndexError:  # the first call, or other threads are in this one
            table = _Table(self._words, self._steps)
        view = table.view
        for word, array, offset in self._patches:
            view[word] = at[array] + offset
        table.action()
        if len(self._idle) < _MOST_TABLES:
            self._idle.append(table)
        return tuple(results)


def _nbytes(word: Room | Address, legal: Legal) -> int:
    if isinstance(word, Room):
        return word.nbytes * workers()
    nbytes: Any = legal.types[word.slot].nbytes
    return int(nbytes)


@final
class _Table:
    """The words of one call at a time, and what runs it."""

    __slots__ = ("view", "action", "_schedule")

    def __init__(self, words: Sequence[int], steps: Sequence[tuple[Kernel, int, int, int, bool]]):
        array = np.array(words, np.int64)
        arguments = array.view(np.uint64)
        self.view: Any = memoryview(array)  # type: ignore[arg-type]
        self._schedule = Schedule(
            [Step(kernel, tasks, arguments[at : at + n], parallel) for kernel, tasks, at, n, parallel in steps]
        )
        self.action = self._schedule.action
