"""Names that stand for parts of a training step in records."""

LOSS = "(loss)"
"""The path under which a loss is recorded, as if it were a layer beside the net: one that no layer can have."""

NETS = "nets"
"""Where a header has the names of nets that are trained beside each other and captured together."""

NET = "net"
"""The argument of such a capture's calls that says which of them is called."""

BY_PROGRAM = 1
"""The call of what a program makes by itself of parameters and buffers behind an update."""
