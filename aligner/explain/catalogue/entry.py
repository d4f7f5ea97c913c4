"""What a catalogue of causes is made of."""

from __future__ import annotations

from dataclasses import dataclass

Text = tuple[str, str]
"""English and Chinese, with the same `{placeholders}`."""


@dataclass(frozen=True)
class Entry:
    """One cause: what it is called, what the numbers show, and what to change in the port.

    Placeholders are filled by the facts of a Suspect. Those every suspect has: layer, port_layer, kind, port_kind.
    """

    id: str
    title: Text
    """What is wrong, as a sentence without a full stop: "eps is {port_value}, the reference has {reference_value}"."""
    evidence: Text
    """What was seen, in numbers. May be empty where the title says it."""
    fix: Text
    """What to write in the port: "nn.LayerNorm(..., epsilon={reference_value})"."""
