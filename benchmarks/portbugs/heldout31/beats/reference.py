"""A tracker of beats: mel bands, dilated convolutions, a small transformer, decoders in tensors; in PyTorch."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Config:
    """What the yaml of the tiny model says."""

    sample_rate, hop, n_fft, bands, fmin, fmax = 16000, 800, 256, 24, 60.0, 7600.0
    top_db, flux_lag = 60.0, 2
    dim, kernel, dilations = 24, 5, (1, 2, 4, 8)
    heads, windows, ffn_ratio = 3, (None, 18), 2
    min_period, max_period = 7, 16  # of a beat, in frames, both ends included
    tempo_center, tempo_width = 110.0, 0.7
    transition_lambda, observation_lambda, max_peaks = 40.0, 5, 10
    fps = sample_rate / hop


def mel_bank(cfg):
    """Triangles of equal area over the bins of the spectrum, on the HTK scale: (bins, bands)."""
    bins = np.linspace(0, cfg.sample_rate / 2, cfg.n_fft // 2 + 1)
    low, high = (2595.0 * math.log10(1.0 + hz / 700.0) for hz in (cfg.fmin, cfg.fmax))
    edges = 700.0 * (10.0 ** (np.linspace(low, high, cfg.bands + 2) / 2595.0) - 1.0)
    rising = (bins[:, None] - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - bins[:, None]) / np.diff(edges)[1:]
    weights = np.maximum(0, np.minimum(rising, falling)) * 2.0 / (edges[2:] - edges[:-2])
    return torch.from_numpy(weights.astype(np.float32))


def masked_moments(x, valid, dim):
    """Mean and unbiased standard deviation of what is valid."""
    weight = valid.to(x.dtype)
    count = weight.sum(dim, keepdim=True)
    mean = (x * weight).sum(dim, keepdim=True) / count.clamp(min=1.0)
    var = ((x - mean).pow(2) * weight).sum(dim, keepdim=True) / (count - 1.0).clamp(min=1.0)
    return mean, var.sqrt()


def parabola(left, center, right):
    """Offset of the vertex through three values, at most half a step."""
    curve = left - 2 * center + right
    offset = 0.5 * (left - right) / torch.where(curve.abs() < 1e-6, torch.full_like(curve, -1e-6), curve)
    return offset.clamp(-0.5, 0.5)


def sinusoids(distance, dim):
    """Sines and cosines of signed distances, interleaved."""
    angle = distance.float()[:, None] * torch.exp(torch.arange(0, dim, 2).float() * (-math.log(1000.0) / dim))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


class LogMel(nn.Module):
    """Mel bands in decibels below the clip's peak, standardised per band, and their flux."""
    def __init__(self, cfg):
        super().__init__()
        self.top_db, self.lag = cfg.top_db, cfg.flux_lag
        self.register_buffer("bank", mel_bank(cfg), persistent=False)

    def forward(self, power, valid):
        level = 10.0 * torch.log10((power @ self.bank).clamp(min=1e-10))
        peak = level.masked_fill(~valid[..., None], -math.inf).amax(dim=(1, 2), keepdim=True)
        level = torch.maximum(level - peak, level.new_tensor(-self.top_db))
        mean, std = masked_moments(level, valid[..., None], 1)
        level = (level - mean) / (std + 1e-3)
        # flux against an earlier frame, widened by one band on either side so that vibrato is no onset
        widened = F.max_pool1d(level, 3, 1, 1)
        earlier = F.pad(widened[:, : -self.lag], (0, 0, self.lag, 0))
        flux = F.relu(level - earlier)
        flux[:, : self.lag] = 0.0
        return torch.stack((level, flux), dim=1) * valid[:, None, :, None].to(level.dtype)


class Frontend(nn.Module):
    """Convolutions that take the bands away."""
    def __init__(self, cfg):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 8, 3, padding=(1, 0), bias=False)
        self.bn1 = nn.BatchNorm2d(8, eps=1e-3)
        self.conv2 = nn.Conv2d(8, 12, (1, 4), bias=False)
        self.bn2 = nn.BatchNorm2d(12, eps=1e-3)
        self.conv3 = nn.Conv2d(12, 16, 3, padding=(1, 0))
        self.act = nn.ELU()
        self.pool = nn.MaxPool2d((1, 2))
        self.proj = nn.Linear(16 * 2, cfg.dim)

    def forward(self, x):
        x = self.pool(self.act(self.bn1(self.conv1(x))))
        x = self.pool(self.act(self.bn2(self.conv2(x))))
        x = self.act(self.conv3(x))
        return self.proj(x.permute(0, 2, 1, 3).flatten(2))


class DilatedBlock(nn.Module):
    """Two convolutions, one of twice the dilation, side by side; what they add is handed out too."""
    def __init__(self, dim, kernel, dilation):
        super().__init__()
        side = kernel // 2 * dilation
        self.conv_a = nn.Conv1d(dim, dim, kernel, padding=side, dilation=dilation)
        self.conv_b = nn.Conv1d(dim, dim, kernel, padding=2 * side, dilation=2 * dilation)
        self.norm = nn.BatchNorm1d(2 * dim, eps=1e-3)
        self.act = nn.ELU()
        self.dropout = nn.Dropout1d(0.1)
        self.mix = nn.Conv1d(2 * dim, dim, 1)
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x, weight):
        h = x * weight
        h = torch.cat((self.conv_a(h), self.conv_b(h)), dim=1)
        skip = self.mix(self.dropout(self.act(self.norm(h))))
        return x + self.scale[:, None] * skip, skip


class TemporalNet(nn.Module):
    """A stack of dilated blocks; the tempo reads a learned mixture of what they added."""
    def __init__(self, cfg):
        super().__init__()
        self.blocks = nn.ModuleList(DilatedBlock(cfg.dim, cfg.kernel, d) for d in cfg.dilations)
        self.skip_logits = nn.Parameter(torch.zeros(len(cfg.dilations)))

    def forward(self, x, valid):
        weight, skips = valid[:, None, :].to(x.dtype), []
        x = x.transpose(1, 2)
        for block in self.blocks:
            x, skip = block(x, weight)
            skips.append(skip)
        mixed = torch.einsum("k,kbct->btc", self.skip_logits.softmax(dim=0), torch.stack(skips))
        return F.elu(x).transpose(1, 2), mixed


class RelativeAttention(nn.Module):
    """Attention with relative positions as in Transformer-XL, both ways, perhaps within a window."""
    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.head_dim, self.window = heads, dim // heads, window
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.position = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.content_bias = nn.Parameter(torch.zeros(heads, self.head_dim))
        self.position_bias = nn.Parameter(torch.zeros(heads, self.head_dim))

    @staticmethod
    def shift(x):
        """From (query, distance t-1 ... 1-t) to (query, key)."""
        b, h, t, p = x.shape
        return F.pad(x, (1, 0)).reshape(b, h, p + 1, t)[:, :, 1:].reshape(b, h, t, p)[..., :t]

    def forward(self, x, table, valid):
        b, t, _ = x.shape
        q = self.query(x).view(b, t, self.heads, self.head_dim)
        k, v = (y.view(b, t, self.heads, self.head_dim).transpose(1, 2) for y in self.key_value(x).chunk(2, dim=-1))
        p = self.position(table).view(-1, self.heads, self.head_dim).permute(1, 2, 0)
        content = (q + self.content_bias).transpose(1, 2) @ k.transpose(-2, -1)
        position = self.shift((q + self.position_bias).transpose(1, 2) @ p)
        logits = (content + position) / math.sqrt(self.head_dim)
        seen = valid[:, None, None, :]
        if self.window is not None:
            place = torch.arange(t)
            seen = seen & ((place[:, None] - place[None, :]).abs() <= self.window)
        attn = logits.masked_fill(~seen, torch.finfo(logits.dtype).min).softmax(dim=-1)
        return self.out((attn @ v).transpose(1, 2).reshape(b, t, -1))


class EncoderLayer(nn.Module):
    """Attention and a gated perceptron, each after its norm."""
    def __init__(self, dim, heads, window, ratio):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = RelativeAttention(dim, heads, window)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * ratio * dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(ratio * dim, dim)

    def forward(self, x, table, valid):
        x = x + self.attn(self.norm1(x), table, valid)
        gate, value = self.fc1(self.norm2(x)).chunk(2, dim=-1)
        return x + self.fc2(self.act(gate) * value)


class Encoder(nn.Module):
    """The transformer."""
    def __init__(self, cfg):
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(cfg.dim, cfg.heads, w, cfg.ffn_ratio) for w in cfg.windows)
        self.norm = nn.LayerNorm(cfg.dim)

    def forward(self, x, valid):
        t = x.shape[1]
        table = sinusoids(torch.arange(t - 1, -t, -1), x.shape[2])
        for layer in self.layers:
            x = layer(x, table, valid)
        return self.norm(x)


class TempoHead(nn.Module):
    """Log probabilities of the periods, from frames weighed by attention."""
    def __init__(self, dim, periods):
        super().__init__()
        self.score = nn.Linear(dim, 1)
        self.fc1 = nn.Linear(dim, 20)
        self.act = nn.LeakyReLU()
        self.dropout = nn.Dropout(0.3)
        self.fc2 = nn.Linear(20, periods)

    def forward(self, x, valid):
        weight = self.score(x).squeeze(-1).masked_fill(~valid, -1e4).softmax(dim=1)
        pooled = torch.einsum("bt,btc->bc", weight, x)
        return self.fc2(self.dropout(self.act(self.fc1(pooled)))).log_softmax(dim=-1)


class TempoHistogram(nn.Module):
    """Autocorrelation of the activation at each period and its double, with a prior and the head's opinion."""
    def __init__(self, cfg):
        super().__init__()
        periods = torch.arange(cfg.min_period, cfg.max_period + 1)
        octaves = torch.log2(60.0 * cfg.fps / periods / cfg.tempo_center)
        self.fps, self.periods = cfg.fps, periods
        self.register_buffer("prior", torch.exp(-0.5 * (octaves / cfg.tempo_width) ** 2), persistent=False)

    def forward(self, act, log_probs, valid):
        t = act.shape[1]
        weight = valid.to(act.dtype)
        mean, _ = masked_moments(act, valid, 1)
        centered = (act - mean) * weight
        corr = torch.fft.irfft(torch.fft.rfft(centered, 2 * t).abs().pow(2), 2 * t)[:, :t]
        pairs = (valid.sum(dim=1, keepdim=True) - torch.arange(t)).clamp(min=1)
        corr = corr / pairs
        comb = (corr[:, self.periods] + 0.5 * corr[:, 2 * self.periods]) / corr[:, :1]
        hist = F.relu(comb) * self.prior + 0.02
        hist = F.conv1d(F.pad(hist[:, None], (1, 1), mode="replicate"), hist.new_tensor([[[0.25, 0.5, 0.25]]]))[:, 0]
        fused = (hist.log() + 0.5 * log_probs).softmax(dim=1)
        best = fused.argmax(dim=1, keepdim=True)
        around = [fused.gather(1, (best + d).clamp(0, fused.shape[1] - 1)) for d in (-1, 0, 1)]
        return fused, 60.0 * self.fps / (self.periods[best] + parabola(*around)).squeeze(1)


class PeakPicker(nn.Module):
    """Local maxima above a moving average, not too near each other; times in seconds."""
    def __init__(self, cfg, pre_avg=9, post_avg=4, wait=4, delta=0.02):
        super().__init__()
        self.pre_avg, self.post_avg, self.wait, self.delta = pre_avg, post_avg, wait, delta
        self.fps, self.max_peaks = cfg.fps, cfg.max_peaks
        window = torch.hann_window(7, periodic=False)[1:-1]
        self.register_buffer("window", (window / window.sum()).view(1, 1, -1), persistent=False)

    def forward(self, act, valid):
        b, t = act.shape
        smooth = F.conv1d(F.pad(act[:, None], (2, 2), mode="reflect"), self.window)[:, 0] * valid.to(act.dtype)
        total = F.pad(smooth.cumsum(dim=1), (1, 0))
        place = torch.arange(t)
        start = (place - self.pre_avg).clamp(min=0)
        stop = torch.minimum(place + self.post_avg + 1, valid.sum(dim=1, keepdim=True)).clamp(min=1)
        start = torch.minimum(start, stop - 1)
        average = (total.gather(1, stop) - total.gather(1, start)) / (stop - start)
        highest = F.max_pool1d(F.pad(smooth[:, None], (3, 2), value=-1.0), 6, 1)[:, 0]
        candidate = (smooth == highest) & (smooth >= average + self.delta) & valid
        since, kept = torch.full((b,), self.wait), []
        for i in range(t):
            chosen = candidate[:, i] & (since >= self.wait)
            since = torch.where(chosen, torch.ones_like(since), since + 1)
            kept.append(chosen)
        strength = torch.where(torch.stack(kept, dim=1), smooth, torch.zeros_like(smooth))
        value, index = strength.topk(self.max_peaks, dim=1)
        index, order = torch.where(value > 0, index, torch.full_like(index, t)).sort(dim=1)
        around = [smooth.gather(1, (index + d).clamp(0, t - 1)) for d in (-1, 0, 1)]
        seconds = (index + parabola(*around)) / self.fps
        return torch.where(index < t, seconds, torch.full_like(seconds, -1.0)), value.gather(1, order)


class StateDecoder(nn.Module):
    """Viterbi over states of period and position; a period may change only as a beat begins."""
    def __init__(self, cfg):
        super().__init__()
        period = torch.arange(cfg.min_period, cfg.max_period + 1)
        self.last, self.first = period.cumsum(0) - 1, period.cumsum(0) - period
        self.kind = torch.arange(len(period)).repeat_interleave(period)
        self.position = torch.arange(int(period.sum())) - self.first[self.kind]
        self.others = cfg.observation_lambda - 1
        self.on_beat = self.position < period[self.kind] / cfg.observation_lambda
        change = (period[None, :] / period[:, None] - 1.0).abs()
        self.register_buffer("log_change", (-cfg.transition_lambda * change).log_softmax(dim=1), persistent=False)
        self.register_buffer("log_period", period.float().log(), persistent=False)

    def forward(self, act, hist, valid):
        t, states = act.shape[1], len(self.kind)
        act = act.clamp(1e-5, 1 - 1e-5)
        density = torch.stack(((1 - act) / self.others, act), dim=-1).log()[..., self.on_beat.long()]
        score = (hist.log() - self.log_period)[:, self.kind] + density[:, 0]
        pointers, trellis = [], [score.logsumexp(dim=1)]
        for i in range(1, t):
            jump, source = (score[:, self.last, None] + self.log_change).max(dim=1)
            prior, pointer = score.roll(1, dims=1), (torch.arange(states) - 1).repeat(len(score), 1)
            prior[:, self.first], pointer[:, self.first] = jump, self.last[source]
            score = torch.where(valid[:, i, None], prior + density[:, i], score)
            pointers.append(torch.where(valid[:, i, None], pointer, torch.arange(states)))
            trellis.append(score.logsumexp(dim=1))
        best, state = score.max(dim=1, keepdim=True)
        path = [state]
        for pointer in reversed(pointers):
            path.append(pointer.gather(1, path[-1]))
        path = torch.cat(path[::-1], dim=1)
        place = self.position[path]
        wrapped = torch.cat((place[:, :1] == 0, place[:, 1:] < place[:, :-1]), dim=1)
        per_frame = torch.stack(trellis, dim=1) / valid.sum(dim=1, keepdim=True)
        return path, wrapped & valid, best.squeeze(1) / valid.sum(dim=1), per_frame


def tolerant_loss(logits, target, valid, tolerance=1):
    """Cross entropy that forgives a shift by a few frames; frames about a beat are no negatives."""
    reached = F.max_pool1d(logits, 2 * tolerance + 1, 1, tolerance)
    near = F.max_pool1d(target, 4 * tolerance + 1, 1, 2 * tolerance)
    weight = valid.to(logits.dtype)
    positive, negative = ((x * weight).sum(dim=1, keepdim=True) for x in (target, 1 - near))
    ratio = negative / positive.clamp(min=1.0)
    loss = ratio * target * F.softplus(-reached) + (1 - near) * F.softplus(reached)
    return (loss * weight).sum(dim=1) / (ratio * positive + negative).squeeze(1)


class BeatTracker(nn.Module):
    """Power spectrograms to beats, downbeats and tempo."""
    def __init__(self, cfg):
        super().__init__()
        self.features = LogMel(cfg)
        self.frontend = Frontend(cfg)
        self.temporal = TemporalNet(cfg)
        self.encoder = Encoder(cfg)
        self.beat_head = nn.Linear(cfg.dim, 2)
        self.tempo_head = TempoHead(cfg.dim, cfg.max_period - cfg.min_period + 1)
        self.tempo = TempoHistogram(cfg)
        self.peaks = PeakPicker(cfg)
        self.decoder = StateDecoder(cfg)

    def forward(self, power, lengths, annotation):
        """power is (batch, frames, bins); annotation is 0, 1 (beat) or 2 (downbeat) for each frame."""
        valid = torch.arange(power.shape[1])[None, :] < lengths[:, None]
        x, mixed = self.temporal(self.frontend(self.features(power, valid)), valid)
        beat, downbeat = self.beat_head(self.encoder(x, valid)).masked_fill(~valid[..., None], 0.0).unbind(dim=-1)
        beat = beat + downbeat  # a downbeat is a beat too
        log_probs = self.tempo_head(mixed, valid)
        act = torch.sigmoid(beat) * valid.to(beat.dtype)
        # a frame's downbeat cannot be likelier than its beat
        down = torch.minimum(torch.sigmoid(downbeat) * valid.to(beat.dtype), act)
        hist, bpm = self.tempo(act, log_probs, valid)
        seconds, strength = self.peaks(act, valid)
        path, beats, log_p, trellis = self.decoder(act, hist, valid)
        # downbeats: the decoded beats whose chance stands out among those of their clip
        downbeats = beats & (down > masked_moments(down, beats, 1)[0])
        loss = tolerant_loss(beat, (annotation > 0).to(beat.dtype), valid)
        loss = loss + 0.5 * tolerant_loss(downbeat, (annotation == 2).to(beat.dtype), valid)
        return {
            "beat": beat, "downbeat": downbeat, "tempo_log_probs": log_probs, "tempo": hist, "bpm": bpm,
            "peak_seconds": seconds, "peak_strength": strength, "path": path, "beats": beats.to(beat.dtype),
            "downbeats": downbeats.to(beat.dtype), "log_p": log_p, "trellis": trellis, "loss": loss,
        }


def trained_like(net, inputs):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, DilatedBlock):
            nn.init.uniform_(module.scale, 0.3, 0.8)
            module.conv_a.weight.data *= 0.1
            module.conv_b.weight.data *= 0.1
        elif isinstance(module, RelativeAttention):
            nn.init.normal_(module.content_bias, std=0.5)
            nn.init.normal_(module.position_bias, std=0.5)
    nn.init.normal_(net.temporal.skip_logits, std=0.7)
    net.frontend.conv2.weight.data *= 0.1
    net.beat_head.weight.data *= 1.5
    net.beat_head.bias.data -= 0.7
    net.tempo_head.fc1.weight.data *= 3.0
    # one pass over the clips for the running statistics, then some drift
    norms = [m for m in net.eval().modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    for norm in norms:
        norm.train().momentum = 1.0
    with torch.no_grad():
        net(*inputs)
    for norm in norms:
        norm.momentum = 0.1
        norm.running_mean += 0.2 * norm.running_var.sqrt() * torch.randn_like(norm.running_mean)
        norm.running_var *= torch.empty_like(norm.running_var).uniform_(0.7, 1.4)
    return net.eval()


def clips(frames=96, bins=129, seed=7):
    """Three noisy clips with pulses; noise goes on where a shorter clip has ended."""
    rng = np.random.RandomState(seed)
    lengths = np.array([96, 71, 84], np.int64)
    power, annotation = np.zeros((3, frames, bins), np.float32), np.zeros((3, frames), np.int64)
    for row, (period, first, meter) in enumerate(((10.0, 3, 4), (8.5, 5, 3), (13.0, 2, 4))):
        envelope = np.zeros(frames)
        for count, onset in enumerate(np.arange(first, frames, period)):
            onset, strong = int(round(onset)), count % meter == 0
            annotation[row, onset] = 2 if strong else 1
            envelope[onset:] += (1.5 if strong else 0.8) * np.exp(-0.5 * np.arange(frames - onset))
        noise = rng.gamma(2.0, 0.5, (frames, bins)) * np.exp(-np.arange(bins) / 40.0)
        power[row] = (noise * (0.05 + envelope[:, None]) * (1.0, 30.0, 0.02)[row]).astype(np.float32)
    return power, lengths, annotation


def build():
    """The net with the same weights on every run, and three clips of which two are padded."""
    torch.manual_seed(0)
    inputs = tuple(torch.from_numpy(array) for array in clips())
    return trained_like(BeatTracker(Config()), inputs), inputs
