"""`--from`: the reference's weights in a port, whichever door it came by, and what became of the forced pass."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aligner import messages
from aligner.cli.voice import Voice
from aligner.errors import ReplayError, UsageError
from aligner.record import Phase, display

if TYPE_CHECKING:
    from aligner.adapter import Adapter
    from aligner.replay.replay import Replay


def check_replay(options: argparse.Namespace) -> None:
    """Options that mean nothing without a reference.

    Raises:
        UsageError: one was given.
    """
    for name in ("rename", "map", "write_map", "allow_missing", "free_only", "search"):
        if getattr(options, name) not in (None, False, []) and not options.reference:
            raise UsageError("option-needs-from", option=f"--{name.replace('_', '-')}")


def steps_of(reference: str) -> int:
    """How many steps a reference has."""
    from aligner.dump.reader import open_dump

    with open_dump(reference) as dump:
        return max(len(dump.steps), 1)


def unwrapped(reference: str, adapter: Adapter, model: object) -> object:
    """The net inside a cell that makes a loss of what it hands on, as the reference's is by itself."""
    from aligner.dump.reader import open_dump

    with open_dump(reference) as dump:
        own = {entry.key.layer.partition(".")[0] for entry in dump.entries if entry.key.phase is Phase.PARAMETER}
    while len(own) > 1:
        owners = {parameter.layer.partition(".")[0] for parameter in adapter.parameters(model)}
        inner = dict(adapter.layers(model)).get(next(iter(owners), "")) if len(owners) == 1 else None
        if inner is None or inner is model:
            break
        model = inner
    return model


def tell_examined(replay: Replay, voice: Voice) -> None:
    """What the forced pass and the trials came to."""
    found = replay.examined
    if found is not None:
        facts = {"checked": found.checked, "wrong": found.wrong, "seconds": f"{found.seconds:.1f}"}
        voice.say("forced-told", **facts)
        if found.trials:
            voice.say("trials-told", trials=found.trials, seconds=f"{found.trying:.1f}", confirmed=found.confirmed)


def replayed(
    options: argparse.Namespace, framework: str, model: object, voice: Voice, own_mode: bool = False
) -> Replay:
    """The reference's weights in the port; says what went where by other than its name. The port is put into the
    reference's mode unless it is to keep its `own_mode`."""
    from aligner.compare.layer_map import check_free, read_map
    from aligner.dump.reader import open_dump
    from aligner.registry import load
    from aligner.replay.form_words import forms
    from aligner.replay.replay import Replay
    from aligner.replay.transfer import left_over

    dump = open_dump(options.reference)
    dump.verify()
    replay = Replay(dump, load(framework), model)
    rules, own = read_map(options.map), replay.modes()
    if options.write_map:
        check_free(options.write_map)
    try:
        replay.load(dict(_rename(text) for text in options.rename), options.allow_missing, rules)
    except ReplayError as error:
        if options.write_map and error.message.startswith("weights-left"):  # what is to be corrected
            _write_map(options.write_map, replay, voice)
        raise
    if options.write_map:
        _write_map(options.write_map, replay, voice)
    asked = True if options.train else False if options.eval else None
    if asked is not None or not own_mode:
        replay.set_training(asked)
    else:  # which weights go where may have been found out in eval mode
        replay.put_modes(own)
    transfer = replay.transfer
    count = len(transfer.matches)
    values, structure = (sum(match.by == by for match in transfer.matches) for by in ("values", "structure"))
    named = count - structure - values
    facts = {"count": count, "named": named, "structure": structure, "reference": options.reference}
    voice.say("weights-loaded", **facts)
    if values:
        voice.say("weights-by-values", count=values)
    for reference, port, sure in transfer.layers:
        if reference != port:
            facts = {"reference": display(reference), "port": display(port), "confidence": f"{sure:.1f}"}
            voice.say("weights-by-structure", **facts)
    for message, told in forms(transfer):
        times = messages.text("weights-times", voice.language, told) if told["count"] != 1 else ""
        voice.say(message, **{**told, "times": times})
    if transfer.left_reference or transfer.left_port:
        left = {"left_reference": left_over(transfer.left_reference), "left_port": left_over(transfer.left_port)}
        voice.say("weights-told", **left)
    return replay


def _write_map(path: str, replay: Replay, voice: Voice) -> None:
    """The map that was used, and what is left over."""
    from aligner.compare.layer_map import write
    from aligner.replay import mapped

    lines = mapped.map_lines(replay.transfer, replay.given)
    write(path, lines, mapped.left_lines(replay.transfer))
    voice.say("map-written", path=path, count=len(lines))


def _rename(text: str) -> tuple[str, str]:
    reference, sign, port = text.partition("=")
    if not sign:
        raise ReplayError("rename-form", text=text)
    return reference.strip(), port.strip()
