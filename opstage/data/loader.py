"""Loaders: a dataset in batches, in an order that depends only on seed and epoch; the next ones prepared in another
thread; and batches bound to the arguments of a program."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ..ops.errors import UsageError, a_type
from ..ops.splitmix import draw_site, permutation, require_seed, stream_key
from ..ops.tracebacks import constructed_by_users
from ..threads import tell_in_child
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
        """Return the number of axes."""
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
            f"this process has {len(self.rows)} of the {len(self)} rows in a batch, those of its ranks, but {what} was "
            "requested; the other processes have the others"
        )


Own: TypeAlias = "Callable[[int], npt.NDArray[np.int64] | None]"

_SITE = draw_site((("opstage.loader", 0),), 0)


class Batches(Protocol):
    """The input of a training loop: numbered epochs of numbered batches, identical each time they are requested."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

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
@constructed_by_users
class Loader(Iterated):
    """Batches of `batch_size` rows; the last one of an epoch is smaller, or omitted with `drop_last`.

    Each `for batch in loader` runs the next epoch. `epoch(k)` can be called at any time and repeatedly, and a training
    run that is resumed in epoch k sees the same batches as without the interruption. Without `shuffle` the rows keep
    their order and the batches are views of what the dataset has in memory. Raises `UsageError` for a batch size that
    is not positive or larger than the dataset.

    Raises:
        UsageError: a batch size that is not an integer > 0.
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
        """Return the number of batches in an epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole if self.drop_last or rest == 0 else whole + 1

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the arrays in a batch."""
        return self.dataset.names

    def only(self, *names: str) -> Loader:
        """Return the same batches with only the arrays in `names`, in that order."""
        dataset = self.dataset.only(*names)
        if dataset is self.dataset:
            return self
        return self._copy(dataset, self._own)

    def own(self, rows: Own) -> Loader:
        """Return the same batches, but read only some rows: those with the indices `rows(batch size)`.

        Their arrays are `OwnRows`; if `rows` returns None, the batch is whole.
        """
        return self._copy(self.dataset, rows)

    def _copy(self, dataset: Dataset, own: Own | None) -> Loader:
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
                f"the arrays {', '.join(names)} of a file have no defined order in a batch; choose one: "
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


# Batches that another thread prepares ---------------------------------------------------------------------------------


Batch = tuple[Array, ...]

_PATIENCE = 1.0  # seconds; a thread that reads from a stuck disk must not prevent an interrupt from saving the run


@final
@constructed_by_users
class Prefetch(Iterated):
    """The batches of `batches` in order, with up to `depth` of them prepared ahead by one thread per epoch.

    An error in the thread is raised here, at its batch. The thread ends with the epoch, after its last batch, or when
    the generator is closed or garbage-collected; `epoch(…).close()` waits for the thread, but at most one second for a
    batch that hangs.

    Raises:
        UsageError: a depth that is not an integer > 0.
    """

    def __init__(self, batches: Batches, depth: int = 2):
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            raise UsageError(f"depth={depth!r} is not a number of batches; expected an integer > 0")
        self.batches = batches
        self.depth = depth

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.batches)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Return the names of the arrays in a batch, if `batches` has any."""
        return getattr(self.batches, "names", None)

    def only(self, *names: str) -> Prefetch:
        """Return the same batches with only the arrays in `names`, in that order, if `batches` is a loader."""
        if not isinstance(self.batches, (Loader, Prefetch)):
            raise UsageError(f"the batches of {a_type(self.batches)} have no names")
        batches = self.batches.only(*names)
        return self if batches is self.batches else Prefetch(batches, self.depth)

    def own(self, rows: Own) -> Prefetch:
        """Return the same batches, with only some rows read, if `batches` is a loader; see `Loader.own`."""
        return Prefetch(self.batches.own(rows), self.depth) if isinstance(self.batches, (Loader, Prefetch)) else self

    @override
    def epoch(self, epoch: int, start: int = 0) -> Generator[Batch]:
        """Return the batches of epoch `epoch` from number `start` on; the thread starts at the first request."""
        return self._prefetch(self.batches.epoch(epoch, start))

    def _prefetch(self, source: Generator[Batch]) -> Generator[Batch]:
        ahead = _Ahead(source, self.depth)
        thread = threading.Thread(target=ahead.fill, name="opstage-prefetch", daemon=True)
        thread.start()
        try:
            while (batch := ahead.take()) is not None:
                yield batch
        finally:
            ahead.stop()
            if threading.current_thread() is not thread:  # the thread itself may collect an unreferenced generator
                thread.join(_PATIENCE)


@final
class _Ahead:
    """A queue of at most `depth` batches between the producing and the consuming thread."""

    def __init__(self, source: Generator[Batch], depth: int):
        self._source = source
        self._depth = depth
        self._changed = threading.Condition()
        self._made: deque[Batch] = deque()
        self._ended = False
        self._stopped = False
        self._error: BaseException | None = None
        tell_in_child(self, _Ahead._orphan)

    def _orphan(self) -> None:
        """Handle a fork: the child does not have the producing thread."""
        self._changed = threading.Condition()
        self._made.clear()
        self._ended = True
        self._error = UsageError(
            "the batches of this epoch are prepared by a thread of the process that this one was forked from; "
            "start the epoch in this process"
        )

    def fill(self) -> None:
        """Produce batches until the last one, or until it is stopped."""
        try:
            for batch in self._source:
                with self._changed:
                    self._made.append(batch)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._stopped or len(self._made) < self._depth)
                    if self._stopped:
                        return
        except BaseException as error:
            self._error = error
        finally:
            self._source.close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def take(self) -> Batch | None:
        """Return the next batch, None after the last; re-raises an error of the producer."""
        with self._changed:
            self._changed.wait_for(lambda: self._made or self._ended)
            if self._made:
                batch = self._made.popleft()
                self._changed.notify_all()
                return batch
        if self._error is not None:
            raise self._error
        return None

    def stop(self) -> None:
        """Make `fill` return."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


# Binding by name ------------------------------------------------------------------------------------------------------


class Arguments(Protocol):
    """The names of a program's batch arguments; optional ones come last."""

    @property
    def required(self) -> tuple[str, ...]: ...
    @property
    def optional(self) -> tuple[str, ...]: ...


def bind(batches: Batches, arguments: Arguments | None, program: str) -> Batches:
    """Return the batches with their arrays in the order of a program's batch arguments, matched by name.

    If the names differ from the arguments, the arrays keep the order requested when the dataset was created. Raises
    UsageError if that cannot be right: for a different number of arrays, for a name that is an argument at another
    position, and if no order was requested. `arguments` is None if the program does not name them. Batches that do not
    come from a Dataset are returned unchanged.

    Raises:
        UsageError: names of arrays that are not arguments, or are arguments at another position.
    """
    if not isinstance(batches, (Loader, Prefetch)) or not (names := batches.names):
        return batches
    found = order(names, _ordered(batches), arguments, program)
    return batches if found == names and _ordered(batches) else batches.only(*found)


def order(names: tuple[str, ...], ordered: bool, arguments: Arguments | None, program: str) -> tuple[str, ...]:
    """Return the names of a dataset's arrays in the order of `program`'s arguments; see `bind`."""
    known: tuple[str, ...] = ()
    if arguments is not None:
        more = max(0, len(names) - len(arguments.required))
        known = arguments.required + arguments.optional[:more]
        if set(names) == set(known):
            return known
    has = f"the dataset has the arrays {', '.join(names)}, and {program} "
    each = ", ".join(f"{name}=dataset[…]" for name in known)
    cure = f"; name them: from_arrays({each})" if known else f"; put them in order: dataset.only({names[0]!r}, …)"
    if arguments is None:
        if not ordered:
            raise UsageError(f"{has}does not name its batch arguments{cure}")
        return names
    takes = f"takes the batch arguments {', '.join(known)}" if known else "takes no batch"
    if len(names) != len(known):
        raise UsageError(f"{has}{takes}{cure}")
    pairs = [(name, argument) for name, argument in zip(names, known) if name != argument]
    strays = [name if name in known else argument for name, argument in pairs if name in known or argument in names]
    if strays:
        raise UsageError(f"{has}{takes}: {strays[0]} would go to another argument than that of its name{cure}")
    if not ordered:
        raise UsageError(f"{has}{takes}{cure}")
    return names


def _ordered(batches: Batches) -> bool:
    while isinstance(batches, Prefetch):
        batches = batches.batches
    return not isinstance(batches, Loader) or batches.dataset.ordered
