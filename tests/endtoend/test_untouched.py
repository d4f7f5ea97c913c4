"""Capturing never changes a number: the same bits with and without it, in train and eval, and nothing stays behind."""

from __future__ import annotations

import numpy as np
import pytest

import aligner


class TorchNets:
    """The nets in torch; the same questions are asked of MindSpore below."""

    def __init__(self):
        self.torch = pytest.importorskip("torch", reason="torch is not installed in this environment")

    def seed(self):
        self.torch.manual_seed(3)

    def convolutional(self):
        nn = self.torch.nn
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Flatten())
        return net, self.torch.randn(4, 3, 9, 9)

    def recurrent(self):
        nn = self.torch.nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm = nn.LSTM(5, 7, num_layers=2, batch_first=True, dropout=0.2)

            def forward(self, x):
                y, (h, _) = self.lstm(x)
                return y + h[-1][:, None]

        return Net(), self.torch.randn(2, 6, 5)

    def attention(self):
        nn = self.torch.nn
        return nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True), self.torch.randn(2, 5, 16)

    def mode(self, net, training):
        net.train(training)

    def state(self, net):
        return {name: value.numpy().tobytes() for name, value in net.state_dict().items()}

    def bits(self, value):
        return value.detach().numpy().tobytes()

    def gradient(self, net, x):
        net.zero_grad()
        net(x).square().sum().backward()
        return [p.grad.numpy().tobytes() for p in net.parameters() if p.grad is not None]

    def failing(self):
        nn = self.torch.nn

        class Fails(nn.Module):
            def forward(self, x):
                raise ValueError("in the net")

        return nn.Sequential(nn.Linear(3, 3), Fails()), self.torch.ones(2, 3)

    def traces(self, net):
        """What a hook would leave behind."""
        module = self.torch.nn.Module
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
        return hooks, module.__call__, module._call_impl, [sorted(vars(m)) for m in net.modules()]


class MindSporeNets:
    def __init__(self):
        self.ms = pytest.importorskip("mindspore", reason="MindSpore is not installed in this environment")

    def seed(self):
        self.ms.set_seed(3)
        np.random.seed(3)

    def tensor(self, *shape):
        return self.ms.Tensor(np.random.RandomState(1).randn(*shape).astype(np.float32))

    def convolutional(self):
        nn = self.ms.nn
        cells = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(p=0.3), nn.Flatten()
        return nn.SequentialCell(*cells), self.tensor(4, 3, 9, 9)

    def recurrent(self):
        nn = self.ms.nn

        class Net(nn.Cell):
            def __init__(self):
                super().__init__()
                self.lstm = nn.LSTM(5, 7, num_layers=2, batch_first=True, dropout=0.2)

            def construct(self, x):
                y, (h, _) = self.lstm(x)
                return y + h[-1].expand_dims(1)

        return Net(), self.tensor(2, 6, 5)

    def attention(self):
        # No dropout: MindSpore's attention draws other numbers each time, set_seed or not, with capture and without.
        return self.ms.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), self.tensor(2, 5, 16)

    def mode(self, net, training):
        net.set_train(training)

    def state(self, net):
        return {name: p.asnumpy().tobytes() for name, p in net.parameters_and_names()}

    def bits(self, value):
        return value.asnumpy().tobytes()

    def gradient(self, net, x):
        weights = net.trainable_params()
        gradients = self.ms.grad(lambda x: net(x).square().sum(), None, weights)(x)
        return [gradient.asnumpy().tobytes() for gradient in gradients]

    def failing(self):
        nn = self.ms.nn

        class Fails(nn.Cell):
            def construct(self, x):
                raise ValueError("in the net")

        return nn.SequentialCell(nn.Dense(3, 3), Fails()), self.tensor(2, 3)

    def traces(self, net):
        cell = self.ms.nn.Cell
        cells = [c for _, c in net.cells_and_names()]
        return (
            [len(c._forward_hook) + len(c._forward_pre_hook) for c in cells],
            cell.__call__,
            [sorted(vars(c)) for c in cells],
        )


@pytest.fixture(params=[TorchNets, MindSporeNets], ids=["torch", "mindspore"])
def nets(request):
    return request.param()


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", ["convolutional", "recurrent", "attention"])
def test_the_same_bits(nets, name, training, tmp_path):
    nets.seed()
    net, x = getattr(nets, name)()
    start = nets.state(net)
    nets.mode(net, training)
    nets.seed()
    plain = nets.bits(net(x))
    after = nets.state(net)
    again, x = _again(nets, name, training)
    assert nets.state(again) == start, "the net itself must be reproducible for this test to mean anything"
    nets.seed()
    with aligner.capture(again, tmp_path / "x.h5"):
        watched = nets.bits(again(x))
    assert watched == plain
    assert nets.state(again) == after, "running statistics included"
    nets.seed()
    with aligner.open(tmp_path / "x.h5") as dump:
        assert dump[""].output.load().tobytes() == plain


def _again(nets, name, training):
    nets.seed()
    net, x = getattr(nets, name)()
    nets.mode(net, training)
    return net, x


def test_the_same_bits_where_torch_fuses_attention(tmp_path):
    nets = TorchNets()
    net, x = _again(nets, "attention", False)
    with nets.torch.no_grad():
        plain = nets.bits(net(x))
        with aligner.capture(net, tmp_path / "x.h5"):
            watched = nets.bits(net(x))
    assert watched == plain
    with aligner.open(tmp_path / "x.h5") as dump:
        assert {call.layer for call in dump.calls} == {""}, "it ran as one kernel, and the dump says so"
        assert [note.message for note in dump.notes] == ["torch-fused-attention"]


@pytest.mark.parametrize("name", ["convolutional", "recurrent", "attention"])
def test_the_same_gradients(nets, name, tmp_path):
    net, x = _again(nets, name, False)
    plain = nets.gradient(net, x)
    with aligner.capture(net, tmp_path / "x.h5"):
        watched = nets.gradient(net, x)
    assert watched == plain
    assert plain


def test_nothing_stays_behind(nets, tmp_path):
    net, x = nets.failing()
    before = nets.traces(net)
    with pytest.raises(ValueError, match="in the net"), aligner.capture(net, tmp_path / "x.h5"):
        net(x)
    assert nets.traces(net) == before
    with aligner.open(tmp_path / "x.h5") as dump:
        assert not dump.complete
        assert len(dump["0"].outputs) == 1, "what came before the exception is there"


def test_an_error_inside_the_block_passes_through(nets, tmp_path):
    net, x = nets.convolutional()
    before = nets.traces(net)

    def block():
        with aligner.capture(net, tmp_path / "x.h5"):
            net(x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert nets.traces(net) == before


def test_a_capture_in_which_nothing_ran_leaves_no_file(nets, tmp_path):
    net, _ = nets.convolutional()
    with pytest.raises(aligner.AlignerError, match="never called"), aligner.capture(net, tmp_path / "x.h5"):
        pass
    assert list(tmp_path.iterdir()) == []
