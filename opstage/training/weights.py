"""The old name of `opstage.interop.weights`, until the release after 0.1."""

import sys
import warnings

from ..interop import weights

warnings.warn("opstage.training.weights is now opstage.interop.weights", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = weights
