"""Commits: an interrupt waits until all is changed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from opstage.training import commit
from opstage.training.commit import uninterrupted


def test_an_interrupt_comes_after_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")
        done.append("and no more")
    assert done == ["all of it"]


def test_without_an_interrupt_nothing_is_left_behind() -> None:
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ZeroDivisionError), uninterrupted():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_nested_blocks_put_it_off_until_the_outer_one_ends() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


def test_a_handler_of_the_user_s_own_is_called_once_and_an_ignored_signal_stays_ignored() -> None:
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            assert heard == []
        assert heard == [signal.SIGINT]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


class Ended(KeyboardInterrupt):
    pass


@pytest.fixture
def ended_by_sigterm() -> Iterator[None]:
    def end(number: int, frame: object) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, end)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("ended_by_sigterm")
@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM]])
def test_sigterm_waits_too_where_a_handler_hears_it(numbers: list[signal.Signals]) -> None:
    done, before = [], [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Ended):
        with uninterrupted():
            for number in numbers:
                signal.raise_signal(number)
            done.append("all of it")
        done.append("and no more")
    assert done == ["all of it"]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.usefixtures("ended_by_sigterm")
def test_of_both_one_is_raised_and_both_handlers_are_back() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_what_ends_the_process_at_once_is_left_alone() -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with uninterrupted():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_other_threads_commit_without_it() -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            done.append("committed")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["committed"]


def test_a_handler_is_put_back_though_that_of_another_signal_raises_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """signal.signal hears what has arrived before it does what it is asked for."""
    put, left = commit._NATIVE.signal, [3]

    def interrupted(number: int, handler: object) -> object:
        if handler is before and left[0]:
            left[0] -= 1
            raise ZeroDivisionError
        return put(number, handler)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), uninterrupted():
        monkeypatch.setattr(commit._NATIVE, "signal", interrupted)
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is before
