"""Networks of sequences: recurrences and scans, dilated convolutions, attention, a memory that is read and written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.architectures.layers import Arrays, Draw, Layers, of_each_cell, parts


def recurrent(params: Mapping[str, Any], name: str, suffix: str = "l0") -> dict[str, Any]:
    """The parameters of an nn.GRU or nn.LSTM by the names that Opstage has for them."""
    theirs = {"input": "weight_ih", "recurrent": "weight_hh", "bias": "bias_ih", "recurrent_bias": "bias_hh"}
    return {ours: params[f"{name}.{each}_{suffix}"] for ours, each in theirs.items()}


@dataclass(frozen=True)
class Speech:
    """A bidirectional GRU over frames of sound with connectionist temporal classification (Graves et al. 2006)."""

    length: int = 100
    batch: int = 16
    labels: int = 20
    hidden: int = 128

    def module(self) -> Any:
        from torch import nn
        from torch.nn import functional

        class Net(nn.Module):
            def __init__(self, hidden: int) -> None:
                super().__init__()
                self.gru, self.head = nn.GRU(40, hidden, bidirectional=True), nn.Linear(2 * hidden, 30)

            def forward(self, x: Any, labels: Any, frames: Any, counts: Any) -> Any:
                return functional.ctc_loss(self.head(self.gru(x)[0]).log_softmax(-1), labels, frames, counts)

        return Net(self.hidden)

    def program(self, ops: Any, params: Any, x: Any, labels: Any, frames: Any, counts: Any) -> Any:
        from opstage import derived

        net = Layers(ops, params)
        forth, _ = derived.gru(ops, x, recurrent(params, "gru"))
        back, _ = derived.gru(ops, x, recurrent(params, "gru", "l0_reverse"), reverse=True)
        scores = ops.log_softmax(net.linear("head", ops.concat([forth, back], axis=2)))
        return derived.ctc_loss(ops, scores, labels, frames, counts)

    def data(self) -> Arrays:
        draw, n = Draw(), self.batch
        x, labels = draw.floats(self.length, n, 40), 1 + draw.below(29, n, self.labels)
        return x, labels, np.full(n, self.length), np.full(n, self.labels)


@dataclass(frozen=True)
class LongLstm:
    """A long short-term memory (Hochreiter and Schmidhuber 1997) of 500 steps, a label at each of them."""

    length: int = 500
    batch: int = 32
    hidden: int = 128

    def module(self) -> Any:
        from torch import nn
        from torch.nn import functional

        class Net(nn.Module):
            def __init__(self, hidden: int) -> None:
                super().__init__()
                self.lstm, self.head = nn.LSTM(64, hidden), nn.Linear(hidden, 10)

            def forward(self, x: Any, y: Any) -> Any:
                return functional.cross_entropy(self.head(self.lstm(x)[0]).flatten(0, 1), y.flatten())

        return Net(self.hidden)

    def program(self, ops: Any, params: Any, x: Any, y: Any) -> Any:
        from opstage import derived

        states, _ = derived.lstm(ops, x, recurrent(params, "lstm"))
        scores = Layers(ops, params).linear("head", ops.flatten(states, start=0, end=1))
        return ops.cross_entropy(scores, ops.reshape(y, shape=(-1,)))

    def data(self) -> Arrays:
        draw = Draw()
        return draw.floats(self.length, self.batch, 64), draw.below(10, self.length, self.batch)


@dataclass(frozen=True)
class Wavenet:
    """Gated causal convolutions of WaveNet (van den Oord et al. 2016), their kernels 1, 2, 4, … apart."""

    batch: int = 8
    length: int = 512
    width: int = 32
    layers: int = 6

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        class Net(nn.Module):
            def __init__(self, width: int, layers: int) -> None:
                super().__init__()
                self.stem, self.head = nn.Conv1d(1, width, 1), nn.Conv1d(width, 64, 1)
                self.gates = nn.ModuleList([nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(layers)])
                self.mixes = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in range(layers)])

            def forward(self, x: Any, y: Any) -> Any:
                x = self.stem(x)
                for i, (gate, mix) in enumerate(zip(self.gates, self.mixes)):
                    a, b = gate(functional.pad(x, (2**i, 0))).chunk(2, 1)
                    x = x + mix(torch.tanh(a) * torch.sigmoid(b))
                return functional.cross_entropy(self.head(functional.relu(x)), y)

        return Net(self.width, self.layers)

    def program(self, ops: Any, params: Any, x: Any, y: Any) -> Any:
        net = Layers(ops, params)
        x = net.conv("stem", x)
        for i in range(self.layers):
            before = ops.pad(x, padding=((0, 0), (0, 0), (2**i, 0)))
            a, b = parts(ops, net.conv(f"gates.{i}", before, dilation=2**i), 2, axis=1)
            x = x + net.conv(f"mixes.{i}", ops.tanh(a) * ops.sigmoid(b))
        return of_each_cell(ops, net.conv("head", ops.relu(x)), y)

    def data(self) -> Arrays:
        draw = Draw()
        return draw.floats(self.batch, 1, self.length), draw.below(64, self.batch, self.length)


@dataclass(frozen=True)
class T5:
    """Encoder blocks of T5 (Raffel et al. 2020, version 1.1): rms norms, attention without scale but with a learned
    bias for every distance, gated gelu."""

    batch: int = 8
    length: int = 64
    width: int = 128
    heads: int = 4
    blocks: int = 3
    words: int = 500
    reach: int = 16

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        class Block(nn.Module):
            def __init__(self, size: T5) -> None:
                super().__init__()
                d, self.heads = size.width, size.heads
                self.before, self.between = nn.RMSNorm(d, eps=1e-6), nn.RMSNorm(d, eps=1e-6)
                self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
                self.gate, self.up = nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False)
                self.down = nn.Linear(2 * d, d, bias=False)

            def forward(self, x: Any, bias: Any) -> Any:
                q, k, v = (
                    each.unflatten(2, (self.heads, -1)).transpose(1, 2) for each in self.qkv(self.before(x)).chunk(3, 2)
                )
                h = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
                x = x + self.out(h.transpose(1, 2).flatten(2))
                h = self.between(x)
                return x + self.down(functional.gelu(self.gate(h), approximate="tanh") * self.up(h))

        class Net(nn.Module):
            def __init__(self, size: T5) -> None:
                super().__init__()
                self.words, self.places = (
                    nn.Embedding(size.words, size.width),
                    nn.Embedding(2 * size.reach + 1, size.heads),
                )
                self.blocks = nn.ModuleList([Block(size) for _ in range(size.blocks)])
                self.norm, self.head = nn.RMSNorm(size.width, eps=1e-6), nn.Linear(size.width, size.words, bias=False)
                self.register_buffer("distances", torch.from_numpy(size.distances()))

            def forward(self, tokens: Any, y: Any) -> Any:
                x, bias = self.words(tokens), self.places(self.distances).permute(2, 0, 1)
                for block in self.blocks:
                    x = block(x, bias)
                return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), y.flatten())

        return Net(self)

    def distances(self) -> Any:
        """Of each token to each other, those beyond the reach as one, counted from 0."""
        places = np.arange(self.length)
        return np.clip(places[None, :] - places[:, None], -self.reach, self.reach) + self.reach

    def program(self, ops: Any, params: Any, tokens: Any, y: Any) -> Any:
        net, d = Layers(ops, params), self.width
        n, t = tokens.shape

        def heads(x: Any) -> Any:
            return ops.permute(ops.reshape(x, shape=(n, t, self.heads, d // self.heads)), axes=(0, 2, 1, 3))

        def norm(name: str, x: Any) -> Any:
            return ops.rms_norm(x, params[f"{name}.weight"], eps=1e-6)

        x = ops.gather_rows(params["words.weight"], tokens)
        bias = ops.permute(ops.gather_rows(params["places.weight"], ops.const(self.distances())), axes=(2, 0, 1))
        for i in range(self.blocks):
            name = f"blocks.{i}"
            q, k, v = map(heads, parts(ops, net.linear(f"{name}.qkv", norm(f"{name}.before", x)), 3, axis=2))
            h = ops.permute(ops.scaled_dot_product_attention(q, k, v, None, bias, scale=1.0), axes=(0, 2, 1, 3))
            x = x + net.linear(f"{name}.out", ops.reshape(h, shape=(n, t, d)))
            h = norm(f"{name}.between", x)
            h = ops.gelu(net.linear(f"{name}.gate", h)) * net.linear(f"{name}.up", h)
            x = x + net.linear(f"{name}.down", h)
        scores = net.linear("head", ops.flatten(norm("norm", x), start=0, end=1))
        return ops.cross_entropy(scores, ops.reshape(y, shape=(-1,)))

    def data(self) -> Arrays:
        draw, shape = Draw(), (self.batch, self.length)
        return draw.below(self.words, *shape), draw.below(self.words, *shape)


@dataclass(frozen=True)
class SelectiveScan:
    """The layer of Mamba (Gu and Dao 2023): h ← exp(Δ·A)·h + Δ·B·x, y = C·h, where Δ, B and C depend on x."""

    length: int = 64
    batch: int = 8
    width: int = 64
    states: int = 8

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        class Net(nn.Module):
            def __init__(self, d: int, s: int) -> None:
                super().__init__()
                self.inner, self.delta, self.bc = nn.Linear(d, 2 * d), nn.Linear(d, d), nn.Linear(d, 2 * s)
                self.log_a = nn.Parameter(torch.arange(1.0, s + 1).log().repeat(d, 1))
                self.out = nn.Linear(d, d)

            def forward(self, x: Any, target: Any) -> Any:
                x, gate = self.inner(x).chunk(2, 2)
                x, a = functional.silu(x), -self.log_a.exp()
                delta, (b, c) = functional.softplus(self.delta(x)), self.bc(x).chunk(2, 2)
                h, ys = x.new_zeros(x.shape[1:] + a.shape[1:]), []
                for x_t, d_t, b_t, c_t in zip(x, delta, b, c):
                    h = torch.exp(d_t[..., None] * a) * h + (d_t * x_t)[..., None] * b_t[:, None, :]
                    ys.append((h * c_t[:, None, :]).sum(-1))
                return functional.mse_loss(self.out(torch.stack(ys) * functional.silu(gate)), target)

        return Net(self.width, self.states)

    def program(self, ops: Any, params: Any, x: Any, target: Any) -> Any:
        net = Layers(ops, params)
        x, gate = parts(ops, net.linear("inner", x), 2, axis=2)
        x, a = ops.silu(x), -ops.exp(params["log_a"])
        delta, (b, c) = ops.softplus(net.linear("delta", x)), parts(ops, net.linear("bc", x), 2, axis=2)

        def step(ops: Any, h: Any, at: Any) -> tuple[Any, Any]:
            x_t, d_t, b_t, c_t = at
            added = ops.unsqueeze(d_t * x_t, axis=2) * ops.unsqueeze(b_t, axis=1)
            h = ops.exp(ops.unsqueeze(d_t, axis=2) * a) * h + added
            return h, ops.reduce_sum(h * ops.unsqueeze(c_t, axis=1), axis=-1)

        zero = ops.full(shape=(*x.shape[1:], self.states), value=0.0)
        _, ys = ops.scan(step, zero, (x, delta, b, c))
        return ops.mse_loss(net.linear("out", ys * ops.silu(gate)), target)

    def data(self) -> Arrays:
        draw, shape = Draw(), (self.length, self.batch, self.width)
        return draw.floats(*shape), draw.floats(*shape)


@dataclass(frozen=True)
class MemoryScan:
    """The memory of neural Turing machines (Graves et al. 2014), addressed by content: in each step a row is erased and
    written by attention, and read."""

    length: int = 32
    batch: int = 16
    inputs: int = 16
    hidden: int = 64
    rows: int = 32
    width: int = 16

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        class Net(nn.Module):
            def __init__(self, size: MemoryScan) -> None:
                super().__init__()
                self.controller = nn.Linear(size.inputs + size.width, size.hidden)
                self.key, self.erase = nn.Linear(size.hidden, size.width), nn.Linear(size.hidden, size.width)
                self.write, self.head = nn.Linear(size.hidden, size.width), nn.Linear(size.width, size.inputs)
                self.start = nn.Parameter(torch.randn(size.rows, size.width) / math.sqrt(size.width))

            def forward(self, x: Any, target: Any) -> Any:
                memory = self.start.expand(x.shape[1], -1, -1)
                read, reads = memory.mean(1), []
                for x_t in x:
                    h = torch.tanh(self.controller(torch.cat([x_t, read], 1)))
                    w = torch.bmm(memory, self.key(h)[:, :, None]).softmax(1)
                    erased = torch.bmm(w, torch.sigmoid(self.erase(h))[:, None])
                    memory = memory * (1 - erased) + torch.bmm(w, self.write(h)[:, None])
                    read = (w * memory).sum(1)
                    reads.append(read)
                return functional.binary_cross_entropy_with_logits(self.head(torch.stack(reads)), target)

        return Net(self)

    def program(self, ops: Any, params: Any, x: Any, target: Any) -> Any:
        from opstage import derived

        def step(ops: Any, carry: Any, x_t: Any) -> tuple[Any, Any]:
            (memory, read), net = carry, Layers(ops, params)
            h = ops.tanh(net.linear("controller", ops.concat([x_t, read], axis=1)))
            w = ops.softmax(ops.bmm(memory, ops.unsqueeze(net.linear("key", h), axis=2)), axis=1)
            erased = ops.bmm(w, ops.unsqueeze(ops.sigmoid(net.linear("erase", h)), axis=1))
            memory = memory * (1.0 - erased) + ops.bmm(w, ops.unsqueeze(net.linear("write", h), axis=1))
            read = ops.reduce_sum(w * memory, axis=1)
            return (memory, read), read

        memory = ops.broadcast_to(params["start"], shape=(x.shape[1], self.rows, self.width))
        _, reads = ops.scan(step, (memory, ops.reduce_mean(memory, axis=1)), x)
        return derived.binary_cross_entropy_with_logits(ops, Layers(ops, params).linear("head", reads), target)

    def data(self) -> Arrays:
        draw, shape = Draw(), (self.length, self.batch, self.inputs)
        return draw.floats(*shape), draw.bits(*shape)
