"""The net that a factory of the user's builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from aligner.errors import AlignerError, CaptureError

if TYPE_CHECKING:
    from aligner.adapter import Adapter
    from aligner.capture.target import Target
    from aligner.capture.task import Task
    from aligner.cli.voice import Voice


def built(target: Target, framework: Optional[str], seed: int, voice: Voice) -> tuple[Adapter, Task]:
    """The adapter and what the factory returned; the traceback of one that raises is the user's to see.

    Raises:
        CaptureError: it raised.
    """
    from aligner.capture import factory
    from aligner.capture import target as targets

    try:
        return factory.build(lambda: targets.load(target), framework, seed)
    except AlignerError:
        raise
    except (Exception, SystemExit) as error:  # leaving with 0 would say that all went well
        voice.traceback(error)
        raise CaptureError("factory-raised", target=target, error=type(error).__name__) from error
