"""The imperative front: ops called one by one, each computed at once, on a tape.

A logistic regression that tells the digits 3 and 8 apart, one batch at a time.

    python examples/session.py
"""

from __future__ import annotations

import numpy as np

from opstage import Options, ProgramError, Session
from opstage.data import digits


def main() -> None:
    data = digits()
    chosen = np.isin(data["y"], (3, 8))
    x, y = data["x"][chosen].reshape(-1, 64), (data["y"][chosen] == 8).astype(np.int64)

    session = Session(Options(seed=1))
    weight = session.param(np.zeros((2, 64)), name="weight")
    bias = session.param(np.zeros(2), name="bias")

    rng = np.random.default_rng(1)
    for step in range(60):
        rows = rng.choice(len(x), 32, replace=False)
        logits = session.linear(session.use(weight), session.use(bias), session.input(x[rows], name="images"))
        labels = session.nat_vec(y[rows])  # natural numbers: no gradient, and set_nat_vec sets them anew
        loss = session.cross_entropy(logits, labels)
        session.backward(loss, dense=False)
        session.adam_step_all(0.05)
        if step % 20 == 0:
            largest = np.abs(session.grad(weight)).max()
            print(f"step {step:2}  loss {session.get_value(loss):.3f}  |gradient| {largest:.3f}")
        session.reset_tape()

    scores = session.linear(session.use(weight), session.use(bias), session.input(x))
    right = np.mean(session.get_value(scores).argmax(axis=1) == y)
    print(f"accuracy {100 * right:.1f} %")

    # Refs have infix operators. One of an ended tape is an error that says so.
    size = session.sum(scores**2) / len(x)
    print(f"mean squared norm of the scores {session.get_value(size):.1f}")
    session.reset_tape()
    try:
        session.get_value(size)
    except ProgramError as error:
        print(f"ProgramError: {error}")


if __name__ == "__main__":
    main()
