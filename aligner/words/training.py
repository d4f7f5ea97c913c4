"""Names that stand for parts of a training step in records."""

LOSS = "(loss)"
"""The path under which a loss is recorded, as if it were a layer beside the net: one that no layer can have."""

BY_PROGRAM = 1
"""The call of what a program makes by itself of parameters and buffers behind an update."""
