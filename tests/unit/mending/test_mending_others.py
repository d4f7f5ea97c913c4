"""Other calls of the same code in which a value that an edit put right stays as wrong as it was."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aligner.mending import others
from aligner.mending.sources import Sources
from aligner.record import Key, Phase


def key(call, slot):
    return Key(0, Phase.FORWARD, "assign", call, slot)


def group(number, *slots):
    checks = [SimpleNamespace(port=key(number, slot), reason="") for slot in slots]
    return SimpleNamespace(
        owner="assign", call=SimpleNamespace(layer="assign", number=number), kind=list, fails=True, checks=checks
    )


@pytest.mark.parametrize(
    ("after", "told"), [(0.0, []), (0.5, []), (0.95, ["assign #1"]), (1.2, ["assign #1"])], ids=str
)
@pytest.mark.parametrize("right", [("output.0", "output.1"), ("output.1",)], ids=len)
def test_any_of_the_values_that_were_put_right_tells(monkeypatch, after, told, right):
    first, other = group(0, "output.0", "output.1"), group(1, "output.1")
    errors = {"": {key(1, "output.1"): 1.0}, "edited": {key(1, "output.1"): after}}
    parent = SimpleNamespace(trial=lambda sources: errors["edited" if sources.texts else ""])
    monkeypatch.setattr(others, "wrong_of", lambda checks, found: [one for one in checks if found.get(one.port)])
    known = others.Others(SimpleNamespace(parent=lambda call, checks: parent), [first, other])
    edited = Sources({"net.py": "edited"})
    assert [*known.left(first, {key(0, slot) for slot in right}, edited)] == told
    assert not [*known.left(first, {key(0, "output.0")}, edited)]
