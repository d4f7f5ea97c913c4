"""A torch layer's kind and settings in the words of aligner.vocabulary."""

from __future__ import annotations

import torch
from torch import nn

from aligner_hooks.torchlike.spec import Specs

SPECS = Specs(nn, "torch.nn", (torch.jit.ScriptModule,))
read, known_class, type_name = SPECS.read, SPECS.known_class, SPECS.type_name
