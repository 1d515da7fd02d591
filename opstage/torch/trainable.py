"""A PyTorch program as a `Model`, as the commands and `opstage.fit` expect it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..imported.network import supervised
from ..models.model import Model
from ..ops.errors import UnsupportedError, UsageError
from ..ops.spec import Spec
from ..ops.untrusted import a_type
from .model import TorchModel, load


@dataclass(frozen=True)
class Config:
    """Settings for loading and training a program of torch.export.

    loss     cross_entropy, binary_cross_entropy (both of logits) or mse; left out, the model predicts only
    output   the output that is compared with the labels, by default the only one
    sizes    other names for open sizes, `x_0=batch`, and `where`: constraints on them, see `load`
    """

    loss: str = ""
    output: str = ""
    sizes: tuple[str, ...] = ()
    where: tuple[str, ...] = ()


def trainable(model: TorchModel, config: Config) -> Model:
    """Return the Model of a program: see `opstage.imported.network.supervised`. Raises UsageError for an unknown loss,
    and UnsupportedError for inputs that are trees."""
    for name, spec in model.inputs.items():
        if not isinstance(spec, Spec):
            raise UnsupportedError(f"the input {name!r} is {a_type(spec)}; data are bound to single tensors")
    return supervised(model.network, config, loss=config.loss, output=config.output)


def configured(path: Path, config: Config) -> Model:
    """Return the Model of a file, loaded as `config` says."""
    sizes = {}
    for word in config.sizes:
        old, equals, new = word.partition("=")
        if not (old.strip() and equals and new.strip()):
            raise UsageError(f"model.sizes: {word!r} is not a name and another one, as in x_0=batch")
        sizes[old.strip()] = new.strip()
    return trainable(load(path, sizes=sizes, where=config.where), config)
