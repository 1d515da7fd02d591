"""Train a small network on the embedded digits, and say how well it reads the ones it has not seen.

python examples/quickstart.py
"""

from __future__ import annotations

from typing import Any

import opstage
from opstage import Ops, Options, Spec
from opstage.data import Loader, digits, train_test_split
from opstage.init import Declaration, build, kaiming_uniform, zeros
from opstage.ops.derived import accuracy


def logits(ops: Ops[Any], params: Any, x: Any) -> Any:
    """(B, 1, 8, 8) -> (B, 10)."""
    h = ops.relu(ops.linear(params["hidden"]["weight"], params["hidden"]["bias"], ops.flatten(x, start=1)))
    return ops.linear(params["out"]["weight"], params["out"]["bias"], h)


def loss(ops: Ops[Any], params: Any, x: Any, y: Any) -> Any:
    return ops.cross_entropy(logits(ops, params, x), y)


def held_out_accuracy(ops: Ops[Any], params: Any, x: Any, y: Any) -> Any:
    return accuracy(ops, logits(ops, params, x), y)


def layer(inputs: int, outputs: int) -> dict[str, Declaration]:
    return {"weight": Declaration((outputs, inputs), kaiming_uniform()), "bias": Declaration((outputs,), zeros)}


def main() -> None:
    options = Options(seed=1)
    training, held_out = train_test_split(digits(), seed=options.seed)
    params = build({"hidden": layer(64, 64), "out": layer(64, 10)}, seed=options.seed)

    # The Specs are the trainer's contract: any batch size B, images of 1x8x8, one integer label each.
    batch = (Spec("B 1 8 8"), Spec("B", dtype="int64"))
    trainer = opstage.scalar_trainer(loss, params, *batch, options=options)
    print(f"{trainer.parameter_count} parameters; one training step: {trainer.report(*batch)}")

    optimizer = opstage.optim.adam(lr=3e-3)
    state = trainer.init_optim(optimizer)
    loader = Loader(training, 64, seed=options.seed)
    for epoch in range(20):
        for x, y in loader.epoch(epoch):
            state = trainer.step_with(optimizer, state, x, y)
    right = float(trainer.evaluate(held_out_accuracy, held_out["x"], held_out["y"]))
    print(f"held-out accuracy {100 * right:.1f} %")


if __name__ == "__main__":
    main()
