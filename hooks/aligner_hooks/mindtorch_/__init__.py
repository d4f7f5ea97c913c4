"""The adapter for the packages called `mindtorch`: OpenI's MindTorch, and the mindtorch that comes with mindnlp.

Both have torch's interface on MindSpore, and one name; so there is one adapter, and package.py tells which of the two
is here. What they have in common with torch is in aligner_hooks.torchlike.

shim.py lets OpenI's import at all on the MindSpore versions it runs on · modules.py says what is a module · calls.py
tells of calls, graphs.py of compiled ones · operations.py tells what runs · layers.py walks nets · tensors.py and
parameters.py carry values · precision.py knows their casts · copies.py makes layers like others · dropout.py silences
it · training.py tells of training steps, updates.py of optimizers · surroundings.py looks after devices, modes and the
doctor.

Nothing is imported here: the shim comes first.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def make_adapter() -> Any:
    """The adapter for the mindtorch that is installed."""
    import_module("aligner_hooks.mindtorch_.shim").put_in()
    return import_module("aligner_hooks.mindtorch_.adapter").MindTorchAdapter()
