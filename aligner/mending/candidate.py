"""An edit, or several that go together, and what is known of them before they are run."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Optional

from aligner.mending.events import Event
from aligner.mending.sources import Edit

ARGUMENT, OPERAND, MISSING, OTHER, EXCHANGED = "argument", "operand", "missing", "other", "exchanged"
"""What an edit changes."""

EXCHANGE = 2.0
"""What it costs to exchange two layers."""

Move = tuple[Event, Optional[ast.AST], int, Optional[Event]]
"""The event whose expression (None) or which expression in it gets which value of the reference; only if its operands
are right, where it is a call that gets the arguments of that event of the reference's.
"""


@dataclass(eq=False)
class Candidate:
    """Edits that go together, and what they change."""

    cost: float
    edits: tuple[Edit, ...]
    why: str
    moves: tuple[Move, ...]
    left: int = 0
    """Wrong values that there would be still, by what is known before it is run, ..."""
    gained: int = 0
    """... and values of the reference's that there would be then."""
    old: str = ""
    """What stands in the place of the only edit."""
