"""Moving numbers between windows and the places of their maxima, plane by plane.

Both return False, with the result unfinished, at a position that is not in the plane.
"""

from __future__ import annotations

from .jit import Array, loop


@loop()
def max_pool_scatter(g: Array, index: Array, out: Array) -> bool:
    """out[index] += g, one after another."""
    for plane in range(g.shape[0]):
        for i in range(g.shape[1]):
            place = index[plane, i]
            if place < 0 or place >= out.shape[1]:
                return False
            out[plane, place] += g[plane, i]
    return True


@loop()
def max_pool_gather(x: Array, index: Array, out: Array) -> bool:
    """out = x[index]."""
    for plane in range(out.shape[0]):
        for i in range(out.shape[1]):
            place = index[plane, i]
            if place < 0 or place >= x.shape[1]:
                return False
            out[plane, i] = x[plane, place]
    return True
