"""A small picture captioner in the way of BLIP and GIT, in PyTorch: the reference."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

PAD, EOS = 0, 2
NEVER = -1e9


def rotary_tables(length: int, width: int, base: float = 1000.0):
    """Cosines and sines of each position, both (length, width), the halves alike."""
    rates = base ** (-torch.arange(0, width, 2).float() / width)
    angles = torch.arange(length)[:, None] * rates
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    """Turns each pair (i, i + width / 2) of x (B, H, L, D) by its position's angle (B, L, D)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


def attend(query, key, value, bias=None):
    """Softmax attention of heads (B, H, L, D); bias is added to the scores."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias
    return scores.softmax(dim=-1) @ value


def split(x, heads: int):
    """(B, L, H * D) to (B, H, L, D)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x):
    """(B, H, L, D) to (B, L, H * D)."""
    return x.transpose(1, 2).flatten(2)


class VisionBlock(nn.Module):
    """Attention and two layers, each behind a norm and scaled before it is added."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)
        self.scale1 = nn.Parameter(torch.ones(width))
        self.scale2 = nn.Parameter(torch.ones(width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        x = x + self.scale1 * self.proj(merge(attend(query, key, value)))
        hidden = self.fc1(self.norm2(x))
        hidden = hidden * torch.sigmoid(1.702 * hidden)
        return x + self.scale2 * self.fc2(hidden)


class Vision(nn.Module):
    """A ViT whose position table is stretched to the picture's grid."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2, patch: int = 8, grid: int = 6):
        super().__init__()
        self.grid = grid
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + grid * grid, width))
        self.blocks = nn.ModuleList([VisionBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pool = nn.AvgPool2d(3, 2, 1)

    def stretched(self, height: int, width: int):
        """The position table for a grid of another size; the class token's position stays."""
        first, rest = self.positions[:, :1], self.positions[:, 1:]
        rest = rest.reshape(1, self.grid, self.grid, -1).permute(0, 3, 1, 2)
        rest = functional.interpolate(rest, size=(height, width), mode="bilinear", align_corners=False)
        return torch.cat([first, rest.flatten(2).transpose(1, 2)], dim=1)

    def forward(self, pictures):
        x = self.patch(pictures)
        batch, channels, height, width = x.shape
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(batch, -1, -1), x], dim=1)
        x = x + self.stretched(height, width)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        grid = x[:, 1:].transpose(1, 2).reshape(batch, channels, height, width)
        coarse = self.pool(grid).flatten(2).transpose(1, 2)
        return torch.cat([x, coarse], dim=1)


class ResamplerBlock(nn.Module):
    """Learned queries look at the picture and at each other."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_media = nn.LayerNorm(width)
        self.norm_query = nn.LayerNorm(width)
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, queries, media):
        media, normed = self.norm_media(media), self.norm_query(queries)
        query = split(self.to_q(normed), self.heads)
        key, value = self.to_kv(torch.cat([media, normed], dim=1)).chunk(2, dim=-1)
        seen = attend(query, split(key, self.heads), split(value, self.heads))
        queries = queries + self.to_out(merge(seen))
        return queries + self.fc2(functional.relu(self.fc1(self.norm(queries))).square())


class Resampler(nn.Module):
    """A few vectors that say what is in the picture."""

    def __init__(self, count: int = 6, width: int = 64, heads: int = 4, depth: int = 2):
        super().__init__()
        self.queries = nn.Parameter(torch.zeros(count, width))
        self.blocks = nn.ModuleList([ResamplerBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)

    def forward(self, media):
        queries = self.queries.expand(len(media), -1, -1)
        for block in self.blocks:
            queries = block(queries, media)
        return self.norm(queries)


class RMSNorm(nn.Module):
    """Scales each vector to a root mean square of one."""

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.eps) * self.weight


class TextBlock(nn.Module):
    """Looks at the words so far with grouped heads, at the picture through a gate, then thinks."""

    def __init__(self, width: int, heads: int, groups: int):
        super().__init__()
        self.heads, self.groups = heads, groups
        side = width // heads
        self.norm1 = RMSNorm(width)
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(width, groups * side, bias=False)
        self.to_v = nn.Linear(width, groups * side, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)
        self.norm2 = RMSNorm(width)
        self.cross_q = nn.Linear(width, width)
        self.cross_kv = nn.Linear(width, 2 * width)
        self.cross_out = nn.Linear(width, width)
        self.gate = nn.Parameter(torch.zeros(1))
        self.norm3 = RMSNorm(width)
        self.fc_gate = nn.Linear(width, 2 * width, bias=False)
        self.fc_up = nn.Linear(width, 2 * width, bias=False)
        self.fc_down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x, cos, sin, bias, memory, past):
        normed = self.norm1(x)
        query = rotate(split(self.to_q(normed), self.heads), cos, sin)
        key = rotate(split(self.to_k(normed), self.groups), cos, sin)
        value = split(self.to_v(normed), self.groups)
        if past is not None:
            key = torch.cat([past[0], key], dim=2)
            value = torch.cat([past[1], value], dim=2)
        shared = self.heads // self.groups
        seen = attend(
            query, key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1), bias
        )
        x = x + self.to_out(merge(seen))
        query = split(self.cross_q(self.norm2(x)), self.heads)
        k, v = self.cross_kv(memory).chunk(2, dim=-1)
        seen = attend(query, split(k, self.heads), split(v, self.heads))
        x = x + torch.tanh(self.gate) * self.cross_out(merge(seen))
        normed = self.norm3(x)
        x = x + self.fc_down(functional.silu(self.fc_gate(normed)) * self.fc_up(normed))
        return x, (key, value)


class Decoder(nn.Module):
    """Words and what was kept of earlier words in, a vector for each word out."""

    def __init__(self, words: int, width: int = 64, heads: int = 4, groups: int = 2, depth: int = 2):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([TextBlock(width, heads, groups) for _ in range(depth)])
        self.norm = RMSNorm(width)
        cos, sin = rotary_tables(32, width // heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, words, real, memory, cache=None):
        """real (B, past + L) is true at words that are no padding; padding stands at the left."""
        length, total = words.shape[1], real.shape[1]
        positions = (real.long().cumsum(dim=1) - 1).clamp(min=0)[:, total - length :]
        causal = torch.arange(total)[None, :] <= torch.arange(total - length, total)[:, None]
        allowed = causal[None] & real[:, None, :]
        bias = torch.zeros(allowed.shape).masked_fill(~allowed, NEVER)[:, None]
        cos, sin = self.cos[positions], self.sin[positions]
        x = self.embed(words)
        kept = []
        for i, block in enumerate(self.blocks):
            x, pair = block(x, cos, sin, bias, memory, None if cache is None else cache[i])
            kept.append(pair)
        return self.norm(x), kept


class Captioner(nn.Module):
    """Searches captions that go on from a prompt, with beams, and says how well the best one fits."""

    def __init__(self, words: int = 96, width: int = 64, beams: int = 3, steps: int = 6):
        super().__init__()
        self.words, self.beams, self.steps = words, beams, steps
        self.alpha, self.repetition, self.shortest = 0.8, 1.8, 3
        self.register_buffer("mean", torch.tensor([0.481, 0.458, 0.408]).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.269, 0.261, 0.276]).view(3, 1, 1), persistent=False)
        self.vision = Vision(width)
        self.resampler = Resampler(width=width)
        self.decoder = Decoder(words, width)
        self.head_bias = nn.Parameter(torch.zeros(words))
        self.picture_head = nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(), nn.Linear(width, 32))
        self.text_head = nn.Linear(width, 32)
        self.temperature = nn.Parameter(torch.zeros(()))

    def logits(self, hidden):
        """Scores of all words; the embedding is the last layer's weight too."""
        return functional.linear(hidden, self.decoder.embed.weight, self.head_bias)

    def next_words(self, hidden, sequences, step: int):
        """Log-probabilities of the next word, with a penalty for words that were said already."""
        logits = self.logits(hidden[:, -1])
        said = logits.gather(1, sequences)
        said = torch.where(said < 0, said * self.repetition, said / self.repetition)
        logits = logits.scatter(1, sequences, said)
        logits[:, PAD] = NEVER
        if step < self.shortest:
            logits[:, EOS] = NEVER
        return logits.log_softmax(dim=-1)

    def search(self, prompt, real, memory):
        """Beam search: the words (B, beams, steps), their summed log-probabilities and the beams' lengths."""
        batch, beams = len(prompt), self.beams
        hidden, cache = self.decoder(prompt, real, memory)
        chances = self.next_words(hidden, prompt, 0)
        totals, words = chances.topk(beams, dim=1)
        sequences = torch.cat([prompt.repeat_interleave(beams, 0), words.view(-1, 1)], dim=1)
        real, memory = real.repeat_interleave(beams, 0), memory.repeat_interleave(beams, 0)
        cache = [(k.repeat_interleave(beams, 0), v.repeat_interleave(beams, 0)) for k, v in cache]
        lengths = torch.ones(batch, beams)
        ended = words == EOS
        only_pad = torch.full((self.words,), NEVER)
        only_pad[PAD] = 0.0
        for step in range(1, self.steps):
            real = torch.cat([real, torch.ones(batch * beams, 1, dtype=torch.bool)], dim=1)
            hidden, cache = self.decoder(sequences[:, -1:], real, memory, cache)
            chances = self.next_words(hidden, sequences, step).view(batch, beams, -1)
            chances = torch.where(ended[..., None], only_pad, chances)
            longer = lengths + (~ended).float()
            sums = totals[..., None] + chances
            ranks = sums / longer[..., None] ** self.alpha
            index = ranks.flatten(1).topk(beams, dim=1).indices
            parent, words = index // self.words, index % self.words
            totals = sums.flatten(1).gather(1, index)
            lengths, ended = longer.gather(1, parent), ended.gather(1, parent)
            rows = (parent + torch.arange(batch)[:, None] * beams).flatten()
            sequences = torch.cat([sequences[rows], words.view(-1, 1)], dim=1)
            cache = [(k[rows], v[rows]) for k, v in cache]
            ended = ended | (words == EOS)
        return sequences[:, prompt.shape[1] :].view(batch, beams, -1), totals, lengths

    def forward(self, pictures, prompt, real):
        media = self.vision((pictures - self.mean) / self.std)
        memory = self.resampler(media)
        words, totals, lengths = self.search(prompt, real, memory)
        scores = totals / ((5 + lengths) / 6) ** self.alpha
        best = scores.argmax(dim=1)
        caption = words[torch.arange(len(words)), best]
        text = torch.cat([prompt, caption], dim=1)
        real = torch.cat([real, caption != PAD], dim=1)
        hidden, _ = self.decoder(text, real, memory)
        chances = self.logits(hidden[:, :-1]).log_softmax(dim=-1)
        chances = chances.gather(2, text[:, 1:, None]).squeeze(2)
        said = real[:, 1:] & real[:, :-1]
        perplexity = torch.exp(-(chances * said).sum(dim=1) / said.sum(dim=1))
        mean = (hidden * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True)
        text = functional.normalize(self.text_head(mean), dim=-1)
        picture = functional.normalize(self.picture_head(memory.mean(dim=1)), dim=-1)
        fit = text @ picture.t() * self.temperature.exp()
        return words, scores, perplexity, fit.log_softmax(dim=-1)


def build():
    """The net with the same weights on every run, three pictures and prompts of different length."""
    torch.manual_seed(8)
    net = Captioner()
    for name, parameter in net.named_parameters():
        if "norm" in name:
            shift = 0.0 if name.endswith("bias") else 1.0
            nn.init.normal_(parameter, shift, 0.15)
        elif parameter.dim() == 2 and "queries" not in name:
            nn.init.normal_(parameter, std=1.1 / math.sqrt(parameter.shape[1]))
        elif parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.1)
    for block in net.vision.blocks:
        nn.init.uniform_(block.scale1, 0.4, 0.9)
        nn.init.uniform_(block.scale2, 0.4, 0.9)
    for block in net.decoder.blocks:
        nn.init.constant_(block.gate, 0.9)
    nn.init.normal_(net.vision.positions, std=0.6)
    nn.init.normal_(net.vision.class_token, std=0.6)
    nn.init.normal_(net.resampler.queries, std=1.0)
    nn.init.normal_(net.decoder.embed.weight, std=0.2)
    nn.init.constant_(net.temperature, 1.2)
    with torch.no_grad():
        net.head_bias[EOS] += 2.5
    pictures = functional.interpolate(torch.rand(3, 3, 7, 9), size=(44, 60), mode="bicubic").clamp(0, 1)
    prompt = torch.randint(3, 96, (3, 5))
    real = torch.arange(5)[None, :] >= torch.tensor([[0], [2], [1]])
    return net.eval(), (pictures, prompt.masked_fill(~real, PAD), real)
