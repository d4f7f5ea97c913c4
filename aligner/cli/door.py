"""What both doors of `aligner capture` do alike: options of the session, a look at the output, the closing lines."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Optional

from aligner import messages
from aligner.capture.progress import size
from aligner.cli.voice import Voice
from aligner.dump.place import check_place
from aligner.errors import Interrupted, UsageError
from aligner.record import display

if TYPE_CHECKING:
    from aligner.capture.session import Options


def session_options(
    options: argparse.Namespace,
    *,
    seed: Optional[int],
    steps: Optional[int],
    silence: bool,
    arguments: Sequence[str] = (),
) -> Options:
    from aligner.capture.session import Options

    return Options(
        layers=options.layers or ["*"],
        steps=steps,
        weights=not options.no_weights,
        silence_dropout=silence,
        gradients=options.gradients,
        force=options.force,
        seed=seed,
        header={"command": options.command, "target": _target(options, arguments)},
        **({} if options.search is None else {"search": options.search}),
    )


def _target(options: argparse.Namespace, arguments: Sequence[str]) -> str:
    """What was captured, whatever the working directory was: two captures of one program have it in common."""
    target = options.module or options.target
    file = not options.module and os.path.exists(target.rpartition(":")[0] or target)
    place = os.path.abspath(target) if file else target
    model = [f"--model {options.model}"] if options.model else []
    return " ".join([place, *arguments, *model])


def check_output(options: argparse.Namespace) -> None:
    """Before anything runs for minutes: may the dump be written at all?"""
    path = options.output
    if not path:
        return
    there = options.force and options.reference and os.path.exists(path) and os.path.exists(options.reference)
    if there and os.path.samefile(path, options.reference):
        raise UsageError("output-is-reference", path=path)
    check_place(path, options.force)


@contextmanager
def interruptible(path: str, begun: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C in here names the dump that it ended, if one had been begun."""
    try:
        yield
    except KeyboardInterrupt as error:
        if begun():
            raise Interrupted("interrupted-dump", path=path) from error
        raise


def tell_captured(path: str, name: str, steps: int, started: float, voice: Voice) -> None:
    """The closing lines: what is in the dump at `path`, which the user calls `name`, and every caution."""
    from aligner.dump.reader import open_dump

    with open_dump(path) as dump:
        facts = {
            "path": name,
            "records": len(dump.entries),
            "layers": len({call.layer for call in dump.calls}),
            "steps": max(steps, len({call.step for call in dump.calls})),  # one that was begun is told as well
            "size": size(os.path.getsize(path)),
            "seconds": f"{time.monotonic() - started:.1f}",
        }
        voice.say("captured", **facts)
    tell_notes(path, voice)


def tell_notes(path: str, voice: Voice) -> None:
    """Every caution of the dump."""
    from aligner.compare.notes import together
    from aligner.dump.reader import open_dump

    with open_dump(path) as dump:
        for note in together(dump.notes):
            text = messages.text(note.message, voice.language, note.facts)
            voice.say("caution", layer=display(note.layer), text=text)
