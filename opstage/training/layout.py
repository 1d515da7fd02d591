"""A training step as a program of tensors in a row, with the type and the name of each, and no tensor made.

The checker and the recorder run it, and whatever else asks what a step would do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..interpreters.shape_check import Finding, Step
from ..ops.spec import Spec
from ..ops.trees import flatten, structure_paths, unflatten
from ..ops.types import DType, dtype_name
from .optim import Optimizer
from .step import Clip, LossProgram, forward_program, step_program


@dataclass(frozen=True)
class StepLayout:
    """What a step takes, in order: parameters, the program's state, the batch, the optimizer's slots and scalars.

    program     (ops, *refs) -> (loss, metrics, state, new trained parameters, their new slots), a pytree; without an
                optimizer (loss, metrics)
    specs       the type of each input
    names       `params.<path>`, `state.<path>`, the names of the loss's arguments, `slots.<path>.<i>`, and those of the
                optimizer's scalars
    parameters  how many of the inputs are parameters; they come first, each once
    tied        for those that stand at several places the names of all of these, the first of which is the input's
    warnings    what is odd about the parameters, before anything runs
    step        which of them are trained, and what is the optimizer's; None without one
    """

    program: Callable[..., Any]
    specs: tuple[Spec, ...]
    names: tuple[str, ...]
    parameters: int
    tied: tuple[tuple[str, ...], ...]
    step: Step | None
    warnings: tuple[Finding, ...] = ()


def step_layout(
    loss: LossProgram,
    leaves: Sequence[Spec],
    state: Any,
    batch: tuple[Any, ...],
    batch_names: Sequence[str],
    dtype: DType,
    optimizer: Optimizer | None = None,
    clip: Clip | None = None,
) -> StepLayout:
    """The step of a loss with parameters of these specs, each once; `state` and `batch` are pytrees of Specs."""
    paths = loss.places.names
    state_specs, state_structure = flatten(state)
    batch_specs, batch_structure = flatten(batch)
    trained = [(path, spec) for path, spec, wanted in zip(paths, leaves, loss.trained) if wanted]
    slots: list[Any] = []
    scalars: list[str] = []
    if optimizer is not None:
        slots = optimizer.init([(spec.entries, dtype) for _, spec in trained], [path for path, _ in trained])
        scalars = list(optimizer.scalars(1))
    specs = [*leaves, *state_specs, *batch_specs]
    specs += [Spec(slot.shape, dtype_name(slot.dtype)) for each in slots for slot in each]
    specs += [Spec(())] * len(scalars)
    names = [_parameter(path) for path in paths]
    names += [f"state.{path}" if path else "state" for path in structure_paths(state_structure)]
    names += list(batch_names) if batch_names else [f"batch[{i}]" for i in range(len(batch_specs))]
    names += [f"slots.{path}.{i}" for (path, _), each in zip(trained, slots) for i in range(len(each))]
    names += scalars

    def program(ops: Any, *refs: Any) -> Any:
        given = iter(refs)

        def take(count: int) -> list[Any]:
            return [next(given) for _ in range(count)]

        parameters, values = take(len(leaves)), unflatten(state_structure, take(len(state_specs)))
        arguments = unflatten(batch_structure, take(len(batch_specs)))
        if optimizer is None:
            return forward_program(loss)(ops, parameters, values, arguments)
        held = [tuple(take(len(each))) for each in slots]
        rates = dict(zip(scalars, given))
        value, aux, new, new_slots = step_program(loss, optimizer, clip)(
            ops, parameters, held, rates, values, arguments
        )
        return value, dict(aux.metrics), aux.state, list(new), [list(each) for each in new_slots]

    tied = tuple(tuple(map(_parameter, places)) for places in loss.places.tied.values())
    held_slots = sum(map(len, slots))
    step = Step(loss.trained, hidden=held_slots + len(scalars), new=len(trained) + held_slots)
    return StepLayout(program, tuple(specs), tuple(names), len(leaves), tied, step if optimizer is not None else None)


def _parameter(path: str) -> str:
    return f"params.{path}" if path else "params"
