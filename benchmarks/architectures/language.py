"""Networks of language besides the plain transformer: rotary positions, and translation by recurrences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.architectures.layers import Arrays, Draw, Layers, parts
from benchmarks.architectures.sequences import recurrent


@dataclass(frozen=True)
class RotaryGpt:
    """Decoder blocks of Llama (Touvron et al. 2023): rms norms, rotary positions, queries that share keys in groups,
    gates of silu."""

    batch: int = 4
    length: int = 64
    width: int = 128
    heads: int = 8
    groups: int = 2
    hidden: int = 352
    blocks: int = 2
    words: int = 500

    @property
    def head(self) -> int:
        return self.width // self.heads

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        cos, sin = map(torch.from_numpy, self.angles())

        def turned(x: Any) -> Any:
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat([-b, a], -1) * sin

        class Block(nn.Module):
            def __init__(self, size: RotaryGpt) -> None:
                super().__init__()
                d, self.size = size.width, size
                self.before, self.between = nn.RMSNorm(d, eps=1e-5), nn.RMSNorm(d, eps=1e-5)
                self.q, self.out = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
                self.k, self.v = (nn.Linear(d, size.groups * size.head, bias=False) for _ in range(2))
                self.gate, self.up = (nn.Linear(d, size.hidden, bias=False) for _ in range(2))
                self.down = nn.Linear(size.hidden, d, bias=False)

            def heads(self, x: Any) -> Any:
                return x.unflatten(2, (-1, self.size.head)).transpose(1, 2)

            def forward(self, x: Any) -> Any:
                h, shared = self.before(x), self.size.heads // self.size.groups
                q, k = turned(self.heads(self.q(h))), turned(self.heads(self.k(h)))
                k, v = (each.repeat_interleave(shared, 1) for each in (k, self.heads(self.v(h))))
                h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.out(h.transpose(1, 2).flatten(2))
                h = self.between(x)
                return x + self.down(functional.silu(self.gate(h)) * self.up(h))

        class Net(nn.Module):
            def __init__(self, size: RotaryGpt) -> None:
                super().__init__()
                self.words = nn.Embedding(size.words, size.width)
                self.blocks = nn.Sequential(*[Block(size) for _ in range(size.blocks)])
                self.norm, self.head = nn.RMSNorm(size.width, eps=1e-5), nn.Linear(size.width, size.words, bias=False)

            def forward(self, tokens: Any, y: Any) -> Any:
                scores = self.head(self.norm(self.blocks(self.words(tokens))))
                return functional.cross_entropy(scores.flatten(0, 1), y.flatten())

        return Net(self)

    def angles(self) -> tuple[Any, Any]:
        """Cosines and sines of each place, for both halves of a head."""
        rates = 10000.0 ** (-np.arange(0, self.head, 2) / self.head)
        angles = np.tile(np.arange(self.length)[:, None] * rates, 2)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def program(self, ops: Any, params: Any, tokens: Any, y: Any) -> Any:
        net, (cos, sin) = Layers(ops, params), map(ops.const, self.angles())
        (n, t), e, shared = tokens.shape, self.head, self.heads // self.groups

        def norm(name: str, x: Any) -> Any:
            return ops.rms_norm(x, params[f"{name}.weight"], eps=1e-5)

        def heads(x: Any) -> Any:
            return ops.permute(ops.reshape(x, shape=(n, t, x.shape[2] // e, e)), axes=(0, 2, 1, 3))

        def turned(x: Any) -> Any:
            a, b = parts(ops, x, 2, axis=3)
            return x * cos + ops.concat([ops.neg(b), a], axis=3) * sin

        def repeated(x: Any) -> Any:
            x = ops.broadcast_to(ops.unsqueeze(x, axis=2), shape=(n, self.groups, shared, t, e))
            return ops.reshape(x, shape=(n, self.heads, t, e))

        x = ops.gather_rows(params["words.weight"], tokens)
        for i in range(self.blocks):
            name = f"blocks.{i}"
            h = norm(f"{name}.before", x)
            q, k = (turned(heads(net.linear(f"{name}.{each}", h))) for each in "qk")
            k, v = repeated(k), repeated(heads(net.linear(f"{name}.v", h)))
            h = ops.permute(ops.scaled_dot_product_attention(q, k, v, causal=True), axes=(0, 2, 1, 3))
            x = x + net.linear(f"{name}.out", ops.reshape(h, shape=(n, t, self.width)))
            h = norm(f"{name}.between", x)
            h = ops.silu(net.linear(f"{name}.gate", h)) * net.linear(f"{name}.up", h)
            x = x + net.linear(f"{name}.down", h)
        scores = ops.flatten(net.linear("head", norm("norm", x)), start=0, end=1)
        return ops.cross_entropy(scores, ops.reshape(y, shape=(-1,)))

    def data(self) -> Arrays:
        draw, shape = Draw(), (self.batch, self.length)
        return draw.below(self.words, *shape), draw.below(self.words, *shape)


@dataclass(frozen=True)
class Translator:
    """Sequence to sequence by two LSTMs of a few steps, with attention to the source (Luong et al. 2015)."""

    length: int = 20
    batch: int = 16
    width: int = 64
    words: int = 200

    def module(self) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        class Net(nn.Module):
            def __init__(self, d: int, words: int) -> None:
                super().__init__()
                self.source, self.target = nn.Embedding(words, d), nn.Embedding(words, d)
                self.encoder, self.decoder = nn.LSTM(d, d), nn.LSTM(d, d)
                self.mix, self.head = nn.Linear(2 * d, d), nn.Linear(d, words)

            def forward(self, source: Any, target: Any, y: Any) -> Any:
                states, last = self.encoder(self.source(source))
                keys, queries = states.transpose(0, 1), self.decoder(self.target(target), last)[0].transpose(0, 1)
                weights = torch.bmm(queries, keys.transpose(1, 2)).softmax(-1)
                h = torch.tanh(self.mix(torch.cat([queries, torch.bmm(weights, keys)], 2)))
                return functional.cross_entropy(self.head(h).flatten(0, 1), y.flatten())

        return Net(self.width, self.words)

    def program(self, ops: Any, params: Any, source: Any, target: Any, y: Any) -> Any:
        from opstage import derived

        net, words = Layers(ops, params), {each: params[f"{each}.weight"] for each in ("source", "target")}
        keys, last = derived.lstm(ops, ops.gather_rows(words["source"], source), recurrent(params, "encoder"))
        decoder = recurrent(params, "decoder")
        queries, _ = derived.lstm(ops, ops.gather_rows(words["target"], target), decoder, state=last)
        keys, queries = (ops.permute(each, axes=(1, 0, 2)) for each in (keys, queries))
        weights = ops.softmax(ops.bmm(queries, ops.permute(keys, axes=(0, 2, 1))))
        h = ops.tanh(net.linear("mix", ops.concat([queries, ops.bmm(weights, keys)], axis=2)))
        return ops.cross_entropy(ops.flatten(net.linear("head", h), start=0, end=1), ops.reshape(y, shape=(-1,)))

    def data(self) -> Arrays:
        draw, shape = Draw(), (self.length, self.batch)
        return draw.below(self.words, *shape), draw.below(self.words, *shape), draw.below(self.words, *shape[::-1])
