"""`Meetings`: the collectives of a plan that machine code runs, without Python in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from ....ops.closed import Equation
from ...codegen.cpu.words import Word, address_in
from ...host import Array
from ...mesh.meeting import MEET, MEET_BEGIN, MEET_END, MEETINGS, Direct, direct
from .plan import CpuPlan, HostStep, Step


def is_stored(plan: CpuPlan, slot: int) -> bool:
    """Return whether a slot is stored; unused results are not."""
    return slot in plan.results or slot in plan.offsets or slot in plan.lowered.parts


def meeting_words(plan: CpuPlan, step: Step) -> tuple[Word, ...]:
    """Return the addresses that a meeting reads and writes: of the operands that it begins with, and of the results
    that it ends with; none if machine code cannot run it."""
    if not isinstance(step, HostStep) or step.equation.primitive not in MEETINGS:
        return ()
    e, lowered = step.equation, plan.lowered
    results = () if e.primitive is MEET_BEGIN else e.outputs
    slots = results if e.primitive is MEET_END else (*e.inputs, *results)
    whole = all(slot not in lowered.literals and lowered.views[slot].contiguous for slot in slots)
    if not (whole and all(is_stored(plan, slot) for slot in results)):
        return ()
    return tuple([address_in(lowered, lowered.views[slot]) for slot in slots])


@final
class Meetings:
    """The meetings of a plan bound to memory.

    words   the arguments of the plan's kernels, in which those of each step begin at `starts`
    """

    def __init__(self, plan: CpuPlan, words: Array, starts: Sequence[int]):
        self._words = words
        self._direct: dict[int, Direct] = {}  # by what the first part gives: a flight, or the first result
        self._places: dict[int, tuple[range, range]] = {}  # of the words with the operands and the results
        begun: dict[int, range] = {}
        for step, start in zip(plan.steps, starts):
            count = len(meeting_words(plan, step))
            if count:
                assert isinstance(step, HostStep)
                e, place = step.equation, range(start, start + count)
                if e.primitive is MEET_BEGIN:
                    begun[e.outputs[0]] = place
                elif e.primitive is MEET:
                    self._places[e.outputs[0]] = place[: len(e.inputs)], place[len(e.inputs) :]
                elif e.inputs[0] in begun:
                    self._places[e.inputs[0]] = begun[e.inputs[0]], place

    def run(self, e: Equation, at: int, value: Callable[[int], Array]) -> bool:
        """Run a meeting, or its begin or end, by machine code; return whether that can.

        `at` is the address of the plan's memory, and `value` returns the array of a slot that has memory. Raises the
        errors of `Fabric.exchange`.
        """
        found = self._direct.get(e.inputs[0] if e.primitive is MEET_END else e.outputs[0])
        if found is None:
            return False
        if not (found.exchange.begun if e.primitive is MEET_END else found.begin(at)):
            return False
        if e.primitive is not MEET_BEGIN:
            operands = e.inputs[1:] if e.primitive is MEET_END else e.inputs
            found.end(lambda: [*map(value, operands)], lambda: [*map(value, e.outputs)])
        return True

    def prepare(self, e: Equation) -> None:
        """Let machine code run from now on what has run once, if it can."""
        key = e.outputs[0]
        if e.primitive is not MEET_END and key in self._places and key not in self._direct:
            found = direct(e.primitive, e.static, self._words, *self._places[key])
            if found is not None:
                self._direct[key] = found
