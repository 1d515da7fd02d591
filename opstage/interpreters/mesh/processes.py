"""The processes of this run: how many a launcher has started, and the engine between them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ...ops.errors import UsageError
from ...ops.mesh import Mesh
from .fabric import ALONE, Fabric

_COUNTS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("SLURM_STEP_NUM_TASKS", "PMIX_RANK"),
)
"""The variables in which launchers say how many processes they started, and which one this is."""

_LOCAL = threading.local()
_WORLD: list[Fabric] = []


def launched(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """(the number of this process, of how many) that `mpiexec` or `srun` has started together; (0, 1) for one alone."""
    environ = os.environ if environ is None else environ
    for size, rank in _COUNTS:
        found = environ.get(size, ""), environ.get(rank, "")
        if all(text.isascii() and text.isdigit() for text in found):
            return int(found[1]), max(1, int(found[0]))
    return 0, 1


def world() -> Fabric:
    """The engine between the processes of this run; made when it is asked for. Raises UsageError without mpi4py."""
    here: Fabric | None = getattr(_LOCAL, "fabric", None)
    if here is not None:
        return here
    if not _WORLD:
        if launched()[1] == 1:
            return ALONE
        from .mpi import MpiFabric

        _WORLD.append(MpiFabric())
    return _WORLD[0]


@contextmanager
def using(fabric: Fabric) -> Iterator[None]:
    """In the block this thread is a process of its own, of those that `fabric` joins: for tests."""
    before = getattr(_LOCAL, "fabric", None)
    _LOCAL.fabric = fabric
    try:
        yield
    finally:
        _LOCAL.fabric = before


def require_hosted(mesh: Mesh, processes: int) -> int:
    """How many ranks each process hosts. Raises UsageError where they cannot host the same number each."""
    if mesh.ranks % processes == 0:
        return mesh.ranks // processes
    said = f"mesh {str(mesh)!r} has {mesh.ranks} ranks" if mesh.axes else "there is no mesh, so there is one rank"
    if processes > mesh.ranks:
        raise UsageError(
            f"{said}, but {processes} processes were started; each hosts at least one: start fewer, or give a larger "
            f"mesh, such as data={processes}"
        )
    raise UsageError(
        f"{said}, which {processes} processes cannot host in equal numbers; start a number that divides {mesh.ranks}"
    )
