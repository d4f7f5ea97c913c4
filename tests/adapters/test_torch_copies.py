"""Copies, casts and spellings of torch layers: what only torch has, and that a copy is what a constructor makes."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from aligner_hooks.torch_ import TorchAdapter  # noqa: E402 - as above
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

from aligner.record import LayerSpec  # noqa: E402 - as above
from aligner.testing.layer_inputs import inputs  # noqa: E402 - as above
from aligner.testing.layer_settings import another  # noqa: E402 - as above
from tests.adapters.test_torch import every_layer  # noqa: E402 - as above

ADAPTER = TorchAdapter()


def evaluated(text):
    names = {}
    exec(ADAPTER.preamble(), names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # settings that are tried may have no effect, and torch says so
        return eval(text, names)


def outputs(layer, arrays):
    tensors = [ADAPTER.from_numpy(array, str(array.dtype)) for array in arrays]
    with ADAPTER.running(layer):
        made = layer(*tensors)
    return [tensor for tensor in torch.utils._pytree.tree_leaves(made) if tensor is not None]


def test_a_changed_copy_computes_as_a_layer_that_was_made_so():
    """The copy follows a difference; a layer made from its spelling, with the same weights, must make the same."""
    ran, kinds = 0, set()
    for layer in every_layer():
        layer.eval()
        spec = ADAPTER.spec(layer)
        for word, old in spec.attributes.items():
            for value in another(spec.kind, word, old):
                try:
                    copy = ADAPTER.respecified(layer, {word: value})
                except ValueError:
                    continue
                made = evaluated(ADAPTER.expression(copy)).eval()
                made.load_state_dict(copy.state_dict(), strict=True)
                arrays = inputs(ADAPTER.spec(copy), ADAPTER.type_name(copy))
                try:
                    wanted = arrays and outputs(made, arrays)
                except (RuntimeError, IndexError, AssertionError, ValueError):
                    continue  # the input does not fit the changed setting
                if wanted:
                    found = outputs(copy, arrays)
                    assert len(found) == len(wanted)
                    assert all(torch.equal(a, b) for a, b in zip(found, wanted)), (spec, word, value)
                    ran += 1
                    kinds.add((spec.kind, word))
    assert ran >= 180
    assert len(kinds) >= 110


def test_what_torch_can_change():
    """The settings that no trial can change; a shorter list is better, a longer one a step back."""
    possible, never = set(), set()
    for layer in every_layer():
        spec = ADAPTER.spec(layer)
        for word, old in spec.attributes.items():
            for value in another(spec.kind, word, old):
                try:
                    ADAPTER.respecified(layer, {word: value})
                    possible.add((spec.kind, word))
                except ValueError:
                    never.add((spec.kind, word))
    assert {word for _, word in never - possible} == {"groups", "padding_mode", "bidirectional"}
    assert not {kind for kind, word in never - possible if word == "padding_mode"} & {"Conv1d", "Conv2d", "Conv3d"}
    assert len(possible) >= 130


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shifts, self.fc = 2.0, [1, 2], nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x) * self.scale + self.shifts[0]


def test_settings_of_a_layer_of_the_users_own_are_its_attributes():
    layer, x = Scaled(), torch.randn(3, 2)
    copy = ADAPTER.respecified(layer, {"scale": 3.0, "shifts": (4, 5)})
    assert type(copy.shifts) is list
    assert torch.equal(copy(x), layer.fc(x) * 3.0 + 4)
    assert (layer.scale, layer.shifts) == (2.0, [1, 2])
    with pytest.raises(ValueError, match="no setting colour"):
        ADAPTER.respecified(layer, {"colour": "red"})


def test_hooks_of_the_user_are_left_behind_and_torchs_own_come_along():
    layer, calls = nn.Sequential(nn.Linear(2, 2)), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is on its way out of torch, and still met
        nn.utils.weight_norm(layer[0])
    layer.register_forward_pre_hook(lambda *_: calls.append("pre"))
    layer[0].register_forward_hook(lambda *_: calls.append("after"))
    layer[0].register_full_backward_hook(lambda *_: calls.append("back"))
    x = torch.randn(3, 2)
    layer(x)  # the weight is a tensor in a graph now, which cannot be copied as it is
    calls.clear()
    copy = ADAPTER.respecified(layer, {})
    assert torch.equal(copy(x), layer[0].forward(x))
    assert calls == []
    with torch.no_grad():
        copy[0].weight_g.mul_(2)
    assert not torch.equal(copy(x), layer[0].forward(x))
    layer(x)
    assert calls == ["pre", "after"]
    with pytest.raises(ValueError, match="computed from others"):
        ADAPTER.expression(layer)


def test_a_parametrized_layer_is_copied_and_not_spelled():
    layer, x = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), torch.randn(4, 3)
    copy = ADAPTER.respecified(layer, {})
    assert torch.equal(copy(x), layer(x))
    with torch.no_grad():
        copy.parametrizations.weight.original0.mul_(2)
    assert not torch.equal(copy(x), layer(x))
    with pytest.raises(ValueError, match="computed from others"):
        ADAPTER.expression(layer)
    conv, x = nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 3)), torch.randn(1, 2, 8)
    strided = ADAPTER.respecified(conv, {"stride": (2,), "bias": False})
    assert torch.equal(strided(x), F.conv1d(x, conv.weight, None, 2))


def test_a_scripted_layer_is_copied_as_it_is_or_not_at_all():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is on its way out of torch, and still met
        layer = torch.jit.script(nn.LayerNorm(3))
    x = torch.randn(4, 3)
    assert torch.equal(ADAPTER.respecified(layer, {})(x), layer(x))
    for refused in (lambda: ADAPTER.respecified(layer, {"original": "x"}), lambda: ADAPTER.expression(layer)):
        with pytest.raises(ValueError):
            refused()


def test_tensors_that_a_graph_holds_do_not_stand_in_the_way():
    layer = Scaled()
    layer.seen = [layer(torch.randn(3, 2))]
    layer.last = layer.seen[0] * 2
    copy = ADAPTER.respecified(layer, {"scale": 1.0})
    assert torch.equal(copy.last, layer.last)
    assert copy.seen[0] is not layer.seen[0]


def test_what_cannot_be_copied_says_so():
    layer = Scaled()
    layer.lock = threading.Lock()
    with pytest.raises(ValueError, match=r"Scaled cannot be copied: .*lock"):
        ADAPTER.respecified(layer, {})


def test_a_compilers_or_data_parallels_wrapper_is_left_outside():
    copy = ADAPTER.respecified(nn.DataParallel(nn.LayerNorm(3)), {"eps": 0.5})
    assert type(copy) is nn.LayerNorm
    assert copy.eps == 0.5


def test_a_change_reaches_the_layers_inside():
    layer = nn.TransformerEncoderLayer(4, 2, 8, activation=nn.GELU(), batch_first=True)
    copy = ADAPTER.respecified(layer, {"eps": 0.5, "activation": "relu", "nhead": 1, "batch_first": False})
    assert (copy.norm1.eps, copy.norm2.eps, copy.self_attn.num_heads) == (0.5, 0.5, 1)
    assert copy.activation is F.relu
    assert "activation" not in dict(copy.named_children())
    assert copy.self_attn.batch_first is False
    assert isinstance(layer.activation, nn.GELU)


def test_padding_said_as_a_word_and_in_numbers_is_the_same():
    layer, x = nn.Conv2d(2, 4, 3, padding="same"), torch.randn(1, 2, 8, 8)
    copy = ADAPTER.respecified(layer, {"dilation": (2, 2)})
    assert ADAPTER.spec(copy).attributes["padding"] == ((1, 1), (1, 1))
    assert torch.equal(copy(x), F.conv2d(x, layer.weight, layer.bias, padding=1, dilation=2))
    reflected = ADAPTER.respecified(layer, {"padding_mode": "reflect", "padding": ((2, 2), (1, 1))})
    wanted = F.conv2d(F.pad(x, (1, 1, 2, 2), mode="reflect"), layer.weight, layer.bias)
    assert torch.equal(reflected(x), wanted)
    even = nn.Conv1d(2, 4, 4)
    uneven = ADAPTER.respecified(even, {"padding": ((1, 2),)})
    x = torch.randn(1, 2, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the copy of the input that this takes
        assert torch.equal(uneven(x), F.conv1d(F.pad(x, (1, 2)), even.weight, even.bias))
    with pytest.raises(ValueError, match="as much before as after"):
        ADAPTER.respecified(even, {"padding": ((2, 1),)})


def test_a_norm_gets_weights_and_statistics_that_change_nothing_yet():
    bare, x = nn.BatchNorm2d(3, affine=False, track_running_stats=False), torch.randn(2, 3, 4, 4)
    copy = ADAPTER.respecified(bare, {"affine": True, "track_running_stats": True})
    wanted = nn.BatchNorm2d(3)
    assert copy.state_dict().keys() == wanted.state_dict().keys()
    assert all(torch.equal(value, wanted.state_dict()[name]) for name, value in copy.state_dict().items())
    assert {name: value.dtype for name, value in copy.state_dict().items()} == {
        name: value.dtype for name, value in wanted.state_dict().items()
    }
    assert torch.equal(copy.eval()(x), wanted.eval()(x))
    off = ADAPTER.respecified(wanted, {"affine": False, "track_running_stats": False})
    assert torch.equal(off.train()(x), bare.train()(x))
    assert off.state_dict() == {}


def test_a_recurrent_layer_keeps_its_tables_in_order():
    layer, x = nn.LSTM(3, 4, 2, bidirectional=True), torch.randn(5, 2, 3)
    without = ADAPTER.respecified(layer, {"bias": False})
    assert [name for name, _ in without.named_parameters()] == [
        name for name, _ in layer.named_parameters() if "bias" not in name
    ]
    again = ADAPTER.respecified(without, {"bias": True})
    assert not any(value.any() for name, value in again.named_parameters() if "bias" in name)
    for (out, _), (other, _) in ((without(x), again(x)),):
        torch.testing.assert_close(out, other)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x)[0], layer(x)[0])


def test_another_class_with_the_same_meaning_is_followed():
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(ADAPTER.respecified(nn.Softmax2d(), {"dim": -1})(x), x.softmax(-1))
    padded = ADAPTER.respecified(nn.ZeroPad2d((1, 2, 0, 0)), {"value": 3.0})
    assert torch.equal(padded(x), F.pad(x, (1, 2, 0, 0), value=3.0))
    mirrored = ADAPTER.respecified(nn.ZeroPad2d(1).train(False), {"mode": "reflect"})
    assert torch.equal(mirrored(x), F.pad(x, (1, 1, 1, 1), mode="reflect"))
    assert mirrored.training is False


def test_changing_draws_no_random_numbers_and_warns_of_nothing():
    layers = [nn.Conv2d(2, 2, 3), nn.LSTM(2, 3), nn.TransformerEncoderLayer(4, 2, 8), nn.Dropout(0.5)]
    state = ADAPTER.random_state()
    changes = [{"stride": (2, 2)}, {"dropout": 0.5}, {"eps": 0.5}, {"p": 0.1}]
    for layer, change in zip(layers, changes):
        ADAPTER.expression(ADAPTER.respecified(layer, change))
    assert ADAPTER.random_state() == state


SPELLED = [
    (nn.Conv2d(3, 8, 3, padding=1), "nn.Conv2d(3, 8, (3, 3), padding=(1, 1))"),
    (nn.Conv2d(3, 8, (2, 4), padding="same", bias=False), "nn.Conv2d(3, 8, (2, 4), padding='same', bias=False)"),
    (nn.LayerNorm((2, 3), 1e-6, bias=False), "nn.LayerNorm((2, 3), eps=1e-06, bias=False)"),
    (nn.LayerNorm(4, elementwise_affine=False), "nn.LayerNorm((4,), elementwise_affine=False)"),
    (nn.BatchNorm2d(4, momentum=None), "nn.BatchNorm2d(4, momentum=None)"),
    (nn.ReLU(inplace=True), "nn.ReLU(inplace=True)"),
    (nn.Hardtanh(-1, float("inf")), 'nn.Hardtanh(max_val=float("inf"))'),
    (
        nn.MaxPool2d(3, 2, 1, return_indices=True),
        "nn.MaxPool2d((3, 3), stride=(2, 2), padding=(1, 1), return_indices=True)",
    ),
    (nn.MaxPool2d(2, 2), "nn.MaxPool2d((2, 2))"),
    (nn.AvgPool2d(2, 1, divisor_override=3), "nn.AvgPool2d((2, 2), stride=(1, 1), divisor_override=3)"),
    (nn.Unfold(2), "nn.Unfold((2, 2))"),
    (nn.Unfold(2, stride=2), "nn.Unfold((2, 2), stride=(2, 2))"),
    (nn.Embedding(5, 3, padding_idx=0, max_norm=2.0), "nn.Embedding(5, 3, padding_idx=0, max_norm=2.0)"),
    (nn.LSTM(4, 3, 2, proj_size=2), "nn.LSTM(4, 3, num_layers=2, proj_size=2)"),
    (nn.RNN(4, 3, nonlinearity="relu"), "nn.RNN(4, 3, nonlinearity='relu')"),
    (nn.MultiheadAttention(4, 2, add_bias_kv=True, kdim=3), "nn.MultiheadAttention(4, 2, add_bias_kv=True, kdim=3)"),
    (nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())), "nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))"),
    (nn.ModuleList([nn.ReLU()]), "nn.ModuleList([nn.ReLU()])"),
    (nn.ModuleDict({"a": nn.ReLU()}), "nn.ModuleDict({'a': nn.ReLU()})"),
    (nn.UpsamplingBilinear2d((4, 6)), "nn.Upsample(size=(4, 6), mode='bilinear', align_corners=True)"),
    (nn.MultiheadAttention(4, 2).out_proj, "nn.Linear(4, 4)"),
]


@pytest.mark.parametrize(("layer", "text"), SPELLED, ids=[text for _, text in SPELLED])
def test_layers_are_spelled_as_people_write_them(layer, text):
    assert ADAPTER.expression(layer) == text
    made = evaluated(text)
    assert ADAPTER.spec(made) == ADAPTER.spec(layer)
    assert {name: value.shape for name, value in made.state_dict().items()} == {
        name: value.shape for name, value in layer.state_dict().items()
    }


def test_what_cannot_be_spelled_says_why():
    named = nn.Sequential()
    named.add_module("first", nn.ReLU())
    for layer, word in ((named, "first"), (nn.Sequential(Scaled()), "Scaled"), (nn.Fold((2, 2), 1), "Fold")):
        with pytest.raises(ValueError, match=word):
            ADAPTER.expression(layer)


def test_casting_leaves_other_types_and_ties_alone():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
            self.two.weight = self.one.weight
            self.lstm = nn.LSTM(3, 3)
            self.register_buffer("wave", torch.ones(2, dtype=torch.complex64))
            self.register_buffer("ids", torch.arange(3))
            self.table, self.hidden = torch.ones(3), [torch.zeros(2, 3)]

    net = Net()
    weight = net.one.weight
    ADAPTER.cast(net, "float64")
    assert net.one.weight is net.two.weight is weight
    assert {p.dtype for p in net.parameters()} == {torch.float64}
    assert (net.wave.dtype, net.ids.dtype) == (torch.complex64, torch.int64)
    assert (net.table.dtype, net.hidden[0].dtype) == (torch.float64, torch.float64)
    assert net.lstm(torch.zeros(2, 1, 3, dtype=torch.float64))[0].dtype == torch.float64
    for dtype in ("int64", "float33", "complex64"):
        with pytest.raises(ValueError, match=dtype):
            ADAPTER.cast(net, dtype)


def test_casting_reaches_weights_behind_others_and_made_in_inference_mode():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    ADAPTER.cast(layer, "float64")
    assert layer(torch.zeros(1, 3, dtype=torch.float64)).dtype == torch.float64
    with torch.inference_mode():
        layer = nn.Linear(3, 2)
    ADAPTER.cast(layer, "float16")
    assert layer.weight.dtype == torch.float16


def base_of_many():
    base = torch.zeros(4, 3)
    return base, base[1:3]


def test_overwriting_under_gradients_and_in_inference_mode():
    leaf = torch.ones(3, requires_grad=True)
    ADAPTER.overwrite(leaf, torch.full((3,), 2.0))
    assert leaf.requires_grad
    assert leaf.tolist() == [2, 2, 2]
    inside = leaf * 2
    ADAPTER.overwrite(inside, torch.zeros(3))
    assert inside.tolist() == [0, 0, 0]
    inside.sum().backward()
    assert leaf.grad.tolist() == [2, 2, 2]
    with torch.inference_mode():
        made = torch.ones(2)
        ADAPTER.overwrite(made, torch.zeros(2))
    ADAPTER.overwrite(made, torch.full((2,), 3.0))
    assert made.tolist() == [3, 3]
    plain = torch.zeros(2)
    ADAPTER.overwrite(plain, made)
    plain.add_(1)
    assert (plain.tolist(), made.tolist()) == ([4, 4], [3, 3])


def test_overwriting_a_slice_or_a_broadcast_moves_nothing_else():
    base, rows = base_of_many()
    ADAPTER.overwrite(rows, torch.ones(2, 3))
    assert not base.any()
    assert rows.all()
    wide = torch.zeros(1, 3).expand(4, 3)
    ADAPTER.overwrite(wide, torch.arange(12.0).reshape(4, 3))
    assert wide.tolist() == torch.arange(12.0).reshape(4, 3).tolist()


def test_overwriting_is_refused_with_a_reason():
    layer = nn.Linear(2, 2)
    for tensor, other, word in (
        (layer.weight, torch.zeros(2, 2), "parameter"),
        (torch.zeros(2), torch.zeros(3), "shape"),
        (torch.zeros(2), torch.zeros(2).double(), "dtype"),
        (torch.eye(2).to_sparse(), torch.eye(2), "layout"),
        (torch.zeros(2), torch.zeros(2, device="meta"), "device"),
    ):
        with pytest.raises(ValueError, match=word):
            ADAPTER.overwrite(tensor, other)


def test_random_numbers_can_be_drawn_again():
    state = ADAPTER.random_state()
    first = torch.rand(4)
    ADAPTER.set_random_state(state)
    assert torch.equal(torch.rand(4), first)


def test_settings_of_a_copied_spec_are_plain():
    copy = ADAPTER.respecified(nn.GELU(), {"approximate": "tanh"}, "float64")
    assert ADAPTER.spec(copy) == LayerSpec("GELU", {"approximate": "tanh"})
    x = np.linspace(-3, 3, 7)
    wanted = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(copy(torch.from_numpy(x)).numpy(), wanted, rtol=1e-12)
