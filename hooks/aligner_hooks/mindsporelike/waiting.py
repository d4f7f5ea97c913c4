"""To be called before MindSpore is imported, which is not imported here."""

from __future__ import annotations

import glob
import os

BLOCKING = "MS_DEV_LAUNCH_BLOCKING"
"""Heeded before the first operator only; whoever has set it has his way."""

NPUS = "/dev/davinci*"


def at_once() -> None:
    """Have MindSpore run each operator when it is called, where there is no NPU.

    A capture reads every value. To wait for another thread each time costs fifteen times what the kernels of small
    values do. The numbers are the same.
    """
    if not glob.glob(NPUS):
        os.environ.setdefault(BLOCKING, "1")
