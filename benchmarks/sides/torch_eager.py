"""PyTorch, eager, in its best configuration: fused AdamW, channels_last for convolutions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.workloads import LEARNING_RATE, WEIGHT_DECAY, Chain, Cnn, Gpt, Lstm, Mlp


def step(
    workload: Any, device: str = "cpu", precision: str = "fp32", wrap: Callable[[Any], Any] = lambda f: f
) -> Callable[[], float]:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    if isinstance(workload, Chain):
        return _chain(workload, device)
    model = model_of(workload).to(device)
    x, y = (torch.from_numpy(a) for a in workload.data())
    if isinstance(workload, Cnn):
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)

    def loss_of(x: Any, y: Any) -> Any:
        return functional.cross_entropy(model(x).flatten(0, -2), y.flatten())

    compute = wrap(loss_of)
    if device == "cuda":
        x, y = x.pin_memory(), y.pin_memory()

    def one() -> float:
        optimizer.zero_grad(set_to_none=True)
        batch = (x, y) if device == "cpu" else (x.to(device, non_blocking=True), y.to(device, non_blocking=True))
        loss = compute(*batch)
        loss.backward()
        optimizer.step()
        return float(loss.detach())  # on a GPU it waits for all that was asked for

    return one


def model_of(workload: Any) -> nn.Module:
    """The model of a workload."""
    made: nn.Module = {Mlp: _mlp, Cnn: _cnn, Gpt: transformer, Lstm: _Lstm}[type(workload)](workload)
    return made


def peak_of_gpu() -> int:
    """Bytes of tensors that the GPU held at most."""
    return int(torch.cuda.max_memory_allocated())


def _mlp(w: Mlp) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in pairwise(w.sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cnn(w: Cnn) -> nn.Module:
    a, b = w.channels
    return nn.Sequential(
        nn.Conv2d(3, a, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(a, b, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(b * 64, w.dense),
        nn.ReLU(),
        nn.Linear(w.dense, w.classes),
    )


class _Lstm(nn.Module):
    def __init__(self, w: Lstm):
        super().__init__()
        self.states, self.head = nn.LSTM(w.inputs, w.hidden), nn.Linear(w.hidden, w.classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.states(x)[0])


class _Block(nn.Module):
    def __init__(self, w: Gpt):
        super().__init__()
        d = w.width
        self.heads = w.heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Any) -> Any:
        n, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(n, t, d))
        return x + self.down(functional.gelu(self.up(self.n2(x)), approximate="tanh"))


class _Transformer(nn.Module):
    def __init__(self, w: Gpt):
        super().__init__()
        self.token, self.place = nn.Embedding(w.vocabulary, w.width), nn.Embedding(w.length, w.width)
        self.blocks = nn.Sequential(*[_Block(w) for _ in range(w.layers)])
        self.norm, self.head = nn.LayerNorm(w.width), nn.Linear(w.width, w.vocabulary)

    def forward(self, tokens: Any) -> Any:
        x = self.token(tokens) + self.place.weight
        return self.head(self.norm(self.blocks(x)))


def transformer(w: Gpt) -> nn.Module:
    """The model of a `Gpt` workload."""
    return _Transformer(w)


def _chain(w: Chain, device: str) -> Callable[[], float]:
    (data,) = w.data()
    x = torch.from_numpy(data).to(device).requires_grad_()
    weight = torch.full((4,), 0.9, requires_grad=True, device=device)
    seed = torch.ones(4, device=device)

    def one() -> float:
        out = x
        for i in range(w.ops):
            out = torch.relu(out) if i % 3 == 0 else torch.tanh(out) if i % 3 == 1 else torch.mul(out, weight)
        torch.autograd.grad(out, [weight, x], seed)
        return float(out.detach().sum())

    return one
