"""What a long command says while it works: on stderr, in the user's language, nothing with --quiet."""

from __future__ import annotations

import sys
import traceback

from aligner import messages
from aligner.capture.progress import Progress
from aligner.errors import told


class Voice:
    """Sentences and the progress line; the line is taken away before a sentence is printed."""

    def __init__(self, quiet: bool, language: str) -> None:
        self.quiet = quiet or sys.stderr is None  # it was closed before we began: print() would take stdout
        self.language = language
        self.progress = Progress(None if self.quiet else sys.stderr, language)

    def say(self, message: str, **facts: object) -> None:
        """Print one sentence of the catalogue."""
        if not self.quiet:
            self.progress.clear()
            print(messages.text(message, self.language, facts), file=sys.stderr)

    def failure(self, error: BaseException) -> None:
        """Print an error of ours, also with --quiet, where the user's own decides how the command ends."""
        if sys.stderr is not None:
            self.progress.clear()
            print(f"aligner: error: {told(error, self.language)}", file=sys.stderr)

    def traceback(self, error: BaseException) -> None:
        """Print the user's own traceback, without our frames; also with --quiet, it is his."""
        from aligner.capture.tracebacks import forget_us

        self.progress.clear()
        forget_us(error)
        traceback.print_exception(type(error), error, error.__traceback__)
        self.hint(error)

    def hint(self, error: BaseException) -> None:
        """What the traceback of a common mistake does not say."""
        from aligner.capture.rewriting import lost_name
        from aligner.capture.tracebacks import mixed_mindtorchs, torch_is_elsewhere

        packages = mixed_mindtorchs(error)
        if packages:
            self.say("mindtorch-twice", packages=packages)
        if torch_is_elsewhere(error):
            self.say("torch-is-elsewhere", found=getattr(sys.modules["torch"], "__name__", "?"))
        name = lost_name(error)
        if name:
            self.say("lost-in-rewriting", name=name)
