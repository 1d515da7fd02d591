"""Check a shipped model: a whole training step, or its forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...api import check
from ...arguments import argument_paths
from ...config import Layer
from ...data.arrays import ArrayHeader
from ...interpreters.registry import make_interpreter
from ...interpreters.shape_check import Finding
from ...interpreters.shape_check.formats import CheckOutcome, Section
from ...models import Model
from ...ops.errors import UsageError
from ...ops.mesh import mesh_of
from ...ops.spec import Spec, as_specs, read_claims
from ...ops.trees import flatten, unflatten
from ...runs.evaluation import check_parts
from ...runs.settings import Settings, configure
from ...runs.sources import load_data
from ...training.headers import check_arrays
from ...training.predictor import input_specs
from ...training.program_check import FORWARD, STEP, Checked
from ...training.validate import report_on
from .memory import checked_with
from .request import Asked
from .sections import RECIPE, completed, optimizer_called, read_bounds


def check_configured(model: str | None, file: Path | None, flags: Sequence[Layer], asked: Asked) -> CheckOutcome:
    """Return the outcome for a model, by default cnn, configured as by train."""
    return check_shipped(configure(model, file=file, flags=flags).settings, asked)


def check_shipped(settings: Settings, asked: Asked) -> CheckOutcome:
    """Return the outcome for the model of `settings`. Raises UsageError for flags about a user's program."""
    for flag, value in (
        ("--input", asked.inputs),
        ("--where", asked.where if not mesh_of(settings.options.mesh).open else ()),
        ("--param", asked.param),
        ("--params", asked.params),
        ("--state", asked.state),
    ):
        if value:
            raise UsageError(f"{flag} is for a program of your own; the model {settings.run.model} has its own shapes")
    options = checked_with(settings.options, asked)
    make_interpreter(options)  # raises if the backend or device is missing, which is not a finding about the model
    chosen = settings.defined.make(settings.model)
    step = (asked.train and chosen.loss is not None) if asked.step is None else asked.step
    if step and not asked.train:
        raise UsageError("a training step is taken in training form; leave --step or --eval out")
    held = [as_specs(tree) for tree in (chosen.init, chosen.state) if tree is not None]
    planned = None
    if step:
        declared = _declaring(chosen.batch, asked.where)  # of a mesh's sizes, of which the model says nothing
        frozen = settings.optimizer.freeze.strip()
        taken: dict[str, Any] = {  # the step that `train` would take
            "optimizer": optimizer_called(asked.optimizer) or settings.optimizer.make(),
            "clip": settings.optimizer.make_clip(),
            "requires_grad": {frozen: False} if frozen else None,
        }
        report, planned = report_on(
            chosen.require_loss(), chosen.init, *declared, options=options, state=chosen.state, **taken
        )
    else:
        report = check(chosen.forward, *held, *chosen.batch, options=options, train=asked.train)
    names = argument_paths(chosen.forward, (*(None for _ in held), *chosen.batch))
    batch = dict(zip(names, flatten(chosen.batch)[0]))
    checked = Checked(report, STEP if step else FORWARD, held[0], held[1] if len(held) == 2 else None, batch, planned)
    found = _data_of_recipe(settings, chosen, batch, asked) if asked.data == RECIPE else ()
    if report.ok:
        checked = replace(checked, report=replace(report, errors=check_parts(chosen, options)))
    if asked.prove and checked.report.ok:
        from ...facts import bounds_of_claims, with_claims

        predicts = chosen.outputs if chosen.outputs is not None else chosen.forward
        inputs = chosen.batch if chosen.outputs is None else tuple(input_specs(chosen).values())
        predicted = check(predicts, *held, *inputs, options=options, train=False)
        bounds = bounds_of_claims(read_bounds(asked.bounds), predicted, checked.report if asked.ranges else None)
        claimed = with_claims(predicted, read_claims(asked.prove), bounds, asked.range_dtype)
        checked = replace(checked, report=checked.report.with_verdicts(claimed))
    report, sections = completed(checked, settings.options, asked, found)
    if settings.parts > 1:
        sections = [_of_whole_batches(each, settings.parts) for each in sections]
    return CheckOutcome.of(report, settings.run.model, checked.what, sections)


def _of_whole_batches(section: Section, parts: int) -> Section:
    """Return the memory section with the note that it does not predict steps in parts."""
    if section.name != "memory":
        return section
    note = (
        f"  These are steps of whole batches. In {parts} parts (accumulate) a step keeps the batch and a sum of\n"
        "  each gradient, and takes for the rest what the rows of a part take: --at with their number."
    )
    data = [{**entry, "of": "whole batches"} for entry in section.data]
    return replace(section, data=data, text=f"{section.text}\n{note}")


def _declaring(batch: tuple[Any, ...], where: Sequence[str]) -> tuple[Any, ...]:
    """Return the Specs of a batch with these constraints added to the first."""
    if not where:
        return batch
    leaves, structure = flatten(batch)
    first = leaves[0]
    made = first.changed(where=(*first.where, *where))
    declared: tuple[Any, ...] = unflatten(structure, [made, *leaves[1:]])
    return declared


def _data_of_recipe(settings: Settings, model: Model, batch: Mapping[str, Spec], asked: Asked) -> tuple[Finding, ...]:
    """Return findings if the model's own data do not fit its declared batches."""
    training = load_data(settings, model, settings.defined.recipe).training
    arrays = {name: ArrayHeader(array.shape, array.dtype) for name, array in zip(training.names, training.arrays)}
    size = asked.batch_size if asked.batch_size is not None else settings.data.batch_size
    return check_arrays(arrays, batch, f"the data of {model.name}'s recipe", size)
