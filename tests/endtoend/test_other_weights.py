"""Weights that are the same in another form: carried over, compared and traced, in both directions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there
from torch.nn import functional as F  # noqa: E402 - as above

from tests.endtoend import pairs  # noqa: E402 - as above

WIDE, HEADS = 12, 3
SHARE = WIDE // HEADS


def attended(query, key, value):
    batch, length = query.shape[:2]
    query, key, value = (x.reshape(batch, length, HEADS, SHARE).transpose(1, 2) for x in (query, key, value))
    mixed = (query @ key.transpose(-1, -2) / SHARE**0.5).softmax(-1) @ value
    return mixed.transpose(1, 2).reshape(batch, length, WIDE)


class Three(nn.Module):
    """A projection each."""

    def __init__(self):
        super().__init__()
        self.k_proj, self.v_proj, self.q_proj = (nn.Linear(WIDE, WIDE) for _ in range(3))
        self.out_proj = nn.Linear(WIDE, WIDE)

    def forward(self, x):
        return self.out_proj(attended(self.q_proj(x), self.k_proj(x), self.v_proj(x)))


class Fused(nn.Module):
    """One for all three, by `dense`; head by head if `heads`."""

    def __init__(self, dense=nn.Linear, heads=False):
        super().__init__()
        self.qkv, self.proj, self.heads = dense(WIDE, 3 * WIDE), dense(WIDE, WIDE), heads

    def forward(self, x):
        y = self.qkv(x)
        if self.heads:
            y = y.reshape(*x.shape[:2], HEADS, 3, SHARE).transpose(2, 3).reshape(*x.shape[:2], 3 * WIDE)
        return self.proj(attended(*y.chunk(3, -1)))


class KeyValue(nn.Module):
    """One for keys and values."""

    def __init__(self):
        super().__init__()
        self.q, self.kv, self.proj = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 2 * WIDE), nn.Linear(WIDE, WIDE)

    def forward(self, x):
        return self.proj(attended(self.q(x), *self.kv(x).chunk(2, -1)))


class QueryKey(nn.Module):
    """One for queries and keys."""

    def __init__(self):
        super().__init__()
        self.qk, self.v, self.proj = nn.Linear(WIDE, 2 * WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)

    def forward(self, x):
        return self.proj(attended(*self.qk(x).chunk(2, -1), self.v(x)))


class Framework(nn.Module):
    """PyTorch's own."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDE, HEADS, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class Turned(nn.Module):
    """Keeps its weight as (in, out), as GPT-2 does."""

    def __init__(self, ins, outs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(ins, outs)), nn.Parameter(torch.zeros(outs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Net(nn.Module):
    def __init__(self, attention, dense=nn.Linear):
        super().__init__()
        self.stem, self.head = nn.Linear(5, WIDE), nn.Linear(WIDE, 4)
        self.blocks = nn.ModuleList(Block(attention(), dense) for _ in range(2))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self, attention, dense):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(WIDE), attention, nn.LayerNorm(WIDE)
        self.fc1, self.fc2 = dense(WIDE, 2 * WIDE), dense(2 * WIDE, WIDE)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Experts(nn.Module):
    """A list of matrices, or a stack of them."""

    def __init__(self, stacked):
        super().__init__()
        self.gate, self.stacked = nn.Linear(5, 4), stacked
        if stacked:
            self.w = nn.Parameter(torch.zeros(4, 6, 5))
        else:
            self.experts = nn.ModuleList(nn.Linear(5, 6, bias=False) for _ in range(4))

    def forward(self, x):
        if self.stacked:
            made = torch.einsum("bnd,eod->bneo", x, self.w)
        else:
            made = torch.stack([expert(x) for expert in self.experts], 2)
        return (self.gate(x).softmax(-1).unsqueeze(-1) * made).sum(2)


class Pointwise(nn.Module):
    """A convolution of one by one and a scale with axes of one, or a Dense layer and a vector."""

    def __init__(self, convolution):
        super().__init__()
        self.mix = nn.Conv2d(5, 6, 1) if convolution else nn.Linear(5, 6)
        self.gamma = nn.Parameter(torch.zeros((1, 6, 1, 1) if convolution else (6,)))
        self.convolution = convolution

    def forward(self, x):
        x = x.unflatten(1, (1, -1))
        if self.convolution:
            return self.mix(x.permute(0, 3, 1, 2)) * self.gamma
        return (self.mix(x) * self.gamma).permute(0, 3, 1, 2)


def alternating(*attentions):
    kinds = iter(attentions)
    return Net(lambda: next(kinds)())


FORMS = {
    "three": lambda: Net(Three),
    "fused": lambda: Net(Fused),
    "by head": lambda: Net(lambda: Fused(heads=True)),
    "key and value": lambda: Net(KeyValue),
    "query and key, then fused": lambda: alternating(QueryKey, Fused),
    "framework": lambda: Net(Framework),
    "turned": lambda: Net(lambda: Fused(Turned), Turned),
    "list": lambda: Experts(False),
    "stack": lambda: Experts(True),
    "convolution": lambda: Pointwise(True),
    "dense": lambda: Pointwise(False),
}


def compared(tmp_path, net, port, spoil=None):
    torch.manual_seed(0)
    for name, parameter in net.named_parameters():
        nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0, 0.3)
    return pairs.compared(tmp_path, net, port, torch.randn(2, 7, 5), spoil=spoil)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("three", "fused"),
        ("fused", "three"),
        ("three", "by head"),
        ("by head", "three"),
        ("fused", "key and value"),
        ("key and value", "fused"),
        ("three", "key and value"),
        ("key and value", "three"),
        ("query and key, then fused", "three"),
        ("three", "query and key, then fused"),
        ("framework", "three"),
        ("three", "framework"),
        ("fused", "turned"),
        ("turned", "fused"),
        ("turned", "turned"),
        ("three", "turned"),
        ("turned", "three"),
        ("list", "stack"),
        ("stack", "list"),
        ("convolution", "dense"),
        ("dense", "convolution"),
    ],
)
def test_the_same_weights_in_another_form_are_carried_over_and_compared(tmp_path, one, other):
    result = compared(tmp_path, FORMS[one](), FORMS[other]())
    assert result.aligned
    assert not result.origins
    assert not result.counts["unmatched"]


def another_stem(port):
    port.stem.register_forward_hook(lambda layer, given, made: made.abs())


def another_attention(port):
    port.blocks[0].attn.qkv.register_forward_hook(lambda layer, given, made: made.flip(1))


@pytest.mark.parametrize(
    ("mistake", "places"),
    [(another_stem, {"stem"}), (another_attention, {f"blocks.0.attn.{name}_proj" for name in "qkv"})],
    ids=["before", "in the first"],
)
def test_rows_lie_head_by_head_whatever_else_is_wrong(tmp_path, mistake, places):
    port = FORMS["by head"]()
    mistake(port)
    result = compared(tmp_path, FORMS["three"](), port)
    assert {origin.layer for origin in result.origins} == places


def exchanged(port):
    weight = port.blocks[0].attn.qkv.weight
    weight.copy_(torch.cat([weight[WIDE : 2 * WIDE], weight[:WIDE], weight[2 * WIDE :]]))


def exchanged_apart(port):
    attention = port.blocks[0].attn
    kept = attention.q_proj.weight.clone()
    attention.q_proj.weight.copy_(attention.k_proj.weight)
    attention.k_proj.weight.copy_(kept)


def without_one_head(port):
    port.blocks[1].attn.qkv.bias[2 * WIDE : 2 * WIDE + SHARE] = 0


@pytest.mark.parametrize(
    ("one", "other", "spoil", "origins", "cause"),
    [
        ("three", "fused", exchanged, {("q_proj", "weight"), ("k_proj", "weight")}, "parameter-swapped"),
        ("three", "fused", without_one_head, {("v_proj", "bias")}, "parameter-differs"),
        ("fused", "three", exchanged_apart, {("qkv", "weight[0:12]")}, "parameter-swapped"),
    ],
    ids=["q and k inside qkv", "one head's bias", "q and k apart"],
)
def test_a_weight_that_is_wrong_in_such_a_form_is_named(tmp_path, one, other, spoil, origins, cause):
    result = compared(tmp_path, FORMS[one](), FORMS[other](), spoil)
    assert {(origin.layer.rpartition(".")[2], origin.slot) for origin in result.origins} == origins
    assert {origin.where for origin in result.origins} == {"parameters"}
    assert {origin.causes[0].id for origin in result.origins} == {cause}
