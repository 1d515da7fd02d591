"""Loops over arrays that are compiled: the inside of the kernels named in `FAST_KERNELS`.

They are plain Python on packed arrays, and importing them imports no compiler; see `jit` for when they are compiled
and where machine code is kept. One thread runs them: beside NumPy's matrix products a second pool of threads costs more
than it gives.
"""
