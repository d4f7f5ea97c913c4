"""Of what a resumed run has lost: the position in the data, and gradients of an update that had begun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aligner.compare.beginning import alike
from aligner.compare.lost import FORWARD, GRADIENTS, Lost, Resumed, floats, no_record, off_by
from aligner.compare.reading import SEEN, Reading
from aligner.compare.sorting import is_given
from aligner.explain.phrase import Fact
from aligner.explain.suspect import Suspect
from aligner.record import Key, Phase
from aligner.training import batches


def accumulated(run: Resumed) -> Iterator[Lost]:
    """The run begins in the middle of an update, of which the gradients of earlier batches are lost."""
    for root in run.roots:
        key = Key(0, Phase.FORWARD, root, 0, "input.0")
        ours, theirs = run.reference.find(key), run.port.find(key)
        if ours is None or theirs is None or alike(ours, theirs):
            continue
        number = 1
        while (later := run.reference.find(key._replace(call=number))) is not None and not alike(later, theirs):
            number += 1
        if later is not None:
            facts: dict[str, Fact] = {"count": number, "step": run.begun.step, "fix": run.fix("gradients")}
            suspect = Suspect("resume-accumulated-gradients", facts)
            yield Lost(suspect, "state", 0, FORWARD, no_record(0, GRADIENTS))
            return


def data(run: Resumed) -> Iterator[Lost]:
    """The first batch that is not the whole run's of that step, and where else in that run it or its rows stand."""
    given = [r for r in run.readings if is_given(r.pair.key, run.roots) and r.matched]
    off = [r for r in given if not alike(r.pair.entry, r.pair.port or r.pair.entry) and off_by(r) > SEEN]
    if not off:
        return
    first = min(off, key=lambda r: r.pair.key.step)
    step = first.pair.key.step
    cause, facts = _of_batch(run, first)
    suspect = Suspect(cause, {**facts, "step": step + run.begun.step, "fix": run.fix("data")})
    shown = tuple(r for r in off if r.pair.key[1:3] == first.pair.key[1:3])
    yield Lost(suspect, "data", step, FORWARD, first.pair.key, shown)


def _of_batch(run: Resumed, first: Reading) -> tuple[str, Mapping[str, Fact]]:
    """The cause, and what is known of where its rows stand."""
    key, port = first.pair.key, first.pair.port
    assert port is not None
    entries = {step: run.whole.find(key._replace(step=step)) for step in run.states.steps}
    known = {step: floats(one) for step, one in entries.items() if one is not None}
    batch = floats(port)
    found = next(batches.suspects(batch, known, key.step + run.begun.step), None)
    if found is None or found.cause == "data-other":
        return "resume-data-nowhere", {}
    if found.cause == "data-other-step":
        return "resume-data-other" if found.facts["other"] else "resume-data-begins", found.facts
    return "resume-data-order" if found.cause.startswith("data-order") else found.cause, found.facts
