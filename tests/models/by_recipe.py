"""Training a shipped model by its recipe, as `opstage train` does."""

from __future__ import annotations

from typing import Any

import opstage.models as models
from opstage import Options
from opstage.data import Loader
from opstage.init import build
from opstage.runs.settings import configure
from opstage.training.fit import EpochResult, fit
from opstage.training.trainer import ScalarTrainer, scalar_trainer


def trained(
    name: str, *, seed: int = 0, epochs: int | None = None, data: Any = None, config: Any = None
) -> tuple[ScalarTrainer, EpochResult]:
    """A trained trainer and its last epoch; what is None is the recipe's."""
    settings = configure(name, environ={}).settings
    model = models.model(name, config)
    training, held_out = models.MODELS[name].RECIPE.data(seed) if data is None else data
    epochs = settings.run.epochs if epochs is None else epochs
    batches = Loader(training, settings.data.batch_size, seed=seed, drop_last=True)
    state = None if model.state is None else build(model.state, seed=seed)
    trainer = scalar_trainer(
        model.loss,
        build(model.init, seed=seed),
        *model.batch,
        options=Options(seed=seed),
        state=state,
        clip=settings.optimizer.make_clip(),
    )
    optimizer = settings.optimizer.make(epochs * len(batches))
    test_batches = Loader(held_out, min(256, len(held_out)), shuffle=False)
    return trainer, fit(trainer, optimizer, batches, test_batches, model.metrics, epochs=epochs)[-1]
