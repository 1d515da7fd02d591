"""The layouts of a layer's weight in a file: same as ours, transposed, or with channels last."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

Shapes = Mapping[str, tuple[int, ...]]


class WeightLayout(Enum):
    """SAME: (out, in, …), PyTorch's; TRANSPOSED: (in, out); CHANNELS_LAST: (…, in, out), Flax's convolutions."""

    SAME = "same"
    TRANSPOSED = "transposed"
    CHANNELS_LAST = "channels last"

    def axes(self, rank: int) -> tuple[int, ...] | None:
        """Return the permutation from this layout to ours, or None if it is the identity."""
        if self is WeightLayout.TRANSPOSED:
            return (1, 0)
        if self is WeightLayout.CHANNELS_LAST:
            return (rank - 1, rank - 2, *range(rank - 2))
        return None


def square(weight: tuple[int, ...]) -> bool:
    """Whether a weight is square, so that its shape does not reveal its layout."""
    return len(weight) == 2 and weight[0] == weight[1]


def layouts(ours: Shapes, theirs: Shapes) -> list[WeightLayout]:
    """Return the layouts in which their layer can be ours, the most likely first; none if shapes do not match."""
    for role, shape in ours.items():
        if role != "weight" and role in theirs and theirs[role] != shape:
            return []
    if "weight" not in ours:
        return [WeightLayout.SAME] if set(ours) <= set(theirs) else []
    if "weight" not in theirs:
        return []
    mine, other = ours["weight"], theirs["weight"]
    found = []
    if [n for n in mine if n != 1] == [n for n in other if n != 1]:
        found.append(WeightLayout.SAME)
    if len(other) == 2 and mine == other[::-1]:
        found.append(WeightLayout.TRANSPOSED)
    if len(other) > 2 and mine == (other[-1], other[-2], *other[:-2]) and mine != other:
        found.append(WeightLayout.CHANNELS_LAST)
    return found
