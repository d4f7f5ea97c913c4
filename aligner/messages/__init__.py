"""Every sentence a user can be told as an error or a caution, in English and Chinese.

One module per area, each with `MESSAGES: dict[id, (en, zh)]`. The first line says what was found and what was
wanted, the second what to do. Both languages use the same `{placeholders}`; a test holds them to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Optional

LANGUAGES = ("en", "zh")
AREAS = (
    "adapters",
    "capture",
    "cli",
    "compare",
    "covered",
    "damage",
    "dump",
    "ingest",
    "mindtorch",
    "mixups",
    "reasons",
    "replay",
    "training",
    "weights",
)


@cache
def catalogue() -> Mapping[str, tuple[str, str]]:
    """All messages of all areas by id; an id that stands twice is a bug."""
    whole: dict[str, tuple[str, str]] = {}
    for area in AREAS:
        for name, pair in import_module(f"aligner.messages.{area}").MESSAGES.items():
            if name in whole:
                raise ValueError(f"message {name!r} stands twice")
            whole[name] = pair
    return whole


def text(message: str, language: str, facts: Mapping[str, object]) -> str:
    """The sentence with the facts filled in."""
    told = {name: said(fact, language) for name, fact in facts.items()}
    return catalogue()[message][LANGUAGES.index(language)].format_map(told)


def said(fact: object, language: str) -> object:
    """A reason in words, where the fact is the id of one with its parts ("why-sparse|COOTensor"); else the fact."""
    if not isinstance(fact, str) or not fact.startswith("why-"):
        return fact
    name, *parts = fact.split("|")
    pair = catalogue().get(name)
    try:
        return fact if pair is None else pair[LANGUAGES.index(language)].format(*parts)
    except (LookupError, ValueError):  # of another version of aligner
        return fact


def language(chosen: Optional[str] = None, environ: Optional[Mapping[str, str]] = None) -> str:
    """The language to speak: the option, else ALIGNER_LANG, else the locale, else English."""
    environ = os.environ if environ is None else environ
    names = ("ALIGNER_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    first = chosen or next((environ[name] for name in names if environ.get(name)), "en")
    return "zh" if first.lower().startswith("zh") else "en"
