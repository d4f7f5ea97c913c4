"""replay.capture: `python replayed.py REFERENCE DUMP` runs the net beside it on the reference's weights and inputs."""

import sys

from reference import build

import aligner

net, _ = build()
with aligner.replay(sys.argv[1], net) as replay, replay.capture(sys.argv[2]):
    replay.run()
