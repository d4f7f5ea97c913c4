"""To be written."""

from __future__ import annotations

from collections.abc import Iterable

from aligner.explain.case import Case
from aligner.explain.suspect import Suspect


def suspects(case: Case) -> Iterable[Suspect]:
    """None so far."""
    return ()
