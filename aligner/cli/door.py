"""What both doors of `aligner capture` do alike: options of the session, a look at the output, the closing lines."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from typing import TYPE_CHECKING, Optional

from aligner import messages
from aligner.capture.progress import size
from aligner.cli.voice import Voice
from aligner.errors import DumpError, UsageError
from aligner.record import display

if TYPE_CHECKING:
    from aligner.capture.session import Options


def session_options(
    options: argparse.Namespace, *, seed: Optional[int], steps: Optional[int], silence: bool
) -> Options:
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


def check_output(options: argparse.Namespace) -> None:
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


def tell_captured(path: str, name: str, steps: int, started: float, voice: Voice) -> None:
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
    tell_notes(path, voice)


def tell_notes(path: str, voice: Voice) -> None:
    """Every caution of the dump."""
    from aligner.compare.notes import together
    from aligner.dump.reader import open_dump

    with open_dump(path) as dump:
        for note in together(dump.notes):
            text = messages.text(note.message, voice.language, note.facts)
            voice.say("caution", layer=display(note.layer), text=text)
