"""The shipped models' predictions as ONNX models, their parameters inside."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

import opstage
from opstage import Options
from opstage.init import build
from opstage.interop.onnx.export import model_of
from opstage.models import MODELS, cnn, gpt, lstm, mlp, pinn, resnet, unet, vae, vit
from opstage.ops.trees import map_leaves
from tests.models.common import batch_of


@dataclass(frozen=True, eq=False)
class Exported:
    """A program and what it takes.

    trees   its parameters, and its state if it has one
    """

    program: Any
    trees: tuple[Any, ...]
    specs: tuple[Any, ...]
    inputs: tuple[Any, ...]

    def proto(self, dtype: str = "float32") -> Any:
        """The ONNX model."""
        graph = opstage.record(self.program, *self.trees, *self.specs, options=Options(dtype=dtype))
        return model_of(graph, dict(zip(("params", "state"), self.trees)))


PROGRAMS: dict[str, tuple[Any, int, Any]] = {
    "cnn": (cnn.logits, 1, cnn.Config(channels=(4, 8), dense=16)),
    "gpt": (gpt.logits, 1, gpt.Config(length=128, width=16, depth=3, heads=2, hidden=32)),
    "lstm": (lstm.logits, 1, lstm.Config(hidden=8)),
    "mlp": (mlp.logits, 1, mlp.Config(hidden=(16, 16))),
    "pinn": (pinn.residual, 2, pinn.Config(hidden=(8, 8))),
    "resnet": (resnet.logits, 1, resnet.Config(channels=(4, 8))),
    "unet": (unet.denoise, 1, unet.Config(channels=(4, 8, 8))),
    "vae": (vae.encode, 1, vae.Config(hidden=(16, 16))),
    "vit": (vit.logits, 1, vit.Config(embedding=16, depth=3, heads=2, hidden=32)),
}
"""What each shipped model predicts, of how many inputs, and a config that makes it small."""
SHIPPED = tuple(sorted(PROGRAMS))


def prediction(name: str, config: Any) -> Any:
    """The program that predicts, of a config."""
    program = PROGRAMS[name][0]
    return program if name in ("pinn", "vae") else partial(program, config=config)


def moved(made: Any, dtype: str) -> tuple[Any, ...]:
    """Parameters, and the state of a model that has one: off their first values, where a bias is 0."""
    rng = np.random.default_rng(0)
    declared = [made.init] if made.state is None else [made.init, made.state]
    trees = [build(declarations, dtype=dtype, seed=0) for declarations in declared]
    return tuple(map_leaves(lambda p: (p + 0.05 * rng.random(p.shape)).astype(dtype), tree) for tree in trees)


@cache
def shipped(name: str) -> Exported:
    """A shipped model, small, off its first values."""
    _, count, config = PROGRAMS[name]
    made = MODELS[name].make(config)
    program, trees = prediction(name, config), moved(made, "float32")
    return Exported(program, trees, made.batch[:count], batch_of(name, 3)[:count])
