"""`opstage` on several processes that differ: `mpiexec -n 2 python -m tests.mpi.differing KIND FOLDER train …`.

Each process works in the folder of its number in FOLDER, where there is one. KIND says what is odd besides.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

KINDS = (
    *("plain", "version", "option", "no-engine", "no-engine-on-one", "simulated", "nccl"),
    *("full-disk", "full-disk-late"),
)


def main(kind: str, folder: str, *words: str) -> None:
    """Make this process odd, and run the command."""
    assert kind in KINDS, kind
    process = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    own = Path(folder) / str(process)
    os.chdir(own if own.is_dir() else folder)
    sys.argv = ["opstage", *words]
    if kind == "no-engine" or (kind == "no-engine-on-one" and process == 1):
        sys.modules["mpi4py"] = None  # type: ignore[assignment]  # which Python takes for one that is not there
    if kind in ("simulated", "nccl"):
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    if kind == "nccl":
        from opstage.distributed import nccl as nccl
        from tests.cuda.nccl import Nccl

        nccl.load = Nccl
    if kind == "option" and process == 1:
        sys.argv += ["--lr", "0.625"]
    if kind == "version" and process == 1:
        from opstage.runs import directory

        directory.__version__ = "0.0.0"
    if kind.startswith("full-disk"):
        fill(5_000_000 if kind == "full-disk-late" else 20_000)
    from opstage.cli import main

    main()


def fill(room: int) -> None:
    """Let the disk take so many bytes."""
    from opstage.files import Disk

    written, write = 0, Disk.write

    def limited(self: Disk, file: int, data: memoryview) -> int:
        nonlocal written
        if written >= room:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(self, file, data[: room - written])
        written += count
        return count

    made: Any = limited
    Disk.write = made  # type: ignore[method-assign]


if __name__ == "__main__":
    main(*sys.argv[1:])
