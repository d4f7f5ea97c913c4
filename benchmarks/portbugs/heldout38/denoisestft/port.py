"""MindSpore port of the complex-mask speech enhancement net (PyNative)."""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)


def make_bases(n_fft, win_len):
    """DFT matrices with the centred sqrt-hann window folded in: (2F, N), (2F, N), (N,)."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(win_len) / win_len)
    window = np.zeros(n_fft)
    offset = (n_fft - win_len) // 2
    window[offset:offset + win_len] = np.sqrt(hann)
    num_bins = n_fft // 2 + 1
    theta = 2 * np.pi * np.outer(np.arange(num_bins), np.arange(n_fft)) / n_fft
    forward = np.concatenate([np.cos(theta), -np.sin(theta)]) * window
    weight = np.full((num_bins, 1), 2.0)
    weight[[0, -1]] = 1.0
    backward = np.concatenate([weight * np.cos(theta), -weight * np.sin(theta)]) * window / n_fft
    return forward.astype(np.float32), backward.astype(np.float32), window.astype(np.float32)


def band_widths(sample_rate, n_fft, num_bands, min_bins=1):
    """Number of FFT bins in each ERB band."""
    q = 24.7 * 9.265
    erb_step = 9.265 * math.log1p(0.5 * sample_rate / q) / num_bands
    widths = []
    last_edge, borrowed = 0, 0
    for band in range(1, num_bands + 1):
        hz = q * (math.exp(band * erb_step / 9.265) - 1.0)
        edge = int(round(hz * n_fft / sample_rate))
        width = edge - last_edge - borrowed
        borrowed = 0
        if width < min_bins:
            borrowed = min_bins - width
            width = min_bins
        widths.append(width)
        last_edge = edge
    widths[-1] += n_fft // 2 + 1 - sum(widths)
    return widths


def sequence_mask(lengths, maxlen):
    steps = ops.arange(maxlen)
    return (steps.expand_dims(0) < lengths.expand_dims(1)).astype(ms.float32)


def complex_abs(real, imag, eps=1e-8):
    return ops.sqrt(ops.square(real) + ops.square(imag) + eps)


class Analysis(nn.Cell):
    """Waveform (B, L) -> real and imaginary part (B, F, T)."""

    def __init__(self, n_fft, win_len, hop):
        super().__init__()
        self.n_fft = n_fft
        self.hop = hop
        self.basis = Tensor(make_bases(n_fft, win_len)[0].T)              # N, 2F

    def construct(self, wav):
        remainder = wav.shape[-1] % self.hop
        if remainder:
            wav = ops.pad(wav, (0, self.hop - remainder))
        wav = ops.pad(wav, (self.n_fft // 2, self.n_fft // 2), mode="reflect")
        num_frames = (wav.shape[-1] - self.n_fft) // self.hop + 1
        index = np.arange(num_frames)[:, None] * self.hop + np.arange(self.n_fft)[None, :]
        frames = ops.gather(wav, Tensor(index, ms.int32), 1)              # B, T, N
        spec = ops.matmul(frames, self.basis).swapaxes(1, 2)
        return ops.chunk(spec, 2, axis=1)


class Synthesis(nn.Cell):
    """Inverse transform: windowed frames, overlap-add and division by the window's energy."""

    def __init__(self, n_fft, win_len, hop):
        super().__init__()
        self.n_fft = n_fft
        self.hop = hop
        _, basis, window = make_bases(n_fft, win_len)
        self.basis = Tensor(basis)
        self.window_energy = window ** 2

    def construct(self, real, imag, length):
        batch, _, num_frames = real.shape
        total = (num_frames - 1) * self.hop + self.n_fft
        spec = ops.concat((real, imag), axis=1).swapaxes(1, 2)
        frames = ops.matmul(spec, self.basis)                             # B, T, N
        index = np.arange(num_frames)[:, None] * self.hop + np.arange(self.n_fft)[None, :]
        energy = np.zeros(total, np.float32)
        np.add.at(energy, index, np.broadcast_to(self.window_energy, index.shape))
        index = Tensor(np.tile(index.reshape(1, -1), (batch, 1)), ms.int64)
        wav = ops.tensor_scatter_elements(ops.zeros((batch, total), ms.float32), index,
                                          frames.reshape(batch, -1), axis=1, reduction="add")
        wav = wav / Tensor(np.maximum(energy, 1e-3))
        begin = self.n_fft // 2
        return wav[:, begin:begin + length]


class ComplexConv(nn.Cell):
    """Complex 2-d convolution on (B, C, F, T), causal along T."""

    def __init__(self, in_channels, out_channels, kernel_size=(3, 2), stride=(2, 1)):
        super().__init__()
        freq_pad = kernel_size[0] // 2
        self.time_pad = kernel_size[1] - 1
        self.conv_re = nn.Conv2d(in_channels, out_channels, kernel_size, stride, pad_mode="pad",
                                 padding=(freq_pad, freq_pad, 0, 0), has_bias=True)
        self.conv_im = nn.Conv2d(in_channels, out_channels, kernel_size, stride, pad_mode="pad",
                                 padding=(freq_pad, freq_pad, 0, 0), has_bias=True)

    def construct(self, real, imag):
        # both parts go through each convolution in one call
        both = ops.concat((real, imag), axis=0)
        both = ops.pad(both, (self.time_pad, 0))
        re_re, re_im = ops.chunk(self.conv_re(both), 2, axis=0)
        im_re, im_im = ops.chunk(self.conv_im(both), 2, axis=0)
        return re_re - im_im, re_im + im_re


class ComplexDeconv(nn.Cell):
    """Transposed counterpart of ComplexConv, the surplus frames are cut off."""

    def __init__(self, in_channels, out_channels, kernel_size=(3, 2), stride=(2, 1)):
        super().__init__()
        freq_pad = kernel_size[0] // 2
        self.surplus = kernel_size[1] - 1
        self.deconv_re = nn.Conv2dTranspose(in_channels, out_channels, kernel_size, stride, pad_mode="pad",
                                            padding=(freq_pad, freq_pad, 0, 0), has_bias=True)
        self.deconv_im = nn.Conv2dTranspose(in_channels, out_channels, kernel_size, stride, pad_mode="pad",
                                            padding=(freq_pad, freq_pad, 0, 0), has_bias=True)

    def construct(self, real, imag):
        steps = real.shape[-1]
        both = ops.concat((real, imag), axis=0)
        re_re, re_im = ops.chunk(self.deconv_re(both), 2, axis=0)
        im_re, im_im = ops.chunk(self.deconv_im(both), 2, axis=0)
        out_real = re_re - im_im
        out_imag = re_im + im_re
        return out_real[..., :steps], out_imag[..., :steps]


class ComplexBatchNorm(nn.Cell):
    """Complex batch norm (whitening of the 2x2 covariance), moving statistics only."""

    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps

        def vector(value, name, trainable=True):
            return Parameter(Tensor(np.full(num_features, value, np.float32)), name=name, requires_grad=trainable)

        self.Wrr = vector(1.0, "Wrr")
        self.Wri = vector(0.0, "Wri")
        self.Wii = vector(1.0, "Wii")
        self.Br = vector(0.0, "Br")
        self.Bi = vector(0.0, "Bi")
        self.RMr = vector(0.0, "RMr", False)
        self.RMi = vector(0.0, "RMi", False)
        self.RVrr = vector(1.0, "RVrr", False)
        self.RVri = vector(0.0, "RVri", False)
        self.RVii = vector(1.0, "RVii", False)

    @staticmethod
    def _wide(v):
        return v.reshape(1, -1, 1, 1)

    def construct(self, real, imag):
        real = real - self._wide(self.RMr)
        imag = imag - self._wide(self.RMi)
        var_r = self.RVrr + self.eps
        var_i = self.RVii + self.eps
        cov = self.RVri
        # V^(-1/2) in closed form
        root_det = ops.sqrt(var_r * var_i - ops.square(cov))
        root_trace = ops.sqrt(var_r + var_i + 2.0 * root_det)
        inv = 1.0 / (root_det * root_trace)
        u_rr = (root_det + var_i) * inv
        u_ii = (root_det + var_r) * inv
        u_ri = -cov * inv
        white_r = self._wide(u_rr) * real + self._wide(u_ri) * imag
        white_i = self._wide(u_ri) * real + self._wide(u_ii) * imag
        out_r = self._wide(self.Wrr) * white_r + self._wide(self.Wri) * white_i + self._wide(self.Br)
        out_i = self._wide(self.Wri) * white_r + self._wide(self.Wii) * white_i + self._wide(self.Bi)
        return out_r, out_i


class EncoderStage(nn.Cell):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = ComplexConv(in_channels, out_channels)
        self.bn = ComplexBatchNorm(out_channels)
        self.act = nn.PReLU(out_channels)

    def construct(self, real, imag):
        real, imag = self.conv(real, imag)
        real, imag = self.bn(real, imag)
        return self.act(real), self.act(imag)


class DecoderStage(nn.Cell):
    """Upsampling stage; the skip is weighted by a gate made of its magnitude."""

    def __init__(self, in_channels, out_channels, is_last=False):
        super().__init__()
        self.is_last = is_last
        self.gate = nn.SequentialCell(
            nn.Conv2d(in_channels, in_channels, 1, pad_mode="valid", has_bias=True),
            nn.BatchNorm2d(in_channels, eps=1e-3),
            nn.Sigmoid(),
        )
        self.deconv = ComplexDeconv(2 * in_channels, out_channels)
        if not is_last:
            self.bn = ComplexBatchNorm(out_channels)
            self.act = nn.PReLU(out_channels)

    def construct(self, real, imag, skip):
        skip_real, skip_imag = skip
        gate = self.gate(complex_abs(skip_real, skip_imag))
        real = ops.concat((real, gate * skip_real), axis=1)
        imag = ops.concat((imag, gate * skip_imag), axis=1)
        real, imag = self.deconv(real, imag)
        if not self.is_last:
            real, imag = self.bn(real, imag)
            real, imag = self.act(real), self.act(imag)
        return real, imag


class FrequencyGRU(nn.Cell):
    def __init__(self, dim, hidden, bins):
        super().__init__()
        self.gru = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Dense(2 * hidden, dim)
        self.norm = nn.LayerNorm((bins, dim), begin_norm_axis=2, begin_params_axis=2, epsilon=1e-5)

    def construct(self, x):
        batch, time, freq, dim = x.shape
        out, _ = self.gru(x.reshape(-1, freq, dim))
        out = self.fc(out).reshape(batch, time, freq, dim)
        return x + self.norm(out)


class TimeAttention(nn.Cell):
    """Each frequency attends to its own recent past."""

    def __init__(self, dim, num_heads, bins, context, max_rel):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.context = context
        self.max_rel = max_rel
        self.scale = self.head_dim ** -0.5
        self.qkv = nn.Dense(dim, 3 * dim)
        self.rel_bias = nn.Embedding(max_rel + 1, num_heads)
        self.out = nn.Dense(dim, dim)
        self.norm = nn.LayerNorm((bins, dim), begin_norm_axis=2, begin_params_axis=2, epsilon=1e-5)

    def construct(self, x, valid):
        batch, time, freq, dim = x.shape
        h = x.transpose(0, 2, 1, 3).reshape(batch * freq, time, dim)
        qkv = self.qkv(h).reshape(batch * freq, time, 3, self.num_heads, self.head_dim)
        qkv = qkv.transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]                                  # BF, H, T, D
        scores = ops.matmul(q * self.scale, k.swapaxes(-1, -2))

        step = np.arange(time)
        lag = step[:, None] - step[None, :]
        bias = self.rel_bias(Tensor(np.clip(lag, 0, self.max_rel), ms.int32))
        scores = scores + bias.transpose(2, 0, 1).expand_dims(0)

        local = Tensor((lag >= 0) & (lag < self.context))
        itself = Tensor(lag == 0)
        visible = ops.logical_or(valid.expand_dims(1) > 0, itself)        # B, T, T
        visible = ops.logical_and(visible, local)
        visible = visible.expand_dims(1).broadcast_to((batch, freq, time, time))
        visible = visible.reshape(batch * freq, 1, time, time)
        scores = scores.masked_fill(ops.logical_not(visible), -1e9)
        attn = ops.softmax(scores, axis=-1)

        h = ops.matmul(attn, v).swapaxes(1, 2).reshape(batch, freq, time, dim)
        h = self.out(h).swapaxes(1, 2)
        return x + self.norm(h)


class GatedConvFFN(nn.Cell):
    def __init__(self, dim, inner, dilation):
        super().__init__()
        self.left = 2 * dilation
        self.fc_in = nn.Dense(dim, 2 * inner)
        self.dwconv = nn.Conv1d(inner, inner, 3, pad_mode="pad", padding=0, dilation=dilation, group=inner,
                                has_bias=True)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.fc_out = nn.Dense(inner, dim)

    def construct(self, x, valid):
        batch, time, freq, _ = x.shape
        value, gate = ops.chunk(self.fc_in(x), 2, axis=-1)
        h = value * ops.sigmoid(gate)
        h = h * valid.reshape(batch, time, 1, 1)
        h = h.transpose(0, 2, 3, 1).reshape(batch * freq, -1, time)
        h = ops.pad(h, (self.left, 0))
        h = self.act(self.dwconv(h))
        h = h.reshape(batch, freq, -1, time).transpose(0, 3, 1, 2)
        return x + 0.5 * self.fc_out(h)


class DualPathLayer(nn.Cell):
    def __init__(self, dim, hidden, num_heads, bins, context, max_rel, dilation):
        super().__init__()
        self.intra = FrequencyGRU(dim, hidden, bins)
        self.inter = TimeAttention(dim, num_heads, bins, context, max_rel)
        self.ffn = GatedConvFFN(dim, 20, dilation)

    def construct(self, x, valid):
        x = self.intra(x)
        x = self.inter(x, valid)
        x = self.ffn(x, valid)
        return x


class BandConditioner(nn.Cell):
    """FiLM of the bottleneck by mean-subtracted ERB log energies."""

    def __init__(self, sample_rate, n_fft, hop, num_bands, dim, tau=0.02):
        super().__init__()
        widths = band_widths(sample_rate, n_fft, num_bands)
        table = np.zeros((n_fft // 2 + 1, num_bands), np.float32)
        low = 0
        for band, width in enumerate(widths):
            table[low:low + width, band] = 1.0 / width
            low += width
        self.table = Tensor(table)
        self.init_mean = Tensor(np.linspace(-0.5, -2.5, num_bands).astype(np.float32))
        self.decay = round(math.exp(-hop / (sample_rate * tau)), 3)
        self.mlp = nn.SequentialCell(
            nn.Dense(num_bands, 18),
            nn.GELU(approximate=False),
            nn.Dense(18, 2 * dim),
        )

    def construct(self, real, imag, x):
        power = ops.square(real) + ops.square(imag)
        energy = ops.matmul(power.swapaxes(1, 2), self.table)             # B, T, E
        energy = ops.log10(energy + 1e-5)
        mean = self.init_mean.expand_dims(0)
        centred = []
        for t in range(energy.shape[1]):
            frame = energy[:, t]
            mean = self.decay * mean + (1.0 - self.decay) * frame
            centred.append(frame - mean)
        h = ops.stack(centred, axis=1)
        h = h / (h.std(axis=-1, ddof=1, keepdims=True) + 0.1)
        scale, shift = ops.chunk(self.mlp(h), 2, axis=-1)
        scale = 1.0 + ops.tanh(scale)
        return x * scale.expand_dims(2) + shift.expand_dims(2)


class MultiFrameFilter(nn.Cell):
    """Deep filtering: every low bin is a complex FIR filter over neighbouring noisy frames."""

    def __init__(self, in_dim, bins, order, lookahead):
        super().__init__()
        self.bins = bins
        self.order = order
        self.lookahead = lookahead
        self.fc_coef = nn.Dense(in_dim, order * bins * 2)
        self.fc_alpha = nn.Dense(in_dim, 1)

    def _taps(self, part):
        time = part.shape[-1]
        part = ops.pad(part[:, :self.bins], (self.order - 1 - self.lookahead, self.lookahead))
        return ops.stack([part[..., k:k + time] for k in range(self.order)], axis=-1)   # B, bins, T, order

    def construct(self, noisy, est, feat):
        batch, time = feat.shape[:2]
        feat = feat.reshape(batch, time, -1)
        coef = ops.tanh(self.fc_coef(feat)).reshape(batch, time, self.order, self.bins, 2)
        coef = coef.transpose(4, 0, 3, 1, 2)                              # 2, B, bins, T, order
        coef_real, coef_imag = coef[0], coef[1]
        tap_real, tap_imag = self._taps(noisy[0]), self._taps(noisy[1])
        filt_real = (tap_real * coef_real - tap_imag * coef_imag).sum(axis=-1)
        filt_imag = (tap_real * coef_imag + tap_imag * coef_real).sum(axis=-1)
        alpha = ops.sigmoid(self.fc_alpha(feat)).swapaxes(1, 2)           # B, 1, T
        outs = []
        for filt, full in ((filt_real, est[0]), (filt_imag, est[1])):
            low = alpha * filt + (1.0 - alpha) * full[:, :self.bins]
            outs.append(ops.concat((low, full[:, self.bins:]), axis=1))
        return outs[0], outs[1]


def si_snr(estimate, target, mask, eps=1e-8):
    """SI-SNR in dB of each utterance, (B,)."""
    num = mask.sum(axis=-1, keepdims=True)
    estimate = (estimate - (estimate * mask).sum(axis=-1, keepdims=True) / num) * mask
    target = (target - (target * mask).sum(axis=-1, keepdims=True) / num) * mask
    dot = (estimate * target).sum(axis=-1, keepdims=True)
    energy = ops.square(target).sum(axis=-1, keepdims=True)
    projected = dot / (energy + eps) * target
    residual = estimate - projected
    ratio = ops.square(projected).sum(axis=-1) / (ops.square(residual).sum(axis=-1) + eps)
    return 10.0 * ops.log10(ratio + eps)


class DenoiseNet(nn.Cell):
    def __init__(self, sample_rate=8000, n_fft=40, win_len=32, hop=12, channels=(1, 8, 12), num_bands=7,
                 num_heads=3, hidden=10, num_blocks=2, power=0.6, atten_db=18.0, beta=0.05):
        super().__init__()
        self.hop = hop
        self.power = power
        self.beta = beta
        self.keep = 10.0 ** (-abs(atten_db) / 20.0)
        self.analysis = Analysis(n_fft, win_len, hop)
        self.synthesis = Synthesis(n_fft, win_len, hop)
        pairs = list(zip(channels[:-1], channels[1:]))
        self.encoder = nn.CellList([EncoderStage(i, o) for i, o in pairs])
        bins = n_fft // 2 + 1
        for _ in pairs:
            bins = (bins + 1) // 2
        dim = 2 * channels[-1]
        self.conditioner = BandConditioner(sample_rate, n_fft, hop, num_bands, dim)
        self.dual_path = nn.CellList([
            DualPathLayer(dim, hidden, num_heads, bins, context=9, max_rel=6, dilation=1 + n)
            for n in range(num_blocks)
        ])
        self.decoder = nn.CellList([
            DecoderStage(o, i, is_last=(n == len(pairs) - 1)) for n, (i, o) in enumerate(reversed(pairs))
        ])
        self.filter = MultiFrameFilter(bins * dim, bins=9, order=5, lookahead=1)

    def _compressed(self, real, imag):
        return ops.pow(complex_abs(real, imag), self.power)

    def _mask_net(self, real, imag, valid):
        mag = complex_abs(real, imag)
        comp = ops.pow(mag, self.power - 1.0)
        h_real = (real * comp).expand_dims(1)
        h_imag = (imag * comp).expand_dims(1)
        skips = []
        for stage in self.encoder:
            h_real, h_imag = stage(h_real, h_imag)
            skips.append((h_real, h_imag))

        h = ops.concat((h_real, h_imag), axis=1).transpose(0, 3, 2, 1)    # B, T, F, 2C
        h = self.conditioner(real, imag, h)
        for layer in self.dual_path:
            h = layer(h, valid)

        h_real, h_imag = ops.chunk(h.transpose(0, 3, 2, 1), 2, axis=1)
        for stage in self.decoder:
            h_real, h_imag = stage(h_real, h_imag, skips.pop())
        return h_real.squeeze(1), h_imag.squeeze(1), h

    def _post_filter(self, mask):
        sine = mask * ops.sin(0.5 * math.pi * mask)
        ratio = mask / ops.clamp(sine, min=1e-4)
        return (1.0 + self.beta) * mask / (1.0 + self.beta * ops.square(ratio))

    def construct(self, noisy, clean, lengths):
        length = noisy.shape[-1]
        sample_mask = sequence_mask(lengths, length)
        noisy = noisy * sample_mask
        clean = clean * sample_mask
        energy = ops.square(noisy).sum(axis=-1, keepdims=True)
        level = ops.sqrt(energy / lengths.expand_dims(1).astype(ms.float32) + 1e-8)
        real, imag = self.analysis(noisy / level)
        num_frames = (lengths + self.hop - 1) // self.hop + 1
        valid = sequence_mask(num_frames, real.shape[-1])

        mask_real, mask_imag, feat = self._mask_net(real, imag, valid)

        # polar mask on the compressed spectrum, then back to the linear scale
        mask_mag = self._post_filter(ops.tanh(complex_abs(mask_real, mask_imag)))
        phase = ops.atan2(imag, real) + ops.atan2(mask_imag, mask_real)
        est_mag = ops.pow(mask_mag * self._compressed(real, imag), 1.0 / self.power)
        est = (est_mag * ops.cos(phase), est_mag * ops.sin(phase))
        est_real, est_imag = self.filter((real, imag), est, feat)
        est_real = est_real + self.keep * (real - est_real)
        est_imag = est_imag + self.keep * (imag - est_imag)
        enhanced = self.synthesis(est_real, est_imag, length)
        enhanced = enhanced * level * sample_mask

        snr = si_snr(enhanced, clean, sample_mask)
        gain = snr - si_snr(noisy, clean, sample_mask)
        clean_mag = self._compressed(*self.analysis(clean / level))
        diff = ops.abs(clean_mag - self._compressed(est_real, est_imag)) * valid.expand_dims(1)
        mag_loss = diff.sum() / (valid.sum() * diff.shape[1])
        loss = 10.0 * mag_loss - snr.mean()
        return enhanced, mask_mag, snr, gain, loss


def make_inputs():
    rng = np.random.RandomState(7)
    n = np.arange(463)
    clean = np.stack([
        sum(np.sin(2 * np.pi * 210 * h * n / 8000 + h) / h for h in range(1, 7)) * (0.6 + 0.4 * np.sin(n / 50)),
        sum(np.sin(2 * np.pi * 145 * h * n / 8000 + 2 * h) / h for h in range(1, 9)) * (0.5 + 0.5 * np.cos(n / 70)),
    ]) * np.array([[0.20], [0.11]])
    noisy = clean + rng.randn(2, 463) * np.array([[0.09], [0.06]]) + 0.01
    return clean.astype(np.float32), noisy.astype(np.float32), np.array([463, 371])


def build():
    net = DenoiseNet()
    net.set_train(False)
    clean, noisy, lengths = make_inputs()
    return net, (Tensor(noisy), Tensor(clean), Tensor(lengths))
