"""A small text encoder that is trained for eight things at once and returns their losses. The MindSpore port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops


class Encoder(nn.Cell):
    """Words to features: an embedding and two layers that look at the words before."""

    def __init__(self, words: int, width: int):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.look = nn.Conv1d(width, width, 3, pad_mode="valid", has_bias=True)
        self.act = nn.GELU(approximate=False)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, tokens):
        x = self.embed(tokens).swapaxes(1, 2)
        x = x + self.act(self.look(ops.pad(x, (2, 0))))
        return self.norm(x.swapaxes(1, 2))


class TagHead(nn.Cell):
    """A tag for each word; rare ones weigh more, and padding (-100) does not count."""

    def __init__(self, width: int, tags: int):
        super().__init__()
        self.out = nn.Dense(width, tags)
        self.weight = ms.Tensor(np.linspace(0.5, 2.5, tags), ms.float32)

    def construct(self, x, tags):
        logits = self.out(x).astype(ms.float32)
        tags = tags.reshape(-1).astype(ms.int32)
        return ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), tags, weight=self.weight, ignore_index=-100)


class LanguageHead(nn.Cell):
    """Each word foretells the next one; 0 is padding."""

    def __init__(self, width: int, words: int):
        super().__init__()
        self.out = nn.Dense(width, words, has_bias=False)
        self.loss = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)

    def construct(self, x, tokens):
        logits = self.out(x).astype(ms.float32)
        labels = tokens.astype(ms.int32)
        return self.loss(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))


class BoxHead(nn.Cell):
    """Four numbers for each text, for boxes on its page."""

    def __init__(self, width: int):
        super().__init__()
        self.out = nn.Dense(width, 4)
        self.loss = nn.SmoothL1Loss(beta=0.25, reduction="mean")

    def construct(self, x, boxes):
        return self.loss(ops.sigmoid(self.out(x).astype(ms.float32)), boxes)


class TopicHead(nn.Cell):
    """Any number of topics a text; those it has weigh more."""

    def __init__(self, width: int, topics: int):
        super().__init__()
        self.out = nn.Dense(width, topics)
        weight = ms.Tensor(np.linspace(1.5, 3.0, topics), ms.float32)
        self.loss = nn.BCEWithLogitsLoss(pos_weight=weight, weight=ops.ones(topics))

    def construct(self, x, topics):
        return self.loss(self.out(x).astype(ms.float32), topics)


class PupilHead(nn.Cell):
    """Learns what a larger net thinks, at a temperature."""

    def __init__(self, width: int, classes: int, temperature: float = 2.0):
        super().__init__()
        self.out = nn.Dense(width, classes)
        self.temperature = temperature

    def construct(self, x, teacher):
        logits = self.out(x).astype(ms.float32)
        pupil = ops.log_softmax(logits / self.temperature, axis=-1)
        master = ops.softmax(teacher / self.temperature, axis=-1)
        return ops.kl_div(pupil, master, reduction="batchmean") * self.temperature**2


class LengthHead(nn.Cell):
    """A length and how sure of it."""

    def __init__(self, width: int):
        super().__init__()
        self.out = nn.Dense(width, 2)
        self.loss = nn.GaussianNLLLoss()

    def construct(self, x, length):
        mean, spread = self.out(x).astype(ms.float32).chunk(2, axis=-1)
        return self.loss(mean, length, ops.softplus(spread))


class RareHead(nn.Cell):
    """Rare marks of words, with a focal loss written by hand."""

    def __init__(self, width: int, alpha: float = 0.25, gamma: float = 2.0):
        super().__init__()
        self.out = nn.Dense(width, 3)
        self.alpha, self.gamma = alpha, gamma

    def construct(self, x, marks):
        logits = self.out(x).astype(ms.float32)
        loss = ops.relu(logits) - logits * marks + ops.log(1 + ops.exp(-ops.abs(logits)))
        right = ops.exp(-loss)
        balance = self.alpha * marks + (1 - self.alpha) * (1 - marks)
        return (balance * (1 - right) ** self.gamma * loss).sum(-1).mean()


class PairHead(nn.Cell):
    """Two texts that belong together are alike, others are not."""

    def __init__(self, width: int):
        super().__init__()
        self.out = nn.Dense(width, 8)
        self.loss = nn.CosineEmbeddingLoss(margin=0.2)

    def construct(self, x, together):
        left, right = self.out(x).astype(ms.float32).chunk(2, axis=0)
        return self.loss(left, right, together)


class ManyLosses(nn.Cell):
    """All of them, and their weighted sum."""

    def __init__(self, words: int = 24, width: int = 20, tags: int = 6, topics: int = 5, classes: int = 7):
        super().__init__()
        self.encoder = Encoder(words, width)
        self.tag = TagHead(width, tags)
        self.language = LanguageHead(width, words)
        self.box = BoxHead(width)
        self.topic = TopicHead(width, topics)
        self.pupil = PupilHead(width, classes)
        self.length = LengthHead(width)
        self.rare = RareHead(width)
        self.pair = PairHead(width)

    def construct(self, tokens, tags, boxes, topics, teacher, length, marks, together):
        x = self.encoder(tokens)
        present = (tokens != 0).astype(ms.float32).expand_dims(-1)
        whole = (x * present).sum(1) / present.sum(1)
        words = self.tag(x, tags) + self.language(x, tokens) + 4.0 * self.rare(x, marks)
        texts = 2.5 * self.box(whole, boxes) + self.topic(whole, topics) + 0.5 * self.pupil(whole, teacher)
        return words, texts, self.length(whole, length), self.pair(whole, together)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return ManyLosses()


def build_float16():
    """The encoder and what the losses are given in float16, the losses in float32, as they are trained."""
    net = ManyLosses()
    net.encoder = ms.amp.auto_mixed_precision(net.encoder, "O2")
    for head in (net.tag, net.language, net.box, net.topic, net.pupil, net.length, net.rare, net.pair):
        head.out.to_float(ms.float16)
    return net
