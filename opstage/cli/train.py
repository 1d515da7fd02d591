"""`opstage train [MODEL]`: check a shipped model's shapes, train it, report its held-out accuracy."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ..data import Loader, from_npz, train_test_split
from ..init import build
from ..models import model as shipped_model
from ..ops.errors import UsageError
from ..options import Options
from ..training import optim, schedule
from ..training.fit import fit
from ..training.recipes import recipe as shipped_recipe
from ..training.trainer import scalar_trainer
from .flags import with_options
from .progress import make_observer


@click.command()
@click.argument("model", default="cnn")
@click.option("--epochs", type=int, metavar="N", help="Passes over the training data (default: the model's recipe).")
@click.option("--lr", type=float, metavar="RATE", help="Peak learning rate (default: the model's recipe).")
@click.option("--batch-size", type=int, metavar="N", help="Samples per step (default: the model's recipe).")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="An .npz file with arrays x and y (default: the embedded digits).",
)
@with_options
def train(
    model: str, epochs: int | None, lr: float | None, batch_size: int | None, data: Path | None, options: Options
) -> None:
    """Train MODEL (cnn or mlp; by default cnn) and print its accuracy on the 20 % of the data that is held out."""
    chosen, recipe = shipped_model(model), shipped_recipe(model)
    epochs = recipe.epochs if epochs is None else epochs
    if epochs < 1:
        raise UsageError(f"--epochs must be at least 1 but is {epochs}")
    if data is None:
        training, held_out = recipe.data(options.seed)
    else:
        training, held_out = train_test_split(from_npz(data, keys=("x", "y")), seed=options.seed)
    loader = Loader(training, batch_size or recipe.batch_size, seed=options.seed, drop_last=True)
    test_loader = Loader(held_out, min(256, len(held_out)), shuffle=False)

    steps = epochs * len(loader)
    rate = schedule.warmup_cosine(
        lr if lr is not None else recipe.lr, warmup_steps=int(recipe.warmup * steps), total_steps=steps
    )
    optimizer = optim.adamw(lr=rate, weight_decay=recipe.weight_decay)
    params = build(chosen.init, dtype=options.dtype, seed=options.seed)

    checked = time.perf_counter()
    clip = None if recipe.clip_norm is None else optim.clip.by_global_norm(recipe.clip_norm)
    state = None if chosen.state is None else build(chosen.state, dtype=options.dtype, seed=options.seed)
    trainer = scalar_trainer(chosen.loss, params, *chosen.batch, options=options, state=state, clip=clip)
    click.echo(
        f"{model}: {trainer.parameter_count:,} parameters; shapes of the whole training step checked for every "
        f"batch size in {1e3 * (time.perf_counter() - checked):.0f} ms"
    )
    click.echo(
        f"data: {len(training)} samples to train on, {len(held_out)} held out; backend {options.backend} on "
        f"{options.device}, {options.dtype}, seed {options.seed}"
    )
    start = time.perf_counter()
    with make_observer(epochs, len(loader)) as observer:
        last = fit(trainer, optimizer, loader, test_loader, chosen.metrics, epochs=epochs, observer=observer)[-1]
    click.echo(
        f"held-out accuracy {100 * last.held_out['accuracy']:.2f} % "
        f"({round(last.held_out['accuracy'] * len(held_out))} of {len(held_out)}), loss {last.held_out['loss']:.4f}, "
        f"after {epochs} epochs in {time.perf_counter() - start:.1f} s"
    )
