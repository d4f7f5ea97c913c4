"""The two-tower recommender in MindSpore, by somebody with other names: the correct port."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops


class HistoryAttention(nn.Cell):
    """How much each item of the history matters for the candidate, and their sum."""

    def __init__(self, width: int):
        super().__init__()
        self.dense_a = nn.Dense(4 * width, 24)
        self.prelu = nn.PReLU(channel=24)
        self.dense_b = nn.Dense(24, 1)

    def construct(self, candidate, history, present):
        wide = candidate.expand_dims(1).expand_as(history)
        features = ops.cat([wide, history, wide - history, wide * history], axis=-1)
        hidden = self.dense_a(features)
        scores = self.dense_b(self.prelu(hidden.swapaxes(1, 2)).swapaxes(1, 2)).squeeze(-1)
        weights = ops.softmax(scores.masked_fill(ops.logical_not(present), -1e9), axis=-1)
        return (weights.expand_dims(-1) * history).sum(axis=1)


class Tower(nn.Cell):
    """A perceptron with batch normalisation; its vectors have length one."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.dense_a = nn.Dense(inputs, 48)
        self.norm_a = nn.BatchNorm1d(48, eps=1e-5, momentum=0.9)
        self.leaky = nn.LeakyReLU(alpha=0.01)
        self.dense_b = nn.Dense(48, 32)
        self.norm_b = nn.BatchNorm1d(32, eps=1e-3, momentum=0.9)
        self.selu = nn.SeLU()
        self.dense_c = nn.Dense(32, width)

    def construct(self, x):
        x = self.leaky(self.norm_a(self.dense_a(x)))
        x = self.selu(self.norm_b(self.dense_b(x)))
        x = self.dense_c(x)
        return x / ops.sqrt((x * x).sum(axis=-1, keepdims=True)).clamp(1e-12)


class TwoTower(nn.Cell):
    """Scores a candidate for a user, with a deep part and a linear one."""

    def __init__(self, users: int = 60, items: int = 150, width: int = 16):
        super().__init__()
        self.user_table = nn.Embedding(users, width)
        self.item_table = nn.Embedding(items, width, padding_idx=0)
        self.genre_table = nn.Embedding(12, 8)
        self.number_norm = nn.LayerNorm((5,), epsilon=1e-5)
        self.attention = HistoryAttention(width)
        self.left_tower = Tower(3 * width + 5, width)
        self.right_tower = Tower(width + 8, width)
        self.temperature = ms.Parameter(ms.Tensor(1.0, ms.float32), name="temperature")
        self.linear = nn.Dense(width, 1)

    def construct(self, batch):
        user, item = self.user_table(batch["user"]), self.item_table(batch["item"])
        history = self.item_table(batch["history"])
        present = batch["history"] != 0
        interest = self.attention(item, history, present)
        weight = present.astype(history.dtype).expand_dims(-1)
        average = (history * weight).sum(axis=1) / weight.sum(axis=1).clamp(1.0)
        numbers = self.number_norm(ops.log1p(batch["dense"]))
        left = self.left_tower(ops.cat([user, interest, average, numbers], axis=1))
        genres = self.genre_table(batch["genres"]).mean(axis=1)
        right = self.right_tower(ops.cat([item, genres], axis=1))
        deep = (left * right).sum(axis=-1) / self.temperature
        score = deep + self.linear(user * item).squeeze(-1)
        return {"score": ops.log1p(ops.exp(2.0 * score)) / 2.0, "user": left, "item": right}


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return TwoTower()


def build_float16():
    """The net in float16 but for its norms."""
    return ms.amp.auto_mixed_precision(TwoTower(), "O2")
