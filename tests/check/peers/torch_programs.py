"""The wrong programs in PyTorch, by the name of the mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional


def _linear(weight, bias, x):
    return x @ weight.T + bias


def _cross_entropy(logits, labels):
    return functional.cross_entropy(logits, labels)


def _conv(kernel, x, padding="same"):
    return functional.conv2d(x, kernel, padding=padding)


def _unet_upsampled_with_padding(kernel, x, finer):
    grown = functional.conv_transpose2d(x, kernel, stride=2, padding=1)
    return torch.cat([grown, finer], dim=1)


def _lstm_carry_without_batch(recurrent, driven):
    hidden = recurrent.new_zeros(10)
    for entry in driven:
        gates = entry + hidden @ recurrent.T
        hidden = torch.tanh(gates[..., :10])
    return hidden


def _lstm_three_gates(gates):
    i, f, c, o = torch.split(gates, [10, 10, 10], dim=1)
    return i * f * c * o


def _lstm_carry_is_the_gates(recurrent, driven):
    hidden = recurrent.new_zeros((driven.shape[1], 10))
    for entry in driven:
        hidden = torch.sigmoid(entry + hidden @ recurrent.T)
    return hidden


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
    "mlp-loss-per-sample": lambda weight, x: torch.autograd.grad((x @ weight.requires_grad_().T).sum(dim=1), weight),
    "mlp-softmax-over-wrong-axis": lambda x: functional.log_softmax(x, dim=2),
    "vae-picture-left-flat": lambda picture, x: ((picture - x) ** 2).mean(),
    "vae-picture-one-too-wide": lambda picture: picture.reshape(picture.shape[0], 1, 8, 13),
    "vae-batch-of-one": lambda picture: picture.reshape(1, 1, 8, 12),
    "vae-one-draw-for-the-batch": lambda mean, log_variance, draw: mean + draw * torch.exp(log_variance / 2),
    "vae-one-variance": lambda mean, log_variance, draw: mean + draw * torch.exp(log_variance / 2),
    "pinn-points-in-rows": lambda weight, bias, x, t: _linear(weight, bias, torch.stack([x, t], dim=0)),
    "pinn-points-in-a-row": lambda weight, bias, x, t: _linear(weight, bias, torch.cat([x, t], dim=0)),
    "pinn-column-left": lambda inside, network: ((inside * network) ** 2).mean(),
    "pinn-squeezes-the-batch": lambda out: out.squeeze(0),
    "pinn-times-in-a-column": lambda x, t: ((t * (1 - x * x)) ** 2).mean(),
    "pinn-as-many-times-as-points": lambda x, t: ((t * (1 - x * x)) ** 2).mean(),
    "cnn-second-conv-of-inputs": lambda kernel, x: _conv(kernel, x),
    "cnn-kernel-inputs-first": lambda kernel, x: _conv(kernel, x),
    "cnn-channels-last": lambda kernel, x: _conv(kernel, x),
    "cnn-pool-of-three": lambda x: functional.max_pool2d(x, 3),
    "cnn-flatten-forgotten": lambda weight, bias, x: _linear(weight, bias, x),
    "resnet-shortcut-keeps-size": lambda x, h: functional.relu(x + h),
    "resnet-pools-the-channels": lambda weight, bias, x: _linear(weight, bias, x.mean(dim=(1, 2))),
    "resnet-norm-of-inputs": lambda gamma, beta, x: functional.batch_norm(x, None, None, gamma, beta, training=True),
    "resnet-branches-side-by-side": lambda kernel, x, h: _conv(kernel, torch.cat([x, h], dim=1)),
    "unet-joined-along-width": lambda kernel, grown, finer: _conv(kernel, torch.cat([grown, finer], dim=-1)),
    "unet-upsampled-with-padding": _unet_upsampled_with_padding,
    "unet-upsampling-kernel-transposed": lambda kernel, x: functional.conv_transpose2d(x, kernel, stride=2),
    "unet-targets-without-channels": lambda x, y: ((x - y) ** 2).mean(),
    "unet-loss-per-image": lambda scale, x: torch.autograd.grad(
        ((x.reshape(x.shape[0], 96) * scale.requires_grad_()) ** 2).mean(dim=1), scale
    ),
    "lstm-batch-first": lambda logits, labels: _cross_entropy(logits, labels),
    "lstm-recurrence-transposed": lambda recurrent, hidden, driven: driven + hidden @ recurrent.T,
    "lstm-carry-without-batch": _lstm_carry_without_batch,
    "lstm-three-gates": _lstm_three_gates,
    "lstm-carry-is-the-gates": _lstm_carry_is_the_gates,
    "vit-channels-not-last": lambda positions, x: x + positions,
    "vit-position-for-a-class-token": lambda positions, x: x + positions,
    "vit-mean-over-the-embedding": lambda weight, bias, x: _linear(weight, bias, x.mean(dim=2)),
    "vit-not-pooled": lambda logits, labels: _cross_entropy(logits, labels),
    "vit-width-not-divided": _vit_width_not_divided,
    "vit-merges-one-head": lambda merged: merged.reshape(merged.shape[0], 24, 32 // 4),
    "vit-shares-without-keepdims": lambda scores: scores / scores.sum(dim=-1),
    "gpt-norm-without-keepdims": lambda x: x - x.mean(dim=-1),
    "gpt-embedding-arguments": lambda table, x: functional.embedding(table, x),
    "gpt-all-positions": lambda positions, h: h + positions,
    "gpt-length-not-declared": lambda positions, h: h + positions[: h.shape[1]],
    "gpt-positions-from-one": lambda positions, h: h + positions[1 : 1 + h.shape[1]],
    "gpt-loss-of-sequences": lambda logits, labels: _cross_entropy(logits, labels),
    "gpt-last-logit-dropped": lambda logits, labels: _cross_entropy(
        logits[:, :-1].reshape(-1, 256), labels.reshape(-1)
    ),
    "gpt-head-transposed": lambda weight, h: h @ weight.T,
    "gpt-mask-of-full-length": lambda scores: scores.masked_fill(
        ~torch.ones(64, 64, dtype=torch.bool, device=scores.device).tril(), -torch.inf
    ),
    "gpt-mask-of-batch": lambda scores: scores.masked_fill(
        scores.new_ones(scores.shape[0], scores.shape[2], dtype=torch.bool), -torch.inf
    ),
    "gpt-head-one-too-wide": _gpt_head_one_too_wide,
    "gpt-bytes-are-floats": lambda table, x: functional.embedding(x, table),
    "gpt-scaled-bytes": lambda x: x * (1 / 256),
    "gpt-mlp-half": lambda up, x: x + functional.gelu(x @ up.T),
    "gpt-labels-of-another-length": lambda logits, labels: _cross_entropy(logits.reshape(-1, 256), labels.reshape(-1)),
    "gpt-merge-forgets-batch": lambda merged: merged.reshape(merged.shape[1], 48),
    "known-reshape-by-one": lambda x: x.reshape(x.shape[0], x.shape[1] + 1),
    "known-thirds": lambda x: x.reshape(x.shape[0] // 3, 3),
    "known-two-names": lambda x, y: x + y,
}
