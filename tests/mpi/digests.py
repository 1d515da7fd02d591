"""Train shipped models, small ones, on a mesh of four ranks, and print the digests of losses and parameters.

On several processes a line says whose MPI joins them."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np

import opstage
from opstage import Options, init
from opstage.distributed.processes import world
from opstage.models import gpt, model
from opstage.ops.trees import flatten

SMALL = {"gpt": gpt.Config(width=32, depth=1, heads=2, hidden=64, length=16, dropout=0.1)}


def digest(name: str, backend: str, steps: int, mesh: str, zero: int = 0, bucket: int = 0, rows: int = 8) -> str:
    """The SHA-256 of all losses, and of the parameters and moments after so many steps of AdamW."""
    made = model(name, SMALL[name]) if name in SMALL else model(name)
    options = Options(mesh=mesh, backend=backend, zero=zero, bucket_size=str(bucket))
    state = None if made.state is None else init.build(made.state, seed=0)
    trainer = opstage.scalar_trainer(
        made.loss, init.build(made.init, seed=0), *made.batch, options=options, state=state
    )
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(steps):
        batch: list[Any] = []
        for spec in made.batch:
            shape = [int(e) if str(e).isdecimal() else rows for e in spec.entries]
            batch.append(rng.integers(0, 8, shape) if spec.dtype == "int64" else 0.3 * rng.standard_normal(shape))
        losses.append(float(trainer.adamw_step(1e-3, 0.9, 0.999, 1e-8, 0.01, *batch)))
    saved = trainer.export()
    moments = [slot for slots in saved.moments["adamw"].slots.values() for slot in slots]
    leaves = [np.asarray(leaf) for leaf in (*flatten((trainer.get_params(), trainer.state))[0], *moments)]
    return hashlib.sha256(b"".join([leaf.tobytes() for leaf in leaves]) + repr(losses).encode()).hexdigest()


if __name__ == "__main__":
    if world().process == 0 and world().processes > 1:
        from mpi4py import MPI

        print("engine:", MPI.Get_library_version().split()[0], flush=True)
    for words in sys.argv[1:]:
        name, backend, steps, mesh, *zero = words.split(":")
        found = digest(name, backend, int(steps), mesh, *map(int, zero))
        if world().process == 0:
            print(f"{words} {found}", flush=True)
