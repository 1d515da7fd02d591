"""Checking a whole training step on shapes alone: forward, backward, clipping and update."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..api import argument_paths, with_train
from ..interpreters.shape_check import Report, check_base_program, unusable
from ..ops.errors import OpstageError
from ..ops.spec import as_specs
from ..ops.trees import flatten, paths
from ..ops.types import as_dtype, is_float
from ..options import Options
from . import optim
from .layout import StepLayout, step_layout
from .optim import Optimizer
from .parameters import requires_grad_flags
from .step import Clip, LossProgram


def check_step(
    loss: Callable[..., Any],
    params: Any,
    *batch: Any,
    optimizer: Optimizer | None = None,
    state: Any = None,
    options: Options | None = None,
    requires_grad: Any = None,
    clip: Clip | None = None,
) -> Report:
    """Check one whole training step of `loss(ops, params, *batch)` without data: forward, backward, clipping, update.

    Arguments are those of `scalar_trainer`, but nothing in them needs to exist: parameters, state and batch are pytrees
    of Specs, arrays, declared parameters and tuples of sizes. The optimizer is SGD if none is given, whose update has
    the shapes of every other. Raises nothing: what is wrong is in the report.
    """
    step = partial(training_layout, optimizer=optimizer, state=state, requires_grad=requires_grad, clip=clip)
    return report_on(lambda chosen: step(loss, params, *batch, options=chosen), options)[0]


def report_on(
    layout: Callable[[Options], StepLayout], options: Options | None = None
) -> tuple[Report, StepLayout | None]:
    """The report on the step that `layout(options)` lays out, and that; None where it cannot be."""
    options = options if options is not None else Options()
    try:
        made = layout(options)
    except OpstageError as error:
        return unusable("Spec", error, options), None
    return check_layout(made, options), made


def check_layout(layout: StepLayout, options: Options) -> Report:
    """The report on a step, whose parameters, state and batch come first among its inputs."""
    count, step = layout.parameters, layout.step
    return check_base_program(layout.program, layout.specs, layout.names, options, parameters=count, step=step)


def training_layout(
    loss: Callable[..., Any],
    params: Any,
    *batch: Any,
    optimizer: Optimizer | None = None,
    state: Any = None,
    options: Options | None = None,
    requires_grad: Any = None,
    clip: Clip | None = None,
) -> StepLayout:
    """The step that `check_step` checks. Raises UsageError for what cannot be read as specs."""
    options = options if options is not None else Options()
    dtype = as_dtype(options.dtype)
    leaves, structure = flatten(as_specs(params))
    specs = tuple(as_specs(tree) for tree in batch)
    flags = requires_grad_flags(params, requires_grad, options)
    trained = [flag and (spec.dtype is None or is_float(as_dtype(spec.dtype))) for flag, spec in zip(flags, leaves)]
    names = argument_paths(loss, (*(None,) * (1 if state is None else 2), *specs)) if specs else []
    program = LossProgram(with_train(loss, True), structure, tuple(trained), state is not None)
    chosen = optimizer if optimizer is not None else optim.sgd(lr=1.0)
    held = None if state is None else as_specs(state)
    return step_layout(program, leaves, paths(as_specs(params)), held, specs, names, dtype, chosen, clip)
