"""What can go wrong, and the exit code it leads to.

AlignerError
    UsageError          2  options contradict each other, a name is unknown
    CaptureError        2  nothing ran, no layer matched, the factory is missing
    AdapterError        2  a framework is absent or did not load
    ReplayError         2  parameters left over, inputs that do not fit
    IngestError         2  a folder of MindSpore's own dump that cannot be imported
    CheckpointError     3  a file of weights that cannot be read
        ConvertError    2  one that cannot be written as it was asked for
    DumpError           3  not a dump, truncated, damaged, another format; a disk that was full before its end
        OutputError     2  no dump may be written there: it exists, it is a folder, there is no folder
    IncomparableError   3  nothing matched, other inputs, another model
    Interrupted       130  Ctrl-C; names the dump that it ended

An error is an id and facts; its two lines (what, and what to do) stand in `aligner.messages` in English and
Chinese. `cli.main` is the one place where errors become text and exit codes.
"""

from __future__ import annotations

import sys

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


class Reason(ValueError):
    """Why something could not be done, by an id of aligner.messages.reasons; `str()` is the English text."""

    def __init__(self, message: str, *parts: object) -> None:
        self.told = "|".join((message, *(str(part).replace("|", "/") for part in parts)))
        """What messages and dumps hold of it: it is said in any language later."""
        super().__init__(messages.said(self.told, "en"))


def form_of(error: BaseException) -> str:
    """What Python says of something in another form, as code: its English words are left to the traceback."""
    missing = error.args[0] if isinstance(error, KeyError) and error.args else None
    return f"{type(error).__name__} {missing[:80]!r}" if isinstance(missing, str) else type(error).__name__


class LateError(Exception):
    """A kernel of the net's has failed meanwhile, and reading a value was the first to be told (`__cause__`)."""


def because(error: BaseException) -> str:
    """What a message's {reason} is: the id of a reason of ours, the first line of anybody else's words."""
    if isinstance(error, Reason):
        return error.told
    return (str(error).splitlines() or [type(error).__name__])[0]


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


class CheckpointError(AlignerError):
    """A file of weights cannot be read."""

    exit_code = 3


class ConvertError(CheckpointError):
    """A file of weights cannot be written as it was asked for."""

    exit_code = 2


class DumpError(AlignerError):
    """A dump cannot be read or written."""

    exit_code = 3


class OutputError(DumpError):
    """A dump cannot be written where it was asked for: another name or place, and nothing is lost."""

    exit_code = 2


class IncomparableError(AlignerError):
    """Two dumps have nothing that can be compared."""

    exit_code = 3


class Interrupted(AlignerError):
    """Somebody pressed Ctrl-C while a dump was being written."""

    exit_code = 130


def told(error: BaseException, language: str) -> str:
    """What to print of an error, also of one that nobody has foreseen."""
    if isinstance(error, AlignerError):
        return error.text(language)
    return messages.text("internal-error", language, {"reason": f"{type(error).__name__}: {error}".rstrip(": ")})


def beside(error: BaseException, ours: BaseException, language: str) -> None:
    """Tell of an error of ours while another one is under way, which stays the one that is raised.

    It becomes a note of the other's traceback; on stderr it stands where there will be none.
    """
    text = f"aligner: error: {told(ours, language)}"
    add = getattr(error, "add_note", None)  # from Python 3.11 on
    if add is not None and isinstance(error, Exception) and not isinstance(error, AlignerError):
        add(text)
    elif sys.stderr is not None:  # it may have been closed
        print(text, file=sys.stderr)  # noqa: T201  # see above
