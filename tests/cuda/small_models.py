"""The shipped models, so small that a simulated device trains them."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstage.init import Plan, build
from opstage.models import Model, cnn, gpt, lstm, mlp, model, pinn, resnet, unet, vae, vit
from opstage.options import Options
from opstage.training.parameters import plan_params
from opstage.training.trainer import ScalarTrainer, scalar_trainer

CONFIGS: dict[str, Any] = {
    "cnn": cnn.Config(height=4, width=4, channels=(2, 2), dense=4, classes=3),
    "gpt": gpt.Config(length=4, width=4, depth=1, heads=2, hidden=4, dropout=0.1),
    "lstm": lstm.Config(height=3, width=2, hidden=3, classes=3),
    "mlp": mlp.Config(inputs=(1, 2, 3), hidden=(5,), classes=3),
    "pinn": pinn.Config(hidden=(3,)),
    "resnet": resnet.Config(height=4, width=4, channels=(2,), blocks=1, classes=3),
    "unet": unet.Config(height=4, width=4, channels=(2, 2), groups=1),
    "vae": vae.Config(inputs=(1, 2, 3), hidden=(4,), latent=2),
    "vit": vit.Config(height=4, width=4, embedding=4, depth=1, heads=2, hidden=4, classes=3),
}
SIZES = {"B": 2, "T": 3}


def small(name: str) -> Model:
    return model(name, CONFIGS[name])


def batch(name: str) -> tuple[Any, ...]:
    rng = np.random.default_rng(5)
    arrays: list[Any] = []
    for spec in small(name).batch:
        shape = tuple(SIZES[n] if n in SIZES else int(n) for n in spec.entries)
        labels = spec.dtype == "int64"
        arrays.append(rng.integers(0, 3, shape) if labels else rng.uniform(0.1, 0.9, shape).astype(np.float32))
    return tuple(arrays)


def trainer(name: str, options: Options) -> ScalarTrainer:
    made = small(name)
    state = None if made.state is None else build(made.state, seed=options.seed)
    params = plan_params(Plan.of(made.init), made.init, options)
    return scalar_trainer(made.loss, params, *made.batch, options=options, state=state)


def normalised(ops: Any, params: Any, x: Any, y: Any) -> Any:
    """The loss of a classifier whose batch norm is, on a mesh, over the rows of all ranks."""
    h, _, _ = ops.batch_norm(ops.linear(params["up"], None, x), params["scale"], params["shift"])
    return ops.cross_entropy(ops.linear(params["down"], params["b"], ops.relu(h)), y)


def normalised_params(rng: np.random.Generator, hidden: int, inputs: int) -> dict[str, np.ndarray[Any, Any]]:
    """The parameters of `normalised`, of three classes."""
    return {
        "up": rng.standard_normal((hidden, inputs)).astype("f"),
        "scale": np.ones(hidden, np.float32),
        "shift": np.zeros(hidden, np.float32),
        "down": rng.standard_normal((3, hidden)).astype("f"),
        "b": np.zeros(3, np.float32),
    }
