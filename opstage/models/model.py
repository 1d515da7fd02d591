"""`Model`: a model with its config bound to its functions; `Recipe`, how it is trained; the shipped models by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, final

from typing_extensions import override

from ..data import Dataset
from ..ops.dims import ratio
from ..ops.errors import UsageError, nearest
from ..ops.spec import Spec
from ..ops.trees import flatten

MAKE = "make"
"""The function of a model file: config -> Model."""


@dataclass(frozen=True)
class Model:
    """A model ready to be trained, checked or graphed.

    init      declarations of the parameters
    loss      (ops, params, *batch, train=) -> scalar; with `state`
              (ops, params, state, *batch, train=) -> (scalar, Aux); None for a model that predicts only
    metrics   (ops, params, [state,] *batch) -> sums over the batch by name; a sum called `count` divides the others
              (default: the number of samples). Of a name that ends in `_l2` the root of that mean is reported. None:
              the loss alone
    batch     one Spec per batch argument, its batch size symbolic
    state     declarations of the state (running statistics), None for a model without
    outputs   what it predicts, (ops, params, [state,] *inputs) -> tree, in evaluation form: its arguments are those of
              the batch that a prediction is made from, by their names. An entry called `class` holds class numbers.
              None for a model that predicts nothing
    names     what files of another library call the parameters, path -> name with `{}` for the number of a layer, as
              `opstage.interop.weights.read_named` takes them; `opstage import-weights` goes by it
    metadata  other strings in the model's file, by key. `input.x` is the file's name of an input
              that the programs call x

    Raises:
        UsageError: init, loss, metrics or specs that are none.
    """

    name: str
    config: Any
    init: Any
    loss: Callable[..., Any] | None
    metrics: Callable[..., Any] | None
    batch: tuple[Spec, ...]
    state: Any = None
    outputs: Callable[..., Any] | None = None
    names: Mapping[str, str] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise UsageError for a field of the wrong type."""
        if not isinstance(self.name, str):
            raise UsageError(f"a model's name must be a string but is {self.name!r}")
        for name, needed in (("loss", self.outputs is None), ("metrics", False), ("outputs", False)):
            program = getattr(self, name)
            if not callable(program) and (needed or program is not None):
                raise UsageError(f"model {self.name}: {name}= must be a program (ops, params, …) but is {program!r}")
        example = "batch=(Spec('B 64'), Spec('B', dtype='int64'))"
        if not isinstance(self.batch, (tuple, list)) or isinstance(self.batch, Spec):
            kind = type(self.batch).__name__
            raise UsageError(
                f"model {self.name}: batch= is a {kind}; give a tuple with a Spec for each argument: {example}"
            )
        if any(isinstance(spec, str) for spec in self.batch):
            raise UsageError(f"model {self.name}: batch= has a string; make a Spec of it: {example}")

    @property
    def batch_starts(self) -> int:
        """Return the index of the first batch argument of its programs: after ops, parameters and any state."""
        return 2 if self.state is None else 3

    @property
    def forward(self) -> Callable[..., Any]:
        """Return the program that takes the whole batch: the loss, or the outputs of a model without one."""
        program = self.loss if self.loss is not None else self.outputs
        assert program is not None
        return program

    def require_loss(self) -> Callable[..., Any]:
        """Return the loss. Raises UsageError for a model without one."""
        if self.loss is None:
            raise UsageError(
                f"model {self.name} lacks a loss, so it only predicts; to train or evaluate an imported model, "
                "choose the loss of its output: --model.loss cross_entropy, binary_cross_entropy or mse"
            )
        return self.loss

    @property
    def measures(self) -> Callable[..., Any]:
        """`metrics`, or the loss as the only metric of a model without any."""
        return self.metrics if self.metrics is not None else _loss_alone(self.require_loss(), self.batch_starts - 1)


def of_programs(
    name: str,
    config: Any,
    batch: tuple[Spec, ...],
    *,
    init: Callable[[Any], Any],
    loss: Callable[..., Any],
    metrics: Callable[..., Any],
    outputs: Callable[..., Any],
    state: Callable[[Any], Any] | None = None,
) -> Model:
    """Return the model of a file's functions, each of which takes the config."""
    programs = [partial(program, config=config) for program in (loss, metrics, outputs)]
    first = None if state is None else state(config)
    return Model(name, config, init(config), programs[0], programs[1], batch, first, programs[2])


def image_batch(config: Any) -> tuple[Spec, Spec]:
    """Return the Specs of images (B, inputs, height, width) and their labels, of a config with these sizes and
    `classes`."""
    labels = Spec("B", dtype="int64", range=(0, config.classes - 1))
    return Spec(("B", config.inputs, config.height, config.width)), labels


def list_models(module: ModuleType) -> list[str]:
    """Return the names in a module that are models: `make`, else values of type Model."""
    if callable(getattr(module, MAKE, None)):
        return [MAKE]
    return [name for name, value in vars(module).items() if isinstance(value, Model)]


def _loss_alone(loss: Callable[..., Any], trees: int) -> Callable[..., Any]:
    """Return the loss as a metric: its mean over the batch times the number of rows; the batch follows `trees`
    arguments."""

    def metrics(ops: Any, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        result = loss(ops, *arguments, **keywords)
        value = result[0] if isinstance(result, tuple) else result
        rows = flatten(arguments[trees:])[0][0].shape[0]
        return {"loss": ops.scale(value, c=ratio(rows, 1))}

    metrics.__signature__ = inspect.signature(loss)  # type: ignore[attr-defined]  # its batch is bound by these names
    return metrics


# Recipes --------------------------------------------------------------------------------------------------------------


Split = tuple[Dataset, Dataset]


@dataclass(frozen=True)
class Recipe:
    """Default settings to train a model, and the value that a held-out metric then reaches (checked by tests).

    data      seed -> (training data, held-out data), bound to the model's batch by their names, or in its order; None
              for a model without default data
    metric    the held-out metric of the goal, "" for none; `goal` its value, reached from above when
              `lower_is_better`
    """

    data: Callable[[int], Split] | None = None
    epochs: int = 10
    batch_size: int = 64
    lr: float = 1e-3
    weight_decay: float | None = None
    metric: str = ""
    goal: float | None = None
    lower_is_better: bool = False
    warmup: float = 0.03
    """The fraction of all steps in which the learning rate rises."""
    clip_norm: float | None = None
    optimizer: str = "adamw"
    """Its name in opstage.optim; muon uses adamw for parameters that are not matrices, at the same rate."""
    read: Callable[[Path | None, float, Any], Split] | None = None
    """For data cut to a model's size: (file, fraction held out, model config) -> split; `data` without a file."""


# The shipped models ---------------------------------------------------------------------------------------------------


_NAMES = ("cnn", "gpt", "lstm", "mlp", "pinn", "resnet", "unet", "vae", "vit")


@final
class _ModelFiles(Mapping[str, ModuleType]):
    """The modules of model files, each imported on first use."""

    @override
    def __getitem__(self, name: str) -> ModuleType:
        if name not in _NAMES:
            raise KeyError(name)
        return import_module(f"{__package__}.{name}")

    @override
    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    @override
    def __len__(self) -> int:
        return len(_NAMES)


MODELS: Mapping[str, ModuleType] = _ModelFiles()
"""Each module has a dataclass `Config`, `make(config) -> Model` and `RECIPE`."""


def shipped_name(module: ModuleType | None) -> str | None:
    """Return the name of the shipped model in that module; None for any other module."""
    package, _, name = module.__name__.rpartition(".") if module is not None else ("", "", "")
    return name if package == __package__ and name in MODELS and MODELS[name] is module else None


def model(name: str, config: Any = None) -> Model:
    """Build the shipped model called `name`; a UsageError for an unknown name suggests the nearest one.

    Raises:
        UsageError: an unknown model or field of its Config.
    """
    if name not in MODELS:
        raise UsageError(f"unknown model {name!r}{nearest(name, MODELS)}; shipped are {', '.join(sorted(MODELS))}")
    module = MODELS[name]
    made: Model = module.make(module.Config() if config is None else config)
    return made
