"""`Task`: what a configuration means, made: model, data, trainer, optimizer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, final

from ..data import Batches, Dataset, Loader, Prefetch
from ..init import Plan, build
from ..models import Model
from ..models import model as shipped_model
from ..training.optim import Optimizer
from ..training.parameters import plan_params
from ..training.recipes import Recipe
from ..training.recipes import recipe as shipped_recipe
from ..training.trainer import ScalarTrainer, scalar_trainer
from .settings import Settings
from .sources import load_data
from .versions import data_digest


@final
@dataclass(frozen=True)
class Task:
    """A run that is ready to start. `check_seconds` is what checking the shapes of the whole step took."""

    settings: Settings
    model: Model
    recipe: Recipe
    training: Dataset
    held_out: Dataset
    trainer: ScalarTrainer
    optimizer: Optimizer
    batches: Batches
    test_batches: Batches
    check_seconds: float

    @property
    def steps(self) -> int:
        """Training steps of the whole run."""
        return self.settings.run.epochs * len(self.batches)

    @property
    def data(self) -> dict[str, Any]:
        """The digests of the data."""
        return {"training": data_digest(self.training), "held_out": data_digest(self.held_out)}


def prepare(settings: Settings) -> Task:
    """Load the data, make the trainer (which checks the shapes of the whole step) and the optimizer."""
    run, options = settings.run, settings.options
    chosen, recipe = shipped_model(run.model, settings.model), shipped_recipe(run.model)
    training, held_out = load_data(settings, chosen, recipe)
    batches: Batches = Loader(training, settings.data.batch_size, seed=options.seed, drop_last=True)
    if settings.data.prefetch:
        batches = Prefetch(batches, settings.data.prefetch)
    test_batches = Loader(held_out, min(256, len(held_out)), shuffle=False)
    optimizer = settings.optimizer.make(run.epochs * len(batches))
    params = plan_params(Plan.of(chosen.init), chosen.init, options)
    state = None if chosen.state is None else build(chosen.state, dtype=options.dtype, seed=options.seed)
    start = time.perf_counter()
    trainer = scalar_trainer(
        chosen.loss, params, *chosen.batch, options=options, state=state, clip=settings.optimizer.make_clip()
    )
    seconds = time.perf_counter() - start
    return Task(settings, chosen, recipe, training, held_out, trainer, optimizer, batches, test_batches, seconds)
