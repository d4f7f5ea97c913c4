"""`aligner compare --repro`: a program for each layer that is wrong by itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from aligner import messages
from aligner.compare.reproduction import reproduction, wrong_layers
from aligner.dump.reader import open_dump
from aligner.errors import UsageError
from aligner.programs.repro_file import Written, write
from aligner.record import display

if TYPE_CHECKING:
    from aligner.compare.verdict import Comparison, Origin

Wanted = Sequence[tuple[str, "Optional[Origin]"]]


def write_repros(comparison: Comparison, options: argparse.Namespace) -> None:
    """Write them into the folder and tell of each on stderr.

    One layer that was asked for must be written; of many, those that cannot be are told of and left out.

    Raises:
        UsageError: the layer that was asked for is unknown or cannot be run by itself, or no file could be written.
    """
    framework = str(comparison.port.get("framework"))
    wanted = _wanted(comparison, options)
    if not wanted:
        _tell("repro-none", options)
    failed: list[UsageError] = []
    with open_dump(options.reference) as reference, open_dump(options.port) as port:
        for layer, origin in wanted:
            try:
                made = write(reproduction(comparison, layer, reference, port, origin), Path(options.repro))
            except UsageError as error:
                if options.repro_layer is not None or error.message == "repro-folder":
                    raise
                failed.append(error)
            else:
                _told(made, framework, options)
    if failed and len(failed) == len(wanted) and failed[0].message in ("repro-exists", "repro-unwritten"):
        raise failed[0]
    for reason in failed:
        print(reason.text(options.lang), file=sys.stderr)


def _wanted(comparison: Comparison, options: argparse.Namespace) -> Wanted:
    """The layer that was named, by either side's path, else all that are wrong by themselves."""
    wrong = wrong_layers(comparison)
    name = options.repro_layer
    if name is None:
        homes: dict[str, Optional[Origin]] = {
            (one.layer if one.place is None else one.place.owner): one for one in wrong
        }
        return [*homes.items()]
    name = "" if name == "(net)" else name
    ports = {pair.port: pair.reference for pair in comparison.layers}
    known = {pair.reference for pair in comparison.layers}
    layer = name if name in known else ports.get(name)
    if layer is None:
        near = get_close_matches(name, sorted(known), 3, 0.5)
        hint = messages.text("did-you-mean", options.lang, {"names": ", ".join(near)}) if near else ""
        raise UsageError("show-layer-unknown", layer=name, dump=options.reference, count=len(known), hint=hint)
    return [(layer, next((origin for origin in wrong if origin.layer == layer), None))]


def _told(made: Written, framework: str, options: argparse.Namespace) -> None:
    facts = {"script": made.script, "layer": display(made.layer), "framework": framework, "reason": made.reason}
    incomplete = "repro-refused" if made.refused else "repro-unfinished"
    _tell("repro-written" if made.complete else incomplete, options, **facts)


def _tell(message: str, options: argparse.Namespace, **facts: object) -> None:
    if not options.quiet:
        print(messages.text(message, options.lang, facts), file=sys.stderr)
