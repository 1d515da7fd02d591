"""Machine code on the cores of the CPU: compiled, cached on disk, run in one thread pool.

A *kernel* is compiled from a function `(lo, hi, worker, arguments)`: it runs the tasks lo … hi of a step, in the worker
of that number, with the arguments at the address `arguments`: 64-bit words, each an address, an integer or the bits of
a number. A *schedule* is a list of such steps; running it is one call, with a barrier after each step.

There is one pool, because two pools that wait on the same cores block each other: a second one in OpenBLAS was measured
3 to 100 times slower. So while a schedule runs, OpenBLAS has one thread, and a matrix product is divided among the
workers here. It is not OpenMP's pool, whose barriers spin: on busy cores a barrier takes until each thread has been
scheduled, 18 ms for a step of microseconds.
"""

from .blas import Blas, find_blas, one_thread
from .blas_matmul import multiply
from .compiler import Kernel, compile_kernel
from .thread_pool import KernelCall, KernelSequence, workers

__all__ = [
    "Blas",
    "Kernel",
    "KernelCall",
    "KernelSequence",
    "compile_kernel",
    "find_blas",
    "multiply",
    "one_thread",
    "workers",
]
