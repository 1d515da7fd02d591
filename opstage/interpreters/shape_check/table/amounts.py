"""The cost of an op or a block: parameters, arithmetic, traffic, and bytes saved for the backward pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ....ops.dims import Dim


class Amounts(NamedTuple):
    """parameters   elements of the parameters that it reads, each counted where it is read first
    forward, backward, update
                    FLOPs of the three phases of a training step
    forward_bytes, backward_bytes, update_bytes
                    bytes read and written by its kernels: every operand and result once, none for a view
    saved           bytes kept from the forward pass until the backward pass has read them, without parameters and
    inputs; a tensor kept by several ops is counted at the first, and a view as its base
    """

    parameters: Dim = 0
    forward: Dim = 0
    backward: Dim = 0
    update: Dim = 0
    forward_bytes: Dim = 0
    backward_bytes: Dim = 0
    update_bytes: Dim = 0
    saved: Dim = 0

    @property
    def flops(self) -> Dim:
        """The sum over the three phases."""
        return self.forward + self.backward + self.update

    @property
    def moved(self) -> Dim:
        """The sum over the three phases."""
        return self.forward_bytes + self.backward_bytes + self.update_bytes

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte moved; None if it has names, or nothing is moved."""
        flops, moved = self.flops, self.moved
        return flops / moved if isinstance(flops, int) and isinstance(moved, int) and moved else None

    def times(self, count: int) -> Amounts:
        """Return the amounts of `count` of them."""
        return self if count == 1 else Amounts(*[count * amount for amount in self])


def is_nothing(amount: Dim) -> bool:
    """Whether an amount is the number 0."""
    return isinstance(amount, int) and amount == 0


def total(parts: Iterable[Amounts]) -> Amounts:
    """Return the sum; equal parts are multiplied."""
    counts: dict[Amounts, int] = {}
    for part in parts:
        counts[part] = counts.get(part, 0) + 1
    sums: list[Dim] = [0] * len(Amounts._fields)
    for part, count in counts.items():
        for i, amount in enumerate(part.times(count)):
            if not is_nothing(amount):
                sums[i] = sums[i] + amount
    return Amounts(*sums)
