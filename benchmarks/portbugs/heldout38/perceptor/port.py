"""Perceptor in MindSpore: a small Perceiver IO over an image and a partly masked caption."""
import math

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

PAD_ID = 0
MASK_ID = 2


def fourier_freqs(resolution, num_bands):
    """[axes, bands]: from 1 to the Nyquist rate of every axis."""
    return np.stack([np.linspace(1.0, res / 2, num_bands) for res in resolution]).astype(np.float32)


def grid_positions(height, width):
    """[height * width, 2] coordinates (row, column) in [-1, 1]."""
    rows, cols = np.meshgrid(np.linspace(-1.0, 1.0, height), np.linspace(-1.0, 1.0, width), indexing="ij")
    return np.stack([rows.reshape(-1), cols.reshape(-1)], axis=1).astype(np.float32)


class FourierFeatures(nn.Cell):
    def __init__(self, resolution, num_bands):
        super().__init__()
        self.num_axes = len(resolution)
        self.num_bands = num_bands
        self.out_channels = self.num_axes * (2 * num_bands + 1)
        self.freqs = Tensor(fourier_freqs(resolution, num_bands) * math.pi)

    def construct(self, pos):
        phase = ops.expand_dims(pos, -1) * self.freqs
        phase = phase.reshape(pos.shape[:-1] + (self.num_axes * self.num_bands,))
        return ops.concat((pos, ops.sin(phase), ops.cos(phase)), axis=-1)


def layer_norm(dim):
    return nn.LayerNorm((dim,), epsilon=1e-5)


class GatedMlp(nn.Cell):
    """Pre-norm feed forward with a GELU gate."""

    def __init__(self, dim, widening=2):
        super().__init__()
        self.norm = layer_norm(dim)
        self.fc1 = nn.Dense(dim, dim * widening * 2)
        self.fc2 = nn.Dense(dim * widening, dim)
        self.gelu = nn.GELU(approximate=False)

    def construct(self, x):
        value, gate = ops.split(self.fc1(self.norm(x)), self.fc1.out_channels // 2, axis=-1)
        return self.fc2(value * self.gelu(gate))


class MultiHeadAttention(nn.Cell):
    def __init__(self, q_dim, kv_dim, num_heads, qk_channels, v_channels, out_dim):
        super().__init__()
        self.num_heads = num_heads
        self.qk_head = qk_channels // num_heads
        self.v_head = v_channels // num_heads
        self.scale = 1.0 / math.sqrt(self.qk_head)
        self.q_proj = nn.Dense(q_dim, qk_channels)
        self.k_proj = nn.Dense(kv_dim, qk_channels)
        self.v_proj = nn.Dense(kv_dim, v_channels)
        self.out_proj = nn.Dense(v_channels, out_dim)

    def split_heads(self, x, head_dim):
        batch, length, _ = x.shape
        return x.reshape(batch, length, self.num_heads, head_dim).transpose(0, 2, 1, 3)

    def construct(self, query, context, mask=None):
        batch, length, _ = query.shape
        q = self.split_heads(self.q_proj(query), self.qk_head)
        k = self.split_heads(self.k_proj(context), self.qk_head)
        v = self.split_heads(self.v_proj(context), self.v_head)
        scores = ops.matmul(q * self.scale, k.transpose(0, 1, 3, 2))
        if mask is not None:
            blocked = ops.logical_not(mask).reshape(batch, 1, 1, -1)
            scores = ops.masked_fill(scores, blocked, -1e9)
        probs = ops.softmax(scores, axis=-1)
        out = ops.matmul(probs, v).transpose(0, 2, 1, 3)
        return self.out_proj(out.reshape(batch, length, -1))


class CrossAttention(nn.Cell):
    def __init__(self, q_dim, kv_dim, num_heads, qk_channels, v_channels, use_query_residual=True):
        super().__init__()
        self.use_query_residual = use_query_residual
        self.q_norm = layer_norm(q_dim)
        self.kv_norm = layer_norm(kv_dim)
        self.attention = MultiHeadAttention(q_dim, kv_dim, num_heads, qk_channels, v_channels, q_dim)
        self.mlp = GatedMlp(q_dim)

    def construct(self, query, context, mask=None):
        out = self.attention(self.q_norm(query), self.kv_norm(context), mask)
        if self.use_query_residual:
            out = query + out
        return out + self.mlp(out)


class SelfAttention(nn.Cell):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.norm = layer_norm(dim)
        self.attention = MultiHeadAttention(dim, dim, num_heads, dim, dim, dim)
        self.mlp = GatedMlp(dim)

    def construct(self, x):
        normed = self.norm(x)
        x = x + self.attention(normed, normed)
        return x + self.mlp(x)


class ImageEmbedding(nn.Cell):
    def __init__(self, image_size, in_channels=3, hidden=12, channels=16, num_bands=4):
        super().__init__()
        height, width = image_size[0] // 4, image_size[1] // 4
        self.grid_size = (height, width)
        self.stem = nn.SequentialCell(
            nn.Conv2d(in_channels, hidden, 3, stride=2, pad_mode="pad", padding=1, has_bias=False),
            nn.BatchNorm2d(hidden, eps=1e-3, momentum=0.99),
            nn.LeakyReLU(alpha=0.01),
            nn.Conv2d(hidden, channels, 3, stride=2, pad_mode="pad", padding=1, has_bias=True),
        )
        self.fourier = FourierFeatures((height, width), num_bands)
        self.pos_channels = self.fourier.out_channels
        self.out_channels = channels + self.pos_channels
        self.pos = self.fourier(Tensor(grid_positions(height, width)))

    def construct(self, image):
        x = self.stem(image)
        batch, channels, height, width = x.shape
        feats = x.reshape(batch, channels, height * width).transpose(0, 2, 1)
        pos = ops.broadcast_to(ops.expand_dims(self.pos, 0), (batch,) + self.pos.shape)
        return feats, pos


class TextEmbedding(nn.Cell):
    def __init__(self, vocab_size, dim, max_len, num_bands=6):
        super().__init__()
        self.max_len = max_len
        self.embedding = nn.Embedding(vocab_size, dim, padding_idx=PAD_ID)
        self.embed_scale = dim ** 0.5
        self.fourier = FourierFeatures((max_len,), num_bands)
        self.pos_channels = self.fourier.out_channels
        self.out_channels = dim + self.pos_channels

    def construct(self, tokens, mask):
        feats = self.embedding(tokens) * self.embed_scale
        index = ops.cumsum(mask.astype(ms.int32), 1) - 1
        index = ops.maximum(index, 0).astype(ms.float32)
        coords = index * (2.0 / (self.max_len - 1)) - 1.0
        return feats, self.fourier(ops.expand_dims(coords, -1))


class LatentEncoder(nn.Cell):
    def __init__(self, num_latents, dim, input_dim, depth, num_reads, num_heads, cross_heads, qk_channels):
        super().__init__()
        self.num_reads = num_reads
        self.latents = Parameter(Tensor(np.random.randn(num_latents, dim).astype(np.float32)), name="latents")
        self.first_cross = CrossAttention(dim, input_dim, cross_heads, qk_channels, dim)
        self.later_cross = CrossAttention(dim, input_dim, cross_heads, qk_channels, dim)
        self.blocks = nn.CellList([SelfAttention(dim, num_heads) for _ in range(depth)])
        self.read_embedding = nn.Embedding(num_reads, dim)
        self.out_norm = layer_norm(dim)

    def construct(self, inputs, mask):
        batch = inputs.shape[0]
        x = ops.tile(ops.expand_dims(self.latents, 0), (batch, 1, 1))
        total = ops.zeros_like(x)
        for i in range(self.num_reads):
            cross = self.first_cross if i == 0 else self.later_cross
            step = self.read_embedding(Tensor([i], ms.int32))
            x = cross(x + step, inputs, mask)
            for block in self.blocks:
                x = block(x)
            total = total + x / (self.num_reads - i)
        return self.out_norm(total)


class FlowHead(nn.Cell):
    """Dense queries and convex upsampling."""

    def __init__(self, feat_dim, pos_dim, query_dim, latent_dim, num_heads, qk_channels, factor=4):
        super().__init__()
        self.factor = factor
        self.query_proj = nn.Dense(feat_dim + pos_dim, query_dim)
        self.cross = CrossAttention(query_dim, latent_dim, num_heads, qk_channels, query_dim,
                                    use_query_residual=False)
        self.norm = layer_norm(query_dim)
        self.flow_proj = nn.Dense(query_dim, 2)
        self.weight_proj = nn.Dense(query_dim, 9 * factor * factor)

    def neighbours(self, x):
        """[b, c, h, w] -> [b, c, 9, h, w], the 3 x 3 neighbourhood of every cell in row-major order."""
        height, width = x.shape[2:]
        padded = ops.pad(x, (1, 1, 1, 1))
        shifted = []
        for dy in range(3):
            for dx in range(3):
                shifted.append(padded[:, :, dy:dy + height, dx:dx + width])
        return ops.stack(shifted, axis=2)

    def upsample(self, flow, weights):
        batch, _, height, width = flow.shape
        f = self.factor
        weights = weights.reshape(batch, 9, f, f, height, width)
        weights = ops.expand_dims(ops.softmax(weights, axis=1), 1)
        patches = self.neighbours(flow * f).reshape(batch, 2, 9, 1, 1, height, width)
        fine = ops.reduce_sum(weights * patches, 2)
        fine = ops.transpose(fine, (0, 1, 4, 2, 5, 3))
        return fine.reshape(batch, 2, height * f, width * f)

    def construct(self, feats, pos, latents, grid_size):
        batch = feats.shape[0]
        height, width = grid_size
        query = self.query_proj(ops.concat((feats, pos), axis=2))
        x = self.norm(self.cross(query, latents))
        flow = ops.swapaxes(self.flow_proj(x), 1, 2).reshape(batch, 2, height, width)
        weights = 0.25 * ops.swapaxes(self.weight_proj(x), 1, 2)
        return self.upsample(flow, weights.reshape(batch, -1, height, width))


class WordHead(nn.Cell):
    """Queries at the masked places, output embedding tied to the input embedding."""

    def __init__(self, vocab_size, embed_dim, pos_dim, query_dim, latent_dim, max_len, num_heads, qk_channels,
                 smoothing=0.1):
        super().__init__()
        self.smoothing = smoothing
        self.embed_dim = embed_dim
        self.pos_table = Parameter(Tensor(np.random.randn(max_len, query_dim).astype(np.float32)), name="pos_table")
        self.pos_proj = nn.Dense(pos_dim, query_dim, has_bias=False)
        self.cross = CrossAttention(query_dim, latent_dim, num_heads, qk_channels, query_dim)
        self.norm = layer_norm(query_dim)
        self.embed_proj = nn.Dense(query_dim, embed_dim)
        self.vocab_bias = Parameter(Tensor(np.random.randn(vocab_size).astype(np.float32)), name="vocab_bias")
        never = np.zeros(vocab_size, np.float32)
        never[PAD_ID] = -1e4
        self.never = Tensor(never)
        self.gelu = nn.GELU(approximate=False)

    def construct(self, places, pos, latents, embedding_table):
        index = ops.maximum(places, 0)
        picked = ops.broadcast_to(ops.expand_dims(index, -1), index.shape + (pos.shape[-1],))
        at = ops.gather_elements(pos, 1, picked)
        query = ops.gather(self.pos_table, index, 0) + self.pos_proj(at)
        x = self.gelu(self.norm(self.cross(query, latents)))
        x = self.embed_proj(x) / math.sqrt(self.embed_dim)
        logits = ops.matmul(x, embedding_table.T) + self.vocab_bias + self.never
        return ops.log_softmax(logits, axis=-1)

    def loss(self, logp, targets, valid):
        nll = -ops.gather_elements(logp, 2, ops.expand_dims(targets, -1)).squeeze(-1)
        smooth = -ops.mean(logp[:, :, PAD_ID + 1:], -1)
        each = (1.0 - self.smoothing) * nll + self.smoothing * smooth
        weight = valid.astype(ms.float32)
        return (each * weight).sum() / ops.maximum(weight.sum(), 1.0)


class Perceptor(nn.Cell):
    def __init__(self, image_size=(24, 40), vocab_size=29, text_dim=20, max_len=13, num_latents=9, latent_dim=24,
                 depth=2, num_reads=3, min_padding=3):
        super().__init__()
        self.image_embedding = ImageEmbedding(image_size)
        self.text_embedding = TextEmbedding(vocab_size, text_dim, max_len)
        image_dim, text_width = self.image_embedding.out_channels, self.text_embedding.out_channels
        width = max(image_dim, text_width) + min_padding
        self.image_pad = Parameter(
            Tensor(np.random.randn(1, 1, width - image_dim).astype(np.float32)), name="image_pad")
        self.text_pad = Parameter(
            Tensor(np.random.randn(1, 1, width - text_width).astype(np.float32)), name="text_pad")
        self.encoder = LatentEncoder(num_latents, latent_dim, width, depth, num_reads,
                                     num_heads=3, cross_heads=2, qk_channels=16)
        self.flow_head = FlowHead(16, self.image_embedding.pos_channels, 32, latent_dim, num_heads=4, qk_channels=24)
        self.word_head = WordHead(vocab_size, text_dim, self.text_embedding.pos_channels, 30, latent_dim, max_len,
                                  num_heads=5, qk_channels=40)

    @staticmethod
    def hide_words(tokens, places):
        columns = ops.arange(tokens.shape[1]).astype(places.dtype)
        hit = (ops.expand_dims(places, 2) == columns.reshape(1, 1, -1)).any(axis=1)
        return ops.where(hit, ops.full_like(tokens, MASK_ID), tokens)

    @staticmethod
    def pad_channels(feats, pos, padding):
        batch, length, _ = feats.shape
        padding = ops.broadcast_to(padding, (batch, length, padding.shape[2]))
        return ops.concat((feats, pos, padding), axis=2)

    def construct(self, image, tokens, places):
        text_mask = ops.not_equal(tokens, PAD_ID)
        valid = ops.greater_equal(places, 0)
        targets = ops.gather_elements(tokens, 1, ops.maximum(places, 0))
        hidden = self.hide_words(tokens, places)

        image_feats, image_pos = self.image_embedding(image)
        text_feats, text_pos = self.text_embedding(hidden, text_mask)
        inputs = ops.concat((self.pad_channels(image_feats, image_pos, self.image_pad),
                             self.pad_channels(text_feats, text_pos, self.text_pad)), axis=1)
        image_mask = ops.ones(image_feats.shape[:2], ms.bool_)
        mask = ops.concat((image_mask, text_mask), axis=1)

        latents = self.encoder(inputs, mask)
        flow = self.flow_head(image_feats, image_pos, latents, self.image_embedding.grid_size)
        logp = self.word_head(places, text_pos, latents, self.text_embedding.embedding.embedding_table)
        loss = self.word_head.loss(logp, targets, valid)
        return flow, logp[:, :, PAD_ID + 1:], loss


def build():
    np.random.seed(11)
    net = Perceptor()
    net.set_train(False)
    i = np.arange(2 * 3 * 24 * 40, dtype=np.float64)
    image = (np.sin(i * 0.37) + np.cos(i * i * 0.0113) * 0.8).astype(np.float32).reshape(2, 3, 24, 40)
    tokens = np.array([[1, 7, 14, 5, 22, 9, 28, 3, 11, 17, 4],
                       [0, 0, 1, 19, 6, 25, 13, 8, 4, 0, 0]], np.int32)
    places = np.array([[2, 5, 8, -1], [4, 7, -1, -1]], np.int32)
    return net, (Tensor(image), Tensor(tokens), Tensor(places))
