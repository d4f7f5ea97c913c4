"""Losses inside a net, from a net to the answer: MindSpore's WithLossCell, and a loss in the parent's own code."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
ms = pytest.importorskip("mindspore")
from mindspore import nn as cells  # noqa: E402 - only after both are known to be there
from mindspore import ops  # noqa: E402 - as above
from torch import nn  # noqa: E402 - as above

import aligner  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above
from aligner.compare.naming import canonical  # noqa: E402 - as above


class Net(nn.Module):
    """A layer, and a loss of what it makes."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 6), nn.ReLU())
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, x, labels):
        return self.loss(self.net(x), labels)


class Loss(cells.CrossEntropyLoss):
    """MindSpore's own wants labels of int32."""

    def construct(self, logits, labels):
        return super().construct(logits, labels.astype(ms.int32))


class InCode(cells.Cell):
    """The loss in the parent's code."""

    def __init__(self, smoothing):
        super().__init__()
        self.net = backbone()
        self.smoothing = smoothing

    def construct(self, x, labels):
        return ops.cross_entropy(self.net(x), labels.astype(ms.int32), label_smoothing=self.smoothing)


def backbone():
    return cells.SequentialCell(cells.Dense(8, 6), cells.ReLU())


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    torch.manual_seed(3)
    net, dump = Net().eval(), tmp_path_factory.mktemp("loss") / "ref.h5"
    x, labels = torch.randn(5, 8), torch.randint(0, 6, (5,))
    with torch.no_grad(), aligner.capture(net, dump):
        net(x, labels)
    return dump


def answer(reference, port):
    replay = aligner.replay(reference, port)
    dump = reference.with_name("port.h5")
    with replay.capture(dump, Options(force=True)):
        port(*replay.inputs(0))
    return aligner.compare(reference, dump)


@pytest.mark.parametrize("port", [cells.WithLossCell(backbone(), Loss(label_smoothing=0.1)), InCode(0.1)])
def test_a_right_loss_is_aligned(reference, port):
    result = answer(reference, port)
    assert result.aligned
    assert result.origins == ()


def test_a_loss_cell_and_the_net_in_it_are_layers_of_their_own(reference):
    (origin,) = answer(reference, cells.WithLossCell(backbone(), Loss())).origins
    assert (origin.layer, origin.where) == ("loss", "layer")
    assert {cause.id for cause in origin.causes if cause.confirmed} == {"code-edit", "ce-label-smoothing"}


def test_a_loss_in_the_parents_code_is_its_glue(reference):
    (origin,) = answer(reference, InCode(0.0)).origins
    assert (origin.layer, origin.where) == ("", "glue")
    assert "label_smoothing=0.1" in origin.edit.hunks[0].after


class Near(nn.Module):
    """A divergence of two distributions that are nearly the same: a small number, left of terms of size one."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 50)

    def forward(self, x, off):
        z = self.fc(x)
        return nn.functional.kl_div(z.log_softmax(-1), (z + off).softmax(-1), reduction="batchmean")


class NearPort(cells.Cell):
    """The same in MindSpore."""

    def __init__(self, reduction):
        super().__init__()
        self.fc = cells.Dense(8, 50)
        self.reduction = reduction

    def construct(self, x, off):
        z = self.fc(x)
        return ops.kl_div(ops.log_softmax(z, -1), ops.softmax(z + off, -1), reduction=self.reduction)


@pytest.fixture
def near(request, tmp_path_factory):
    torch.manual_seed(0)
    net, dump = Near().eval(), tmp_path_factory.mktemp("near") / "ref.h5"
    x, off = torch.randn(5, 8), request.param * torch.randn(5, 50)
    with torch.no_grad(), aligner.capture(net, dump):
        net(x, off)
    return dump


@pytest.mark.parametrize("near", [1e-1, 1e-3], indirect=True)
def test_a_small_loss_is_off_by_the_rounding_of_what_cancelled(near):
    result = answer(near, NearPort("batchmean"))
    assert result.aligned
    assert (result.origins, result.suspects) == ((), ())


@pytest.mark.parametrize("near", [1e-1, 1e-2], indirect=True)
def test_a_small_loss_that_is_wrong_is_found_all_the_same(near):
    (origin,) = answer(near, NearPort("mean")).origins
    assert (origin.layer, origin.where) == ("", "glue")


def test_a_part_that_is_called_as_a_wrapper_keeps_its_name():
    assert canonical("_backbone") == "_backbone"
    assert canonical("_backbone.fc") == "fc"
    assert canonical("module._orig_mod.fc") == "fc"
