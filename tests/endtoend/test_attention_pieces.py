"""An attention is one layer here, and layers with lines between them there: what comes out of it is compared."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from tests.endtoend.pairs import compared, places, telling  # noqa: E402 - as above

WIDE, HEADS = 12, 3
SHARE = WIDE // HEADS


def attended(qkv, proj, x, scale, axis):
    batch, length, _ = x.shape
    query, key, value = qkv(x).reshape(batch, length, 3, HEADS, SHARE).permute(2, 0, 3, 1, 4)
    weights = (query @ key.transpose(-2, -1) * scale).softmax(axis)
    return proj((weights @ value).transpose(1, 2).reshape(batch, length, WIDE))


class Whole(nn.Module):
    """PyTorch's own, inside a class of the author's."""

    def __init__(self):
        super().__init__()
        self.self_attention = nn.MultiheadAttention(WIDE, HEADS, batch_first=True)

    def forward(self, x):
        return self.self_attention(x, x, x, need_weights=False)[0]


class Pieces(nn.Module):
    def __init__(self, scale=SHARE**-0.5, axis=-1):
        super().__init__()
        self.qkv, self.proj, self.scale, self.axis = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE), scale, axis

    def forward(self, x):
        return attended(self.qkv, self.proj, x, self.scale, self.axis)


class Block(nn.Module):
    def __init__(self, attn):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(WIDE), attn, nn.LayerNorm(WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 2 * WIDE), nn.GELU(), nn.Linear(2 * WIDE, WIDE))

    def forward(self, x):
        y = self.norm1(x)
        own = isinstance(self.attn, nn.MultiheadAttention)
        x = x + (self.attn(y, y, y, need_weights=False)[0] if own else self.attn(y))
        return x + self.mlp(self.norm2(x))


class Flat(nn.Module):
    """The layers are the block's own, and have other names."""

    def __init__(self, **wrong):
        super().__init__()
        self.ln_1, self.to_qkv, self.to_out = nn.LayerNorm(WIDE), nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.ln_2, self.fc1, self.act = nn.LayerNorm(WIDE), nn.Linear(WIDE, 2 * WIDE), nn.GELU()
        self.fc2, self.wrong = nn.Linear(2 * WIDE, WIDE), {"scale": SHARE**-0.5, "axis": -1, **wrong}

    def forward(self, x):
        x = x + attended(self.to_qkv, self.to_out, self.ln_1(x), **self.wrong)
        return x + self.fc2(self.act(self.fc1(self.ln_2(x))))


class ViT(nn.Module):
    """A mistake in the second block."""

    def __init__(self, block, **wrong):
        super().__init__()
        self.patch, self.norm, self.head = nn.Conv2d(3, WIDE, 2, 2), nn.LayerNorm(WIDE), nn.Linear(WIDE, 5)
        self.blocks = nn.ModuleList(block(**(wrong if n == 1 else {})) for n in range(3))

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


WHOLE = {
    "own": lambda: ViT(lambda: Block(nn.MultiheadAttention(WIDE, HEADS, batch_first=True))),
    "inside": lambda: ViT(lambda: Block(Whole())),
}
PIECES = {
    "a layer": (lambda **wrong: ViT(lambda **w: Block(Pieces(**w)), **wrong), ("blocks.1.attn", "layer", None)),
    "lines": (lambda **wrong: ViT(Flat, **wrong), ("blocks.1", "glue", ("blocks.1.norm1", "blocks.1.norm2"))),
}


@pytest.mark.parametrize("wrong", [{}, {"scale": 1.0}, {"axis": -2}], ids=["right", "scale", "axis"])
@pytest.mark.parametrize("other", PIECES)
@pytest.mark.parametrize("one", WHOLE)
def test_an_attention_in_pieces_is_compared_by_what_comes_out(tmp_path, one, other, wrong):
    port, place = PIECES[other]
    if (one, other) == ("inside", "a layer"):  # of the two around it the framework's own is meant
        place = ("blocks.1.attn.self_attention", "layer", None)
    torch.manual_seed(1)
    result = compared(tmp_path, telling(WHOLE[one]()), port(**wrong), torch.randn(2, 3, 6, 6))
    assert result.aligned is not bool(wrong)
    assert places(result) == [place] * bool(wrong)
    assert not result.suspects


class Recurrent(nn.Module):
    """PyTorch's own, or a class with the same weights in it that does the same by lines."""

    def __init__(self, own, wrong=False):
        super().__init__()
        self.stem, self.head = nn.Linear(5, 6), nn.Linear(6, 3)
        if own:
            self.rnn = nn.GRU(6, 6, batch_first=True)
        else:
            self.recurrent = Lines(wrong)

    def forward(self, x):
        return self.head((self.rnn if hasattr(self, "rnn") else self.recurrent)(self.stem(x))[0])


class Lines(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        for name, shape in {
            "weight_ih_l0": (18, 6),
            "weight_hh_l0": (18, 6),
            "bias_ih_l0": 18,
            "bias_hh_l0": 18,
        }.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
        self.wrong = wrong

    def forward(self, x):
        state, made = x[:, 0] * 0, []
        for step in x.unbind(1):
            given = (step @ self.weight_ih_l0.T + self.bias_ih_l0).chunk(3, -1)
            own = (state @ self.weight_hh_l0.T + self.bias_hh_l0).chunk(3, -1)
            reset, update = (torch.sigmoid(given[n] + own[n]) for n in range(2))
            new = torch.tanh(given[2] + reset * own[2])
            state = update * state + (1 - update) * new if not self.wrong else (1 - update) * state + update * new
            made.append(state)
        return torch.stack(made, 1), state[None]


@pytest.mark.parametrize("wrong", [False, True])
def test_a_layer_with_all_the_weights_that_makes_the_same_is_the_whole(tmp_path, wrong):
    torch.manual_seed(1)
    result = compared(tmp_path, telling(Recurrent(True)), Recurrent(False, wrong), torch.randn(2, 4, 5))
    assert result.aligned is not wrong
    assert places(result) == [("rnn", "layer", None)] * wrong
