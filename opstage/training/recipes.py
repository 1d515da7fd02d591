"""Recipes: for each shipped model the data and the settings that train it to its stated result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data import Dataset, burgers, digits, noisy, text, train_test_split
from ..models import gpt
from ..ops.errors import UsageError, nearest

Split = tuple[Dataset, Dataset]


@dataclass(frozen=True)
class Recipe:
    """How a model is trained by default, and what it then reaches on held-out data (a test holds it to that).

    data      seed -> (training data, held-out data), their arrays in the order of the model's batch
    metric    the held-out metric that is stated; `goal` its value, reached from above when `lower_is_better`
    """

    data: Callable[[int], Split]
    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    metric: str
    goal: float
    lower_is_better: bool = False
    warmup: float = 0.03
    """Share of all steps in which the learning rate rises."""
    clip_norm: float | None = None
    optimizer: str = "adamw"
    """Its name in opstage.optim; muon leaves what is no matrix to adamw, at the same rate."""
    read: Callable[[Path | None, float, Any], Split] | None = None
    """For data cut to a model's size: (file, share of it held out, model config) -> split; `data` where no file is."""


def held_out_digits(seed: int) -> Split:
    """The embedded digits, a stratified 20 % of them held out."""
    return train_test_split(digits(), seed=seed)


def held_out_images(seed: int) -> Split:
    """The same without the labels."""
    training, held_out = held_out_digits(seed)
    return training.only("x"), held_out.only("x")


def held_out_noisy_digits(seed: int) -> Split:
    """Digits with noise of standard deviation 0.5, ink being 1, and without; eight noisy copies of each to train on."""
    training, held_out = held_out_digits(seed)
    return noisy(training, deviation=0.5, copies=8, seed=seed), noisy(held_out, deviation=0.5, seed=seed, part=1)


def burgers_points(seed: int) -> Split:
    """Points of the domain to train on, and the solution on a grid."""
    return burgers.points(seed=seed), burgers.grid()


def text_windows(file: Path | None, held_out: float, config: gpt.Config) -> Split:
    """Windows of `config.length` bytes of a text file, whose end is held out.

    Without a file, of Python's own standard library, some files of which are held out; of the rest every third window,
    which is as much as a few minutes allow.
    """
    length = config.length
    if file is None:
        training, testing = text.standard_library()
        name, stride = "the standard library", 3 * length
    else:
        name, stride = str(file), length
        training, testing = text.split_text(text.read_text(file), test=held_out, origin=name)
    return text.windows(training, length, stride=stride, origin=name), text.windows(testing, length, origin=name)


def library_windows(seed: int) -> Split:
    """The standard library in windows of the default length, the same for every seed."""
    return text_windows(None, 0.0, gpt.Config())


RECIPES: dict[str, Recipe] = {
    "cnn": Recipe(held_out_digits, 25, 64, 2e-3, 0.01, "accuracy", 0.98),
    "gpt": Recipe(
        library_windows,
        1,
        32,
        2e-2,
        0.01,
        "bits_per_byte",
        2.2,
        True,
        clip_norm=1.0,
        optimizer="muon",
        read=text_windows,
    ),
    "lstm": Recipe(held_out_digits, 40, 64, 1e-2, 0.1, "accuracy", 0.97, clip_norm=1.0, optimizer="muon"),
    "mlp": Recipe(held_out_digits, 60, 64, 2e-3, 0.05, "accuracy", 0.98),
    "pinn": Recipe(burgers_points, 375, 1024, 1e-2, 0.0, "relative_l2", 0.02, True, optimizer="muon"),
    "resnet": Recipe(held_out_digits, 15, 64, 2e-3, 0.01, "accuracy", 0.97),
    "unet": Recipe(held_out_noisy_digits, 8, 64, 8e-3, 0.01, "loss", 0.032, True),
    "vae": Recipe(held_out_images, 200, 64, 2e-3, 0.01, "loss", -22.0, True),
    "vit": Recipe(held_out_digits, 30, 64, 2e-3, 0.01, "accuracy", 0.96),
}


def recipe(name: str) -> Recipe:
    """The recipe of a shipped model."""
    if name not in RECIPES:
        raise UsageError(f"there is no recipe for model {name!r}{nearest(name, RECIPES)}")
    return RECIPES[name]
