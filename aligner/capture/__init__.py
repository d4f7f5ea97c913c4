"""Side one: runs beside the user's framework, turns what layers see into records.

script/factory/task say what runs -> session names layers and counts calls -> records go to dump.writer.
Imports record, structure, adapter; never compare.
"""

from aligner.callable_package import make_callable

make_callable(__name__, "aligner.capture.block", "capture")
