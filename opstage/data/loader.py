"""The loader: a dataset in batches, in an order that depends only on seed and epoch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ..ops.errors import UsageError
from ..ops.splitmix import permutation, require_seed, site_of, stream_key
from ..ops.tracebacks import made_by_users
from .dataset import Array, Dataset
from .memory_map import read_rows

# Rows of this process -------------------------------------------------------------------------------------------------


@final
class OwnRows:
    """An array of `shape`, of which only some rows along the first axis are stored.

    rows    their indices, ascending
    held    the stored rows, in that order

    Accessing another row, or converting the whole to an array, raises UsageError.
    """

    __slots__ = ("shape", "dtype", "rows", "held")

    def __init__(self, count: int, rows: npt.NDArray[np.int64], held: Array):
        assert len(rows) == len(held)
        self.shape: tuple[int, ...] = (count, *held.shape[1:])
        self.dtype = held.dtype
        self.rows = rows
        self.held = held

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def part(self, start: int, stop: int) -> Array:
        """Return rows `start` to `stop` (exclusive). Raises UsageError if one of them is not stored."""
        first = int(np.searchsorted(self.rows, start))
        found = self.rows[first : first + stop - start]
        if len(found) != stop - start or (len(found) and int(found[-1]) != stop - 1):
            raise self._missing(f"rows {start} to {stop - 1}")
        return self.held[first : first + stop - start]

    def whole_index(self, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index in the whole array of the element at `index` of `held`."""
        return (int(self.rows[index[0]]), *index[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise self._missing("the whole")

    def _missing(self, what: str) -> UsageError:
        return UsageError(
            f"of a batch of {len(self)} rows this process has {len(self.rows)}, those of its ranks, and {what} was "
            "asked for; the other processes have the others"
        )


Own: TypeAlias = "Callable[[int], npt.NDArray[np.int64] | None]"

_SITE = site_of((("opstage.loader", 0),), 0)


class Batches(Protocol):
    """The input of a training loop: numbered epochs of numbered batches, identical each time they are requested."""

    def __len__(self) -> int:
        """The number of batches in an epoch."""

    def epoch(self, epoch: int, start: int = 0) -> Generator[tuple[Array, ...]]:
        """Return the batches of epoch `epoch`, counted from 0, from number `start` on. Close it to stop early."""


class Iterated:
    """The iteration `for batch in batches`: each such loop runs the next epoch, from epoch 0 on, with its own order.

    A loop that is left early still counts as an epoch. The number is kept in this object only: `fit` and resumed runs
    call `epoch(k)`.
    """

    __slots__ = ("_entered",)
    _entered: int

    @abstractmethod
    def epoch(self, epoch: int, start: int = 0) -> Generator[tuple[Array, ...]]:
        """Return the batches of an epoch, see `Batches`."""

    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        """Return the batches of the next epoch."""
        entered: int = getattr(self, "_entered", 0)
        batches = self.epoch(entered)
        self._entered = entered + 1
        return batches


@final
@made_by_users
class Loader(Iterated):
    """Batches of `batch_size` rows; the last one of an epoch is smaller, or omitted with `drop_last`.

    Each `for batch in loader` runs the next epoch. `epoch(k)` can be called at any time and repeatedly, and a training
    run that is resumed in epoch k sees the same batches as without the interruption. Without `shuffle` the rows keep
    their order and the batches are views of what the dataset has in memory. Raises `UsageError` for a batch size that
    is not positive or larger than the dataset.

    Raises:
        UsageError: a batch size that is no integer > 0.
    """

    __slots__ = ("batch_size", "dataset", "drop_last", "seed", "shuffle", "_own")

    def __init__(
        self, dataset: Dataset, batch_size: int, *, seed: int = 0, shuffle: bool = True, drop_last: bool = False
    ):
        require_seed(seed)
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise UsageError(f"batch_size={batch_size!r} is not a number of rows; expected an integer > 0")
        if batch_size > len(dataset):
            raise UsageError(larger_batch(batch_size, len(dataset)))
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self._own: Own | None = None

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole if self.drop_last or rest == 0 else whole + 1

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays in a batch."""
        return self.dataset.names

    def only(self, *names: str) -> Loader:
        """Return the same batches with only the arrays in `names`, in that order."""
        dataset = self.dataset.only(*names)
        if dataset is self.dataset:
            return self
        return self._with(dataset, self._own)

    def own(self, rows: Own) -> Loader:
        """Return the same batches, but read only some rows: those with the indices `rows(batch size)`.

        Their arrays are `OwnRows`; if `rows` returns None, the batch is whole.
        """
        return self._with(self.dataset, rows)

    def _with(self, dataset: Dataset, own: Own | None) -> Loader:
        made = Loader(dataset, self.batch_size, seed=self.seed, shuffle=self.shuffle, drop_last=self.drop_last)
        made._own = own
        return made

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the rows of the dataset in the order of epoch `epoch`, counted from 0."""
        if epoch < 0:
            raise UsageError(f"epoch={epoch} does not exist: epochs are counted from 0")
        if not self.shuffle:
            return np.arange(len(self.dataset))
        return permutation(stream_key(self.seed, epoch, _SITE), len(self.dataset))

    @override
    def epoch(self, epoch: int, start: int = 0) -> Generator[tuple[Array, ...]]:
        """Return the batches of epoch `epoch` from number `start` on, each with the dataset's arrays in order.

        Raises UsageError for a dataset without an order: one from a file, without a request for arrays by name.
        """
        if not self.dataset.ordered:
            names = self.dataset.names
            raise UsageError(
                f"the arrays {', '.join(names)} of a file have no order in which a batch could hold them; say it: "
                f"dataset.only({', '.join(map(repr, sorted(names)))}), or keys= where the file is read"
            )
        order = self.order(epoch)
        require_start(start, len(self))
        return (self._batch(order, n * self.batch_size) for n in range(start, len(self)))

    def _batch(self, order: npt.NDArray[np.int64], start: int) -> tuple[Any, ...]:
        stop = min(start + self.batch_size, len(order))
        own = None if self._own is None else self._own(stop - start)
        if own is not None:
            chosen = order[start:stop][own]
            return tuple([OwnRows(stop - start, own, read_rows(array, chosen)) for array in self.dataset.arrays])
        rows: slice | npt.NDArray[np.int64] = order[start:stop] if self.shuffle else slice(start, stop)
        return tuple([read_rows(array, rows) for array in self.dataset.arrays])


def larger_batch(size: int, rows: int) -> str:
    """Return the error message for a batch larger than the dataset."""
    return f"batch_size={size} is larger than the dataset, which has {rows} rows; expected at most {rows}"


def require_start(start: int, batches: int) -> None:
    """Raise a UsageError unless `start` is the number of a batch in an epoch, or their count."""
    if not 0 <= start <= batches:
        raise UsageError(f"start={start} is not a batch of an epoch, which has {batches}; expected 0 to {batches}")
