"""Numbers in the place of a layer's attributes: where all that an edit changes are such, the layer is to be built with
others, and its class stays as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from typing import Any, Optional

from aligner.adapter import Adapter
from aligner.mending.mended import Mended
from aligner.mending.settings import Settings

Numbers = Mapping[str, float]

_NAME = re.compile(r"self\.([A-Za-z_]\w*)(?![\w.(\[])")


class Instances:
    """Of one port."""

    def __init__(self, adapter: Adapter, model: Any) -> None:
        self._layers = dict(adapter.layers(model))
        self._settings = Settings(adapter, self._layers)
        self._alike: dict[str, Set[str]] = {}
        """By edits, what they put right."""

    def build_otherwise(self, one: Mended, alike: Callable[[], Set[str]]) -> None:
        """Have the call say it that builds the layer, if there is one that is right for all that it builds; `alike`
        tells which of them the edits put right.
        """
        layer = self._layers.get(one.call.layer)
        has = vars(layer) if hasattr(layer, "__dict__") else {}
        change = {
            name: type(has[name])(number)
            for name, number in attributes(one.edits).items()
            if type(has.get(name)) in (int, float) and type(has[name])(number) == number
        }
        if change and len(change) == len(attributes(one.edits)):
            edits = repr(one.edits)
            self._alike[edits] = known = self._alike[edits] if edits in self._alike else alike()
            written = self._settings.given(one.call.layer, change, known)
            if written is not None and written.edits:
                one.edits, one.broken = [*written.edits], ()


def attributes(hunks: Iterable[Mapping[str, Any]]) -> Numbers:
    """What each attribute is to be; none where lines are changed otherwise, or one is to be two numbers."""
    found: dict[str, float] = {}
    for hunk in hunks:
        told = _told("\n".join(hunk["before"]), "\n".join(hunk["after"]))
        if told is None or any(found.setdefault(name, number) != number for name, number in told.items()):
            return {}
    return found


def _told(before: str, after: str) -> Optional[Numbers]:
    parts = _NAME.split(before)
    names = parts[1::2]
    pattern = "".join(re.escape(text) if at % 2 == 0 else rf"(self\.{text}|[-\d.e+]+)" for at, text in enumerate(parts))
    match = re.fullmatch(pattern, after)
    if match is None:
        return None
    found: dict[str, float] = {}
    for name, text in zip(names, match.groups()):
        if text != f"self.{name}":
            with suppress(ValueError, SyntaxError):
                number = ast.literal_eval(text)
                if found.setdefault(name, number) != number:
                    return None
    return found or None
