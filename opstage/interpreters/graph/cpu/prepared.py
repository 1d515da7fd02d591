"""`PreparedCall`: a program on the CPU whose inputs stay where they are, but for a few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from ...codegen.arena import ALIGNMENT
from ...host import Array, address_of
from .link import Linked
from .plan import CpuPlan

_MOST = 1 << 20
"""Bytes that one may keep for its intermediate results; where more are computed finding addresses is nothing."""


@final
class PreparedCall:
    """Machine code with every address in its place but those of some inputs and of the results: what a call of few
    numbers takes is mostly what finding the others would.

    It has memory of its own. One call runs at a time; another one that begins meanwhile gets None.
    """

    __slots__ = ("_kept", "_patches", "_kinds", "_actions", "_idle")

    def __init__(self, plan: CpuPlan, linked: Linked, inputs: Sequence[Array], varying: Sequence[int]):
        """See `prepare`. `inputs` are packed; those at `varying` say shapes and dtypes alone."""
        memory = np.empty(plan.arena_bytes + ALIGNMENT, np.uint8)
        at = address_of(memory)
        start = -at % ALIGNMENT
        self._kinds = [(tuple(plan.lowered.types[slot].shape), plan.lowered.types[slot].dtype) for slot in plan.results]
        results = [np.empty(*kind) for kind in self._kinds]
        linked.stand(memory[start : start + plan.arena_bytes], at + start)
        patches = linked.put_all([*inputs, *results])
        first = len(inputs)
        moving = [*varying, *range(first, first + len(results))]
        # by varying input, then by result: the words that hold its address, and the bytes from there on
        self._patches = [patches.get(source, ()) for source in moving]
        self._kept = (memory, tuple(inputs))  # only their addresses stand below
        self._actions = linked.actions
        self._idle = [linked]

    def __call__(self, inputs: Sequence[Array]) -> list[Array] | None:
        """The results, arrays of the caller's own, for packed arrays in the place of the inputs that vary.

        None where there is none: another call is running, or an index was out of range.
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
    """The prepared call of a plan, and which of its results each output is; None where it is not all machine code.

    inputs    packed arrays: those that stay, and at the positions `varying` some of the shapes and dtypes to come
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
        return None  # one result at two places would be one array
    return PreparedCall(plan, linked, inputs, varying), outputs
