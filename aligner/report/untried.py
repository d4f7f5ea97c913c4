"""What the search for causes left out, in words: rules by their topic."""

from __future__ import annotations

from collections.abc import Mapping

from aligner.compare.verdict import Origin
from aligner.explain.inquiry import NUMBERS, WHOLE
from aligner.report.words import say

_RULES: Mapping[str, tuple[str, ...]] = {
    "untried-numbers": (NUMBERS,),
    "untried-whole": (WHOLE,),
    "untried-inputs": ("inputs",),
    "untried-guesses": ("guesses",),
}
"""Rules by the words for what they look for; the others ask of a layer."""

TOPICS: Mapping[str, str] = {rule: topic for topic, rules in _RULES.items() for rule in rules}

LAYERS = "untried-layers"


def untried(origin: Origin, language: str) -> str:
    """One sentence; "" where nothing was left out, or a cause is proved that makes it idle."""
    if not origin.untried or any(cause.confirmed for cause in origin.causes):
        return ""
    topics = dict.fromkeys(TOPICS.get(rule, LAYERS) for rule in origin.untried)
    comma = say("comma", language)
    return say("untried", language, topics=comma.join(say(topic, language) for topic in topics))
