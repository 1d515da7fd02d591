"""Checking a whole training step on shapes alone: forward, backward, clipping and update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ..api import argument_paths, with_train
from ..interpreters.shape_check import Report, check_base_program, unusable, with_captured
from ..ops.errors import OpstageError
from ..ops.places import Places
from ..ops.spec import as_specs, shapes_as_specs
from ..ops.trees import flatten
from ..ops.types import as_dtype, is_float
from ..options import Options
from . import optim
from .by_name import by_position
from .layout import StepLayout, step_layout
from .optim import Optimizer
from .parameters import requires_grad_flags
from .sharing import shared_findings
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
    report = report_on(lambda chosen: step(loss, params, *batch, options=chosen), options)[0]
    return with_captured(report, loss, clip)


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
    report = check_base_program(
        layout.program,
        layout.specs,
        layout.names,
        options,
        parameters=layout.parameters,
        tied=layout.tied,
        step=layout.step,
    )
    return replace(report, warnings=(*layout.warnings, *report.warnings))


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
    params = shapes_as_specs(params)
    places = Places.of(params)
    leaves = places.first(flatten(as_specs(params))[0])
    skip = 2 if state is None else 3
    specs = tuple(as_specs(tree) for tree in by_position(batch, loss, skip))
    flags = requires_grad_flags(params, requires_grad, options)
    trained = [flag and (spec.dtype is None or is_float(as_dtype(spec.dtype))) for flag, spec in zip(flags, leaves)]
    names = argument_paths(loss, (*(None,) * (skip - 1), *specs)) if specs else []
    program = LossProgram(with_train(loss, True), places, tuple(trained), state is not None)
    chosen = optimizer if optimizer is not None else optim.sgd(lr=1.0)
    held = None if state is None else as_specs(state)
    layout = step_layout(program, leaves, held, specs, names, dtype, chosen, clip)
    return replace(layout, warnings=shared_findings(params))
