"""The shipped models in PyTorch, over Opstage's own trees of parameters: so weights are copied by copying arrays.

Each is a function `(params, state, *batch) -> loss` in training form. Where PyTorch has a module for a part that
Opstage writes out (LSTM, transformer layer, batch normalisation), the module stands here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from opstage import models as zoo
from opstage.interpreters.registry import make_interpreter
from opstage.models import cnn, gpt, lstm, mlp, pinn, resnet, unet, vae, vit
from opstage.models.transformer_block import Block
from opstage.options import Options

STEPS = 20
ROWS = 8
Tensor = torch.Tensor


@dataclass(frozen=True)
class ModelTwin:
    """A shipped model by its config, dropout off because masks would differ, and the same in PyTorch."""

    config: Any
    loss: Callable[..., Tensor]
    batches: Callable[[str], list[tuple[Any, ...]]]


def rows_of(name: str) -> Callable[[str], list[tuple[Any, ...]]]:
    """The first rows of the data that the recipe trains on, a few at a time."""

    def batches(dtype: str) -> list[tuple[Any, ...]]:
        arrays = zoo.MODELS[name].RECIPE.data(0)[0].arrays
        cast = [a.astype(dtype) if a.dtype.kind == "f" else a for a in arrays]
        return [tuple(a[i * ROWS : (i + 1) * ROWS] for a in cast) for i in range(STEPS)]

    return batches


def _classified(logits: Callable[..., Tensor], smoothing: float) -> Callable[..., Tensor]:
    def loss(params: Any, state: Any, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(logits(params, x), y, label_smoothing=smoothing)

    return loss


def _linear(params: Any, x: Tensor) -> Tensor:
    return functional.linear(x, params["weight"], params["bias"])


def _conv(params: Any, x: Tensor, **static: int) -> Tensor:
    return functional.conv2d(x, params["kernel"], params.get("bias"), **static)


# Dense, convolutional, residual ---------------------------------------------------------------------------------------


def _mlp(params: Any, x: Tensor) -> Tensor:
    h = x.flatten(1)
    for layer in params["layers"][:-1]:
        h = functional.relu(_linear(layer, h))
    return _linear(params["layers"][-1], h)


def _cnn(params: Any, x: Tensor) -> Tensor:
    for block in params["blocks"]:
        for name in ("first", "second"):
            x = functional.relu(_conv(block[name], x, padding=1))
        x = functional.max_pool2d(x, 2)
    return _linear(params["head"], functional.relu(_linear(params["dense"], x.flatten(1))))


def _conv_norm(params: Any, state: Any, x: Tensor, stride: int = 1) -> Tensor:
    """Running statistics are updated in place, as PyTorch does it."""
    h = _conv(params["conv"], x, stride=stride, padding=params["conv"]["kernel"].shape[-1] // 2)
    norm = params["norm"]
    return functional.batch_norm(h, state["mean"], state["variance"], norm["gamma"], norm["beta"], training=True)


def _resnet(params: Any, state: Any, x: Tensor, y: Tensor) -> Tensor:
    h = functional.relu(_conv_norm(params["stem"], state["stem"], x))
    for blocks, statistics in zip(params["stages"], state["stages"]):
        for block, own in zip(blocks, statistics):
            strided = "shortcut" in block
            g = functional.relu(_conv_norm(block["first"], own["first"], h, 2 if strided else 1))
            g = _conv_norm(block["second"], own["second"], g)
            h = functional.relu(g + (_conv_norm(block["shortcut"], own["shortcut"], h, 2) if strided else h))
    logits = _linear(params["head"], functional.adaptive_avg_pool2d(h, 1).flatten(1))
    return functional.cross_entropy(logits, y, label_smoothing=resnet.Config().label_smoothing)


# Transformers ---------------------------------------------------------------------------------------------------------


def _transformer(blocks: Any, x: Tensor, block: Block) -> Tensor:
    """torch.nn.TransformerEncoderLayer for every block, normalised first."""
    for params in blocks:
        layer = nn.TransformerEncoderLayer(
            block.width,
            block.heads,
            block.hidden,
            dropout=0.0,
            activation=lambda h: functional.gelu(h, approximate="tanh"),
            batch_first=True,
            norm_first=True,
            dtype=x.dtype,
        )
        attention, perceptron = params["attention"], params["mlp"]
        projections = [attention[name] for name in ("query", "key", "value")]
        weights = {
            "self_attn.in_proj_weight": torch.cat([p["weight"] for p in projections]),
            "self_attn.in_proj_bias": torch.cat([p["bias"] for p in projections]),
        }
        for ours, theirs in (
            (attention["out"], "self_attn.out_proj"),
            (perceptron["up"], "linear1"),
            (perceptron["down"], "linear2"),
        ):
            weights |= {f"{theirs}.weight": ours["weight"], f"{theirs}.bias": ours["bias"]}
        for name in ("norm1", "norm2"):
            weights |= {f"{name}.weight": params[name]["gamma"], f"{name}.bias": params[name]["beta"]}
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype) if block.causal else None
        x = functional_call(layer, weights, (x, mask), {"is_causal": block.causal})
    return x


def _layer_norm(params: Any, x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], params["gamma"], params["beta"])


def _vit(config: vit.Config) -> Callable[..., Tensor]:
    def logits(params: Any, x: Tensor) -> Tensor:
        h = _conv(params["patches"], x, stride=config.patch).flatten(2).transpose(1, 2) + params["positions"]
        h = _layer_norm(params["norm"], _transformer(params["blocks"], h, config.block))
        return _linear(params["head"], h.mean(1))

    return _classified(logits, config.label_smoothing)


def _gpt(config: gpt.Config) -> Callable[..., Tensor]:
    def loss(params: Any, state: Any, x: Tensor, y: Tensor) -> Tensor:
        h = functional.embedding(x, params["bytes"]) + params["positions"][: x.shape[1]]
        h = _layer_norm(params["norm"], _transformer(params["blocks"], h, config.block))
        logits = functional.linear(h, params["head"]["weight"])
        return functional.cross_entropy(logits.transpose(1, 2), y)

    return loss


def _bytes(dtype: str) -> list[tuple[Any, ...]]:
    """Windows of a text that has something to learn, two of them a step, of several lengths."""
    text = np.frombuffer((" ".join(str(i * i) for i in range(2000))).encode(), dtype=np.uint8).astype(np.int64)
    found = []
    for step in range(STEPS):
        length, start = 8 + step % 5, 97 * step
        windows = np.stack([text[start + 31 * row : start + 31 * row + length + 1] for row in range(4)])
        found.append((windows[:, :-1], windows[:, 1:]))
    return found


# Recurrent, generative, physical --------------------------------------------------------------------------------------


def _lstm(params: Any, x: Tensor) -> Tensor:
    """torch.nn.LSTM, whose two biases add up to Opstage's one."""
    cell = params["cell"]
    module = nn.LSTM(cell["input"].shape[1], cell["recurrent"].shape[1], batch_first=True, dtype=x.dtype)
    weights = {
        "weight_ih_l0": cell["input"],
        "weight_hh_l0": cell["recurrent"],
        "bias_ih_l0": cell["bias"],
        "bias_hh_l0": torch.zeros_like(cell["bias"]),
    }
    steps = x.permute(0, 2, 1, 3).flatten(2)
    _, (hidden, _) = functional_call(module, weights, (steps,))
    return _linear(params["head"], hidden[0])


def _unet(config: unet.Config) -> Callable[..., Tensor]:
    def stage(params: Any, x: Tensor) -> Tensor:
        for name in ("first", "second"):
            norm = params[name]["norm"]
            h = _conv(params[name]["conv"], x, padding=1)
            x = functional.silu(functional.group_norm(h, config.groups, norm["gamma"], norm["beta"]))
        return x

    def loss(params: Any, state: Any, x: Tensor, y: Tensor) -> Tensor:
        finer, h = [], stage(params["down"][0], x)
        for down in params["down"][1:]:
            finer.append(h)
            h = stage(down, functional.max_pool2d(h, 2))
        for up, across in reversed(list(zip(params["up"], finer))):
            grown = functional.conv_transpose2d(h, up["grow"]["kernel"], up["grow"]["bias"], stride=2)
            h = stage(up["stage"], torch.cat([grown, across], 1))
        return functional.mse_loss(_conv(params["out"], h), y)

    return loss


def _draws(step: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    """The normal numbers that the first draw of a program gets at a training step: PyTorch cannot draw them itself."""
    base = make_interpreter(Options(dtype=dtype))
    (found,) = base.execute(lambda ops: (ops.rand_normal(shape=shape),), (), step)
    return torch.from_numpy(np.array(base.get(found)))


def _vae(config: vae.Config) -> Callable[..., Tensor]:
    def dense(layers: Any, h: Tensor) -> Tensor:
        for layer in layers:
            h = functional.relu(_linear(layer, h))
        return h

    def loss(params: Any, state: Any, x: Tensor) -> Tensor:
        h = dense(params["encoder"], x.flatten(1))
        mean, log_variance = _linear(params["mean"], h), _linear(params["log_variance"], h)
        draws = _draws(state["step"], tuple(mean.shape), str(x.dtype)[6:]).to(x.device)
        z = mean + torch.exp(0.5 * log_variance) * draws
        made = _linear(params["pixels"], dense(params["decoder"], z))
        noise = torch.distributions.Normal(made, torch.exp(0.5 * params["noise"]))
        code = torch.distributions.Normal(mean, torch.exp(0.5 * log_variance))
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        distortion = -noise.log_prob(x.flatten(1)).sum(1)
        return (distortion + torch.distributions.kl_divergence(code, prior).sum(1)).mean()

    return loss


def _pinn(config: pinn.Config) -> Callable[..., Tensor]:
    def field(params: Any, x: Tensor, t: Tensor) -> Tensor:
        h = torch.stack([x, t], 1)
        for layer in params["layers"][:-1]:
            h = torch.tanh(_linear(layer, h))
        return -torch.sin(math.pi * x) + t * (1 - x * x) * _linear(params["layers"][-1], h).squeeze(1)

    def slope(of: Tensor, along: Tensor) -> Tensor:
        return torch.autograd.grad(of.sum(), along, create_graph=True)[0]

    def loss(params: Any, state: Any, x: Tensor, t: Tensor, solution: Tensor) -> Tensor:
        x, t = x.clone().requires_grad_(), t.clone().requires_grad_()
        u = field(params, x, t)
        u_x, u_t = slope(u, x), slope(u, t)
        residual = u_t + u * u_x - pinn.VISCOSITY * slope(u_x, x)
        return (residual / (1 + config.damping * u_x.detach().abs())).square().mean()

    return loss


_VIT = vit.Config(dropout=0.0, depth=2, embedding=32, hidden=48)
_GPT = gpt.Config(length=16, width=32, depth=2, heads=4, hidden=64)
_UNET = unet.Config(channels=(8, 12, 16))
_VAE = vae.Config(hidden=(64, 32), latent=4)
_PINN = pinn.Config(hidden=(16, 16))

MODELS: dict[str, ModelTwin] = {
    "mlp": ModelTwin(
        mlp.Config(dropout=0.0, hidden=(64, 32)), _classified(_mlp, mlp.Config().label_smoothing), rows_of("mlp")
    ),
    "cnn": ModelTwin(
        cnn.Config(dropout=0.0, channels=(8, 16), dense=32),
        _classified(_cnn, cnn.Config().label_smoothing),
        rows_of("cnn"),
    ),
    "resnet": ModelTwin(resnet.Config(channels=(8, 12)), _resnet, rows_of("resnet")),
    "vit": ModelTwin(_VIT, _vit(_VIT), rows_of("vit")),
    "gpt": ModelTwin(_GPT, _gpt(_GPT), _bytes),
    "lstm": ModelTwin(
        lstm.Config(dropout=0.0, hidden=32), _classified(_lstm, lstm.Config().label_smoothing), rows_of("lstm")
    ),
    "unet": ModelTwin(_UNET, _unet(_UNET), rows_of("unet")),
    "vae": ModelTwin(_VAE, _vae(_VAE), rows_of("vae")),
    "pinn": ModelTwin(_PINN, _pinn(_PINN), rows_of("pinn")),
}
