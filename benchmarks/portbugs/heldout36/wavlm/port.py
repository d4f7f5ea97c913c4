"""WavLM-style speech encoder with an utterance embedding head and a CTC head, in MindSpore."""
import math

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer


CONV_LAYERS = ((20, 10, 5), (24, 3, 2), (24, 3, 2), (28, 2, 2))   # (dim, kernel, stride)
EMBED_DIM = 36
NUM_HEADS = 3
FFN_DIM = 60
NUM_LAYERS = 4
POS_KERNEL = 16
POS_GROUPS = 4
NUM_BUCKETS = 16
MAX_DISTANCE = 40
MAX_FRAMES = 64
TDNN_DIM = 40
XVECTOR_DIM = 22
VOCAB = 13
NEG_INF = -1e30


class WaveEncoder(nn.Cell):
    def __init__(self, conv_layers):
        super().__init__()
        self.conv_layers = conv_layers
        in_dims = (1,) + tuple(dim for dim, _, _ in conv_layers[:-1])
        self.conv_list = nn.CellList([
            nn.Conv1d(in_dim, dim, kernel, stride=stride, pad_mode="valid", has_bias=False)
            for in_dim, (dim, kernel, stride) in zip(in_dims, conv_layers)
        ])
        first_dim = conv_layers[0][0]
        self.group_norm = nn.GroupNorm(first_dim, first_dim, eps=1e-5)
        self.gelu = nn.GELU(approximate=False)

    def get_output_lengths(self, lengths):
        for _, kernel, stride in self.conv_layers:
            lengths = (lengths - kernel) // stride + 1
        return lengths

    def construct(self, wav):
        x = ops.expand_dims(wav, 1)
        x = self.conv_list[0](x)
        x = self.group_norm(ops.expand_dims(x, -1)).squeeze(-1)
        x = self.gelu(x)
        for conv in self.conv_list[1:]:
            x = self.gelu(conv(x))
        return x.swapaxes(1, 2)


class ConvPositionEmbedding(nn.Cell):
    """Grouped convolution; the weight norm runs over the kernel axis."""

    def __init__(self, dim, kernel_size, groups):
        super().__init__()
        self.kernel_size = kernel_size
        self.groups = groups
        self.weight_g = Parameter(initializer("ones", (1, 1, kernel_size)), name="weight_g")
        self.weight_v = Parameter(initializer(Normal(0.05), (dim, dim // groups, kernel_size)), name="weight_v")
        self.bias = Parameter(initializer("zeros", (dim,)), name="bias")

    def construct(self, x):
        norm = ops.sqrt(ops.square(self.weight_v).sum(axis=(0, 1), keepdims=True))
        weight = self.weight_v * (self.weight_g / norm)
        x = x.swapaxes(1, 2)
        length = x.shape[-1]
        y = ops.conv1d(x, weight, self.bias, pad_mode="pad", padding=self.kernel_size // 2, groups=self.groups)
        y = y[:, :, :length]
        y = ops.gelu(y, approximate="none")
        return y.swapaxes(1, 2)


def relative_bucket_table(num_buckets, max_distance, max_frames):
    """Bucket of every signed distance from -(max_frames - 1) to max_frames - 1."""
    half = num_buckets // 2
    max_exact = half // 2
    offsets = np.arange(-(max_frames - 1), max_frames)
    distance = np.abs(offsets)
    log_ratio = np.log(np.maximum(distance, 1) / max_exact) / math.log(max_distance / max_exact)
    large = max_exact + (log_ratio * (half - max_exact)).astype(np.int64)
    large = np.minimum(large, half - 1)
    table = np.where(distance < max_exact, distance, large)
    table = table + np.where(offsets > 0, half, 0)
    return table.astype(np.int32)


class GatedSelfAttention(nn.Cell):
    def __init__(self, dim, num_heads, has_position_table=False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = 1.0 / math.sqrt(self.head_dim)
        self.query = nn.Dense(dim, dim)
        self.key = nn.Dense(dim, dim)
        self.value = nn.Dense(dim, dim)
        self.out = nn.Dense(dim, dim)
        self.gate_const = Parameter(initializer("ones", (1, num_heads, 1, 1)), name="gate_const")
        self.gate_proj = nn.Dense(self.head_dim, 8)
        if has_position_table:
            self.max_frames = MAX_FRAMES
            self.bucket_table = Tensor(relative_bucket_table(NUM_BUCKETS, MAX_DISTANCE, MAX_FRAMES))
            self.position_embedding = nn.Embedding(NUM_BUCKETS, num_heads)

    def position_scores(self, length):
        steps = ops.arange(length)
        relative = steps.expand_dims(0) - steps.expand_dims(1)
        buckets = self.bucket_table[relative + (self.max_frames - 1)]
        return self.position_embedding(buckets).transpose(2, 0, 1)

    def split_heads(self, x):
        batch, length, _ = x.shape
        return x.reshape(batch, length, self.num_heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, x, key_padding, position=None):
        batch, length, dim = x.shape
        if position is None:
            position = self.position_scores(length)

        gate = self.gate_proj(self.split_heads(x))
        gate = gate.reshape(batch, self.num_heads, length, 2, 4).sum(axis=-1)
        gate = ops.sigmoid(gate)
        gate_a, gate_b = gate[..., :1], gate[..., 1:]
        gate = gate_a * (gate_b * self.gate_const - 1.0) + 2.0

        q = self.split_heads(self.query(x))
        k = self.split_heads(self.key(x))
        v = self.split_heads(self.value(x))
        scores = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        scores = scores + gate * position.expand_dims(0)
        scores = scores.masked_fill(key_padding.expand_dims(1).expand_dims(1), -1e9)
        attention = ops.softmax(scores, axis=-1)
        context = ops.matmul(attention, v).transpose(0, 2, 1, 3).reshape(batch, length, dim)
        return self.out(context), position


class TransformerLayer(nn.Cell):
    """Pre-norm transformer layer."""

    def __init__(self, dim, num_heads, ffn_dim, has_position_table=False):
        super().__init__()
        self.attn = GatedSelfAttention(dim, num_heads, has_position_table)
        self.attn_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.ffn = nn.SequentialCell(
            nn.Dense(dim, ffn_dim),
            nn.GELU(approximate=False),
            nn.Dense(ffn_dim, dim),
        )
        self.ffn_norm = nn.LayerNorm((dim,), epsilon=1e-5)

    def construct(self, x, key_padding, position=None):
        residual = x
        x, position = self.attn(self.attn_norm(x), key_padding, position)
        x = residual + x
        x = x + self.ffn(self.ffn_norm(x))
        return x, position


class TransformerEncoder(nn.Cell):
    def __init__(self):
        super().__init__()
        self.pos_conv = ConvPositionEmbedding(EMBED_DIM, POS_KERNEL, POS_GROUPS)
        self.blocks = nn.CellList([
            TransformerLayer(EMBED_DIM, NUM_HEADS, FFN_DIM, has_position_table=(i == 0)) for i in range(NUM_LAYERS)
        ])
        self.norm = nn.LayerNorm((EMBED_DIM,), epsilon=1e-5)

    def construct(self, x, frame_mask):
        x = x * frame_mask.expand_dims(-1).astype(x.dtype)
        x = x + self.pos_conv(x)
        key_padding = ops.logical_not(frame_mask)
        states = []
        position = None
        for block in self.blocks:
            states.append(x)
            x, position = block(x, key_padding, position)
        x = self.norm(x)
        states.append(x)
        return x, states


class LayerMixer(nn.Cell):
    def __init__(self, num_states):
        super().__init__()
        self.weights = Parameter(initializer("zeros", (num_states,)), name="weights")

    def construct(self, states):
        weights = ops.softmax(self.weights, axis=0)
        mixed = 0.0
        for i, state in enumerate(states):
            mean = state.mean(axis=-1, keep_dims=True)
            std = state.std(axis=-1, ddof=1, keepdims=True)
            mixed = mixed + weights[i] * ((state - mean) / (std + 1e-6))
        return mixed


class TDNN(nn.Cell):
    def __init__(self, in_dim, out_dim, kernel_size, dilation=1):
        super().__init__()
        self.conv = nn.Conv1d(in_dim, out_dim, kernel_size, pad_mode="same", dilation=dilation, has_bias=True)
        self.bn = nn.BatchNorm1d(out_dim, eps=1e-5, momentum=0.9)

    def construct(self, x):
        return self.bn(ops.relu(self.conv(x)))


class AttentiveStatsPool(nn.Cell):
    """x: B, C, T; returns the attention-weighted mean and standard deviation: B, 2C."""

    def __init__(self, channels, bottleneck):
        super().__init__()
        self.eps = 1e-6
        self.tdnn = TDNN(channels * 3, bottleneck, 1)
        self.conv = nn.Conv1d(bottleneck, channels, 1, pad_mode="valid", has_bias=True)

    def weighted_stats(self, x, w):
        mean = (x * w).sum(axis=-1, keepdims=True)
        var = (w * ops.square(x - mean)).sum(axis=-1, keepdims=True)
        std = ops.sqrt(ops.clamp(var, min=self.eps))
        return mean, std

    def construct(self, x, frame_mask):
        mask = frame_mask.expand_dims(1)
        valid = mask.astype(x.dtype)
        valid = valid / valid.sum(axis=-1, keepdims=True)
        mean, std = self.weighted_stats(x, valid)
        mean = ops.broadcast_to(mean, x.shape)
        std = ops.broadcast_to(std, x.shape)
        logits = self.conv(ops.tanh(self.tdnn(ops.cat((x, mean, std), axis=1))))
        logits = logits.masked_fill(ops.logical_not(mask), -1e9)
        mean, std = self.weighted_stats(x, ops.softmax(logits, axis=-1))
        return ops.cat((mean, std), axis=1).squeeze(-1)


class SpeakerHead(nn.Cell):
    def __init__(self, in_dim, tdnn_dim, out_dim):
        super().__init__()
        self.projector = nn.Dense(in_dim, 32)
        self.tdnn = TDNN(32, tdnn_dim, 3, dilation=2)
        self.pool = AttentiveStatsPool(tdnn_dim, 16)
        self.bn = nn.BatchNorm1d(tdnn_dim * 2, eps=1e-5, momentum=0.9)
        self.fc = nn.Dense(tdnn_dim * 2, out_dim)

    def construct(self, x, frame_mask):
        x = self.projector(x) * frame_mask.expand_dims(-1).astype(x.dtype)
        x = self.tdnn(x.swapaxes(1, 2))
        x = self.fc(self.bn(self.pool(x, frame_mask)))
        norm = ops.sqrt(ops.square(x).sum(axis=-1, keepdims=True))
        return x / ops.clamp(norm, min=1e-12)


class CTCHead(nn.Cell):
    def __init__(self, dim, vocab, blank=0):
        super().__init__()
        self.blank = blank
        self.dense = nn.Dense(dim, dim)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.classifier = nn.Dense(dim, vocab)

    def sequence_score(self, log_probs, frame_lengths, targets, target_lengths):
        """CTC forward algorithm over the blank-extended targets; log-likelihood per symbol."""
        batch, num_frames, _ = log_probs.shape
        blanks = ops.full_like(targets, self.blank)
        extended = ops.stack((blanks, targets), axis=-1).reshape(batch, -1)
        extended = ops.cat((extended, blanks[:, :1]), axis=1)
        size = extended.shape[1]
        index = ops.broadcast_to(extended.expand_dims(1), (batch, num_frames, size))
        emit = ops.gather_elements(log_probs, 2, index)

        differs = ops.logical_and(extended[:, 2:] != self.blank, extended[:, 2:] != extended[:, :-2])
        can_skip = ops.cat((ops.zeros((batch, 2), ms.bool_), differs), axis=1)

        pad1 = ops.full((batch, 1), NEG_INF, dtype=emit.dtype)
        pad2 = ops.full((batch, 2), NEG_INF, dtype=emit.dtype)
        floor = ops.full((batch, size), NEG_INF, dtype=emit.dtype)
        alpha = ops.cat((emit[:, 0, :2], floor[:, 2:]), axis=1)
        for t in range(1, num_frames):
            step = ops.cat((pad1, alpha[:, :-1]), axis=1)
            skip = ops.cat((pad2, alpha[:, :-2]), axis=1)
            skip = ops.where(can_skip, skip, floor)
            new = ops.logsumexp(ops.stack((alpha, step, skip), axis=0), 0) + emit[:, t]
            active = (frame_lengths > t).expand_dims(1)
            alpha = ops.where(active, new, alpha)

        last = (2 * target_lengths).expand_dims(1)
        ends = ops.cat((last, last - 1), axis=1)
        total = ops.logsumexp(ops.gather_elements(alpha, 1, ends), 1)
        return total / target_lengths.astype(total.dtype)

    def greedy_score(self, log_probs, frame_mask):
        ids = ops.argmax(log_probs, dim=-1)
        best = log_probs.max(axis=-1)
        start = ops.full((ids.shape[0], 1), self.blank, dtype=ids.dtype)
        previous = ops.cat((start, ids[:, :-1]), axis=1)
        emits = ops.logical_and(ids != previous, ids != self.blank)
        emits = ops.logical_and(emits, frame_mask).astype(best.dtype)
        count = ops.clamp(emits.sum(axis=1), min=1.0)
        return (best * emits).sum(axis=1) / count

    def construct(self, x, frame_mask, frame_lengths, targets, target_lengths):
        x = self.norm(ops.gelu(self.dense(x), approximate="none"))
        log_probs = ops.log_softmax(self.classifier(x), axis=-1)
        score = self.sequence_score(log_probs, frame_lengths, targets, target_lengths)
        greedy = self.greedy_score(log_probs, frame_mask)
        log_probs = log_probs * frame_mask.expand_dims(-1).astype(log_probs.dtype)
        return log_probs, score, greedy


class WavLMSpeech(nn.Cell):
    def __init__(self):
        super().__init__()
        self.wave_encoder = WaveEncoder(CONV_LAYERS)
        feature_dim = CONV_LAYERS[-1][0]
        self.feature_norm = nn.LayerNorm((feature_dim,), epsilon=1e-5)
        self.feature_proj = nn.Dense(feature_dim, EMBED_DIM)
        self.encoder = TransformerEncoder()
        self.mixer = LayerMixer(NUM_LAYERS + 1)
        self.speaker_head = SpeakerHead(EMBED_DIM, TDNN_DIM, XVECTOR_DIM)
        self.ctc_head = CTCHead(EMBED_DIM, VOCAB)

    def construct(self, wav, wav_lengths, targets, target_lengths):
        features = self.wave_encoder(wav)
        frame_lengths = self.wave_encoder.get_output_lengths(wav_lengths)
        frame_mask = ops.arange(features.shape[1]).expand_dims(0) < frame_lengths.expand_dims(1)

        hidden = self.feature_proj(self.feature_norm(features))
        last, states = self.encoder(hidden, frame_mask)
        log_probs, score, greedy = self.ctc_head(last, frame_mask, frame_lengths, targets, target_lengths)
        embedding = self.speaker_head(self.mixer(states), frame_mask)
        return log_probs, score, greedy, embedding


def make_inputs():
    rng = np.random.RandomState(7)
    lengths = np.array([1730, 1313, 897], dtype=np.int64)
    time = np.arange(1730) / 1600.0
    rows = []
    for i, n in enumerate(lengths):
        tone = 0.05 * np.sin(2 * np.pi * (23 + 9 * i) * time ** 1.2) + 0.03 * np.sin(2 * np.pi * (61 - 7 * i) * time)
        row = tone * (0.55 + 0.45 * np.cos(31 * time + i)) + 0.012 * rng.randn(1730)
        row[n:] = 0.0
        rows.append(row)
    wav = np.stack(rows).astype(np.float32)
    targets = np.array([[3, 3, 7, 1, 12, 5, 5], [9, 2, 2, 4, 8, 0, 0], [6, 11, 6, 6, 0, 0, 0]], dtype=np.int64)
    target_lengths = np.array([7, 5, 4], dtype=np.int64)
    return wav, lengths, targets, target_lengths


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = WavLMSpeech()
    net.set_train(False)
    return net, tuple(Tensor(a) for a in make_inputs())


if __name__ == "__main__":
    model, args = build()
    for out in model(*args):
        print(out.shape, out.asnumpy().reshape(-1)[:6])
