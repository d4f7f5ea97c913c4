"""Of what a resumed run has lost: parameters, buffers, and what optimizers keep and count."""

from __future__ import annotations

from collections.abc import Iterator

from aligner.compare.lost import COUNT, FORWARD, UPDATE, Lost, Resumed, how, is_lost, named, no_record
from aligner.compare.lost_schedule import counts, different, rate_of_optimizer
from aligner.compare.net import NEUTRAL
from aligner.explain.phrase import Fact
from aligner.explain.suspect import Suspect
from aligner.record import Phase


def parameters(run: Resumed, between: bool) -> Iterator[Lost]:
    """Parameters and running statistics that are not those which the step begins with.

    `between` two batches of one update, running statistics have moved on.
    """
    here = [r for r in run.readings if r.pair.key.step == 0 and r.pair.key.phase is Phase.PARAMETER and r.matched]
    here = [r for r in here if r.pair.key.slot not in NEUTRAL and not r.covered]
    trained = [r for r in here if (r.pair.key.layer, r.pair.key.slot) in run.states.owners]
    cause, those = "parameters", trained if between else here
    if not between and not any(is_lost(r, run) for r in trained):
        cause, those = "buffers", [r for r in here if (r.pair.key.layer, r.pair.key.slot) not in run.states.owners]
    off = [r for r in those if is_lost(r, run)]
    if off:
        facts: dict[str, Fact] = {"count": len(off), "total": len(those), "how": how(off, run), "fix": run.fix(cause)}
        suspect = Suspect(f"resume-{cause}", {**facts, "parameters": named(off, run)})
        owners = tuple((r.pair.key.layer, r.pair.key.slot) for r in off)
        yield Lost(suspect, "state", 0, FORWARD, off[0].pair.key, tuple(off), owners, len(those))


def state(run: Resumed) -> Iterator[Lost]:
    """What optimizers keep, and how many updates they have made."""
    here = [r for r in run.readings if r.pair.key.step == 0 and r.pair.key.phase is Phase.GRADIENT]
    here = [r for r in here if (owner := run.training.owner(r.pair.key)) is not None and owner[1] != r.pair.key.slot]
    off = [r for r in here if not r.matched or is_lost(r, run)]
    made, wanted = counts(run)
    if off:
        words = ", ".join([*dict.fromkeys(r.pair.key.slot.rpartition(".")[2] for r in off), *rate_of_optimizer(run)])
        owners = tuple(dict.fromkeys(one for r in off if (one := run.training.owner(r.pair.key)) is not None))
        total = len({run.training.owner(r.pair.key) for r in here})
        facts: dict[str, Fact] = {"setting": words, "count": len(owners), "total": total, "how": how(off, run)}
        facts.update(fix=run.fix("optimizer"), parameters=named(off, run))
        cause = "resume-moments"
        if made != wanted:
            cause = "resume-optimizer-state"
            facts.update(made=made, wanted=wanted)
        yield Lost(Suspect(cause, facts), "state", 0, UPDATE, off[0].pair.key, tuple(off), owners, total)
    elif made != wanted and _counts_matter(run):
        told: dict[str, Fact] = {"made": made, "wanted": wanted, "fix": run.fix("optimizer")}
        yield Lost(Suspect("resume-step-counter", told), "state", 0, UPDATE, no_record(0, COUNT))


def _counts_matter(run: Resumed) -> bool:
    """Whether something is made of the counter: a correction of moments for their start, or a rate."""
    told = [settings for _, settings in run.training.settings(1, 0).values()]
    return any(one.get("bias_correction") is True for one in told) or bool(different(run))
