"""`plan`: the time, memory and energy of training a model, predicted before any of it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..data import Dataset
from ..interpreters.shape_check.report import value_at
from ..interpreters.shape_check.traffic import Machines, predicted
from ..models import Model
from ..ops.dims import DimScope
from ..ops.errors import UsageError, ValidationError
from ..ops.mesh import Mesh, parse_mesh
from ..ops.spec import sized
from ..ops.trees import flatten
from ..ops.types import as_dtype
from ..optim.clip import Clip
from ..optim.optimizer import Optimizer
from ..options import Options
from ..planning.calibration import machine_rates, require_measurable
from ..planning.probes import TimedStep
from ..planning.rates import MEASURED, Rates, find_device
from ..planning.step_plan import StepComparison, StepPlan, Wire, compare, plan_step
from ..training.memory import model_memory
from ..training.parameters import first_trees
from ..training.sizes import dim_names
from ..training.trainer import scalar_trainer
from ..training.validate import check_step
from .run_data import load_data
from .settings import Settings, configure, configure_saved

CPU = "cpu"


def plan(
    model: str | os.PathLike[str] | Model | Settings,
    *,
    at: Mapping[str, int] = MappingProxyType({}),
    on: str | Rates = CPU,
    options: Options | None = None,
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    cluster: str | Machines | None = None,
) -> StepPlan:
    """Predict the time of a training step of `model`, its memory, and what a run of such steps takes.

    model       a shipped model's name, a model file, a run directory, a `Model`, or `Settings`
    at          a number for every named size of the batch, {"B": 64}; the recipe's for those left out
    on          `cpu`, this machine, whose rates are measured once and kept; `a100`, `h100` or `h200`, by published
                peaks; a TOML file that describes a device; or `Rates`
    optimizer   that of the model's recipe if none is given
    steps       of a run; or `epochs` of the data of the recipe
    cluster     of a rank of a mesh, `Options(mesh="data=8")`: the machines, as for `opstage check --cluster`

    Raises:
        UsageError: an unknown model, size or device; settings that planning does not support.
    """
    if isinstance(model, Model):
        if optimizer is None:
            raise UsageError(
                "a Model lacks a recipe: give the optimizer too, such as optimizer=opstage.optim.adamw(lr=1e-3)"
            )
        if epochs is not None:
            raise UsageError("a Model lacks data, so the length of an epoch is unknown: give steps= instead")
        return _planned(model, optimizer, None, options or Options(), at, on, steps, cluster)
    settings = model if isinstance(model, Settings) else model_settings(os.fspath(model))
    if options is not None:
        settings = replace(settings, options=options)
    made = settings.defined.make(settings.model)
    batch = batch_size_name(made)
    training = cache(lambda: load_data(settings, made, settings.defined.recipe).training)
    at = {**_sizes_of_recipe(settings, made, at, training), **at}
    if steps is not None and epochs is not None:
        raise UsageError("steps and epochs exclude each other; give one of them")
    for name, count in (("steps", steps), ("epochs", epochs)):
        if count is not None and count < 1:
            raise UsageError(f"{name} = {count}: expected at least 1")
    made.require_loss()
    if settings.optimizer.freeze.strip() or settings.parts != 1:
        what = "optimizer.freeze" if settings.optimizer.freeze.strip() else "accumulate"
        raise UsageError(f"planning with {what} is not supported; leave it out")
    if epochs is not None:
        require_sizes(made, at, settings.options)
        if batch is None:
            raise UsageError(
                f"model {made.name}: the batch lacks a named size, so the length of an epoch is unknown; give steps"
            )
        rows = len(training())
        steps = epochs * (rows // at[batch])
        if not steps:
            raise UsageError(
                f"an epoch of {rows} samples is smaller than a batch of {at[batch]}; give a smaller {batch}"
            )
    optimizer = optimizer if optimizer is not None else settings.optimizer.make()
    return _planned(made, optimizer, settings.optimizer.make_clip(), settings.options, at, on, steps, cluster)


def model_settings(model: str) -> Settings:
    """Return the settings of a model as train uses them, or of a run as it was configured."""
    return configure_saved(Path(model), "plan").settings if Path(model).is_dir() else configure(model).settings


def measure_settings(settings: Settings, made: StepPlan) -> StepComparison:
    """Run the planned step of a configured model on synthetic inputs of the plan's sizes.

    Raises UsageError if the plan is for another device than this machine's CPU.
    """
    settings.options.require_one_rank("plan --measure")
    if made.options.use_gpu or made.rates.origin != MEASURED:
        raise UsageError(f"the step is planned for {made.rates.name}, and measured on this machine: plan it --on cpu")
    return compare(made, timed_step(settings, made.sizes))


def timed_step(settings: Settings, sizes: Mapping[str, int]) -> TimedStep:
    """Return the step of a configured model on synthetic inputs, to be timed."""
    model, options = settings.defined.make(settings.model), settings.options
    params, state = first_trees(model, options)
    clip = settings.optimizer.make_clip()
    trainer = scalar_trainer(model.require_loss(), params, *model.batch, options=options, state=state, clip=clip)
    return TimedStep(trainer, settings.optimizer.make(), random_batch(model, sizes, options))


def random_batch(model: Model, sizes: Mapping[str, int], options: Options) -> list[Any]:
    """Return a batch of these sizes: random numbers between 0 and 1, and integers 0 and 1."""
    rng = np.random.default_rng(0)
    scope, dtype = DimScope(), as_dtype(options.dtype)
    types = [spec.bind(scope, dtype) for spec in sized(model.batch, sizes)]
    return [
        (rng.random(type_.shape) if type_.dtype.kind == "f" else rng.integers(0, 2, type_.shape)).astype(type_.dtype)
        for type_ in types
    ]


def batch_size_name(model: Model) -> str | None:
    """Return the first named size of the first batch argument, or None if that size has no name."""
    entries = model.batch[0].entries if model.batch else ()
    return entries[0] if entries and entries[0] in dim_names(model.batch) else None


def _sizes_of_recipe(
    settings: Settings, model: Model, at: Mapping[str, int], training: Callable[[], Dataset]
) -> dict[str, int]:
    """Return the sizes of the recipe's batches that `at` lacks: the number of rows, and what its data say of others."""
    batch, found = batch_size_name(model), dict[str, int]()
    if batch is not None:
        found[batch] = settings.data.batch_size
    if settings.defined.recipe.data is None or set(dim_names(model.batch)) <= {*found, *at}:
        return found
    for spec, array in zip(flatten(model.batch)[0], training().arrays):
        named = zip(spec.entries[1:], array.shape[1:])
        found |= {entry: size for entry, size in named if isinstance(entry, str) and entry not in found}
    return found


def require_sizes(model: Model, at: Mapping[str, int], options: Options) -> None:
    """Raise UsageError for a named size of the batch, or of the mesh, without a number."""
    names = (*dim_names(model.batch), *parse_mesh(options.mesh).open)
    missing = [name for name in names if name not in at]
    if missing:
        example = ",".join(f"{name}={at.get(name, 64)}" for name in names)
        raise UsageError(
            f"the time of a step depends on {', '.join(missing)}: give a number, --at {example} (at= in Python)"
        )


def _planned(
    model: Model,
    optimizer: Optimizer,
    clip: Clip | None,
    options: Options,
    at: Mapping[str, int],
    on: str | Rates,
    steps: int | None,
    cluster: str | Machines | None,
) -> StepPlan:
    model.require_loss()
    require_sizes(model, at, options)
    mesh = parse_mesh(options.mesh)
    if not mesh.is_alone and (options.backend != "eager" or on not in (CPU,) and not isinstance(on, Rates)):
        raise UsageError("a rank of a mesh is planned on the eager backend of the CPU: leave --backend and --on out")
    rates: Rates
    if isinstance(on, Rates):
        rates = on
    elif on == CPU:
        if options.detect_anomaly:
            raise UsageError("planning with detect_anomaly is not supported; leave it out")
        require_measurable(options)
        model_memory(model, optimizer, options, clip).at(**at)  # raises for wrong sizes before anything is measured
        rates = machine_rates(options.replace(mesh="", zero=0))
    else:
        device, origin = find_device(on)
        rates = device.rates(options.replace(device="cuda"), origin)
        options = options.replace(device="cuda")
    memory = model_memory(model, optimizer, options, clip)
    wire = None if mesh.is_alone else _wire(model, optimizer, clip, options, at, cluster)
    return plan_step(memory, at, rates, model=model.name, batch=batch_size_name(model), steps=steps, wire=wire)


def _wire(
    model: Model,
    optimizer: Optimizer,
    clip: Clip | None,
    options: Options,
    at: Mapping[str, int],
    cluster: str | Machines | None,
) -> Wire:
    """Return the messages of a rank in a step, by the model of the machines in `cluster`."""
    more: dict[str, Any] = {"options": options, "state": model.state, "optimizer": optimizer, "clip": clip}
    report = check_step(model.require_loss(), model.init, *model.batch, **more)
    if not report.ok:
        raise ValidationError(str(report), report)
    mesh = parse_mesh(options.mesh)
    numbers = Mesh(tuple([(axis, at.get(str(size), size)) for axis, size in mesh.axes]))
    sent = int(value_at(report.traffic.sent, at))
    if cluster is None:
        return Wire(numbers.ranks, sent, None)
    found = predicted(report, cluster if isinstance(cluster, Machines) else Machines.read(cluster), numbers, at)
    return Wire(numbers.ranks, sent, found.latency + found.transfer)
