"""What a loss does, read from gradients that torch's own losses make at random scores."""

import numpy as np
import pytest

from aligner.training import numbers, scores

torch = pytest.importorskip("torch", reason="the gradients are torch's")
F = torch.nn.functional

ROWS, CLASSES = 24, 7


def made(loss, shape=(ROWS, CLASSES), seed=3):
    """The scores, and the gradient that a loss of these and of labels makes there."""
    torch.manual_seed(seed)
    given = (2 * torch.randn(shape)).requires_grad_()
    labels = torch.randint(0, CLASSES if shape[1] < 3 else shape[1], (shape[0], *shape[2:]))
    labels.reshape(-1)[:5] = 0
    loss(given, labels).backward()
    return given.detach().double().numpy(), given.grad.double().numpy()


def told(reference, port, shape=(ROWS, CLASSES), times=1.0):
    given, wanted = made(reference, shape)
    return {one.cause: one.facts for one in scores.suspects(given, wanted, made(port, shape)[1], times)}


WEIGHT = torch.linspace(0.5, 2.0, CLASSES)
CASES = {
    "loss-rows-counted": (lambda x, y: F.cross_entropy(x, y, ignore_index=0), F.cross_entropy, {"index": 0}),
    "loss-rows-left-out": (F.cross_entropy, lambda x, y: F.cross_entropy(x, y, ignore_index=0), {"label": "0"}),
    "loss-other-labels": (F.cross_entropy, lambda x, y: F.cross_entropy(x, (y + 1) % CLASSES), {}),
    "loss-targets": (
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
        F.cross_entropy,
        {"smoothing": "0.1", "on": "1", "off": "0"},
    ),
    "loss-softmax-twice": (F.cross_entropy, lambda x, y: F.cross_entropy(x.softmax(1), y), {}),
    "loss-factor": (F.cross_entropy, lambda x, y: F.cross_entropy(x, y, reduction="sum"), {"factor": f"{ROWS:g}"}),
    "loss-class-weights": (lambda x, y: F.cross_entropy(x, y, WEIGHT), F.cross_entropy, {}),
    "loss-has-aux": (F.cross_entropy, lambda x, y: F.cross_entropy(x, y) + x.sum(), {"times": "1"}),
}


@pytest.mark.parametrize("cause", CASES)
def test_a_cross_entropy_is_read_from_its_gradient(cause):
    reference, port, facts = CASES[cause]
    found = told(reference, port)
    assert list(found) == [cause]
    assert {name: found[cause][name] for name in facts} == facts


def test_classes_may_stand_in_the_second_of_four_axes():
    ignoring = lambda x, y: F.cross_entropy(x, y, ignore_index=0)  # noqa: E731
    assert list(told(ignoring, F.cross_entropy, (2, CLASSES, 4, 5))) == ["loss-rows-counted"]


def towards(target, weight=1.0, sigmoid=False):
    """A binary cross entropy that wants one thing of all scores, or the ones and zeros of the labels."""

    def loss(x, y):
        wanted = (y > CLASSES // 2).float()[:, None].expand_as(x) if target is None else torch.full_like(x, target)
        return weight * F.binary_cross_entropy_with_logits(x.sigmoid() if sigmoid else x, wanted)

    return loss


@pytest.mark.parametrize(
    ("reference", "port", "cause", "facts"),
    [
        (towards(0.9), towards(1.0), "loss-binary-target", {"on": "1", "wanted_on": "0.9"}),
        (towards(1.0), towards(0.0), "loss-binary-target", {"on": "0", "wanted_on": "1"}),
        (towards(0.9), towards(0.9, sigmoid=True), "loss-sigmoid-twice", {}),
        (towards(None), towards(None, sigmoid=True), "loss-sigmoid-twice", {}),
        (towards(None), towards(None, 2.0), "loss-factor", {"factor": "2"}),
    ],
)
@pytest.mark.parametrize("shape", [(ROWS, 1), (ROWS, 2)])
def test_a_binary_cross_entropy_of_one_target_is_read_from_its_gradient(reference, port, cause, facts, shape):
    found = told(reference, port, shape)
    assert list(found) == [cause]
    assert {name: found[cause][name] for name in facts} == facts


def test_right_losses_of_one_target_tell_nothing():
    assert told(towards(0.9), towards(0.9), (ROWS, 1)) == {}


def binary(pos_weight=None, reduction="mean"):
    weight = None if pos_weight is None else torch.tensor(pos_weight)
    return lambda x, y: F.binary_cross_entropy_with_logits(
        x, F.one_hot(y, CLASSES).float(), pos_weight=weight, reduction=reduction
    )


@pytest.mark.parametrize(
    ("port", "cause"), [(binary(3.0), "loss-pos-weight"), (binary(reduction="sum"), "loss-factor")]
)
def test_a_binary_cross_entropy_is_read_from_its_gradient(port, cause):
    assert list(told(binary(), port)) == [cause]


@pytest.mark.parametrize("loss", [F.cross_entropy, binary(2.0), lambda x, y: (x * x).mean()])
def test_equal_losses_tell_nothing(loss):
    assert told(loss, loss) == {}
    assert told(loss, lambda x, y: 128 * loss(x, y), times=128.0) == {}


def test_shares_of_batches_are_found():
    rng = np.random.default_rng(0)
    raws = [[rng.normal(size=(4, 3)) for _ in range(3)] for _ in range(5)]
    given = [0.5 * a + 0.25 * b + 2 * c for a, b, c in raws]
    assert numbers.shares(raws, given) == pytest.approx([0.5, 0.25, 2])
    given[0] = given[0] + 0.1
    assert numbers.shares(raws, given) is None
