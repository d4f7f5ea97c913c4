"""AdapterContract: all checks together, as one class to subclass."""

from __future__ import annotations

from aligner.testing.cast_checks import CastChecks
from aligner.testing.computation_checks import ComputationChecks
from aligner.testing.copy_checks import CopyChecks
from aligner.testing.intervention_checks import InterventionChecks
from aligner.testing.layer_checks import LayerChecks
from aligner.testing.observation_checks import ObservationChecks
from aligner.testing.operation_checks import OperationChecks
from aligner.testing.overwrite_checks import OverwriteChecks
from aligner.testing.parameter_checks import ParameterChecks
from aligner.testing.removal_checks import RemovalChecks
from aligner.testing.root_checks import RootChecks
from aligner.testing.source_checks import SourceChecks
from aligner.testing.spelling_checks import SpellingChecks
from aligner.testing.state_checks import StateChecks
from aligner.testing.tensor_checks import TensorChecks
from aligner.testing.training_checks import TrainingChecks


class AdapterContract(
    LayerChecks,
    ObservationChecks,
    InterventionChecks,
    OverwriteChecks,
    OperationChecks,
    SourceChecks,
    ComputationChecks,
    RootChecks,
    RemovalChecks,
    TensorChecks,
    ParameterChecks,
    CopyChecks,
    CastChecks,
    SpellingChecks,
    StateChecks,
    TrainingChecks,
):
    """What every adapter promises. Subclass it as `TestMyAdapter` and override what `Supplies` asks for.

    Ask pytest for readable failures with `pytest.register_assert_rewrite("aligner.testing")` in conftest.py, before
    anything imports this package.
    """
