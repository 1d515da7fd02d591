"""A run of a small model of which one process fails: `mpiexec -n 2 python -m tests.mpi.faulty kill eager`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np

import opstage
from opstage import Options, RankError
from opstage.distributed.processes import world


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    """Squared distances of a linear layer's outputs."""
    apart = ops.sub(ops.linear(params["w"], None, x), y)
    return ops.reduce_mean(ops.mul(apart, apart))


def say(what: str) -> None:
    """When, on the clock that all processes of a machine share; in one write, so that no line is cut in two."""
    os.write(1, f"{what} at {time.monotonic()}\n".encode())


def main(kind: str, backend: str) -> None:
    """Take 6 steps; in the fourth the last process fails."""
    if kind == "absent" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        say("fails")
        os.kill(os.getpid(), signal.SIGKILL)
    here = world()
    options = Options(mesh="data=4", backend=backend, timeout=3)
    trainer = opstage.scalar_trainer(loss, {"w": np.ones((3, 5), np.float32)}, options=options)
    rng = np.random.default_rng(0)
    for step in range(6):
        rows = 8
        if step == 3 and here.process == here.processes - 1:
            say("fails")
            if kind == "raise":
                raise KeyError("a file of the data set is gone")
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if kind == "elsewhere":
                here.exchange({0: np.zeros(2)}, {0: np.zeros(2)}, "something else")
            if kind == "rows":
                rows = 12
            if kind == "leave":
                sys.exit(0)
            if kind == "cut":
                subprocess.run(os.environ["CUT"].split(), check=True)
        try:
            value = trainer.step(0.1, rng.standard_normal((rows, 5)), rng.standard_normal((rows, 3)))
        except RankError:
            say("is told")
            raise
    print(f"done: {value:.6f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
