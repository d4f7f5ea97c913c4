"""The catalogue of causes: data only, a file for each topic. A new cause is one Entry here and one rule for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from string import Formatter
from typing import Any

from aligner.explain.catalogue import torch_words
from aligner.explain.catalogue.entry import Entry as Entry

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
    "cells",
    "glue",
    "attention",
    "arguments",
    "readings",
    "inputs",
    "operations",
    "lines",
)
"""Modules of this package, each with `ENTRIES: tuple[Entry, ...]`."""

LANGUAGES = ("en", "zh")


@cache
def catalogue() -> Mapping[str, Entry]:
    """All causes by id; an id that stands twice is a bug."""
    whole: dict[str, Entry] = {}
    for topic in TOPICS:
        for entry in import_module(f"aligner.explain.catalogue.{topic}").ENTRIES:
            if entry.id in whole:
                raise ValueError(f"cause {entry.id!r} stands twice")
            whole[entry.id] = entry
    return whole


def sentences(cause: str, facts: Mapping[str, Any], language: str) -> tuple[str, str, str]:
    """Title, evidence and fix of a cause with the facts filled in; of one that a newer aligner found, its id."""
    entry = catalogue().get(cause)
    if entry is None:
        return cause, "", ""
    side = LANGUAGES.index(language)
    known = _Facts(facts)
    other = _in_torch().get(cause) if facts.get("words") == "torch" else None
    if other is not None and all(_names(text[side]) <= facts.keys() for text in (other.title, other.fix)):
        entry = other
    return tuple(text[side].format_map(known) for text in (entry.title, entry.evidence, entry.fix))  # type: ignore[return-value]  # three


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
