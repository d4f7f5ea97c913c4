"""Names that stand for parts of a training step in records."""

LOSS = "(loss)"
"""The path under which a loss is recorded, as if it were a layer beside the net: one that no layer can have."""
