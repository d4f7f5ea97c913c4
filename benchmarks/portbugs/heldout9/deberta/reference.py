"""An encoder with disentangled attention over log buckets; heads that tag (CRF), point at a span, judge the sentence."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


def log_bucket(relative, buckets: int, longest: int):
    """Near distances have a bucket each, far ones share buckets that widen geometrically."""
    middle = buckets // 2
    near = (relative < middle) & (relative > -middle)
    distance = torch.where(near, torch.full_like(relative, middle - 1), relative.abs()).double()
    far = torch.ceil(torch.log(distance / middle) / math.log((longest - 1) / middle) * (middle - 1)) + middle
    return torch.where(distance <= middle, relative, (far * relative.sign()).long())


class Embeddings(nn.Module):
    """Words and their segment, normalised; nothing where there is no word."""

    def __init__(self, words: int, types: int, width: int):
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.segment = nn.Embedding(types, width)
        self.norm = nn.LayerNorm(width, eps=1e-7)

    def forward(self, ids, types, mask):
        x = self.norm(self.word(ids) + self.segment(types))
        return x * mask.unsqueeze(-1).to(x.dtype)


class DisentangledAttention(nn.Module):
    """Content to content, content to position and position to content; positions share the content's projections."""

    def __init__(self, width: int, heads: int, span: int):
        super().__init__()
        self.heads = heads
        self.span = span
        self.query_proj = nn.Linear(width, width)
        self.key_proj = nn.Linear(width, width)
        self.value_proj = nn.Linear(width, width)
        self.head_gain = nn.Parameter(torch.ones(heads))

    def split(self, x):
        return x.view(*x.shape[:-1], self.heads, -1).transpose(-2, -3)

    def forward(self, x, mask, relative, positions):
        batch, length, width = x.shape
        q, k, v = self.split(self.query_proj(x)), self.split(self.key_proj(x)), self.split(self.value_proj(x))
        scale = math.sqrt(q.shape[-1] * 3)
        scores = q @ k.transpose(-1, -2) / scale

        position_k = self.split(self.key_proj(positions))
        position_q = self.split(self.query_proj(positions))
        index = (relative + self.span).clamp(0, 2 * self.span - 1).expand(batch, self.heads, length, length)
        scores = scores + torch.gather(q @ position_k.transpose(-1, -2), -1, index) / scale
        index = (-relative + self.span).clamp(0, 2 * self.span - 1).expand(batch, self.heads, length, length)
        scores = scores + torch.gather(k @ position_q.transpose(-1, -2), -1, index).transpose(-1, -2) / scale

        pairs = mask[:, None, :, None] & mask[:, None, None, :]
        weights = scores.masked_fill(~pairs, torch.finfo(scores.dtype).min).softmax(dim=-1)
        weights = weights.masked_fill(~pairs, 0.0) * self.head_gain[:, None, None]
        return (weights @ v).transpose(1, 2).reshape(batch, length, width)


class GatedFeedForward(nn.Module):
    """T5's: the GELU of one projection times another, no biases."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.wi_0 = nn.Linear(width, inner, bias=False)
        self.wi_1 = nn.Linear(width, inner, bias=False)
        self.wo = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.wo(functional.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x))


class Layer(nn.Module):
    """Attention, then feed-forward, each normalised after its shortcut."""

    def __init__(self, width: int, heads: int, span: int):
        super().__init__()
        self.attention = DisentangledAttention(width, heads, span)
        self.dense = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width, eps=1e-7)
        self.feed = GatedFeedForward(width, 2 * width)
        self.norm2 = nn.LayerNorm(width, eps=1e-7)

    def forward(self, x, mask, relative, positions):
        x = self.norm1(x + self.dense(self.attention(x, mask, relative, positions)))
        return self.norm2(x + self.feed(x))


class ConvLayer(nn.Module):
    """Looks at every second neighbour of a word beside the first layer."""

    def __init__(self, width: int, kernel: int, groups: int):
        super().__init__()
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel - 1, dilation=2, groups=groups)
        self.norm = nn.LayerNorm(width, eps=1e-7)

    def forward(self, x, layer, mask):
        keep = mask.unsqueeze(-1)
        near = self.conv(x.transpose(1, 2)).transpose(1, 2).masked_fill(~keep, 0.0)
        return self.norm(layer + torch.tanh(near)) * keep.to(x.dtype)


class Encoder(nn.Module):
    """The layers; all share one normalised table of relative positions. Each layer's answer is kept."""

    def __init__(self, width: int, heads: int, depth: int, buckets: int, longest: int):
        super().__init__()
        self.buckets = buckets
        self.longest = longest
        self.rel_embeddings = nn.Embedding(2 * buckets, width)
        self.rel_norm = nn.LayerNorm(width, eps=1e-7)
        self.layers = nn.ModuleList([Layer(width, heads, buckets) for _ in range(depth)])
        self.conv = ConvLayer(width, 3, 4)

    def forward(self, x, mask):
        length = x.shape[1]
        places = torch.arange(length, device=x.device)
        relative = log_bucket(places[:, None] - places[None, :], self.buckets, self.longest)
        positions = self.rel_norm(self.rel_embeddings.weight)
        states = [x]
        for i, layer in enumerate(self.layers):
            y = layer(x, mask, relative, positions)
            if i == 0:
                y = self.conv(x, y, mask)
            x = y
            states.append(x)
        return states


class ScalarMix(nn.Module):
    """A weighted mean of the layers."""

    def __init__(self, count: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(count))
        self.gamma_mix = nn.Parameter(torch.ones(1))

    def forward(self, states):
        shares = self.weights.softmax(dim=0)
        return self.gamma_mix * torch.einsum("n,nblw->blw", shares, torch.stack(states))


class MaskedPool(nn.Module):
    """The mean of the words that are there, beside their maximum."""

    def forward(self, x, mask):
        keep = mask.unsqueeze(-1).to(x.dtype)
        mean = (x * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1.0)
        top = x.masked_fill(~mask.unsqueeze(-1), -1e4).amax(dim=1)
        return torch.cat([mean, top], dim=-1)


def forbidden_moves(tags: int):
    """Tag 0 is outside; odd tags begin a kind, the even one after it goes on. Going on needs the same kind before."""
    table = torch.zeros(tags, tags)
    for after in range(2, tags, 2):
        for before in range(tags):
            if before not in (after, after - 1):
                table[before, after] = -1e4
    return table


class CRF(nn.Module):
    """A linear chain: how likely given tags are, and which are likeliest of those that are well formed."""

    def __init__(self, tags: int):
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(tags, tags))
        self.start = nn.Parameter(torch.zeros(tags))
        self.end = nn.Parameter(torch.zeros(tags))
        self.register_buffer("forbidden", forbidden_moves(tags), persistent=False)

    def score(self, emissions, tags, mask):
        batch, length, _ = emissions.shape
        keep = mask.to(emissions.dtype)
        picked = emissions.gather(2, tags.unsqueeze(-1)).squeeze(-1)
        moves = self.transitions[tags[:, :-1], tags[:, 1:]]
        total = self.start[tags[:, 0]] + (picked * keep).sum(dim=1) + (moves * keep[:, 1:]).sum(dim=1)
        last = mask.long().sum(dim=1) - 1
        return total + self.end[tags.gather(1, last.unsqueeze(1)).squeeze(1)]

    def log_partition(self, emissions, mask):
        alpha = self.start + emissions[:, 0]
        for t in range(1, emissions.shape[1]):
            step = torch.logsumexp(alpha.unsqueeze(2) + self.transitions + emissions[:, t].unsqueeze(1), dim=1)
            alpha = torch.where(mask[:, t].unsqueeze(1), step, alpha)
        return torch.logsumexp(alpha + self.end, dim=1)

    def viterbi(self, emissions, mask):
        batch, length, count = emissions.shape
        moves = self.transitions + self.forbidden
        best, pointers = self.start + emissions[:, 0], []
        stay = torch.arange(count, device=emissions.device).expand(batch, count)
        for t in range(1, length):
            value, source = (best.unsqueeze(2) + moves).max(dim=1)
            here = mask[:, t].unsqueeze(1)
            best = torch.where(here, value + emissions[:, t], best)
            pointers.append(torch.where(here, source, stay))
        value, tag = (best + self.end).max(dim=1)
        path = [tag]
        for source in reversed(pointers):
            tag = source.gather(1, tag.unsqueeze(1)).squeeze(1)
            path.append(tag)
        path = torch.stack(path[::-1], dim=1)
        return path.masked_fill(~mask, -1), value

    def forward(self, emissions, tags, mask):
        likelihood = self.score(emissions, tags, mask) - self.log_partition(emissions, mask)
        path, value = self.viterbi(emissions, mask)
        return likelihood / mask.sum(dim=1), path, value


class TagHead(nn.Module):
    """Scores of the tags from the word and its distance from the sentence's mean, then the chain."""

    def __init__(self, width: int, tags: int):
        super().__init__()
        self.dense = nn.Linear(2 * width, width)
        self.act = nn.CELU(alpha=0.5)
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.emit = nn.Linear(width, tags)
        self.crf = CRF(tags)

    def forward(self, x, mean, tags, mask):
        apart = x - mean.unsqueeze(1)
        h = self.norm(self.act(self.dense(torch.cat([x, apart], dim=-1))))
        emissions = self.emit(h)
        emissions = emissions - emissions.mean(dim=-1, keepdim=True)
        return self.crf(emissions, tags, mask)


class SpanHead(nn.Module):
    """Log-probabilities of all spans up to a longest one: where it starts, where it ends, and how both agree."""

    def __init__(self, width: int, inner: int, widest: int):
        super().__init__()
        self.widest = widest
        self.edges = nn.Linear(width, 2)
        self.start = nn.Linear(width, inner)
        self.finish = nn.Linear(width, inner)
        self.temperature = nn.Parameter(torch.ones(1))
        self.register_buffer("prior", -0.4 * torch.log1p(torch.arange(widest).float()), persistent=False)

    def forward(self, x, mask):
        batch, length, _ = x.shape
        first, last = self.edges(x).unbind(dim=-1)
        a = functional.normalize(self.start(x), dim=-1)
        b = functional.normalize(self.finish(x), dim=-1)
        agree = torch.einsum("bid,bjd->bij", a, b) * self.temperature.exp()
        places = torch.arange(length, device=x.device)
        wide = places[None, :] - places[:, None]
        scores = agree + first.unsqueeze(2) + last.unsqueeze(1) + self.prior[wide.clamp(0, self.widest - 1)]
        allowed = (wide >= 0) & (wide < self.widest) & mask.unsqueeze(1) & mask.unsqueeze(2)
        spans = scores.masked_fill(~allowed, -1e4).flatten(1).log_softmax(dim=-1)
        best = spans.argmax(dim=-1)
        return spans.view(batch, length, length).exp(), torch.stack([best // length, best % length], dim=-1)


class Deberta(nn.Module):
    """One encoder and three heads."""

    def __init__(self, words: int = 160, width: int = 48, heads: int = 4, depth: int = 3, tags: int = 7):
        super().__init__()
        self.embeddings = Embeddings(words, 2, width)
        self.encoder = Encoder(width, heads, depth, buckets=8, longest=15)
        self.mix = ScalarMix(depth + 1)
        self.pool = MaskedPool()
        self.pooler = nn.Linear(2 * width, width)
        self.classifier = nn.Linear(width, 3)
        self.tagger = TagHead(width, tags)
        self.span = SpanHead(width, 16, widest=6)

    def forward(self, ids, types, mask, tags):
        states = self.encoder(self.embeddings(ids, types, mask), mask)
        mixed = self.mix(states)
        pooled = self.pool(mixed, mask)
        sentence = self.classifier(functional.gelu(self.pooler(pooled)))
        mean = pooled[:, : mixed.shape[-1]]
        likelihood, path, value = self.tagger(mixed, mean, tags, mask)
        spans, best = self.span(states[-1], mask)
        return sentence, likelihood, path, value, spans, best


def build():
    """The net with the same weights on every run, and three sentences of different length."""
    torch.manual_seed(31)
    net = Deberta()
    for name, module in net.named_modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5)
        elif isinstance(module, nn.Linear) and name.split(".")[-1] in ("query_proj", "key_proj", "emit", "edges", "classifier"):
            nn.init.normal_(module.weight, std=1.5 / math.sqrt(module.in_features))
    for layer in net.encoder.layers:
        nn.init.uniform_(layer.attention.head_gain, 0.5, 1.5)
    nn.init.normal_(net.encoder.conv.conv.weight, std=0.2)
    nn.init.normal_(net.mix.weights)
    nn.init.constant_(net.mix.gamma_mix, 0.8)
    nn.init.constant_(net.span.temperature, 0.7)
    for parameter in net.tagger.crf.parameters():
        nn.init.normal_(parameter)
    length = 18
    mask = torch.arange(length) < torch.tensor([[18], [11], [14]])
    ids = torch.randint(1, 160, (3, length)) * mask
    types = ((torch.arange(length) >= torch.tensor([[9], [5], [8]])) & mask).long()
    tags = torch.randint(0, 7, (3, length)) * mask
    return net.eval(), (ids, types, mask, tags)
