"""Operations are told by the gap between two children that they ran in."""

from __future__ import annotations

from aligner.capture.gaps import MOST, Gaps


def follow(story):
    """Run "(name" enter, ")" leave, everything else an operation; returns what was told by layer."""
    told = {}
    gaps = Gaps(lambda kind, facts: told.setdefault(facts["layer"], facts["rows"]))
    stack = []
    for word in story.split():
        if word.startswith("("):
            stack.append(word[1:])
            gaps.enter(stack[-1])
        elif word == ")":
            gaps.leave(stack.pop(), 0, 0)
        else:
            gaps.told(word)
    return told


def test_what_runs_between_children_belongs_to_the_layer_around():
    told = follow("outside (net mul (a inner ) add add (b ) relu )")
    assert told == {"net": [("", "a", ["mul"]), ("a", "b", ["add", "add"]), ("b", "", ["relu"])]}


def test_a_layer_without_children_tells_nothing():
    assert follow("(net mul add )") == {}


def test_gaps_without_operations_are_left_out():
    assert follow("(net (a ) (b ) )") == {}


def test_a_loop_of_operations_is_cut_short():
    told = follow(f"(net (a ) {'add ' * (MOST + 50)})")
    assert len(told["net"][0][2]) == MOST


def test_calls_that_never_came_back_are_forgotten():
    told = []
    gaps = Gaps(lambda kind, facts: told.append((facts["layer"], facts["rows"])))
    gaps.enter("net")
    gaps.enter("a")
    gaps.leave("a", 0, 0)
    for layer in ("b", "b.inner"):  # its code raises, and the net's catches it
        gaps.enter(layer)
        gaps.told("mul")
    gaps.unwind(1)
    gaps.told("add")
    gaps.leave("net", 0, 0)
    assert told == [("net", [("a", "", ["add"])])]
