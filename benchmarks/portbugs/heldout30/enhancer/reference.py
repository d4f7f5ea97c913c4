"""Complex dual-path network that enhances and separates two talkers in the time-frequency domain, in PyTorch."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

EPS = 1e-8


def length_mask(lengths, size):
    """(batch, size), one where a sample belongs to the utterance."""
    return (torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]).float()


def frame_mask(lengths, hop, frames):
    """(batch, frames), one where the centre of a frame lies in the utterance."""
    return length_mask(torch.div(lengths + hop - 1, hop, rounding_mode="floor"), frames)


def complex_cat(tensors, dim=1):
    """Concatenate complex maps: all real parts first, then all imaginary parts."""
    real, imag = zip(*(torch.chunk(tensor, 2, dim) for tensor in tensors))
    return torch.cat(real + imag, dim)


def compress(spec, power):
    """Magnitude to the given power, phase unchanged; real and imaginary parts are dimension 1."""
    magnitude = spec.pow(2).sum(dim=1, keepdim=True).add(EPS).sqrt()
    return spec * magnitude.pow(power - 1.0)


def analysis_window(win_length, n_fft):
    """Square root of the periodic Hann window, centred in a frame of n_fft samples."""
    window = torch.hann_window(win_length, periodic=True).sqrt()
    left = (n_fft - win_length) // 2
    return F.pad(window, (left, n_fft - win_length - left))


def complex_layer(real_layer, imag_layer, x):
    """What a complex weight makes of a complex map, by two real layers."""
    re, im = torch.chunk(x, 2, dim=1)
    return torch.cat((real_layer(re) - imag_layer(im), real_layer(im) + imag_layer(re)), dim=1)


class STFT(nn.Module):
    """Waveforms (batch, samples) to spectra (batch, 2, bands, frames)."""

    def __init__(self, n_fft, win_length, hop):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", analysis_window(win_length, n_fft), persistent=False)

    def forward(self, wave):
        half = self.n_fft // 2
        padded = F.pad(wave.unsqueeze(1), (half, half), mode="reflect").squeeze(1)
        frames = padded.unfold(-1, self.n_fft, self.hop) * self.window
        spec = torch.fft.rfft(frames, dim=-1)
        return torch.stack((spec.real, spec.imag), dim=1).transpose(2, 3)


class InverseSTFT(STFT):
    """Overlap-add with the synthesis window, divided by the sum of the squared windows."""

    def overlap_add(self, frames):
        """(batch, n_fft, frames) to (batch, samples)."""
        size = (frames.shape[-1] - 1) * self.hop + self.n_fft
        out = F.fold(frames, output_size=(1, size), kernel_size=(1, self.n_fft), stride=(1, self.hop))
        return out.reshape(frames.shape[0], size)

    def forward(self, spec, length):
        spec = torch.complex(spec[:, 0], spec[:, 1]).transpose(1, 2)
        frames = torch.fft.irfft(spec, n=self.n_fft, dim=-1) * self.window
        wave = self.overlap_add(frames.transpose(1, 2))
        envelope = self.overlap_add(self.window.pow(2)[None, :, None].expand(1, -1, frames.shape[1]))
        half = self.n_fft // 2
        return (wave / envelope.clamp(min=EPS))[:, half : half + length]


class ComplexBatchNorm2d(nn.Module):
    """Whitens the real and the imaginary part of each channel together, by running means and covariances."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        for name in ("weight_rr", "weight_ri", "weight_ii", "bias_r", "bias_i"):
            self.register_parameter(name, nn.Parameter(torch.full((channels,), float(name[-2:] in ("rr", "ii")))))
        for name in ("mean_r", "mean_i", "var_rr", "var_ri", "var_ii"):
            self.register_buffer("running_" + name, torch.full((channels,), float(name[-2:] in ("rr", "ii"))))

    def forward(self, x):
        re, im = torch.chunk(x, 2, dim=1)
        re, im = re - self.running_mean_r[:, None, None], im - self.running_mean_i[:, None, None]
        v_rr, v_ri, v_ii = self.running_var_rr + self.eps, self.running_var_ri, self.running_var_ii + self.eps

        # the inverse square root of [[rr, ri], [ri, ii]] in closed form
        s = (v_rr * v_ii - v_ri * v_ri).sqrt()
        scale = 1.0 / (s * (v_rr + v_ii + 2 * s).sqrt())
        u_rr, u_ii, u_ri = (s + v_ii) * scale, (s + v_rr) * scale, -v_ri * scale

        # whitening and affine map as one matrix
        z_rr = self.weight_rr * u_rr + self.weight_ri * u_ri
        z_ri = self.weight_rr * u_ri + self.weight_ri * u_ii
        z_ir = self.weight_ri * u_rr + self.weight_ii * u_ri
        z_ii = self.weight_ri * u_ri + self.weight_ii * u_ii
        out_re = z_rr[:, None, None] * re + z_ri[:, None, None] * im + self.bias_r[:, None, None]
        out_im = z_ir[:, None, None] * re + z_ii[:, None, None] * im + self.bias_i[:, None, None]
        return torch.cat((out_re, out_im), dim=1)


class ComplexConv2d(nn.Module):
    """Complex convolution over bands and frames, causal in frames."""

    def __init__(self, channels_in, channels_out, kernel, stride):
        super().__init__()
        self.lookback = kernel[1] - 1
        self.real_conv = nn.Conv2d(channels_in, channels_out, kernel, stride=(stride, 1), padding=(1, 0))
        self.imag_conv = nn.Conv2d(channels_in, channels_out, kernel, stride=(stride, 1), padding=(1, 0))

    def forward(self, x):
        return complex_layer(self.real_conv, self.imag_conv, F.pad(x, (self.lookback, 0, 0, 0)))


class ComplexConvTranspose2d(nn.Module):
    """Complex transposed convolution; frames beyond the last one are dropped, so that it stays causal."""

    def __init__(self, channels_in, channels_out, kernel, stride):
        super().__init__()
        self.lookback = kernel[1] - 1
        self.real_conv = nn.ConvTranspose2d(channels_in, channels_out, kernel, stride=(stride, 1), padding=(1, 0))
        self.imag_conv = nn.ConvTranspose2d(channels_in, channels_out, kernel, stride=(stride, 1), padding=(1, 0))

    def forward(self, x):
        out = complex_layer(self.real_conv, self.imag_conv, x)
        return out[..., : out.shape[-1] - self.lookback]


class EncoderLayer(nn.Module):
    def __init__(self, channels_in, channels_out, kernel, stride):
        super().__init__()
        self.conv = ComplexConv2d(channels_in, channels_out, kernel, stride)
        self.norm = ComplexBatchNorm2d(channels_out)
        self.act = nn.PReLU(2 * channels_out)

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class DecoderLayer(nn.Module):
    """The last layer is the transposed convolution alone."""

    def __init__(self, channels_in, channels_out, kernel, stride, last):
        super().__init__()
        self.conv = ComplexConvTranspose2d(channels_in, channels_out, kernel, stride)
        self.norm = nn.Identity() if last else ComplexBatchNorm2d(channels_out)
        self.act = nn.Identity() if last else nn.PReLU(2 * channels_out)

    def forward(self, x, skip):
        return self.act(self.norm(self.conv(complex_cat((x, skip)))))


class SkipGate(nn.Module):
    """Scales each complex channel of a skip by what its magnitudes are on average over the utterance."""

    def __init__(self, channels, reduction=2):
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // reduction)
        self.act = nn.ReLU()
        self.excite = nn.Linear(channels // reduction, channels)

    def forward(self, x, valid):
        re, im = torch.chunk(x, 2, dim=1)
        magnitude = (re.pow(2) + im.pow(2) + EPS).sqrt().mean(dim=2)
        pooled = (magnitude * valid[:, None, :]).sum(dim=-1) / valid.sum(dim=-1, keepdim=True).clamp(min=1.0)
        gate = torch.sigmoid(self.excite(self.act(self.squeeze(pooled))))
        return x * torch.cat((gate, gate), dim=1)[:, :, None, None]


class CumulativeNorm(nn.Module):
    """Normalises each frame by the statistics of all channels and bands up to that frame."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        _, channels, bands, frames = x.shape
        count = torch.arange(1, frames + 1, device=x.device, dtype=x.dtype) * (channels * bands)
        mean = x.sum(dim=(1, 2)).cumsum(dim=-1) / count
        var = x.pow(2).sum(dim=(1, 2)).cumsum(dim=-1) / count - mean.pow(2)
        x = (x - mean[:, None, None, :]) / (var[:, None, None, :] + self.eps).sqrt()
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class FrameMemory(nn.Module):
    """Feed-forward memory: a depthwise dilated filter over past frames, in each band alone."""

    def __init__(self, channels, kernel=5, dilation=2):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.linear = nn.Linear(channels, channels)
        self.act = nn.GELU()
        reach = (kernel - 1) * dilation
        self.filter = nn.Conv1d(channels, channels, kernel, padding=reach, dilation=dilation, groups=channels)
        self.project = nn.Linear(channels, channels)

    def forward(self, x):
        """(batch, channels, bands, frames), so is the result."""
        b, c, f, t = x.shape
        rows = x.permute(0, 2, 3, 1).reshape(b * f, t, c)
        hidden = self.act(self.linear(self.norm(rows)))
        past = self.filter(hidden.transpose(1, 2))[..., :t].transpose(1, 2)
        rows = self.project(hidden + past)
        return x + rows.reshape(b, f, t, c).permute(0, 3, 1, 2)


class DualPathBlock(nn.Module):
    """Recurrence over the bands of a frame, both ways, then over the frames of a band, forward and chunk by chunk."""

    def __init__(self, channels, hidden, chunk):
        super().__init__()
        self.chunk = chunk
        self.intra_rnn = nn.LSTM(channels, hidden, batch_first=True, bidirectional=True)
        self.intra_linear = nn.Linear(2 * hidden, channels)
        self.intra_norm = nn.GroupNorm(1, channels, eps=1e-5)
        self.inter_rnn = nn.LSTM(channels, hidden, batch_first=True)
        self.inter_linear = nn.Linear(hidden, channels)
        self.inter_norm = CumulativeNorm(channels)
        self.memory = FrameMemory(channels)

    def forward(self, x):
        b, c, f, t = x.shape
        bands = x.permute(0, 3, 2, 1).reshape(b * t, f, c)
        bands = self.intra_linear(self.intra_rnn(bands)[0])
        x = x + self.intra_norm(bands.reshape(b, t, f, c).permute(0, 3, 2, 1))

        frames = x.permute(0, 2, 3, 1).reshape(b * f, t, c)
        state, parts = None, []
        for part in frames.split(self.chunk, dim=1):
            part, state = self.inter_rnn(part, state)
            parts.append(part)
        frames = self.inter_linear(torch.cat(parts, dim=1))
        x = x + self.inter_norm(frames.reshape(b, f, t, c).permute(0, 3, 1, 2))
        return self.memory(x)


def mixture_consistency(estimates, mixture):
    """Shares what the estimates (batch, talkers, 2, bands, frames) lack of the mixture by their power in each bin."""
    power = estimates.pow(2).sum(dim=2, keepdim=True)
    weight = power / (power.sum(dim=1, keepdim=True) + EPS)
    return estimates + weight * (mixture.unsqueeze(1) - estimates.sum(dim=1, keepdim=True))


class PermutationSDR(nn.Module):
    """Negative scale-invariant signal-to-distortion ratio under the best order of the talkers."""

    def __init__(self, talkers, ceiling=30.0):
        super().__init__()
        self.floor = 10.0 ** (-ceiling / 10.0)
        self.orders = list(itertools.permutations(range(talkers)))

    def pairwise(self, estimates, sources, valid):
        """(batch, estimates, sources), in dB."""
        count = valid.sum(dim=-1)[:, None, None]
        valid = valid[:, None, :]
        estimates, sources = (
            (wave - (wave * valid).sum(dim=-1, keepdim=True) / count) * valid for wave in (estimates, sources)
        )
        energy = sources.pow(2).sum(dim=-1)[:, None, :]
        scale = torch.einsum("bit,bjt->bij", estimates, sources) / (energy + EPS)
        target = scale.unsqueeze(-1) * sources.unsqueeze(1)
        noise = (estimates.unsqueeze(2) - target).pow(2).sum(dim=-1)
        target = target.pow(2).sum(dim=-1)
        return 10.0 * torch.log10((target + EPS) / (noise + self.floor * target + EPS))

    def forward(self, estimates, sources, valid):
        table = self.pairwise(estimates, sources, valid)
        scores = torch.stack(
            [torch.stack([table[:, i, j] for j, i in enumerate(order)]).mean(dim=0) for order in self.orders], dim=1
        )
        best, index = scores.max(dim=1)
        orders = torch.tensor(self.orders, device=index.device)[index]
        ordered = estimates.gather(1, orders.unsqueeze(-1).expand_as(estimates))
        return -best, ordered


class CompressedSpectralLoss(nn.Module):
    """Squared errors of the compressed magnitudes and of the compressed complex spectra, per utterance."""

    def __init__(self, n_fft=32, hop=8, power=0.3, alpha=0.7):
        super().__init__()
        self.hop, self.power, self.alpha = hop, power, alpha
        self.stft = STFT(n_fft, n_fft, hop)

    def forward(self, estimates, sources, lengths):
        b, talkers, samples = estimates.shape
        first = compress(self.stft(estimates.reshape(b * talkers, samples)), self.power)
        second = compress(self.stft(sources.reshape(b * talkers, samples)), self.power)
        by_complex = (first - second).pow(2).sum(dim=1).sum(dim=1)
        first, second = (spec.pow(2).sum(dim=1).add(EPS).sqrt() for spec in (first, second))
        by_magnitude = (first - second).pow(2).sum(dim=1)
        error = (self.alpha * by_magnitude + (1.0 - self.alpha) * by_complex).reshape(b, talkers, -1).mean(dim=1)
        valid = frame_mask(lengths, self.hop, error.shape[-1])
        return (error * valid).sum(dim=-1) / valid.sum(dim=-1)


class DualPathEnhancer(nn.Module):
    """Mixtures to the estimates of the talkers in the order of the sources, and two losses per utterance."""

    def __init__(self, talkers=2, n_fft=64, win_length=48, hop=16, feature_power=0.5, channels=(8, 12, 16),
                 kernels=((4, 2), (4, 2), (3, 2)), strides=(2, 2, 1), blocks=2, hidden=24, chunk=16):
        super().__init__()
        self.hop, self.feature_power = hop, feature_power
        self.stft = STFT(n_fft, win_length, hop)
        self.istft = InverseSTFT(n_fft, win_length, hop)
        rows = list(zip((1,) + channels[:-1], channels, kernels, strides))
        self.encoder = nn.ModuleList(EncoderLayer(*row) for row in rows)
        self.gates = nn.ModuleList(SkipGate(width) for width in channels)
        width = 2 * channels[-1]
        self.band_embed = nn.Parameter(torch.zeros(1, width, n_fft // 2 // math.prod(strides), 1))
        self.blocks = nn.ModuleList(DualPathBlock(width, hidden, chunk) for _ in range(blocks))
        self.decoder = nn.ModuleList()
        for index in reversed(range(len(rows))):
            width_out, width_in, kernel, stride = rows[index]
            width_out = width_out if index else talkers
            self.decoder.append(DecoderLayer(2 * width_in, width_out, kernel, stride, last=index == 0))
        self.sdr = PermutationSDR(talkers)
        self.spectral = CompressedSpectralLoss()

    def apply_masks(self, maps, spec):
        """Bounded masks in polar form: magnitudes are multiplied, phases are added."""
        re, im = torch.chunk(maps, 2, dim=1)
        mask_magnitude = torch.tanh((re.pow(2) + im.pow(2) + EPS).sqrt())
        mask_phase = torch.atan2(im, re)
        # the constant bin is not estimated
        mask_magnitude, mask_phase = (F.pad(part, (0, 0, 1, 0)) for part in (mask_magnitude, mask_phase))
        magnitude = (spec[:, 0].pow(2) + spec[:, 1].pow(2)).sqrt().unsqueeze(1) * mask_magnitude
        phase = torch.atan2(spec[:, 1], spec[:, 0]).unsqueeze(1) + mask_phase
        return torch.stack((magnitude * torch.cos(phase), magnitude * torch.sin(phase)), dim=2)

    def forward(self, mixture, sources, lengths):
        """mixture is (batch, samples), sources (batch, talkers, samples), lengths (batch,) in samples."""
        b, samples = mixture.shape
        valid = length_mask(lengths, samples)
        mixture = mixture * valid
        level = (mixture.pow(2).sum(dim=-1) / lengths + EPS).sqrt()[:, None]
        spec = self.stft(mixture / level)
        valid_frames = frame_mask(lengths, self.hop, spec.shape[-1])

        x = compress(spec, self.feature_power)[:, :, 1:]
        skips = []
        for layer, gate in zip(self.encoder, self.gates):
            x = layer(x)
            skips.append(gate(x, valid_frames))
        x = x + self.band_embed
        for block in self.blocks:
            x = block(x)
        for layer in self.decoder:
            x = layer(x, skips.pop())

        estimates = mixture_consistency(self.apply_masks(x, spec), spec)
        waves = self.istft(estimates.flatten(0, 1), samples).reshape(b, -1, samples)
        waves = waves * level.unsqueeze(1)
        sdr_loss, waves = self.sdr(waves, sources, valid)
        spectral_loss = self.spectral(waves, sources, lengths)
        return waves * valid.unsqueeze(1), sdr_loss, spectral_loss


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    nn.init.normal_(net.band_embed, std=0.3)
    for module in net.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            transposed = isinstance(module, nn.ConvTranspose2d)
            fan_in = module.weight[:, 0].numel() / module.stride[0] if transposed else module.weight[0].numel()
            nn.init.normal_(module.weight, std=fan_in**-0.5)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.LSTM):
            for name, parameter in module.named_parameters():
                nn.init.normal_(parameter, std=0.15 if name.startswith("bias") else parameter.shape[1] ** -0.5)
        elif isinstance(module, (nn.LayerNorm, nn.GroupNorm, CumulativeNorm)):
            nn.init.uniform_(module.weight, 0.5, 1.1)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.PReLU):
            nn.init.uniform_(module.weight, 0.05, 0.4)
        elif isinstance(module, ComplexBatchNorm2d):
            for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
                if "bias" in name or "mean" in name:
                    nn.init.normal_(tensor, std=0.15)
                else:
                    nn.init.uniform_(tensor, *((-0.4, 0.4) if name.endswith("ri") else (0.5, 1.4)))
    return net


def talker(pitch, samples, rate=8000):
    """Harmonics under a slow envelope, and breath."""
    random, time = np.random.RandomState(int(pitch)), np.arange(samples) / rate
    phase = 2 * np.pi * np.cumsum(pitch * (1.0 + 0.1 * np.sin(56.0 * time))) / rate
    harmonics = sum(np.sin(k * phase + k) / k**0.7 for k in range(1, 9))
    envelope = np.interp(np.linspace(0, 13, samples), np.arange(14), random.rand(14))
    return envelope * harmonics * 0.2 + 0.01 * random.randn(samples)


def build():
    """The net with the same weights on every run, and three mixtures of different lengths."""
    torch.manual_seed(8000)
    net = trained_like(DualPathEnhancer())
    samples, lengths = 960, torch.tensor([960, 648, 808])
    pitches = ((110.0, 270.0), (150.0, 340.0), (190.0, 410.0))
    sources = np.stack([np.stack([talker(pitch, samples) for pitch in pair]) for pair in pitches])
    sources = sources * length_mask(lengths, samples)[:, None, :].numpy()
    mixture = sources.sum(axis=1) + 0.02 * np.random.RandomState(0).randn(3, samples)
    return net.eval(), (torch.from_numpy(mixture).float(), torch.from_numpy(sources).float(), lengths)
