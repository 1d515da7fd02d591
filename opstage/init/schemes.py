"""Initialisers: schemes that define the initial value of every element of a parameter.

An initialiser is a description, not an array. Element i of a parameter is a function of (seed, i) only, computed in
float64 and rounded once to the parameter's dtype; so any part of a parameter can be made anywhere, also on a device,
with the same values.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..ops import trees
from ..ops.array_conversion import as_numpy
from ..ops.errors import UsageError, brief
from ..ops.splitmix import (
    LARGEST_NORMAL,
    LARGEST_UNIFORM,
    as_storage,
    draw_site,
    normal_bits,
    require_seed,
    stream_key,
    uniform_bits,
)
from ..ops.types import DType, as_dtype, is_float, require_shape

Array: TypeAlias = "npt.NDArray[Any]"

_SITE = draw_site((("opstage.init", 0),), 0)  # separate from every draw in a program
_CHUNK = 2**18  # elements made in float64 at a time, so that a large float32 parameter needs no second copy


@trees.leaf
class Initialiser(ABC):
    """A scheme that gives every element of a parameter its initial value."""

    __slots__ = ()

    @abstractmethod
    def for_shape(self, shape: tuple[int, ...]) -> Elementary:
        """Return the elementary scheme for a parameter of `shape`; a `UsageError` if the shape does not fit."""

    @abstractmethod
    def seeded(self, seed: int) -> Initialiser:
        """Return the same scheme with `seed`, if it needs one and has none yet."""

    def range_for(self, shape: Sequence[int]) -> tuple[float, float]:
        """Lower and upper bound of every element for any seed, before rounding; both may be reached."""
        return self.for_shape(checked_shape(shape)).ends()

    def materialise(self, shape: Sequence[int], dtype: str | DType = "float32") -> Array:
        """Return a new array of `shape` (row-major) in float32, float64 or exact."""
        shape, storage = checked_shape(shape), _float_dtype(dtype)
        elementary = self.for_shape(shape)
        values: Array = np.empty(math.prod(shape), storage)
        for start in range(0, len(values), _CHUNK):
            part = values[start : start + _CHUNK]
            part[...] = as_storage(elementary.elements(start, len(part)), storage)
        return values.reshape(shape)

    def value_at(self, shape: Sequence[int], index: int, dtype: str | DType = "float32") -> Any:
        """Element `index` in row-major order: the bits of `materialise(shape, dtype).ravel()[index]`, computed
        alone."""
        shape, storage = checked_shape(shape), _float_dtype(dtype)
        if not 0 <= index < math.prod(shape):
            raise UsageError(f"index {index} is out of range for shape {shape}, which has {math.prod(shape)} elements")
        return as_storage(self.for_shape(shape).elements(index, 1), storage)[0]


class Elementary(Initialiser):
    """A scheme whose elements do not depend on the shape: `Constant`, `Uniform`, `Normal` or `Flat`, no others."""

    __slots__ = ()

    @abstractmethod
    def elements(self, start: int, count: int) -> Array:
        """Return the elements start … start + count - 1 before rounding: float64, or the dtype of the given values."""

    @abstractmethod
    def ends(self) -> tuple[float, float]:
        """Lower and upper bound of all elements, for any seed; nan where one may be nan."""


@final
@dataclass(frozen=True, slots=True)
class Constant(Elementary):
    """Every element is `value`. PyTorch: `torch.nn.init.constant_`."""

    value: float

    def for_shape(self, shape: tuple[int, ...]) -> Constant:
        return self

    def seeded(self, seed: int) -> Constant:
        return self

    def elements(self, start: int, count: int) -> Array:
        return np.full(count, self.value, np.float64)

    def ends(self) -> tuple[float, float]:
        return float(self.value), float(self.value)


@final
@dataclass(frozen=True, slots=True)
class Uniform(Elementary):
    """U[low, high): element i is low + (high - low) * u_i, u the uniform stream of `key`. PyTorch: `uniform_`.

    Raises:
        UsageError: bounds that are not finite, or low above high.
    """

    low: float
    high: float
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.high - self.low) and self.low <= self.high):
            raise UsageError(f"uniform needs finite bounds with low <= high but has low={self.low}, high={self.high}")
        _check_seed(self.seed)

    @property
    def key(self) -> int:
        """Return the key of the uniform stream of the elements."""
        return _key(self, self.seed)

    def for_shape(self, shape: tuple[int, ...]) -> Uniform:
        return self

    def seeded(self, seed: int) -> Uniform:
        return self if self.seed is not None else dataclasses.replace(self, seed=seed)

    def elements(self, start: int, count: int) -> Array:
        values = uniform_bits(self.key, count, np.float64, start=start)
        values *= float(self.high - self.low)
        values += float(self.low)
        return values

    def ends(self) -> tuple[float, float]:
        """Return the values for u_i = 0 and for the largest u_i; every rounding in between is monotone."""
        return float(self.low), float(self.high - self.low) * LARGEST_UNIFORM + float(self.low)


@final
@dataclass(frozen=True, slots=True)
class Normal(Elementary):
    """N(mean, std^2): element i is mean + std * z_i, z the normal stream of `key`. PyTorch: `torch.nn.init.normal_`.

    Raises:
        UsageError: a std that is not a finite number >= 0.
    """

    mean: float
    std: float
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std >= 0):
            raise UsageError(f"normal needs a finite mean and std >= 0 but has mean={self.mean}, std={self.std}")
        _check_seed(self.seed)

    @property
    def key(self) -> int:
        """Return the key of the normal stream of the elements."""
        return _key(self, self.seed)

    def for_shape(self, shape: tuple[int, ...]) -> Normal:
        return self

    def seeded(self, seed: int) -> Normal:
        return self if self.seed is not None else dataclasses.replace(self, seed=seed)

    def elements(self, start: int, count: int) -> Array:
        values = normal_bits(self.key, count, np.float64, start=start)
        values *= float(self.std)
        values += float(self.mean)
        return values

    def ends(self) -> tuple[float, float]:
        """Return the exact extremes of the stream, 5.77 standard deviations from the mean."""
        far = LARGEST_NORMAL * float(self.std)
        return float(self.mean) - far, float(self.mean) + far


@final
@dataclass(frozen=True, slots=True)
class XavierUniform(Initialiser):
    """U(-a, a) with a = gain * sqrt(6 / (fan_in + fan_out)), fans inferred where None.

    PyTorch: `torch.nn.init.xavier_uniform_`. Source: X. Glorot, Y. Bengio, AISTATS 2010.

    Raises:
        UsageError: a number of units that is none.
    """

    fan_in: int | None = None
    fan_out: int | None = None
    seed: int | None = None
    gain: float = 1.0

    def __post_init__(self) -> None:
        _check_fan("fan_in", self.fan_in)
        _check_fan("fan_out", self.fan_out)
        _check_factor("gain", self.gain)
        _check_seed(self.seed)

    def for_shape(self, shape: tuple[int, ...]) -> Uniform:
        fan_in = self.fan_in if self.fan_in is not None else fans(shape)[0]
        fan_out = self.fan_out if self.fan_out is not None else fans(shape)[1]
        bound = self.gain * math.sqrt(6.0 / max(fan_in + fan_out, 1))
        return Uniform(-bound, bound, self.seed)

    def seeded(self, seed: int) -> XavierUniform:
        return self if self.seed is not None else dataclasses.replace(self, seed=seed)


@final
@dataclass(frozen=True, slots=True)
class KaimingUniform(Initialiser):
    """U(-a, a) with a = sqrt(6 / ((1 + negative_slope^2) * fan_in)), fan_in inferred where None.

    PyTorch: `torch.nn.init.kaiming_uniform_(a=negative_slope)`; its Linear and Conv layers use sqrt(5). Source: K. He,
    X. Zhang, S. Ren, J. Sun, ICCV 2015.

    Raises:
        UsageError: a number of units that is none.
    """

    fan_in: int | None = None
    seed: int | None = None
    negative_slope: float = 0.0

    def __post_init__(self) -> None:
        _check_fan("fan_in", self.fan_in)
        _check_factor("negative_slope", self.negative_slope)
        _check_seed(self.seed)

    def for_shape(self, shape: tuple[int, ...]) -> Uniform:
        fan_in = self.fan_in if self.fan_in is not None else fans(shape)[0]
        bound = math.sqrt(6.0 / ((1.0 + self.negative_slope**2) * max(fan_in, 1)))
        return Uniform(-bound, bound, self.seed)

    def seeded(self, seed: int) -> KaimingUniform:
        return self if self.seed is not None else dataclasses.replace(self, seed=seed)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Flat(Elementary):
    """Given elements in row-major order; values of rank other than 1 must have exactly the parameter's shape."""

    values: Array

    def for_shape(self, shape: tuple[int, ...]) -> Flat:
        if self.values.ndim != 1 and self.values.shape != shape:
            raise UsageError(f"flat has values of shape {self.values.shape} but the parameter has shape {shape}")
        if self.values.size != math.prod(shape):
            raise UsageError(f"flat has {self.values.size} values but shape {shape} needs {math.prod(shape)}")
        return self

    def seeded(self, seed: int) -> Flat:
        return self

    def elements(self, start: int, count: int) -> Array:
        return self.values.reshape(-1)[start : start + count]

    def ends(self) -> tuple[float, float]:
        if not self.values.size:
            return 0.0, 0.0
        return float(self.values.min()), float(self.values.max())


zeros = Constant(0.0)
"""Every element 0."""
ones = Constant(1.0)
"""Every element 1."""


def uniform(low: float, high: float, seed: int | None = None) -> Uniform:
    """U[low, high); see `Uniform`.

    Raises:
        UsageError: bounds that are not finite, or low above high.
    """
    return Uniform(low, high, seed)


def normal(mean: float = 0.0, std: float = 1.0, seed: int | None = None) -> Normal:
    """N(mean, std^2); see `Normal`.

    Raises:
        UsageError: a std that is not a finite number >= 0.
    """
    return Normal(mean, std, seed)


def xavier_uniform(
    fan_in: int | None = None, fan_out: int | None = None, seed: int | None = None, *, gain: float = 1.0
) -> XavierUniform:
    """U(-a, a) with a = gain * sqrt(6 / (fan_in + fan_out)); see `XavierUniform`.

    Raises:
        UsageError: a number of units that is none.
    """
    return XavierUniform(fan_in, fan_out, seed, gain)


def kaiming_uniform(
    fan_in: int | None = None, seed: int | None = None, *, negative_slope: float = 0.0
) -> KaimingUniform:
    """U(-a, a) with a = sqrt(6 / ((1 + negative_slope^2) * fan_in)); see `KaimingUniform`.

    Raises:
        UsageError: a number of units that is none.
    """
    return KaimingUniform(fan_in, seed, negative_slope)


def flat(values: npt.ArrayLike | Sequence[Fraction | float]) -> Flat:
    """Exactly `values` (integers, floats or fractions), in row-major order, copied; see `Flat`.

    Raises:
        UsageError: something other than a list of numbers.
    """
    try:
        array = np.array(as_numpy(values))
    except UsageError as error:
        raise UsageError(f"flat takes numbers: {error}") from None
    if array.dtype.kind == "O":
        try:
            array = as_storage(array, object)
        except (TypeError, ValueError) as error:
            raise UsageError(f"flat takes numbers: {error}") from error
    elif array.dtype.kind not in "iuf":
        raise UsageError(f"flat takes integers, floats or fractions, not values of dtype {array.dtype}")
    array.setflags(write=False)
    return Flat(array)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (out, in, *k): (in * prod k, out * prod k), as in PyTorch.

    Raises:
        UsageError: a shape of rank below 2.
    """
    if len(shape) < 2:
        raise UsageError(
            f"fans are inferred from a weight of shape (out, in, *k), and {tuple(shape)} has rank {len(shape)}; "
            "give fan_in and fan_out, or another initialiser"
        )
    receptive_field = math.prod(shape[2:])
    return shape[1] * receptive_field, shape[0] * receptive_field


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` as a tuple of Python integers; a `UsageError` unless all are integers >= 0."""
    made = tuple(shape)
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 0 for n in made):
        raise UsageError(f"a parameter's shape holds integers >= 0, and this one is {brief(made)}")
    sizes = tuple(map(int, made))
    require_shape(sizes)
    return sizes


def _key(scheme: Elementary, seed: int | None) -> int:
    if seed is None:
        raise UsageError(f"{scheme} needs a seed; give it one, or let a Plan derive it from the parameter's path")
    return stream_key(seed, 0, _SITE)


def _float_dtype(dtype: str | DType) -> DType:
    found = as_dtype(dtype)
    if not is_float(found):
        raise UsageError(f"parameters are float32, float64 or exact, not {dtype}")
    return found


def _check_seed(seed: int | None) -> None:
    if seed is not None:
        require_seed(seed)


def _check_fan(name: str, fan: int | None) -> None:
    if fan is not None and not (isinstance(fan, int) and not isinstance(fan, bool) and fan > 0):
        raise UsageError(f"{name}={fan!r} is not a number of units; expected an integer > 0, or None to infer it")


def _check_factor(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise UsageError(f"{name}={value} is not finite")
