"""CPU time of proofs: claims and ranges of gpt and GPT-2 XL at every size, and of interval bounds by forward passes."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np

import opstage
from benchmarks.cpu_time import best_ms
from opstage import Box, Options, Spec
from opstage.facts import Causal, Independent, ranges_of, with_claims
from opstage.models import cnn, gpt, mlp
from opstage.models.transformer_block import transformer_block
from opstage.ops.trees import map_leaves

SHAPES = {"gpt": gpt.Config(), "GPT-2 XL": gpt.Config(length=1024, width=1600, heads=25, hidden=6400, depth=48)}
BLOCKS = gpt.Config(length=64, width=128, heads=4, hidden=256, depth=2)
RADIUS = np.float32(0.01)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="rounds, the best of which counts")


def main(given: argparse.Namespace) -> None:
    for name, config in SHAPES.items():
        times = proofs(config, given.rounds)
        print(name, ", ".join(f"{what} {ms:.0f} ms" for what, ms in times.items()))
    for name, program in forward_passes().items():
        for backend in ("eager", "compiled"):
            print(f"bounds of {name}, {backend}: {ratio(*program, backend, given.rounds):.2f} forward passes")


def proofs(config: gpt.Config, rounds: int) -> dict[str, float]:
    """Milliseconds of a check of the logits for all batches and lengths, and of two claims and the ranges of it."""
    params = map_leaves(lambda leaf: Spec(tuple(leaf.shape)), gpt.init(config))
    text = Spec("B T", dtype="int64", where=(f"T <= {config.length}", "T >= 1"))
    report = opstage.check(partial(gpt.logits, config=config), params, text, train=False)
    claimed = with_claims(report, [Causal("T"), Independent("B")])
    assert [each.state for each in claimed.claims] == ["proved", "proved"]
    assert ranges_of(report).safe
    return {
        "check": best_ms(
            lambda: opstage.check(partial(gpt.logits, config=config), params, text, train=False), rounds, 0.1
        ),
        "claims": best_ms(lambda: with_claims(report, [Causal("T"), Independent("B")]), rounds, 0.1),
        "ranges": best_ms(lambda: ranges_of(report), rounds, 0.1),
    }


def forward_passes() -> dict[str, tuple[Any, Any, Any]]:
    """Programs (ops, params, x), their parameters and x."""
    rng = np.random.default_rng(0)

    def drawn(tree: Any) -> Any:
        return map_leaves(lambda leaf: _normal(rng, tuple(map(int, leaf.shape))), tree)

    def blocks(ops: Any, params: Any, x: Any) -> Any:
        for block in params["blocks"]:
            x = transformer_block(ops, block, x, BLOCKS.block)
        return x

    found: dict[str, tuple[Any, Any, Any]] = {}
    for name, module in (("mlp", mlp), ("cnn", cnn)):
        config: Any = module.Config()
        model = module.make(config)
        shape = tuple([size if isinstance(size, int) else 64 for size in model.batch[0].entries])
        found[name] = partial(module.logits, config=config), drawn(model.init), _normal(rng, shape)
    found["two transformer blocks"] = blocks, drawn(gpt.init(BLOCKS)), _normal(rng, (8, BLOCKS.length, BLOCKS.width))
    return found


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return (rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1))).astype("f4")


def ratio(program: Any, params: Any, x: Any, backend: Any, rounds: int) -> float:
    """The time of interval bounds over that of a forward pass, in turns."""
    options, box = Options(backend=backend), Box.around(x, RADIUS)
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        times[0].append(best_ms(lambda: opstage.run(program, params, x, options=options), 1, 0.1))
        times[1].append(best_ms(lambda: opstage.bounds(program, params, box, options=options), 1, 0.1))
    return min(times[1]) / min(times[0])
