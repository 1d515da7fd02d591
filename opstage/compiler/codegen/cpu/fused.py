"""Composites as fused loops: generated from a decomposition, and called on concrete arrays.

This does for one op what the compiled interpreter does for a program, so a composite is computed without writing its
intermediate values to memory, and without a kernel of its own. Machine code has no sizes, so other shapes share it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from itertools import chain, starmap
from struct import Struct
from typing import Any, NamedTuple, final

import numpy as np

from ....ops.errors import RangeError
from ....ops.host_arrays import DATA, READABLE, Array, address_of, all_packed, packed
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType
from ...native import access
from ...native.compiler import Kernel
from ...native.pool import KernelCall, KernelSequence
from ..arena import Item, arrange
from ..clusters import read_by
from ..decomposition import Expander
from ..formulas import ASSEMBLE, ROW_MAX, ROW_SUM, has_formula
from ..fusion import fuse
from ..lowered import Lowered
from ..views import merged
from .arguments import ArgumentTable, LoopSource, Patch, Scratch
from .kernels import LOOPS, AlikeClusters, NativeStep, cluster_steps

_MOST_TABLES = 8


def fused(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> FusedLoops | None:
    """Return the kernel of a composite for operand types; None if loops cannot compute all of it."""
    if not READABLE:
        return None
    body = Expander(has_formula, loops=False).body(primitive, types, static)
    lowered = Lowered(body, LOOPS, own_outputs=True)
    groups = fuse(lowered)
    if any(group.cluster is None and group.equations[0].primitive is not ASSEMBLE for group in groups):
        return None
    if not _by_rows(lowered):
        return None
    read, results, alike = read_by(lowered, groups), _results(lowered), AlikeClusters()
    loops = [
        cluster_steps(lowered, group, number, read, results, alike)
        for number, group in enumerate(groups)
        if group.cluster is not None
    ]
    return FusedLoops(lowered, [*chain(*loops)])


def _by_rows(lowered: Lowered) -> bool:
    """Return whether all reduced rows are contiguous in memory; otherwise NumPy is as fast."""
    views = [lowered.views[e.inputs[0]] for e in lowered.equations if e.primitive in (ROW_SUM, ROW_MAX)]
    return all(axes[-1][1] <= 1 for view in views if (axes := merged(view.shape, view.strides)))


def _results(lowered: Lowered) -> list[int]:
    """Return the root slot with the elements of each result; its shape may differ."""
    return [lowered.views[slot].root for slot in lowered.outputs]


class _LoopCall(NamedTuple):
    """A step of a call: its kernel (compiled on first use), its tasks, and its argument words."""

    kernel: Kernel | LoopSource
    tasks: int
    first: int
    many: int
    parallel: bool

    def step(self, words: Any) -> KernelCall:
        """Return the step, with its part of a call's argument words."""
        kernel = self.kernel if isinstance(self.kernel, Kernel) else self.kernel.compiled()
        return KernelCall(kernel, self.tasks, words[self.first : self.first + self.many], self.parallel)


@final
class FusedLoops:
    """A composite's loops for operands of some shapes. Calls return new arrays and are thread-safe.

    The loops are compiled in the first call.

    scratch     bytes of temporary memory per call
    """

    __slots__ = ("scratch", "_results", "_steps", "_words", "_flags", "_patches", "_constants", "_idle")

    def __init__(self, lowered: Lowered, steps: Sequence[NativeStep]):
        operands = {slot: i for i, slot in enumerate(lowered.body.inputs)}
        places = {**operands, **{root: len(operands) + i for i, root in enumerate(_results(lowered))}}
        self._results: list[tuple[Any, Any]] = [
            (lowered.types[s].shape, lowered.types[s].dtype) for s in lowered.outputs
        ]
        self._constants = {slot: packed(value) for slot, value in lowered.constants.items()}
        arguments = ArgumentTable([(step.group, step.loop.words) for step in steps], places, self._constants)
        self._steps = [
            _LoopCall(step.loop.kernel, step.loop.tasks, first, len(step.loop.words), step.parallel)
            for step, first in zip(steps, arguments.starts)
        ]
        sizes: dict[Hashable, Any] = {
            key: lowered.types[key].nbytes for _, key, _ in arguments.scratch if isinstance(key, int)
        }
        for step in steps:
            own = [word for word in step.loop.words if isinstance(word, Scratch)]
            sizes.update({(step.group, word.key): word.room for word in own})
        offsets, self.scratch = arrange([Item(key, nbytes, 0, 0) for key, nbytes in sizes.items()])
        self._patches = arguments.patches
        self._patches += [Patch(at, len(places), offsets[key] + offset) for at, key, offset in arguments.scratch]
        self._words, self._flags = arguments.words, arguments.flags
        self._idle: list[_Table] = []

    def __call__(self, *operands: Array) -> tuple[Array, ...]:
        """Return the results for `operands`, which must have the types that this was made for.

        Raises RangeError, without op and operand, if an index is out of range.
        """
        results, arrays = self.memory(*operands)
        try:
            table = self._idle.pop()
        except IndexError:  # the first call, or concurrent calls in other threads
            table = _Table(self._words, self._flags, self._patches, self._steps)
        table.name(*map(id, arrays))
        table.action()
        found = table.error[0] if self._flags else 0
        if found:
            table.error[0] = 0
        if len(self._idle) < _MOST_TABLES:
            self._idle.append(table)
        if found:
            raise RangeError("an index is out of range")
        return results

    def memory(self, *operands: Array) -> tuple[tuple[Array, ...], list[Array]]:
        """Return new result arrays, and all arrays of a call in the order of patches."""
        results = tuple(starmap(np.empty, self._results))
        arrays = [*all_packed(operands), *results]
        if self.scratch:
            arrays.append(np.empty(self.scratch, np.uint8))
        return results, arrays


# Argument words are patched by machine code: in Python, that would take longer than the loops on small operands.
_PLACE = LoopSource(
    "place",
    f"data = int64({DATA})",
    """def kernel(lo, hi, worker, arguments):
    w = int64s(arguments, 3)
    for i in range(lo, hi):
        array = load(w[0], load(w[1], 3 * i + 1))
        store(w[2], load(w[1], 3 * i), load(array + data, 0) + load(w[1], 3 * i + 2))""",
    (("load", "load", "int64", access.READ), ("store", "store", "int64", access.written(0))),
)


@final
class _Table:
    """The argument table of one call at a time, with the machine code that runs it. `name` sets its arrays, by id."""

    __slots__ = ("name", "action", "error", "_kept")

    def __init__(
        self,
        words: Sequence[int],
        flags: Sequence[int],
        patches: Sequence[Patch],
        steps: Sequence[_LoopCall],
    ):
        self.error = np.zeros(1, np.int64)
        arguments = np.array(words, np.int64)
        arguments[[*flags]] = address_of(self.error)
        patch = np.array(patches, np.int64)
        arrays = np.zeros(1 + max(p.array for p in patches), np.int64)
        place = np.array([address_of(x) for x in (arrays, patch, arguments)], np.int64)
        moved = arguments.view(np.uint64)
        schedule = KernelSequence(
            [
                KernelCall(_PLACE.compiled(), len(patches), place.view(np.uint64), False),
                *[loop.step(moved) for loop in steps],
            ]
        )
        self.name = partial(Struct(f"{len(arrays)}q").pack_into, memoryview(arrays), 0)  # type: ignore[arg-type]
        self.action = schedule.action
        self._kept = schedule, arrays, patch
