"""A source-filter synthesizer: harmonics and filtered noise from features of frames, in PyTorch."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TWO_PI = 2 * math.pi


def exp_sigmoid(x, exponent=10.0, max_value=2.0, threshold=1e-7):
    return max_value * torch.sigmoid(x) ** math.log(exponent) + threshold


def upsample(signal, factor):
    """(B, T, C) -> (B, T * factor, C), linear between frames, the last frame is held."""
    signal = signal.permute(0, 2, 1)
    signal = F.interpolate(torch.cat((signal, signal[:, :, -1:]), 2),
                           size=signal.shape[-1] * factor + 1, mode="linear", align_corners=True)
    return signal[:, :, :-1].permute(0, 2, 1)


def overlap_add(frames, hop):
    b, n, size = frames.shape
    parts = frames.view(b, n, size // hop, hop)
    out = frames.new_zeros(b, n + size // hop - 1, hop)
    for i in range(size // hop):
        out[:, i:i + n] += parts[:, :, i]
    return out.reshape(b, -1)


def remove_above_nyquist(amplitudes, pitch, sampling_rate):
    n_harm = amplitudes.shape[-1]
    pitches = pitch * torch.arange(1, n_harm + 1).to(pitch)
    aa = (pitches < sampling_rate / 2).float() + 1e-4
    return amplitudes * aa


def phase_of_frames(f0, hop, sr):
    """Cycles at each sample; f0 moves linearly inside a frame and the frames' ends are cumulated."""
    s0 = f0.double()
    ds0 = F.pad(s0[:, 1:] - s0[:, :-1], (0, 0, 0, 1))
    n = torch.arange(hop).to(s0)
    rad = s0 / sr * (n + 1) + 0.5 * ds0 * n * (n + 1) / sr / hop
    rad2 = torch.fmod(rad[..., -1:] + 0.5, 1.0) - 0.5
    rad_acc = rad2.cumsum(dim=1).fmod(1.0)
    rad = rad + F.pad(rad_acc[:, :-1], (0, 0, 1, 0))
    return torch.remainder(rad, 1.0).reshape(f0.shape[0], -1, 1).to(f0)


def magnitudes_to_ir(magnitudes):
    """Zero-phase response of each frame, shifted to linear phase and windowed."""
    ir = torch.fft.irfft(magnitudes.to(torch.complex64), dim=-1)
    size = ir.shape[-1]
    ir = torch.roll(ir, size // 2, -1)
    return ir * torch.hann_window(size, periodic=True)


def filter_frames(audio, magnitudes, hop):
    """Each windowed frame is convolved with its own response; the tails overlap."""
    b, length = audio.shape
    ir = magnitudes_to_ir(magnitudes)
    ir = torch.cat((ir, ir[:, -1:]), dim=1)
    taps = ir.shape[-1]
    frames = F.pad(audio, (hop, hop)).unfold(1, 2 * hop, hop)
    frames = frames * torch.hann_window(2 * hop, periodic=True)
    n_fft = 4 * hop
    spectrum = torch.fft.rfft(frames, n_fft) * torch.fft.rfft(ir, n_fft)
    out = overlap_add(torch.fft.irfft(spectrum, n_fft), hop)
    start = hop + taps // 2
    return out[:, start:start + length]


def frame_rms(audio, hop, eps=1e-6):
    padded = F.pad(audio[:, None], (hop // 2, hop - hop // 2), mode="reflect")[:, 0]
    frames = padded.unfold(1, 2 * hop, hop)
    return torch.sqrt((frames ** 2).mean(dim=-1, keepdim=True) + eps)


def follow(level, attack, release):
    """Envelope follower: fast up, slow down."""
    state, out = level[:, 0], []
    for t in range(level.shape[1]):
        coef = torch.where(level[:, t] > state, attack, release)
        state = state + coef * (level[:, t] - state)
        out.append(state)
    return torch.stack(out, dim=1)


class ResidualBlock(nn.Module):
    """Gated dilated convolution; speaker sets scale and shift."""

    def __init__(self, dim, dilation):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.film = nn.Linear(dim, 2 * dim)
        self.conv = nn.Conv1d(dim, 2 * dim, 3, padding=dilation, dilation=dilation)
        self.pitch = nn.Conv1d(dim, 2 * dim, 1)
        self.out = nn.Conv1d(dim, 2 * dim, 1)

    def forward(self, x, pitch, speaker):
        # x, pitch: (B, C, T)
        scale, shift = self.film(speaker).unsqueeze(-1).chunk(2, dim=1)
        y = self.norm(x.transpose(1, 2)).transpose(1, 2)
        y = y * (1 + scale) + shift
        y = self.conv(y) + self.pitch(pitch)
        gate, content = y.chunk(2, dim=1)
        y = torch.sigmoid(gate) * F.leaky_relu(content, 0.4)
        residual, skip = self.out(y).chunk(2, dim=1)
        return (x + residual) / math.sqrt(2.0), skip


class FrameAttention(nn.Module):
    """Looks some frames back and ahead, with a penalty by distance."""

    def __init__(self, dim, heads, reach):
        super().__init__()
        self.heads, self.reach = heads, reach
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        slopes = 2.0 ** (-2.0 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes, persistent=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        steps = torch.arange(t)
        gap = (steps[:, None] - steps[None, :]).abs()
        score = q @ k.transpose(-1, -2) * (c // self.heads) ** -0.5
        score = score - self.slopes[:, None, None] * gap
        score = score.masked_fill(gap > self.reach, -1e9)
        y = score.softmax(-1) @ v
        return x + self.proj(y.transpose(1, 2).reshape(b, t, c))


class Decoder(nn.Module):
    def __init__(self, mels, dim, speakers, octaves=4):
        super().__init__()
        self.octaves = octaves
        self.speaker = nn.Embedding(speakers, dim)
        self.mel_in = nn.Conv1d(mels, dim, 3, padding=1)
        self.pitch_in = nn.Linear(2 * octaves + 1, dim)
        self.level_in = nn.Linear(2, dim)
        self.blocks = nn.ModuleList(ResidualBlock(dim, d) for d in (1, 2, 4))
        self.attention = FrameAttention(dim, heads=4, reach=6)
        self.norm = nn.LayerNorm(dim)

    def pitch_features(self, f0):
        voiced = (f0 > 40.0).float()
        midi = torch.log2(f0.clamp(min=40.0) / 440.0)
        angle = midi * (math.pi * 2.0 ** torch.arange(self.octaves))
        return torch.cat([torch.sin(angle) * voiced, torch.cos(angle) * voiced, voiced], dim=-1)

    def forward(self, mel, f0, loudness, speaker):
        mel = (mel - mel.mean(dim=1, keepdim=True)) / (mel.std(dim=1, keepdim=True) + 1e-3)
        loud = torch.cat([loudness / 40.0 + 1.0, follow(loudness / 40.0 + 1.0, 0.6, 0.15)], dim=-1)
        x = self.mel_in(mel.transpose(1, 2)) + self.level_in(loud).transpose(1, 2)
        pitch = self.pitch_in(self.pitch_features(f0)).transpose(1, 2)
        speaker = self.speaker(speaker)
        skips = 0
        for block in self.blocks:
            x, skip = block(x, pitch, speaker)
            skips = skips + skip
        y = F.gelu(skips / math.sqrt(len(self.blocks)))
        return self.norm(self.attention(y.transpose(1, 2)))


class Reverb(nn.Module):
    def __init__(self, length, sr):
        super().__init__()
        self.noise = nn.Parameter(torch.zeros(length))
        self.decay = nn.Parameter(torch.tensor(3.0))
        self.wet = nn.Parameter(torch.tensor(0.0))
        self.register_buffer("t", torch.arange(length) / sr, persistent=False)

    def forward(self, audio):
        ir = self.noise * torch.exp(-F.softplus(-self.decay) * self.t * 500) * torch.sigmoid(self.wet)
        ir = torch.cat([torch.ones(1), ir[1:]])
        return F.conv1d(F.pad(audio[:, None], (len(ir) - 1, 0)), ir.flip(0)[None, None])[:, 0]


class Vocoder(nn.Module):
    def __init__(self, mels=20, dim=36, speakers=4, harmonics=12, bands=17, sr=8000, hop=32):
        super().__init__()
        self.harmonics, self.bands, self.sr, self.hop = harmonics, bands, sr, hop
        self.decoder = Decoder(mels, dim, speakers)
        self.to_amps = nn.Linear(dim, harmonics + 1)
        self.to_source = nn.Linear(dim, bands)
        self.to_noise = nn.Linear(dim, bands)
        self.offsets = nn.Parameter(torch.zeros(harmonics))
        self.reverb = Reverb(96, sr)
        table = np.random.RandomState(7).uniform(-1, 1, 1009).astype("float32")
        self.register_buffer("table", torch.from_numpy(table), persistent=False)
        n = np.arange(-8, 9)
        lowpass = 0.45 * np.sinc(0.45 * n) * np.hanning(19)[1:-1]
        lowpass = torch.from_numpy((lowpass / lowpass.sum()).astype("float32"))
        self.register_buffer("lowpass", lowpass[None, None], persistent=False)

    def harmonic_source(self, f0, hidden):
        amps = exp_sigmoid(self.to_amps(hidden))
        total, amps = amps[..., :1], amps[..., 1:]
        amps = remove_above_nyquist(amps, f0, self.sr)
        amps = amps / amps.sum(-1, keepdim=True)
        amps = amps * total * (f0 > 40.0).float()
        phase = phase_of_frames(f0, self.hop, self.sr)
        k = torch.arange(1, self.harmonics + 1).to(f0)
        waves = torch.sin(TWO_PI * (k * phase + self.offsets))
        return (waves * upsample(amps, self.hop)).sum(-1)

    def noise_source(self, batch, length, seeds):
        index = (torch.arange(length)[None, :] + 131 * seeds[:, None]) % self.table.shape[0]
        return self.table[index].view(batch, length)

    def match_level(self, audio, loudness):
        target = 10.0 ** (loudness / 20.0)
        gain = (target / frame_rms(audio, self.hop)).clamp(0.05, 4.0) ** 0.7
        gain = follow(gain, attack=0.5, release=0.3)
        return audio * upsample(gain, self.hop).squeeze(-1)

    def downsample(self, audio):
        half = self.lowpass.shape[-1] // 2
        audio = F.pad(audio[:, None], (half, half), mode="reflect")
        return F.conv1d(audio, self.lowpass, stride=2)[:, 0]

    def forward(self, mel, f0, loudness, speaker):
        b, frames, _ = mel.shape
        hidden = self.decoder(mel, f0, loudness, speaker)
        harmonic = self.harmonic_source(f0, hidden)
        harmonic = filter_frames(harmonic, exp_sigmoid(self.to_source(hidden)), self.hop)
        noise = self.noise_source(b, frames * self.hop, speaker)
        noise = filter_frames(noise, exp_sigmoid(self.to_noise(hidden) - 2.0), self.hop)
        audio = self.match_level(harmonic + noise, loudness)
        audio = self.reverb(audio)
        audio = audio / torch.sqrt(1 + audio ** 2)
        return self.downsample(audio)


def build():
    """The net with the same weights on every run, and the features of two utterances."""
    torch.manual_seed(31)
    net = Vocoder()
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.xavier_normal_(module.weight, gain=1.3)
            nn.init.normal_(module.bias, std=0.2)
    nn.init.normal_(net.reverb.noise, std=0.25)
    nn.init.uniform_(net.offsets, 0, 1)
    frames = 40
    mel = torch.cumsum(0.4 * torch.randn(2, frames, 20), dim=1) - 4
    f0 = torch.tensor([[[190.0]], [[430.0]]]) * 2 ** (0.06 * torch.cumsum(torch.randn(2, frames, 1), dim=1))
    f0[0, 12:17] = 0.0
    f0[1, 30:34] = 0.0
    loudness = -18 + 5 * torch.sin(torch.arange(frames) / 5.0)[None, :, None] + 2 * torch.randn(2, frames, 1)
    return net.eval(), (mel, f0, loudness, torch.tensor([1, 3]))
