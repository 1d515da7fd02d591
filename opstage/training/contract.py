"""The shapes that a trainer was promised, held against every batch that comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..interpreters.shape_check import Assumption
from ..ops.errors import ShapeError
from ..ops.spec import Spec, as_specs
from ..ops.trees import align, flatten
from ..ops.types import show_shape


class Contract:
    """Specs of a batch. A signature (shapes and dtypes) that passed once is known and costs one set lookup."""

    def __init__(self, specs: tuple[Any, ...], names: list[str]):
        self._trees = tuple(as_specs(tree) for tree in specs)
        self._specs, self._structure = flatten(self._trees)
        self.names = names
        self._conditions: list[Assumption] = []
        self._known: set[tuple[Any, ...]] = set()

    def assume(self, conditions: Sequence[Assumption]) -> None:
        """Relations that the check could not decide: they are enforced for every batch."""
        self._conditions = [*self._conditions, *conditions]

    def check(
        self,
        batch: tuple[Any, ...],
        arrays: list[Any],
        refs: Sequence[Any],
        unforeseen: Callable[[tuple[Any, ...]], None],
    ) -> None:
        """Raise ShapeError for a batch outside the Specs; without any, `unforeseen(batch)` validates a new one."""
        signature = tuple([(ref.shape, ref.dtype) for ref in refs])
        if signature in self._known:
            return
        if not self._trees:
            unforeseen(batch)
        elif not any(isinstance(array, Spec) for array in arrays):
            self._check_specs(batch, refs)
        self._known.add(signature)

    def _check_specs(self, batch: tuple[Any, ...], refs: Sequence[Any]) -> None:
        align(self._structure, batch, "the trainer's specs", "the batch")
        sizes: dict[str, int] = {}
        for name, spec, ref in zip(self.names, self._specs, refs):
            reason = spec.holds(tuple(ref.shape), sizes)
            if reason is not None:
                raise ShapeError(f"{name} is {show_shape(ref.shape)}: it {reason}", op="batch")
        for assumption in self._conditions:
            if assumption.holds is not None and not assumption.holds(sizes):
                at = ", ".join(f"{dim}={size}" for dim, size in sizes.items())
                raise ShapeError(f"{assumption} does not hold at {at}", op="batch")
