"""Samples of a trained model: images of a vae, a unet or a pinn, text of a gpt."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..models import pinn, unet, vae
from .generate import Sampling, generate
from .task import Task

Array = npt.NDArray[Any]

COUNT = 10
"""Images in a row."""
TEXT_LENGTH = 300


@dataclass(frozen=True)
class ImageRows:
    """Rows of grey images: a label and an array (images, height, width) each, 0 black and 1 white."""

    caption: str
    rows: tuple[tuple[str, Array], ...]


@dataclass(frozen=True)
class GeneratedText:
    """A text."""

    caption: str
    text: str


def samples(task: Task) -> ImageRows | GeneratedText | None:
    """Samples of the trained model of `task`; None for a model that generates nothing."""
    make = _MAKERS.get(task.settings.run.model)
    return None if make is None else make(task)


def _of_unet(task: Task) -> ImageRows:
    config = task.settings.model
    x, y = _first(task)
    cleaned = task.trainer.evaluate(lambda ops, params, x, y: unet.denoise(ops, params, x, config=config), x, y)
    rows = ("noisy", x), ("cleaned", cleaned), ("without noise", y)
    return ImageRows("Held-out images.", tuple((label, _grey(images)) for label, images in rows))


def _of_vae(task: Task) -> ImageRows:
    config = task.settings.model

    def program(ops: Any, params: Any, x: Any) -> Any:
        mean, _ = vae.encode(ops, params, x)
        new = ops.rand_normal(shape=(COUNT, config.latent))
        return vae.decode(ops, params, mean, config=config), vae.decode(ops, params, new, config=config)

    (x,) = _first(task)
    again, new = task.trainer.evaluate(program, x)
    rows = ("held out", x), ("through the code", again), ("new", new)
    caption = "Held-out images, what their codes are decoded to, and what draws of the prior are."
    return ImageRows(caption, tuple((label, _grey(images)) for label, images in rows))


def _of_pinn(task: Task) -> ImageRows:
    fields = []
    with closing(task.test_batches.epoch(0)) as batches:
        for batch in batches:
            fields.append(task.trainer.evaluate(lambda ops, params, x, t, u: pinn.field(ops, params, x, t), *batch))
    times = len(np.unique(task.held_out["t"]))
    found = np.concatenate(fields).reshape(times, -1)
    right = task.held_out["u"].reshape(times, -1)
    rows = ("found", found), ("solution", right)
    caption = "u over x (to the right) and t (down), black -1 and white 1."
    return ImageRows(caption, tuple((label, ((u + 1) / 2)[np.newaxis]) for label, u in rows))


def _of_gpt(task: Task) -> GeneratedText:
    sampling = Sampling(seed=task.settings.options.seed)
    made = generate(
        task.settings.model, task.trainer.get_params(), b"\n", TEXT_LENGTH, sampling, options=task.settings.options
    )
    return GeneratedText(
        f"{TEXT_LENGTH} bytes drawn at temperature {sampling.temperature}.", bytes(made).decode(errors="replace")
    )


_MAKERS: dict[str, Callable[[Task], ImageRows | GeneratedText]] = {
    "gpt": _of_gpt,
    "pinn": _of_pinn,
    "unet": _of_unet,
    "vae": _of_vae,
}


def _first(task: Task) -> tuple[Array, ...]:
    with closing(task.test_batches.epoch(0)) as batches:
        return tuple(array[:COUNT] for array in next(batches))


def _grey(images: Array) -> Array:
    """Images (n, …, height, width) without their channels, of which there is one."""
    images = np.asarray(images, np.float64)
    return images.reshape(len(images), *images.shape[-2:])
