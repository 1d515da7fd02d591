"""`PeakMemory`: the tensor memory of a training step at its peak, and what it is made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ....ops.amounts import show_bytes
from .timeline import Moment


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of tensors at the moment of a step when they are most, in a run that has made steps before.

    parameters    the values from which the step starts
    optimizer     moments and the like, as the step finds them
    state         the program's own state, such as running statistics
    batch         what comes from outside
    activations   what the forward pass made and is still there
    gradients     what the backward pass made and is still there
    results       new parameters and moments, where they stand beside the old ones until the step is committed
    workspace     what kernels work in; of the compiled interpreter constants, and the addresses of arguments
    arena         of the compiled interpreter: activations, gradients and what kernels work in, in one block
    blocks        on a device, and no part of the peak: the blocks in which all this lies, whose sizes are rounded up,
                  and the workspace of its library
    """

    parameters: int = 0
    optimizer: int = 0
    state: int = 0
    batch: int = 0
    activations: int = 0
    gradients: int = 0
    results: int = 0
    workspace: int = 0
    arena: int = 0
    blocks: int = 0

    @classmethod
    def of(cls, moment: Moment) -> PeakMemory:
        """Of one moment of an eager step."""
        return cls(**{kind.name.lower(): nbytes for kind, nbytes in moment.of.items()})

    @property
    def peak(self) -> int:
        """All of it together."""
        return sum(self._parts().values())

    @property
    def needed(self) -> int:
        """The bytes that have to be free: the peak, or on a device its blocks."""
        return max(self.peak, self.blocks)

    def _parts(self) -> dict[str, int]:
        return {name: nbytes for name, nbytes in asdict(self).items() if name != "blocks"}

    def __str__(self) -> str:
        rows = [(name, nbytes) for name, nbytes in self._parts().items() if nbytes]
        lines = [f"{'peak of tensor memory':24} {show_bytes(self.peak):>10}"]
        lines += [f"  {name:22} {show_bytes(nbytes):>10}" for name, nbytes in rows]
        if self.blocks:
            lines.append(f"{'in blocks of the device':24} {show_bytes(self.blocks):>10}")
        return "\n".join(lines)
