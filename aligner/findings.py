"""The kinds of findings that a dump may hold besides its records: what was found out about the net, as plain facts."""

from __future__ import annotations

OPERATIONS = "operations"
"""What a layer's own code ran between its children: layer, call, step, rows of (child before, child after, names)."""

CODE = "code"
"""What a layer's own code did step by step (aligner.capture.following): layer, values, steps."""

EXPECTED = "expected"
"""What rounding makes of one of the reference's values (`capture --truth`, `--expect`)."""

CHECK = "check"
"""What the forced pass found at one place (aligner.compare.checks)."""

TRIAL = "trial"
"""What a suspected cause came to when it was put right in a copy of the layer."""

REPEAT = "repeat"
"""A wrong layer that gives other numbers when it is run again on the same inputs, and how far these are apart."""

LAYER = "layer"
"""A wrong layer in its framework's own terms: the Python that builds it."""

MOVED = "moved"
"""Which layers run on other weights than those recorded, from this order number on: step, order, layers."""

TRAINING = "training"
"""An update by an optimizer (aligner.capture.steps): step, optimizer, kind, type, groups of settings and parameters,
parameters without a gradient; or the earlier step that it is like."""

CAST = "cast"
"""What a layer's own code computes in (aligner.capture.computed): layer, dtype, by, operations by dtype."""

EDIT = "edit"
"""An edit of a port's own code that was run (aligner.mending): layer, at, edits, why, before, after, proved, broken."""

CLEARED = "cleared"
"""Of a place that the forced pass found to be wrong: right in the net as a whole with the edits that others need."""

GROWN = "grown"
"""How far noise of rounding's size moves what the net hands on, where no place is wrong: at, error, whole."""

OPERATION = "operation."
"""How the slots of records begin that hold what a framework's operation was given (Phase.FORCED)."""
