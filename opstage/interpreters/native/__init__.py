"""Machine code on the cores of the CPU: compiled, kept on disk, run in one pool of threads.

A *kernel* is compiled from a function `(lo, hi, worker, arguments)`: it does the tasks lo … hi of a step, in the worker
of that number, on what is at the address `arguments`: 64-bit words, each an address, an integer or a number's bits.
A *schedule* is a list of such steps; running it is one call, and the pool meets at the end of each step.

There is one pool, because two that wait for work on the same cores stop each other: OpenBLAS with threads of its own
beside it was measured 3 to 100 times slower. So while a schedule runs, OpenBLAS has one thread, and a product of
matrices is divided among the workers here. It is not OpenMP's, whose threads meet by spinning: beside processes that
keep the cores busy, a meeting takes until each has had its turn, 18 ms for a step of microseconds.
"""

from .blas import Blas, find_blas, one_thread
from .compiler import Kernel, compile_kernel
from .pool import KernelCall, KernelSequence, call, workers
from .product import multiply

__all__ = [
    "Blas",
    "Kernel",
    "KernelCall",
    "KernelSequence",
    "call",
    "compile_kernel",
    "find_blas",
    "multiply",
    "one_thread",
    "workers",
]
