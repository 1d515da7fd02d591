"""Composites on a GPU: the kernels that are generated from a decomposition, launched on buffers at hand.

It is what the compiled interpreter does with a whole program, done with one op: so a composite needs no kernel of its
own to be computed without its parts going to memory one by one. Texts know no sizes, so other shapes share kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.device import Device
from ..clusters import Unit, left_in_memory, read_by, roots_read
from ..decomposition import Expander
from ..formulas import has_formula
from ..gathering import gather
from ..legal import Legal
from ..primitives import ASSEMBLE, CONTIGUOUS
from .source import Form, Generated, Partial, Pointer, Watching, cluster_kernel
from .target import CUDA

Total = Callable[[Device, DeviceBuffer], DeviceBuffer]
"""The sums of a matrix's columns: what is left to do of sums over rows that were taken in parts."""


def fused(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> Fused | None:
    """The kernels of a composite for operands of some types; None if they cannot do all of it, or it computes nothing.

    What only moves elements is left to its parts, of which some move none.
    """
    legal = Legal(Expander(has_formula, loops=False).body(primitive, types, static), CUDA, own_outputs=True)
    units = gather(legal)
    if not _all_generated(legal, units):
        return None
    read, results = read_by(legal, units), {legal.views[slot].root for slot in legal.outputs}
    made = []
    for place, unit in enumerate(units):
        kept = left_in_memory(legal, unit, place, read, results)
        if unit.cluster is not None and kept:
            made.append(cluster_kernel(unit.cluster, unit.equations, kept))
    return Fused(legal, made)


def _all_generated(legal: Legal, units: Sequence[Unit]) -> bool:
    """Whether kernels are generated for all units, none reads an array that was known beforehand, and one computes."""
    every = [e for unit in units for e in unit.equations]
    return (
        all(unit.cluster is not None or unit.equations[0].primitive is ASSEMBLE for unit in units)
        and roots_read(legal, every).isdisjoint(legal.constants.keys() - legal.counted)
        and any(e.primitive not in (ASSEMBLE, CONTIGUOUS) for e in every)
    )


class _Launch(NamedTuple):
    """A kernel, and the roots that nothing reads after it."""

    made: Generated
    done: tuple[int, ...]


@final
class Fused:
    """A composite's kernels for operands of some shapes, on any device.

    checks      whether they look at indices
    """

    __slots__ = ("checks", "_legal", "_launches")

    def __init__(self, legal: Legal, made: Sequence[Generated]):
        self._legal = legal
        self.checks = any(each.checks for each in made)
        last = {root: place for place, each in enumerate(made) for root in each.roots}
        kept = {*legal.body.inputs, *(legal.views[slot].root for slot in legal.outputs)}
        self._launches = [
            _Launch(each, tuple([root for root, at in last.items() if at == place and root not in kept]))
            for place, each in enumerate(made)
        ]

    def __call__(
        self, device: Device, operands: Iterable[DeviceBuffer], total: Total, asked: int = 0
    ) -> tuple[DeviceBuffer, ...]:
        """New results of `operands`, buffers of the types that this was made for.

        `asked` is what the device's flag becomes where an index is out of range.
        """
        legal = self._legal
        held = dict(zip(legal.body.inputs, operands))

        def own(root: int) -> DeviceBuffer:
            found = held.get(root)
            if found is None:
                found = held[root] = device.empty(legal.types[root])
            return found

        for made, done in self._launches:
            held.update(launch(device, legal, made, own, total, asked))
            for root in done:
                held.pop(root, None)
        return tuple([own(legal.views[slot].root).reshaped(_shape(legal, slot)) for slot in legal.outputs])


def launch(
    device: Device,
    legal: Legal,
    made: Generated,
    own: Callable[[int], DeviceBuffer],
    total: Total,
    asked: int,
) -> dict[int, DeviceBuffer]:
    """Ask for a generated kernel, on the memory that is each root's `own`; what it has summed over rows, by slot."""
    sums: dict[int, DeviceBuffer] = {}

    def given(argument: Any) -> Any:
        if isinstance(argument, Pointer):
            return own(argument.root)
        if isinstance(argument, Partial):
            dtype = legal.types[argument.slot].dtype
            sums[argument.slot] = device.empty(TensorType((made.parts, made.extent), dtype))
            return sums[argument.slot]
        if isinstance(argument, Watching):
            return device.flag if argument is Watching.FLAG else np.int32(asked)
        return argument

    kernel, arguments = made.text.function(), [given(argument) for argument in made.arguments]
    if made.form is Form.ROWS:
        device.each_row(kernel, made.rows, made.extent if made.neighbours else 1, *arguments)
    else:
        device.each(kernel, made.extent * made.parts, *arguments)
    return {
        slot: (total(device, parts) if made.parts > 1 else parts).reshaped(_shape(legal, slot))
        for slot, parts in sums.items()
    }


def _shape(legal: Legal, slot: int) -> tuple[int, ...]:
    shape: Any = legal.types[slot].shape
    return tuple(shape)
