"""An example of the facts of every cause, as its rule made them: what the catalogue's sentences are told with in tests.

They stand in golden/facts.json. `pytest tests/unit/explain tests/endtoend --accept` writes what it lacks, and what no
sentence can be told with any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aligner.explain.catalogue import catalogue
from aligner.explain.phrase import Fact, Phrase
from aligner.explain.suspect import Suspect
from tests.chinese import faults, holes

PATH = Path(__file__).parent / "golden" / "facts.json"

MADE: dict[str, Suspect] = {}
"""What rules have made since the last test, by a key that tells two of them apart."""

_judged: dict[str, list[str]] = {}


def listen() -> None:
    """Hear of every suspect that is made from now on."""
    plain = Suspect.__init__

    def heard(self: Suspect, *given: Any, **named: Any) -> None:
        plain(self, *given, **named)
        MADE[f"{self.cause} {self.facts}"] = self

    Suspect.__init__ = heard  # type: ignore[method-assign]  # nothing else hears of all of them


def judged() -> list[str]:
    """What is wrong with the words of the suspects that were made since the last test."""
    found: list[str] = []
    for key, suspect in MADE.items():
        if key not in _judged:
            _judged[key] = faults(suspect.cause, suspect.facts) if suspect.cause in catalogue() else []
        found += _judged[key]
    return found


def accept() -> None:
    """Keep an example of each cause that was made since the last test and that has none which tells all."""
    known = read()
    for suspect in MADE.values():
        cause = suspect.cause
        if (
            cause in catalogue()
            and not holes(cause, suspect.facts)
            and (cause not in known or holes(cause, known[cause]))
        ):
            known[cause] = suspect.facts
    kept = {cause: {name: _plain(fact) for name, fact in known[cause].items()} for cause in sorted(known)}
    text = json.dumps({cause: kept[cause] for cause in kept if cause in catalogue()}, indent=1, ensure_ascii=False)
    PATH.write_text(text + "\n", encoding="utf-8")


def read() -> dict[str, Mapping[str, Fact]]:
    """The examples by cause."""
    known = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    return {cause: {name: _fact(value) for name, value in facts.items()} for cause, facts in known.items()}


def _plain(fact: Fact) -> Any:
    if isinstance(fact, Phrase):
        return {"phrase": fact.id, "parts": [_plain(part) for part in fact.parts]}
    return [_plain(each) for each in fact] if isinstance(fact, tuple) else fact


def _fact(value: Any) -> Fact:
    if isinstance(value, dict):
        return Phrase(value["phrase"], tuple(_fact(part) for part in value["parts"]))
    return tuple(_fact(each) for each in value) if isinstance(value, list) else value
