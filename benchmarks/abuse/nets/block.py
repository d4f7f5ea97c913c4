"""The with block: `python block.py DUMP` captures the net beside it, and leaves as Python does."""

import sys

from reference import build

import aligner

net, x = build()
with aligner.capture(net, sys.argv[1]):
    net(x)
