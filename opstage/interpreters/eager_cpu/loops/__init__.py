"""Compiled loops over arrays, used by the kernels in `FAST_KERNELS`.

They are plain Python on packed arrays, and importing them imports no compiler; see `jit` for when they are compiled and
where machine code is cached. They run on one thread: next to NumPy's matrix products, a second thread pool costs more
than it gains.
"""
