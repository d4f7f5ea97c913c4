"""Text and class conditioned latent diffusion UNet with one guided DDIM step (MindSpore)."""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

BOS, EOS, PAD = 29, 30, 0
NEG_INF = -1e9


def sinusoidal_embedding(timesteps, dim, max_period=10000):
    half = dim // 2
    freqs = np.exp(-math.log(max_period) * np.arange(half, dtype=np.float32) / half)
    args = timesteps.astype(ms.float32).expand_dims(1) * Tensor(freqs.astype(np.float32)).expand_dims(0)
    return ops.concat((ops.cos(args), ops.sin(args)), axis=-1)


def conv3x3(in_channels, out_channels, stride=1):
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, pad_mode='pad', padding=1, has_bias=True)


def conv1x1(in_channels, out_channels):
    return nn.Conv2d(in_channels, out_channels, 1, has_bias=True)


def layer_norm(dim):
    return nn.LayerNorm((dim,), epsilon=1e-5)


class TextLayer(nn.Cell):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.norm1 = layer_norm(dim)
        self.q_proj = nn.Dense(dim, dim)
        self.k_proj = nn.Dense(dim, dim)
        self.v_proj = nn.Dense(dim, dim)
        self.out_proj = nn.Dense(dim, dim)
        self.norm2 = layer_norm(dim)
        self.mlp_in = nn.Dense(dim, 4 * dim)
        self.mlp_out = nn.Dense(4 * dim, dim)

    def to_heads(self, x):
        b, n, _ = x.shape
        return x.reshape(b, n, self.num_heads, self.head_dim).swapaxes(1, 2)

    def construct(self, x, bias):
        b, n, d = x.shape
        y = self.norm1(x)
        q = self.to_heads(self.q_proj(y))
        k = self.to_heads(self.k_proj(y))
        v = self.to_heads(self.v_proj(y))
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(self.head_dim)
        probs = ops.softmax(scores + bias, axis=-1)
        y = ops.matmul(probs, v).swapaxes(1, 2).reshape(b, n, d)
        x = x + self.out_proj(y)
        y = self.mlp_in(self.norm2(x))
        y = y * ops.sigmoid(1.702 * y)
        return x + self.mlp_out(y)


class TextModel(nn.Cell):
    def __init__(self, vocab_size, dim, num_heads, num_layers, max_len):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.position_embedding = Parameter(Tensor(np.zeros((max_len, dim), np.float32)), name='position_embedding')
        self.layers = nn.CellList([TextLayer(dim, num_heads) for _ in range(num_layers)])
        self.final_norm = layer_norm(dim)
        self.projection = nn.Dense(dim, dim, has_bias=False)

    def construct(self, tokens, mask):
        b, n = tokens.shape
        x = self.token_embedding(tokens) + self.position_embedding[:n]
        causal = Tensor(np.tril(np.ones((n, n), dtype=np.bool_)))
        keep = ops.logical_and(causal.expand_dims(0), mask.expand_dims(1))
        bias = ((1.0 - keep.astype(x.dtype)) * NEG_INF).expand_dims(1)
        for layer in self.layers:
            x = layer(x, bias)
        x = self.final_norm(x)
        eos = tokens.argmax(axis=-1)
        pooled = x[ops.arange(b), eos]
        return x, self.projection(pooled)


class ResnetBlock(nn.Cell):
    def __init__(self, in_channels, out_channels, emb_dim, groups):
        super().__init__()
        self.in_layers = nn.SequentialCell(
            nn.GroupNorm(groups, in_channels), nn.SiLU(), conv3x3(in_channels, out_channels))
        self.emb_layers = nn.SequentialCell(nn.SiLU(), nn.Dense(emb_dim, 2 * out_channels))
        self.norm2 = nn.GroupNorm(groups, out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        self.shortcut = conv1x1(in_channels, out_channels) if in_channels != out_channels else None

    def construct(self, x, emb):
        h = self.in_layers(x)
        emb_out = self.emb_layers(emb).expand_dims(-1).expand_dims(-1)
        scale, shift = ops.chunk(emb_out, 2, axis=1)
        h = self.norm2(h) * (1 + scale) + shift
        h = self.conv2(ops.silu(h))
        if self.shortcut is not None:
            x = self.shortcut(x)
        return x + h


class AttnBlock(nn.Cell):
    def __init__(self, channels, num_heads, groups):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.GroupNorm(groups, channels)
        self.qkv = conv1x1(channels, 3 * channels)
        self.proj_out = conv1x1(channels, channels)

    def construct(self, x):
        b, c, h, w = x.shape
        head_dim = c // self.num_heads
        qkv = self.qkv(self.norm(x)).reshape(b * self.num_heads, 3 * head_dim, h * w)
        q, k, v = ops.split(qkv, head_dim, axis=1)
        scale = head_dim ** -0.25
        attn = ops.bmm((q * scale).swapaxes(1, 2), k * scale)
        attn = ops.softmax(attn, axis=-1)
        out = ops.bmm(v, attn.swapaxes(1, 2)).reshape(b, c, h, w)
        return x + self.proj_out(out)


class CrossAttention(nn.Cell):
    def __init__(self, query_dim, context_dim, num_heads, head_dim):
        super().__init__()
        inner_dim = num_heads * head_dim
        self.num_heads = num_heads
        self.scale = head_dim ** -0.5
        self.to_q = nn.Dense(query_dim, inner_dim, has_bias=False)
        self.to_k = nn.Dense(context_dim, inner_dim, has_bias=False)
        self.to_v = nn.Dense(context_dim, inner_dim, has_bias=False)
        self.to_out = nn.Dense(inner_dim, query_dim)

    def reshape_heads_to_batch(self, x):
        b, n, d = x.shape
        x = x.reshape(b, n, self.num_heads, d // self.num_heads).transpose(0, 2, 1, 3)
        return x.reshape(b * self.num_heads, n, d // self.num_heads)

    def reshape_batch_to_heads(self, x):
        b, n, d = x.shape
        x = x.reshape(b // self.num_heads, self.num_heads, n, d).transpose(0, 2, 1, 3)
        return x.reshape(b // self.num_heads, n, d * self.num_heads)

    def construct(self, x, context=None, mask=None):
        if context is None:
            context = x
        q = self.reshape_heads_to_batch(self.to_q(x))
        k = self.reshape_heads_to_batch(self.to_k(context))
        v = self.reshape_heads_to_batch(self.to_v(context))
        sim = ops.bmm(q, k.swapaxes(1, 2)) * self.scale
        if mask is not None:
            bias = (1.0 - mask.astype(sim.dtype)) * NEG_INF
            bias = ops.repeat_interleave(bias, self.num_heads, axis=0)
            sim = sim + bias.expand_dims(1)
        attn = ops.softmax(sim, axis=-1)
        out = self.reshape_batch_to_heads(ops.bmm(attn, v))
        return self.to_out(out)


class GEGLU(nn.Cell):
    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.proj = nn.Dense(dim, 2 * hidden_dim)
        self.gelu = nn.GELU(approximate=False)

    def construct(self, x):
        x, gate = ops.chunk(self.proj(x), 2, axis=-1)
        return x * self.gelu(gate)


class TransformerBlock(nn.Cell):
    def __init__(self, dim, context_dim, num_heads):
        super().__init__()
        self.attn1 = CrossAttention(dim, dim, num_heads, dim // num_heads)
        self.attn2 = CrossAttention(dim, context_dim, num_heads, dim // num_heads)
        self.ff = nn.SequentialCell(GEGLU(dim, 3 * dim), nn.Dense(3 * dim, dim))
        self.norm1 = layer_norm(dim)
        self.norm2 = layer_norm(dim)
        self.norm3 = layer_norm(dim)

    def construct(self, x, context, mask):
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), context, mask)
        x = x + self.ff(self.norm3(x))
        return x


class SpatialTransformer(nn.Cell):
    def __init__(self, channels, context_dim, num_heads, groups, depth=1):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)
        self.proj_in = conv1x1(channels, channels)
        self.transformer_blocks = nn.CellList(
            [TransformerBlock(channels, context_dim, num_heads) for _ in range(depth)])
        self.proj_out = conv1x1(channels, channels)

    def construct(self, x, context, mask):
        b, c, h, w = x.shape
        y = self.proj_in(self.norm(x))
        y = y.reshape(b, c, h * w).transpose(0, 2, 1)
        for block in self.transformer_blocks:
            y = block(y, context, mask)
        y = y.transpose(0, 2, 1).reshape(b, c, h, w)
        return x + self.proj_out(y)


class Upsample(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.resize = nn.Upsample(scale_factor=2.0, mode='bilinear', align_corners=False,
                                  recompute_scale_factor=True)
        self.conv = conv3x3(channels, channels)

    def construct(self, x):
        return self.conv(self.resize(x))


class UNetStage(nn.Cell):
    """Residual block, then attention (self, or transformer with text), then upsampling."""

    def __init__(self, resnet, attn=None, transformer=None, upsample=None):
        super().__init__()
        self.resnet = resnet
        self.attn = attn
        self.transformer = transformer
        self.upsample = upsample

    def construct(self, x, emb, context, mask):
        x = self.resnet(x, emb)
        if self.attn is not None:
            x = self.attn(x)
        if self.transformer is not None:
            x = self.transformer(x, context, mask)
        if self.upsample is not None:
            x = self.upsample(x)
        return x


class UNetModel(nn.Cell):
    def __init__(self, in_channels=4, model_channels=24, channel_mult=(1, 2, 3), num_classes=7,
                 context_dim=20, num_heads=3, groups=6):
        super().__init__()
        self.model_channels = model_channels
        emb_dim = 4 * model_channels
        self.time_embed = nn.SequentialCell(
            nn.Dense(model_channels, emb_dim), nn.SiLU(), nn.Dense(emb_dim, emb_dim))
        self.class_embed = nn.Embedding(num_classes + 1, emb_dim)
        self.text_embed = nn.Dense(context_dim, emb_dim)

        def stage(level, in_ch, out_ch, upsample=False):
            attn = AttnBlock(out_ch, num_heads, groups) if level == 2 else None
            transformer = SpatialTransformer(out_ch, context_dim, num_heads, groups) if level == 1 else None
            return UNetStage(ResnetBlock(in_ch, out_ch, emb_dim, groups), attn, transformer,
                             Upsample(out_ch) if upsample else None)

        widths = [mult * model_channels for mult in channel_mult]
        last = len(widths) - 1
        ch = model_channels
        self.conv_in = conv3x3(in_channels, ch)
        skip_channels = [ch]
        down_blocks, downsamplers = [], []
        for level, width in enumerate(widths):
            down_blocks.append(stage(level, ch, width))
            ch = width
            skip_channels.append(ch)
            if level < last:
                downsamplers.append(nn.Conv2d(ch, ch, 3, stride=2, pad_mode='pad', padding=1, has_bias=True))
                skip_channels.append(ch)
        self.down_blocks = nn.CellList(down_blocks)
        self.downsamplers = nn.CellList(downsamplers)

        self.mid_block1 = ResnetBlock(ch, ch, emb_dim, groups)
        self.mid_transformer = SpatialTransformer(ch, context_dim, num_heads, groups)
        self.mid_block2 = ResnetBlock(ch, ch, emb_dim, groups)

        up_blocks = []
        for level in range(last, -1, -1):
            for i in range(2):
                up_blocks.append(stage(level, ch + skip_channels.pop(), widths[level], level > 0 and i == 1))
                ch = widths[level]
        self.up_blocks = nn.CellList(up_blocks)
        self.head = nn.SequentialCell(nn.GroupNorm(groups, ch), nn.SiLU(), conv3x3(ch, in_channels))

    def construct(self, x, timesteps, labels, context, pooled, mask):
        emb = self.time_embed(sinusoidal_embedding(timesteps, self.model_channels))
        emb = emb + self.class_embed(labels) + self.text_embed(pooled)
        h = self.conv_in(x)
        skips = [h]
        for i, block in enumerate(self.down_blocks):
            h = block(h, emb, context, mask)
            skips.append(h)
            if i < len(self.downsamplers):
                h = self.downsamplers[i](h)
                skips.append(h)
        h = self.mid_block1(h, emb)
        h = self.mid_transformer(h, context, mask)
        h = self.mid_block2(h, emb)
        for block in self.up_blocks:
            h = ops.concat((h, skips.pop()), axis=1)
            h = block(h, emb, context, mask)
        return self.head(h)


def sample_quantile(x, q):
    """Quantile of every row with linear interpolation (ops.quantile has no CPU kernel)."""
    ordered, _ = ops.sort(x, axis=1)
    position = q * (x.shape[1] - 1)
    low = int(math.floor(position))
    high = min(low + 1, x.shape[1] - 1)
    return ordered[:, low] + (ordered[:, high] - ordered[:, low]) * (position - low)


class GuidedSampler(nn.Cell):
    def __init__(self, num_train_steps=100, num_steps=7, beta_start=0.0085, beta_end=0.12,
                 guidance_rescale=0.7, eta=0.6, quantile=0.95, num_classes=7, text_dim=20):
        super().__init__()
        self.stride = num_train_steps // num_steps
        self.guidance_rescale = guidance_rescale
        self.eta = eta
        self.quantile = quantile
        self.null_class = num_classes
        self.text_model = TextModel(31, text_dim, num_heads=4, num_layers=2, max_len=11)
        self.unet = UNetModel(num_classes=num_classes, context_dim=text_dim)

        betas = np.linspace(beta_start ** 0.5, beta_end ** 0.5, num_train_steps, dtype=np.float64) ** 2
        self.alphas_cumprod = Tensor(np.cumprod(1.0 - betas).astype(np.float32))
        self.timesteps = Tensor((np.arange(num_steps) * self.stride)[::-1] + 1, ms.int32)

    def null_tokens(self, tokens):
        batch, length = tokens.shape
        row = np.full((batch, length), PAD)
        row[:, :2] = (BOS, EOS)
        return Tensor(row, tokens.dtype)

    def predict_v(self, x, t, tokens, labels, guidance):
        tokens = ops.concat((self.null_tokens(tokens), tokens), axis=0)
        labels = ops.concat((ops.full_like(labels, self.null_class), labels), axis=0)
        mask = tokens != PAD
        context, pooled = self.text_model(tokens, mask)
        out = self.unet(ops.tile(x, (2, 1, 1, 1)), ops.tile(t, (2,)), labels, context, pooled, mask)
        v_uncond, v_cond = ops.chunk(out, 2, axis=0)
        v = v_uncond + guidance * (v_cond - v_uncond)
        std_text = v_cond.std(axis=(1, 2, 3), ddof=1, keepdims=True)
        std_cfg = v.std(axis=(1, 2, 3), ddof=1, keepdims=True)
        v_rescaled = v * (std_text / std_cfg)
        return self.guidance_rescale * v_rescaled + (1.0 - self.guidance_rescale) * v

    def construct(self, x, step, tokens, labels, noise, guidance):
        t = self.timesteps[step]
        v = self.predict_v(x, t, tokens, labels, guidance)

        prev_t = t - self.stride
        alpha_t = self.alphas_cumprod[t].reshape(-1, 1, 1, 1)
        alpha_prev = self.alphas_cumprod[ops.maximum(prev_t, 0)].reshape(-1, 1, 1, 1)

        x0 = ops.sqrt(alpha_t) * x - ops.sqrt(1.0 - alpha_t) * v
        limit = sample_quantile(ops.abs(x0).reshape(x0.shape[0], -1), self.quantile)
        limit = ops.maximum(limit, 1.0).reshape(-1, 1, 1, 1)
        x0 = ops.minimum(ops.maximum(x0, -limit), limit) / limit
        eps = (x - ops.sqrt(alpha_t) * x0) / ops.sqrt(1.0 - alpha_t)

        variance = (1.0 - alpha_prev) / (1.0 - alpha_t) * (1.0 - alpha_t / alpha_prev)
        sigma = self.eta * ops.sqrt(variance)
        direction = ops.sqrt(1.0 - alpha_prev - sigma ** 2) * eps
        x_prev = ops.sqrt(alpha_prev) * x0 + direction + sigma * noise
        return x_prev, x0


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target='CPU')
    net = GuidedSampler()
    net.set_train(False)
    rng = np.random.RandomState(5)
    x = rng.randn(2, 4, 12, 20).astype(np.float32)
    noise = rng.randn(2, 4, 12, 20).astype(np.float32)
    step = np.array([3, 6], dtype=np.int64)
    tokens = np.array([[BOS, 4, 17, 8, 22, 3, 11, 26, EOS],
                       [BOS, 13, 6, 25, 9, EOS, PAD, PAD, PAD]], dtype=np.int64)
    labels = np.array([5, 2], dtype=np.int64)
    return net, tuple(Tensor(a) for a in (x, step, tokens, labels, noise)) + (4.5,)
