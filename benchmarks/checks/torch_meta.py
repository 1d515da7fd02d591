"""PyTorch on the meta device: the model runs on tensors without values, at one batch size and one length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from benchmarks.sides.torch_eager import transformer
from benchmarks.workloads import LEARNING_RATE, WEIGHT_DECAY, Gpt


def parts(w: Gpt) -> dict[str, Callable[[], Any]]:
    with torch.device("meta"):
        model = transformer(w)
        tokens = torch.zeros((w.batch, w.length), dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, foreach=False)

    def forward() -> Any:
        return functional.cross_entropy(model(tokens).flatten(0, -2), tokens.flatten())

    def whole() -> None:
        optimizer.zero_grad(set_to_none=True)
        forward().backward()
        optimizer.step()

    return {"forward": forward, "whole step": whole}
