"""A small text encoder that is trained for eight things at once and returns their losses. In PyTorch: the reference."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    """Words to features: an embedding and two layers that look at the words before."""

    def __init__(self, words: int, width: int):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.look = nn.Conv1d(width, width, 3)
        self.act = nn.GELU()
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        x = x + self.act(self.look(F.pad(x, (2, 0))))
        return self.norm(x.transpose(1, 2))


class TagHead(nn.Module):
    """A tag for each word; rare ones weigh more, and padding (-100) does not count."""

    def __init__(self, width: int, tags: int):
        super().__init__()
        self.out = nn.Linear(width, tags)
        self.register_buffer("weight", torch.linspace(0.5, 2.5, tags))

    def forward(self, x, tags):
        logits = self.out(x)
        return F.cross_entropy(logits.flatten(0, 1), tags.flatten(), weight=self.weight, ignore_index=-100)


class LanguageHead(nn.Module):
    """Each word foretells the next one; 0 is padding."""

    def __init__(self, width: int, words: int):
        super().__init__()
        self.out = nn.Linear(width, words, bias=False)
        self.loss = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)

    def forward(self, x, tokens):
        logits = self.out(x)
        return self.loss(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class BoxHead(nn.Module):
    """Four numbers for each text, for boxes on its page."""

    def __init__(self, width: int):
        super().__init__()
        self.out = nn.Linear(width, 4)
        self.loss = nn.SmoothL1Loss(beta=0.25)

    def forward(self, x, boxes):
        return self.loss(torch.sigmoid(self.out(x)), boxes)


class TopicHead(nn.Module):
    """Any number of topics a text; those it has weigh more."""

    def __init__(self, width: int, topics: int):
        super().__init__()
        self.out = nn.Linear(width, topics)
        self.loss = nn.BCEWithLogitsLoss(pos_weight=torch.linspace(1.5, 3.0, topics))

    def forward(self, x, topics):
        return self.loss(self.out(x), topics)


class PupilHead(nn.Module):
    """Learns what a larger net thinks, at a temperature."""

    def __init__(self, width: int, classes: int, temperature: float = 2.0):
        super().__init__()
        self.out = nn.Linear(width, classes)
        self.temperature = temperature

    def forward(self, x, teacher):
        pupil = F.log_softmax(self.out(x) / self.temperature, dim=-1)
        master = F.softmax(teacher / self.temperature, dim=-1)
        return F.kl_div(pupil, master, reduction="batchmean") * self.temperature**2


class LengthHead(nn.Module):
    """A length and how sure of it."""

    def __init__(self, width: int):
        super().__init__()
        self.out = nn.Linear(width, 2)
        self.loss = nn.GaussianNLLLoss()

    def forward(self, x, length):
        mean, spread = self.out(x).chunk(2, dim=-1)
        return self.loss(mean, length, F.softplus(spread))


class RareHead(nn.Module):
    """Rare marks of words, with a focal loss written by hand."""

    def __init__(self, width: int, alpha: float = 0.25, gamma: float = 2.0):
        super().__init__()
        self.out = nn.Linear(width, 3)
        self.alpha, self.gamma = alpha, gamma

    def forward(self, x, marks):
        logits = self.out(x)
        loss = F.binary_cross_entropy_with_logits(logits, marks, reduction="none")
        right = torch.exp(-loss)
        balance = self.alpha * marks + (1 - self.alpha) * (1 - marks)
        return (balance * (1 - right) ** self.gamma * loss).sum(-1).mean()


class PairHead(nn.Module):
    """Two texts that belong together are alike, others are not."""

    def __init__(self, width: int):
        super().__init__()
        self.out = nn.Linear(width, 8)
        self.loss = nn.CosineEmbeddingLoss(margin=0.2)

    def forward(self, x, together):
        left, right = self.out(x).chunk(2, dim=0)
        return self.loss(left, right, together)


class ManyLosses(nn.Module):
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

    def forward(self, tokens, tags, boxes, topics, teacher, length, marks, together):
        x = self.encoder(tokens)
        present = (tokens != 0).float().unsqueeze(-1)
        whole = (x * present).sum(1) / present.sum(1)
        words = self.tag(x, tags) + self.language(x, tokens) + 4.0 * self.rare(x, marks)
        texts = 2.5 * self.box(whole, boxes) + self.topic(whole, topics) + 0.5 * self.pupil(whole, teacher)
        return words, texts, self.length(whole, length), self.pair(whole, together)


def build():
    """The net with the same weights on every run, and six texts of different length."""
    torch.manual_seed(41)
    net = ManyLosses()
    for head in (net.tag, net.language, net.box, net.topic, net.pupil, net.length, net.rare, net.pair):
        nn.init.normal_(head.out.weight, std=0.35)
    nn.init.uniform_(net.encoder.norm.weight, 0.5, 1.5)
    nn.init.normal_(net.encoder.norm.bias, std=0.2)
    present = torch.arange(11) < torch.tensor([[11], [6], [9], [4], [10], [7]])
    tokens = torch.randint(1, 24, (6, 11)) * present
    tags = torch.where(present, torch.randint(0, 6, (6, 11)), -100)
    marks = (torch.rand(6, 11, 3) < 0.3).float()
    together = torch.tensor([-1.0, 1.0, -1.0])
    inputs = (tokens, tags, torch.rand(6, 4), (torch.rand(6, 5) < 0.4).float(), torch.randn(6, 7))
    return net.eval(), (*inputs, torch.randn(6, 1), marks, together)
