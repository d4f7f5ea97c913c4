"""`aligner compare` where one side at least is a checkpoint and no dump: its tensors against those of the other."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from aligner.cli.voice import Voice
from aligner.errors import UsageError
from aligner.report.figures import size

DUMPS_ONLY = ("repro", "repro_layer", "patch", "write_map")
"""Options that ask for something that checkpoints do not have."""


def is_asked_for(options: argparse.Namespace) -> bool:
    """Whether weights are to be compared: one side is a checkpoint, or the user says so of two dumps."""
    from aligner.weights.opening import is_weights

    return bool(options.weights) or any(is_weights(path) for path in (options.reference, options.port))


def run(options: argparse.Namespace) -> int:
    """Compare, report, return the exit code."""
    for name in DUMPS_ONLY:
        if getattr(options, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError("weights-option", option=option, path=options.port)
    from aligner.explain.layouts import EXACT
    from aligner.weights.comparing import compare

    voice = Voice(options.quiet, options.lang)
    comparison = compare(
        options.reference,
        options.port,
        tolerance=EXACT if options.tolerance is None else options.tolerance,
        rule=options.rule,
        map=options.map,
        allow_unmatched=options.allow_unmatched,
        progress=progress(voice, "weights-progress"),
    )
    voice.progress.clear()
    if options.json:
        from aligner.report import weights_json

        weights_json.write(comparison, sys.stdout)
        return comparison.exit_code
    from aligner.report import weights_text
    from aligner.report.terminal import terminal

    shape = terminal(sys.stdout, os.environ, options.lang, options.color)
    weights_text.write(comparison, sys.stdout, shape, None if options.all else options.limit)
    return comparison.exit_code


def progress(voice: Voice, message: str) -> Callable[[int, int], None]:
    """Tells how many bytes are through, on a line that `voice` takes away again."""
    begun = time.monotonic()

    def tell(done: int, total: int) -> None:
        speed = done / max(time.monotonic() - begun, 1e-9)
        voice.progress.say(message, done=size(done), total=size(total), speed=size(speed))

    return tell
