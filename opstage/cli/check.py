"""`opstage check MODEL`: is a shipped model's whole training step right, for every batch size?"""

from __future__ import annotations

import click

from ..init import build
from ..models import model as shipped_model
from ..options import Options
from ..training.trainer import check_trainer
from .flags import with_options


@click.command()
@click.argument("model", default="cnn")
@with_options
def check(model: str, options: Options) -> int:
    """Check MODEL's forward pass, backward pass and update on shapes alone. Exit code 0 if it is right, 1 if not."""
    chosen = shipped_model(model)
    params = build(chosen.init, dtype=options.dtype, seed=options.seed)
    state = None if chosen.state is None else build(chosen.state, dtype=options.dtype, seed=options.seed)
    report = check_trainer(chosen.loss, params, *chosen.batch, options=options, state=state)
    click.echo(f"{model}, one training step:")
    for name, type_ in report.inputs:
        click.echo(f"  {name:<28} {type_}")
    click.echo(str(report))
    return 0 if report.ok else 1
