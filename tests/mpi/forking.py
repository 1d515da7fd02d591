"""Train on two processes, one of which forks a child that evaluates on and on, and print the digest of the losses."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import numpy as np

import opstage
from opstage import Options
from opstage.distributed.processes import world

WIDTH, STEPS, FORK_AT, EVALUATIONS = 128, 200, 5, 1000


def network(ops: Any, params: Any, x: Any) -> Any:
    for name in ("a", "b", "c"):
        x = ops.tanh(ops.linear(params[name], None, x))
    return x


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(network(ops, params, x), y)


def main(forks: bool) -> None:
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal((WIDTH, WIDTH)) / 11 for name in ("a", "b", "c")}
    trainer = opstage.scalar_trainer(loss, params, options=Options(mesh="data=2", backend="compiled"))
    rule = opstage.optim.adamw(lr=1e-3)
    state, (x, y) = trainer.init_optim(rule), rng.standard_normal((2, 64, WIDTH))
    expected: Any = None
    digest, child = hashlib.sha256(), 0
    for step in range(STEPS):
        if forks and step == FORK_AT:  # its memory is that of the step by now
            expected = np.array(trainer.evaluate(network, x))
            child = os.fork()
            if not child:
                same = all(np.array_equal(trainer.evaluate(network, x), expected) for _ in range(EVALUATIONS))
                os._exit(0 if same else 1)
        digest.update(repr(float(trainer.advance(rule, state, x, y).loss)).encode())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0
    print(f"{digest.hexdigest()} child {code}", flush=True)


if __name__ == "__main__":
    main("fork" in sys.argv and world().process == 0)
