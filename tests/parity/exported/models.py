"""Modules of the usual kinds, small."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(8, 3))


class Cnn(nn.Module):
    """Convolutions with batch normalisation, pooled to classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(image))), 2)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Block(nn.Module):
    """A residual block with a stride (He et al. 2016)."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, 2, 1, bias=False)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outer), nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)])
        self.short = nn.Conv2d(inner, outer, 1, 2, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        y += self.norms[2](self.short(x))
        return self.relu(y)


def resnet() -> nn.Module:
    return nn.Sequential(Block(3, 4), Block(4, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


class Encoder(nn.Module):
    """Tokens with learned positions through nn.TransformerEncoder; a padding mask by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.places = nn.Parameter(torch.randn(16, 8) * 0.1)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(8)

    def forward(self, tokens: torch.Tensor, *, padding: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.table(tokens) + self.places[: tokens.shape[1]]
        x = self.norm(self.layers(x, src_key_padding_mask=padding))
        return {"states": x, "mean": x.mean(1)}


class Vit(nn.Module):
    """Patches, a class token, attention in heads (Dosovitskiy et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.places = nn.Parameter(torch.randn(1, 5, 8) * 0.02)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)])
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        b, n, d = x.shape
        q, k, v = self.qkv(self.norms[0](x)).reshape(b, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.out(y)
        x = x + self.mlp(self.norms[1](x))
        return self.head(self.norms[2](x)[:, 0])


class Lstm(nn.Module):
    """Two layers of an LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, (h, _) = self.lstm(x)
        return self.head(y), h


class Gru(nn.Module):
    """A GRU and a plain recurrence, time first."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.rnn = nn.GRU(3, 4), nn.RNN(4, 4, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(self.gru(x)[0])[0]


class Counting(nn.Module):
    """A buffer of its own that each run moves, and one that is a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("runs", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("offset", torch.arange(3.0), persistent=False)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        self.total.copy_(self.total * 0.5 + x.detach().sum(0))
        return x * self.scale + self.offset + self.total


class Tied(nn.Module):
    """An embedding whose table is the head's weight, and a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.table.weight
        self.head.bias.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens))
