"""`opstage bench`: time a training step, and each of its kernels. `opstage plan`: predict its time, with the causes."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import click

from ..config import Layer
from ..interpreters.graph.compiled import CompiledOps
from ..interpreters.graph.cpu.cost import measure_limits
from ..interpreters.graph.profile import Profile, profile
from ..models import Model
from ..ops.errors import UsageError
from ..planning.calibration import machine_rates
from ..runs.plan import CPU, measure_settings
from ..runs.plan import plan as predict_step
from ..runs.predictions import initial_predictor, random_inputs
from ..runs.run_setup import Task, prepare
from ..runs.settings import Settings, configure
from .commands import OPTION_PATHS, flag_layer, model_command, read_sizes, run_or_model

_WARM_UP = 3
_LEAST_STEPS = 5
_ROWS = 30
_BENCH_PATHS = {"batch_size": "data.batch_size", "data": "data.file", **OPTION_PATHS}


@model_command()
@click.option("--profile", "profiled", is_flag=True, help="Time each kernel of a compiled step.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--seconds", type=float, default=2.0, show_default=True, metavar="S", help="Time to measure, at least five steps."
)
@click.option("--batch-size", type=int, metavar="N", help="Examples per step (default: the recipe's).")
@click.option("--data", metavar="FILE", help="Data file (default: the data of the recipe).")
@click.option("--at", metavar="T=128,…", default="", help="Sizes of named dims of a model without a loss.")
def bench(
    model: str | None, profiled: bool, as_json: bool, seconds: float, at: str, config: Path | None, **flags: Any
) -> None:
    """Time training steps of MODEL (cnn by default) on one batch of the data of its recipe.

    For a model without a loss, such as an ONNX file, time predictions for generated inputs.

    --profile times every kernel of a compiled step separately, and compares its bytes and operations with the limits
    measured on this machine. Above 100 % of a limit, operands were in the caches. The default backend of --profile is
    compiled.
    """
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"--seconds {seconds}: expected a number of seconds, 0 or more")
    layer = flag_layer(_BENCH_PATHS, flags)
    configuration = configure(model, file=config, flags=[layer])
    if profiled and configuration.origins["options.backend"] == "default":
        implied = Layer({"options.backend": "compiled"}, {"options.backend": "--profile"})
        configuration = configure(model, file=config, flags=[layer, implied])
    settings = configuration.settings
    chosen = settings.defined.make(settings.model)
    if chosen.loss is None:
        if profiled:
            raise UsageError(f"--profile: not supported for {chosen.name}, a model without a loss; leave it out")
        _bench_predictions(settings, chosen, read_sizes(at), seconds, as_json)
        return
    if at:
        raise UsageError("--at: not supported for a model with a loss, which has the sizes of its data; leave it out")
    if profiled:
        _require_kernels(settings)
    task = prepare(settings)
    step = _steps(task)
    figures = {**_described(settings, task.trainer.parameter_count), **_timed(step, seconds)}
    if not as_json:
        click.echo(_said(figures))
    if profiled:
        limits = measure_limits(settings.options.dtype)
        interpreter = task.trainer.in_front(lambda inner: inner)
        assert isinstance(interpreter, CompiledOps)
        made = profile(interpreter.programs.executors[-1], step, limits)
        figures["profile"] = made.as_data()
        if not as_json:
            click.echo(_shown(made))
    if as_json:
        click.echo(json.dumps(figures, indent=1))


def _require_kernels(settings: Settings) -> None:
    options = settings.options
    if (options.backend, options.device) != ("compiled", "cpu"):
        raise UsageError(
            f"--profile: expected backend 'compiled' on cpu, got {options.backend!r} on {options.device}; leave "
            "--profile out, or give --backend compiled --device cpu"
        )
    if options.detect_anomaly:
        raise UsageError("--profile: not supported with detect_anomaly, which changes the step; leave one of them out")


def _steps(task: Task) -> Callable[[], Any]:
    """Return a function that runs successive training steps on the first batch and returns the loss."""
    if not task.trainer.executes:
        raise UsageError(
            f"backend {task.settings.options.backend!r}: not supported, since it does not compute values; "
            "use eager or compiled"
        )
    epoch = task.batches.epoch(0)
    (batch,) = islice(epoch, 1)
    epoch.close()
    state = task.trainer.init_optim(task.optimizer)

    def step() -> Any:
        return task.trainer.advance(task.optimizer, state, *batch).loss

    return step


def _bench_predictions(settings: Settings, model: Model, sizes: dict[str, int], seconds: float, as_json: bool) -> None:
    """Time a prediction-only model, on inputs of one row or of `--batch-size` rows."""
    predictor = initial_predictor(model, settings.options)
    inputs = random_inputs(predictor, settings.data.batch_size, sizes)
    rows = inputs[0].shape[0] if inputs and inputs[0].ndim else 1
    figures = {
        **_described(settings, predictor.parameter_count),
        **_timed(lambda: predictor(*inputs, rows=max(rows, 1)), seconds),
        "measured": "predictions",
        "batch_size": rows,
    }
    click.echo(json.dumps(figures, indent=1) if as_json else _said(figures, "prediction"))


def _described(settings: Settings, parameters: int) -> dict[str, Any]:
    options, data = settings.options, settings.data
    return {
        "model": settings.defined.called,
        "parameters": parameters,
        "batch_size": data.batch_size,
        "backend": options.backend,
        "device": options.device,
        "dtype": options.dtype,
    }


def _timed(step: Callable[[], Any], seconds: float) -> dict[str, Any]:
    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    for _ in range(_WARM_UP):
        step()
    taken: list[float] = []
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(taken) < _LEAST_STEPS:
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return {
        "first_step_s": first,
        "steps": len(taken),
        "median_ms": 1e3 * statistics.median(taken),
        "best_ms": 1e3 * min(taken),
    }


def _said(figures: dict[str, Any], what: str = "step") -> str:
    rate = 1e3 * figures["batch_size"] / figures["median_ms"]
    said = f"first {what} {figures['first_step_s']:.2f} s; median of {figures['steps']} more"
    return (
        f"{figures['model']}: {figures['parameters']:,} parameters, batches of {figures['batch_size']}; backend "
        f"{figures['backend']} on {figures['device']}, {figures['dtype']}\n"
        f"{said} {figures['median_ms']:.3f} ms, best {figures['best_ms']:.3f} ms; {rate:,.0f} samples/s"
    )


def _shown(made: Profile) -> str:
    return (
        f"this machine at most: {made.limits}\n\n{made.table(_ROWS)}\n\n"
        f"at that limit all kernels would take {1e3 * made.least_seconds:.3f} ms"
    )


# opstage plan ---------------------------------------------------------------------------------------------------------

_PLAN_PATHS = {**OPTION_PATHS, "mesh": "options.mesh", "zero": "options.zero"}


@model_command()
@click.option("--at", metavar="B=64,…", default="", help="Sizes of named dims (default: the recipe's).")
@click.option(
    "--on",
    metavar="DEVICE",
    default=CPU,
    show_default=True,
    help="Machine: cpu (this one), a100, h100, h200, FILE.",
)
@click.option("--calibrate", is_flag=True, help="Measure the rates of this machine again.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Predict time and energy of N steps.")
@click.option("--epochs", type=click.IntRange(1), metavar="N", help="Predict time and energy of N epochs.")
@click.option("--mesh", metavar="AXES", help="Predict the step of a rank of a mesh: data=4.")
@click.option("--zero", type=int, metavar="LEVEL", help="With --mesh: level of ZeRO, as for train.")
@click.option("--cluster", metavar="FILE", help="With --mesh: machines, as for check --cluster.")
@click.option("--measure", is_flag=True, help="Run the step, and compare it with the prediction.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    model: str | None,
    at: str,
    on: str,
    calibrate: bool,
    steps: int | None,
    epochs: int | None,
    cluster: str | None,
    measure: bool,
    as_json: bool,
    config: Path | None,
    **flags: Any,
) -> None:
    """Predict time and memory of a training step of MODEL (cnn by default).

    The plan has the time of each block with its bottleneck, the memory, the largest batch that fits, and the cost of a
    run. MODEL is a shipped model, a model file or a run, configured as by train. --on may name a TOML file of rates.
    The rates of this machine are measured once, in a few seconds, and stored.
    """
    settings = run_or_model(model, config, _PLAN_PATHS, flags, "plan")
    if calibrate:
        if on != CPU:
            raise UsageError(f"--calibrate: measures this machine, but the plan is for {on}; leave one of them out")
        machine_rates(settings.options.replace(mesh="", zero=0), remeasure=True)
    made = predict_step(settings, at=read_sizes(at), on=on, steps=steps, epochs=epochs, cluster=cluster)
    found = measure_settings(settings, made) if measure else None
    if as_json:
        data = made.as_data() if found is None else made.as_data() | {"measured": found.as_data()}
        click.echo(json.dumps(data, indent=1))
    else:
        click.echo(str(made) if found is None else f"{made}\n\n{found}")
