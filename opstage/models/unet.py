"""A U-Net that removes noise from images: down to a coarse view and up again, with the finer ones handed across.

Ronneberger, Fischer, Brox, U-Net, 2015; with group normalisation and silu as in Ho, Jain, Abbeel, Denoising diffusion
probabilistic models, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..data import noisy
from ..data.builtin_datasets import held_out_digits
from ..init import Declaration, kaiming_uniform, zeros
from ..ops.dims import ratio
from ..ops.errors import UsageError
from ..ops.protocol import Ops, R
from ..ops.spec import Spec
from .layers import Tree, conv, conv_init, conv_norm_init, group_norm
from .model import Model, Recipe, Split, of_programs


@dataclass(frozen=True)
class Config:
    """Images (B, inputs, height, width), and an entry of `channels` for each resolution, the finest first, every one
    half of that before; `groups` of channels are normalised together."""

    inputs: int = 1
    height: int = 8
    width: int = 8
    channels: tuple[int, ...] = (16, 32, 64)
    groups: int = 4

    def __post_init__(self) -> None:
        halvings = len(self.channels) - 1
        if self.height % 2**halvings or self.width % 2**halvings:
            raise UsageError(
                f"images of {self.height}x{self.width} pixels cannot be halved {halvings} times, for each entry of "
                f"channels after the first; expected multiples of {2**halvings}"
            )


def init(config: Config) -> Tree:
    """Return declarations of the parameters: `down.0.first.conv.kernel`, …, `up.0.grow.kernel`, …, `out.kernel`."""
    sizes = (config.inputs, *config.channels)
    return {
        "down": [_stage_init(a, b) for a, b in pairwise(sizes)],
        "up": [{"grow": _grow_init(b, a), "stage": _stage_init(2 * a, a)} for a, b in pairwise(config.channels)],
        "out": conv_init(config.channels[0], config.inputs, (1, 1)),
    }


def _stage_init(inputs: int, outputs: int) -> Tree:
    return {"first": conv_norm_init(inputs, outputs, 3), "second": conv_norm_init(outputs, outputs, 3)}


def _grow_init(inputs: int, outputs: int) -> Tree:
    """Declare the kernel (inputs, outputs, 2, 2) of a transposed convolution; an output reads `inputs` numbers."""
    kernel = Declaration((inputs, outputs, 2, 2), kaiming_uniform(fan_in=inputs))
    return {"kernel": kernel, "bias": Declaration((outputs,), zeros)}


def denoise(ops: Ops[R], params: Tree, x: R, *, config: Config) -> R:
    """(B, inputs, height, width) with noise -> the same without noise."""
    finer: list[R] = []
    h = x
    for i, stage in enumerate(params["down"]):
        if i > 0:
            finer.append(h)
            h = ops.max_pool2d(h, kernel=2)
        h = ops.region(f"down.{i}", _stage, stage, h, config.groups)
    for i in reversed(range(len(finer))):
        h = ops.region(f"up.{i}", _upsample, params["up"][i], h, finer[i], config.groups)
    out: R = ops.region("out", conv, params["out"], h)
    return out


def _stage(ops: Ops[R], params: Tree, x: R, groups: int) -> R:
    for name in ("first", "second"):
        layer = params[name]
        x = ops.silu(group_norm(ops, layer["norm"], conv(ops, layer["conv"], x, padding=1), groups=groups))
    return x


def _upsample(ops: Ops[R], params: Tree, x: R, finer: R, groups: int) -> R:
    """x at twice its resolution, concatenated with the features from the way down, and a stage over both."""
    grown = ops.conv_transpose(params["grow"]["kernel"], params["grow"]["bias"], x, stride=2)
    return _stage(ops, params["stage"], ops.concat([grown, finer], axis=1), groups)


def loss(ops: Ops[R], params: Tree, x: R, y: R, *, config: Config) -> R:
    """Mean squared error of a pixel, between the output for the noisy x and the clean y."""
    return ops.mse_loss(denoise(ops, params, x, config=config), y)


def metrics(ops: Ops[R], params: Tree, x: R, y: R, *, config: Config) -> dict[str, R]:
    """Summed over the batch: `loss`, the mean squared error of a pixel."""
    return {"loss": ops.scale(loss(ops, params, x, y, config=config), c=ratio(x.shape[0], 1))}


def outputs(ops: Ops[R], params: Tree, x: R, *, config: Config) -> dict[str, R]:
    """`image`: x without its noise."""
    return {"image": denoise(ops, params, x, config=config)}


def make(config: Config) -> Model:
    """Build the model for a config."""
    image: tuple[Any, ...] = ("B", config.inputs, config.height, config.width)
    return of_programs(
        "unet", config, (Spec(image), Spec(image)), init=init, loss=loss, metrics=metrics, outputs=outputs
    )


def held_out_noisy_digits(seed: int) -> Split:
    """Return digits with noise of standard deviation 0.5, ink being 1, and without; eight noisy copies of each to train
    on."""
    training, held_out = held_out_digits(seed)
    return noisy(training, deviation=0.5, copies=8, seed=seed), noisy(held_out, deviation=0.5, seed=seed, part=1)


RECIPE = Recipe(
    data=held_out_noisy_digits,
    epochs=8,
    batch_size=64,
    lr=0.008,
    weight_decay=0.01,
    metric="loss",
    goal=0.032,
    lower_is_better=True,
)
