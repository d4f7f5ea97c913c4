"""What torch's functions do in one, written out: the steps come to what the function makes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("aligner_hooks.torch_.written_out")
from aligner_hooks.torch_.written_out import LOSSES  # noqa: E402 - as above
from torch.nn import functional as F  # noqa: E402 - only after it is known to be there

torch.manual_seed(7)
X, Y, Z = (torch.randn(4, 6, 5) for _ in range(3))
SHARE, CHOSEN = torch.rand(4, 6, 5), torch.randint(0, 6, (4, 5))
SOME = CHOSEN.masked_fill(torch.rand(4, 5) < 0.3, 2)
WEIGHT, SIGN = torch.rand(6) + 0.5, torch.randn(4, 6, 5).sign()

CALLS = [
    (F.log_softmax, (X, 1), {}),
    (torch.logsumexp, (X, 1), {}),
    (torch.logsumexp, (X, (0, 2)), {"keepdim": True}),
    *((F.cross_entropy, (X, SOME), {"ignore_index": 2, "reduction": way}) for way in ("mean", "sum", "none")),
    (F.cross_entropy, (X, SOME), {"weight": WEIGHT, "ignore_index": 2}),
    (F.cross_entropy, (X, SOME), {"weight": WEIGHT, "ignore_index": 2, "label_smoothing": 0.1}),
    (F.cross_entropy, (X, CHOSEN), {"label_smoothing": 0.1, "reduction": "none"}),
    (F.cross_entropy, (X, SHARE / SHARE.sum(1, keepdim=True)), {}),
    (F.cross_entropy, (X, SHARE / SHARE.sum(1, keepdim=True)), {"weight": WEIGHT, "label_smoothing": 0.2}),
    (F.cross_entropy, (X[:, :, 0], CHOSEN[:, 0]), {}),
    (F.cross_entropy, (X[0, :, 0], CHOSEN[0, 0]), {}),
    (F.nll_loss, (F.log_softmax(X, 1), SOME), {"weight": WEIGHT, "ignore_index": 2}),
    (F.binary_cross_entropy, (SHARE, Y.sigmoid()), {"weight": WEIGHT[:, None]}),
    (F.binary_cross_entropy_with_logits, (X, SHARE), {"reduction": "sum"}),
    (F.binary_cross_entropy_with_logits, (X, SHARE), {"pos_weight": WEIGHT[:, None], "weight": SHARE}),
    (F.smooth_l1_loss, (X, Y), {"beta": 0.7}),
    (F.huber_loss, (X, Y), {"delta": 0.7, "reduction": "none"}),
    (F.mse_loss, (X, Y), {}),
    (F.l1_loss, (X, Y), {"reduction": "sum"}),
    *((F.kl_div, (X, SHARE), {"reduction": way}) for way in ("batchmean", "sum", "none")),
    (F.kl_div, (X, Y), {"log_target": True, "reduction": "batchmean"}),
    (F.margin_ranking_loss, (X, Y, SIGN), {"margin": 0.3}),
    (F.triplet_margin_loss, (X, Y, Z), {"margin": 0.4}),
    (F.pairwise_distance, (X, Y), {"keepdim": True}),
    *((torch.cdist, (X, Y), {"p": p}) for p in (1.0, 2.0)),
    (F.layer_norm, (X, (6, 5), torch.rand(6, 5), torch.rand(6, 5), 1e-3), {}),
    (F.group_norm, (X, 3, WEIGHT, WEIGHT, 1e-3), {}),
    (F.linear, (X, torch.rand(3, 5), torch.rand(3)), {}),
    (torch.diff, (X,), {"dim": 1}),
    (F.glu, (X, 1), {}),
    (F.softplus, (X,), {"beta": 2.0}),
    (torch.lerp, (X, Y, 0.3), {}),
]
if hasattr(F, "rms_norm"):  # since torch 2.4
    CALLS.append((F.rms_norm, (X, (5,), torch.rand(5), 1e-3), {}))


@pytest.mark.parametrize(("function", "args", "kwargs"), CALLS, ids=lambda one: getattr(one, "__name__", None))
def test_the_steps_come_to_what_the_function_makes(function, args, kwargs):
    found = LOSSES[function.__name__](*args, **kwargs)
    torch.testing.assert_close(found, function(*args, **kwargs), rtol=1e-5, atol=2e-6)


def test_all_of_them_are_tried():
    left = {*LOSSES} - {function.__name__ for function, _, _ in CALLS}
    assert left <= {"rms_norm"}
