"""The wrong programs in jax.numpy, by the name of the mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def _linear(weight, bias, x):
    return x @ weight.T + bias


def _cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()


def _conv(kernel, x, padding="SAME"):
    return lax.conv_general_dilated(x, kernel, (1, 1), padding)


def _resnet_norm_of_inputs(gamma, beta, x):
    centred = x - x.mean(axis=(0, 2, 3), keepdims=True)
    return centred * gamma[:, None, None] + beta[:, None, None]


def _unet_upsampled_with_padding(kernel, x, finer):
    dimensions = ("NCHW", "IOHW", "NCHW")
    grown = lax.conv_transpose(x, kernel, (2, 2), ((0, 0), (0, 0)), dimension_numbers=dimensions)
    return jnp.concatenate([grown, finer], axis=1)


def _lstm_carry_without_batch(recurrent, driven):
    def step(hidden, entry):
        gates = entry + hidden @ recurrent.T
        return jnp.tanh(gates[..., :10]), None

    return lax.scan(step, jnp.zeros(10), driven)[0]


def _lstm_three_gates(gates):
    i, f, c, o = jnp.split(gates, 3, axis=1)
    return i * f * c * o


def _lstm_carry_is_the_gates(recurrent, driven):
    def step(hidden, entry):
        return jax.nn.sigmoid(entry + hidden @ recurrent.T), None

    return lax.scan(step, jnp.zeros((driven.shape[1], 10)), driven)[0]


def _vit_width_not_divided(x):
    batch, positions, width = x.shape
    return x.reshape(batch, positions, 4, width)


def _gpt_head_one_too_wide(x):
    batch, positions, width = x.shape
    return x.reshape(batch, positions, 4, width // 4 + 1)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "mlp-flatten-forgotten": lambda weight, bias, x: _linear(weight, bias, x),
    "mlp-flatten-takes-batch": lambda weight, bias, x: _linear(weight, bias, x.reshape(-1)),
    "mlp-weights-transposed": lambda weight, bias, x: _linear(weight, bias, x),
    "mlp-bias-of-inputs": lambda weight, bias, x: _linear(weight, bias, x),
    "mlp-linear-in-torch-order": lambda weight, bias, x: _linear(x, weight, bias),
    "mlp-labels-are-floats": lambda logits, labels: _cross_entropy(logits, labels),
    "mlp-labels-one-hot": lambda logits, labels: _cross_entropy(logits, labels),
    "mlp-images-are-bytes": lambda weight, bias, x: _linear(weight, bias, x),
    "mlp-labels-before-logits": lambda logits, labels: _cross_entropy(labels, logits),
    "mlp-loss-per-sample": lambda weight, x: jax.grad(lambda weight: (x @ weight.T).sum(axis=1))(weight),
    "mlp-softmax-over-wrong-axis": lambda x: jax.nn.log_softmax(x, axis=2),
    "vae-picture-left-flat": lambda picture, x: ((picture - x) ** 2).mean(),
    "vae-picture-one-too-wide": lambda picture: picture.reshape(picture.shape[0], 1, 8, 13),
    "vae-batch-of-one": lambda picture: picture.reshape(1, 1, 8, 12),
    "vae-one-draw-for-the-batch": lambda mean, log_variance, draw: mean + draw * jnp.exp(log_variance / 2),
    "vae-one-variance": lambda mean, log_variance, draw: mean + draw * jnp.exp(log_variance / 2),
    "pinn-points-in-rows": lambda weight, bias, x, t: _linear(weight, bias, jnp.stack([x, t], axis=0)),
    "pinn-points-in-a-row": lambda weight, bias, x, t: _linear(weight, bias, jnp.concatenate([x, t], axis=0)),
    "pinn-column-left": lambda inside, network: ((inside * network) ** 2).mean(),
    "pinn-squeezes-the-batch": lambda out: jnp.squeeze(out, axis=0),
    "pinn-times-in-a-column": lambda x, t: ((t * (1 - x * x)) ** 2).mean(),
    "pinn-as-many-times-as-points": lambda x, t: ((t * (1 - x * x)) ** 2).mean(),
    "cnn-second-conv-of-inputs": lambda kernel, x: _conv(kernel, x),
    "cnn-kernel-inputs-first": lambda kernel, x: _conv(kernel, x),
    "cnn-channels-last": lambda kernel, x: _conv(kernel, x),
    "cnn-pool-of-three": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 3, 3), "VALID"),
    "cnn-flatten-forgotten": lambda weight, bias, x: _linear(weight, bias, x),
    "resnet-shortcut-keeps-size": lambda x, h: jax.nn.relu(x + h),
    "resnet-pools-the-channels": lambda weight, bias, x: _linear(weight, bias, x.mean(axis=(1, 2))),
    "resnet-norm-of-inputs": _resnet_norm_of_inputs,
    "resnet-branches-side-by-side": lambda kernel, x, h: _conv(kernel, jnp.concatenate([x, h], axis=1)),
    "unet-joined-along-width": lambda kernel, grown, finer: _conv(kernel, jnp.concatenate([grown, finer], axis=-1)),
    "unet-upsampled-with-padding": _unet_upsampled_with_padding,
    "unet-upsampling-kernel-transposed": lambda kernel, x: lax.conv_transpose(
        x, kernel, (2, 2), "VALID", dimension_numbers=("NCHW", "IOHW", "NCHW")
    ),
    "unet-targets-without-channels": lambda x, y: ((x - y) ** 2).mean(),
    "unet-loss-per-image": lambda scale, x: jax.grad(
        lambda scale: ((x.reshape(x.shape[0], 96) * scale) ** 2).mean(axis=1)
    )(scale),
    "lstm-batch-first": lambda logits, labels: _cross_entropy(logits, labels),
    "lstm-recurrence-transposed": lambda recurrent, hidden, driven: driven + hidden @ recurrent.T,
    "lstm-carry-without-batch": _lstm_carry_without_batch,
    "lstm-three-gates": _lstm_three_gates,
    "lstm-carry-is-the-gates": _lstm_carry_is_the_gates,
    "vit-channels-not-last": lambda positions, x: x + positions,
    "vit-position-for-a-class-token": lambda positions, x: x + positions,
    "vit-mean-over-the-embedding": lambda weight, bias, x: _linear(weight, bias, x.mean(axis=2)),
    "vit-not-pooled": lambda logits, labels: _cross_entropy(logits, labels),
    "vit-width-not-divided": _vit_width_not_divided,
    "vit-merges-one-head": lambda merged: merged.reshape(merged.shape[0], 24, 32 // 4),
    "vit-shares-without-keepdims": lambda scores: scores / scores.sum(axis=-1),
    "gpt-norm-without-keepdims": lambda x: x - x.mean(axis=-1),
    "gpt-embedding-arguments": lambda table, x: jnp.take(x, table, axis=0),
    "gpt-all-positions": lambda positions, h: h + positions,
    "gpt-length-not-declared": lambda positions, h: h + positions[: h.shape[1]],
    "gpt-positions-from-one": lambda positions, h: h + positions[1 : 1 + h.shape[1]],
    "gpt-loss-of-sequences": lambda logits, labels: _cross_entropy(logits, labels),
    "gpt-last-logit-dropped": lambda logits, labels: _cross_entropy(
        logits[:, :-1].reshape(-1, 256), labels.reshape(-1)
    ),
    "gpt-head-transposed": lambda weight, h: h @ weight.T,
    "gpt-mask-of-full-length": lambda scores: jnp.where(jnp.tril(jnp.ones((64, 64), bool)), scores, -jnp.inf),
    "gpt-mask-of-batch": lambda scores: jnp.where(jnp.ones((scores.shape[0], scores.shape[2]), bool), scores, -jnp.inf),
    "gpt-head-one-too-wide": _gpt_head_one_too_wide,
    "gpt-bytes-are-floats": lambda table, x: table[x],
    "gpt-scaled-bytes": lambda x: x * (1 / 256),
    "gpt-mlp-half": lambda up, x: x + jax.nn.gelu(x @ up.T),
    "gpt-labels-of-another-length": lambda logits, labels: _cross_entropy(logits.reshape(-1, 256), labels.reshape(-1)),
    "gpt-merge-forgets-batch": lambda merged: merged.reshape(merged.shape[1], 48),
    "known-reshape-by-one": lambda x: x.reshape(x.shape[0], x.shape[1] + 1),
    "known-thirds": lambda x: x.reshape(x.shape[0] // 3, 3),
    "known-two-names": lambda x, y: x + y,
}
