"""Processes that are forked from one that has computed: they compute too, with the same bits, and none hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import opstage
from opstage import threads as forks
from opstage.data import Loader, from_arrays
from opstage.data.loader import Prefetch
from opstage.runs.directory import RunDirectory
from tests.training.raising import RaiseAt, Torn, bytecodes

if not hasattr(os, "fork"):
    pytest.skip("a system without fork", allow_module_level=True)

COMMON = """
import multiprocessing, os, sys, threading, warnings
import numpy as np
import opstage
from opstage import Options

fork = multiprocessing.get_context("fork")
options = Options(backend=sys.argv[1], dtype="float32")
rng = np.random.default_rng(0)
x = rng.normal(size=(256, 256)).astype(np.float32)
w = (rng.normal(size=(256, 256)) / 16).astype(np.float32)

def program(ops, x, w):
    return ops.softmax(ops.gelu(ops.matmul(x, w)), axis=-1)

def computed(scale=1.0):
    return opstage.run(program, x * np.float32(scale), w, options=options).tobytes()

def loss(ops, p, x):
    y = ops.tanh(ops.matmul(x, p["w"]))
    return ops.reduce_mean(ops.mul(y, y))

def trainer():
    return opstage.scalar_trainer(loss, {"w": w}, opstage.Spec("256 256"), options=options)

def steps(trainer, count=4):
    for _ in range(count):
        trainer.step(0.1, x)
    return trainer.export().params["w"].tobytes()

def in_child(function):
    # the result of the function in a child, and None if that has not ended well after a minute
    with fork.Pool(1) as pool:
        try:
            return pool.apply_async(function).get(60)
        except multiprocessing.TimeoutError:
            return None
"""

PROGRAMS = {
    "a result": """
        before = computed()
        assert in_child(computed) == before == computed()
        """,
    "several children at once, each with several calls": """
        before = [computed(s) for s in (1, 2, 3)]
        with fork.Pool(2) as pool:
            assert pool.map_async(computed, (1, 2, 3) * 4).get(100) == before * 4
        """,
    "what the parent never ran": """
        computed()
        def other():
            f = lambda ops, x: ops.cos(ops.sin(ops.add(x, x)))
            return opstage.run(f, x, options=options).tobytes()
        assert in_child(other) == other()
        """,
    "a trainer goes on in both": """
        made = trainer()
        steps(made)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.write(write, steps(made)[:4096])
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(read, 4096) == steps(made)[:4096]
        """,
    "a child of a child": """
        before = computed()
        child = os.fork()
        if not child:
            grandchild = os.fork()
            if not grandchild:
                os._exit(0 if computed() == before else 1)
            good = os.waitpid(grandchild, 0)[1] == 0 and computed() == before
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        """,
    "before anything was computed": """
        found = in_child(computed)
        assert found == computed()
        """,
    "while another thread computes": """
        before = computed()
        stop = threading.Event()
        def work():
            while not stop.is_set():
                computed()
        thread = threading.Thread(target=work)
        thread.start()
        warnings.simplefilter("ignore")  # that a thread was at work
        for _ in range(3):
            child = os.fork()
            if not child:
                os._exit(0 if computed() == before else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        thread.join()
        """,
    "while another thread compiles": """
        started = threading.Event()
        def work():
            f = lambda ops, x: ops.cos(ops.softplus(ops.sigmoid(ops.add(x, x))))
            started.set()
            opstage.run(f, x, options=options)
        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        warnings.simplefilter("ignore")
        child = os.fork()
        if not child:
            computed()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        thread.join()
        """,
}


def run(program: str, backend: str, folder: Path | None = None) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(opstage.__file__).parents[1]), "NUMBA_NUM_THREADS": "2"}
    if folder is not None:
        env["NUMBA_CACHE_DIR"] = str(folder)
    text = COMMON + dedent(program)
    # in a process group of its own, so that children that hang end with it
    process = subprocess.Popen(
        [sys.executable, "-c", text, backend], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        _, error = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        raise
    assert process.returncode == 0, error


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.slow
def test_a_child_computes_the_same_bits(program: str, backend: str) -> None:
    run(PROGRAMS[program], backend)


def test_a_pool_of_processes_computes_after_a_compiled_run() -> None:
    run(PROGRAMS["several children at once, each with several calls"], "compiled")


@pytest.mark.slow
def test_a_child_compiles_while_its_parent_does(tmp_path: Path) -> None:
    """With nothing on disk, so the lock of the compiler is held for long."""
    run(PROGRAMS["while another thread compiles"], "compiled", tmp_path)


# The parts, by themselves --------------------------------------------------------------------------------------------


def in_child(holds: object) -> None:
    """Assert `holds()` in a child of this process."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if holds() else 2  # type: ignore[operator]
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_lock_that_another_thread_holds_is_waited_for() -> None:
    lock, done = forks.make_lock(), []
    taken, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            go_on.wait()
            done.append(1)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    threading.Timer(0.1, go_on.set).start()
    in_child(lambda: done == [1] and lock.acquire(timeout=1))
    thread.join()
    assert lock.acquire(timeout=1)
    lock.release()


def test_a_lock_that_is_never_let_go_is_free_in_the_child_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "_PATIENCE", 0.1)
    lock = forks.make_lock()
    taken, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    with pytest.warns(RuntimeWarning, match="may be half changed in the child"):
        in_child(lambda: lock.acquire(timeout=1))
    go_on.set()
    thread.join()


def test_a_thread_that_forks_keeps_the_locks_it_has() -> None:
    lock = forks.make_lock()
    with lock, lock:
        in_child(lambda: lock._is_owned())  # type: ignore[attr-defined]
        assert lock._is_owned()  # type: ignore[attr-defined]
    assert not lock._is_owned()  # type: ignore[attr-defined]


def test_threads_that_fork_at_once_leave_every_lock_free() -> None:
    """A lock is released by the thread that acquired it: released by another one it would be held for ever."""
    locks = [forks.make_lock() for _ in range(300)]

    def fork_often() -> None:
        for _ in range(30):
            in_child(lambda: True)

    threads = [threading.Thread(target=fork_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert all_free_for_another_thread() and locks


def all_free_for_another_thread() -> bool:
    found: list[bool] = []

    def look() -> None:
        for lock in (*forks._always, *forks._listed(forks._locks)):
            found.append(lock.acquire(timeout=1))
            if found[-1]:
                lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return all(found)


def test_locks_are_free_whatever_is_raised_at_whichever_bytecode_of_the_hooks() -> None:
    def fork() -> None:
        """What `os.fork` does in the parent: the error of a hook stops none of the others."""
        with ExitStack() as hooks:
            hooks.callback(forks._in_parent)
            hooks.callback(forks._in_parent)
            forks._before()

    for n in range(1, bytecodes(fork, ("threads",)) + 1):
        with suppress(Torn), RaiseAt(n, ("threads",)):
            fork()
        assert all_free_for_another_thread(), n


def test_an_epoch_that_another_thread_makes_is_an_error_in_the_child() -> None:
    loader = Prefetch(Loader(from_arrays(x=np.arange(64.0)), 4), depth=2)
    epoch = loader.epoch(0)
    next(epoch)

    def refuses() -> bool:
        try:
            next(epoch)
        except opstage.UsageError as error:
            return "start the epoch in this process" in str(error) and len(list(loader.epoch(1))) == 16
        return False

    in_child(refuses)
    assert len(list(epoch)) == 15


def test_the_lock_of_a_run_stays_with_the_process_that_took_it(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            directory.write("x", "y")
        except opstage.UsageError as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            os.write(write, b"1")
            os.read(0, 0)
            threading.Event().wait(0 if code else 0.5)  # it outlives the parent's hold
            os._exit(code)
    os.read(read, 1)
    assert (tmp_path / "run" / "lock").exists()
    directory.close()
    RunDirectory.create(tmp_path / "run").close()
    assert os.waitpid(child, 0)[1] == 0
