"""The factory door of `aligner capture`: build the net, run it (on the reference's data), record it."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Optional

from aligner.capture import target as targets
from aligner.capture.progress import size
from aligner.cli.building import built
from aligner.cli.door import check_output, interruptible, session_options, tell_captured
from aligner.cli.estimating import tell_estimate, to_measure
from aligner.cli.replaying import check_replay, replayed, tell_examined
from aligner.cli.voice import Voice
from aligner.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from aligner.capture.factory import Run
    from aligner.capture.session import Options
    from aligner.capture.sink import Sink
    from aligner.capture.task import Task
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
    check_replay(options)
    check_output(options)
    seed = 0 if options.seed is None else options.seed
    prepared, replay = _prepare(options, target, seed, voice)
    session = session_options(options, seed=seed, steps=None, silence=not options.keep_dropout)
    session.operations = True
    session.follow = True
    session.gradients = prepared.task is not None
    session.loss = prepared.task.loss if prepared.task is not None else None
    if options.gradients and not session.gradients:
        raise CaptureError("gradients-need-loss", target=target)
    if options.inputs:
        session.header = {**session.header, "inputs": options.inputs}
    prepared.adapter.seed(seed)
    building.seed_everything(seed)
    voice.progress.steps = prepared.count
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
        tell_examined(replay, voice)
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


def _prepare(
    options: argparse.Namespace, target: targets.Target, seed: int, voice: Voice
) -> tuple[Run, Optional[Replay]]:
    """The model with what it will be called on."""
    from aligner.capture import factory
    from aligner.capture.task import Task, from_npz

    inputs = from_npz(options.inputs) if options.inputs else None
    adapter, task = built(target, options.framework, seed, voice)
    if inputs is not None:
        task = Task(task.model, inputs)
    if not options.reference:
        prepared = factory.prepare(adapter, task, options.device, options.steps, options.mode)
        adapter.set_training(prepared.model, options.train or (task.optimizer is not None and not options.eval))
        replay = None
    else:
        prepared = factory.prepare(adapter, task, options.device, options.steps, options.mode)
        replay = replayed(options, adapter.name, prepared.model, voice)
        if inputs is None:
            steps = _steps(replay, voice)[: options.steps]
            if task.trains:
                prepared = _as_trained(prepared, replay, task, steps)
            else:
                rows = [replay.arguments(step) for step in steps]
                prepared = factory.Run(adapter, prepared.model, rows, options.mode)
    if not prepared.steps:
        raise CaptureError("inputs-missing", target=target)
    return prepared, replay


def _as_trained(prepared: Run, replay: Replay, task: Task, steps: Sequence[int]) -> Run:
    """The port's training on the reference's batches; each of its updates is made of as many as the reference's.

    Raises:
        CaptureError: the reference is no training.
    """
    own = prepared.steps[0][0][-1] if prepared.steps else None
    rows = [replay.labelled(step, own) for step in steps]
    sizes = {len(row) for row in rows}
    if sizes - {task.accumulate}:
        found = "none" if sizes == {0} else ", ".join(map(str, sorted(sizes)))
        raise CaptureError(
            "training-other-batches", reference=str(replay.reference.path), found=found, accumulate=task.accumulate
        )
    return replace(prepared, steps=[one for row in rows for one in row], wanted=len(steps), task=task)


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
    with prepared.surroundings(), capture:
        step = prepared.stepping(capture.lost)
        for index in range(prepared.count):
            try:
                step(index)
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


def _estimate(prepared: Run, session: Options, options: argparse.Namespace, voice: Voice) -> int:
    """Run into a sink that only counts; of a training the first steps alone."""
    from aligner.capture.session import Capture
    from aligner.capture.tally import Tally

    tally, trains = Tally(), prepared.task is not None
    measured = replace(prepared, wanted=to_measure(prepared.count, trains))
    capture = Capture(prepared.adapter, prepared.model, "", session, voice.progress, sink=tally)
    _run_steps(measured, capture, voice)
    tell_estimate(tally, type(prepared.model).__name__, prepared.count, capture.steps, trains, options)
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
