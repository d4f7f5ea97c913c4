"""MindSpore port of the speaker verification network (PyNative)."""
import math

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer


# --------------------------------------------------------------------------- tables
def povey_window(size):
    n = np.arange(size)
    return (0.5 - 0.5 * np.cos(2.0 * np.pi * n / (size - 1))) ** 0.85


def dft_tables(size, n_fft):
    """cos and sin of a real DFT of ``n_fft`` points for frames of ``size`` samples (zeros behind are implied)."""
    n = np.arange(size)[:, None]
    k = np.arange(n_fft // 2 + 1)[None, :]
    angle = 2.0 * np.pi * n * k / n_fft
    return np.cos(angle), np.sin(angle)


def mel_scale(hz):
    return 1127.0 * np.log1p(hz / 700.0)


def mel_filters(n_mels, n_fft, sample_rate, f_min, f_max):
    edges = np.linspace(mel_scale(f_min), mel_scale(f_max), n_mels + 2)
    table = np.zeros((n_fft // 2 + 1, n_mels))
    for k in range(n_fft // 2):
        mel = mel_scale(k * sample_rate / n_fft)
        for j in range(n_mels):
            low, mid, high = edges[j], edges[j + 1], edges[j + 2]
            if low < mel <= mid:
                table[k, j] = (mel - low) / (mid - low)
            elif mid < mel < high:
                table[k, j] = (high - mel) / (high - mid)
    return table


def length_mask(lengths, size):
    return ops.arange(size).reshape(1, -1) < lengths.reshape(-1, 1)


def masked_mean(x, mask, axis):
    return (x * mask).sum(axis=axis, keepdims=True) / mask.sum(axis=axis, keepdims=True)


def weighted_stats(x, weights, eps):
    """Mean and deviation over the last axis; the weights of it sum to one."""
    mean = (weights * x).sum(axis=-1, keepdims=True)
    var = (weights * ops.square(x - mean)).sum(axis=-1, keepdims=True)
    return mean, ops.sqrt(ops.clamp(var, min=eps))


def l2_normalize(x):
    norm = ops.sqrt(ops.square(x).sum(axis=-1, keepdims=True))
    return x / ops.clamp(norm, min=1e-12)


# --------------------------------------------------------------------------- features
class LogMel(nn.Cell):
    def __init__(self, sample_rate=8000, frame_size=100, frame_shift=44, n_fft=128, n_mels=18,
                 f_min=60.0, f_max=3700.0, preemphasis=0.97, floor=1e-6):
        super().__init__()
        self.frame_size = frame_size
        self.frame_shift = frame_shift
        self.preemphasis = preemphasis
        self.floor = floor
        cos, sin = dft_tables(frame_size, n_fft)
        self.window = Tensor(povey_window(frame_size), ms.float32)
        self.dft_cos = Tensor(cos, ms.float32)
        self.dft_sin = Tensor(sin, ms.float32)
        self.mel = Tensor(mel_filters(n_mels, n_fft, sample_rate, f_min, f_max), ms.float32)

    def construct(self, wav, lengths):
        total = (wav.shape[1] - self.frame_size) // self.frame_shift + 1
        index = np.arange(total)[:, None] * self.frame_shift + np.arange(self.frame_size)[None, :]
        frames = wav[:, Tensor(index, ms.int32)]
        frames = frames - frames.mean(axis=-1, keep_dims=True)
        previous = ops.cat((frames[..., :1], frames[..., :-1]), axis=-1)
        frames = frames - self.preemphasis * previous
        frames = frames * self.window
        real = ops.matmul(frames, self.dft_cos)
        imag = ops.matmul(frames, self.dft_sin)
        power = ops.square(real) + ops.square(imag)
        energies = ops.matmul(power, self.mel)
        logmel = ops.log(ops.clamp(energies, min=self.floor))
        valid = (lengths - self.frame_size) // self.frame_shift + 1
        mask = length_mask(valid, total).expand_dims(-1).astype(logmel.dtype)
        logmel = (logmel - masked_mean(logmel, mask, axis=1)) * mask
        return logmel, valid


# --------------------------------------------------------------------------- 2d front end
def conv2d(in_channels, out_channels, kernel_size, stride=1):
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, pad_mode="pad",
                     padding=kernel_size // 2, has_bias=False)


class ResidualUnit(nn.Cell):
    def __init__(self, in_channels, channels, stride=1):
        super().__init__()
        self.conv_a = conv2d(in_channels, channels, 3, (stride, 1))
        self.norm_a = nn.BatchNorm2d(channels)
        self.conv_b = conv2d(channels, channels, 3)
        self.norm_b = nn.BatchNorm2d(channels)
        self.relu = nn.LeakyReLU(alpha=0.01)
        self.downsample = None
        if stride != 1 or in_channels != channels:
            self.downsample = nn.SequentialCell(conv2d(in_channels, channels, 1, (stride, 1)),
                                                nn.BatchNorm2d(channels))

    def construct(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.norm_a(self.conv_a(x)))
        out = self.norm_b(self.conv_b(out))
        return self.relu(out + identity)


class FrontEnd(nn.Cell):
    def __init__(self, n_mels, channels=6):
        super().__init__()
        self.conv_in = conv2d(1, channels, 3)
        self.norm_in = nn.BatchNorm2d(channels)
        self.units = nn.SequentialCell(ResidualUnit(channels, channels, 2), ResidualUnit(channels, channels))
        self.conv_out = conv2d(channels, channels, 3, (2, 1))
        self.norm_out = nn.BatchNorm2d(channels)
        bands = n_mels
        for _ in range(2):
            bands = (bands - 1) // 2 + 1
        self.out_channels = channels * bands

    def construct(self, feats):
        x = feats.swapaxes(1, 2).expand_dims(1)
        x = ops.relu(self.norm_in(self.conv_in(x)))
        x = self.units(x)
        x = ops.relu(self.norm_out(self.conv_out(x)))
        batch, _, _, frames = x.shape
        return x.reshape(batch, self.out_channels, frames)


# --------------------------------------------------------------------------- TDNN blocks
def conv1d(in_channels, out_channels, kernel_size=1, stride=1, dilation=1, bias=True):
    return nn.Conv1d(in_channels, out_channels, kernel_size, stride=stride, pad_mode="pad",
                     padding=(kernel_size - 1) // 2 * dilation, dilation=dilation, has_bias=bias)


class ConvReluNorm(nn.Cell):
    def __init__(self, in_channels, out_channels, kernel_size=1, stride=1, dilation=1):
        super().__init__()
        self.conv = conv1d(in_channels, out_channels, kernel_size, stride, dilation)
        self.norm = nn.BatchNorm1d(out_channels)

    def construct(self, x):
        return self.norm(ops.relu(self.conv(x)))


class Res2Conv(nn.Cell):
    """The first group passes; each later one is convolved with the result of the one before added."""

    def __init__(self, channels, groups, kernel_size, dilation):
        super().__init__()
        width = channels // groups
        self.groups = groups
        self.convs = nn.CellList([ConvReluNorm(width, width, kernel_size, dilation=dilation)
                                  for _ in range(groups - 1)])

    def construct(self, x):
        first, *rest = ops.chunk(x, self.groups, axis=1)
        results = [first]
        carried = None
        for conv, part in zip(self.convs, rest):
            if carried is not None:
                part = part + carried
            carried = conv(part)
            results.append(carried)
        return ops.cat(results, axis=1)


class SERes2Unit(nn.Cell):
    def __init__(self, channels, dilation, groups=4, squeeze=12):
        super().__init__()
        self.conv_pre = ConvReluNorm(channels, channels)
        self.res2 = Res2Conv(channels, groups, 3, dilation)
        self.conv_post = ConvReluNorm(channels, channels)
        self.se_down = conv1d(channels, squeeze)
        self.se_up = conv1d(squeeze, channels)

    def excite(self, x, mask):
        pooled = masked_mean(x, mask, axis=2)
        gate = ops.sigmoid(self.se_up(ops.relu(self.se_down(pooled))))
        return x * gate

    def construct(self, x, mask):
        out = self.conv_pre(x)
        out = self.res2(out * mask)
        out = self.conv_post(out)
        return self.excite(out, mask) + x


class ContextGate(nn.Cell):
    """CAM: a local convolution gated by the mean over the utterance plus the mean over the segment."""

    def __init__(self, in_channels, out_channels, dilation, segment=5):
        super().__init__()
        self.segment = segment
        self.local = conv1d(in_channels, out_channels, 3, dilation=dilation, bias=False)
        self.reduce = conv1d(in_channels, in_channels // 2)
        self.expand = conv1d(in_channels // 2, out_channels)

    def segment_mean(self, x):
        batch, channels, frames = x.shape
        count = -(-frames // self.segment)
        x = ops.pad(x, (0, count * self.segment - frames))
        sums = x.reshape(batch, channels, count, self.segment).sum(axis=-1)
        sizes = np.full(count, self.segment)
        sizes[-1] = frames - (count - 1) * self.segment
        means = sums / Tensor(sizes, ms.float32)
        return ops.repeat_interleave(means, self.segment, axis=2)[:, :, :frames]

    def construct(self, x, mask):
        local = self.local(x * mask)
        context = masked_mean(x, mask, axis=2) + self.segment_mean(x)
        gate = ops.sigmoid(self.expand(ops.relu(self.reduce(context))))
        return local * gate


class DenseContextLayer(nn.Cell):
    def __init__(self, in_channels, growth, bottleneck, dilation):
        super().__init__()
        self.norm1 = nn.BatchNorm1d(in_channels)
        self.squeeze = conv1d(in_channels, bottleneck, bias=False)
        self.norm2 = nn.BatchNorm1d(bottleneck)
        self.gate = ContextGate(bottleneck, growth, dilation)

    def construct(self, x, mask):
        out = self.squeeze(ops.relu(self.norm1(x)))
        out = self.gate(ops.relu(self.norm2(out)), mask)
        return ops.cat((x, out), axis=1)


# --------------------------------------------------------------------------- pooling
class AttentiveStatistics(nn.Cell):
    def __init__(self, channels, hidden=16, heads=5, eps=1e-5):
        super().__init__()
        self.heads = heads
        self.eps = eps
        self.hidden = ConvReluNorm(3 * channels, hidden)
        self.score = conv1d(hidden, heads)

    def construct(self, x, mask):
        channels = x.shape[1]
        mean, std = weighted_stats(x, mask / mask.sum(axis=2, keepdims=True), self.eps)
        context = ops.cat((x, ops.broadcast_to(mean, x.shape), ops.broadcast_to(std, x.shape)), axis=1)
        scores = self.score(ops.tanh(self.hidden(context)))
        scores = ops.masked_fill(scores, mask == 0, -1e9)
        weights = ops.softmax(scores, axis=2)
        weights = ops.repeat_interleave(weights, channels // self.heads, axis=1)
        mean, std = weighted_stats(x, weights, self.eps)
        return ops.cat((mean, std), axis=1).squeeze(2)


# --------------------------------------------------------------------------- encoder
class SpeakerEncoder(nn.Cell):
    def __init__(self, n_mels=18, channels=36, growth=14, dense_layers=2, transit_channels=28,
                 mfa_channels=40, emb_dim=20):
        super().__init__()
        self.features = LogMel(n_mels=n_mels)
        self.front = FrontEnd(n_mels)
        self.stem = ConvReluNorm(self.front.out_channels, channels, kernel_size=5, stride=2)
        self.units = nn.CellList([SERes2Unit(channels, d) for d in (2, 3)])
        self.dense = nn.CellList([DenseContextLayer(channels + i * growth, growth, 24, dilation=2)
                                  for i in range(dense_layers)])
        dense_channels = channels + dense_layers * growth
        self.transit_norm = nn.BatchNorm1d(dense_channels)
        self.transit = conv1d(dense_channels, transit_channels, bias=False)
        self.mfa = ConvReluNorm(2 * channels + transit_channels, mfa_channels)
        self.pool = AttentiveStatistics(mfa_channels)
        self.pool_norm = nn.BatchNorm1d(2 * mfa_channels)
        self.fc = nn.Dense(2 * mfa_channels, emb_dim)
        self.emb_norm = nn.BatchNorm1d(emb_dim, eps=1e-3)

    def construct(self, wav, lengths):
        feats, valid = self.features(wav, lengths)
        x = self.stem(self.front(feats))
        valid = (valid + 1) // 2
        mask = length_mask(valid, x.shape[-1]).expand_dims(1).astype(x.dtype)
        x = x * mask
        levels = []
        for unit in self.units:
            out = unit(x, mask)
            levels.append(out)
            x = x + out
        for layer in self.dense:
            x = layer(x, mask)
        levels.append(self.transit(ops.relu(self.transit_norm(x))))
        x = self.mfa(ops.cat(levels, axis=1))
        pooled = self.pool_norm(self.pool(x, mask))
        return self.emb_norm(self.fc(pooled))


# --------------------------------------------------------------------------- heads
class AAMSoftmax(nn.Cell):
    def __init__(self, emb_dim, n_classes, sub_centers=2, scale=16.0, margin=0.2, k_top=2, mp=0.06, smoothing=0.05):
        super().__init__()
        self.n_classes = n_classes
        self.sub_centers = sub_centers
        self.scale = scale
        self.k_top = k_top
        self.smoothing = smoothing
        self.weight = Parameter(initializer(Normal(1.0), (n_classes * sub_centers, emb_dim), ms.float32),
                                name="weight")
        self.cos_m, self.sin_m = math.cos(margin), math.sin(margin)
        self.threshold = -math.cos(margin)
        self.fallback = math.sin(margin) * margin
        self.cos_mp, self.sin_mp = math.cos(mp), math.sin(mp)

    def construct(self, emb, labels):
        cosine = ops.matmul(l2_normalize(emb), l2_normalize(self.weight).T)
        cosine = cosine.reshape(-1, self.n_classes, self.sub_centers).max(axis=2)
        sine = ops.sqrt(ops.clamp(1.0 - ops.square(cosine), min=0.0))
        target = cosine * self.cos_m - sine * self.sin_m
        target = ops.where(cosine > self.threshold, target, cosine - self.fallback)
        negative = cosine * self.cos_mp + sine * self.sin_mp
        is_target = ops.one_hot(labels, self.n_classes).astype(ms.float32)
        _, hardest = ops.topk(cosine - 2.0 * is_target, self.k_top, dim=1)
        is_hard = ops.one_hot(hardest, self.n_classes).astype(ms.float32).sum(axis=1)
        logits = ops.where(is_hard > 0, negative, cosine)
        logits = ops.where(is_target > 0, target, logits) * self.scale
        loss = ops.cross_entropy(logits, labels, label_smoothing=self.smoothing)
        return cosine, logits, loss


def adaptive_snorm(emb, cohort, top_n=4):
    """Symmetric score normalisation of all pairs in the batch by their ``top_n`` best cohort scores."""
    unit = l2_normalize(emb)
    scores = ops.matmul(unit, unit.T)
    best, _ = ops.topk(cohort, top_n, dim=1)
    mean = best.mean(axis=1, keep_dims=True)
    std = ops.std(best, axis=1, ddof=1, keepdims=True)
    by_enroll = (scores - mean) / std
    by_test = (scores - mean.T) / std.T
    return (by_enroll + by_test) / 2


class SpeakerNet(nn.Cell):
    def __init__(self, emb_dim=20, n_classes=7):
        super().__init__()
        self.encoder = SpeakerEncoder(emb_dim=emb_dim)
        self.classifier = AAMSoftmax(emb_dim, n_classes)

    def construct(self, wav, lengths, labels):
        emb = self.encoder(wav, lengths)
        cosine, logits, loss = self.classifier(emb, labels)
        return emb, logits, loss, adaptive_snorm(emb, cosine)


def make_inputs():
    rng = np.random.RandomState(7)
    lengths = np.array([1750, 1311, 935])
    t = np.arange(1750) / 8000.0
    wav = np.zeros((3, 1750))
    for i, f0 in enumerate((110.0, 173.0, 221.0)):
        glide = f0 * (1.0 + 0.3 * np.sin(2 * np.pi * (4 + i) * t))
        phase = 2 * np.pi * np.cumsum(glide) / 8000.0
        for h in range(1, 9):
            wav[i] += 0.2 / h * np.sin(h * phase + i * h) * (1 + 0.5 * np.cos(2 * np.pi * (7 + 2 * h) * t))
        wav[i] += 0.02 * rng.randn(1750) + 0.05
        wav[i, lengths[i]:] = 0.0
    return Tensor(wav, ms.float32), Tensor(lengths, ms.int32), Tensor([4, 0, 6], ms.int32)


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(1234)
    net = SpeakerNet()
    net.set_train(False)
    return net, make_inputs()


if __name__ == "__main__":
    model, args = build()
    for out in model(*args):
        print(out.shape, out)
