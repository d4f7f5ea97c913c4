"""The source-filter synthesizer in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops

TWO_PI = 2 * math.pi


def hann(size):
    return ms.Tensor((0.5 - 0.5 * np.cos(TWO_PI * np.arange(size) / size)).astype(np.float32))


def exp_sigmoid(x, exponent=10.0, max_value=2.0, threshold=1e-7):
    return max_value * ops.pow(ops.sigmoid(x), math.log(exponent)) + threshold


def upsample(signal, factor):
    """(B, T, C) -> (B, T * factor, C), linear between frames, the last frame is held."""
    b, t, c = signal.shape
    following = ops.concat((signal[:, 1:], signal[:, -1:]), axis=1)
    w = ms.Tensor(np.arange(factor, dtype=np.float32) / factor).reshape(1, 1, factor, 1)
    out = signal.expand_dims(2) * (1 - w) + following.expand_dims(2) * w
    return out.reshape(b, t * factor, c)


def unfold(x, size, step):
    n = (x.shape[1] - size) // step + 1
    index = step * np.arange(n)[:, None] + np.arange(size)[None, :]
    return ops.gather(x, ms.Tensor(index, ms.int32), 1)


def overlap_add(frames, hop):
    b, n, size = frames.shape
    count = size // hop
    parts = frames.reshape(b, n, count, hop)
    out = 0
    for i in range(count):
        out = out + ops.pad(parts[:, :, i], (0, 0, i, count - 1 - i))
    return out.reshape(b, -1)


def remove_above_nyquist(amplitudes, pitch, sampling_rate):
    n_harm = amplitudes.shape[-1]
    pitches = pitch * ops.arange(1, n_harm + 1).astype(pitch.dtype)
    aa = (pitches < sampling_rate / 2).astype(ms.float32) + 1e-4
    return amplitudes * aa


def phase_of_frames(f0, hop, sr):
    """Cycles at each sample; f0 moves linearly inside a frame and the frames' ends are cumulated."""
    s0 = f0.astype(ms.float64)
    ds0 = ops.pad(s0[:, 1:] - s0[:, :-1], (0, 0, 0, 1))
    n = ops.arange(hop).astype(s0.dtype)
    rad = s0 / sr * (n + 1) + 0.5 * ds0 * n * (n + 1) / sr / hop
    rad2 = ops.fmod(rad[..., -1:] + 0.5, 1.0) - 0.5
    rad_acc = ops.fmod(ops.cumsum(rad2, axis=1), 1.0)
    rad = rad + ops.pad(rad_acc[:, :-1], (0, 0, 1, 0))
    rad = rad - ops.floor(rad)
    return rad.reshape(f0.shape[0], -1, 1).astype(f0.dtype)


def magnitudes_to_ir(magnitudes):
    """Zero-phase response of each frame, shifted to linear phase and windowed."""
    ir = ops.irfft(magnitudes.astype(ms.complex64), dim=-1)
    size = ir.shape[-1]
    half = size // 2
    ir = ops.concat((ir[..., half:], ir[..., :half]), axis=-1)
    return ir * hann(size)


def filter_frames(audio, magnitudes, hop):
    """Each windowed frame is convolved with its own response; the tails overlap."""
    b, length = audio.shape
    ir = magnitudes_to_ir(magnitudes)
    ir = ops.concat((ir, ir[:, -1:]), axis=1)
    taps = ir.shape[-1]
    frames = unfold(ops.pad(audio, (hop, hop)), 2 * hop, hop)
    frames = frames * hann(2 * hop)
    n_fft = 4 * hop
    spectrum = ops.rfft(frames, n_fft) * ops.rfft(ir, n_fft)
    out = overlap_add(ops.irfft(spectrum, n_fft), hop)
    start = hop + taps // 2
    return out[:, start:start + length]


def frame_rms(audio, hop, eps=1e-6):
    padded = ops.pad(audio.expand_dims(1), (hop // 2, hop - hop // 2), mode="reflect").squeeze(1)
    frames = unfold(padded, 2 * hop, hop)
    return ops.sqrt(ops.square(frames).mean(axis=-1, keep_dims=True) + eps)


def follow(level, attack, release):
    """Envelope follower: fast up, slow down."""
    state, out = level[:, 0], []
    for t in range(level.shape[1]):
        rising = (level[:, t] > state).astype(level.dtype)
        coef = rising * attack + (1 - rising) * release
        state = state + coef * (level[:, t] - state)
        out.append(state)
    return ops.stack(out, axis=1)


class ResidualBlock(nn.Cell):
    """Gated dilated convolution; speaker sets scale and shift."""

    def __init__(self, dim, dilation):
        super().__init__()
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.film = nn.Dense(dim, 2 * dim)
        self.conv = nn.Conv1d(dim, 2 * dim, 3, pad_mode="pad", padding=dilation, dilation=dilation, has_bias=True)
        self.pitch = nn.Conv1d(dim, 2 * dim, 1, pad_mode="valid", has_bias=True)
        self.out = nn.Conv1d(dim, 2 * dim, 1, pad_mode="valid", has_bias=True)

    def construct(self, x, pitch, speaker):
        # x, pitch: (B, C, T)
        scale, shift = ops.chunk(self.film(speaker).expand_dims(-1), 2, axis=1)
        y = self.norm(x.swapaxes(1, 2)).swapaxes(1, 2)
        y = y * (1 + scale) + shift
        y = self.conv(y) + self.pitch(pitch)
        gate, content = ops.chunk(y, 2, axis=1)
        y = ops.sigmoid(gate) * ops.leaky_relu(content, 0.4)
        residual, skip = ops.chunk(self.out(y), 2, axis=1)
        return (x + residual) / math.sqrt(2.0), skip


class FrameAttention(nn.Cell):
    """Looks some frames back and ahead, with a penalty by distance."""

    def __init__(self, dim, heads, reach):
        super().__init__()
        self.heads, self.reach = heads, reach
        self.qkv = nn.Dense(dim, 3 * dim)
        self.proj = nn.Dense(dim, dim)
        self.slopes = ms.Tensor(2.0 ** (-2.0 * np.arange(1, heads + 1) / heads), ms.float32)

    def construct(self, x):
        b, t, c = x.shape
        qkv = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        steps = np.arange(t)
        gap = ms.Tensor(np.abs(steps[:, None] - steps[None, :]), ms.float32)
        score = ops.matmul(q, k.swapaxes(-1, -2)) * (c // self.heads) ** -0.5
        score = score - self.slopes.reshape(-1, 1, 1) * gap
        score = score.masked_fill(gap > self.reach, -1e9)
        y = ops.matmul(ops.softmax(score, axis=-1), v)
        return x + self.proj(y.swapaxes(1, 2).reshape(b, t, c))


class Decoder(nn.Cell):
    def __init__(self, mels, dim, speakers, octaves=4):
        super().__init__()
        self.octaves = octaves
        self.speaker = nn.Embedding(speakers, dim)
        self.mel_in = nn.Conv1d(mels, dim, 3, pad_mode="pad", padding=1, has_bias=True)
        self.pitch_in = nn.Dense(2 * octaves + 1, dim)
        self.level_in = nn.Dense(2, dim)
        self.blocks = nn.CellList([ResidualBlock(dim, d) for d in (1, 2, 4)])
        self.attention = FrameAttention(dim, heads=4, reach=6)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)

    def pitch_features(self, f0):
        voiced = (f0 > 40.0).astype(ms.float32)
        midi = ops.log2(ops.clamp(f0, min=40.0).astype(ms.float64) / 440.0).astype(ms.float32)
        angle = midi * ms.Tensor(np.pi * 2.0 ** np.arange(self.octaves), ms.float32)
        return ops.concat((ops.sin(angle) * voiced, ops.cos(angle) * voiced, voiced), axis=-1)

    def construct(self, mel, f0, loudness, speaker):
        mel = (mel - mel.mean(axis=1, keep_dims=True)) / (mel.std(axis=1, ddof=1, keepdims=True) + 1e-3)
        loud = loudness / 40.0 + 1.0
        loud = ops.concat((loud, follow(loud, 0.6, 0.15)), axis=-1)
        x = self.mel_in(mel.swapaxes(1, 2)) + self.level_in(loud).swapaxes(1, 2)
        pitch = self.pitch_in(self.pitch_features(f0)).swapaxes(1, 2)
        speaker = self.speaker(speaker)
        skips = 0
        for block in self.blocks:
            x, skip = block(x, pitch, speaker)
            skips = skips + skip
        y = ops.gelu(skips / math.sqrt(len(self.blocks)), approximate="none")
        return self.norm(self.attention(y.swapaxes(1, 2)))


class Reverb(nn.Cell):
    def __init__(self, length, sr):
        super().__init__()
        self.noise = ms.Parameter(ops.zeros((length,)), name="noise")
        self.decay = ms.Parameter(ms.Tensor(3.0, ms.float32), name="decay")
        self.wet = ms.Parameter(ms.Tensor(0.0, ms.float32), name="wet")
        self.t = ms.Tensor(np.arange(length) / sr, ms.float32)

    def construct(self, audio):
        rate = ops.log(1 + ops.exp(-self.decay))
        ir = self.noise * ops.exp(-rate * self.t * 500) * ops.sigmoid(self.wet)
        ir = ops.concat((ops.ones((1,), ms.float32), ir[1:]))
        size = ir.shape[0]
        padded = ops.pad(audio, (size - 1, 0))
        return ops.matmul(unfold(padded, size, 1), ops.flip(ir, (0,)))


class Vocoder(nn.Cell):
    def __init__(self, mels=20, dim=36, speakers=4, harmonics=12, bands=17, sr=8000, hop=32):
        super().__init__()
        self.harmonics, self.bands, self.sr, self.hop = harmonics, bands, sr, hop
        self.decoder = Decoder(mels, dim, speakers)
        self.to_amps = nn.Dense(dim, harmonics + 1)
        self.to_source = nn.Dense(dim, bands)
        self.to_noise = nn.Dense(dim, bands)
        self.offsets = ms.Parameter(ops.zeros((harmonics,)), name="offsets")
        self.reverb = Reverb(96, sr)
        self.table = ms.Tensor(np.random.RandomState(7).uniform(-1, 1, 1009).astype("float32"))
        n = np.arange(-8, 9)
        lowpass = 0.45 * np.sinc(0.45 * n) * np.hanning(19)[1:-1]
        self.lowpass = ms.Tensor((lowpass / lowpass.sum()).astype("float32"))

    def harmonic_source(self, f0, hidden):
        amps = exp_sigmoid(self.to_amps(hidden))
        total, amps = amps[..., :1], amps[..., 1:]
        amps = remove_above_nyquist(amps, f0, self.sr)
        amps = amps / amps.sum(axis=-1, keepdims=True)
        amps = amps * total * (f0 > 40.0).astype(ms.float32)
        phase = phase_of_frames(f0, self.hop, self.sr)
        k = ops.arange(1, self.harmonics + 1).astype(f0.dtype)
        waves = ops.sin(TWO_PI * (k * phase + self.offsets))
        return (waves * upsample(amps, self.hop)).sum(axis=-1)

    def noise_source(self, batch, length, seeds):
        index = (ops.arange(length).expand_dims(0) + 131 * seeds.expand_dims(1)) % self.table.shape[0]
        return self.table[index].reshape(batch, length)

    def match_level(self, audio, loudness):
        target = ops.pow(10.0, loudness / 20.0)
        gain = ops.clamp(target / frame_rms(audio, self.hop), 0.05, 4.0) ** 0.7
        gain = follow(gain, attack=0.5, release=0.3)
        return audio * upsample(gain, self.hop).squeeze(-1)

    def downsample(self, audio):
        size = self.lowpass.shape[0]
        audio = ops.pad(audio.expand_dims(1), (size // 2, size // 2), mode="reflect").squeeze(1)
        return ops.matmul(unfold(audio, size, 2), self.lowpass)

    def construct(self, mel, f0, loudness, speaker):
        b, frames, _ = mel.shape
        hidden = self.decoder(mel, f0, loudness, speaker)
        harmonic = self.harmonic_source(f0, hidden)
        harmonic = filter_frames(harmonic, exp_sigmoid(self.to_source(hidden)), self.hop)
        noise = self.noise_source(b, frames * self.hop, speaker)
        noise = filter_frames(noise, exp_sigmoid(self.to_noise(hidden) - 2.0), self.hop)
        audio = self.match_level(harmonic + noise, loudness)
        audio = self.reverb(audio)
        audio = audio / ops.sqrt(1 + ops.square(audio))
        return self.downsample(audio)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Vocoder()
