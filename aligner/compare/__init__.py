"""Side two: pure numpy. Two dumps -> pairs -> deviations -> verdicts -> one Comparison.

Imports record and dump.reader; never a framework, never capture.
"""

from aligner.callable_package import make_callable

make_callable(__name__, "aligner.compare.comparison", "compare")
