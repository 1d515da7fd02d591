"""Results that alias donated inputs, and the schedule that makes such in-place writes safe."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...codegen.clusters import Unit
from ...codegen.cpu.overwritable import Overwritable
from ...codegen.legal import Legal


def alias_results(
    legal: Legal,
    units: Sequence[Unit],
    read: Mapping[int, Collection[int]],
    results: Collection[int],
    donated: Collection[int],
    fallible: Collection[int],
) -> tuple[dict[int, int], list[int]]:
    """The donated input that each result aliases, and the units in their new order.

    read        the units that read a root, by their numbers
    fallible    the units that may find an error

    A unit that writes over inputs is done after all that may fail and after all others that read those inputs: until
    the first of them begins the inputs are whole, and from there on nothing can fail. It is one that nobody reads.
    """
    given_out = {legal.views[slot].root for slot in legal.outputs if slot not in legal.literals and slot in legal.views}
    free = set(donated) - given_out
    last = max(fallible, default=-1)
    candidates = {
        number: [slot for slot in slots if slot in results and slot not in legal.parts]
        for number, unit in enumerate(units)
        if unit.cluster is not None and number not in fallible
        for slots in [[slot for e in unit.equations for slot in e.outputs]]
        if not any(set(read.get(slot, ())) - {number} for slot in slots)
    }
    aliased: dict[int, int] = {}
    after: dict[int, int] = {}
    for number, slots in candidates.items():
        unit = units[number]
        assert unit.cluster is not None
        overwritable = Overwritable(unit.cluster, unit.equations)
        for slot in slots:
            for root in overwritable.by(slot):
                others = set(read.get(root, ())) - {number}
                # Two that read each other's inputs could not both be done after the other.
                if root in free and legal.types[root] == legal.types[slot] and not others & candidates.keys():
                    aliased[slot] = root
                    free.remove(root)
                    after[number] = max([after.get(number, last), number, *others])
                    break
    order: list[int] = []
    waiting = sorted(after, key=lambda number: (after[number], number))
    for number in range(len(units)):
        if number not in after:
            order.append(number)
        while waiting and after[waiting[0]] <= number:
            order.append(waiting.pop(0))
    return aliased, order
