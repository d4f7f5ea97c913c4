"""MindSpore behind aligner's adapter contract (PyNative mode).

layers: which cells there are · hooks: what is called when they run · roots: which nets run · tensors: values ·
parameters: weights in canonical words · spec (kinds, norms, windows): settings in canonical words · dropout: silenced
in train mode · runtime: seeds, devices, modes · copies: layers with other settings · construction (arguments,
norm_arguments, window_arguments): how a layer is made and spelled · precision: casts taken back and nets put into
another type · operations: what ran. Whatever is replaced for a while, is replaced by aligner.patches.
`adapter` puts them behind one class. This package is the only importer of mindspore.
"""

from __future__ import annotations

from aligner_hooks.mindspore_.adapter import MindSporeAdapter

__all__ = ["MindSporeAdapter"]
