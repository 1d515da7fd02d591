"""Composites on a GPU: kernels generated from a decomposition, launched on concrete buffers.

This does for one op what the compiled interpreter does for a program, so a composite is computed without writing its
intermediate values to memory, and without a kernel of its own. Sources have no sizes, so other shapes share kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.device import Device
from ..clusters import FusionGroup, left_in_memory, read_by, roots_read
from ..decomposition import Expander
from ..formulas import ASSEMBLE, CONTIGUOUS, has_formula
from ..fusion import fuse
from ..lowered import Lowered
from .source import CUDA, Form, Generated, Partial, Pointer, Watching, cluster_kernel

Total = Callable[[Device, DeviceBuffer], DeviceBuffer]
"""Sums the columns of a matrix: the second stage of sums over rows that were split into parts."""


def fused(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> Fused | None:
    """Return the kernels of a composite for operand types; None if kernels cannot compute all of it, or nothing is
    computed.

    Pure data movement is left to the decomposition, some of whose parts move nothing.
    """
    lowered = Lowered(Expander(has_formula, loops=False).body(primitive, types, static), CUDA, own_outputs=True)
    groups = fuse(lowered)
    if not _all_generated(lowered, groups):
        return None
    read, results = read_by(lowered, groups), {lowered.views[slot].root for slot in lowered.outputs}
    made = []
    for place, group in enumerate(groups):
        kept = left_in_memory(lowered, group, place, read, results)
        if group.cluster is not None and kept:
            made.append(cluster_kernel(group.cluster, group.equations, kept))
    return Fused(lowered, made)


def _all_generated(lowered: Lowered, groups: Sequence[FusionGroup]) -> bool:
    """Return whether kernels are generated for all groups, none reads a constant array, and at least one computes."""
    every = [e for group in groups for e in group.equations]
    return (
        all(group.cluster is not None or group.equations[0].primitive is ASSEMBLE for group in groups)
        and roots_read(lowered, every).isdisjoint(lowered.constants.keys() - lowered.counted)
        and any(e.primitive not in (ASSEMBLE, CONTIGUOUS) for e in every)
    )


class _Launch(NamedTuple):
    """A kernel, and the roots that are read for the last time by it."""

    made: Generated
    done: tuple[int, ...]


@final
class Fused:
    """A composite's kernels for operands of some shapes, on any device.

    checks      whether they check indices
    """

    __slots__ = ("checks", "_lowered", "_launches")

    def __init__(self, lowered: Lowered, made: Sequence[Generated]):
        self._lowered = lowered
        self.checks = any(each.checks for each in made)
        last = {root: place for place, each in enumerate(made) for root in each.roots}
        kept = {*lowered.body.inputs, *(lowered.views[slot].root for slot in lowered.outputs)}
        self._launches = [
            _Launch(each, tuple([root for root, at in last.items() if at == place and root not in kept]))
            for place, each in enumerate(made)
        ]

    def __call__(
        self, device: Device, operands: Iterable[DeviceBuffer], total: Total, watched: int = 0
    ) -> tuple[DeviceBuffer, ...]:
        """Return new results for `operands`, buffers of the types that this was made for.

        The device's flag is set to `watched` if an index is out of range.
        """
        lowered = self._lowered
        held = dict(zip(lowered.body.inputs, operands))

        def own(root: int) -> DeviceBuffer:
            found = held.get(root)
            if found is None:
                found = held[root] = device.empty(lowered.types[root])
            return found

        for made, done in self._launches:
            held.update(launch(device, lowered, made, own, total, watched))
            for root in done:
                held.pop(root, None)
        return tuple([own(lowered.views[slot].root).reshaped(_shape(lowered, slot)) for slot in lowered.outputs])


def launch(
    device: Device,
    lowered: Lowered,
    made: Generated,
    own: Callable[[int], DeviceBuffer],
    total: Total,
    watched: int,
) -> dict[int, DeviceBuffer]:
    """Launch a generated kernel on each root's memory, `own`; return its sums over rows, by slot."""
    sums: dict[int, DeviceBuffer] = {}

    def given(argument: Any) -> Any:
        if type(argument) is Pointer:
            return own(argument.root)
        if type(argument) is Partial:
            dtype = lowered.types[argument.slot].dtype
            sums[argument.slot] = device.empty(TensorType((made.parts, made.extent), dtype))
            return sums[argument.slot]
        if type(argument) is Watching:
            return device.flag if argument is Watching.FLAG else np.int32(watched)
        return argument

    kernel, arguments = made.text.function(), [given(argument) for argument in made.arguments]
    if made.form is Form.ROWS:
        device.each_row(kernel, made.rows, made.extent if made.neighbours else 1, *arguments)
    else:
        device.each(kernel, made.extent * made.parts, *arguments)
    return {
        slot: (total(device, parts) if made.parts > 1 else parts).reshaped(_shape(lowered, slot))
        for slot, parts in sums.items()
    }


def _shape(lowered: Lowered, slot: int) -> tuple[int, ...]:
    shape: Any = lowered.types[slot].shape
    return tuple(shape)
