"""`Trained`: the model of a run, for prediction, evaluation and export."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, final

from ..config import spelled
from ..data import Dataset, from_arrays, from_file, from_frame
from ..data.file import read_arrays
from ..data.preparation import FewRows, Preparation, arrays_named
from ..files import Document
from ..models import Model
from ..ops.array_conversion import is_table
from ..ops.errors import UsageError, a_type, nearest, printable
from ..ops.tracebacks import called_by_users
from ..options import Options
from ..training import checkpoint as checkpoint
from ..training.fit import EpochResult
from ..training.fit import evaluate as evaluate_batches
from ..training.parameters import first_trees
from ..training.predictor import ROWS, Predictor
from ..training.trainer import ScalarTrainer, scalar_trainer
from .directory import BEST, CHECKPOINT, CONFIG, RUN, data_digest, other_version, read_preparation, read_run
from .evaluation import model_metrics
from .model_files import define_model
from .progress import format_metrics
from .run_data import in_order, load_data
from .settings import Configuration, configure_saved


@final
class Trained:
    """The trained model of a run.

    model            the model; `trainer` holds its parameters
    results          the results of the run's epochs
    configuration    the run's settings
    directory        the run directory; None for a run without one
    preparation      what the run learned from the data file; None for other data
    """

    def __init__(
        self,
        model: Model,
        trainer: ScalarTrainer,
        results: Sequence[EpochResult],
        configuration: Configuration,
        held_out: Dataset | None = None,
        preparation: Preparation | None = None,
    ):
        """See `load` and `fit`. `held_out` are the held-out data, if they are in memory."""
        self.preparation = preparation
        self.model = model
        self.trainer = trainer
        self.results = tuple(results)
        self.configuration = configuration
        self.directory = configuration.settings.run.out
        self._held_out = held_out
        self._predictor: Predictor | None = None
        self._few: FewRows | None = None

    def __repr__(self) -> str:
        epochs = len(self.results)
        parts = [self.model.name, f"{epochs} epoch{'s' * (epochs != 1)}"]
        if self.results and self.results[-1].held_out:
            parts.append(f"held-out {format_metrics(self.results[-1].held_out)}")
        if self.directory is not None:
            parts.append(f"kept in {self.directory}")
        return printable(f"Trained({'; '.join(parts)})")

    @property
    def predictor(self) -> Predictor:
        """Return the predicting function. Raises UsageError for a model without one."""
        if self._predictor is None:
            self._predictor = Predictor(self.model, self.trainer)
            if self.preparation is not None:
                self._few = FewRows(self.preparation, self._predictor.names)
        return self._predictor

    @called_by_users
    def predict(self, *inputs: Any, rows: int = ROWS, **named: Any) -> Any:
        """Return the outputs, a tree of arrays with a row for each one given, `rows` of them computed at a time.

        Inputs have the form of the training data: a file, a Dataset, a dict of arrays, or arrays, lists or data frames
        by position or by name. They are cast and scaled like the training data. Columns of a data frame are matched by
        name if the run was trained on named columns. See `Predictor` for the errors.
        """
        predictor = self.predictor
        if self._few is not None and not named and (few := self._few(inputs)) is not None:
            return predictor(*few, rows=rows)
        by_name = self.preparation is not None and self.preparation.features is not None
        if len(inputs) == 1 and not named and (_is_source(inputs[0]) or (by_name and is_table(inputs[0]))):
            dataset = self.prepared(inputs[0])
            return predictor(*[dataset[name] for name in predictor.names], rows=rows)
        if self.preparation is None:
            return predictor(*inputs, rows=rows, **named)
        given = dict(zip(predictor.names, predictor.arguments(inputs, named)))
        return self.predict(given, rows=rows)

    @called_by_users
    def evaluate(self, data: Source | None = None) -> dict[str, float]:
        """Return the metrics, as `opstage train` prints them, on `data` with labels, or on what the run held out.

        Raises UsageError if the run's own data have changed.
        """
        return self.evaluate_dataset(self.prepared_rows(data))

    @called_by_users
    def evaluate_dataset(self, dataset: Dataset) -> dict[str, float]:
        """Return the metrics on rows that are cast and scaled for the loss, as `prepared_rows` returns them.

        Raises:
            UsageError: arrays that do not match the batch arguments of the loss.
        """
        return evaluate_batches(self.trainer, model_metrics(self.model, self.trainer.options), in_order(dataset))

    @called_by_users
    def judge(self, dataset: Dataset) -> dict[str, float]:
        """Return `evaluate_dataset(dataset)`; deprecated, removed in the next release."""
        warnings.warn("Trained.judge is deprecated; use Trained.evaluate_dataset", DeprecationWarning, stacklevel=3)
        return self.evaluate_dataset(dataset)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Return the names of the classes that the run's labels had; None where they were numbers."""
        return None if self.preparation is None else self.preparation.classes

    @called_by_users
    def prepared(self, source: Source) -> Dataset:
        """Return rows cast and scaled for `predictor` like the run's training data.

        `predict` does this itself; do not pass it the result.
        """
        names = self.predictor.names
        if self.preparation is not None:
            return self.preparation.inputs(source, names)
        if isinstance(source, (str, os.PathLike)):
            return read_arrays(source, names)
        if isinstance(source, Mapping):
            return from_arrays(**arrays_named(source, names))
        assert isinstance(source, Dataset)
        return source.only(*names)

    @called_by_users
    def prepared_rows(self, source: Source | None = None) -> Dataset:
        """Return rows with labels as the loss expects them, for `evaluate_dataset`; None: those that the run held out.

        `evaluate` does this itself; do not pass it the result.
        """
        if source is None:
            return self._own_held_out()
        if self.preparation is not None:
            return self.preparation.labelled(source)
        if isinstance(source, (str, os.PathLike)):
            return from_file(source)
        if is_table(source):
            return from_frame(source)
        if not isinstance(source, (Dataset, Mapping)):
            raise UsageError(f"data is {a_type(source)}; expected a file, a Dataset, a data frame, or a dict of arrays")
        return from_arrays(**source) if isinstance(source, Mapping) else source

    def _own_held_out(self) -> Dataset:
        """Return the rows that the run was not trained on. Raises UsageError if they have changed since."""
        if self._held_out is not None:
            return self._held_out
        settings, directory = self.configuration.settings, self.directory
        assert directory is not None
        recipe = settings.defined.recipe
        if settings.data.file is None and recipe.data is None and recipe.read is None:
            raise UsageError(f"{directory}: its held-out data were given in Python; give data to evaluate it on")
        held_out = load_data(settings, self.model, recipe).held_out
        began = read_run(directory / RUN)["data"].get("held_out")
        if began != data_digest(held_out):
            why = "have changed since it was started"
            if settings.data.file is None:
                why = f"are not those of {settings.run.model} now: they were given in Python, or have changed since"
            raise UsageError(f"{directory}: its held-out data {why}; name data to use")
        return held_out


def _is_source(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike, Dataset, Mapping))


class OtherVersionWarning(UserWarning):
    """A run that another version of Opstage has trained."""


Source: TypeAlias = "str | os.PathLike[str] | Dataset | Mapping[str, Any] | Any"

WHICH = ("last", "best", "ema")
"""The parameters that a run may have kept: of its last checkpoint, of its best epoch, their moving average."""


@called_by_users
def load(
    run: str | os.PathLike[str], *, which: str = "last", options: Options | None = None, model: Model | None = None
) -> Trained:
    """Return the model that the run in a directory has trained.

    which     "last": the parameters of the last checkpoint; "best": those of the best epoch, which a run with
              `callbacks.best` keeps; "ema": their moving average, which one with `callbacks.ema` has
    options   on what it predicts; by default what the run was trained with
    model     the model, for a run of one that was made in Python; any other is that of the files that the run has kept,
              whatever has become of the originals: code in the run's source/ is run

    Raises UsageError for a directory that holds no run, a half-written or damaged one, one of another format,
    and one of another model. Warns where another version of Opstage has trained it.

    Raises:
        UsageError: no run directory, or one that is damaged or of another version.
    """
    for name, value, kinds, expected in (
        ("run", run, (str, os.PathLike), "the path of a run directory"),
        (
            "model",
            model,
            (Model, type(None)),
            "the opstage.Model that a run in Python was made of; leave it out for one of a file",
        ),
        ("options", options, (Options, type(None)), "an opstage.Options"),
    ):
        if not isinstance(value, kinds):
            raise UsageError(f"{name}= is {a_type(value)}; expected {expected}")
    directory = Path(run)
    if not directory.is_dir():
        raise UsageError(f"{directory}: the run directory does not exist")
    configuration = configure_saved(directory, defined=None if model is None else define_model(model))
    settings = configuration.settings
    options = options if options is not None else settings.options
    chosen = settings.defined.make(settings.model)
    params, state = first_trees(chosen, options)
    trainer = scalar_trainer(chosen.require_loss(), params, options=options, state=state)
    if not trainer.executes:
        raise UsageError(f"backend {options.backend!r} computes no values, so it cannot predict; try 'compiled'")
    snapshot = checkpoint.load(_folder(directory, which))
    _require_same_model(directory, snapshot.config, configuration)
    values = snapshot.trainer
    if which == "ema":
        kept = snapshot.callbacks.get("ema")
        if kept is None or not kept.arrays:
            raise UsageError(
                f"{directory} lacks a moving average of its parameters; {spelled({'callbacks.ema': 0.999})} saves one"
            )
        values = replace(values, params={**values.params, **kept.arrays})
    trainer.restore(values)
    preparation = read_preparation(directory)
    if said := other_version(directory):
        warnings.warn(said, OtherVersionWarning, stacklevel=3)  # skips the frame that folds tracebacks
    results = snapshot.position.results
    return Trained(chosen, trainer, results, configuration.with_directory(directory), preparation=preparation)


def _require_same_model(directory: Path, kept: Mapping[str, Any], configuration: Configuration) -> None:
    """Raise UsageError if the run's configuration describes another model than the trained one, since parameters may
    fit all the same."""
    document = Document(dict(kept), f"{directory / CHECKPOINT}: the run's identity", "it is not a checkpoint of a run")
    settings = document.get("settings")
    began: Mapping[str, Any] = {} if settings is None else settings.object()
    for path, now in configuration.literals().items():
        if path.startswith("model.") and began.get(path, now) != now:
            raise UsageError(
                f"{directory / CONFIG}: has {path} = {now}, but the run was trained with {began[path]}; restore it "
                "from a copy"
            )


def _folder(directory: Path, which: str) -> Path:
    """Return the checkpoint that holds these parameters. Raises UsageError if there is none."""
    if which not in WHICH:
        raise UsageError(f"which={which!r}: expected one of {', '.join(WHICH)}{nearest(which, WHICH)}")
    folder = directory / (BEST if which == "best" else CHECKPOINT)
    if checkpoint.exists(folder):
        return folder
    if which == "best":
        raise UsageError(f"{directory} lacks a best epoch; {spelled({'callbacks.best': 'METRIC'})} saves one")
    raise UsageError(f"{directory} holds a run without parameters: {CHECKPOINT} is missing")
