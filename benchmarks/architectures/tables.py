"""Networks that look up, route and join rows: experts, graphs, and recommendation from categories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.architectures.layers import Arrays, Draw, Layers, parts


@dataclass(frozen=True)
class Experts:
    """A mixture of experts (Shazeer et al. 2017; gated as in Mixtral): each token goes through two of eight."""

    tokens: int = 512
    width: int = 128
    hidden: int = 256
    experts: int = 8

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        class Net(nn.Module):
            def __init__(self, d: int, h: int, experts: int) -> None:
                super().__init__()
                self.router = nn.Linear(d, experts, bias=False)
                self.gate = nn.Parameter(torch.randn(experts, d, h) / math.sqrt(d))
                self.up = nn.Parameter(torch.randn(experts, d, h) / math.sqrt(d))
                self.down = nn.Parameter(torch.randn(experts, h, d) / math.sqrt(h))

            def forward(self, x: Any, target: Any) -> Any:
                weights, chosen = self.router(x).softmax(-1).topk(2)
                weights, out = weights / weights.sum(-1, keepdim=True), torch.zeros_like(x)
                for expert, (gate, up, down) in enumerate(zip(self.gate, self.up, self.down)):
                    token, place = torch.where(chosen == expert)
                    h = x[token]
                    h = (functional.silu(h @ gate) * (h @ up)) @ down
                    out.index_add_(0, token, h * weights[token, place, None])
                return functional.mse_loss(out, target)

        return Net(self.width, self.hidden, self.experts)

    def program(self, ops: Any, params: Any, x: Any, target: Any) -> Any:
        from opstage import derived

        weights, chosen = derived.top_k(ops, ops.softmax(Layers(ops, params).linear("router", x)), k=2)
        weights = weights / ops.reduce_sum(weights, axis=(1,), keepdims=True)
        chosen = ops.reshape(chosen, shape=(-1,))
        order = ops.argsort(chosen)
        counts = ops.reduce_sum(derived.one_hot(ops, chosen, classes=self.experts, dtype="int64"), axis=(0,))
        ends, token = ops.cumsum(counts, axis=0), ops.floor_divide(order, 2)

        def through(name: str, rows: Any) -> Any:
            return derived.grouped_matmul(ops, rows, params[name], ends)

        h = ops.gather_rows(x, token)
        h = through("down", ops.silu(through("gate", h)) * through("up", h))
        h = h * ops.unsqueeze(ops.gather_rows(ops.reshape(weights, shape=(-1,)), order), axis=1)
        return ops.mse_loss(derived.segment_sum(ops, h, token, count=x.shape[0]), target)

    def data(self) -> Arrays:
        draw, shape = Draw(), (self.tokens, self.width)
        return draw.floats(*shape), draw.floats(*shape)


@dataclass(frozen=True)
class Graph:
    """Message passing over a graph (Gilmer et al. 2017): each node adds the rows of those that point to it, twice."""

    nodes: int = 2000
    edges: int = 12000
    features: int = 64
    width: int = 128

    def module(self) -> Any:
        from torch import nn
        from torch.nn import functional

        class Net(nn.Module):
            def __init__(self, features: int, width: int) -> None:
                super().__init__()
                self.a, self.b, self.c = nn.Linear(features, width), nn.Linear(width, width), nn.Linear(width, 10)

            def forward(self, x: Any, source: Any, to: Any, y: Any) -> Any:
                for layer in (self.a, self.b):
                    h = layer(x)
                    x = functional.relu(h.new_zeros(h.shape).index_add_(0, to, h[source]) + h)
                return functional.cross_entropy(self.c(x), y)

        return Net(self.features, self.width)

    def program(self, ops: Any, params: Any, x: Any, source: Any, to: Any, y: Any) -> Any:
        from opstage import derived

        net = Layers(ops, params)
        for layer in "ab":
            h = net.linear(layer, x)
            x = ops.relu(derived.segment_sum(ops, ops.gather_rows(h, source), to, count=x.shape[0]) + h)
        return ops.cross_entropy(net.linear("c", x), y)

    def data(self) -> Arrays:
        draw, n = Draw(), self.nodes
        ends = draw.below(n, self.edges), draw.below(n, self.edges)
        return draw.floats(n, self.features), *ends, draw.below(10, n)


@dataclass(frozen=True)
class Dlrm:
    """Recommendation (Naumov et al. 2019): embeddings of categories, the products of all pairs, two dense layers."""

    batch: int = 256
    categories: int = 26
    rows: int = 1000
    width: int = 16

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        class Net(nn.Module):
            which: torch.Tensor
            pairs: torch.Tensor

            def __init__(self, size: Dlrm) -> None:
                super().__init__()
                many, d = size.categories, size.width
                self.tables = nn.Parameter(0.1 * torch.randn(many, size.rows, d))
                self.a, self.b = nn.Linear(13, 64), nn.Linear(64, d)
                self.c, self.d = nn.Linear(d + (many + 1) * many // 2, 64), nn.Linear(64, 1)
                self.register_buffer("which", torch.arange(many))
                self.register_buffer("pairs", torch.tril_indices(many + 1, many + 1, -1))

            def forward(self, x: Any, indices: Any, y: Any) -> Any:
                z = self.b(functional.relu(self.a(x)))
                rows = torch.cat([z[:, None], self.tables[self.which, indices]], 1)
                products = torch.bmm(rows, rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
                scores = self.d(functional.relu(self.c(torch.cat([z, products], 1))))[:, 0]
                return functional.binary_cross_entropy_with_logits(scores, y)

        return Net(self)

    def program(self, ops: Any, params: Any, x: Any, indices: Any, y: Any) -> Any:
        from opstage import derived

        net, n, many = Layers(ops, params), x.shape[0], self.categories + 1
        z = net.linear("b", ops.relu(net.linear("a", x)))
        table = ops.reshape(params["tables"], shape=(self.categories * self.rows, self.width))
        found = ops.gather_rows(table, indices + ops.const(self.rows * np.arange(self.categories)[None]))
        rows = ops.concat([ops.unsqueeze(z, axis=1), found], axis=1)
        products = ops.reshape(ops.bmm(rows, ops.permute(rows, axes=(0, 2, 1))), shape=(n, many * many))
        below, left = np.tril_indices(many, -1)
        products = derived.take(ops, products, ops.const(below * many + left), axis=1)
        scores = net.linear("d", ops.relu(net.linear("c", ops.concat([z, products], axis=1))))
        return derived.binary_cross_entropy_with_logits(ops, ops.squeeze(scores, axis=1), y)

    def data(self) -> Arrays:
        draw, n = Draw(), self.batch
        return draw.floats(n, 13), draw.below(self.rows, n, self.categories), draw.bits(n)


@dataclass(frozen=True)
class Flow:
    """A normalizing flow of coupling layers (Dinh et al. 2017): the density of rows, half of which scale and move the
    other half."""

    batch: int = 256
    width: int = 32
    hidden: int = 128
    layers: int = 6

    def module(self) -> Any:
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self, size: Flow) -> None:
                super().__init__()
                self.a = nn.ModuleList([nn.Linear(size.width // 2, size.hidden) for _ in range(size.layers)])
                self.b = nn.ModuleList([nn.Linear(size.hidden, size.width) for _ in range(size.layers)])

            def forward(self, x: Any) -> Any:
                volume = 0.0
                for a, b in zip(self.a, self.b):
                    still, moved = x.chunk(2, 1)
                    scale, shift = b(torch.relu(a(still))).chunk(2, 1)
                    scale = torch.tanh(scale)
                    volume = volume + scale.sum(1)
                    x = torch.cat([moved * torch.exp(scale) + shift, still], 1)
                return (0.5 * (x * x).sum(1) - volume).mean()

        return Net(self)

    def program(self, ops: Any, params: Any, x: Any) -> Any:
        net, volume = Layers(ops, params), 0.0
        for i in range(self.layers):
            still, moved = parts(ops, x, 2, axis=1)
            scale, shift = parts(ops, net.linear(f"b.{i}", ops.relu(net.linear(f"a.{i}", still))), 2, axis=1)
            scale = ops.tanh(scale)
            volume = ops.reduce_sum(scale, axis=1) + volume
            x = ops.concat([moved * ops.exp(scale) + shift, still], axis=1)
        return ops.reduce_mean(ops.reduce_sum(x * x, axis=1) * 0.5 - volume)

    def data(self) -> Arrays:
        return (Draw().floats(self.batch, self.width),)
