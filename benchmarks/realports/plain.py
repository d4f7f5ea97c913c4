"""Both nets of a pair, run once as they are, without aligner: what a capture's time is set against.

python plain.py NAME; run.py starts it.
"""

from __future__ import annotations

import sys

import mindspore as ms
import pairs
import seen
import torch
from truth import built

if __name__ == "__main__":
    pair = pairs.pair(sys.argv[1])
    net, *given = built(pair.folder / "reference.py")
    inputs = [value for item in given for value in (item if isinstance(item, tuple) else (item,))]
    with torch.no_grad():
        net.eval()(*inputs)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    seen.compute(built(pair.folder / "port.py").set_train(False), [value.numpy() for value in inputs])
