"""Results that alias donated inputs, and the schedule that makes these in-place writes safe."""

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
    """Return the donated input that each result aliases, and the new order of the groups.

    read        the groups that read a root, by number
    fallible    the groups that can fail

    A group that overwrites inputs is scheduled after all fallible groups and after all other readers of those inputs.
    Until the first such group begins the inputs are intact, and afterwards nothing can fail. Other groups do not read
    its results.
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
                # Two groups that read each other's inputs could not each come last.
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
