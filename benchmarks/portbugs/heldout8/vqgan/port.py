"""MindSpore version of the VQ tokenizer with its masked token transformer (tokenise, reconstruct, repaint)."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

NUM_CLASSES = 5
CODEBOOK_SIZE = 32
MASK_TOKEN_ID = CODEBOOK_SIZE
NUM_ITERS = 3
IMAGE_SIZE = (32, 48)
GRID_H, GRID_W = IMAGE_SIZE[0] // 4, IMAGE_SIZE[1] // 4


def l2_normalize(x, axis):
    norm = ops.sqrt(ops.square(x).sum(axis=axis, keepdims=True))
    return x / ops.clamp(norm, min=1e-12)


def conv3x3(cin, cout):
    return nn.Conv2d(cin, cout, 3, pad_mode="pad", padding=1, has_bias=True)


def conv1x1(cin, cout):
    return nn.Conv2d(cin, cout, 1, pad_mode="valid", has_bias=True)


class ResnetBlock2D(nn.Cell):
    def __init__(self, in_channels, out_channels, groups=4):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, in_channels, eps=1e-6)
        self.conv1 = conv3x3(in_channels, out_channels)
        self.norm2 = nn.GroupNorm(groups, out_channels, eps=1e-6)
        self.conv2 = conv3x3(out_channels, out_channels)
        self.use_shortcut = in_channels != out_channels
        if self.use_shortcut:
            self.conv_shortcut = conv1x1(in_channels, out_channels)

    def construct(self, x):
        residual = x
        h = self.norm1(x)
        h = h * ops.sigmoid(h)
        h = self.norm2(self.conv1(h))
        h = h * ops.sigmoid(h)
        h = self.conv2(h)
        if self.use_shortcut:
            residual = self.conv_shortcut(residual)
        return residual + h


class SpatialAttention(nn.Cell):
    def __init__(self, channels, groups=4):
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, channels, eps=1e-6)
        self.to_q = conv1x1(channels, channels)
        self.to_k = conv1x1(channels, channels)
        self.to_v = conv1x1(channels, channels)
        self.to_out = conv1x1(channels, channels)
        self.scale = 1.0 / math.sqrt(channels)

    def construct(self, x):
        n, c, h, w = x.shape
        y = self.group_norm(x)
        query = self.to_q(y).reshape(n, c, h * w).swapaxes(1, 2)
        key = self.to_k(y).reshape(n, c, h * w)
        value = self.to_v(y).reshape(n, c, h * w).swapaxes(1, 2)
        attn = ops.softmax(ops.bmm(query, key) * self.scale, axis=-1)
        out = ops.bmm(attn, value)
        out = out.swapaxes(1, 2).reshape(n, c, h, w)
        return x + self.to_out(out)


class DownStage(nn.Cell):
    """A residual block and, but for the last stage, a strided convolution padded at the right and the bottom."""

    def __init__(self, cin, cout, add_down):
        super().__init__()
        self.resnet = ResnetBlock2D(cin, cout)
        self.add_down = add_down
        if add_down:
            self.down_conv = nn.Conv2d(cout, cout, 3, stride=2, pad_mode="valid", has_bias=True)

    def construct(self, x):
        x = self.resnet(x)
        if self.add_down:
            x = self.down_conv(ops.pad(x, (0, 1, 0, 1)))
        return x


class UpStage(nn.Cell):
    def __init__(self, cin, cout, add_up):
        super().__init__()
        self.resnet = ResnetBlock2D(cin, cout)
        self.add_up = add_up
        if add_up:
            self.up_conv = conv3x3(cout, cout)

    def construct(self, x):
        x = self.resnet(x)
        if self.add_up:
            n, c, h, w = x.shape
            x = x.reshape(n, c, h, 1, w, 1).broadcast_to((n, c, h, 2, w, 2)).reshape(n, c, 2 * h, 2 * w)
            x = self.up_conv(x)
        return x


class MidBlock(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.res1 = ResnetBlock2D(channels, channels)
        self.attn = SpatialAttention(channels)
        self.res2 = ResnetBlock2D(channels, channels)

    def construct(self, x):
        return self.res2(self.attn(self.res1(x)))


class VQEncoder(nn.Cell):
    def __init__(self, ch, ch_mult, z_channels):
        super().__init__()
        self.conv_in = conv3x3(3, ch)
        chans = [ch] + [ch * m for m in ch_mult]
        last = len(ch_mult) - 1
        self.stages = nn.CellList([DownStage(chans[i], chans[i + 1], i != last) for i in range(last + 1)])
        self.mid = MidBlock(chans[-1])
        self.norm_out = nn.GroupNorm(4, chans[-1], eps=1e-6)
        self.conv_out = conv3x3(chans[-1], z_channels)

    def construct(self, x):
        x = self.conv_in(x)
        for stage in self.stages:
            x = stage(x)
        x = self.norm_out(self.mid(x))
        return self.conv_out(ops.silu(x))


class VQDecoder(nn.Cell):
    def __init__(self, ch, ch_mult, z_channels):
        super().__init__()
        chans = [ch * m for m in ch_mult][::-1]
        chans = [chans[0]] + chans
        last = len(ch_mult) - 1
        self.conv_in = conv3x3(z_channels, chans[0])
        self.mid = MidBlock(chans[0])
        self.stages = nn.CellList([UpStage(chans[i], chans[i + 1], i != last) for i in range(last + 1)])
        self.norm_out = nn.GroupNorm(4, chans[-1], eps=1e-6)
        self.conv_out = conv3x3(chans[-1], 3)

    def construct(self, z):
        x = self.mid(self.conv_in(z))
        for stage in self.stages:
            x = stage(x)
        return self.conv_out(ops.silu(self.norm_out(x)))


class CosineCodebook(nn.Cell):
    """Nearest neighbour among unit vectors. Inference only needs the values, gradients follow straight through."""

    def __init__(self, num_codes, code_dim, commitment=0.25):
        super().__init__()
        self.num_codes = num_codes
        self.commitment = commitment
        self.proj = conv1x1(code_dim, code_dim)
        self.codebook = nn.Embedding(num_codes, code_dim)

    def decode_tokens(self, ids, h, w):
        vectors = l2_normalize(self.codebook(ids), -1)
        return vectors.reshape(ids.shape[0], h, w, -1).transpose(0, 3, 1, 2)

    def construct(self, z):
        z = l2_normalize(self.proj(z), 1)
        n, c, h, w = z.shape
        flat = z.transpose(0, 2, 3, 1).reshape(n * h * w, c)
        table = l2_normalize(self.codebook.embedding_table, -1)
        dist = (
            ops.square(flat).sum(axis=1, keepdims=True)
            + ops.square(table).sum(axis=1)
            - 2.0 * ops.matmul(flat, table.T)
        )
        ids = dist.argmin(axis=1).astype(ms.int64)
        one_hot = (ids.expand_dims(1) == ops.arange(self.num_codes)).astype(z.dtype)
        usage = one_hot.mean(axis=0)
        perplexity = ops.exp(-(usage * ops.log(usage + 1e-10)).sum())
        ids = ids.reshape(n, h * w)
        quant = self.decode_tokens(ids, h, w)
        commit = ops.square(ops.stop_gradient(quant) - z).mean()
        codebook_loss = ops.square(quant - ops.stop_gradient(z)).mean()
        loss = self.commitment * commit + codebook_loss
        quant = z + ops.stop_gradient(quant - z)
        return quant, ids, loss, perplexity


class PlainLayerNorm(nn.Cell):
    """LayerNorm over the last axis without weight and bias."""

    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def construct(self, x):
        centred = x - x.mean(axis=-1, keep_dims=True)
        var = ops.square(centred).mean(axis=-1, keep_dims=True)
        return centred * ops.rsqrt(var + self.eps)


class SelfAttention(nn.Cell):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Dense(dim, 3 * dim)
        self.out = nn.Dense(dim, dim)

    def construct(self, x):
        b, n, d = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = ops.softmax(ops.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(self.head_dim), axis=-1)
        return self.out(ops.matmul(attn, v).transpose(0, 2, 1, 3).reshape(b, n, d))


class AdaLNBlock(nn.Cell):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.dim = dim
        self.norm_attn = PlainLayerNorm()
        self.attn = SelfAttention(dim, num_heads)
        self.norm_mlp = PlainLayerNorm()
        self.fc1 = nn.Dense(dim, 4 * dim)
        self.gelu = nn.GELU(approximate=True)
        self.fc2 = nn.Dense(4 * dim, dim)
        self.ada_proj = nn.Dense(dim, 6 * dim)

    def construct(self, x, c):
        ada = self.ada_proj(ops.silu(c)).reshape(-1, 6, 1, self.dim)
        shift_a, scale_a, gate_a = ada[:, 0], ada[:, 1], ada[:, 2]
        shift_m, scale_m, gate_m = ada[:, 3], ada[:, 4], ada[:, 5]
        y = self.norm_attn(x) * (1 + scale_a) + shift_a
        x = x + gate_a * self.attn(y)
        y = self.norm_mlp(x) * (1 + scale_m) + shift_m
        return x + gate_m * self.fc2(self.gelu(self.fc1(y)))


class TokenTransformer(nn.Cell):
    def __init__(self, dim, num_heads, depth):
        super().__init__()
        self.dim = dim
        self.tok_emb = nn.Embedding(CODEBOOK_SIZE + 1, dim)
        self.cls_emb = nn.Embedding(NUM_CLASSES + 1, dim)
        self.pos_h = Parameter(ops.zeros((GRID_H, dim), ms.float32))
        self.pos_w = Parameter(ops.zeros((GRID_W, dim), ms.float32))
        self.blocks = nn.CellList([AdaLNBlock(dim, num_heads) for _ in range(depth)])
        self.norm_final = PlainLayerNorm()
        self.ada_final = nn.Dense(dim, 2 * dim)
        self.to_logits = nn.Dense(dim, CODEBOOK_SIZE)

    def construct(self, ids, labels):
        pos = ops.repeat_interleave(self.pos_h, GRID_W, 0) + ops.tile(self.pos_w, (GRID_H, 1))
        x = self.tok_emb(ids) + pos.expand_dims(0)
        c = self.cls_emb(labels)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.ada_final(ops.silu(c)).expand_dims(1).chunk(2, axis=-1)
        x = self.norm_final(x) * (1 + scale) + shift
        return self.to_logits(x)


class MaskGenerator(nn.Cell):
    def __init__(self, ch=16, ch_mult=(1, 2, 2), z_channels=16, dim=32, num_heads=4, depth=2):
        super().__init__()
        self.pixel_mean = Tensor(np.array([0.48, 0.45, 0.40], np.float32).reshape(1, 3, 1, 1))
        self.pixel_std = Tensor(np.array([0.26, 0.24, 0.29], np.float32).reshape(1, 3, 1, 1))
        self.encoder = VQEncoder(ch, ch_mult, z_channels)
        self.quantize = CosineCodebook(CODEBOOK_SIZE, z_channels)
        self.decoder = VQDecoder(ch, ch_mult, z_channels)
        self.transformer = TokenTransformer(dim, num_heads, depth)
        self.cfg_scale = 3.0
        self.gumbel_temp = 0.8

    def cfg_logits(self, ids, labels, scale):
        null = ops.full_like(labels, NUM_CLASSES)
        logits = self.transformer(ops.cat((ids, ids), axis=0), ops.cat((labels, null), axis=0))
        cond, uncond = logits.chunk(2, axis=0)
        return (1 + scale) * cond - scale * uncond

    def generate(self, ids, keep, labels, uniform):
        num_unknown = keep.logical_not().astype(ms.float32).sum(axis=1)
        mask_ids = ops.full_like(ids, MASK_TOKEN_ID)
        ids = ops.where(keep, ids, mask_ids)
        history = []
        for i in range(NUM_ITERS):
            progress = (i + 1) / NUM_ITERS
            logits = self.cfg_logits(ids, labels, self.cfg_scale * progress)
            logp = ops.log_softmax(logits, axis=-1)
            gumbel = -ops.log(-ops.log(uniform[i]))
            sampled = (logp + self.gumbel_temp * gumbel).argmax(axis=-1).astype(ids.dtype)
            is_mask = ids == MASK_TOKEN_ID
            sampled = ops.where(is_mask, sampled, ids)
            conf = ops.gather_elements(logp, 2, sampled.expand_dims(-1)).squeeze(-1)
            conf = ops.where(is_mask, conf, ops.full_like(conf, float("inf")))
            num_mask = ops.floor(num_unknown * math.cos(0.5 * math.pi * progress) + 1e-4).astype(ms.int64)
            ascending, _ = ops.sort(conf, axis=1)
            cutoff = ops.gather_elements(ascending, 1, num_mask.expand_dims(1))
            ids = ops.where(conf < cutoff, mask_ids, sampled)
            history.append(logp)
        return ids, ops.stack(history, axis=1)

    def decode(self, z):
        image = self.decoder(z) * self.pixel_std + self.pixel_mean
        return ops.clamp(image, 0.0, 1.0)

    def construct(self, image, labels, keep, uniform):
        z = self.encoder((image - self.pixel_mean) / self.pixel_std)
        quant, ids, loss, perplexity = self.quantize(z)
        recon = self.decode(quant)
        new_ids, logp = self.generate(ids, keep, labels, uniform)
        new_quant = self.quantize.decode_tokens(new_ids, z.shape[2], z.shape[3])
        return recon, ids, loss, perplexity, logp, new_ids, self.decode(new_quant)


def sample_inputs():
    """The reference's pictures, labels, kept places and noise."""
    high, wide = IMAGE_SIZE
    rng = np.random.RandomState(11)
    y, x = np.mgrid[0:high, 0:wide]
    images = np.full((2, 3, high, wide), 0.45)
    for picture in images:
        for _ in range(9):
            spot = np.exp(-((x - rng.uniform(0, wide)) ** 2 + (y - rng.uniform(0, high)) ** 2) / rng.uniform(10, 120))
            picture += rng.uniform(-0.6, 0.6, (3, 1, 1)) * spot
    images = np.clip(images + 0.05 * rng.randn(*images.shape), 0, 1).astype(np.float32)
    places = GRID_H * GRID_W
    kept = rng.rand(2, places) < np.array([[0.25], [0.45]])
    noise = rng.uniform(1e-3, 1 - 1e-3, (NUM_ITERS, 2, places, CODEBOOK_SIZE)).astype(np.float32)
    return Tensor(images), Tensor(np.array([3, 1], dtype=np.int64)), Tensor(kept), Tensor(noise)


def build():
    net = MaskGenerator()
    net.set_train(False)
    return net, sample_inputs()
