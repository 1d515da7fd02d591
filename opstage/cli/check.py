"""`opstage check MODEL`: is a shipped model's whole training step right, for every batch size?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..experiment.settings import configure
from ..interpreters.registry import make_interpreter
from ..models import model as shipped_model
from ..training.validate import check_step
from .flags import OPTION_PATHS, DottedCommand, flag_layer, with_option_flags


@click.command(cls=DottedCommand)
@click.argument("model", required=False)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A TOML file with any of the settings.")
@with_option_flags
def check(model: str | None, config: Path | None, **flags: Any) -> int:
    """Check MODEL's forward pass, backward pass and update on shapes alone. Exit code 0 if it is right, 1 if not.

    MODEL is cnn by default; its configuration is taken as by train, for instance --model.dense 64.
    """
    settings = configure(model, file=config, flags=[flag_layer(OPTION_PATHS, flags)]).settings
    options = settings.options
    chosen = shipped_model(settings.run.model, settings.model)
    make_interpreter(options)  # options that name none are unusable, which is no finding
    report = check_step(chosen.loss, chosen.init, *chosen.batch, options=options, state=chosen.state)
    click.echo(f"{settings.run.model}, one training step:")
    for name, type_ in report.inputs:
        click.echo(f"  {name:<28} {type_}")
    click.echo(str(report))
    return 0 if report.ok else 1
