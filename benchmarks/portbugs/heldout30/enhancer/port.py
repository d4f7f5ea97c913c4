"""The complex dual-path speech enhancer in MindSpore."""

from __future__ import annotations

from itertools import permutations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

TINY = 1e-8


def valid_samples(lengths, size):
    """(batch, size): 1.0 inside of the utterance, 0.0 behind it."""
    places = ops.arange(size).reshape(1, size)
    return (places < lengths.reshape(-1, 1)).astype(ms.float32)


def valid_frames(lengths, hop, count):
    """The same for frames, by the place of their centre."""
    return valid_samples((lengths + hop - 1) // hop, count)


def parts(x):
    """Real and imaginary half of the channels."""
    half = x.shape[1] // 2
    return x[:, :half], x[:, half:]


def per_channel(vector):
    return vector.reshape(1, -1, 1, 1)


def power_law(spec, power):
    """Compresses the magnitudes of (batch, 2, bands, frames) and leaves the phases."""
    energy = ops.square(spec).sum(axis=1, keepdims=True) + TINY
    return spec * ops.pow(energy, 0.5 * (power - 1.0))


def sqrt_hann(size, n_fft):
    """The periodic window in the middle of a frame."""
    window = np.sqrt(np.hanning(size + 1)[:-1])
    side = (n_fft - size) // 2
    return np.pad(window, (side, n_fft - size - side))


class Analysis(nn.Cell):
    """Short-time Fourier transform by a matrix of windowed cosines and sines."""

    def __init__(self, n_fft, size, hop):
        super().__init__()
        self.n_fft = n_fft
        self.hop = hop
        angle = 2 * np.pi / n_fft * np.outer(np.arange(n_fft), np.arange(n_fft // 2 + 1))
        basis = np.concatenate((np.cos(angle), -np.sin(angle)), axis=1) * sqrt_hann(size, n_fft)[:, None]
        self.basis = Tensor(basis.astype(np.float32))

    def construct(self, wave):
        padded = ops.pad(wave, (self.n_fft // 2, self.n_fft // 2), mode="reflect")
        count = (padded.shape[-1] - self.n_fft) // self.hop + 1
        places = np.arange(count)[:, None] * self.hop + np.arange(self.n_fft)[None, :]
        frames = ops.gather(padded, Tensor(places.astype(np.int32)), 1)
        spec = ops.matmul(frames, self.basis)
        spec = spec.reshape(wave.shape[0], count, 2, self.n_fft // 2 + 1)
        return spec.transpose(0, 2, 3, 1)


class Synthesis(nn.Cell):
    """The inverse: transposed matrix, window, overlap-add, division by the overlapped squares of the window."""

    def __init__(self, n_fft, size, hop):
        super().__init__()
        self.n_fft = n_fft
        self.hop = hop
        window = sqrt_hann(size, n_fft)
        bins = n_fft // 2 + 1
        angle = 2 * np.pi / n_fft * np.outer(np.arange(bins), np.arange(n_fft))
        share = np.full((bins, 1), 2.0 / n_fft)
        share[0] = share[-1] = 1.0 / n_fft
        basis = np.concatenate((share * np.cos(angle), -share * np.sin(angle)), axis=0) * window
        self.basis = Tensor(basis.astype(np.float32))
        self.window = Tensor(window.astype(np.float32))

    def overlap_add(self, frames):
        """(batch, frames, n_fft) to samples: frames are cut in pieces of one hop, shifted and added."""
        batch, count, _ = frames.shape
        ratio = self.n_fft // self.hop
        pieces = frames.reshape(batch, count, ratio, self.hop)
        total = 0
        for i in range(ratio):
            total = total + ops.pad(pieces[:, :, i], (0, 0, i, ratio - 1 - i))
        return total.reshape(batch, -1)

    def construct(self, spec, length):
        batch, _, _, count = spec.shape
        frames = ops.matmul(spec.reshape(batch, -1, count).swapaxes(1, 2), self.basis)
        envelope = self.overlap_add(ops.tile(ops.square(self.window), (1, count, 1)))
        wave = self.overlap_add(frames) / ops.clamp(envelope, min=TINY)
        start = self.n_fft // 2
        return wave[:, start : start + length]


class ComplexBatchNorm(nn.Cell):
    """Whitens each complex channel by its running covariance, then applies a complex affine map."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        one, zero = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        self.weight_rr = Parameter(Tensor(one), name="weight_rr")
        self.weight_ri = Parameter(Tensor(zero), name="weight_ri")
        self.weight_ii = Parameter(Tensor(one), name="weight_ii")
        self.bias_r = Parameter(Tensor(zero), name="bias_r")
        self.bias_i = Parameter(Tensor(zero), name="bias_i")
        self.moving_mean_r = Parameter(Tensor(zero), name="moving_mean_r", requires_grad=False)
        self.moving_mean_i = Parameter(Tensor(zero), name="moving_mean_i", requires_grad=False)
        self.moving_var_rr = Parameter(Tensor(one), name="moving_var_rr", requires_grad=False)
        self.moving_var_ri = Parameter(Tensor(zero), name="moving_var_ri", requires_grad=False)
        self.moving_var_ii = Parameter(Tensor(one), name="moving_var_ii", requires_grad=False)

    def construct(self, x):
        re, im = parts(x)
        re = re - per_channel(self.moving_mean_r)
        im = im - per_channel(self.moving_mean_i)
        rr = per_channel(self.moving_var_rr + self.eps)
        ii = per_channel(self.moving_var_ii + self.eps)
        ri = per_channel(self.moving_var_ri)
        root = ops.sqrt(rr * ii - ops.square(ri))
        scale = ops.rsqrt(rr + ii + 2 * root) / root
        white_re = ((ii + root) * re - ri * im) * scale
        white_im = ((rr + root) * im - ri * re) * scale
        w_rr, w_ri, w_ii = per_channel(self.weight_rr), per_channel(self.weight_ri), per_channel(self.weight_ii)
        out_re = w_rr * white_re + w_ri * white_im + per_channel(self.bias_r)
        out_im = w_ri * white_re + w_ii * white_im + per_channel(self.bias_i)
        return ops.cat((out_re, out_im), axis=1)


class ComplexConv(nn.Cell):
    """Complex convolution; past frames are padded, future ones are not seen."""

    def __init__(self, width_in, width_out, kernel, stride):
        super().__init__()
        self.past = nn.ZeroPad2d((kernel[1] - 1, 0, 0, 0))
        settings = dict(stride=(stride, 1), pad_mode="pad", padding=(1, 1, 0, 0), has_bias=True)
        self.conv_re = nn.Conv2d(width_in, width_out, kernel, **settings)
        self.conv_im = nn.Conv2d(width_in, width_out, kernel, **settings)

    def construct(self, x):
        re, im = parts(self.past(x))
        return ops.cat((self.conv_re(re) - self.conv_im(im), self.conv_re(im) + self.conv_im(re)), axis=1)


class ComplexConvTranspose(nn.Cell):
    """Complex transposed convolution without the frames behind the last one."""

    def __init__(self, width_in, width_out, kernel, stride):
        super().__init__()
        self.extra = kernel[1] - 1
        settings = dict(stride=(stride, 1), pad_mode="pad", padding=(1, 1, 0, 0), has_bias=True)
        self.conv_re = nn.Conv2dTranspose(width_in, width_out, kernel, **settings)
        self.conv_im = nn.Conv2dTranspose(width_in, width_out, kernel, **settings)

    def construct(self, x):
        frames = x.shape[-1]
        re, im = parts(x)
        out_re = self.conv_re(re) - self.conv_im(im)
        out_im = self.conv_re(im) + self.conv_im(re)
        return ops.cat((out_re, out_im), axis=1)[..., :frames]


class EncoderLayer(nn.Cell):
    """Convolution, normalisation, activation."""

    def __init__(self, width_in, width_out, kernel, stride):
        super().__init__()
        self.conv = ComplexConv(width_in, width_out, kernel, stride)
        self.norm = ComplexBatchNorm(width_out)
        self.act = nn.PReLU(2 * width_out)

    def construct(self, x):
        return self.act(self.norm(self.conv(x)))


class DecoderLayer(nn.Cell):
    """The same the other way, with a skip; what comes out of the last layer is neither normalised nor activated."""

    def __init__(self, width_in, width_out, kernel, stride, last):
        super().__init__()
        self.last = last
        self.conv = ComplexConvTranspose(width_in, width_out, kernel, stride)
        if not last:
            self.norm = ComplexBatchNorm(width_out)
            self.act = nn.PReLU(2 * width_out)

    def construct(self, x, skip):
        x_re, x_im = parts(x)
        skip_re, skip_im = parts(skip)
        out = self.conv(ops.cat((x_re, skip_re, x_im, skip_im), axis=1))
        return out if self.last else self.act(self.norm(out))


class SkipGate(nn.Cell):
    """Squeeze and excitation of complex channels, from the magnitudes in valid frames."""

    def __init__(self, width, reduction=2):
        super().__init__()
        self.squeeze = nn.Dense(width, width // reduction)
        self.relu = nn.ReLU()
        self.excite = nn.Dense(width // reduction, width)

    def construct(self, x, alive):
        re, im = parts(x)
        magnitude = ops.sqrt(ops.square(re) + ops.square(im) + TINY)
        alive = alive.expand_dims(1)
        pooled = (magnitude.mean(axis=2) * alive).sum(axis=-1) / ops.clamp(alive.sum(axis=-1), min=1.0)
        gate = ops.sigmoid(self.excite(self.relu(self.squeeze(pooled)))).expand_dims(-1).expand_dims(-1)
        return ops.cat((re * gate, im * gate), axis=1)


class CumulativeNorm(nn.Cell):
    """Layer norm over channels, bands and all frames so far."""

    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.gamma = Parameter(Tensor(np.ones(width, np.float32)), name="gamma")
        self.beta = Parameter(Tensor(np.zeros(width, np.float32)), name="beta")

    def construct(self, x):
        frames = x.shape[-1]
        seen = ops.arange(1, frames + 1).astype(ms.float32)
        mean = ops.cumsum(x.mean(axis=(1, 2), keep_dims=True), -1) / seen
        second = ops.cumsum(ops.square(x).mean(axis=(1, 2), keep_dims=True), -1) / seen
        x = (x - mean) * ops.rsqrt(second - ops.square(mean) + self.eps)
        return x * per_channel(self.gamma) + per_channel(self.beta)


class FrameMemory(nn.Cell):
    """Perceptron with a causal depthwise filter over the frames of each band."""

    def __init__(self, width, kernel=5, dilation=2):
        super().__init__()
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.fc1 = nn.Dense(width, width)
        self.gelu = nn.GELU(approximate=False)
        self.filter = nn.Conv1d(width, width, kernel, pad_mode="pad", padding=(kernel - 1) * dilation,
                                dilation=dilation, group=width, has_bias=True)
        self.fc2 = nn.Dense(width, width)

    def construct(self, x):
        batch, width, bands, frames = x.shape
        rows = x.transpose(0, 2, 3, 1).reshape(batch * bands, frames, width)
        hidden = self.gelu(self.fc1(self.norm(rows)))
        memory = self.filter(hidden.swapaxes(1, 2))[:, :, :frames]
        rows = self.fc2(hidden + memory.swapaxes(1, 2))
        return x + rows.reshape(batch, bands, frames, width).transpose(0, 3, 1, 2)


class DualPath(nn.Cell):
    """A bidirectional LSTM over bands, another over frames that keeps its state between chunks, and the memory."""

    def __init__(self, width, hidden, chunk):
        super().__init__()
        self.chunk = chunk
        self.band_rnn = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.band_fc = nn.Dense(2 * hidden, width)
        self.band_norm = nn.GroupNorm(1, width, eps=1e-5)
        self.frame_rnn = nn.LSTM(width, hidden, batch_first=True)
        self.frame_fc = nn.Dense(hidden, width)
        self.frame_norm = CumulativeNorm(width)
        self.memory = FrameMemory(width)

    def over_bands(self, x):
        batch, width, bands, frames = x.shape
        rows = x.transpose(0, 3, 2, 1).reshape(batch * frames, bands, width)
        rows = self.band_fc(self.band_rnn(rows)[0])
        return rows.reshape(batch, frames, bands, width).transpose(0, 3, 2, 1)

    def over_frames(self, x):
        batch, width, bands, frames = x.shape
        rows = x.transpose(0, 2, 3, 1).reshape(batch * bands, frames, width)
        state = None
        outs = []
        for start in range(0, frames, self.chunk):
            out, state = self.frame_rnn(rows[:, start : start + self.chunk], state)
            outs.append(out)
        rows = self.frame_fc(ops.cat(outs, axis=1))
        return rows.reshape(batch, bands, frames, width).transpose(0, 3, 1, 2)

    def construct(self, x):
        x = x + self.band_norm(self.over_bands(x))
        x = x + self.frame_norm(self.over_frames(x))
        return self.memory(x)


class BestOrderSDR(nn.Cell):
    """The negative SI-SDR in the best order of the estimates, and the estimates in that order."""

    def __init__(self, talkers, ceiling=30.0):
        super().__init__()
        self.floor = 10 ** (-ceiling / 10)
        orders = np.array(list(permutations(range(talkers))))
        self.orders = Tensor(orders.astype(np.int32))
        # one row for each order, ones where an estimate (rows) is for a source (columns)
        choice = np.eye(talkers)[orders].swapaxes(1, 2).reshape(len(orders), -1)
        self.choice = Tensor((choice / talkers).astype(np.float32))

    def table(self, estimates, sources, alive):
        alive = alive.expand_dims(1)
        count = alive.sum(axis=-1, keepdims=True)
        estimates = (estimates - (estimates * alive).sum(axis=-1, keepdims=True) / count) * alive
        sources = (sources - (sources * alive).sum(axis=-1, keepdims=True) / count) * alive
        estimates, sources = estimates.expand_dims(2), sources.expand_dims(1)
        scale = (estimates * sources).sum(axis=-1, keepdims=True)
        target = sources * scale / (ops.square(sources).sum(axis=-1, keepdims=True) + TINY)
        signal = ops.square(target).sum(axis=-1)
        noise = ops.square(estimates - target).sum(axis=-1)
        return 10 * ops.log10((signal + TINY) / (noise + self.floor * signal + TINY))

    def construct(self, estimates, sources, alive):
        batch, talkers, samples = estimates.shape
        table = self.table(estimates, sources, alive).reshape(batch, -1)
        scores = ops.matmul(table, self.choice.T)
        index = scores.argmax(axis=1)
        best = scores.max(axis=1)
        order = ops.gather(self.orders, index, 0).reshape(batch, talkers, 1)
        ordered = ops.gather_elements(estimates, 1, ops.broadcast_to(order, (batch, talkers, samples)))
        return -best, ordered


class SpectralLoss(nn.Cell):
    """Compressed complex and magnitude errors in valid frames."""

    def __init__(self, n_fft=32, hop=8, power=0.3, alpha=0.7):
        super().__init__()
        self.hop = hop
        self.power = power
        self.alpha = alpha
        self.analysis = Analysis(n_fft, n_fft, hop)

    def construct(self, estimates, sources, lengths):
        batch, talkers, samples = estimates.shape
        guess = power_law(self.analysis(estimates.reshape(-1, samples)), self.power)
        truth = power_law(self.analysis(sources.reshape(-1, samples)), self.power)
        complex_error = ops.square(guess - truth).sum(axis=(1, 2))
        guess = ops.sqrt(ops.square(guess).sum(axis=1) + TINY)
        truth = ops.sqrt(ops.square(truth).sum(axis=1) + TINY)
        error = self.alpha * ops.square(guess - truth).sum(axis=1) + (1 - self.alpha) * complex_error
        error = error.reshape(batch, talkers, -1).mean(axis=1)
        alive = valid_frames(lengths, self.hop, error.shape[-1])
        return (error * alive).sum(axis=-1) / alive.sum(axis=-1)


class SpeechEnhancer(nn.Cell):
    """Estimates of the talkers in the order of their sources, the SDR loss and the spectral loss."""

    def __init__(self, talkers=2, n_fft=64, size=48, hop=16, feature_power=0.5, widths=(8, 12, 16),
                 kernels=((4, 2), (4, 2), (3, 2)), strides=(2, 2, 1), depth=2, hidden=24, chunk=16):
        super().__init__()
        self.talkers = talkers
        self.hop = hop
        self.feature_power = feature_power
        self.analysis = Analysis(n_fft, size, hop)
        self.synthesis = Synthesis(n_fft, size, hop)
        specs = list(zip((1,) + widths[:-1], widths, kernels, strides))
        self.encoder = nn.CellList([EncoderLayer(*spec) for spec in specs])
        self.gates = nn.CellList([SkipGate(width) for width in widths])
        bands = n_fft // 2 // int(np.prod(strides))
        self.band_embed = Parameter(Tensor(np.zeros((1, 2 * widths[-1], bands, 1), np.float32)), name="band_embed")
        self.blocks = nn.CellList([DualPath(2 * widths[-1], hidden, chunk) for _ in range(depth)])
        decoder = [DecoderLayer(2 * b, a, kernel, stride, last=False) for a, b, kernel, stride in specs[:0:-1]]
        decoder.append(DecoderLayer(2 * widths[0], talkers, kernels[0], strides[0], last=True))
        self.decoder = nn.CellList(decoder)
        self.sdr = BestOrderSDR(talkers)
        self.spectral = SpectralLoss()

    def masked(self, maps, spec):
        """Products of the spectrum and the masks: (batch, talkers, 2, bands, frames)."""
        re, im = parts(ops.pad(maps, (0, 0, 1, 0)))
        magnitude = ops.sqrt(ops.square(re) + ops.square(im) + TINY)
        # the hyperbolic tangent, by the sigmoid: more exact on a CPU than ops.tanh
        bound = (2 * ops.sigmoid(2 * magnitude) - 1) / magnitude
        re, im = re * bound, im * bound
        spec_re, spec_im = spec[:, :1], spec[:, 1:]
        return ops.stack((spec_re * re - spec_im * im, spec_re * im + spec_im * re), axis=2)

    def consistent(self, estimates, spec):
        """The estimates plus their shares of what is missing to the mixture."""
        power = ops.square(estimates).sum(axis=2, keepdims=True)
        missing = spec.expand_dims(1) - estimates.sum(axis=1, keepdims=True)
        share = power / (power.sum(axis=1, keepdims=True) + TINY)
        return estimates + share * missing

    def construct(self, mixture, sources, lengths):
        batch, samples = mixture.shape
        alive = valid_samples(lengths, samples)
        mixture = mixture * alive
        energy = ops.square(mixture).sum(axis=-1, keepdims=True)
        level = ops.sqrt(energy / lengths.astype(ms.float32).expand_dims(-1) + TINY)
        spec = self.analysis(mixture / level)
        alive_frames = valid_frames(lengths, self.hop, spec.shape[-1])

        x = power_law(spec, self.feature_power)[:, :, 1:]
        skips = []
        for layer, gate in zip(self.encoder, self.gates):
            x = layer(x)
            skips.append(gate(x, alive_frames))
        x = x + self.band_embed
        for block in self.blocks:
            x = block(x)
        for layer, skip in zip(self.decoder, skips[::-1]):
            x = layer(x, skip)

        estimates = self.consistent(self.masked(x, spec), spec)
        waves = self.synthesis(estimates.reshape(-1, *estimates.shape[2:]), samples)
        waves = waves.reshape(batch, self.talkers, samples) * level.expand_dims(1)
        sdr_loss, waves = self.sdr(waves, sources, alive)
        spectral_loss = self.spectral(waves, sources, lengths)
        return waves * alive.expand_dims(1), sdr_loss, spectral_loss


def utterance(pitch, samples, rate=8000):
    """One talker: harmonics of a gliding pitch with an envelope, and some noise."""
    random = np.random.RandomState(int(pitch))
    time = np.arange(samples) / rate
    phase = 2 * np.pi * np.cumsum(pitch * (1.0 + 0.1 * np.sin(56.0 * time))) / rate
    voice = sum(np.sin(k * phase + k) / k**0.7 for k in range(1, 9))
    envelope = np.interp(np.linspace(0, 13, samples), np.arange(14), random.rand(14))
    return envelope * voice * 0.2 + 0.01 * random.randn(samples)


def build():
    """The net for evaluation and a batch of three mixtures."""
    net = SpeechEnhancer()
    net.set_train(False)
    samples, lengths = 960, np.array([960, 648, 808])
    pairs = [(110.0, 270.0), (150.0, 340.0), (190.0, 410.0)]
    sources = np.stack([np.stack([utterance(pitch, samples) for pitch in pair]) for pair in pairs])
    sources = sources * (np.arange(samples) < lengths[:, None])[:, None, :]
    mixture = sources.sum(axis=1) + 0.02 * np.random.RandomState(0).randn(3, samples)
    inputs = (mixture.astype(np.float32), sources.astype(np.float32), lengths.astype(np.int64))
    return net, tuple(Tensor(value) for value in inputs)
