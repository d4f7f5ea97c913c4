"""Two dumps in, one Comparison out: pair, measure, cover, find origins, conclude.

open_dump -> survey -> pair_layers -> pair_records -> read (Deviation) -> cover -> Trace -> Verdict -> Comparison
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace
from typing import Optional, Union

from aligner.compare.basis import settled
from aligner.compare.beginning import States, found, nowhere
from aligner.compare.borders import excuse_borders
from aligner.compare.conclusion import conclude
from aligner.compare.cover import cover
from aligner.compare.expected import Expectations
from aligner.compare.folded import excuse_between
from aligner.compare.force import found_by_force
from aligner.compare.growth import doubt
from aligner.compare.layer_map import LayerMap, read_map, resolved
from aligner.compare.layers import Pairing, pair_layers
from aligner.compare.lost import Resumed
from aligner.compare.measuring import Progress, measured
from aligner.compare.mixup import mixed_up
from aligner.compare.naming import all_names, kept_map
from aligner.compare.net import Net, survey
from aligner.compare.pairing import Pair, pair_records
from aligner.compare.reading import Reading, excuse_form, excuse_imported, excuse_mask, excuse_rounding
from aligner.compare.resuming import resumed
from aligner.compare.shifted import shifted
from aligner.compare.sorting import in_reading_order, is_given
from aligner.compare.stages import judge_stages
from aligner.compare.stop import Stop
from aligner.compare.stops import excuse_not_run, stopped, stops
from aligner.compare.tolerance import Tolerance
from aligner.compare.training import Training
from aligner.compare.unread import excuse_unread
from aligner.compare.verdict import Comparison as Comparison
from aligner.compare.wrappers import unwrap
from aligner.dump.reader import Dump, open_dump
from aligner.errors import IncomparableError
from aligner.record import Phase, display

Source = Union[str, "os.PathLike[str]", Dump]


def compare(
    reference: Source,
    port: Source,
    *,
    tolerance: float = 1e-3,
    rule: str = "scaled",
    map: Optional[LayerMap] = None,
    allow_unmatched: Sequence[str] = (),
    from_step: Optional[int] = None,
    executor: Optional[Executor] = None,
    progress: Optional[Progress] = None,
) -> Comparison:
    """Compare the port's dump with the reference's, record by record.

    Args:
        reference: path of the reference's dump, or the open dump.
        port: path of the port's dump, or the open dump.
        tolerance: what the rule's figure may be at most.
        rule: "scaled", "allclose", "abs" or "l2" (see Tolerance).
        map: pairs of layers that overrule what is found by names and structure: a mapping, or a file with JSON or
            lines "REF = PORT". A name also stands for everything inside the layer, and "*" for one part of a name.
            The map that the port was captured with stays in force, as far as this one says nothing else.
        allow_unmatched: globs of layers that may be without a counterpart.
        from_step: of a resumed run the step of the reference's that it begins with, if the values do not tell.
        executor: runs one job per pair; results are taken in order. Threads share the open dumps.
        progress: called with pairs done, pairs in all, and bytes read so far.

    Raises:
        UsageError: an option cannot be meant like this, or the map names unknown layers.
        DumpError: one of the files is not a dump, or is damaged.
        IncomparableError: no layer of one net has a counterpart in the other.
    """
    rules = Tolerance(tolerance, rule)
    wanted = read_map(map)
    with ExitStack() as opened:
        whole, other = (_opened(source, opened) for source in (reference, port))
        whole.verify()
        other.verify()
        one, begun = whole, found(whole, other, from_step)
        if begun is not None:
            one, other = shifted(whole, begun.step, begun.step + begun.steps), shifted(other, 0, begun.steps)
        nets = survey(one), survey(other)
        given = resolved(wanted, *(all_names(net) for net in nets)) if wanted else {}
        given = {**kept_map(other.header.get("map"), *nets, set(given.values())), **given}
        pairing = pair_layers(*nets, given, other.header.get("mapping"), other.header.get("parted"))
        pairs = in_reading_order(pair_records(one, other, pairing), *nets)
        mixup = mixed_up(whole, other)
        if begun is not None and mixup is not None and not mixup.void:
            mixup = None  # two runs of one program are meant to be
        if mixup is None or not mixup.void:
            _check_same_model(one, other, nets, pairs)
        readings = measured(pairs, rules, executor, progress)
        expectations = Expectations(one, other)
        ended = stops(one, other, pairing)
        forced = _excuse(readings, (one, other), nets, pairing, ended, expectations, rules)
        training = Training(one, other)
        judge_stages(readings, one, training, rules)
        if forced:
            doubt(readings, other)
        mixup = settled(mixup, readings, nets[0])
        allowed = tuple(allow_unmatched)
        told = conclude(one, other, nets, pairing, readings, rules, allowed, expectations, training, mixup)
        if begun is not None:
            run = Resumed(whole, one, other, begun, States(whole), training, readings, nets[0].roots)
            told = resumed(told, run, rules)
        elif (apart := nowhere(whole, other)) is not None:
            told = replace(told, warnings=(("resumed-nowhere", apart), *told.warnings))
        return stopped(told, ended)


def _excuse(
    readings: list[Reading],
    dumps: tuple[Dump, Dump],
    nets: tuple[Net, Net],
    pairing: Pairing,
    ended: Sequence[Stop],
    expectations: Expectations,
    tolerance: Tolerance,
) -> bool:
    """Forgive what differs and is no mistake, in the order that each relies on; whether the port was replayed."""
    checks = found_by_force(*dumps, expectations)
    for reading in readings:
        reading.check = checks.get(reading.pair.key) if reading.pair.reference is not None else None
        excuse_form(reading, tolerance)
    _excuse_inputs(readings, nets[0])
    for reading in readings:
        excuse_mask(reading, tolerance)
        excuse_imported(reading, *nets)
    unwrap(readings, *nets, tolerance)
    excuse_borders(readings, *nets, pairing)
    excuse_not_run(readings, ended, dumps, pairing)
    excuse_unread(readings)
    excuse_between(readings, *dumps)
    cover(readings, *nets, pairing)
    _tell_ends(readings, *dumps)
    expectations.excuse(readings)
    return bool(checks)


def _opened(source: Source, stack: ExitStack) -> Dump:
    """The dump; one that is opened here is closed here."""
    return stack.enter_context(open_dump(source)) if isinstance(source, (str, os.PathLike)) else source


def _excuse_inputs(readings: Sequence[Reading], net: Net) -> None:
    """Inputs that one side stores in a shorter type are the same inputs, at the net's door and wherever they go."""
    excused = set()
    for reading in readings:
        one, other = reading.pair.reference, reading.pair.port
        if reading.over and one is not None and other is not None:
            if is_given(reading.pair.key, net.roots):
                excused.add((one.content, other.content))
            if (one.content, other.content) in excused:
                excuse_rounding(reading)


def _tell_ends(readings: Sequence[Reading], one: Dump, other: Dump) -> None:
    """What the other side's capture did not live to see is not to be looked for in the net."""
    for reading in readings:
        if reading.pair.key.phase is not Phase.PARAMETER:
            if reading.reason == "only-reference" and not other.complete:
                reading.reason = "only-reference-ended"
            elif reading.reason == "only-port" and not one.complete:
                reading.reason = "only-port-ended"


def _check_same_model(one: Dump, other: Dump, nets: tuple[Net, Net], pairs: Sequence[Pair]) -> None:
    """Two nets that have nothing in common below the top are other models, not a diverged port."""
    matched = [pair for pair in pairs if pair.reference is not None and pair.port is not None]
    if any(pair.key.layer for pair in matched):
        return
    inner = [any(entry.key.layer for entry in dump.entries) for dump in (one, other)]
    if matched and not all(inner):
        return  # one side was captured as a black box
    raise IncomparableError(
        "nothing-matched",
        reference=str(one.path),
        reference_model=_model(one, nets[0]),
        port=str(other.path),
        port_model=_model(other, nets[1]),
    )


def _model(dump: Dump, net: Net) -> str:
    """The net's class and its first layers, for a person to see that these are two nets."""
    root = net.layers.get("")
    name = str(dump.header.get("model") or (root.type if root is not None else "?"))
    first = [display(visit.call.layer) for visit in net.visits if visit.call.layer][:3]
    return f"{name} ({', '.join(first)}, ...)" if first else name
