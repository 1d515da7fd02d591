"""Ctrl-C while modules are imported ends a command as it does at any other time: 130, one word, no traceback."""

from __future__ import annotations

import subprocess
import sys

import opstage
from opstage.cli.exit_codes import INTERRUPTED

HOOK = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupts())
from opstage.cli import main
main()
"""
COMMANDS = {
    "opstage.cli.commands": ["--help"],
    "click": ["--version"],
    "opstage.ops.errors": ["info"],
    "numpy": ["train", "mlp"],
    "numpy._core._multiarray_umath": ["graph", "mlp"],
    "optree": ["check", "mlp"],
    "opstage.models": ["train"],
    "opstage.runs.journal": ["train", "mlp", "--epochs", "1"],
    "opstage.interop.weights": ["import-weights", "mlp", "w.safetensors"],
}
"""What is being imported when the interrupt comes, and by which command."""


def test_an_interrupt_while_modules_are_imported() -> None:
    started = {
        module: subprocess.Popen(
            [sys.executable, "-c", HOOK.replace("MODULE", repr(module)), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for module, words in COMMANDS.items()
    }
    for module, process in started.items():
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (INTERRUPTED, "", "interrupted\n"), module


def test_who_handles_interrupts_goes_on_doing_so() -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + HOOK.replace("MODULE", "'numpy'")
    ended = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "") and opstage.__version__ in ended.stdout


def test_the_package_has_what_it_says_it_has() -> None:
    """Names are imported when they are used, so nothing but this notices one that is not there."""
    assert all(hasattr(opstage, name) for name in opstage.__all__)
    assert not hasattr(opstage, "no_such_name")
    assert set(opstage.__all__) <= set(dir(opstage))
