"""The factory door of `aligner capture`: build the net, run it (on the reference's data), record it."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Optional

from aligner import messages
from aligner.capture import target as targets
from aligner.capture.progress import size
from aligner.cli.door import check_output, interruptible, session_options, tell_captured
from aligner.cli.voice import Voice
from aligner.errors import AlignerError, CaptureError, ReplayError, UsageError
from aligner.record import display

if TYPE_CHECKING:
    from aligner.capture.factory import Run
    from aligner.capture.session import Options
    from aligner.capture.sink import Sink
    from aligner.replay.replay import Replay


def capture_factory(options: argparse.Namespace, target: targets.Target) -> int:
    """Build, run and record; with --from on the reference's weights and inputs."""
    from aligner.capture import factory as building
    from aligner.capture.session import Capture

    voice = Voice(options.quiet, options.lang)
    started = time.monotonic()
    for name in ("model", "silence_dropout"):
        if getattr(options, name):
            raise UsageError("option-needs-script", option=f"--{name.replace('_', '-')}")
    for name in ("truth", "expect"):
        if getattr(options, name) and options.reference:
            raise UsageError("option-of-reference", option=f"--{name}")
    for name in ("rename", "map", "write_map", "allow_missing", "free_only", "search"):
        if getattr(options, name) not in (None, False, []) and not options.reference:
            raise UsageError("option-needs-from", option=f"--{name.replace('_', '-')}")
    check_output(options)
    seed = 0 if options.seed is None else options.seed
    prepared, replay = _prepare(options, target, seed, voice)
    session = session_options(options, seed=seed, steps=None, silence=not options.keep_dropout)
    session.operations = True
    session.follow = True
    if options.inputs:
        session.header = {**session.header, "inputs": options.inputs}
    prepared.adapter.seed(seed)
    building.seed_everything(seed)
    if options.estimate:
        return _estimate(prepared, session, options, voice)
    voice.say("known-size", **_known(prepared, options.output))
    if replay is None:
        session.then = _expectation(options, prepared, session)
        capture = Capture(prepared.adapter, prepared.model, options.output, session, voice.progress)
    else:
        capture = replay.capture(
            options.output, session, voice.progress, forced=not (options.free_only or options.inputs)
        )
    with interruptible(options.output, lambda: capture.began):
        _run_steps(prepared, capture, voice)
        tell_captured(options.output, options.output, capture.steps, started, voice)
    if replay is None:
        voice.say("next-port", path=options.output)
    else:
        _tell_examined(replay, voice)
        voice.say("next-compare", reference=options.reference, path=options.output)
        replay.close()
    return 0


def _expectation(
    options: argparse.Namespace, prepared: Run, session: Options
) -> Optional[Callable[[Sink, int, float], None]]:
    """What is measured of the reference's own rounding behind its capture, if that was asked for."""
    from aligner.replay.expectation import Expectation

    if not (options.truth or options.expect):
        return None
    expectation = Expectation(
        prepared.adapter,
        prepared.model,
        prepared.step,
        range(prepared.count),
        session.seed,
        session.silence_dropout,
        options.truth,
        tuple(options.expect),
    )
    return partial(expectation.measure, options.output)


def _tell_examined(replay: Replay, voice: Voice) -> None:
    """What the forced pass and the trials came to."""
    found = replay.examined
    if found is not None:
        facts = {"checked": found.checked, "wrong": found.wrong, "seconds": f"{found.seconds:.1f}"}
        voice.say("forced-told", **facts)
        if found.trials:
            voice.say("trials-told", trials=found.trials, seconds=f"{found.trying:.1f}", confirmed=found.confirmed)


def _prepare(
    options: argparse.Namespace, target: targets.Target, seed: int, voice: Voice
) -> tuple[Run, Optional[Replay]]:
    """The model with what it will be called on."""
    from aligner.capture import factory as building
    from aligner.capture.task import Task, from_npz

    inputs = from_npz(options.inputs) if options.inputs else None
    try:
        adapter, task = building.build(lambda: targets.load(target), options.framework, seed)
    except AlignerError:
        raise
    except (Exception, SystemExit) as error:  # leaving with 0 would say that the capture went well
        voice.traceback(error)
        raise CaptureError("factory-raised", target=target, error=type(error).__name__) from error
    if inputs is not None:
        task = Task(task.model, inputs)
    if not options.reference:
        prepared = building.prepare(adapter, task, options.device, options.steps, options.mode)
        adapter.set_training(prepared.model, options.train)
        replay = None
    else:
        prepared = building.prepare(adapter, task, options.device, options.steps, options.mode)
        replay = _replay(options, adapter.name, prepared.model, voice)
        if inputs is None:
            steps = _steps(replay, voice)[: options.steps]
            prepared = building.Run(adapter, prepared.model, [replay.arguments(step) for step in steps], options.mode)
    if not prepared.steps:
        raise CaptureError("inputs-missing", target=target)
    return prepared, replay


def _steps(replay: Replay, voice: Voice) -> list[int]:
    """The reference's steps; without those that it ran on weights of which its dump has no copy, and that is told."""
    every, unmoved = list(replay.steps), set(replay.unmoved_steps)
    usable = list(takewhile(unmoved.__contains__, every))  # steps are counted: none may be left out between two
    if not usable or len(usable) == len(every):
        return every
    left = [step for step in every if step not in usable]
    voice.say("steps-left-out", count=len(left), step=left[0], reference=str(replay.reference.path), run=len(usable))
    return usable


def _run_steps(prepared: Run, capture: Any, voice: Voice) -> None:
    """All steps under the capture; an exception of the net keeps its own traceback, and what came before is kept."""
    with prepared.adapter.running(prepared.model, prepared.mode), capture:
        for index in range(prepared.count):
            try:
                prepared.step(index)
            except (Exception, SystemExit) as error:
                voice.traceback(error)
                capture.raised = error
                if (
                    prepared.adapter.environment(prepared.model)["mode"] == "graph"
                ):  # with wrong shapes it is not even compiled: nothing inside was seen
                    try:
                        prepared.step(index, "pynative")
                    except Exception as again:  # says in which line
                        capture.raised = again
                facts = {"error": type(error).__name__, "records": capture.records, "path": capture.path}
                raise CaptureError("model-raised", **facts) from error


def _replay(options: argparse.Namespace, framework: str, model: object, voice: Voice) -> Replay:
    """The reference's weights in the port; says what went where by other than its name."""
    from aligner.compare.layer_map import check_free, read_map
    from aligner.dump.reader import open_dump
    from aligner.registry import load
    from aligner.replay.form_words import forms
    from aligner.replay.replay import Replay
    from aligner.replay.transfer import left_over

    dump = open_dump(options.reference)
    dump.verify()
    replay = Replay(dump, load(framework), model)
    rules = read_map(options.map)
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
    replay.set_training(True if options.train else False if options.eval else None)
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


def _estimate(prepared: Run, session: Options, options: argparse.Namespace, voice: Voice) -> int:
    """Run once into a sink that only counts."""
    from aligner.capture.factory import free_space
    from aligner.capture.session import Capture
    from aligner.capture.tally import Tally

    tally = Tally()
    capture = Capture(prepared.adapter, prepared.model, "", session, voice.progress, sink=tally)
    _run_steps(prepared, capture, voice)
    facts = {
        "model": type(prepared.model).__name__,
        "steps": capture.steps,
        "records": tally.records,
        "size": size(tally.bytes_written),
        "free": size(free_space(options.output or ".")),
    }
    print(messages.text("estimate", options.lang, facts))
    return 0


def _known(prepared: Run, output: str) -> dict[str, object]:
    """What can be said of the dump's size before the net has run."""
    from aligner.capture.factory import free_space
    from aligner.dtypes import DTYPES

    parameters = [p for p in prepared.adapter.parameters(prepared.model) if p.dtype in DTYPES]
    return {
        "model": type(prepared.model).__name__,
        "layers": sum(1 for _ in prepared.adapter.layers(prepared.model)),
        "parameters": size(sum(math.prod(p.shape) * DTYPES[p.dtype].storage.itemsize for p in parameters)),
        "free": size(free_space(output)),
    }
