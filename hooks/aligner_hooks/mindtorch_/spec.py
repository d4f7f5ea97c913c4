"""Kinds and settings of MindTorch's layers, read as torch's are."""

from __future__ import annotations

from aligner_hooks.mindsporelike import casts
from aligner_hooks.mindsporelike.rewritten import written
from aligner_hooks.mindtorch_.package import package
from aligner_hooks.torchlike.spec import Specs

SPECS = Specs(package().nn, package().home, written=written, switches=tuple(casts.FLAGS.values()))
