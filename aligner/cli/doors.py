"""The two doors of `aligner capture`: a factory that we call, and a script that runs as it would without us."""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Optional

from aligner import messages
from aligner.capture import target as targets
from aligner.capture.progress import size
from aligner.capture.script import ImportWatcher, Script, check, run, wait_for_threads
from aligner.capture.tracebacks import forget_us, hidden
from aligner.cli.voice import Voice
from aligner.errors import AlignerError, CaptureError, DumpError, ReplayError, UsageError
from aligner.record import display

if TYPE_CHECKING:
    from collections.abc import Callable

    from aligner.capture.factory import Run
    from aligner.capture.session import Options
    from aligner.capture.watch import Watch
    from aligner.replay.replay import Replay


def factory(options: argparse.Namespace, target: targets.Target) -> int:
    """Build, run and record; with --from on the reference's weights and inputs."""
    from aligner.capture import factory as building
    from aligner.capture.session import Capture

    voice = Voice(options.quiet, options.lang)
    started = time.monotonic()
    for name in ("model", "silence_dropout"):
        if getattr(options, name):
            raise UsageError("option-needs-script", option=f"--{name.replace('_', '-')}")
    for name in ("rename", "allow_missing"):
        if getattr(options, name) and not options.reference:
            raise UsageError("option-needs-from", option=f"--{name.replace('_', '-')}")
    _check_output(options)
    seed = 0 if options.seed is None else options.seed
    prepared, replay = _prepare(options, target, seed, voice)
    session = _session(options, seed=seed, steps=None, silence=not options.keep_dropout)
    prepared.adapter.seed(seed)
    building.seed_everything(seed)
    if options.estimate:
        return _estimate(prepared, session, options, voice)
    voice.say("known-size", **_known(prepared, options.output))
    if replay is None:
        capture = Capture(prepared.adapter, prepared.model, options.output, session, voice.progress)
    else:
        capture = replay.capture(options.output, session, voice.progress)
    _run_steps(prepared, capture, voice)
    _captured(options.output, options.output, capture.steps, started, voice)
    if replay is None:
        voice.say("next-port", path=options.output)
    else:
        voice.say("next-compare", reference=options.reference, path=options.output)
        replay.close()
    return 0


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
        prepared = building.prepare(adapter, task, options.device, options.steps)
        adapter.set_training(prepared.model, options.train)
        replay = None
    else:
        prepared = building.prepare(adapter, task, options.device, options.steps)
        replay = _replay(options, adapter.name, prepared.model, voice)
        if inputs is None:
            steps = list(replay.steps)[: options.steps]
            prepared = building.Run(adapter, prepared.model, [replay.arguments(step) for step in steps])
    if not prepared.steps:
        raise CaptureError("inputs-missing", target=target)
    return prepared, replay


def _session(options: argparse.Namespace, *, seed: Optional[int], steps: Optional[int], silence: bool) -> Options:
    from aligner.capture.session import Options

    return Options(
        layers=options.layers or ["*"],
        steps=steps,
        weights=not options.no_weights,
        silence_dropout=silence,
        force=options.force,
        seed=seed,
        header={"command": ["aligner", *sys.argv[1:]]},
    )


def _check_output(options: argparse.Namespace) -> None:
    """Before anything runs for minutes: may the dump be written at all?"""
    path = options.output
    if path is None:
        return
    if os.path.exists(path) and not options.force:
        raise DumpError("dump-exists", path=path)
    if options.reference and os.path.exists(path) and os.path.samefile(path, options.reference):
        raise UsageError("output-is-reference", path=path)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise DumpError("dump-no-folder", path=path, folder=folder)
    if not os.access(folder, os.W_OK):
        raise DumpError("dump-not-writable", path=path, folder=folder, reason=os.strerror(errno.EACCES))


def _run_steps(prepared: Run, capture: Any, voice: Voice) -> None:
    """All steps under the capture; an exception of the net keeps its own traceback, and what came before is kept."""
    with prepared.adapter.running(prepared.model), capture:
        for index in range(len(prepared.steps)):
            try:
                prepared.step(index)
            except (Exception, SystemExit) as error:
                voice.traceback(error)
                facts = {"error": type(error).__name__, "records": capture.records, "path": capture.path}
                raise CaptureError("model-raised", **facts) from error


def _replay(options: argparse.Namespace, framework: str, model: object, voice: Voice) -> Replay:
    """The reference's weights in the port; says what went where by other than its name."""
    from aligner.dump.reader import open_dump
    from aligner.registry import load
    from aligner.replay.replay import Replay
    from aligner.replay.transfer import left_over

    dump = open_dump(options.reference)
    dump.verify()
    replay = Replay(dump, load(framework), model)
    replay.load(dict(_rename(text) for text in options.rename), options.allow_missing)
    replay.set_training(True if options.train else False if options.eval else None)
    transfer = replay.transfer
    structure = sum(match.by == "structure" for match in transfer.matches)
    count = len(transfer.matches)
    facts = {"count": count, "named": count - structure, "structure": structure, "reference": options.reference}
    voice.say("weights-loaded", **facts)
    for reference, port, sure in transfer.layers:
        if reference != port:
            facts = {"reference": display(reference), "port": display(port), "confidence": f"{sure:.1f}"}
            voice.say("weights-by-structure", **facts)
    if transfer.left_reference or transfer.left_port:
        left = {"left_reference": left_over(transfer.left_reference), "left_port": left_over(transfer.left_port)}
        voice.say("weights-told", **left)
    return replay


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


def _captured(path: str, name: str, steps: int, started: float, voice: Voice) -> None:
    """The closing lines: what is in the dump at `path`, which the user calls `name`, and every caution."""
    from aligner.dump.reader import open_dump

    with open_dump(path) as dump:
        facts = {
            "path": name,
            "records": len(dump.entries),
            "layers": len({call.layer for call in dump.calls}),
            "steps": steps,
            "size": size(os.path.getsize(path)),
            "seconds": f"{time.monotonic() - started:.1f}",
        }
        voice.say("captured", **facts)
        for note in dump.notes:
            text = messages.text(note.message, voice.language, note.facts)
            voice.say("caution", layer=display(note.layer), text=text)


_FACTORY_ONLY = (
    "reference",
    "inputs",
    "device",
    "estimate",
    "train",
    "eval",
    "keep_dropout",
    "rename",
    "allow_missing",
)


def script(options: argparse.Namespace, wanted: Script, stream_errors: tuple[str, str]) -> NoReturn:
    """Run the user's script and leave as it would.

    Raises:
        SystemExit: with the script's own exit code.
        AlignerError: the script ended well and the capture did not.
    """
    from aligner.capture.watch import Watch
    from aligner.registry import available

    for name in _FACTORY_ONLY:
        if getattr(options, name):
            option = "--from" if name == "reference" else f"--{name.replace('_', '-')}"
            raise UsageError("option-needs-factory", option=option)
    check(wanted)
    _check_output(options)
    voice = Voice(options.quiet, options.lang)
    started = time.monotonic()
    steps = options.steps or 1

    def session() -> Options:  # made late: it imports numpy, and the script may want to set things up before that
        return _session(options, seed=options.seed, steps=steps, silence=options.silence_dropout)

    names = [options.framework] if options.framework else sorted(available())
    watch = Watch(os.path.abspath(options.output), session, options.model, voice.progress)  # the script may chdir
    for stream, errors in zip((sys.stdout, sys.stderr), stream_errors):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=errors)  # the script prints as it would without us
    process = os.getpid()
    code = _run_script(wanted, ImportWatcher(names, watch.on_import))
    if os.getpid() == process:  # else the script has forked, and this is the end of the child
        watch.close()
        _tell(watch, wanted, options, voice, code, started)
    raise SystemExit(code)


def _run_script(wanted: Script, watcher: ImportWatcher) -> int:
    """What Python does with what comes out of a script: exit codes, and the traceback on stderr."""
    with watcher, hidden():
        raised = _raised(lambda: run(wanted))
        code = 0 if raised is None else _fate(raised)
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
        AlignerError: what went wrong with the capture, when the script itself has ended well.
    """
    if watch.failure is not None:
        if code == 0 or not isinstance(watch.failure, AlignerError):
            raise watch.failure
        print(f"aligner: error: {watch.failure.text(voice.language)}", file=sys.stderr)
    if watch.capture is None:
        if code == 0 and options.model and watch.ran:
            raise CaptureError("model-not-found", wanted=options.model, script=wanted.name, ran=", ".join(watch.ran))
        if code == 0:
            raise CaptureError("no-model-ran", script=wanted.name)
        return  # the script failed before any model ran
    if not os.path.exists(watch.path):
        return
    _captured(watch.path, options.output, watch.capture.steps, started, voice)
    if code != 0:
        return
    others = [name for name in watch.ran if name != watch.captured]
    if others:
        voice.say("other-models-ran", model=watch.captured, others=", ".join(others))
    if watch.unobserved:
        voice.say("more-steps-ran", steps=watch.capture.steps, model=watch.captured)
    voice.say("next-port", path=options.output)
