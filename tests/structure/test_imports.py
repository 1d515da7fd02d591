"""The ways in which people import: each finds one and the same module, in a process that has imported nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import opstage
from opstage import optim

LINES = [
    "from opstage.optim import adamw, clip, schedule; import opstage; assert opstage.optim.adamw is adamw",
    "import opstage.optim; assert opstage.optim.sgd(lr=0.1).lr == 0.1",
    "import opstage.optim as o; from opstage.training import optim; import opstage; assert o is optim is opstage.optim",
    "import opstage; o = opstage.optim; import opstage.optim; assert o is opstage.optim",
    "from opstage import optim; from opstage.optim import clip; assert clip is optim.clip",
    "from opstage.transform import grad; import opstage; assert opstage.transform.grad is grad",
    "from opstage.derived import dropout; import opstage; assert opstage.derived.dropout is dropout",
    "from opstage.callbacks import EarlyStopping as E; import opstage; assert opstage.callbacks.EarlyStopping is E",
    "from opstage.data import Loader; import opstage; assert opstage.data.Loader is Loader",
    "import opstage; assert opstage.data.Loader and opstage.init.zeros and opstage.models and opstage.ops",
    "import sys; from opstage.models import MODELS; assert 'mlp' in MODELS and 'opstage.models.mlp' not in sys.modules",
    "import opstage; assert opstage.models.mlp.make and opstage.models.mlp.RECIPE.goal == 0.98",
    "import sys, opstage.cli.check.command; assert 'opstage.training.trainer' not in sys.modules",
    "import opstage.experiment as e; assert e.train and e.Settings and not hasattr(e, 'trian')",
    "import pickle; from opstage.optim import adamw; assert pickle.loads(pickle.dumps(adamw(lr=0.5))) == adamw(lr=0.5)",
]
TYPED = """
import opstage
import opstage.optim
from opstage.callbacks import EarlyStopping
from opstage.data import Loader
from opstage.derived import dropout
from opstage.optim import adamw, clip, schedule, sgd
from opstage.transform import grad

reveal_type(adamw)
reveal_type(clip.by_value)
reveal_type(schedule.cosine)
reveal_type(grad)
reveal_type(dropout)
reveal_type(opstage.optim.muon)
reveal_type(opstage.data.Loader)
opstage.optim.adamv
"""


@pytest.mark.parametrize("line", LINES)
def test_each_works_first_thing(line: str) -> None:
    subprocess.run([sys.executable, "-c", line], check=True)


def test_every_shipped_optimizer_is_exported() -> None:
    assert set(optim.SHIPPED) <= set(optim.__all__)


@pytest.mark.slow  # mypy reads all of Opstage
def test_a_type_checker_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    (tmp_path / "program.py").write_text(TYPED)
    monkeypatch.setenv("MYPYPATH", str(Path(opstage.__file__).parents[1]))
    out, err, _ = api.run(
        ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), str(tmp_path / "program.py")]
    )
    assert err == ""
    told = [line.partition(": ")[2] for line in out.splitlines() if "program.py" in line]
    assert [line for line in told if line.startswith("error")] == [line for line in told if "adamv" in line], out
    revealed = [line for line in told if "Revealed type" in line]
    assert len(revealed) == 7 and not any('"Any"' in line for line in revealed), out
