"""A small BERT: post-norm encoder with padding mask, sentence types and a pooler. In PyTorch: the reference."""

from __future__ import annotations

import math

import torch
from torch import nn


class Embeddings(nn.Module):
    """Words, places and sentence types, added and normalised."""

    def __init__(self, vocabulary: int, length: int, width: int):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(length, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, words, types):
        places = torch.arange(words.shape[1], device=words.device).unsqueeze(0)
        x = self.word_embeddings(words) + self.position_embeddings(places) + self.token_type_embeddings(types)
        return self.dropout(self.LayerNorm(x))


class SelfAttention(nn.Module):
    """Attention with an additive mask."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.softmax = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(0.1)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x, bias):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1]) + bias
        mixed = torch.matmul(self.dropout(self.softmax(scores)), value)
        return mixed.permute(0, 2, 1, 3).reshape(x.shape)


class SelfOutput(nn.Module):
    """Projection, shortcut, norm."""

    def __init__(self, inner: int, width: int):
        super().__init__()
        self.dense = nn.Linear(inner, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden, shortcut):
        return self.LayerNorm(self.dropout(self.dense(hidden)) + shortcut)


class Layer(nn.Module):
    """One encoder layer as BERT nests it, flattened a little."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.attention_output = SelfOutput(width, width)
        self.intermediate = nn.Linear(width, 4 * width)
        self.intermediate_act = nn.GELU()
        self.output = SelfOutput(4 * width, width)

    def forward(self, x, bias):
        x = self.attention_output(self.attention(x, bias), x)
        return self.output(self.intermediate_act(self.intermediate(x)), x)


class Pooler(nn.Module):
    """The first word's state through a dense layer and tanh."""

    def __init__(self, width: int):
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = nn.Tanh()

    def forward(self, x):
        return self.activation(self.dense(x[:, 0]))


class Bert(nn.Module):
    """Encoder with a classifier on the pooled state; gives the sequence, the pooled state and the scores."""

    def __init__(self, vocabulary: int = 150, length: int = 32, width: int = 48, heads: int = 4, depth: int = 2):
        super().__init__()
        self.embeddings = Embeddings(vocabulary, length, width)
        self.encoder = nn.ModuleList([Layer(width, heads) for _ in range(depth)])
        self.pooler = Pooler(width)
        self.classifier = nn.Linear(width, 3)

    def forward(self, words, present, types):
        bias = (1.0 - present[:, None, None, :].float()) * -10000.0
        x = self.embeddings(words, types)
        for layer in self.encoder:
            x = layer(x, bias)
        pooled = self.pooler(x)
        return x, pooled, self.classifier(pooled)


def build():
    """The net with the same weights on every run, and four pairs of sentences of different length."""
    torch.manual_seed(12)
    net = Bert()
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.05)
    lengths = torch.tensor([[16], [11], [14], [9]])
    places = torch.arange(16)
    present = (places < lengths).long()
    words = torch.randint(1, 150, (4, 16)) * present
    types = (places >= lengths // 2).long() * present
    return net.eval(), (words, present, types)
