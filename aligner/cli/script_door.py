"""The script door of `aligner capture`: the user's script runs as it would without us, and is recorded."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Optional

from aligner.capture.script import ImportWatcher, Script, run, wait_for_threads
from aligner.capture.tracebacks import forget_us, hidden
from aligner.cli.door import check_output, interruptible, session_options, tell_captured
from aligner.cli.estimating import tell_estimate, to_measure
from aligner.cli.replaying import check_replay, replayed, steps_of, tell_examined, unwrapped
from aligner.cli.voice import Voice
from aligner.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from aligner.adapter import Adapter
    from aligner.capture.progress import Progress
    from aligner.capture.session import Capture, Options
    from aligner.capture.tally import Tally
    from aligner.capture.watch import Make, Watch
    from aligner.replay.replay import Replay


_FACTORY_ONLY = (
    "mode",
    "inputs",
    "device",
    "train",
    "eval",
    "keep_dropout",
    "truth",
    "expect",
)


def capture_script(options: argparse.Namespace, wanted: Script, stream_errors: tuple[str, str]) -> NoReturn:
    """Run the user's script and leave as it would.

    Raises:
        SystemExit: with the script's own exit code.
        Exception: the script ended well and the capture did not.
    """
    from aligner.capture.watch import Watch
    from aligner.registry import available, prepare

    for name in _FACTORY_ONLY:
        if getattr(options, name):
            raise UsageError("option-needs-factory", option=f"--{name.replace('_', '-')}")
    check_replay(options)
    check_output(options)
    # What is compiled tells of no gradient: it is run as the Python that it is, unless the user has said otherwise.
    eager = options.gradients and os.environ.setdefault("MS_JIT", "0") == "0"
    voice = Voice(options.quiet, options.lang)
    started = time.monotonic()
    steps = options.steps or (steps_of(options.reference) if options.reference else 1)
    measured = to_measure(steps, options.gradients) if options.estimate else steps
    voice.progress.steps = steps

    def session() -> Options:  # made late: it imports numpy, and the script may want to set things up before that
        silence = options.silence_dropout
        return session_options(options, seed=options.seed, steps=measured, silence=silence, arguments=wanted.arguments)

    names = [options.framework] if options.framework else sorted(available())
    place = os.path.abspath(options.output or "")  # the script may change its folder
    replays: list[Replay] = []
    tallies: list[Tally] = []
    make: Optional[Make] = partial(_replayed, options, voice, replays) if options.reference else None
    make = partial(_tallied, tallies) if options.estimate else make
    chosen = {"chosen": partial(_chosen, options.reference)} if options.reference else {}
    watch = Watch(place, session, options.model, voice.progress, make, eager, options.estimate, **chosen)
    for stream, errors in zip((sys.stdout, sys.stderr), stream_errors):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=errors)  # the script prints as it would without us
    process = os.getpid()
    code = _run_script(wanted, ImportWatcher(names, watch.on_import, prepare), voice, watch)
    if os.getpid() == process:  # else the script has forked, and this is the end of the child
        with interruptible(options.output, lambda: watch.capture is not None and watch.capture.began):
            watch.close()
            if tallies and code == 0 and watch.failure is None and watch.capture is not None:
                done = watch.capture.steps
                tell_estimate(tallies[0], watch.captured, steps, done, options.gradients, options)
            else:
                _tell(watch, wanted, options, voice, code, started)
            for replay in replays:
                tell_examined(replay, voice)
                voice.say("next-compare", reference=options.reference, path=options.output)
                replay.close()
    raise SystemExit(code)


def _chosen(reference: str, adapter: Adapter, nets: Mapping[str, object]) -> Mapping[str, object]:
    """Which nets are captured together, as the reference's are."""
    from aligner.capture.beside import renamed
    from aligner.dump.reader import open_dump

    with open_dump(reference) as dump:
        return renamed(dump, adapter, nets)


def _replayed(
    options: argparse.Namespace,
    voice: Voice,
    replays: list[Replay],
    adapter: Adapter,
    model: object,
    path: str,
    session: Options,
    progress: Progress,
) -> Capture:
    """A capture of the script's model on the reference's weights, each of its calls on the reference's inputs."""
    session.operations = True
    if options.gradients:
        model = unwrapped(options.reference, adapter, model)
    replay = replayed(options, adapter.name, model, voice, own_mode=True)
    replays.append(replay)
    replay.begins()
    return replay.capture(path, session, progress, forced=not options.free_only)


def _tallied(
    tallies: list[Tally], adapter: Adapter, model: object, path: str, session: Options, progress: Progress
) -> Capture:
    """A capture of the script's model that only counts."""
    from aligner.capture.session import Capture
    from aligner.capture.tally import Tally

    tallies.append(Tally())
    return Capture(adapter, model, path, session, progress, sink=tallies[-1])


def _run_script(wanted: Script, watcher: ImportWatcher, voice: Voice, watch: Watch) -> int:
    """What Python does with what comes out of a script: exit codes, and the traceback on stderr."""
    with watcher, hidden():
        raised = _raised(lambda: run(wanted))
        code = 0 if raised is None else _fate(raised)
        if raised is not None:
            voice.hint(raised)
        watch.raised = raised
        raised = _raised(wait_for_threads)
        code = code if raised is None else _fate(raised)
    with suppress(OSError, ValueError):  # what cannot be printed stays where it is, and Python says so at its end
        print(end="", flush=True)
    return code


def _raised(action: Callable[[], None]) -> Optional[BaseException]:
    """What it raised; looked at when it is no longer being handled, or it would be the context of what comes next."""
    try:
        action()
    except BaseException as error:
        return error
    return None


def _fate(error: BaseException) -> int:
    """The exit code, when the message or the traceback has been printed."""
    forget_us(error)
    if not isinstance(error, SystemExit):
        another = _raised(lambda: sys.excepthook(type(error), error, error.__traceback__))
        if isinstance(another, SystemExit):
            return _fate(another)
        if another is not None:
            forget_us(another)
            print("Error in sys.excepthook:", file=sys.stderr)
            sys.__excepthook__(type(another), another, another.__traceback__)
            print("\nOriginal exception was:", file=sys.stderr)
            sys.__excepthook__(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _tell(watch: Watch, wanted: Script, options: argparse.Namespace, voice: Voice, code: int, started: float) -> None:
    """What was captured and what was not.

    Raises:
        Exception: what went wrong with the capture, when the script itself has ended well.
    """
    if code == 0:
        _tell_all(watch, wanted, options, voice, started)
        return
    if watch.failure is not None:
        voice.failure(watch.failure)
    if watch.capture is not None:  # else the script failed before any model ran
        try:
            _tell_captured(watch, options, voice, started)
        except Exception as error:
            voice.failure(error)


def _tell_all(watch: Watch, wanted: Script, options: argparse.Namespace, voice: Voice, started: float) -> None:
    if watch.failure is not None:
        raise watch.failure
    if watch.capture is None:
        ran = [*watch.ran, *watch.bare]
        if options.model and ran:
            raise CaptureError("model-not-found", wanted=options.model, script=wanted.name, ran=", ".join(ran))
        if watch.bare:
            raise CaptureError("only-bare-ran", script=wanted.name, ran=", ".join(ran), first=ran[0])
        raise CaptureError("no-model-ran", script=wanted.name)
    _tell_captured(watch, options, voice, started)
    if watch.others:
        voice.say("other-models-ran", model=watch.captured, others=", ".join(watch.others))
    if watch.unobserved:
        voice.say("more-steps-ran", steps=watch.capture.steps, model=watch.captured)
    if not options.reference:
        voice.say("next-port", path=options.output)


def _tell_captured(watch: Watch, options: argparse.Namespace, voice: Voice, started: float) -> None:
    if watch.capture is not None and os.path.exists(watch.path):
        tell_captured(watch.path, options.output, watch.capture.steps, started, voice)
