"""One process of a side of `scaling`: prints its figures as a line of JSON.

Every process computes on one thread. Steps are counted, not timed out, so that all processes take the same ones.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.workloads import LEARNING_RATE, WEIGHT_DECAY

WARM = 3
SUMS = (1 << 12, 1 << 16, 1 << 20, 1 << 24)
"""Bytes of the vectors that are summed."""


def main(side: str, name: str, batch: int, processes: int, steps: int) -> None:
    """Steps of a workload of `batch` rows in all, on so many processes."""
    if side == "sums":
        print(json.dumps({"sums": sums(steps)}), flush=True)
        return
    from benchmarks.workloads import ON_GPU

    workload = replace(ON_GPU[name], batch=batch)
    figures: dict[str, Any] = {}
    if side == "torch":
        one, process = torch_step(workload, processes), int(os.environ.get("RANK", "0"))
    else:
        one, process, figures = opstage_step(workload, side, processes)
    losses = [one() for _ in range(WARM)]
    sent = sent_so_far()
    taken, cpu = [], time.process_time()
    for _ in range(steps):
        begin = time.perf_counter()
        losses.append(one())
        taken.append(time.perf_counter() - begin)
    figures |= {
        "process": process,
        "median_ms": 1e3 * statistics.median(taken),
        "best_ms": 1e3 * min(taken),
        "cpu_ms": 1e3 * (time.process_time() - cpu) / steps,
        "sent": (sent_so_far() - sent) / steps,
        "losses": [losses[0], losses[-1]],
    }
    print(json.dumps(figures), flush=True)
    if side == "torch" and processes > 1:
        from torch import distributed

        distributed.destroy_process_group()  # its threads, at work still, would abort the process at exit


def opstage_step(workload: Any, backend: str, processes: int) -> tuple[Callable[[], float], int, dict[str, Any]]:
    """A step of ours, one rank a process, this process's number, and the bytes that it is predicted to send."""
    from benchmarks import programs
    from opstage import Options
    from opstage.distributed.processes import world

    if processes == 1:
        return programs.step(workload, Options(backend=backend)), 0, {"predicted": 0}
    options = Options(mesh=f"data={processes}", backend=backend)
    return programs.step(workload, options), world().process, {"predicted": programs.predicted(workload, options)}


def sent_so_far() -> int:
    """The bytes that this process has sent through our engine."""
    if "opstage" not in sys.modules:
        return 0
    from opstage.distributed.processes import world

    return world().sent


def torch_step(workload: Any, processes: int) -> Callable[[], float]:
    """A step of PyTorch's; on several processes DistributedDataParallel over gloo, each with its own rows."""
    import torch
    from torch import distributed
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.sides.torch_eager import model_of

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = model_of(workload)
    x, y = (torch.from_numpy(np.ascontiguousarray(a)) for a in workload.data())
    if processes > 1:
        distributed.init_process_group("gloo")
        share, rank = workload.batch // processes, distributed.get_rank()
        x, y = x[rank * share : (rank + 1) * share], y[rank * share : (rank + 1) * share]
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)

    def one() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return one


def sums(repeats: int) -> list[dict[str, float]]:
    """Milliseconds of a sum in our fixed order beside MPI's own, each the best of so many."""
    from mpi4py import MPI

    from opstage import Options
    from opstage.distributed.processes import world
    from opstage.distributed.ranks import on_mesh
    from opstage.interpreters.registry import make_interpreter

    here = world()
    options = Options(mesh=f"data={here.processes}")
    ops: Any = on_mesh(make_interpreter(options), options)
    found = []
    for nbytes in SUMS:
        array = np.ones(nbytes // 4, np.float32)
        x, room = ops.put(array), np.empty_like(array)

        def ours(x: Any = x) -> None:
            ops.execute(lambda o, x: (o.all_reduce(x, axis="data"),), (x,))

        def bare(array: Any = array, room: Any = room) -> None:
            MPI.COMM_WORLD.Allreduce(array, room)

        times: dict[str, list[float]] = {"ours": [], "bare": []}
        for _ in range(WARM + repeats):  # in turns, so that what else runs meets both
            for called, run in (("ours", ours), ("bare", bare)):
                MPI.COMM_WORLD.Barrier()
                begin = time.perf_counter()
                run()
                times[called].append(1e3 * (time.perf_counter() - begin))
        found.append({"bytes": nbytes, **{called: min(each[WARM:]) for called, each in times.items()}})
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
