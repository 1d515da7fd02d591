"""Training steps of imported PyTorch modules, compiled, against PyTorch eager: both in one process, in turn.

ResNet-50 and BERT-base in shape, from `torch.export`, with weights drawn at random: forward, backward, SGD, in float32
from the same weights on the same batch. A figure is the median over rounds of PyTorch's time over ours, and their
spread; above 1 ours is faster. The losses of the first steps stand beside it, ours and theirs. Variables that pin
libraries are to be cleared before: `env -u OPENBLAS_CORETYPE python -m benchmarks imported_training`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.choices import names_of, positive
from benchmarks.inference import median_time

RATE = 1e-4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", type=names_of(NETWORKS), default=list(NETWORKS), metavar="A,B")
    parser.add_argument("--batch", type=positive(int), default=8, metavar="N")
    parser.add_argument("--rounds", type=positive(int), default=3, metavar="N", help="of both in turn (3)")
    parser.add_argument("--seconds", type=positive(float), default=5.0, metavar="S", help="of each in a round (5)")
    parser.add_argument("--threads", type=positive(int), default=2, metavar="N", help="of PyTorch (2)")


def main(given: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(given.threads)
    print(
        f"{'network':<12}{'batch':>6}{'torch':>12}{'ours':>12}{'ratio':>8}  {'of rounds':<14}losses, torch's and ours"
    )
    for name in given.networks:
        torch.manual_seed(0)
        module, batch, compared = NETWORKS[name](given.batch)
        ours, theirs = _ours(module, batch, compared), _theirs(module, batch, compared)
        losses = [[step() for _ in range(2)] for step in (theirs, ours)]
        rounds = [[median_time(step, given.seconds) for step in (theirs, ours)] for _ in range(given.rounds)]
        a, b = (1e3 * statistics.median(each) for each in zip(*rounds))
        ratios = [x / y for x, y in rounds]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        said = ", ".join(f"{x:.4f} {y:.4f}" for x, y in zip(*losses))
        print(
            f"{name:<12}{given.batch:>6}{a:>9.0f} ms{b:>9.0f} ms{statistics.median(ratios):>8.2f}  {spread:<14}{said}",
            flush=True,
        )


def _theirs(module: Any, batch: tuple[Any, Any], loss: str) -> Callable[[], float]:
    import torch

    compared = {"cross_entropy": torch.nn.functional.cross_entropy, "mse": torch.nn.functional.mse_loss}[loss]
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    x, y = (torch.from_numpy(each) for each in batch)

    def step() -> float:
        optimizer.zero_grad()
        found = compared(module(x), y)
        found.backward()
        optimizer.step()
        return float(found.detach())

    return step


def _ours(module: Any, batch: tuple[Any, Any], loss: str) -> Callable[[], float]:
    import torch
    from torch.export import Dim, export

    import opstage
    import opstage.torch
    from opstage.interop.torch.model import Config, trainable

    program = export(module, (torch.from_numpy(batch[0]),), dynamic_shapes=({0: Dim("batch", max=1024)},))
    model = trainable(opstage.torch.load(program), Config(loss=loss))
    options = opstage.Options(backend="compiled")
    trainer = opstage.scalar_trainer(model.loss, model.init, *model.batch, state=model.state, options=options)
    sgd = opstage.optim.sgd(lr=RATE)
    slots = trainer.init_optim(sgd)
    return lambda: float(trainer.advance(sgd, slots, *batch).loss)


def _resnet50(batch: int) -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, channels: int, width: int, stride: int):
            super().__init__()

            def conv(a: int, b: int, k: int, s: int = 1) -> list[Any]:
                return [nn.Conv2d(a, b, k, s, k // 2, bias=False), nn.BatchNorm2d(b)]

            parts = [*conv(channels, width, 1), nn.ReLU(), *conv(width, width, 3, stride), nn.ReLU()]
            self.body = nn.Sequential(*parts, *conv(width, 4 * width, 1))
            other = stride > 1 or channels != 4 * width
            self.skip = nn.Sequential(*conv(channels, 4 * width, 1, stride)) if other else nn.Identity()

        def forward(self, x: Any) -> Any:
            return torch.relu(self.body(x) + self.skip(x))

    blocks, channels = [], 64
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(count):
            blocks.append(Block(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    module = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((batch, 3, 224, 224)).astype(np.float32)
    return module.train(), (x, rng.integers(0, 1000, batch)), "cross_entropy"


def _bert_base(batch: int) -> Any:
    from torch import nn

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(30522, 768)
            layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
            self.head = nn.Linear(768, 2)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.encoder(self.embedding(tokens))[:, 0])

    rng = np.random.default_rng(1)
    return Bert().train(), (rng.integers(0, 30522, (batch, 128)), rng.integers(0, 2, batch)), "cross_entropy"


NETWORKS: dict[str, Callable[[int], Any]] = {"resnet50": _resnet50, "bert-base": _bert_base}
