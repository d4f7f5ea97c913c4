"""The port on the reference's data: its weights and inputs, read from a dump, put into the port.

Sits on capture (it runs the port under a capture) and on dump.reader; the framework is reached through the adapter.
"""

from aligner.callable_package import make_callable

make_callable(__name__, "aligner.replay.replay", "replay")
