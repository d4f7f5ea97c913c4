"""One mistake is one place, whichever way it goes through the code; and a right port in a short type has none."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

import aligner  # noqa: E402 - as above
from aligner.capture.session import Options  # noqa: E402 - as above


def compared(tmp_path, net, port, *inputs, training=False):
    """The comparison of a port, with the reference's weights, after a free run and a forced pass."""
    net.train(training)
    port.train(training)
    with torch.no_grad(), aligner.capture(net, tmp_path / "ref.h5", silence_dropout=True):
        net(*inputs)
    replay = aligner.replay(tmp_path / "ref.h5", port)
    with torch.no_grad(), replay.capture(tmp_path / "port.h5", Options(silence_dropout=True)):
        port(*replay.inputs(0))
    return aligner.compare(tmp_path / "ref.h5", tmp_path / "port.h5")


def places(result):
    return [(origin.layer, origin.where, origin.between) for origin in result.origins + result.suspects]


class Cloud(nn.Module):
    """What is pooled goes to one layer beside other values, spread, and to another one as it is."""

    def __init__(self, pool=torch.amax, second=1.0):
        super().__init__()
        self.points, self.both, self.whole = nn.Conv1d(3, 24, 1), nn.Conv1d(27, 4, 1), nn.Linear(24, 5)
        self.pool, self.second = pool, second

    def forward(self, x):
        pooled = self.pool(self.points(x), 2)
        both = self.both(torch.cat([pooled.unsqueeze(2).expand(-1, -1, x.shape[2]), x], 1))
        return both, self.whole(pooled * self.second)


@pytest.mark.parametrize("second", [1.0, 1.1])
def test_a_wrong_value_that_is_used_twice_is_one_place_and_a_second_mistake_is_another(tmp_path, second):
    torch.manual_seed(0)
    result = compared(tmp_path, Cloud(), Cloud(torch.mean, second), torch.randn(2, 3, 30))
    wanted = [("", "glue", ("points", "both"))]
    assert places(result) == wanted + [("", "glue", ("both", "whole"))] * (second != 1.0)


class Attention(nn.Module):
    """The mask says True where to look, or, `inverted`, where not to."""

    def __init__(self, inverted=False):
        super().__init__()
        self.qkv, self.out, self.inverted = nn.Linear(8, 24), nn.Linear(8, 8), inverted

    def forward(self, x, mask):
        query, key, value = self.qkv(x).chunk(3, -1)
        scores = (query @ key.transpose(1, 2)).masked_fill(mask if self.inverted else ~mask, float("-inf"))
        return self.out(scores.softmax(-1) @ value)


class Causal(nn.Module):
    def __init__(self, inverted=False, shift=0):
        super().__init__()
        self.stem, self.layers = nn.Linear(6, 8), nn.ModuleList(Attention(inverted) for _ in range(2))
        self.inverted, self.shift = inverted, shift

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(self.shift)
        mask, x = ~mask if self.inverted else mask, self.stem(x)
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


@pytest.mark.parametrize("inverted", [False, True])
def test_a_mask_that_is_wrong_at_some_places_is_the_doing_of_the_code_that_made_it(tmp_path, inverted):
    torch.manual_seed(0)
    result = compared(tmp_path, Causal(), Causal(inverted, shift=1), torch.randn(2, 5, 6))
    assert places(result) == [("", "glue", ("stem", "layers.0"))]


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(12, 6)

    def forward(self, x, state):
        state = torch.tanh(self.mix(torch.cat([x, state], -1)))
        return state * 0.5, state


class Stack(nn.Module):
    """Two cells, each with a state of its own, or, `lost`, both with the first one's."""

    def __init__(self, lost=False):
        super().__init__()
        self.steps, self.lost = nn.ModuleList([Step(), Step()]), lost

    def forward(self, x):
        states = [x[0] * 0, x[0] * 0]
        for y in x:
            for number, step in enumerate(self.steps):
                y, states[number] = step(y, states[0 if self.lost else number])
        return states


def test_a_value_that_was_taken_for_another_stays_right_for_those_who_are_to_get_it(tmp_path):
    torch.manual_seed(0)
    result = compared(tmp_path, Stack(), Stack(lost=True), torch.randn(9, 3, 6))
    assert places(result) == [("", "glue", ("steps.0", "steps.1"))]


class Dropping(nn.Module):
    def __init__(self, half=False, apart=False):
        super().__init__()
        self.half_, self.apart = half, nn.ReflectionPad2d(1) if apart else None
        self.conv = nn.Conv2d(3, 8, 3, padding=0 if apart else 1, padding_mode="zeros" if apart else "reflect")
        self.norm, self.drop, self.fc = nn.BatchNorm2d(8), nn.Dropout(0.4), nn.Linear(8, 5)

    def forward(self, x):
        x = x.half() if self.half_ else x
        x = self.norm(self.conv(x if self.apart is None else self.apart(x)))
        return self.fc(self.drop(F.relu(x)).mean((2, 3))).float()


@pytest.mark.parametrize("apart", [False, True], ids=["dropout", "padding apart"])
def test_a_right_port_in_half_precision_is_explained_also_where_a_copy_of_a_layer_runs_otherwise(tmp_path, apart):
    torch.manual_seed(0)
    net, port = Dropping(), Dropping(half=True, apart=apart)
    port = copy.deepcopy(port).half()
    result = compared(tmp_path, net, port, torch.randn(4, 3, 12, 12), training=True)
    assert places(result) == []
    assert result.aligned


class Reader(nn.Module):
    """A loop over time, forwards or, `backwards`, as it should not be."""

    def __init__(self, backwards=False):
        super().__init__()
        self.step, self.out, self.backwards = Step(), nn.Linear(6, 4), backwards

    def forward(self, x):
        state, said = x[0] * 0, []
        for y in x.flip(0) if self.backwards else x:
            state, _ = self.step(y, state)
            said.append(self.out(state))
        return torch.stack(said)


def test_a_loop_that_reads_the_wrong_values_is_one_place_though_its_first_turn_follows_nothing(tmp_path):
    torch.manual_seed(0)
    result = compared(tmp_path, Reader(), Reader(backwards=True), torch.randn(6, 3, 6))
    assert places(result) == [("", "glue", ("", "step"))]


class Rows(nn.Module):
    """Works on rows of different lengths, and hands on a packed sequence or a padded one."""

    def __init__(self, packed, scale=1.0):
        super().__init__()
        self.weight, self.packed, self.scale = nn.Parameter(torch.randn(6, 8)), packed, scale

    def forward(self, x, lengths):
        y = torch.tanh(x @ self.weight) * self.scale
        if self.packed:
            y = nn.utils.rnn.pack_padded_sequence(y, lengths, batch_first=True, enforce_sorted=False)
        return y, x.sum(1)


class Lengths(nn.Module):
    def __init__(self, packed=True, scale=1.0):
        super().__init__()
        self.rows, self.norm, self.fc = Rows(packed, scale), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x, lengths):
        y, _ = self.rows(x, lengths)
        if self.rows.packed:
            y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
        else:
            y = y * (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
        return self.fc(self.norm(y))


@pytest.mark.parametrize(("scale", "wanted"), [(1.0, []), (1.1, [("rows", "glue", ("rows", "norm"))])])
def test_an_output_in_another_structure_is_judged_by_what_the_net_goes_on_with(tmp_path, scale, wanted):
    torch.manual_seed(0)
    inputs = torch.randn(3, 5, 6), torch.tensor([3, 5, 2])
    result = compared(tmp_path, Lengths(), Lengths(packed=False, scale=scale), *inputs)
    assert places(result) == wanted
    assert result.aligned is not bool(wanted)


class Forgetful(nn.Module):
    """Takes the rows apart without saying how long they are, so that what it knows of them is wrong too."""

    def __init__(self, given=True):
        super().__init__()
        self.rows, self.given = Long(), given
        self.norm, self.fc, self.mix = nn.LayerNorm(8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x, lengths):
        y, last = self.rows(x, lengths) if self.given else self.rows(x)
        if isinstance(y, nn.utils.rnn.PackedSequence):
            y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
        return self.fc(self.norm(y)) + self.mix(last)[:, None]


class Long(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8))

    def forward(self, x, lengths=None):
        y = torch.tanh(x @ self.weight)
        if lengths is None:
            return y, y[:, -1]
        packed = nn.utils.rnn.pack_padded_sequence(y, lengths, batch_first=True, enforce_sorted=False)
        return packed, y[torch.arange(len(y)), lengths - 1]


def test_what_a_call_without_an_argument_hands_on_unseen_is_no_second_place(tmp_path):
    torch.manual_seed(0)
    inputs = torch.randn(3, 5, 6), torch.tensor([3, 5, 2])
    result = compared(tmp_path, Forgetful(), Forgetful(given=False), *inputs)
    assert places(result) == [("", "glue", ("", "rows"))]


class Normed(nn.Module):
    """Two norms; with `again`, the first one is called in the second one's place."""

    def __init__(self, again=False):
        super().__init__()
        self.norm1, self.fc1, self.norm2, self.fc2 = nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.again = again

    def forward(self, x):
        x = x + self.fc1(self.norm1(x))
        return x + self.fc2((self.norm1 if self.again else self.norm2)(x))


def test_a_layer_that_is_called_in_anothers_place_is_the_doing_of_the_code_around(tmp_path):
    torch.manual_seed(0)
    net = Normed()
    for parameter in net.parameters():
        parameter.data.normal_()
    result = compared(tmp_path, net, Normed(again=True), torch.randn(2, 3, 8))
    assert places(result) == [("", "glue", ("fc1", "fc2"))]  # the second norm does not run at all
    assert result.origins[0].edit is not None


class Gate(nn.Module):
    """Two ways of one length, multiplied; a `step` that is too small makes too much, which is cut off."""

    def __init__(self, step=4):
        super().__init__()
        self.one, self.other, self.cut = nn.Conv1d(4, 4, 2, dilation=step), nn.Conv1d(4, 4, 2, dilation=4), 4 - step

    def forward(self, x):
        return torch.tanh(self.one(x)[..., self.cut :]) * torch.sigmoid(self.other(x))


def test_code_that_cuts_off_what_a_layer_makes_too_much_gets_through(tmp_path):
    torch.manual_seed(0)
    result = compared(
        tmp_path,
        nn.Sequential(Gate(), nn.Linear(28, 3)),
        nn.Sequential(Gate(1), nn.Linear(28, 3)),
        torch.randn(2, 4, 32),
    )
    assert places(result) == [("0.one", "layer", None)]
    assert result.checked
    assert result.origins[0].causes[0].confirmed


class Encoder(nn.Module):
    """A layer that hands its padding mask on to its attention, as -inf or as True."""

    def __init__(self, as_float=True, norm_first=False, inverted=False):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
        self.as_float, self.inverted = as_float, inverted

    def forward(self, x, padding):
        mask = ~padding if self.inverted else padding
        if self.as_float:
            mask = torch.zeros(padding.shape).masked_fill(mask, float("-inf"))
        return self.layer(x, src_key_padding_mask=mask)


def padded():
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    padding[0, 5:] = True
    return torch.randn(2, 6, 8), padding


def test_a_mistake_beside_a_mask_in_another_form_is_not_the_masks(tmp_path):
    """The attention is right with it; the norms of the layer stand in another place."""
    torch.manual_seed(0)
    result = compared(tmp_path, Encoder(), Encoder(as_float=False, norm_first=True), *padded(), training=True)
    assert not result.aligned
    assert {(layer, where) for layer, where, _ in places(result)} == {("layer", "glue")}


def test_a_mask_in_another_form_that_says_the_opposite_is_the_mistake(tmp_path):
    torch.manual_seed(0)
    result = compared(tmp_path, Encoder(), Encoder(as_float=False, inverted=True), *padded(), training=True)
    assert places(result) == [("", "glue", ("", "layer"))]


class Padded(nn.Module):
    """A mask for what is padded, its words on the axis of the keys, or of the queries."""

    def __init__(self, queries=False):
        super().__init__()
        self.stem, self.layers = nn.Linear(6, 8), nn.ModuleList(Scored() for _ in range(2))
        self.queries = queries

    def forward(self, x, present):
        mask = (1.0 - (present[:, :, None] if self.queries else present[:, None, :])) * -10000.0
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


class Scored(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.softmax, self.out = nn.Linear(8, 24), nn.Softmax(-1), nn.Linear(8, 8)

    def forward(self, x, mask):
        query, key, value = self.qkv(x).chunk(3, -1)
        return self.out(self.softmax(query @ key.transpose(1, 2) + mask) @ value)


def test_a_mask_whose_axis_of_one_stands_elsewhere_is_not_cleared_by_equal_numbers(tmp_path):
    torch.manual_seed(0)
    inputs = torch.randn(2, 5, 6), torch.tensor([[1.0, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
    result = compared(tmp_path, Padded(), Padded(queries=True), *inputs)
    assert places(result) == [("", "glue", ("stem", "layers.0"))]
