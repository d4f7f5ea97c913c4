"""One kind of layer said as another one that computes the same."""

from __future__ import annotations

import pytest

from aligner.record import LayerSpec
from aligner.vocabulary import as_kind

NORM = {"num_features": 6, "eps": 1e-5, "momentum": 0.1, "affine": True}


def test_an_instance_norm_is_a_group_norm_of_one_channel_each():
    told = as_kind(LayerSpec("InstanceNorm", {**NORM, "track_running_stats": False}), "GroupNorm")
    assert told == LayerSpec("GroupNorm", {"num_groups": 6, "num_channels": 6, "eps": 1e-5, "affine": True})


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (LayerSpec("InstanceNorm", {**NORM, "track_running_stats": True}), "GroupNorm"),
        (LayerSpec("InstanceNorm", NORM), "BatchNorm"),
        (LayerSpec("GroupNorm", {"num_groups": 2}), "GroupNorm"),
    ],
)
def test_others_stay_what_they_are(spec, kind):
    assert as_kind(spec, kind) is spec
