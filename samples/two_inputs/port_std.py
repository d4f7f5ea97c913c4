"""The matching net in MindSpore with one mistake: the standard deviation is taken with n.

torch's Tensor.std divides by n - 1, MindSpore's by n: every value comes out too large by the same factor.
"""

from __future__ import annotations

from mindspore import Parameter, nn, ops


class LayerNorm(nn.Cell):
    """Layer normalisation written by hand with the standard deviation, which torch takes with n - 1."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.gain = Parameter(ops.ones(width), name="gain")
        self.shift = Parameter(ops.zeros(width), name="shift")
        self.eps = eps

    def construct(self, x):
        mean = x.mean(-1, keep_dims=True)
        return self.gain * (x - mean) / (x.std(-1, keepdims=True) + self.eps) + self.shift  # planted: ddof=1 is missing


class Tower(nn.Cell):
    """Words to one vector: embedding, perceptron, mean over the words that are there, normalisation."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.fc1 = nn.Dense(width, 2 * width)
        self.act = nn.HSwish()
        self.fc2 = nn.Dense(2 * width, width)
        self.norm = LayerNorm(width)

    def construct(self, words, *, present):
        x = self.fc2(self.act(self.fc1(self.embedding(words))))
        weight = present.expand_dims(-1)
        return self.norm((x * weight).sum(1) / weight.sum(1))


class Matcher(nn.Cell):
    """Scores how well an item fits a query; both go through the same tower."""

    def __init__(self, vocabulary: int = 150, width: int = 16):
        super().__init__()
        self.tower = Tower(vocabulary, width)
        self.fc = nn.Dense(4 * width, width)
        self.act = nn.ReLU()
        self.score = nn.Dense(width, 1)

    def construct(self, pair):
        query = self.tower(pair["query"]["words"], present=pair["query"]["present"])
        item = self.tower(pair["item"]["words"], present=pair["item"]["present"])
        features = ops.cat([query, item, (query - item).abs(), query * item], axis=-1)
        return {"score": self.score(self.act(self.fc(features))).squeeze(-1), "vectors": (query, item)}


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Matcher()
