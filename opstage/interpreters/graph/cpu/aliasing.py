"""Results that alias donated inputs, and the schedule that makes such in-place writes safe."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...codegen.clusters import FusionGroup
from ...codegen.cpu.overwritable import Overwritable
from ...codegen.lowered import Lowered


def alias_results(
    lowered: Lowered,
    groups: Sequence[FusionGroup],
    read: Mapping[int, Collection[int]],
    results: Collection[int],
    donated: Collection[int],
    fallible: Collection[int],
) -> tuple[dict[int, int], list[int]]:
    """The donated input that each result aliases, and the groups in their new order.

    read        the groups that read a root, by their numbers
    fallible    the groups that may find an error

    A group that writes over inputs is done after all that may fail and after all others that read those inputs: until
    the first of them begins the inputs are whole, and from there on nothing can fail. It is one that nobody reads.
    """
    given_out = {
        lowered.views[slot].root for slot in lowered.outputs if slot not in lowered.literals and slot in lowered.views
    }
    free = set(donated) - given_out
    last = max(fallible, default=-1)
    candidates = {
        number: [slot for slot in slots if slot in results and slot not in lowered.parts]
        for number, group in enumerate(groups)
        if group.cluster is not None and number not in fallible
        for slots in [[slot for e in group.equations for slot in e.outputs]]
        if not any(set(read.get(slot, ())) - {number} for slot in slots)
    }
    aliased: dict[int, int] = {}
    after: dict[int, int] = {}
    for number, slots in candidates.items():
        group = groups[number]
        assert group.cluster is not None
        overwritable = Overwritable(group.cluster, group.equations)
        for slot in slots:
            for root in overwritable.by(slot):
                others = set(read.get(root, ())) - {number}
                # Two that read each other's inputs could not both be done after the other.
                if root in free and lowered.types[root] == lowered.types[slot] and not others & candidates.keys():
                    aliased[slot] = root
                    free.remove(root)
                    after[number] = max([after.get(number, last), number, *others])
                    break
    order: list[int] = []
    waiting = sorted(after, key=lambda number: (after[number], number))
    for number in range(len(groups)):
        if number not in after:
            order.append(number)
        while waiting and after[waiting[0]] <= number:
            order.append(waiting.pop(0))
    return aliased, order
