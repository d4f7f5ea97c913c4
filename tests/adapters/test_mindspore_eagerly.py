"""A program that is held in PYNATIVE_MODE gets the mode that it has asked for last when it is let go."""

from __future__ import annotations

import pytest

mindspore = pytest.importorskip("mindspore", reason="the adapter is MindSpore's")

from aligner_hooks.mindspore_.adapter import MindSporeAdapter  # noqa: E402  # after the check

GRAPH, EAGER = mindspore.GRAPH_MODE, mindspore.PYNATIVE_MODE


@pytest.fixture(autouse=True)
def mode():
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=EAGER)
    yield
    mindspore.set_context(mode=before)


@pytest.fixture
def notes():
    """What is told of a net beside its layers' own."""
    adapter, net = MindSporeAdapter(), mindspore.nn.Dense(2, 2)
    return lambda: [(note.layer, note.message) for note in adapter.cautions(net)]


@pytest.mark.parametrize("asked", [[], [GRAPH], [GRAPH, EAGER], [EAGER, GRAPH]])
def test_what_is_asked_for_is_given_at_the_end(notes, asked):
    handles = [MindSporeAdapter().eagerly() for _ in range(2)]
    for one in asked:
        mindspore.set_context(mode=one)
        assert mindspore.get_context("mode") == EAGER
    with pytest.raises(ValueError, match="mode"):
        mindspore.set_context(mode=7)
    handles[0].remove()
    assert mindspore.get_context("mode") == EAGER
    assert notes() == ([("", "mindspore-run-eagerly")] if GRAPH in asked else [])
    handles[1].remove()
    assert mindspore.get_context("mode") == (asked or [EAGER])[-1]
    assert notes() == []


def test_a_program_that_has_asked_already_is_held_too(notes):
    mindspore.set_context(mode=GRAPH)
    handle = MindSporeAdapter().eagerly()
    assert (mindspore.get_context("mode"), notes()) == (EAGER, [("", "mindspore-run-eagerly")])
    handle.remove()
    assert (mindspore.get_context("mode"), notes()) == (GRAPH, [])
