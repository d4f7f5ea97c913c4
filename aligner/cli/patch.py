"""`aligner compare --patch`: the proved edits of the port's code as one unified diff."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aligner import messages
from aligner.errors import UsageError
from aligner.report.patch import patch

if TYPE_CHECKING:
    from aligner.compare.verdict import Comparison

OUT = "-"
"""Stands for stdout, where the diff takes the report's place."""


def check(options: argparse.Namespace) -> None:
    """That the diff can be written.

    Raises:
        UsageError: there is such a file already, no such folder, or two things are to go to stdout.
    """
    if not os.path.isdir(options.patch_folder):
        raise UsageError("patch-folder", folder=options.patch_folder)
    if options.patch == OUT and options.json:
        raise UsageError("patch-and-json")
    if options.patch != OUT and os.path.exists(options.patch):
        raise UsageError("patch-exists", path=options.patch)


def write_patch(comparison: Comparison, options: argparse.Namespace) -> None:
    """Write the diff, and tell on stderr what it changes and what it leaves out.

    Raises:
        UsageError: it cannot be written.
    """
    made = patch(comparison, Path(options.patch_folder))
    for message, facts in made.left:
        print(messages.text(message, options.lang, facts), file=sys.stderr)
    if options.patch == OUT:
        sys.stdout.write(made.text)
    elif made.text:
        try:
            with open(options.patch, "x", encoding="utf-8", newline="") as opened:
                opened.write(made.text)
        except OSError as error:
            raise UsageError("patch-unwritten", path=options.patch, error=error.strerror or str(error)) from error
    if options.quiet or (made.left and not made.text):
        return
    facts = {"path": options.patch, "files": ", ".join(made.files), "folder": os.path.realpath(options.patch_folder)}
    word = "patch-none" if not made.text else "patch-shown" if options.patch == OUT else "patch-written"
    print(messages.text(word, options.lang, facts), file=sys.stderr)
