"""The shipped models by name: files in this folder, in the same form as a user's model file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, final

from typing_extensions import override

from ..ops.errors import UsageError, nearest
from .model import Model

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


def name_of(module: ModuleType | None) -> str | None:
    """The name of the shipped model in that module; None for any other module."""
    package, _, name = module.__name__.rpartition(".") if module is not None else ("", "", "")
    return name if package == __package__ and name in MODELS and MODELS[name] is module else None


def model(name: str, config: Any = None) -> Model:
    """The shipped model called `name`; a UsageError for an unknown name suggests the nearest one.

    Raises:
        UsageError: an unknown model or field of its Config.
    """
    if name not in MODELS:
        raise UsageError(f"unknown model {name!r}{nearest(name, MODELS)}; shipped are {', '.join(sorted(MODELS))}")
    module = MODELS[name]
    made: Model = module.make(module.Config() if config is None else config)
    return made
