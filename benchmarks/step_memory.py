"""The predicted memory of training steps beside what the process grows by when it really makes them.

Each model is trained for some steps in a process of its own, on each backend. `predicted` is the peak of tensor memory,
from shapes alone; `process` is what became resident beyond the imports and the machine code: tensors, and what Python
and the C library keep around them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.against_peers import PINNING, machine
from benchmarks.choices import names_of
from benchmarks.report import RESULTS
from benchmarks.run_side import resident

BACKENDS = ("eager", "compiled")
SIZES: dict[str, dict[str, int]] = {
    "mlp": {"B": 4096},
    "cnn": {"B": 2048},
    "resnet": {"B": 1024},
    "vit": {"B": 1024},
    "lstm": {"B": 4096},
    "unet": {"B": 1024},
    "vae": {"B": 8192},
    "pinn": {"B": 16384},
    "gpt": {"B": 32, "T": 128},
}

_STEPS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", type=names_of(SIZES), default=list(SIZES), metavar="A,B")
    parser.add_argument("--backends", type=names_of(BACKENDS), default=list(BACKENDS), metavar="A,B")


def main(given: argparse.Namespace) -> None:
    print(f"{'':20}{'predicted in':>14}{'predicted':>14}{'process':>14}")
    rows = []
    for model in given.models:
        for backend in given.backends:
            rows.append(_run(model, backend))
            print(line(rows[-1]), flush=True)
    if (given.models, given.backends) == (list(SIZES), list(BACKENDS)):
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "step_memory.json").write_text(json.dumps({"machine": machine(), "steps": rows}, indent=1) + "\n")


def line(row: Mapping[str, Any]) -> str:
    """A row of the table."""
    predicted, process = row["predicted"] / 1e6, row["process"] / 1e6
    name = f"{row['model']}, {row['backend']}"
    return (
        f"{name:20}{1e3 * row['seconds']:>11.0f} ms{predicted:>11.1f} MB{process:>11.1f} MB{process / predicted:>8.2f}"
    )


def _run(model: str, backend: str) -> dict[str, Any]:
    """The figures of one model, from a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PINNING)}
    command = [sys.executable, "-m", "benchmarks.step_memory", model, backend]
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def measure(name: str, backend: str) -> dict[str, Any]:
    """Predict a step, make some, and see what became resident."""
    from benchmarks.programs import shipped_step
    from opstage import Options, optim
    from opstage.models import model
    from opstage.training.memory import model_memory

    made, optimizer, options = model(name), optim.adamw(lr=1e-3), Options(backend=backend)
    since = time.perf_counter()
    predicted = model_memory(made, optimizer, options).at(**SIZES[name])
    seconds = time.perf_counter() - since

    def train(sizes: Mapping[str, int], steps: int) -> None:
        one = shipped_step(made, sizes, options)
        for _ in range(steps):
            one()

    train(dict.fromkeys(SIZES[name], 2), 1)  # machine code is made or read
    forget_peak()
    before = resident("VmRSS")
    train(SIZES[name], _STEPS)
    process = resident("VmHWM") - before
    return {
        "model": name,
        "backend": backend,
        "sizes": SIZES[name],
        "predicted": predicted.peak,
        "seconds": seconds,
        "process": process,
    }


def forget_peak() -> None:
    """Have Linux count the most resident memory from now on."""
    with suppress(OSError):  # elsewhere the peak of the imports counts, if it is more than that of the steps
        Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
