"""A conformer for speech recognition, from the waveform to the collapsed words, in PyTorch: the reference."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

RATE = 8000
N_FFT = 256
HOP = 40
MELS = 24
BLANK = 0
VOCABULARY = 12


def mel_filterbank(mels: int, n_fft: int, rate: int) -> np.ndarray:
    """Triangles over the frequencies, each of the same area (slaney's norm), mels x bins."""

    def to_mel(hertz):
        return 2595.0 * np.log10(1.0 + hertz / 700.0)

    def to_hertz(mel):
        return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)

    bins = np.linspace(0.0, rate / 2, n_fft // 2 + 1)
    edges = to_hertz(np.linspace(to_mel(20.0), to_mel(rate / 2), mels + 2))
    widths = np.diff(edges)
    slopes = edges[:, None] - bins[None, :]
    rising = -slopes[:-2] / widths[:-1, None]
    falling = slopes[2:] / widths[1:, None]
    bank = np.maximum(0.0, np.minimum(rising, falling))
    return (bank * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


def length_mask(lengths: torch.Tensor, size: int) -> torch.Tensor:
    """True where there is something, batch x size."""
    return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]


def normalize_features(features, lengths):
    """Each mel band of each utterance to zero mean and unit deviation, over the frames that are there."""
    mask = length_mask(lengths, features.size(1)).unsqueeze(-1)
    count = lengths.to(features.dtype)[:, None, None]
    features = features.masked_fill(~mask, 0.0)
    mean = features.sum(dim=1, keepdim=True) / count
    centred = (features - mean).masked_fill(~mask, 0.0)
    deviation = torch.sqrt(centred.pow(2).sum(dim=1, keepdim=True) / (count - 1.0))
    return centred / (deviation + 1e-5)


class LogMel(nn.Module):
    """Emphasis, overlapping frames, a Fourier transform by two matrices, mel bands and the logarithm."""

    def __init__(self, emphasis: float = 0.97):
        super().__init__()
        self.emphasis = emphasis
        time = np.arange(N_FFT)
        angle = 2.0 * np.pi * np.outer(time, np.arange(N_FFT // 2 + 1)) / N_FFT
        window = 0.5 - 0.5 * np.cos(2.0 * np.pi * time / N_FFT)
        self.register_buffer("window", torch.from_numpy(window.astype(np.float32)), persistent=False)
        self.register_buffer("cosines", torch.from_numpy(np.cos(angle).astype(np.float32)), persistent=False)
        self.register_buffer("sines", torch.from_numpy(-np.sin(angle).astype(np.float32)), persistent=False)
        self.register_buffer("bank", torch.from_numpy(mel_filterbank(MELS, N_FFT, RATE)), persistent=False)

    def forward(self, wave, lengths):
        valid = length_mask(lengths, wave.size(1))
        wave = torch.cat([wave[:, :1], wave[:, 1:] - self.emphasis * wave[:, :-1]], dim=1)
        wave = wave.masked_fill(~valid, 0.0)
        wave = F.pad(wave.unsqueeze(1), (N_FFT // 2, N_FFT // 2), mode="reflect").squeeze(1)
        frames = (wave.size(1) - N_FFT) // HOP + 1
        starts = torch.arange(frames, device=wave.device) * HOP
        index = starts[:, None] + torch.arange(N_FFT, device=wave.device)[None, :]
        framed = wave[:, index] * self.window
        power = (framed @ self.cosines).pow(2) + (framed @ self.sines).pow(2)
        mel = power @ self.bank.t()
        return torch.log(mel + 2.0**-14), lengths // HOP + 1


class Subsampling(nn.Module):
    """A quarter of the frames: a strided convolution, then a strided separable one; padding is kept at zero."""

    def __init__(self, mels: int, channels: int, dim: int):
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)
        self.out = nn.Linear(channels * ((mels + 3) // 4), dim)

    @staticmethod
    def shorter(lengths):
        return torch.div(lengths - 1, 2, rounding_mode="floor") + 1

    @staticmethod
    def silence(x, lengths):
        mask = length_mask(lengths, x.size(2))
        return x * mask[:, None, :, None].to(x.dtype)

    def forward(self, x, lengths):
        x = self.silence(x.unsqueeze(1), lengths)
        x = F.relu(self.conv(x))
        lengths = self.shorter(lengths)
        x = self.silence(x, lengths)
        x = F.relu(self.pointwise(self.depthwise(x)))
        lengths = self.shorter(lengths)
        batch, channels, time, bands = x.shape
        x = x.transpose(1, 2).reshape(batch, time, channels * bands)
        return self.out(x), lengths


class FeedForward(nn.Module):
    def __init__(self, dim: int, factor: int = 4):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, dim * factor)
        self.act = nn.SiLU()
        self.down = nn.Linear(dim * factor, dim)

    def forward(self, x):
        return self.down(self.act(self.up(self.norm(x))))


class RelativeAttention(nn.Module):
    """Transformer-XL's attention: content and position are scored apart, each with its own bias for the query."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.width = dim // heads
        self.norm = nn.LayerNorm(dim)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.position = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.bias_u = nn.Parameter(0.5 * torch.randn(heads, self.width))
        self.bias_v = nn.Parameter(0.5 * torch.randn(heads, self.width))

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.heads, self.width).transpose(1, 2)

    @staticmethod
    def rel_shift(scores):
        """From (query, distance) to (query, key): row i is moved to the left so that its distance 0 is at key i."""
        batch, heads, queries, distances = scores.shape
        scores = F.pad(scores, (1, 0))
        scores = scores.view(batch, heads, distances + 1, queries)
        scores = scores[:, :, 1:].reshape(batch, heads, queries, distances)
        return scores[..., : distances // 2 + 1]

    def forward(self, x, positions, mask):
        x = self.norm(x)
        query = self.query(x).view(x.size(0), x.size(1), self.heads, self.width)
        key, value = self.split(self.key(x)), self.split(self.value(x))
        position = self.split(self.position(positions))
        content = (query + self.bias_u).transpose(1, 2) @ key.transpose(-2, -1)
        distance = self.rel_shift((query + self.bias_v).transpose(1, 2) @ position.transpose(-2, -1))
        scores = (content + distance) / math.sqrt(self.width)
        hidden = ~mask[:, None, None, :]
        weights = torch.softmax(scores.masked_fill(hidden, -1e4), dim=-1).masked_fill(hidden, 0.0)
        mixed = (weights @ value).transpose(1, 2).reshape(x.size(0), x.size(1), -1)
        return self.out(mixed)


class ConvModule(nn.Module):
    """A gate, a depthwise convolution over time, batch normalisation."""

    def __init__(self, dim: int, kernel: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.pointwise1 = nn.Conv1d(dim, 2 * dim, 1)
        self.depthwise = nn.Conv1d(dim, dim, kernel, padding=(kernel - 1) // 2, groups=dim)
        self.batch_norm = nn.BatchNorm1d(dim, eps=1e-3)
        self.act = nn.SiLU()
        self.pointwise2 = nn.Conv1d(dim, dim, 1)

    def forward(self, x, mask):
        x = self.norm(x).transpose(1, 2)
        x = F.glu(self.pointwise1(x), dim=1)
        x = x.masked_fill(~mask.unsqueeze(1), 0.0)
        x = self.act(self.batch_norm(self.depthwise(x)))
        return self.pointwise2(x).transpose(1, 2)


class ConformerBlock(nn.Module):
    def __init__(self, dim: int, heads: int, kernel: int):
        super().__init__()
        self.ff1 = FeedForward(dim)
        self.attention = RelativeAttention(dim, heads)
        self.conv = ConvModule(dim, kernel)
        self.ff2 = FeedForward(dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, positions, mask):
        x = x + 0.5 * self.ff1(x)
        x = x + self.attention(x, positions, mask)
        x = x + self.conv(x, mask)
        x = x + 0.5 * self.ff2(x)
        return self.norm(x)


class Encoder(nn.Module):
    """The blocks; between them the net's own guess at the words is fed back (self-conditioned CTC)."""

    def __init__(self, dim: int, heads: int, kernel: int, depth: int):
        super().__init__()
        self.dim = dim
        self.subsample = Subsampling(MELS, 8, dim)
        self.blocks = nn.ModuleList(ConformerBlock(dim, heads, kernel) for _ in range(depth))
        self.head = nn.Linear(dim, VOCABULARY)
        self.feedback = nn.Linear(VOCABULARY, dim)

    def positions(self, size: int):
        """Sines and cosines of the distances size-1 ... -(size-1), a sine and its cosine side by side."""
        distance = torch.arange(size - 1, -size, -1, dtype=torch.float32)[:, None]
        rate = torch.exp(torch.arange(0, self.dim, 2, dtype=torch.float32) * (-math.log(10000.0) / self.dim))
        table = torch.zeros(2 * size - 1, self.dim)
        table[:, 0::2] = torch.sin(distance * rate)
        table[:, 1::2] = torch.cos(distance * rate)
        return table.unsqueeze(0)

    def forward(self, features, lengths):
        x, lengths = self.subsample(features, lengths)
        x = x * math.sqrt(self.dim)
        mask = length_mask(lengths, x.size(1))
        positions = self.positions(x.size(1))
        guesses = []
        for index, block in enumerate(self.blocks):
            x = block(x, positions, mask)
            logits = self.head(x)
            if index + 1 < len(self.blocks):
                guess = torch.softmax(logits, dim=-1)
                guesses.append(guess)
                x = x + self.feedback(guess)
        return logits, guesses, lengths


class Recognizer(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4, kernel: int = 7, depth: int = 2):
        super().__init__()
        self.frontend = LogMel()
        self.encoder = Encoder(dim, heads, kernel, depth)

    @staticmethod
    def collapse(log_probs, lengths):
        """The best path: repeats become one, blanks go; words to the left, -1 behind them, and each word's time."""
        batch, time, _ = log_probs.shape
        best, path = log_probs.max(dim=-1)
        valid = length_mask(lengths, time)
        before = F.pad(path[:, :-1], (1, 0), value=BLANK)
        keep = (path != before) & (path != BLANK) & valid
        place = torch.where(keep, keep.long().cumsum(dim=1) - 1, time)
        words = torch.full((batch, time + 1), -1, dtype=torch.long).scatter(1, place, path)[:, :time]
        frames = torch.arange(time).expand(batch, time).to(best.dtype)
        times = torch.zeros(batch, time + 1).scatter(1, place, frames * (4 * HOP / RATE))[:, :time]
        score = (best * valid).sum(dim=1) / lengths
        return words, keep.sum(dim=1), times, score

    def forward(self, wave, lengths):
        features, lengths = self.frontend(wave, lengths)
        features = normalize_features(features, lengths)
        logits, guesses, lengths = self.encoder(features, lengths)
        log_probs = torch.log_softmax(logits, dim=-1)
        words, counts, times, score = self.collapse(log_probs, lengths)
        log_probs = log_probs * length_mask(lengths, log_probs.size(1)).unsqueeze(-1)
        return log_probs, guesses[0], words, counts, times, torch.exp(score)


def make_inputs():
    """Three noisy chirps of different lengths in one batch; what is behind the end of the shorter is not silent."""
    rng = np.random.RandomState(7)
    lengths = np.array([4000, 2950, 2070], dtype=np.int64)
    time = np.arange(lengths.max()) / RATE
    waves = []
    for row in range(len(lengths)):
        wave = np.zeros_like(time)
        for _ in range(6):
            low, high = rng.uniform(80, 3000, 2)
            envelope = np.exp(-(((time - rng.uniform(0, 0.5)) / rng.uniform(0.02, 0.1)) ** 2))
            wave += envelope * np.sin(2 * np.pi * (low * time + (high - low) * time**2))
        waves.append(0.3 * wave + 0.06 * rng.randn(time.size))
    return np.stack(waves).astype(np.float32), lengths


def build():
    """The recognizer in eval mode with the same weights on every run, and the padded batch."""
    torch.manual_seed(0)
    net = Recognizer()
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.05, 0.3)
    subsample = net.encoder.subsample
    for layer, std in ((subsample.conv, 0.4), (subsample.depthwise, 0.4), (subsample.pointwise, 0.5)):
        nn.init.normal_(layer.weight, std=std)
    nn.init.normal_(net.encoder.head.weight, std=0.25)
    nn.init.constant_(net.encoder.head.bias[BLANK : BLANK + 1], 0.5)
    nn.init.normal_(net.encoder.feedback.weight, std=0.8)
    return net.eval(), tuple(torch.from_numpy(part) for part in make_inputs())
