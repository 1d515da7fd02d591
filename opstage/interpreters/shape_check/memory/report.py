"""`PeakMemory`: the tensor memory of a training step at its peak, by purpose."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ....ops.amounts import show_bytes
from .timeline import Moment


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of tensors at the peak of a step, in steady state.

    parameters    the values from which the step starts
    optimizer     moments and the like, before the step
    state         the program's own state, such as running statistics
    batch         inputs from outside
    activations   live results of the forward pass
    gradients     live results of the backward pass
    results       new parameters and moments, if they coexist with the old ones until the step is committed
    workspace     workspace of kernels; for the compiled interpreter constants, and the addresses of arguments
    arena         for the compiled interpreter: activations, gradients and workspace, in one block
    blocks        on a device, not part of the peak: the allocated blocks that contain all this, with rounded sizes, and
    the workspace of its library
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
        """Return the memory at one moment of an eager step."""
        return cls(**{kind.name.lower(): nbytes for kind, nbytes in moment.of.items()})

    @property
    def peak(self) -> int:
        """The sum of all parts."""
        return sum(self._parts().values())

    @property
    def needed(self) -> int:
        """The bytes that must be free: the peak, or on a device its blocks."""
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
