"""One training step as one program: forward, backward, clipping and the optimizer's update.

The program is pure: it takes parameters, optimizer state and batch, and returns new ones. Whoever runs it commits the
result, or does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..interpreters.derivatives import run_on_tape, value_and_grad
from ..interpreters.interpreter import BaseInterpreter
from ..ops.errors import ProgramError, ShapeError
from ..ops.program import Aux
from ..ops.trees import Structure, first_difference, flatten, unflatten
from ..ops.types import show_shape
from .optim import Optimizer

UPDATE = "update"
"""The region in which a step clips its gradients and updates its parameters."""

Clip = Callable[[Any, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class LossProgram:
    """A user's loss with the structure of its parameters: which leaves are trained, and whether it carries state."""

    loss: Callable[..., Any]
    structure: Structure
    trained: tuple[bool, ...]
    has_state: bool

    def split(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Parameter leaves as (trained, frozen)."""
        trained = [leaf for leaf, wanted in zip(leaves, self.trained) if wanted]
        return trained, [leaf for leaf, wanted in zip(leaves, self.trained) if not wanted]

    def join(self, trained: Sequence[Any], frozen: Sequence[Any]) -> Any:
        """The parameter tree from its two parts."""
        t, f = iter(trained), iter(frozen)
        return unflatten(self.structure, [next(t) if wanted else next(f) for wanted in self.trained])

    def __call__(self, ops: Any, trained: list[Any], frozen: list[Any], state: Any, *batch: Any) -> tuple[Any, Aux]:
        """Loss and Aux, whatever form the user's program returns."""
        params = self.join(trained, frozen)
        result = self.loss(ops, params, state, *batch) if self.has_state else self.loss(ops, params, *batch)
        loss, aux = result if isinstance(result, tuple) and len(result) == 2 else (result, Aux())
        if not isinstance(aux, Aux):
            raise ProgramError(
                f"a training program returns its loss, or (loss, Aux(state=, metrics=)); got {type(aux).__name__}"
            )
        leaves, _ = flatten(loss)
        if len(leaves) != 1:
            raise ProgramError(f"a training program's loss is one scalar; got {len(leaves)} tensors")
        if len(leaves[0].shape) != 0:
            error = ShapeError(
                f"a training program's loss must be a scalar but is {show_shape(leaves[0].shape)}; "
                "reduce it with ops.sum or ops.reduce_mean",
                op="loss",
            )
            error.about = leaves[0]
            raise error
        if self.has_state:
            before, after = flatten(state)[1], flatten(aux.state)[1]
            difference = first_difference(before, after)
            if difference is not None:
                raise ProgramError(f"the new state is not built like the old one: {difference}")
        return leaves[0], aux


def forward_program(program: LossProgram) -> Callable[..., Any]:
    """(ops, params, state, batch) -> (loss, metrics), nothing differentiated."""

    def forward(ops: BaseInterpreter[Any], leaves: list[Any], state: Any, batch: tuple[Any, ...]) -> Any:
        trained, frozen = program.split(leaves)
        trees = (trained, frozen, state, *batch)
        _, _, outputs, structure = run_on_tape(ops, program, trees, (False,) * len(trees))
        loss, aux = unflatten(structure, [node.value for node in outputs])
        return loss, dict(aux.metrics)

    return forward


def gradient_program(program: LossProgram) -> Callable[..., Any]:
    """(ops, params, state, batch) -> (loss, Aux, gradients of the trained leaves)."""

    def gradient(ops: BaseInterpreter[Any], leaves: list[Any], state: Any, batch: tuple[Any, ...]) -> Any:
        trained, frozen = program.split(leaves)
        (loss, aux), (grads,) = value_and_grad(ops, program, trained, frozen, state, *batch, has_aux=True)
        return loss, aux, grads

    return gradient


def step_program(program: LossProgram, optimizer: Optimizer, clip: Clip | None) -> Callable[..., Any]:
    """(ops, params, slots, scalars, state, batch) -> (loss, Aux, new trained leaves, new slots)."""
    gradient = gradient_program(program)

    def update(ops: Any, trained: list[Any], grads: Sequence[Any], slots: list[Any], scalars: dict[str, Any]) -> Any:
        if clip is not None:
            grads = clip(ops, grads)
        updated = [optimizer.update(ops, p, g, s, scalars) for p, g, s in zip(trained, grads, slots)]
        return [p for p, _ in updated], [s for _, s in updated]

    def step(
        ops: BaseInterpreter[Any],
        leaves: list[Any],
        slots: list[Any],
        scalars: dict[str, Any],
        state: Any,
        batch: tuple[Any, ...],
    ) -> Any:
        loss, aux, grads = gradient(ops, leaves, state, batch)
        trained, _ = program.split(leaves)
        new, new_slots = ops.region(UPDATE, update, trained, grads, slots, scalars)
        return loss, aux, new, new_slots

    return step
