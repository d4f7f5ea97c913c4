"""Side two: pure numpy. Two dumps -> pairs -> deviations -> verdicts -> one Comparison.

comparison is the road map; net, naming, layers and sequence pair layers and calls, pairing their records; deviation
and its kernels measure; cover and origin say what the readings mean; conclusion puts it all into verdict's plain data.
Imports record and dump.reader; never a framework, never capture.
"""

from aligner.callable_package import make_callable

make_callable(__name__, "aligner.compare.comparison", "compare")
