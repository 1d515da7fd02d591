"""Random bits as a pure function of a key and an index: the same on every interpreter and device.

    splitmix64(x):  z = x + 0x9e3779b97f4a7c15
                    z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
                    z = (z ^ z>>27) * 0x94d049bb133111eb
                    z ^ z>>31                                          all mod 2^64
    key       = splitmix64(splitmix64(splitmix64(seed) + step) + site)
    uniform i = (splitmix64(key + i) >> 40) * 2^-24                    in [0, 1), exact in float32
    normal i  = sqrt(-2 log(1 - uniform 2i)) * cos(2 pi uniform 2i+1)  Box-Muller, in float64, rounded once

Source: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with the
finalizer constants of S. Vigna's reference code. There is no state, so an element can be drawn alone, a part of a
tensor drawn later, and two devices can draw the two halves of one tensor.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import UsageError
from .static_arguments import plain

Words: TypeAlias = "npt.NDArray[np.uint64]"

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
LARGEST_UNIFORM = 1 - 2.0**-24
"""The largest uniform element."""
LARGEST_NORMAL = math.sqrt(48 * math.log(2)) * (1 + 2.0**-40)
"""The bound of normal elements: sqrt(-2 log(1 - u)) of the largest uniform u, with a margin for rounding."""
_CHUNK = 16384  # elements mixed at a time: three buffers of 128 KiB stay in the second-level cache


def is_seed(value: object) -> bool:
    """Return whether `value` is an integer with 0 <= value < 2^64."""
    value = plain(value)
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MASK


def require_seed(value: Any) -> int:
    """Return a seed as an int. Raises UsageError if `value` is not a seed."""
    if not is_seed(value):
        raise UsageError(f"seed={value!r} is not a seed; expected an integer with 0 <= seed < 2^64")
    return int(value)


def splitmix64(x: int) -> int:
    """Apply the finalizer to a Python integer, mod 2^64; `splitmix64(0) == 0xe220a8397b1dcdaf`."""
    z = (int(x) + _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def stream_key(seed: int, step: int, site: int) -> int:
    """Return the key of the draw at `site` in a training step: splitmix64(splitmix64(splitmix64(seed) + step) +
    site)."""
    return splitmix64(splitmix64(splitmix64(seed) + step) + site)


def iteration_key(key: int, iteration: int) -> int:
    """Return the key of a draw in a scan's body at position `iteration` along xs: splitmix64(key + iteration)."""
    return splitmix64(key + iteration)


def draw_site(path: Sequence[tuple[str, int]], draw: int) -> int:
    """Return the 64-bit site of a draw, from the region path and the draw's ordinal in that region.

    Each segment of `path` is a region's name and its occurrence. The site is the BLAKE2b digest of 8 bytes, read as a
    little-endian integer, of the UTF-8 text

        <length of name in characters>:<name>#<occurrence>/   for each segment, then   <draw>

    The lengths make names with `#` or `/` unambiguous.
    """
    text = "".join(f"{len(name)}:{name}#{occurrence}/" for name, occurrence in path) + str(draw)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def random_words(key: int, count: int) -> Words:
    """Return splitmix64(key + i) for i in 0 … count - 1."""
    words = np.empty(count, np.uint64)
    for offset, chunk in _chunks(key, count, 0):
        words[offset : offset + len(chunk)] = chunk
    return words


def uniform_bits(key: int, count: int, dtype: npt.DTypeLike = np.float32, *, start: int = 0) -> npt.NDArray[Any]:
    """Return elements start … start + count - 1 of the uniform stream of `key`, in [0, 1), as a flat array.

    They are multiples of 2^-24, exact in float32, float64 and (dtype object) as fractions.
    """
    values: npt.NDArray[Any] = np.empty(count, np.float64 if np.dtype(dtype).kind == "O" else dtype)
    for offset, chunk in _chunks(key, count, start):
        part = values[offset : offset + len(chunk)]
        np.right_shift(chunk, 40, out=chunk)
        part[...] = chunk.view(np.int64)  # conversion from signed integers is a vector instruction
        part *= 2.0**-24
    return as_storage(values, dtype)


def normal_bits(key: int, count: int, dtype: npt.DTypeLike = np.float32, *, start: int = 0) -> npt.NDArray[Any]:
    """Return elements start … start + count - 1 of the standard normal stream of `key`, as a flat array.

    Element i is computed from the uniform elements 2i and 2i + 1, so it is at most 5.77 standard deviations from 0.
    """
    storage = np.dtype(dtype)
    values: npt.NDArray[Any] = np.empty(count, np.float64 if storage.kind == "O" else storage)
    for offset in range(0, count, _CHUNK // 2):
        part = values[offset : offset + _CHUNK // 2]
        pairs = uniform_bits(key, 2 * len(part), np.float64, start=2 * (start + offset)).reshape(-1, 2)
        radius = np.subtract(1.0, pairs[:, 0])
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        angle = np.multiply(pairs[:, 1], 2.0 * math.pi)
        part[...] = np.multiply(radius, np.cos(angle, out=angle), out=angle)
    return as_storage(values, dtype)


def permutation(key: int, count: int) -> npt.NDArray[np.int64]:
    """Return a permutation of 0 … count - 1, sorted by their words under `key`; all permutations are equally likely."""
    return np.argsort(random_words(key, count), kind="stable").astype(np.int64, copy=False)


def as_storage(values: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Convert `values` to `dtype`; the dtype object means arrays of fractions."""
    if np.dtype(dtype).kind != "O":
        return values.astype(dtype, copy=False)
    exact = np.empty(values.shape, object)
    exact.reshape(-1)[:] = [Fraction(value) for value in values.reshape(-1).tolist()]
    return exact


def _chunks(key: int, count: int, start: int) -> Iterator[tuple[int, Words]]:
    """Yield the words of a stream in chunks, with offsets from `start`; all chunks share a buffer."""
    size = min(count, _CHUNK)
    counter = np.arange(size, dtype=np.uint64)
    buffer, scratch = np.empty_like(counter), np.empty_like(counter)
    for offset in range(0, count, _CHUNK):
        z = buffer[: min(_CHUNK, count - offset)]
        np.add(counter[: len(z)], np.uint64((key + start + offset + _GAMMA) & _MASK), out=z)
        _mix(z, scratch[: len(z)])
        yield offset, z


def _mix(z: Words, scratch: Words) -> None:
    """Apply the finalizer in place, on words with gamma already added."""
    np.right_shift(z, 30, out=scratch)
    np.bitwise_xor(z, scratch, out=z)
    np.multiply(z, np.uint64(_FIRST), out=z)
    np.right_shift(z, 27, out=scratch)
    np.bitwise_xor(z, scratch, out=z)
    np.multiply(z, np.uint64(_SECOND), out=z)
    np.right_shift(z, 31, out=scratch)
    np.bitwise_xor(z, scratch, out=z)
