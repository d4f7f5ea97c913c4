"""A layer of the framework's built from the text that a report shows, for a trial in the place of the port's own."""

from __future__ import annotations

import numpy as np

from aligner.adapter import Adapter
from aligner.explain.building import building
from aligner.explain.speech import SPEECHES


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
    random, numbers = adapter.random_state(), np.random.get_state()  # MindSpore draws from it
    try:
        layer: object = eval(made.text, names)  # read and written anew by `building`
    finally:  # its first weights are drawn, and mean nothing
        np.random.set_state(numbers)  # as above
        if random is not None:
            adapter.set_random_state(random)
    return layer
