"""One side of one architecture in a process of its own: losses of the first steps and the CPU time of a step as JSON.

PyTorch writes its initial parameters into a file, from which our sides take theirs. It trains in both layouts of
memory where there are images, and the faster one counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.architectures.layers import Architecture
from benchmarks.architectures.zoo import ZOO
from benchmarks.cpu_time import best_ms

RATE, DECAY = 1e-3, 1e-2
STEPS = 2  # whose losses are compared
SECONDS = 0.3  # of a round


def main(side: str, name: str, rounds: int, path: str) -> dict[str, Any]:
    if side != "torch":
        with np.load(path) as file:
            params = dict(file)
        return timed(our_step(ZOO[name], params, side), rounds)
    import torch

    torch.set_num_threads(1)
    np.savez(path, **parameters(module_of(ZOO[name])))
    images = any(np.ndim(array) == 4 for array in ZOO[name].data())
    plain = timed(their_step(ZOO[name]), rounds)
    if not images:
        return plain
    last = timed(their_step(ZOO[name], torch.channels_last), rounds)
    return min(plain, {**last, "losses": plain["losses"]}, key=lambda each: each["step_ms"])


def timed(step: Callable[[], float], rounds: int) -> dict[str, Any]:
    losses = [step() for _ in range(STEPS)]
    return {"losses": losses, "step_ms": best_ms(step, rounds, SECONDS)}


def module_of(architecture: Architecture) -> Any:
    """Its module, always with the same numbers."""
    import torch

    torch.manual_seed(0)
    return architecture.module()


def parameters(module: Any) -> dict[str, Any]:
    """By name, as arrays of their own."""
    return {name: each.detach().numpy().copy() for name, each in module.named_parameters()}


def their_step(architecture: Architecture, layout: Any = None) -> Callable[[], float]:
    """A training step of PyTorch with the fused AdamW, which returns the loss before it."""
    import torch

    module = module_of(architecture)
    batch = [torch.from_numpy(np.ascontiguousarray(array)) for array in architecture.data()]
    if layout is not None:
        module = module.to(memory_format=layout)
        batch = [each.to(memory_format=layout) if each.ndim == 4 else each for each in batch]
    adamw = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=DECAY, fused=True)

    def step() -> float:
        adamw.zero_grad(set_to_none=True)
        loss = module(*batch)
        loss.backward()
        adamw.step()
        return float(loss.detach())

    return step


def our_step(architecture: Architecture, params: dict[str, Any], backend: str) -> Callable[[], float]:
    """The same on an interpreter of ours."""
    import opstage

    batch, options = architecture.data(), opstage.Options(backend=backend)
    trainer = opstage.scalar_trainer(architecture.program, params, options=options)
    adamw = opstage.optim.adamw(lr=RATE, weight_decay=DECAY)
    slots = trainer.init_optim(adamw)
    return lambda: float(trainer.advance(adamw, slots, *batch).loss)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])))
