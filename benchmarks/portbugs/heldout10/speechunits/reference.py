"""Speech to units, voices and a forecast, in the way of wav2vec2-BERT and HuBERT, in PyTorch: the reference."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


def mel_filters(bins: int, count: int, rate: int, low: float = 60.0):
    """Triangles on the mel scale, (bins, count); each begins where the one before has its peak."""
    top = 1127.0 * math.log(1.0 + rate / 2 / 700.0)
    bottom = 1127.0 * math.log(1.0 + low / 700.0)
    edges = torch.linspace(bottom, top, count + 2, dtype=torch.float64)
    mels = 1127.0 * torch.log1p(torch.linspace(0, rate / 2, bins, dtype=torch.float64) / 700.0)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising = (mels.unsqueeze(1) - left) / (centre - left)
    falling = (right - mels.unsqueeze(1)) / (right - centre)
    return torch.minimum(rising, falling).clamp(min=0.0).float()


def valid_steps(lengths, size: int):
    """True where there is speech, (batch, size)."""
    return torch.arange(size, device=lengths.device).unsqueeze(0) < lengths.unsqueeze(1)


def halved(lengths):
    """The lengths behind a convolution of kernel three, stride two and padding one."""
    return torch.div(lengths - 1, 2, rounding_mode="floor") + 1


class LogMel(nn.Module):
    """Logarithms of mel energies, normalised over the valid frames of each utterance."""

    def __init__(self, rate: int = 8000, window: int = 200, hop: int = 80, fft: int = 256, mels: int = 40):
        super().__init__()
        self.window, self.hop, self.fft = window, hop, fft
        self.emphasis = 0.97
        self.register_buffer("taper", torch.hann_window(window), persistent=False)
        self.register_buffer("filters", mel_filters(fft // 2 + 1, mels, rate), persistent=False)

    def forward(self, wave, samples):
        first = wave[:, :1] * (1.0 - self.emphasis)
        wave = torch.cat([first, wave[:, 1:] - self.emphasis * wave[:, :-1]], dim=1)
        frames = wave.unfold(1, self.window, self.hop)
        frames = frames - frames.mean(dim=-1, keepdim=True)
        power = torch.fft.rfft(frames * self.taper, n=self.fft).abs().square()
        logs = torch.matmul(power, self.filters).clamp(min=1e-5).log()
        counts = torch.div(samples - self.window, self.hop, rounding_mode="floor") + 1
        valid = valid_steps(counts, logs.shape[1]).unsqueeze(-1)
        total = counts.to(logs.dtype).view(-1, 1, 1)
        mean = (logs * valid).sum(dim=1, keepdim=True) / total
        centred = (logs - mean).masked_fill(~valid, 0.0)
        variance = centred.square().sum(dim=1, keepdim=True) / (total - 1.0)
        return centred / (variance + 1e-5).sqrt(), counts


class Subsample(nn.Module):
    """Two strided convolutions over time and frequency; a quarter of the frames is left."""

    def __init__(self, mels: int, channels: int, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.project = nn.Linear(channels * (mels // 4), width)
        self.norm = nn.LayerNorm(width)

    def forward(self, features, lengths):
        x = features.unsqueeze(1)
        for conv in (self.conv1, self.conv2):
            x = functional.gelu(conv(x))
            lengths = halved(lengths)
            x = x * valid_steps(lengths, x.shape[2])[:, None, :, None]
        batch, channels, steps, bands = x.shape
        x = x.permute(0, 2, 1, 3).reshape(batch, steps, channels * bands)
        x = self.norm(self.project(x))
        return x.masked_fill(~valid_steps(lengths, steps).unsqueeze(-1), 0.0), lengths


class FeedForward(nn.Module):
    """Norm, wider, SiLU, narrower."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(functional.silu(self.up(self.norm(x))))


class RelativeAttention(nn.Module):
    """Self-attention whose scores know the clipped distance of the key from the query."""

    def __init__(self, width: int, heads: int, distances: int):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.distance = nn.Embedding(distances, self.size)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.size).transpose(1, 2)

    def forward(self, x, indices, allowed):
        x = self.norm(x)
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2))
        scores = scores + torch.einsum("bhqd,qkd->bhqk", query, self.distance(indices))
        scores = scores / math.sqrt(self.size)
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1).masked_fill(~allowed, 0.0)
        mixed = torch.matmul(weights, value).transpose(1, 2).reshape(x.shape)
        return self.out(mixed)


class ConvolutionModule(nn.Module):
    """Gate, causal depthwise convolution, norm, SiLU."""

    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.kernel = kernel
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Conv1d(width, 2 * width, 1, bias=False)
        self.glu = nn.GLU(dim=1)
        self.depthwise = nn.Conv1d(width, width, kernel, groups=width, bias=False)
        self.inner_norm = nn.LayerNorm(width)
        self.contract = nn.Conv1d(width, width, 1, bias=False)

    def forward(self, x, valid):
        x = self.norm(x).masked_fill(~valid.unsqueeze(-1), 0.0)
        x = self.glu(self.expand(x.transpose(1, 2)))
        x = self.depthwise(functional.pad(x, (self.kernel - 1, 0)))
        x = functional.silu(self.inner_norm(x.transpose(1, 2)))
        return self.contract(x.transpose(1, 2)).transpose(1, 2)


class Block(nn.Module):
    """A conformer's block: half a step, attention, convolution, half a step, norm."""

    def __init__(self, width: int, heads: int, kernel: int, distances: int):
        super().__init__()
        self.ffn1 = FeedForward(width, 2 * width)
        self.attention = RelativeAttention(width, heads, distances)
        self.conv = ConvolutionModule(width, kernel)
        self.ffn2 = FeedForward(width, 2 * width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x, indices, allowed, valid):
        x = x + 0.5 * self.ffn1(x)
        x = x + self.attention(x, indices, allowed)
        x = x + self.conv(x, valid)
        x = x + 0.5 * self.ffn2(x)
        return self.norm(x).masked_fill(~valid.unsqueeze(-1), 0.0)


class Encoder(nn.Module):
    """Blocks that see their own chunk and some chunks before it; gives every state on the way."""

    def __init__(self, width: int, heads: int, depth: int, kernel: int, left: int = 8, right: int = 3):
        super().__init__()
        self.left, self.right = left, right
        self.chunk, self.before = 6, 1
        self.blocks = nn.ModuleList([Block(width, heads, kernel, left + right + 1) for _ in range(depth)])

    def forward(self, x, lengths):
        steps = torch.arange(x.shape[1], device=x.device)
        valid = valid_steps(lengths, x.shape[1])
        indices = (steps.unsqueeze(0) - steps.unsqueeze(1)).clamp(-self.left, self.right) + self.left
        chunks = torch.div(steps, self.chunk, rounding_mode="floor")
        behind = chunks.unsqueeze(1) - chunks.unsqueeze(0)
        near = (behind >= 0) & (behind <= self.before)
        allowed = (near & valid.unsqueeze(1)).unsqueeze(1)
        states = [x]
        for block in self.blocks:
            x = block(x, indices, allowed, valid)
            states.append(x)
        return x, states


class ProductQuantizer(nn.Module):
    """The best entry of each group's codebook; how many entries are in use."""

    def __init__(self, width: int, groups: int, entries: int, size: int):
        super().__init__()
        self.groups, self.entries, self.size = groups, entries, size
        self.score = nn.Linear(width, groups * entries)
        self.codebook = nn.Parameter(torch.randn(groups * entries, size))

    def perplexity(self, chances, valid):
        """exp of the entropy of the mean over valid frames, one for each group."""
        weight = valid.to(chances.dtype)[:, :, None, None]
        mean = (chances * weight).sum(dim=(0, 1)) / weight.sum()
        return torch.exp(-(mean * torch.log(mean + 1e-7)).sum(dim=-1))

    def forward(self, x, valid):
        batch, steps, _ = x.shape
        scores = self.score(x).view(batch, steps, self.groups, self.entries)
        best = scores.argmax(dim=-1)
        hard = functional.one_hot(best, self.entries).to(x.dtype)
        rows = best + torch.arange(self.groups, device=x.device) * self.entries
        codes = self.codebook[rows].flatten(2)
        used = torch.stack([self.perplexity(hard, valid), self.perplexity(scores.softmax(dim=-1), valid)])
        return codes, used


class Forecast(nn.Module):
    """How likely the code that comes some steps later is among all codes of the utterance."""

    def __init__(self, width: int, codes: int, ahead: int = 3, temperature: float = 0.2):
        super().__init__()
        self.temperature = temperature
        self.predictors = nn.ModuleList([nn.Linear(width, codes) for _ in range(ahead)])

    def forward(self, context, codes, valid):
        codes = functional.normalize(codes, dim=-1)
        results = []
        for index, predictor in enumerate(self.predictors):
            shift = index + 1
            guess = functional.normalize(predictor(context[:, :-shift]), dim=-1)
            real = valid[:, shift:]
            similar = torch.matmul(guess, codes[:, shift:].transpose(1, 2)) / self.temperature
            similar = similar.masked_fill(~real.unsqueeze(1), -1e4)
            right = similar.log_softmax(dim=-1).diagonal(dim1=1, dim2=2)
            results.append((right * real).sum(dim=1) / real.sum(dim=1))
        return torch.stack(results, dim=1)


class MarginScore(nn.Module):
    """Cosines to the voices; the right voice must win by an angle."""

    def __init__(self, width: int, voices: int, margin: float = 0.4, scale: float = 16.0):
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.randn(voices, width))
        self.cos_margin, self.sin_margin = math.cos(margin), math.sin(margin)
        self.threshold = math.cos(math.pi - margin)
        self.slip = math.sin(math.pi - margin) * margin

    def forward(self, embedding, voice):
        cosine = functional.linear(functional.normalize(embedding), functional.normalize(self.weight))
        sine = (1.0 - cosine.square()).clamp(min=0.0).sqrt()
        turned = cosine * self.cos_margin - sine * self.sin_margin
        turned = torch.where(cosine > self.threshold, turned, cosine - self.slip)
        target = functional.one_hot(voice, cosine.shape[1]).to(cosine.dtype)
        return self.scale * (target * turned + (1.0 - target) * cosine)


class Voice(nn.Module):
    """Attentive statistics over time, and the score of each known voice."""

    def __init__(self, width: int, hidden: int, size: int, voices: int):
        super().__init__()
        self.look = nn.Linear(3 * width, hidden)
        self.act = nn.LeakyReLU()
        self.weigh = nn.Linear(hidden, width)
        self.norm = nn.BatchNorm1d(2 * width)
        self.embed = nn.Linear(2 * width, size)
        self.margin = MarginScore(size, voices)

    @staticmethod
    def statistics(x, weight):
        """Mean and deviation over time for weights of sum one."""
        mean = (x * weight).sum(dim=1)
        variance = (x.square() * weight).sum(dim=1) - mean.square()
        return mean, variance.clamp(min=1e-5).sqrt()

    def forward(self, x, valid, voice):
        real = valid.unsqueeze(-1)
        mean, deviation = self.statistics(x, real.to(x.dtype) / real.sum(dim=1, keepdim=True))
        whole = torch.cat([mean, deviation], dim=1).unsqueeze(1).expand(-1, x.shape[1], -1)
        scores = self.weigh(self.act(self.look(torch.cat([x, whole], dim=-1))))
        weight = scores.masked_fill(~real, -1e4).softmax(dim=1)
        embedding = self.embed(self.norm(torch.cat(self.statistics(x, weight), dim=1)))
        return embedding, self.margin(embedding, voice)


class Adapter(nn.Module):
    """Half the steps: means of pairs, and a gated strided convolution beside them."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, 2 * width, 3, stride=2, padding=1)
        self.ffn = FeedForward(width, 2 * width)

    def forward(self, x, lengths):
        batch, steps, width = x.shape
        valid = valid_steps(lengths, steps).unsqueeze(-1)
        gated = functional.glu(self.conv((self.norm(x) * valid).transpose(1, 2)), dim=1).transpose(1, 2)
        odd = steps % 2
        pairs = functional.pad(x * valid, (0, 0, 0, odd)).view(batch, -1, 2, width)
        count = functional.pad(valid.to(x.dtype), (0, 0, 0, odd)).view(batch, -1, 2, 1)
        x = pairs.sum(dim=2) / count.sum(dim=2).clamp(min=1.0) + gated
        return x + self.ffn(x), halved(lengths)


def collapse(scores, lengths, slots: int, blank: int = 0):
    """Merges runs of a unit, drops blanks: the first units of each utterance and the score each began with."""
    value, best = scores.max(dim=-1)
    before = functional.pad(best[:, :-1], (1, 0), value=blank)
    fresh = (best != blank) & (best != before) & valid_steps(lengths, best.shape[1])
    place = torch.where(fresh, fresh.long().cumsum(dim=1) - 1, slots).clamp(max=slots)
    units = torch.full((best.shape[0], slots + 1), blank).scatter(1, place, best)
    begun = torch.zeros(best.shape[0], slots + 1).scatter(1, place, value)
    return units[:, :slots], begun[:, :slots]


class SpeechUnits(nn.Module):
    """Waves to log-probabilities of units, the units, a forecast of codes, and voices."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 3, units: int = 14, voices: int = 10):
        super().__init__()
        mels, self.slots = 40, 12
        self.features = LogMel(mels=mels)
        self.subsample = Subsample(mels, 16, width)
        self.encoder = Encoder(width, heads, depth, 7)
        self.quantizer = ProductQuantizer(width, 2, 20, 16)
        self.forecast = Forecast(width, 2 * 16)
        self.layer_weights = nn.Parameter(torch.zeros(depth + 1))
        self.voice = Voice(width, 32, 48, voices)
        self.adapter = Adapter(width)
        self.head_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 32)
        self.unit_table = nn.Parameter(torch.randn(units, 32))
        self.unit_bias = nn.Parameter(torch.zeros(units))

    def forward(self, wave, samples, voice):
        features, frames = self.features(wave, samples)
        x, lengths = self.subsample(features, frames)
        valid = valid_steps(lengths, x.shape[1])
        codes, used = self.quantizer(x, valid)
        context, states = self.encoder(x, lengths)
        foreseen = self.forecast(context, codes, valid)
        stacked = torch.stack([functional.layer_norm(state, state.shape[-1:]) for state in states])
        mixed = (self.layer_weights.softmax(dim=0).view(-1, 1, 1, 1) * stacked).sum(dim=0)
        embedding, voices = self.voice(mixed, valid, voice)
        pooled, short = self.adapter(mixed, lengths)
        guess = functional.normalize(self.head(self.head_norm(pooled)), dim=-1)
        cosine = torch.matmul(guess, functional.normalize(self.unit_table, dim=-1).t())
        scores = functional.log_softmax(cosine / 0.1 + self.unit_bias, dim=-1)
        scores = scores * valid_steps(short, scores.shape[1]).unsqueeze(-1)
        units, begun = collapse(scores, short, self.slots)
        return scores, units, begun, codes, used, foreseen, embedding, voices


def build():
    """The net with the same weights on every run, and three utterances of different length."""
    torch.manual_seed(29)
    net = SpeechUnits()
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.1)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.2, 1.2)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.6)
        elif isinstance(module, RelativeAttention):
            nn.init.normal_(module.query.weight, std=0.2)
            nn.init.normal_(module.key.weight, std=0.2)
    with torch.no_grad():
        net.layer_weights.copy_(torch.tensor([-0.3, 0.5, 0.1, 0.8]))
        net.unit_bias.normal_(std=0.5)
        net.unit_bias[0] = 2.0
        net.quantizer.score.weight.mul_(4.0)
        net.voice.weigh.weight.mul_(5.0)
    samples = torch.tensor([16000, 11750, 13900])
    time = torch.arange(16000) / 8000.0
    pitch = torch.tensor([[140.0], [210.0], [95.0]]) * (1.0 + 0.3 * torch.sin(2 * math.pi * 1.7 * time))
    phase = 2 * math.pi * pitch.cumsum(dim=1) / 8000.0
    wave = sum(torch.sin(k * phase + k) / k**0.5 * (1 + torch.sin(2 * math.pi * (1 + 0.7 * k) * time)) for k in range(1, 9))
    wave = 0.1 * wave + 0.02 * torch.randn(3, 16000)
    wave = wave * (torch.arange(16000) < samples.unsqueeze(1))
    return net.eval(), (wave, samples, torch.tensor([3, 0, 7]))
