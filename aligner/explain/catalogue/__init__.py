"""The catalogue of causes: data only, a file for each topic. A new cause is one Entry here and one rule for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from string import Formatter
from typing import Any

from aligner.explain.catalogue import torch_words
from aligner.explain.catalogue.entry import Entry as Entry
from aligner.explain.catalogue.phrases import said
from aligner.explain.phrase import Fact

TOPICS: tuple[str, ...] = (
    "settings",
    "windows",
    "losses",
    "weights",
    "precision",
    "training",
    "relations",
    "layers",
    "spatial",
    "sequences",
    "code",
    "inputs",
    "lines",
    "aligner.training.entries",
)
"""Modules of this package, or by their full names, each with `ENTRIES: tuple[Entry, ...]`."""

LANGUAGES = ("en", "zh")

_LEFT = ("a relative L2 of {left}", "{left}（相对 L2）")

_BETWEEN = re.compile("(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])")
"""Spaces between Chinese: they set code apart, and stand around a phrase as well."""


@cache
def catalogue() -> Mapping[str, Entry]:
    """All causes by id; an id that stands twice is a bug."""
    whole: dict[str, Entry] = {}
    for topic in TOPICS:
        for entry in import_module(topic if "." in topic else f"{__name__}.{topic}").ENTRIES:
            if entry.id in whole:
                raise ValueError(f"cause {entry.id!r} stands twice")
            whole[entry.id] = entry
    return whole


def sentences(cause: str, facts: Mapping[str, Fact], language: str) -> tuple[str, str, str]:
    """Title, evidence and fix of a cause with the facts filled in; of one that a newer aligner found, its id."""
    entry = catalogue().get(cause)
    if entry is None:
        return cause, "", ""
    side = LANGUAGES.index(language)
    known = _Facts(spoken(facts, language))
    if "left" in known:  # what a mistake that is undone leaves is the same figure as its proof's
        known["left"] = _LEFT[side].format(left=known["left"])
    other = _in_torch().get(cause) if facts.get("words") == "torch" else None
    if other is not None and all(_names(text[side]) <= facts.keys() for text in (other.title, other.fix)):
        entry = other
    told = (text[side].format_map(known) for text in (entry.title, entry.evidence, entry.fix))
    return tuple(_BETWEEN.sub("", text) if side else text for text in told)  # type: ignore[return-value]  # three


def spoken(facts: Mapping[str, Fact], language: str) -> dict[str, Any]:
    """The facts with their phrases said; what an older aligner wrote as a phrase of its own stays as it is."""
    side = LANGUAGES.index(language)
    return {name: said(fact, side) for name, fact in facts.items()}


@cache
def _in_torch() -> Mapping[str, Entry]:
    """Causes that are worded otherwise for a port in torch's words."""
    return {entry.id: entry for entry in torch_words.entries(catalogue())}


def _names(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


class _Facts(dict[str, Any]):
    """Facts that an older dump lacks stay as their placeholders, so that a report is printed all the same."""

    def __missing__(self, name: str) -> str:
        return f"<{name}>"
