"""What cannot be used is one clear line and exit code 2, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command, refusal

FILES = {
    "bad.toml": "run = [",
    "wrong.toml": '[options]\n# a seed\nseed = "7"\n',
    "unknown.toml": "epoch = 3\n",
    "file": "",
    "my_model.py": "def loss(ops, x):\n    return ops.sum(x)\n",
}
REFUSED = [
    ("train mpl", "unknown model 'mpl' (did you mean 'mlp'?)"),
    ("train mlp --backend eagre", "unknown backend 'eagre' (did you mean 'eager'?)"),
    ("train mlp --device cuba", "'cuba' is not one of 'cpu', 'cuda' (did you mean 'cuda'?)"),
    ("train mlp --dtype float46", "(did you mean 'float64'?)"),
    ("train mlp --epochs 0", "--epochs: epochs must be at least 1 but is 0"),
    ("train mlp --epochs -3", "--epochs: epochs must be at least 1 but is -3"),
    ("train mlp --epochs two", "'two' is not a valid integer"),
    ("train mlp --lr -1", "--lr: lr must be finite and at least 0 but is -1.0"),
    ("train mlp --lr nan", "--lr: optimizer.lr: nan is not finite"),
    ("train mlp --lr inf", "--lr: optimizer.lr: inf is not finite"),
    ("train mlp --lr fast", "'fast' is not a valid float. (see opstage train --help)"),
    ("train mlp --batch-size 0", "--batch-size: batch_size must be at least 1 but is 0"),
    ("train mlp --batch-size -1", "--batch-size: batch_size must be at least 1 but is -1"),
    ("train mlp --batch-size 9999", "batch_size=9999 is larger than the dataset, which has 1438 rows"),
    ("train mlp --seed -1", "-1 is not a seed; expected an integer with 0 <= seed < 2^64"),
    ("train mlp --epochs 3 --nope", "No such option"),
    ("train mlp --seed 18446744073709551616", "is not a seed"),
    ("train mlp --backend shape_check", "computes no values, so it cannot train; opstage check mlp"),
    ("train mlp --epoch 3 --nope", "(see opstage train --help)"),
    ("train mlp cnn", "unexpected extra argument"),
    ("train mlp --model.dept 6", "--model.dept: [model] has no key 'dept'"),
    ("train mlp --model.hiden 6", "(did you mean 'hidden'?)"),
    ("train mlp --modl.hidden 6", "--modl.hidden: no table [modl] (did you mean 'model'?)"),
    ("train mlp --options.seed x", "--options.seed: 'x' is not an integer"),
    ("train mlp --model.dropout", "--model.dropout: it has no value; expected a number"),
    ("train mlp --optimizer.name adan", "(did you mean 'adam'?)"),
    (
        "train mlp --optimizer.name sgd --optimizer.betas 0.9,0.99",
        "optimizer sgd: betas is not one of its hyperparameters",
    ),
    ("train mlp --optimizer.warmup 2", "--optimizer.warmup: warmup must be a share of the steps"),
    ("train mlp --config none.toml", "none.toml: cannot read the configuration: No such file"),
    ("train mlp --config bad.toml", "bad.toml: not a TOML file"),
    ("train mlp --config wrong.toml", "wrong.toml:3: options.seed: '7' is not an integer"),
    ("train mlp --config unknown.toml", "unknown.toml:1: no key 'epoch' outside the tables"),
    ("train mlp --out file/run", "cannot be written"),
    ("train mlp --resume nowhere", "nowhere: resume: expected a run, but config.toml is missing"),
    ("train mlp --resume nowhere --config bad.toml", "leave --config out"),
    ("train mlp --compare eager", "a comparison needs two sides"),
    ("graph mpl", "unknown model 'mpl' (did you mean 'mlp'?)"),
    ("graph mlp --format pdf", "'pdf' is not one of"),
    ("graph mlp --at B", "--at B: expected NAME=NUMBER, as in --at B=32,T=16"),
    ("graph mlp --at B=-1", "--at B=-1: expected NAME=NUMBER"),
    ("graph mlp --at B=0", "a size is at least 1"),
    ("graph mlp --at B=1,B=2", "B is given twice"),
    ("graph mlp --at C=1", "mlp does not have a size 'C'; it has B"),
    ("graph gpt --at T=4096", "gpt at T=4096: T <= 128 does not hold"),
    (
        "graph mlp -o mlp.png",
        "mlp.png: the suffix .png is not that of a format; expected one of .txt, .dot, .gv, .svg,",
    ),
    ("graph mlp -o mlp.svg --format html", "mlp.svg: --format html does not go with .svg"),
    ("graph mlp --format onnx", "name a file with -o FILE"),
    ("graph mlp -o none/mlp.txt", "none/mlp.txt: cannot be written: No such file or directory"),
    ("graph mlp -o .", "is a directory"),
    ("graph mlp --model.hiden 8", "did you mean 'hidden'"),
    ("plan mlp --at B=64 --on h10", "unknown device 'h10' (did you mean 'h100'?)"),
    ("plan mlp --at B=64 --on none.toml", "none.toml"),
    ("plan mlp --at B=64,C=3", "C"),
    ("plan mlp --at B=64 --dtype exact", "fractions"),
    ("plan mlp --at B=64 --backend shape_check", "calibration of backend 'shape_check' on cpu is not supported"),
    ("plan mlp --at B=64 --steps 1 --epochs 1", "give one of them"),
    ("plan mlp --at B=100000000 --epochs 1", "smaller than a batch of 100000000"),
    ("plan gpt --at B=2,T=1000", "T"),
    ("plan mlp --at B=4 --options.detect_anomaly true", "planning with detect_anomaly is not supported"),
    ("plan cnnn --at B=2", "unknown model 'cnnn'"),
    ("bench mpl", "unknown model 'mpl' (did you mean 'mlp'?)"),
    ("bench mlp --seconds -1", "--seconds -1.0: expected a number of seconds, 0 or more"),
    ("bench mlp --seconds nan", "--seconds nan: expected a number of seconds"),
    ("bench mlp --seconds soon", "'soon' is not a valid float"),
    ("bench mlp --batch-size 0", "batch_size must be at least 1 but is 0"),
    (
        "bench mlp --backend shape_check",
        "backend 'shape_check': not supported, since it does not compute values; use eager or compiled",
    ),
    ("bench mlp --profile --backend eager", "--profile: expected backend 'compiled' on cpu, got 'eager' on cpu"),
    ("bench mlp --profile --options.detect_anomaly true", "--profile: not supported with detect_anomaly"),
    ("bench mlp --profil", "No such option"),
    ("new class", "'class' is not a module name"),
    ("train mlp --device cuda", "device 'cuda' needs"),
    ("check mlp --device cuda", "device 'cuda'"),
    ("check my_model", "unknown model 'my_model' (did you mean 'my_model.py'?)"),
    ("check my_model.py --select shap", "'--select': unknown rule 'shap' (did you mean 'shape'?)"),
    ("check my_model.py:", "expected the name of a function after the colon"),
    ("check mlp --input x:B", "--input is for a program of your own"),
    ("check my_model.py:loss --model.hidden 8", "--model.hidden is a setting of models"),
    ("check my_model.py:loss --time-limit soon", "'soon' is not a duration"),
    (
        "check my_model.py:loss --memory-limit much",
        "'--memory-limit': an amount of memory is a number and a unit, not 'much'",
    ),
    ("check mlp --at C=8", "--at C=8: unknown dim 'C'; the dims are: B"),
    ("check mlp --at B=0", "a size is at least 1"),
    ("check mlp --at B", "expected NAME=NUMBER"),
    ("check mlp --at B=1,B=2", "B is given twice"),
    ("check gpt --at B=2,T=4096", "T <= 128, which was declared, does not hold at B=2, T=4096"),
    ("check gpt --max-memory 2GiB", "B, T are open"),
    ("check mlp --forward --memory", "whole training step"),
    ("check mlp --forward --memory", "say --step"),
    ("check mlp --max-memory plenty", "plenty"),
    ("check modles/*.py", "modles/*.py: matches no file or folder"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_cannot_be_used_is_one_line(opstage: Command, tmp_path: Path, words: str, message: str) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    result = opstage(*words.split())
    assert message in refusal(result)
    assert words.startswith("train ") or not result[1]
    assert {path.name for path in tmp_path.iterdir()} == {*FILES}
