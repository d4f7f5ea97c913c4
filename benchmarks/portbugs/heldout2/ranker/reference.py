"""Ranks candidates for a query and a user: two towers, late interaction, history, crosses, several heads."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

NEG = -1e4


class Text(NamedTuple):
    tokens: torch.Tensor
    pooled: torch.Tensor
    mask: torch.Tensor


def masked_mean(x, mask, dim):
    mask = mask.unsqueeze(-1).to(x.dtype)
    return (x * mask).sum(dim) / mask.sum(dim).clamp(min=1.0)


def masked_max(x, mask, dim):
    return x.masked_fill(~mask.unsqueeze(-1), NEG).max(dim=dim).values


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def attend(q, k, v, mask, bias=None):
    """(..., h, n, d) with a mask of the keys (..., m)."""
    score = torch.einsum("...qd,...kd->...qk", q, k) / q.size(-1) ** 0.5
    if bias is not None:
        score = score + bias
    score = score.masked_fill(~mask[..., None, None, :], NEG)
    out = torch.softmax(score, dim=-1) @ v
    return out.transpose(-3, -2).flatten(-2)


def relative_bucket(length, num_buckets=12, max_distance=24):
    """T5's buckets: half for each direction, exact for the near ones, logarithmic for the far ones."""
    pos = torch.arange(length)
    rel = pos[None, :] - pos[:, None]
    half = num_buckets // 2
    bucket = (rel > 0).long() * half
    n = rel.abs()
    exact = half // 2
    far = exact + (torch.log(n.float().clamp(min=1) / exact) / math.log(max_distance / exact) * (half - exact)).long()
    far = far.clamp(max=half - 1)
    return bucket + torch.where(n < exact, n, far)


def bucketed(x, bounds):
    return (x.unsqueeze(-1) > bounds).sum(-1)


def alibi_decay(age, half_life):
    return torch.exp2(-age / half_life)


class TextLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x, mask, bias):
        h = self.norm1(x)
        q, k, v = (split_heads(t, self.heads) for t in self.qkv(h).chunk(3, dim=-1))
        x = x + self.out(attend(q, k, v, mask, bias=bias))
        value, gate = self.fc1(self.norm2(x)).chunk(2, dim=-1)
        return x + self.fc2(value * F.silu(gate))


class TextTower(nn.Module):
    """Encodes tokens; any number of axes before the tokens' one."""

    def __init__(self, vocab, dim, late, heads=4, depth=2):
        super().__init__()
        self.words = nn.Embedding(vocab, dim)
        self.kind = nn.Embedding(2, dim)
        self.relative = nn.Embedding(12, heads)
        self.layers = nn.ModuleList([TextLayer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.salience = nn.Linear(dim, 1)
        self.proj = nn.Linear(3 * dim, dim)
        self.late = nn.Linear(dim, late)

    def forward(self, ids, kind):
        lead, length = ids.shape[:-1], ids.shape[-1]
        flat = ids.reshape(-1, length)
        mask = flat != 0
        x = self.words(flat) * math.sqrt(self.words.embedding_dim)
        x = x + self.kind.weight[kind]
        bias = self.relative(relative_bucket(length)).permute(2, 0, 1)
        for layer in self.layers:
            x = layer(x, mask, bias)
        x = self.norm(x)
        weight = self.salience(x).squeeze(-1).masked_fill(~mask, NEG).softmax(dim=-1)
        pooled = torch.cat([masked_mean(x, mask, 1), masked_max(x, mask, 1), torch.einsum("nl,nld->nd", weight, x)], -1)
        tokens = F.normalize(self.late(x), p=2, dim=-1) * mask.unsqueeze(-1)
        return Text(tokens.view(*lead, length, -1), self.proj(pooled).view(*lead, -1), mask.view(*lead, length))


def late_interaction(query, doc):
    """ColBERT's sum of maxima, averaged over the query's words, and the share of words with a good match."""
    sim = torch.einsum("bqd,bctd->bcqt", query.tokens, doc.tokens)
    sim = sim.masked_fill(~doc.mask[:, :, None, :], NEG)
    best = sim.amax(dim=-1)
    qmask = query.mask[:, None, :].float()
    total = (best * qmask).sum(-1) / qmask.sum(-1)
    covered = (torch.sigmoid(8 * (best - 0.4)) * qmask).sum(-1) / qmask.sum(-1)
    soft = torch.logsumexp(6 * sim, dim=-1) / 6 - best
    return torch.stack([total, covered, (soft * qmask).sum(-1)], dim=-1)


class History(nn.Module):
    """What the user has taken before, seen from each candidate."""

    def __init__(self, dim, heads=4, recent=5, half_life=24.0):
        super().__init__()
        self.heads, self.recent, self.half_life = heads, recent, half_life
        self.register_buffer("bounds", torch.tensor([1.0, 3, 8, 24, 72, 168]), persistent=False)
        self.age = nn.Embedding(7, dim)
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.unit1 = nn.Linear(4 * dim, dim)
        self.unit2 = nn.Linear(dim, 1)
        self.alpha = nn.Parameter(torch.zeros(dim))
        self.merge = nn.Linear(3 * dim, dim)

    def activation_unit(self, past, target, mask, age):
        # DIN: no softmax, the strength of the interest is kept
        b, c, d = target.shape
        t = past.shape[1]
        h = past[:, None].expand(b, c, t, d)
        g = target[:, :, None].expand(b, c, t, d)
        z = self.unit1(torch.cat([g, h, g - h, g * h], dim=-1))
        gate = torch.sigmoid((z - z.mean(-1, keepdim=True)) / (z.std(-1, keepdim=True, unbiased=False) + 1e-4))
        z = gate * z + (1 - gate) * self.alpha * z
        weight = self.unit2(z).squeeze(-1) * alibi_decay(age, self.half_life)[:, None]
        weight = weight.masked_fill(~mask[:, None], 0.0)
        return torch.einsum("bct,btd->bcd", weight, past)

    def forward(self, items, age, mask, target):
        past = items + self.age(bucketed(age, self.bounds))
        # the item before each one (newest first); the oldest has none
        before = torch.roll(past, -1, dims=1) * torch.roll(mask, -1, dims=1)[..., None]
        before = torch.cat([before[:, :-1], torch.zeros_like(before[:, -1:])], dim=1)
        past = past + 0.3 * (past - before)
        past = past * mask[..., None]
        k, v = self.kv(past).chunk(2, dim=-1)
        q = split_heads(self.q(target), self.heads)
        decay = -(age / self.half_life)[:, None, None, :]
        cross = attend(q, split_heads(k, self.heads), split_heads(v, self.heads), mask, bias=0.5 * decay)
        unit = self.activation_unit(past, target, mask, age)
        recent = masked_mean(past[:, :self.recent], mask[:, :self.recent], 1)
        return self.merge(torch.cat([cross, unit, recent[:, None].expand_as(cross)], dim=-1))


class Crosses(nn.Module):
    """Low-rank cross layers (DCN v2) and a factorization machine over the fields."""

    def __init__(self, width, rank=12, depth=2):
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(rank, width) for _ in range(depth))

    def forward(self, fields):
        b, c, f, d = fields.shape
        x0 = fields.reshape(b, c, f * d)
        x = x0
        for down, up in zip(self.down, self.up):
            x = x0 * up(down(x)) + x
        pairs = 0.5 * (fields.sum(dim=2) ** 2 - (fields ** 2).sum(dim=2))
        return torch.cat([x, pairs / math.sqrt(f)], dim=-1)


class Experts(nn.Module):
    """Multi-gate mixture of experts; one output for each head."""

    def __init__(self, width, dim, experts=3, heads=3):
        super().__init__()
        self.experts, self.heads = experts, heads
        self.hidden = nn.Linear(width, experts * dim)
        self.gates = nn.Linear(width, heads * experts)
        self.weight = nn.Parameter(torch.zeros(heads, dim))
        self.bias = nn.Parameter(torch.zeros(heads))

    def forward(self, x):
        h = F.relu(self.hidden(x)).unflatten(-1, (self.experts, -1))
        gate = self.gates(x).unflatten(-1, (self.heads, self.experts)).softmax(-1)
        mixed = torch.einsum("bche,bced->bchd", gate, h)
        return (mixed * self.weight).sum(-1) + self.bias


class Ranker(nn.Module):
    def __init__(self, vocab=200, items=80, dim=32, late=16, dense=6, field=8):
        super().__init__()
        self.text = TextTower(vocab, dim, late)
        self.items = nn.Embedding(items, dim)
        self.history = History(dim)
        self.dense_norm = nn.BatchNorm1d(dense)
        self.dense = nn.Linear(dense, 2 * field)
        self.places = nn.Embedding(6, 3)
        self.to_field = nn.ModuleList(nn.Linear(dim, field) for _ in range(4))
        self.crosses = Crosses(6 * field)
        self.experts = Experts(7 * field + 3 + 3, dim)
        self.register_buffer("place_bounds", torch.tensor([1.0, 2, 4, 8, 16]), persistent=False)
        self.blend = nn.Parameter(torch.zeros(3))
        self.temperature = nn.Parameter(torch.ones(1))

    def dense_features(self, dense):
        x = torch.sign(dense) * torch.log1p(dense.abs())
        x = self.dense_norm(x.flatten(0, 1)).view_as(x)
        relative = x - x.mean(dim=1, keepdim=True)
        relative = relative / (relative.pow(2).mean(dim=1, keepdim=True) + 1e-3).sqrt()
        return self.dense(x + 0.5 * relative)

    def blended(self, logits, shown):
        click, dwell, buy = logits.unbind(-1)
        click = F.logsigmoid(click / self.temperature)
        dwell = F.softplus(dwell)
        buy = F.logsigmoid(buy) + click
        parts = torch.stack([click, torch.log1p(dwell), buy], dim=-1)
        centre = (parts * shown[..., None]).sum(1, keepdim=True) / shown.sum(1)[:, None, None]
        parts = (parts - centre) * shown[..., None]
        return (parts * F.softmax(self.blend, dim=0)).sum(-1), parts

    def forward(self, query, docs, ids, history, age, dense, place):
        shown = (ids != 0).float()
        q = self.text(query, kind=0)
        d = self.text(docs, kind=1)
        target = self.items(ids) + d.pooled
        user = self.history(self.items(history), age, history != 0, target)
        match = late_interaction(q, d)
        wide = [q.pooled[:, None].expand_as(target), target, user, user * target]
        fields = [lin(x) for lin, x in zip(self.to_field, wide)]
        fields = torch.stack(fields + list(self.dense_features(dense).chunk(2, dim=-1)), dim=2)
        x = torch.cat([self.crosses(fields), match, F.cosine_similarity(
            torch.stack([q.pooled[:, None].expand_as(target), user, user], -2),
            torch.stack([target, target, q.pooled[:, None].expand_as(user)], -2), dim=-1)], dim=-1)
        logits = self.experts(x) + self.places(bucketed(place, self.place_bounds))
        score, parts = self.blended(logits, shown)
        return torch.cat([score[..., None], parts], dim=-1)


def build():
    """The net with the same weights on every run, and three lists of six candidates."""
    torch.manual_seed(17)
    net = Ranker()
    for name, p in net.named_parameters():
        if "norm" in name and name.endswith("weight"):
            nn.init.uniform_(p, 0.6, 1.4)
        elif p.dim() < 2:
            nn.init.normal_(p, std=0.3)
        else:
            nn.init.normal_(p, std=0.25 if "words" in name else 1.1 / math.sqrt(p.shape[1]))
    nn.init.constant_(net.temperature, 1.4)
    nn.init.normal_(net.dense_norm.running_mean, std=0.4)
    nn.init.uniform_(net.dense_norm.running_var, 0.4, 1.5)
    query, docs = torch.randint(1, 200, (3, 7)), torch.randint(1, 200, (3, 6, 9))
    ids, history = torch.randint(1, 80, (3, 6)), torch.randint(1, 80, (3, 12))
    for row, (a, h) in enumerate([(7, 12), (4, 5), (5, 9)]):
        query[row, a:], history[row, h:] = 0, 0
        for column in range(6):
            docs[row, column, 3 + (5 * row + 2 * column) % 7:] = 0
    ids[1, 5] = 0
    age = torch.cumsum(torch.rand(3, 12) * 14 + 0.2, dim=1)
    dense = 3 * torch.randn(3, 6, 6)
    place = torch.arange(6).float().repeat(3, 1) * torch.tensor([[1.0], [2.0], [3.0]]) + 0.5
    return net.eval(), (query, docs, ids, history, age, dense, place)
