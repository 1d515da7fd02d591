"""`PreparedCall`: a program on the CPU with most of its inputs bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from ...codegen.arena import ALIGNMENT
from ...host import Array, address_of
from .link import Linked
from .plan import CpuPlan

_MOST = 1 << 20
"""The largest arena in bytes: with more computation, looking up addresses takes no noticeable time."""


@final
class PreparedCall:
    """Machine code with all addresses bound except those of some inputs and of the results. For small programs, looking
    up addresses would dominate the time.

    It has its own arena. One call runs at a time; a concurrent call returns None.
    """

    __slots__ = ("_kept", "_patches", "_kinds", "_actions", "_idle")

    def __init__(self, plan: CpuPlan, linked: Linked, inputs: Sequence[Array], varying: Sequence[int]):
        """See `prepare`. `inputs` are packed; those at `varying` only provide shapes and dtypes."""
        memory = np.empty(plan.arena_bytes + ALIGNMENT, np.uint8)
        at = address_of(memory)
        start = -at % ALIGNMENT
        self._kinds = [(tuple(plan.lowered.types[slot].shape), plan.lowered.types[slot].dtype) for slot in plan.results]
        results = [np.empty(*kind) for kind in self._kinds]
        linked.stand(memory[start : start + plan.arena_bytes], at + start)
        patches = linked.put_all([*inputs, *results])
        first = len(inputs)
        moving = [*varying, *range(first, first + len(results))]
        # by varying input, then by result: the argument words with its address, each with an offset in bytes
        self._patches = [patches.get(source, ()) for source in moving]
        self._kept = (memory, tuple(inputs))  # keeps the memory alive, since only addresses are stored below
        self._actions = linked.actions
        self._idle = [linked]

    def __call__(self, inputs: Sequence[Array]) -> list[Array] | None:
        """Return the results as new arrays, given packed arrays for the varying inputs.

        Returns None if another call is running, or if an index was out of range.
        """
        try:
            linked = self._idle.pop()
        except IndexError:
            return None
        results = [np.empty(shape, dtype) for shape, dtype in self._kinds]
        words = linked.words
        for array, patches in zip((*inputs, *results), self._patches):
            at = address_of(array)
            for word, offset in patches:
                words[word] = at + offset
        linked.error[0] = 0
        for action in self._actions:
            action()
        failed = linked.error[0]
        self._idle.append(linked)
        return None if failed else results


def prepare(
    plan: CpuPlan, linked: Linked, inputs: Sequence[Array], varying: Sequence[int]
) -> tuple[PreparedCall, list[int]] | None:
    """Return the prepared call of a plan, and the result at each output; None unless the plan is all machine code.

    inputs    packed arrays: bound ones, and at the positions `varying` examples of shape and dtype
    """
    lowered = plan.lowered
    if plan.aliased or len(inputs) != len(lowered.body.inputs) or not linked.is_native:
        return None
    if plan.arena_bytes > _MOST:
        return None
    numbers = {slot: i for i, slot in enumerate(plan.results)}
    outputs = []
    for slot in lowered.outputs:
        root = None if slot in lowered.literals else lowered.views[slot].root
        if root not in numbers or lowered.views[slot].shape != tuple(lowered.types[root].shape):
            return None
        outputs.append(numbers[root])
    if len(set(outputs)) < len(outputs):
        return None  # two outputs must not share an array
    return PreparedCall(plan, linked, inputs, varying), outputs
