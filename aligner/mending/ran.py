"""What an edit makes when the code runs with it: whether the reference makes it too, and whether it runs again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aligner.compare.checks import Check
from aligner.fingerprint import distances
from aligner.mending.candidate import Candidate
from aligner.mending.events import LAYER, Event, Story
from aligner.mending.heard import Heard
from aligner.mending.matching import AGREE
from aligner.mending.running import Parent
from aligner.mending.sources import Sources


def again(parent: Parent, trial: Sources, best: Candidate, right: Iterable[Check], left: Iterable[Check]) -> bool:
    """Whether what is edited runs again for a value that is left wrong, in the same slot of a layer as one that is
    right then: what is right in one turn of a loop may be so by chance.
    """
    known = {(check.port.layer, check.port.slot): check.port for check in right}
    places = ((known.get((check.port.layer, check.port.slot)), check.port) for check in left)
    pairs = [(one, other) for one, other in places if one is not None]
    if not pairs:
        return False
    heard, state = parent.heard_again(trial)
    edited = {event for made in _edited(heard, trial, best) for event in made}
    at = [number for number, event in enumerate(heard.story.events) if event in edited]
    ends = [sorted(state.at[key][0] for key in pair) for pair in pairs if {*pair} <= {*state.at}]
    return any(start <= number < stop for start, stop in ends for number in at)


def witnessed(parent: Parent, story: Story, trial: Sources, one: Candidate, strictly: bool = False) -> bool:
    """What the edited code makes, each time, is a value of the reference's too: no numbers that fit by chance. With
    `strictly`, it makes one.
    """
    heard, _ = parent.heard_again(trial)
    for events in _edited(heard, trial, one):
        made = [heard.story.forms(event.results[0]) for event in events]
        if any((distances(story.values, forms, turned=False) > AGREE).all() for forms in made):
            return False
        if strictly and not made:
            return False
    return True


def _edited(heard: Heard, trial: Sources, one: Candidate) -> Iterator[list[Event]]:
    """Of each edit the operations that it is in, or those in it, as they were run."""
    moved = 0
    for edit in sorted(one.edits):
        start = edit.start + moved
        stop = start + len(edit.new)
        moved += len(edit.new) - (edit.end - edit.start)
        spans = [
            (*trial.span(edit.file, event.node), event)
            for event in heard.story.events
            if event.site is not None and event.node is not None and event.site.file == edit.file and event.results
            if event.word != LAYER
        ]
        around = [(last - first, event) for first, last, event in spans if first <= start and stop <= last]
        inside = [(first - last, event) for first, last, event in spans if start <= first and last <= stop]
        sizes = around or inside
        least = min((size for size, _ in sizes), default=0)
        yield [event for size, event in sizes if size == least]
