"""A variational autoencoder with a Gaussian decoder: samples x from a few latent numbers z, and the other way.

Kingma, Welling, Auto-encoding variational Bayes, 2014. With a linear decoder this is probabilistic principal component
analysis (Tipping, Bishop 1999), whose exact likelihood is the measure of what the nonlinear decoder gains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from ..data.builtin_datasets import held_out_digits
from ..init import Constant, Declaration
from ..ops.dims import ratio
from ..ops.protocol import Ops, R
from ..ops.spec import Spec
from .layers import Tree, dense, linear, linear_init
from .model import Model, Recipe, Split, of_programs


@dataclass(frozen=True)
class Config:
    """`inputs` is the shape of a sample, `latent` the size of its code; the encoder has a relu layer for each entry of
    `hidden`, and the decoder the same in reverse."""

    inputs: tuple[int, ...] = (1, 8, 8)
    hidden: tuple[int, ...] = (256, 128)
    latent: int = 8

    @property
    def pixels(self) -> int:
        """Return the number of values in a sample."""
        return math.prod(self.inputs)


def init(config: Config) -> Tree:
    """Return declarations of the parameters: `encoder.0.weight`, …, `mean`, `log_variance`, `decoder.0.weight`, …,
    `pixels`, and `noise`, the logarithm of the variance of a pixel about its mean."""
    encoder = (config.pixels, *config.hidden)
    decoder = (config.latent, *reversed(config.hidden))
    return {
        "encoder": [linear_init(a, b) for a, b in pairwise(encoder)],
        "mean": linear_init(encoder[-1], config.latent),
        "log_variance": linear_init(encoder[-1], config.latent),
        "decoder": [linear_init(a, b) for a, b in pairwise(decoder)],
        "pixels": linear_init(decoder[-1], config.pixels),
        "noise": Declaration((), Constant(-4.0)),
    }


def encode(ops: Ops[R], params: Tree, x: R) -> tuple[R, R]:
    """Mean and log variance, each (B, latent), of the Gaussian q(z | x), for x (B, *inputs)."""
    h = ops.flatten(x, start=1)
    for i, layer in enumerate(params["encoder"]):
        h = ops.region(f"encoder.{i}", dense, layer, h)
    return linear(ops, params["mean"], h), linear(ops, params["log_variance"], h)


def decode(ops: Ops[R], params: Tree, z: R, *, config: Config) -> R:
    """Return the mean of p(x | z), (B, *inputs), for z (B, latent); `run` it on normal z to generate samples."""
    h = z
    for i, layer in enumerate(params["decoder"]):
        h = ops.region(f"decoder.{i}", dense, layer, h)
    return ops.reshape(linear(ops, params["pixels"], h), shape=(z.shape[0], *config.inputs))


def terms(ops: Ops[R], params: Tree, x: R, *, config: Config) -> tuple[R, R, R]:
    """Return means over the batch, for one draw of z: -log p(x | z) and KL(q(z | x) ‖ N(0, 1)), both in nats a sample,
    whose sum is the negative evidence lower bound; and the squared error of a pixel."""
    mean, log_variance = encode(ops, params, x)
    draw = ops.rand_normal(shape=mean.shape, dtype=mean.dtype, like=mean)
    z = ops.add(mean, ops.mul(draw, ops.exp(ops.scale(log_variance, c=0.5))))
    error = ops.mse_loss(decode(ops, params, z, config=config), x)
    # The Gaussian's -log p of a pixel is ½ (error/variance + log variance + log 2π).
    log_noise = params["noise"]
    pixel = ops.add(ops.mul(error, ops.exp(ops.neg(log_noise))), log_noise)
    pixel = ops.add(pixel, ops.const(math.log(2 * math.pi)))
    # The divergence of a latent number is ½ (mean² + variance - log variance - 1).
    number = ops.add(ops.mul(mean, mean), ops.sub(ops.exp(log_variance), log_variance))
    number = ops.sub(ops.reduce_mean(number), ops.const(1.0))
    return ops.scale(pixel, c=config.pixels / 2), ops.scale(number, c=config.latent / 2), error


def loss(ops: Ops[R], params: Tree, x: R, *, config: Config) -> R:
    """Return the negative evidence lower bound, in nats a sample."""
    distortion, divergence, _ = terms(ops, params, x, config=config)
    return ops.add(distortion, divergence)


def metrics(ops: Ops[R], params: Tree, x: R, *, config: Config) -> dict[str, R]:
    """Summed over the batch: `loss` and `divergence` in nats, and `error`, the mean squared error of a pixel."""
    distortion, divergence, error = terms(ops, params, x, config=config)
    means = {"loss": ops.add(distortion, divergence), "divergence": divergence, "error": error}
    return {name: ops.scale(value, c=ratio(x.shape[0], 1)) for name, value in means.items()}


def outputs(ops: Ops[R], params: Tree, x: R, *, config: Config) -> dict[str, R]:
    """`code` (B, latent), the mean of q(z | x), and `image`, its decoding."""
    mean, _ = encode(ops, params, x)
    return {"code": mean, "image": decode(ops, params, mean, config=config)}


def make(config: Config) -> Model:
    """Build the model for a config."""
    return of_programs(
        "vae", config, (Spec(("B", *config.inputs)),), init=init, loss=loss, metrics=metrics, outputs=outputs
    )


def held_out_images(seed: int) -> Split:
    """Return the embedded digits without their labels, a fifth of them held out."""
    training, held_out = held_out_digits(seed)
    return training.only("x"), held_out.only("x")


RECIPE = Recipe(
    data=held_out_images,
    epochs=200,
    batch_size=64,
    lr=0.002,
    weight_decay=0.01,
    metric="loss",
    goal=-22.0,
    lower_is_better=True,
)
