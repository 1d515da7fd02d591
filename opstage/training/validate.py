"""Checking a whole training step on shapes alone: forward, backward and update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..interpreters.shape_check import Report, check_base_program
from ..ops.spec import Spec, as_specs
from ..ops.trees import flatten, structure_paths, unflatten
from ..ops.types import dtype_name
from ..options import Options
from . import optim
from .param import Param
from .step import LossProgram, step_program


def validate_step(
    program: LossProgram,
    params: Sequence[Param],
    names: Sequence[str],
    state: Any,
    specs: tuple[Any, ...],
    batch_names: Sequence[str],
    options: Options,
) -> Report:
    """The report on one training step with plain SGD, whose update has the shapes of every other optimizer's."""
    leaves: list[Spec] = [Spec(tuple(param.shape), dtype_name(param.dtype)) for param in params]
    state_specs, state_structure = flatten(state)
    batch_specs, batch_structure = flatten(tuple(as_specs(tree) for tree in specs))
    step = step_program(program, optim.sgd(lr=1.0), None)

    def base(ops: Any, *refs: Any) -> Any:
        cut, end = len(leaves), len(leaves) + len(state_specs)
        slots = [() for param in params if param.requires_grad]
        scalars = {"lr": refs[-1]}
        return step(
            ops,
            list(refs[:cut]),
            slots,
            scalars,
            unflatten(state_structure, refs[cut:end]),
            unflatten(batch_structure, refs[end:-1]),
        )

    every = [*leaves, *state_specs, *batch_specs, Spec(())]
    labels = [f"params.{name}" for name in names]
    labels += [f"state.{path}" if path else "state" for path in structure_paths(state_structure)]
    labels += list(batch_names) if batch_names else [f"batch[{i}]" for i in range(len(batch_specs))]
    return check_base_program(base, every, [*labels, "lr"], options, parameters=len(leaves))
