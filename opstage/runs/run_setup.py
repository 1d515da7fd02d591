"""`Task`: the objects that a configuration describes: model, data, trainer, optimizer."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, final

from ..data import Batches, Dataset, Loader, Prefetch, bind
from ..data.loader import larger_batch
from ..data.preparation import Preparation
from ..models import Model
from ..ops.errors import UsageError
from ..ops.mesh import parse_mesh
from ..ops.tied_parameters import Places
from ..optim import Optimizer
from ..optim.groups import flags_by_rules
from ..options import Options
from ..training.accumulate import Accumulate
from ..training.parameters import first_trees, requires_grad_flags
from ..training.sharding import DATA
from ..training.trainer import ScalarTrainer, scalar_trainer
from .directory import data_digest
from .evaluation import check_parts
from .run_data import in_order, load_data, load_python_data
from .settings import Settings

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@final
@dataclass(frozen=True)
class Task:
    """A run that is ready to start. `check_seconds` is the time spent checking the shapes of the whole step.

    provided      a description of the optimizer if it was passed in; empty if it comes from the settings
    preparation   the preparation learned from a data file, for reading other data the same way
    unscaled      the digest of the held-out data before scaling; None if they are not scaled
    """

    settings: Settings
    model: Model
    training: Dataset
    held_out: Dataset
    trainer: ScalarTrainer
    optimizer: Optimizer
    batches: Batches
    test_batches: Batches
    check_seconds: float
    provided: str = ""
    preparation: Preparation | None = None
    unscaled: dict[str, Any] | None = None

    @property
    def steps(self) -> int:
        """Return the number of training steps of the whole run."""
        return self.settings.run.epochs * len(self.batches)

    @property
    def left_out(self) -> str:
        """Return a sentence about the samples that each epoch omits, too few for a batch; "" if there are none."""
        size, rows = self.settings.data.batch_size, len(self.training)
        if rows % size == 0:
            return ""
        return (
            f"each epoch leaves out {rows % size} of the {rows} samples, others each time: all batches have {size} "
            "(batch_size)"
        )

    @property
    def data(self) -> dict[str, Any]:
        """Return the digests of the data."""
        return {"training": data_digest(self.training), "held_out": data_digest(self.held_out)}


@final
@dataclass(frozen=True)
class Provided:
    """Parts of a task that are passed in, instead of built from the settings."""

    data: tuple[Dataset, Dataset] | None = None
    trainer: ScalarTrainer | None = None
    optimizer: Optimizer | None = None


def least_batch(settings: Settings) -> int:
    """Return the least number of rows that the ranks of the mesh can divide into the parts of gradient accumulation."""
    return _ranks(settings) * settings.parts


def _ranks(settings: Settings) -> int:
    ranks: int = parse_mesh(settings.options.mesh).require_numbers().size(DATA)
    return ranks


def prepare(settings: Settings, given: Provided | None = None) -> Task:
    """Load the data, and create the trainer (which checks the shapes of the whole step) and the optimizer."""
    given = Provided() if given is None else given
    run, options = settings.run, settings.options
    chosen = settings.defined.make(settings.model)
    if given.data is None:
        loaded = load_data(settings, chosen, settings.defined.recipe)
    else:
        loaded = load_python_data(*given.data, chosen)
    training, held_out = loaded.training, loaded.held_out
    size = settings.data.batch_size
    if size > len(training):
        raise UsageError(
            f"{larger_batch(size, len(training))}: --batch-size {len(training)}, in Python batch_size={len(training)} "
            f"({len(held_out)} rows more are held out)"
        )
    ranks, least = _ranks(settings), least_batch(settings)
    if ranks > 1 and size % least:
        parts = f" in {settings.parts} parts" if settings.parts > 1 else ""
        raise UsageError(
            f"mesh {options.mesh!r}: {ranks} ranks cannot share batches of {size} samples{parts} equally; give batches "
            f"of {-(-size // least) * least}, or another mesh"
        )
    batches: Batches = Loader(training, size, seed=options.seed, drop_last=True)
    if settings.data.prefetch:
        batches = Prefetch(batches, settings.data.prefetch)
    test_batches: Batches = in_order(held_out)
    made = given.optimizer
    if made is not None and settings.optimizer.groups.strip():
        raise UsageError("an Optimizer has its own groups, see optim.grouped; leave optimizer.groups out")
    optimizer = made if made is not None else settings.optimizer.make(run.epochs * len(batches))
    start = time.perf_counter()
    trainer = given.trainer
    if trainer is None:
        clip, (params, state) = settings.optimizer.make_clip(), first_trees(chosen, options)
        flags = _flags(settings.optimizer.freeze, params, options)
        more: dict[str, Any] = {"options": options, "state": state, "clip": clip, "requires_grad": flags}
        more["accumulate"] = Accumulate(settings.parts, run.accumulate_by)
        more["gradient_norm"] = run.gradient_norm
        trainer = scalar_trainer(chosen.require_loss(), params, *chosen.batch, **more)
    elif settings.optimizer.freeze or run.accumulate != 1 or run.gradient_norm:
        rest = "run.accumulate" if run.accumulate != 1 else "run.gradient_norm"
        what = "optimizer.freeze" if settings.optimizer.freeze else rest
        raise UsageError(
            f"a ScalarTrainer takes requires_grad=, accumulate= and gradient_norm= itself; leave {what} out"
        )
    if options.validate and given.trainer is None:
        errors = check_parts(chosen, options)
        if errors:
            said = "\n".join(str(error) for error in errors)
            raise UsageError(
                f"model {chosen.name}: its loss passes the check, but its metrics or outputs do not\n{said}"
            )
    seconds = time.perf_counter() - start
    batches = bind(batches, trainer.batch_arguments, "the loss")
    test_batches = bind(test_batches, trainer.batch_arguments, "the loss")
    trainer.moved_by(optimizer)  # raises for groups that match no parameter
    said = "" if made is None else _ADDRESS.sub("", repr(made))
    return Task(
        settings=settings,
        model=chosen,
        training=training,
        held_out=held_out,
        trainer=trainer,
        optimizer=optimizer,
        batches=batches,
        test_batches=test_batches,
        check_seconds=seconds,
        provided=said,
        preparation=loaded.preparation,
        unscaled=loaded.unscaled,
    )


def _flags(pattern: str, params: Any, options: Options) -> Any:
    """Return a tree of which parameters are trained if those that match a pattern are frozen; None: the default."""
    if not pattern.strip():
        return None
    usual = requires_grad_flags(params, None, options)
    places = Places.of(params)
    flags = flags_by_rules({pattern: False}, places.all_paths, usual, "optimizer.freeze")
    if any(usual) and not any(flags):
        raise UsageError(
            f"optimizer.freeze {pattern!r} freezes every parameter, so nothing would be trained; "
            "make the pattern narrower"
        )
    return places.tree(flags)
