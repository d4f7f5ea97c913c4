"""What can go wrong, and the exit code it leads to.

AlignerError
    UsageError          2  options contradict each other, a name is unknown
    CaptureError        2  nothing ran, no layer matched, the factory is missing
    AdapterError        2  a framework is absent or did not load
    ReplayError         2  parameters left over, inputs that do not fit
    IngestError         2  a folder of MindSpore's own dump that cannot be imported
    DumpError           3  not a dump, truncated, damaged, another format
    IncomparableError   3  nothing matched, other inputs, another model

An error is an id and facts; its two lines (what, and what to do) stand in `aligner.messages` in English and
Chinese. `cli.main` is the one place where errors become text and exit codes.
"""

from __future__ import annotations

from aligner import messages


class AlignerError(Exception):
    """Root of all errors a user can cause; `str()` is the English text."""

    exit_code = 2

    def __init__(self, message: str, **facts: object) -> None:
        self.message = message
        self.facts = facts
        super().__init__(messages.text(message, "en", facts))

    def text(self, language: str) -> str:
        """The message in `language` ("en" or "zh")."""
        return messages.text(self.message, language, self.facts)


class UsageError(AlignerError):
    """The command line or a call's arguments cannot be meant like this."""


class CaptureError(AlignerError):
    """A capture could not start or ended with nothing in it."""


class AdapterError(AlignerError):
    """A framework's adapter is unknown, not installed, or failed to load."""


class ReplayError(AlignerError):
    """The reference's weights or inputs do not fit the port."""


class IngestError(AlignerError):
    """Files that MindSpore dumped by itself cannot be imported."""


class DumpError(AlignerError):
    """A dump cannot be read or written."""

    exit_code = 3


class IncomparableError(AlignerError):
    """Two dumps have nothing that can be compared."""

    exit_code = 3
