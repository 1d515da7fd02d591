"""Train a small network on the embedded digits so that a bounded change of every pixel provably changes no answer.

The loss is taken at the worst logits that interval bounds allow (Gowal et al., 2018), whose radius grows as training
goes on. An image counts as certified where the bounds of its logits leave its own class the greatest, for every image
within EPS of it, rounding included.

    python examples/certified.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import opstage
from opstage import Box, Ops, Options, Spec, transform
from opstage.data import Loader, digits, train_test_split
from opstage.init import Declaration, build, kaiming_uniform, zeros

EPS = 0.05
"""How far a pixel may move; ink goes from 0 to 1."""
EPOCHS = 30


def logits(ops: Ops[Any], params: Any, x: Any) -> Any:
    """(B, 1, 8, 8) -> (B, 10)."""
    h = ops.flatten(x, start=1)
    for layer in params["hidden"]:
        h = ops.relu(ops.linear(layer["weight"], layer["bias"], h))
    return ops.linear(params["out"]["weight"], params["out"]["bias"], h)


def loss(ops: Ops[Any], params: Any, x: Any, y: Any, eps: Any) -> Any:
    """Half the cross-entropy, and half that at the worst logits within eps."""
    radius = ops.broadcast_to(eps, shape=x.shape)
    box = transform.bounds(ops, logits, params, Box(x - radius, x + radius))
    own = ops.equal(
        ops.broadcast_to(ops.unsqueeze(y, axis=1), shape=box.lower.shape), ops.iota(shape=box.lower.shape, axis=1)
    )
    worst = ops.select(own, box.lower, box.upper)
    return 0.5 * ops.cross_entropy(logits(ops, params, x), y) + 0.5 * ops.cross_entropy(worst, y)


def certified(params: Any, x: Any, y: Any, method: Any, options: Options) -> float:
    """The share of images whose class no change within EPS can change."""

    def margins(ops: Any, params: Any, differences: Any, x: Any) -> Any:
        """The own class's logit less each one."""
        return ops.bmm(differences, ops.unsqueeze(logits(ops, params, x), axis=2))

    identity = np.eye(10, dtype=np.float32)
    differences = identity[y][:, None, :] - identity  # (B, 10, 10): row j of an image is e_own - e_j
    box = opstage.bounds(margins, params, differences, Box.around(x, np.float32(EPS)), method=method, options=options)
    own = identity[y] > 0
    return float(np.mean(((box.lower[..., 0] > 0) | own).all(axis=1)))


def layer(inputs: int, outputs: int) -> dict[str, Declaration]:
    return {"weight": Declaration((outputs, inputs), kaiming_uniform()), "bias": Declaration((outputs,), zeros)}


def main() -> None:
    options = Options(seed=1, backend="compiled")
    training, held_out = train_test_split(digits(), seed=options.seed)
    params = build({"hidden": [layer(64, 64), layer(64, 32)], "out": layer(32, 10)}, seed=options.seed)
    trainer = opstage.scalar_trainer(loss, params, Spec("B 1 8 8"), Spec("B", dtype="int64"), Spec(()), options=options)
    optimizer = opstage.optim.adam(lr=3e-3)
    state = trainer.init_optim(optimizer)
    loader = Loader(training, 64, seed=options.seed)
    for epoch in range(EPOCHS):
        eps = EPS * min(1.0, epoch / (0.6 * EPOCHS))
        for x, y in loader.epoch(epoch):
            state = trainer.step_with(optimizer, state, x, y, np.float32(eps))
    trained = trainer.get_params()
    x, y = held_out["x"], held_out["y"]
    found = opstage.run(logits, trained, x, options=options)
    print(f"held-out accuracy {100 * np.mean(found.argmax(axis=1) == y):.1f} %")
    for method in ("interval", "crown"):
        share = certified(trained, x, y, method, options)
        print(f"certified within {EPS} by {method} bounds: {100 * share:.1f} %")


if __name__ == "__main__":
    main()
