"""MindSpore (PyNative) version of the small multi-speaker VITS-like text-to-speech model."""
import math

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)

LRELU_SLOPE = 0.1


def conv1d(in_channels, out_channels, kernel_size, dilation=1, has_bias=True):
    """Conv1d of stride 1 that keeps the length."""
    padding = dilation * (kernel_size - 1) // 2
    return nn.Conv1d(in_channels, out_channels, kernel_size, pad_mode='pad', padding=padding, dilation=dilation,
                     has_bias=has_bias)


def sequence_mask(lengths, max_len):
    """[b] -> float mask [b, 1, max_len]."""
    steps = ops.arange(max_len).astype(ms.int32)
    return (steps.expand_dims(0) < lengths.astype(ms.int32).expand_dims(1)).astype(ms.float32).expand_dims(1)


def relative_index(max_len, window_size):
    """Index of the relative embedding for (query, key), and whether the pair lies within the window."""
    pos = np.arange(max_len)
    rel = pos[None, :] - pos[:, None] + window_size
    inside = (rel >= 0) & (rel <= 2 * window_size)
    return np.clip(rel, 0, 2 * window_size).astype(np.int32), inside.astype(np.float32)


def sinusoid_table(max_len, channels):
    position = np.arange(max_len)[:, None].astype(np.float32)
    inv_freq = np.exp(np.arange(0, channels, 2, dtype=np.float32) * np.float32(-math.log(10000.0) / channels))
    angle = position * inv_freq[None, :]
    table = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(max_len, channels)
    return table.T[None].astype(np.float32)


class ChannelNorm(nn.Cell):
    """Layer norm over the channels of [b, c, t]."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm((channels,), epsilon=1e-5)

    def construct(self, x):
        return self.norm(x.swapaxes(1, 2)).swapaxes(1, 2)


class Prenet(nn.Cell):
    def __init__(self, channels, kernel_size, n_layers):
        super().__init__()
        self.convs = nn.CellList()
        self.bns = nn.CellList()
        for _ in range(n_layers):
            self.convs.append(conv1d(channels, channels, kernel_size, has_bias=False))
            self.bns.append(nn.BatchNorm1d(channels, eps=1e-3, momentum=0.99))
        self.proj = conv1d(channels, channels, 1)

    def construct(self, x, mask):
        residual = x
        for conv, bn in zip(self.convs, self.bns):
            x = conv(x * mask)
            # BatchNorm1d takes [n, c] only
            b, c, t = x.shape
            x = bn(x.transpose(0, 2, 1).reshape(b * t, c)).reshape(b, t, c).transpose(0, 2, 1)
            x = ops.relu(x)
        x = residual + self.proj(x)
        return x * mask


class RelativeAttention(nn.Cell):
    def __init__(self, channels, num_heads, window_size, proximal_bias=False, max_len=64):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = channels // num_heads
        self.proximal_bias = proximal_bias
        self.scale = 1.0 / math.sqrt(self.head_dim)
        self.to_q = conv1d(channels, channels, 1)
        self.to_k = conv1d(channels, channels, 1)
        self.to_v = conv1d(channels, channels, 1)
        self.to_out = conv1d(channels, channels, 1)
        shape = (1, 2 * window_size + 1, self.head_dim)
        self.rel_k = Parameter(Tensor(np.zeros(shape, np.float32)), name='rel_k')
        self.rel_v = Parameter(Tensor(np.zeros(shape, np.float32)), name='rel_v')
        index, inside = relative_index(max_len, window_size)
        self.rel_index = Tensor(index)
        self.rel_inside = Tensor(inside)
        distance = np.abs(np.arange(max_len)[None, :] - np.arange(max_len)[:, None])
        self.proximal = Tensor(-np.log1p(distance).astype(np.float32))

    def split_heads(self, x):
        b, _, t = x.shape
        return x.reshape(b, self.num_heads, self.head_dim, t).swapaxes(2, 3)

    def construct(self, x, attn_mask):
        b, c, t = x.shape
        q = self.split_heads(self.to_q(x)) * self.scale
        k = self.split_heads(self.to_k(x))
        v = self.split_heads(self.to_v(x))
        index = self.rel_index[:t, :t]
        inside = self.rel_inside[:t, :t]

        # content and relative position
        scores = ops.matmul(q, k.swapaxes(2, 3))
        rel_logits = ops.matmul(q, self.rel_k[0].swapaxes(0, 1))
        full_index = ops.broadcast_to(index.reshape(1, 1, t, t), (b, self.num_heads, t, t))
        scores = scores + ops.gather_elements(rel_logits, 3, full_index) * inside
        if self.proximal_bias:
            scores = scores + self.proximal[:t, :t]
        scores = ops.masked_fill(scores, attn_mask == 0, -1e4)
        attn = ops.softmax(scores, axis=-1)

        out = ops.matmul(attn, v)
        rel_values = ops.gather(self.rel_v[0], index, 0) * inside.expand_dims(-1)  # [t, t, d]
        by_query = attn.transpose(2, 0, 1, 3).reshape(t, b * self.num_heads, t)
        rel_out = ops.matmul(by_query, rel_values).reshape(t, b, self.num_heads, self.head_dim)
        out = out + rel_out.transpose(1, 2, 0, 3)
        out = out.transpose(0, 1, 3, 2).reshape(b, c, t)
        return self.to_out(out)


class FeedForward(nn.Cell):
    def __init__(self, channels, filter_channels, kernel_size):
        super().__init__()
        self.conv_1 = nn.Conv1d(channels, filter_channels, kernel_size, pad_mode='same', has_bias=True)
        self.conv_2 = nn.Conv1d(filter_channels, channels, kernel_size, pad_mode='same', has_bias=True)
        self.act = nn.GELU(approximate=False)

    def construct(self, x, mask):
        h = self.act(self.conv_1(x * mask))
        h = self.conv_2(h * mask)
        return h * mask


class EncoderLayer(nn.Cell):
    def __init__(self, channels, filter_channels, num_heads, kernel_size, window_size, proximal_bias):
        super().__init__()
        self.attn = RelativeAttention(channels, num_heads, window_size, proximal_bias)
        self.norm_1 = ChannelNorm(channels)
        self.ffn = FeedForward(channels, filter_channels, kernel_size)
        self.norm_2 = ChannelNorm(channels)

    def construct(self, x, mask, attn_mask):
        x = self.norm_1(x + self.attn(x, attn_mask))
        return self.norm_2(x + self.ffn(x, mask))


class Encoder(nn.Cell):
    def __init__(self, channels, filter_channels, num_heads, num_layers, kernel_size, window_size,
                 proximal_bias=False):
        super().__init__()
        self.layers = nn.CellList([EncoderLayer(channels, filter_channels, num_heads, kernel_size, window_size,
                                                proximal_bias) for _ in range(num_layers)])

    def construct(self, x, mask):
        attn_mask = mask.expand_dims(2) * mask.expand_dims(3)
        x = x * mask
        for layer in self.layers:
            x = layer(x, mask, attn_mask)
        return x * mask


class TextEncoder(nn.Cell):
    def __init__(self, vocab_size, channels, filter_channels, num_heads, num_layers, kernel_size, window_size):
        super().__init__()
        self.embed_scale = math.sqrt(channels)
        self.embedding = nn.Embedding(vocab_size, channels)
        self.prenet = Prenet(channels, 5, 2)
        self.encoder = Encoder(channels, filter_channels, num_heads, num_layers, kernel_size, window_size)

    def construct(self, tokens, lengths):
        x = self.embedding(tokens) * self.embed_scale
        mask = sequence_mask(lengths, tokens.shape[1])
        x = self.prenet(x.transpose(0, 2, 1), mask)
        return self.encoder(x, mask), mask


class VariancePredictor(nn.Cell):
    def __init__(self, channels, filter_channels, kernel_size, gin_channels):
        super().__init__()
        self.conv_1 = conv1d(channels, filter_channels, kernel_size)
        self.norm_1 = ChannelNorm(filter_channels)
        self.conv_2 = conv1d(filter_channels, filter_channels, kernel_size)
        self.norm_2 = ChannelNorm(filter_channels)
        self.out = conv1d(filter_channels, 1, 1)
        self.cond = conv1d(gin_channels, channels, 1)

    def construct(self, x, mask, g):
        x = x + self.cond(g)
        x = self.norm_1(ops.relu(self.conv_1(x * mask)))
        x = self.norm_2(ops.relu(self.conv_2(x * mask)))
        x = self.out(x * mask) * mask
        return x.squeeze(1)


class VarianceAdaptor(nn.Cell):
    def __init__(self, channels, filter_channels, gin_channels, n_bins, pitch_min, pitch_max):
        super().__init__()
        self.duration_predictor = VariancePredictor(channels, filter_channels, 3, gin_channels)
        self.pitch_predictor = VariancePredictor(channels, filter_channels, 5, gin_channels)
        self.pitch_bins = Tensor(np.linspace(pitch_min, pitch_max, n_bins - 1).astype(np.float32))
        self.pitch_embedding = nn.Embedding(n_bins, channels)

    def construct(self, x, mask, g, max_frames, length_scale):
        pitch = self.pitch_predictor(x, mask, g)
        # bucketize: how many boundaries lie below the value
        bucket = (pitch.expand_dims(-1) > self.pitch_bins).astype(ms.int32).sum(-1)
        x = x + self.pitch_embedding(bucket).swapaxes(1, 2) * mask

        log_dur = self.duration_predictor(x, mask, g)
        dur = ops.round((ops.exp(log_dur) - 1.0) * length_scale)
        dur = (ops.clamp(dur, min=1.0) * mask.squeeze(1)).astype(ms.int32)
        total = dur.sum(1)
        y_lengths = ops.clamp(total, 1, max_frames)
        y_mask = sequence_mask(y_lengths, max_frames)

        # length regulator: the token of frame f is the number of tokens that end at or before f
        ends = ops.cumsum(dur, 1)
        frame = ops.arange(max_frames).astype(ms.int32)
        token = (ends.expand_dims(1) <= frame.reshape(1, max_frames, 1)).astype(ms.int32).sum(-1)
        token = ops.clamp(token, 0, x.shape[2] - 1)
        index = ops.broadcast_to(token.expand_dims(1), (x.shape[0], x.shape[1], max_frames))
        frames = ops.gather_elements(x, 2, index)
        return frames * y_mask, y_mask, y_lengths, pitch, log_dur


class FramePrior(nn.Cell):
    def __init__(self, channels, out_channels, filter_channels, num_heads, kernel_size, window_size, max_len=200):
        super().__init__()
        self.pos_table = Tensor(sinusoid_table(max_len, channels))
        self.encoder = Encoder(channels, filter_channels, num_heads, 1, kernel_size, window_size,
                               proximal_bias=True)
        self.proj = conv1d(channels, out_channels * 2, 1)

    def construct(self, x, mask):
        x = x + self.pos_table[:, :, :x.shape[2]]
        x = self.encoder(x, mask)
        stats = self.proj(x) * mask
        mean, log_std = ops.chunk(stats, 2, axis=1)
        return mean, log_std


class WaveNet(nn.Cell):
    """Gated dilated convolutions with speaker conditioning."""

    def __init__(self, hidden, kernel_size, dilation_rate, num_layers, gin_channels):
        super().__init__()
        self.hidden = hidden
        self.num_layers = num_layers
        self.cond = conv1d(gin_channels, 2 * hidden * num_layers, 1)
        in_layers, res_skip_layers = [], []
        for i in range(num_layers):
            in_layers.append(conv1d(hidden, 2 * hidden, kernel_size, dilation=dilation_rate ** i))
            out_channels = hidden if i == num_layers - 1 else 2 * hidden
            res_skip_layers.append(conv1d(hidden, out_channels, 1))
        self.in_layers = nn.CellList(in_layers)
        self.res_skip_layers = nn.CellList(res_skip_layers)

    def construct(self, x, mask, g):
        skip_sum = ops.zeros_like(x)
        cond = self.cond(g)
        for i in range(self.num_layers):
            start = i * 2 * self.hidden
            z = self.in_layers[i](x) + cond[:, start:start + 2 * self.hidden]
            acts = ops.tanh(z[:, :self.hidden]) * ops.sigmoid(z[:, self.hidden:])
            res_skip = self.res_skip_layers[i](acts)
            if i == self.num_layers - 1:
                skip_sum = skip_sum + res_skip
            else:
                residual, skip = res_skip[:, :self.hidden], res_skip[:, self.hidden:]
                x = (x + residual) * mask
                skip_sum = skip_sum + skip
        return skip_sum * mask


class AffineCoupling(nn.Cell):
    def __init__(self, channels, hidden, kernel_size, dilation_rate, num_layers, gin_channels):
        super().__init__()
        self.pre = conv1d(channels // 2, hidden, 1)
        self.wavenet = WaveNet(hidden, kernel_size, dilation_rate, num_layers, gin_channels)
        self.post = conv1d(hidden, channels, 1)

    def stats(self, x0, mask, g):
        h = self.wavenet(self.pre(x0) * mask, mask, g)
        return ops.chunk(self.post(h) * mask, 2, axis=1)

    def construct(self, x, mask, g):
        x0, x1 = ops.chunk(x, 2, axis=1)
        m, logs = self.stats(x0, mask, g)
        return ops.cat([x0, m + x1 * ops.exp(logs) * mask], axis=1)

    def inverse(self, x, mask, g):
        x0, x1 = ops.chunk(x, 2, axis=1)
        m, logs = self.stats(x0, mask, g)
        x1 = (x1 - m) * ops.exp(-logs) * mask
        return ops.cat([x0, x1], axis=1)


class Flow(nn.Cell):
    """Coupling layers; the channels are flipped after each of them."""

    def __init__(self, channels, hidden, kernel_size, dilation_rate, num_layers, num_flows, gin_channels):
        super().__init__()
        self.couplings = nn.CellList([AffineCoupling(channels, hidden, kernel_size, dilation_rate, num_layers,
                                                     gin_channels) for _ in range(num_flows)])

    def construct(self, x, mask, g):
        for coupling in self.couplings:
            x = ops.flip(coupling(x, mask, g), (1,))
        return x

    def inverse(self, x, mask, g):
        for i in range(len(self.couplings) - 1, -1, -1):
            x = ops.flip(x, (1,))
            x = self.couplings[i].inverse(x, mask, g)
        return x


class ResBlock(nn.Cell):
    def __init__(self, channels, kernel_size, dilations):
        super().__init__()
        self.convs1 = nn.CellList([conv1d(channels, channels, kernel_size, dilation=d) for d in dilations])
        self.convs2 = nn.CellList([conv1d(channels, channels, kernel_size, dilation=1) for _ in dilations])

    def construct(self, x):
        for conv_1, conv_2 in zip(self.convs1, self.convs2):
            h = conv_1(ops.leaky_relu(x, LRELU_SLOPE))
            h = conv_2(ops.leaky_relu(h, LRELU_SLOPE))
            x = x + h
        return x


class Upsample(nn.Cell):
    """Transposed convolution by the factor `stride`; Conv1dTranspose has no output_padding, so we cut by hand."""

    def __init__(self, in_channels, out_channels, kernel_size, stride):
        super().__init__()
        self.stride = stride
        self.crop = stride // 2 + stride % 2
        self.conv = nn.Conv1dTranspose(in_channels, out_channels, kernel_size, stride=stride, pad_mode='valid',
                                       has_bias=True)

    def construct(self, x):
        length = x.shape[2] * self.stride
        return self.conv(x)[:, :, self.crop:self.crop + length]


class Generator(nn.Cell):
    def __init__(self, in_channels, channels, rates, kernels, res_kernels, res_dilations, gin_channels):
        super().__init__()
        self.conv_pre = conv1d(in_channels, channels, 7)
        self.cond = conv1d(gin_channels, channels, 1)
        self.ups = nn.CellList()
        self.stages = nn.CellList()
        for u, k in zip(rates, kernels):
            self.ups.append(Upsample(channels, channels // 2, k, u))
            channels = channels // 2
            self.stages.append(nn.CellList([ResBlock(channels, rk, rd)
                                            for rk, rd in zip(res_kernels, res_dilations)]))
        self.conv_post = conv1d(channels, 1, 7, has_bias=False)

    def construct(self, z, g):
        x = self.conv_pre(z) + self.cond(g)
        for up, blocks in zip(self.ups, self.stages):
            x = up(ops.leaky_relu(x, LRELU_SLOPE))
            total = 0.0
            for block in blocks:
                total = total + block(x)
            x = total / len(blocks)
        x = ops.leaky_relu(x, alpha=0.01)
        return ops.tanh(self.conv_post(x))


class VitsVoice(nn.Cell):
    def __init__(self, vocab_size=37, num_speakers=5, hidden=24, latent=20, gin=16):
        super().__init__()
        self.speaker_embedding = nn.Embedding(num_speakers, gin)
        self.normalize = ops.L2Normalize(axis=1, epsilon=1e-12)
        self.text_encoder = TextEncoder(vocab_size, hidden, 40, num_heads=3, num_layers=2, kernel_size=4,
                                        window_size=4)
        self.adaptor = VarianceAdaptor(hidden, 32, gin, n_bins=12, pitch_min=-1.5, pitch_max=2.0)
        self.frame_prior = FramePrior(hidden, latent, 36, num_heads=2, kernel_size=3, window_size=5)
        self.flow = Flow(latent, 28, kernel_size=5, dilation_rate=2, num_layers=3, num_flows=3, gin_channels=gin)
        self.generator = Generator(latent, 32, (4, 3), (8, 6), (3, 5, 7), ((1, 3), (1, 2), (2, 3)), gin)

    def construct(self, tokens, lengths, sid, noise, noise_scale, length_scale):
        g = self.normalize(self.speaker_embedding(sid)).expand_dims(-1)
        x, x_mask = self.text_encoder(tokens, lengths)
        frames, y_mask, y_lengths, pitch, log_dur = self.adaptor(x, x_mask, g, noise.shape[2], length_scale)
        mean, log_std = self.frame_prior(frames, y_mask)
        z_p = (mean + noise * ops.exp(log_std) * noise_scale) * y_mask
        z = self.flow.inverse(z_p, y_mask, g)
        wav = self.generator(z * y_mask, g)
        return wav, y_lengths, z, log_dur, pitch


def build():
    net = VitsVoice()
    net.set_train(False)
    rng = np.random.RandomState(22)
    tokens = rng.randint(1, 37, (3, 11))
    lengths = np.array([11, 8, 9])
    tokens[np.arange(11)[None, :] >= lengths[:, None]] = 0
    sid = np.array([4, 0, 2])
    noise = rng.randn(3, 20, 53).astype(np.float32)
    inputs = (Tensor(tokens.astype(np.int32)), Tensor(lengths.astype(np.int32)), Tensor(sid.astype(np.int32)),
              Tensor(noise), 0.667, 1.1)
    return net, inputs
