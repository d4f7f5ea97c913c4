"""The adapter for torch; the only package that imports it.

adapter.py is the contract's class and sends each question on: layers.py walks the net, spec.py reads settings, calls.py
tells of their calls and steps in, operations.py tells of what runs between, constructions.py and copies.py make layers
like others, tensors.py and parameters.py carry values, dropout.py, eager.py and surroundings.py look after what stands
around a run, randomness.py reads the state of random numbers. What other packages with torch's interface have too is in
aligner_hooks.torchlike.
"""

from __future__ import annotations

from aligner_hooks.torch_.genuine import insist

insist()

from aligner_hooks.torch_.adapter import TorchAdapter  # noqa: E402 - its files hold on to what is imported as torch

__all__ = ["TorchAdapter"]
