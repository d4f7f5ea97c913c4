"""A layer of the framework's built from the text that a report shows, for a trial in the place of the port's own."""

from __future__ import annotations

from aligner.adapter import Adapter
from aligner.programs.building import building
from aligner.programs.speech import SPEECHES
from aligner.source.constructing import undrawn


def built(adapter: Adapter, text: str) -> object:
    """The layer; what the text says comes from a dump, and is run only if it is a layer's constructor and plain values.

    Raises:
        ValueError: it is anything else.
    """
    made = building(text, SPEECHES[adapter.name].grammar)
    if made is None:
        raise ValueError(f"{text} is no layer of {adapter.name}'s")
    names: dict[str, object] = {}
    exec(adapter.preamble(), names)  # the adapter's own imports
    with undrawn(adapter):  # its first weights mean nothing
        layer: object = eval(made.text, names)  # read and written anew by `building`
    return layer
