"""A parent that calls its layers in another order is one mistake; an order that changes nothing is none."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from tests.endtoend import pairs  # noqa: E402 - as above
from tests.endtoend.pairs import telling  # noqa: E402 - as above
from tests.endtoend.test_operation_causes import compared  # noqa: E402 - as above


def norm_before(n, x):
    x = x + n.attn(n.norm1(x))
    return x + n.fc2(torch.relu(n.fc1(n.norm2(x))))


def norm_behind(n, x):
    x = n.norm1(x + n.attn(x))
    return n.norm2(x + n.fc2(torch.relu(n.fc1(x))))


def norm_between(n, x):
    """The reference's first half."""
    x = x + n.attn(n.norm1(x))
    return n.norm2(x + n.fc2(torch.relu(n.fc1(x))))


BLOCK = {"norm1": nn.LayerNorm(16), "attn": nn.Linear(16, 16), "norm2": nn.LayerNorm(16)}
BLOCK |= {"fc1": nn.Linear(16, 32), "fc2": nn.Linear(32, 16)}


def words():
    return (torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1)),)


@pytest.mark.parametrize(
    ("reference", "port", "order"),
    [
        (norm_before, norm_behind, "norm1, attn, norm2, fc1, fc2"),
        (norm_behind, norm_before, "attn, norm1, fc1, fc2, norm2"),
        (norm_before, norm_between, "norm1, attn, norm2, fc1, fc2"),
    ],
)
def test_norms_that_stand_elsewhere_are_one_origin(tmp_path, reference, port, order):
    found = compared(tmp_path, BLOCK, words(), reference, port)
    (origin,) = found.origins
    assert (origin.layer, origin.where, origin.calls) == ("", "glue", 1)
    assert [cause.id for cause in origin.causes] == ["code-edit", "layers-in-another-order"]
    assert [cause.confirmed for cause in origin.causes] == [True, False]
    assert origin.causes[1].facts["reference_order"] == order
    assert origin.edit is not None
    assert not origin.edit.right  # all of it


@pytest.mark.parametrize("first", [True, False])
def test_a_layer_of_the_framework_is_told_by_its_setting(tmp_path, first):
    def layer(norm_first):
        return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = layer(first), layer(not first)
            self.other.load_state_dict(self.one.state_dict())

    import aligner
    from aligner.capture.session import Options

    both = Both().eval()
    nets = [nn.Sequential(nn.Linear(16, 16), enc).eval() for enc in (both.one, both.other)]
    with aligner.capture(nets[0], tmp_path / "ref.h5"):
        nets[0](*words())
    replay = aligner.replay(tmp_path / "ref.h5", nets[1])
    with replay.capture(tmp_path / "port.h5", Options(force=True)):
        nets[1](*replay.inputs(0))
    (origin,) = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5").origins
    assert origin.layer == "1"
    assert origin.causes[0].id == "encoder-layer-norm-first"


HEADS = {name: nn.Linear(16, 16) for name in "qkvo"}


def attention(order, scale=0.25, mask=0.0, doubled=False):
    def code(n, x):
        made = {name: getattr(n, name)(x) for name in order}
        score = made["q"] @ made["k"].transpose(-2, -1) * scale + mask
        out = n.o(score.softmax(-1) @ made["v"])
        return out * 2 if doubled else out

    return code


def test_an_order_that_changes_nothing_is_no_cause(tmp_path):
    (tmp_path / "clean").mkdir()
    assert not compared(tmp_path / "clean", HEADS, words(), attention("qkv"), attention("kvq")).origins
    found = compared(tmp_path, HEADS, words(), attention("qkv"), attention("kvq", scale=1.0, doubled=True))
    assert [origin.between for origin in found.origins] == [("v", "o"), ("o", "")]
    assert not any(cause.id == "layers-in-another-order" for origin in found.origins for cause in origin.causes)


def test_a_layer_that_changes_nothing_may_stand_anywhere(tmp_path):
    """The same values come out of the dropout as went in."""
    layers = {"conv": nn.Linear(16, 16), "drop": nn.Dropout(0.5), "last": nn.Linear(16, 16)}

    def reference(n, x):
        return n.last(torch.relu(n.drop(n.conv(n.drop(x)))))

    def port(n, x):
        return n.drop(n.last(n.conv(x))) * 2

    found = compared(tmp_path, layers, words(), reference, port)
    assert not any(cause.id == "layers-in-another-order" for origin in found.origins for cause in origin.causes)


def test_a_layer_that_is_called_less_often_is_not_moved(tmp_path):
    layers = {"one": nn.Linear(16, 16), "act": nn.ELU(), "two": nn.Linear(16, 16)}

    def code(first):
        def forward(n, x):
            x = x + (n.act(n.one(x)) if first else n.one(x))
            return x + n.act(n.two(x))

        return forward

    (origin,) = compared(tmp_path, layers, words(), code(True), code(False)).origins
    assert not origin.causes[0].confirmed


def test_two_mistakes_beside_a_harmless_order_stay_two(tmp_path):
    """The shortcut may be worked out first or last."""
    layers = {"conv": nn.Linear(16, 16), "last": nn.Linear(16, 16), "short": nn.Linear(16, 16)}

    def reference(n, x):
        return n.last(torch.relu(n.conv(x))) + n.short(x)

    def port(n, x):
        short = n.short(x)
        return n.last(n.conv(x)) + 0.5 * short

    found = compared(tmp_path, layers, words(), reference, port)
    assert len(found.origins) == 2
    assert not any(cause.id == "layers-in-another-order" for origin in found.origins for cause in origin.causes)


def test_two_layers_taken_for_each_other_are_not_an_order(tmp_path):
    """Gate and value of a gated block: where two values are wrong, one is used in the other's place."""
    layers = {"gate": nn.Linear(16, 16), "act": nn.SiLU(), "up": nn.Linear(16, 16), "down": nn.Linear(16, 16)}

    def reference(n, x):
        return n.down(n.act(n.gate(x)) * n.up(x))

    def port(n, x):
        return n.down(n.act(n.up(x)) * n.gate(x))

    found = compared(tmp_path, layers, words(), reference, port)
    assert not any(cause.id == "layers-in-another-order" for origin in found.origins for cause in origin.causes)


def test_layers_that_one_net_groups_have_an_order_too(tmp_path):
    """The reference holds them in a Sequential, the port calls them by itself."""
    import aligner
    from aligner.capture.session import Options

    class Port(nn.Module):
        def __init__(self, body):
            super().__init__()
            self.widen, self.deep, self.norm, self.last = (copy.deepcopy(layer) for layer in body)

        def forward(self, x):
            return self.last(self.deep(self.norm(self.widen(x))))

    body = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    net = nn.Sequential(body).eval()
    port = nn.Sequential(Port(body)).eval()
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), aligner.capture(net, tmp_path / "ref.h5"):
        net(x)
    replay = aligner.replay(tmp_path / "ref.h5", port)
    with torch.no_grad(), replay.capture(tmp_path / "port.h5", Options(force=True)):
        port(*replay.inputs(0))
    (origin,) = aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5").origins
    assert origin.causes[0].id in ORDER


ORDER = ("layers-in-another-order", "code-edit")
"""It is said, or shown in the lines that were run."""


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.tanh(self.fc(self.norm(x)))


class Encoder(nn.Module):
    """Blocks, and a norm of its own or none, behind them or, `before`, where it should not be."""

    def __init__(self, normed, before):
        super().__init__()
        self.blocks, self.before = nn.Sequential(Branch(), Branch()), before
        if normed:
            self.norm = nn.LayerNorm(8)

    def forward(self, x):
        if not hasattr(self, "norm"):
            return self.blocks(x)
        return self.blocks(self.norm(x)) if self.before else self.norm(self.blocks(x))


class Encoding(nn.Module):
    """The norm is the encoder's, or the net's."""

    def __init__(self, inside, before=False):
        super().__init__()
        self.stem, self.encoder, self.head = nn.Linear(5, 8), Encoder(inside, before), nn.Linear(8, 4)
        self.inside, self.before = inside, before
        if not inside:
            self.last = nn.LayerNorm(8)

    def forward(self, x):
        x = self.stem(x)
        if self.inside:
            return self.head(self.encoder(x))
        return self.head(self.encoder(self.last(x)) if self.before else self.last(self.encoder(x)))


@pytest.mark.parametrize("before", [False, True], ids=["behind", "before"])
@pytest.mark.parametrize("other", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("one", [False, True], ids=["outside", "inside"])
def test_a_norm_that_stands_before_the_blocks_is_one_origin_whosever_it_is(tmp_path, one, other, before):
    torch.manual_seed(1)
    net, port = telling(Encoding(one, before)), Encoding(other, not before)
    found = pairs.compared(tmp_path, net, port, torch.randn(3, 7, 5))
    (origin,) = found.origins
    assert origin.where == "glue"
    assert origin.layer in ("", "encoder")
    assert origin.causes[0].id in ORDER


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_a_norm_that_is_the_encoders_or_the_nets_is_no_mistake(tmp_path, inside):
    torch.manual_seed(1)
    found = pairs.compared(tmp_path, telling(Encoding(inside)), Encoding(not inside), torch.randn(3, 7, 5))
    assert found.aligned
    assert not found.origins


class Two(nn.Module):
    """One encoder for two images, and a head for what it makes of both."""

    def __init__(self, first="left", heads="left", skip=False):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 8)
        self.first, self.heads, self.skip = first, heads, skip

    def forward(self, left, right):
        if self.first == "left":
            a, b = self.enc(left), self.enc(right)
        else:
            b, a = self.enc(right), self.enc(left)
        b = b * 0.5 if self.skip else b
        return (self.head(a), self.head(b)) if self.heads == "left" else (self.head(b), self.head(a))[::-1]


def images():
    return tuple(torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))


@pytest.mark.parametrize("port", [Two("right"), Two("left", "right"), Two("right", "right")])
def test_one_encoder_may_begin_with_either_of_two_images(tmp_path, port):
    found = pairs.compared(tmp_path, telling(Two()), port, *images())
    assert found.aligned


def test_a_mistake_beside_another_order_of_calls_is_told_where_it_is(tmp_path):
    found = pairs.compared(tmp_path, telling(Two()), Two("right", skip=True), *images())
    (origin,) = found.origins
    assert (origin.where, origin.between) == ("glue", ("head", "head"))
    assert {cause.id for cause in origin.causes if cause.confirmed} == {"code-edit", "setting-differs"}  # `skip`


class Steps(nn.Module):
    """One layer that is called for one part after the other; a port may leave the first to last out."""

    def __init__(self, parts):
        super().__init__()
        self.fc = nn.Linear(16, 8)
        self.parts = parts

    def forward(self, x):
        return torch.stack([self.fc(x[:, part]) for part in self.parts], 1).sum(1)


@pytest.mark.parametrize("parts", [(4, 3, 2, 1, 0), (1, 3, 0, 4, 2)])
def test_parts_that_are_worked_on_in_another_order_are_no_mistake(tmp_path, parts):
    assert pairs.compared(tmp_path, telling(Steps(range(5))), Steps(parts), images()[0]).aligned


def test_a_call_fewer_is_the_one_that_is_missing(tmp_path):
    found = pairs.compared(tmp_path, telling(Steps(range(5))), Steps((1, 2, 3, 4)), images()[0])
    (origin,) = found.origins
    assert origin.where == "glue"
