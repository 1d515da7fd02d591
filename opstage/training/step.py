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
from ..ops.places import Places
from ..ops.program import Aux
from ..ops.trees import first_difference, flatten, unflatten
from ..ops.types import dtype_name, show_shape
from .optim import Optimizer

UPDATE = "update"
"""The region in which a step clips its gradients and updates its parameters."""

Clip = Callable[[Any, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class LossProgram:
    """A user's loss with the places of its parameters, which of them are trained, and whether it carries state.

    Parameters come one by one, whatever the places at which they stand: the loss gets one ref at all of them, so its
    gradient is the sum over them.
    """

    loss: Callable[..., Any]
    places: Places
    trained: tuple[bool, ...]
    has_state: bool

    def split(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Parameters as (trained, frozen)."""
        trained = [leaf for leaf, wanted in zip(leaves, self.trained) if wanted]
        return trained, [leaf for leaf, wanted in zip(leaves, self.trained) if not wanted]

    def join(self, trained: Sequence[Any], frozen: Sequence[Any]) -> Any:
        """The parameter tree from its two parts."""
        t, f = iter(trained), iter(frozen)
        return self.places.tree([next(t) if wanted else next(f) for wanted in self.trained])

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
        value = ops.adopt(leaves[0])
        if len(value.shape) != 0:
            error = ShapeError(
                f"a training program's loss must be a scalar but is {show_shape(value.shape)}; "
                "reduce it with ops.sum or ops.reduce_mean",
                op="loss",
            )
            error.about = value
            raise error
        if value.dtype.kind not in "fO":
            raise ProgramError(f"a training program's loss must be a float scalar, not {dtype_name(value.dtype)}")
        if self.has_state:
            before, after = flatten(state)[1], flatten(aux.state)[1]
            difference = first_difference(before, after)
            if difference is not None:
                raise ProgramError(f"the new state is not built like the old one: {difference}")
        return value, aux


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
    """(ops, params, state, batch) -> (loss, Aux, gradients of the trained parameters)."""

    def gradient(ops: BaseInterpreter[Any], leaves: list[Any], state: Any, batch: tuple[Any, ...]) -> Any:
        trained, frozen = program.split(leaves)
        (loss, aux), (grads,) = value_and_grad(ops, program, trained, frozen, state, *batch, has_aux=True)
        return loss, aux, grads

    return gradient


def step_program(program: LossProgram, optimizer: Optimizer, clip: Clip | None) -> Callable[..., Any]:
    """(ops, params, slots, scalars, state, batch) -> (loss, Aux, new trained parameters, new slots)."""
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
