"""A small speech recogniser in the manner of Whisper, in PyTorch: the reference.

The waveform becomes log-mel features in code; the decoder writes a few tokens greedily over a cache, under the rules
for timestamps, and the written tokens are scored again in two pieces to time them by their cross attention.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SAMPLE_RATE = 1600
N_SAMPLES = 2048
N_FFT = 80
HOP = 32
N_MELS = 20
MAX_FREQUENCY = 800.0

TEXT_TOKENS = 28
EOT, SOT, LANGUAGE, TRANSCRIBE, NO_SPEECH, NO_TIMESTAMPS = 28, 29, 30, 31, 32, 33
TIME_BEGIN = 34
VOCAB = TIME_BEGIN + 17
MAX_INITIAL_TIME = 6
BLANKS = (3, 11)
ALIGNMENT_HEADS = ((0, 1), (1, 0), (1, 3))
FRAME_SECONDS = 2 * HOP / SAMPLE_RATE


def hertz_to_mel(frequency):
    """Slaney's scale: linear below 1 kHz (here: below 400 Hz), logarithmic above."""
    frequency = torch.as_tensor(frequency, dtype=torch.float64)
    linear = frequency / (200.0 / 3)
    return torch.where(frequency >= 400.0, 6.0 + torch.log(frequency.clamp(min=1.0) / 400.0) / (math.log(6.4) / 27.0), linear)


def mel_to_hertz(mel):
    return torch.where(mel >= 6.0, 400.0 * torch.exp((math.log(6.4) / 27.0) * (mel - 6.0)), mel * (200.0 / 3))


def mel_filters():
    """The triangles of the mel bands over the bins, each with the area of one."""
    bins = torch.arange(N_FFT // 2 + 1, dtype=torch.float64) * SAMPLE_RATE / N_FFT
    low, high = hertz_to_mel(0.0), hertz_to_mel(MAX_FREQUENCY)
    corners = mel_to_hertz(torch.linspace(float(low), float(high), N_MELS + 2, dtype=torch.float64))
    rising = (bins[None] - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    falling = (corners[2:, None] - bins[None]) / (corners[2:] - corners[1:-1])[:, None]
    weights = torch.minimum(rising, falling).clamp(min=0.0)
    return (weights * (2.0 / (corners[2:] - corners[:-2]))[:, None]).float()


def log_mel_spectrogram(audio):
    """(batch, samples) to (batch, mels, frames), scaled to about -1..1 and cut 8 decades below the loudest."""
    audio = F.pad(audio, (0, N_SAMPLES - audio.shape[-1]))
    audio = F.pad(audio[:, None], (N_FFT // 2, N_FFT // 2), mode="reflect")[:, 0]
    frames = audio.unfold(-1, N_FFT, HOP)
    time = torch.arange(N_FFT, dtype=torch.float64)
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * time / N_FFT)
    angle = 2 * math.pi * time[:, None] * torch.arange(N_FFT // 2 + 1)[None] / N_FFT
    frames = frames * window.float()
    real = frames @ torch.cos(angle).float()
    imaginary = -frames @ torch.sin(angle).float()
    magnitudes = (real.square() + imaginary.square())[:, :-1]
    mel = magnitudes @ mel_filters().T
    log = torch.log10(torch.clamp(mel, min=1e-10))
    log = torch.maximum(log, log.amax(dim=(1, 2), keepdim=True) - 8.0)
    return ((log + 4.0) / 4.0).transpose(1, 2)


def sinusoids(length: int, channels: int, longest: float = 1000.0):
    """Sines in the first half of the channels, cosines in the second."""
    step = math.log(longest) / (channels // 2 - 1)
    rates = torch.exp(-step * torch.arange(channels // 2))
    angle = torch.arange(length)[:, None] * rates[None]
    return torch.cat([torch.sin(angle), torch.cos(angle)], dim=1)


class MultiHeadAttention(nn.Module):
    """Attention of several heads; the keys have no bias, and scores are given back before the softmax."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x, source=None, mask=None, cache=None):
        query = self.query(x)
        if source is not None and cache is not None and "key" in cache:
            key, value = cache["key"], cache["value"]
        else:
            origin = x if source is None else source
            key, value = self.key(origin), self.value(origin)
            if cache is not None:
                if "key" in cache:
                    key = torch.cat([cache["key"], key], dim=1)
                    value = torch.cat([cache["value"], value], dim=1)
                cache["key"], cache["value"] = key, value
        batch, length, width = query.shape
        scale = (width // self.heads) ** -0.25
        query = query.view(batch, length, self.heads, -1).permute(0, 2, 1, 3) * scale
        key = key.view(batch, key.shape[1], self.heads, -1).permute(0, 2, 3, 1) * scale
        value = value.view(batch, value.shape[1], self.heads, -1).permute(0, 2, 1, 3)
        scores = query @ key
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = scores.softmax(dim=-1)
        return self.out((weights @ value).permute(0, 2, 1, 3).flatten(2)), scores


class Block(nn.Module):
    """Pre-norm self-attention, cross attention if asked for, perceptron."""

    def __init__(self, width: int, heads: int, cross: bool = False):
        super().__init__()
        self.attn_ln = nn.LayerNorm(width)
        self.attn = MultiHeadAttention(width, heads)
        self.cross_attn_ln = nn.LayerNorm(width) if cross else None
        self.cross_attn = MultiHeadAttention(width, heads) if cross else None
        self.mlp_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, mask=None, source=None, source_mask=None, cache=None):
        own, other = (None, None) if cache is None else cache
        x = x + self.attn(self.attn_ln(x), mask=mask, cache=own)[0]
        scores = None
        if self.cross_attn is not None:
            attended, scores = self.cross_attn(self.cross_attn_ln(x), source, source_mask, other)
            x = x + attended
        return x + self.mlp(self.mlp_ln(x)), scores


class AudioEncoder(nn.Module):
    """Two convolutions, the second halving the frames, sinusoids, blocks."""

    def __init__(self, width: int, heads: int, depth: int):
        super().__init__()
        self.conv1 = nn.Conv1d(N_MELS, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.ln_post = nn.LayerNorm(width)

    def forward(self, mel, lengths):
        x = F.gelu(self.conv1(mel))
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        x = x + sinusoids(x.shape[1], x.shape[2])
        frames = (lengths + HOP - 1) // HOP
        frames = (frames - 1) // 2 + 1
        valid = torch.arange(x.shape[1])[None] < frames[:, None]
        for block in self.blocks:
            x, _ = block(x, valid[:, None, None])
        return self.ln_post(x), valid


class TextDecoder(nn.Module):
    """Blocks with cross attention; the embedding of the tokens is the output's matrix too."""

    def __init__(self, width: int, heads: int, depth: int, context: int = 24):
        super().__init__()
        self.token_embedding = nn.Embedding(VOCAB, width)
        self.positional_embedding = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.ModuleList([Block(width, heads, cross=True) for _ in range(depth)])
        self.ln = nn.LayerNorm(width)

    def new_cache(self):
        return [({}, {}) for _ in self.blocks]

    def forward(self, tokens, audio, valid, cache):
        offset = cache[0][0]["key"].shape[1] if "key" in cache[0][0] else 0
        length = tokens.shape[1]
        x = self.token_embedding(tokens) + self.positional_embedding[offset : offset + length]
        rows = torch.arange(offset, offset + length)
        causal = torch.arange(offset + length)[None] <= rows[:, None]
        scores = []
        for block, memory in zip(self.blocks, cache):
            x, found = block(x, causal, audio, valid[:, None, None], memory)
            scores.append(found)
        return self.ln(x) @ self.token_embedding.weight.T, torch.stack(scores, dim=1)


def apply_time_rules(logits, written):
    """Timestamps come in pairs, never fall, and are taken if they have more mass together than the best text."""
    ids = torch.arange(VOCAB)
    times = ids >= TIME_BEGIN
    banned = torch.zeros_like(logits, dtype=torch.bool)
    banned[:, SOT : NO_TIMESTAMPS + 1] = True
    if written.shape[1] == 0:
        banned = banned | ~times | (ids > TIME_BEGIN + MAX_INITIAL_TIME)
    else:
        was_time = written >= TIME_BEGIN
        last = was_time[:, -1]
        before = was_time[:, -2] if written.shape[1] > 1 else torch.ones_like(last)
        banned = banned | ((last & before)[:, None] & times)
        banned = banned | ((last & ~before)[:, None] & (ids < EOT))
        latest = torch.where(was_time, written, TIME_BEGIN).amax(dim=1)
        latest = latest + (~(last & ~before)).long()
        banned = banned | (times & (ids < latest[:, None]))
        blank = torch.zeros(VOCAB, dtype=torch.bool)
        blank[list(BLANKS)] = True
        banned = banned | (last[:, None] & blank)
    logits = logits.masked_fill(banned, float("-inf"))
    logprobs = logits.log_softmax(dim=-1)
    prefer = logprobs[:, TIME_BEGIN:].logsumexp(dim=-1) > logprobs[:, :TIME_BEGIN].amax(dim=-1)
    return logits.masked_fill(prefer[:, None] & ~times, float("-inf"))


def median_filter(x, width: int):
    """The running median over the last axis."""
    x = F.pad(x.flatten(0, 1), (width // 2, width // 2), mode="reflect").view(*x.shape[:-1], -1)
    return x.unfold(-1, width, 1).sort(dim=-1)[0][..., width // 2]


class Recogniser(nn.Module):
    """Everything from the waveform to tokens, their probabilities and times."""

    def __init__(self, width: int = 32, heads: int = 4, depth: int = 2, steps: int = 8):
        super().__init__()
        self.steps = steps
        self.encoder = AudioEncoder(width, heads, depth)
        self.decoder = TextDecoder(width, heads, depth)

    def generate(self, audio, valid, prompt):
        cache = self.decoder.new_cache()
        tokens, total, no_speech, current = prompt, 0.0, None, prompt
        ended = torch.zeros(len(prompt), dtype=torch.bool)
        for _ in range(self.steps):
            logits, _ = self.decoder(current, audio, valid, cache)
            if no_speech is None:
                start = (prompt == SOT).int().argmax(dim=1)
                no_speech = logits[torch.arange(len(prompt)), start].softmax(dim=-1)[:, NO_SPEECH]
            ruled = apply_time_rules(logits[:, -1], tokens[:, prompt.shape[1] :])
            chosen = ruled.argmax(dim=-1)
            gained = ruled.log_softmax(dim=-1).gather(1, chosen[:, None])[:, 0]
            total = total + gained * (~ended)
            chosen = torch.where(ended, EOT, chosen)
            ended = ended | (chosen == EOT)
            tokens = torch.cat([tokens, chosen[:, None]], dim=1)
            current = chosen[:, None]
        written = tokens[:, prompt.shape[1] :]
        count = (written != EOT).sum(dim=1)
        return written, total / (count + 1), no_speech

    def align(self, audio, valid, prompt, written):
        """Score prompt and written tokens in two calls; time the tokens by chosen heads of the cross attention."""
        cache = self.decoder.new_cache()
        first, first_scores = self.decoder(prompt, audio, valid, cache)
        second, second_scores = self.decoder(written, audio, valid, cache)
        logits = torch.cat([first, second], dim=1)[:, prompt.shape[1] - 1 : -1, :EOT + 1]
        text = torch.where(written > EOT, EOT, written)
        probabilities = logits.softmax(dim=-1).gather(2, text[..., None])[..., 0]
        scores = torch.cat([first_scores, second_scores], dim=3)
        weights = torch.stack([scores[:, layer, head] for layer, head in ALIGNMENT_HEADS], dim=1)
        weights = (weights * 1.5).softmax(dim=-1)
        std, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
        weights = median_filter((weights - mean) / (std + 1e-4), 5)
        matrix = weights.mean(dim=1)[:, prompt.shape[1] :]
        matrix = (2.0 * matrix).masked_fill(~valid[:, None], float("-inf")).softmax(dim=-1)
        middle = (matrix * torch.arange(matrix.shape[-1])).sum(dim=-1)
        return probabilities, torch.cummax(middle, dim=1)[0] * FRAME_SECONDS

    def forward(self, waveform, lengths, prompt):
        mel = log_mel_spectrogram(waveform)
        audio, valid = self.encoder(mel, lengths)
        written, average, no_speech = self.generate(audio, valid, prompt)
        probabilities, times = self.align(audio, valid, prompt, written)
        return audio, written, average, no_speech, probabilities, times


def build():
    """The net with the same weights on every run; two waveforms of unlike length, their lengths, and prompts."""
    torch.manual_seed(100)
    net = Recogniser()
    nn.init.normal_(net.decoder.token_embedding.weight, std=0.25)
    net.decoder.token_embedding.weight.data[EOT] *= 1.8
    nn.init.normal_(net.decoder.positional_embedding, std=0.8)
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.7, 1.5)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, MultiHeadAttention):
            nn.init.normal_(module.query.weight, std=0.3)
            nn.init.normal_(module.key.weight, std=0.3)
            nn.init.normal_(module.value.weight, std=0.4)
            nn.init.normal_(module.out.weight, std=0.3)
    draw = np.random.RandomState(610)
    time = np.arange(1930) / SAMPLE_RATE
    chirp = np.sin(2 * np.pi * (90 * time + 140 * time**2)) * (0.4 + 0.3 * np.sin(2 * np.pi * 3 * time))
    tones = 0.3 * np.sign(np.sin(2 * np.pi * 55 * time)) * (np.sin(2 * np.pi * 4 * time) > 0)
    waveform = np.stack([chirp, tones]) + 0.02 * draw.randn(2, 1930)
    lengths = np.array([1930, 1409])
    waveform[1, 1409:] = 0.0
    prompt = np.array([[5, SOT, LANGUAGE, TRANSCRIBE], [SOT, 17, LANGUAGE, TRANSCRIBE]])
    return net.eval(), (torch.from_numpy(waveform.astype(np.float32)), torch.from_numpy(lengths), torch.from_numpy(prompt))
