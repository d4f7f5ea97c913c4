"""The test suite that every adapter must pass, shipped so that a third party can run it on its own adapter.

Subclass `AdapterContract`, supply the nets that aligner.testing.nets describes, and pytest collects the checks;
docs/adapters.md shows it. This package is the only part of aligner that imports pytest.
"""

from __future__ import annotations

from aligner.testing.contract import AdapterContract
from aligner.testing.nets import NETS, Box, Point
from aligner.testing.recorder import Event, Recorder

__all__ = ["NETS", "AdapterContract", "Box", "Event", "Point", "Recorder"]
