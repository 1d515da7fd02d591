"""`opstage plan MODEL`: predict the time of a training step on a device, with its causes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..ops.errors import UsageError
from ..planning.calibration import machine_rates
from ..runs.plan import CPU, measure_settings, plan_settings, settings_of
from .commands import OPTION_PATHS, DottedCommand, dotted_flags, flag_layer, read_sizes, with_option_flags

_PATHS = {**OPTION_PATHS, "mesh": "options.mesh", "zero": "options.zero"}


@click.command(cls=DottedCommand)
@click.argument("model", required=False)
@click.option(
    "--at", metavar="B=64,…", default="", help="Numbers for named sizes of the batch; the recipe's for others."
)
@click.option(
    "--on",
    metavar="DEVICE",
    default=CPU,
    show_default=True,
    help="cpu, this machine, whose rates are measured; a100, h100, h200 by published peaks; or a TOML file.",
)
@click.option("--calibrate", is_flag=True, help="Measure this machine anew, and keep that.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Hours and energy of a run of so many steps.")
@click.option("--epochs", type=click.IntRange(1), metavar="N", help="The same of so many epochs of the recipe's data.")
@click.option("--mesh", metavar="AXES", help="Plan the step of a rank of a mesh: data=4.")
@click.option("--zero", type=int, metavar="LEVEL", help="With --mesh: ZeRO, as by train.")
@click.option(
    "--cluster", metavar="FILE", help="With --mesh: the machines by which messages are timed, as by check --cluster."
)
@click.option("--measure", is_flag=True, help="Run the step too, and say where the prediction differs and by how much.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A TOML file with any of the settings.")
@with_option_flags
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
    """Predict the time of a training step of MODEL (by default cnn), by block and by what it is bound; its memory, the
    largest batch that fits, and what a run takes.

    MODEL is a shipped model, a file of your own or a run, configured as by train. The rates of this machine are
    measured once, in a few seconds, and kept.
    """
    is_run = model is not None and Path(model).is_dir()
    if is_run and (config is not None or dotted_flags()):
        raise UsageError(f"{model} is a run, which has its own settings; leave --config and other settings out")
    settings = settings_of(model, config, [] if is_run else [flag_layer(_PATHS, flags)])
    if is_run:
        given = {name: value for name, value in flags.items() if value is not None}
        settings = replace(settings, options=settings.options.replace(**given))
    if calibrate:
        if on != CPU:
            raise UsageError(f"--calibrate measures this machine, and the plan is for {on}; leave one of them out")
        machine_rates(settings.options.replace(mesh="", zero=0), anew=True)
    made = plan_settings(settings, read_sizes(at), on, steps=steps, epochs=epochs, cluster=cluster)
    found = measure_settings(settings, made) if measure else None
    if as_json:
        data = made.as_data() if found is None else made.as_data() | {"measured": found.as_data()}
        click.echo(json.dumps(data, indent=1))
    else:
        click.echo(str(made) if found is None else f"{made}\n\n{found}")
