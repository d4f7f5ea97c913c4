"""MindSpore port of the small text- and layout-conditioned latent diffusion UNet with its DDIM step."""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


def timestep_embedding(positions, dim, max_period=10000, downscale_freq_shift=1.0):
    """Cosine/sine embedding of a 1-D tensor of positions."""
    half = dim // 2
    exponent = -math.log(max_period) * np.arange(half, dtype=np.float32) / (half - downscale_freq_shift)
    freqs = Tensor(np.exp(exponent).astype(np.float32))
    args = ops.expand_dims(positions.astype(ms.float32), 1) * freqs
    emb = ops.cat((ops.cos(args), ops.sin(args)), axis=1)
    if dim % 2:
        emb = ops.cat((emb, ops.zeros((emb.shape[0], 1), emb.dtype)), axis=1)
    return emb


def sincos_position_table(height, width, dim):
    """Fixed position table for a feature map, flattened row by row: (height * width, dim)."""
    quarter = dim // 4
    omega = 100.0 ** (-np.arange(quarter) / quarter)
    rows, cols = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    angle_rows = np.outer(rows.ravel(), omega)
    angle_cols = np.outer(cols.ravel(), omega)
    table = np.concatenate([np.sin(angle_rows), np.cos(angle_rows), np.sin(angle_cols), np.cos(angle_cols)], axis=1)
    return Tensor(table.astype(np.float32))


def conv3x3(in_channels, out_channels):
    return nn.Conv2d(in_channels, out_channels, 3, pad_mode="pad", padding=1, has_bias=True)


def conv1x1(in_channels, out_channels, has_bias=True):
    return nn.Conv2d(in_channels, out_channels, 1, pad_mode="valid", has_bias=has_bias)


class CaptionEncoder(nn.Cell):
    """Prepares the context of both guidance branches (empty caption first) and its pooled vector."""

    def __init__(self, in_dim, dim, max_len):
        super().__init__()
        self.norm = nn.LayerNorm([in_dim], epsilon=1e-5)
        self.proj = nn.Dense(in_dim, dim)
        self.position = Parameter(Tensor(np.zeros((max_len, dim), np.float32)), name="position")
        self.empty_caption = Parameter(Tensor(np.zeros((max_len, dim), np.float32)), name="empty_caption")
        self.pool_score = nn.Dense(dim, 1)

    def construct(self, tokens, mask):
        batch, length, _ = tokens.shape
        hidden = self.proj(self.norm(tokens))
        empty = ops.broadcast_to(ops.expand_dims(self.empty_caption[:length], 0), hidden.shape)
        hidden = ops.where(ops.expand_dims(mask, -1), hidden, empty)
        context = ops.cat((empty, hidden), axis=0) + self.position[:length]
        context_mask = ops.cat((ops.ones((batch, length), ms.bool_), mask), axis=0)
        score = self.pool_score(context)[..., 0]
        score = ops.masked_fill(score, ops.logical_not(context_mask), float("-inf"))
        weight = ops.softmax(score, axis=-1)
        pooled = ops.sum(ops.expand_dims(weight, -1) * context, dim=1)
        return context, context_mask, pooled


class ConditionEmbedding(nn.Cell):
    def __init__(self, freq_dim, size_dim, num_sizes, text_dim, dim):
        super().__init__()
        self.freq_dim = freq_dim
        self.size_dim = size_dim
        self.time_linear1 = nn.Dense(freq_dim, dim)
        self.time_linear2 = nn.Dense(dim, dim)
        self.add_linear1 = nn.Dense(text_dim + num_sizes * size_dim, dim)
        self.add_linear2 = nn.Dense(dim, dim)

    def construct(self, timestep, pooled, sizes):
        time_freq = timestep_embedding(timestep, self.freq_dim, downscale_freq_shift=0.0)
        time_emb = self.time_linear2(ops.silu(self.time_linear1(time_freq)))
        size_freq = timestep_embedding(sizes.reshape(-1), self.size_dim)
        size_freq = size_freq.reshape(sizes.shape[0], -1)
        added = ops.cat((pooled, size_freq), axis=1)
        added = self.add_linear2(ops.silu(self.add_linear1(added)))
        return time_emb + added


class HintEncoder(nn.Cell):
    """Brings a layout image to the latent's resolution."""

    def __init__(self, in_channels, mid_channels, out_channels):
        super().__init__()
        self.conv_down = nn.Conv2d(in_channels, mid_channels, 3, stride=2, pad_mode="pad", padding=1, has_bias=False)
        self.bn = nn.BatchNorm2d(mid_channels, eps=1e-3, momentum=0.9)
        self.act = nn.LeakyReLU(alpha=0.1)
        self.conv_out = conv3x3(mid_channels, out_channels)

    def construct(self, hint, height, width):
        hint = ops.interpolate(hint, size=(height * 2, width * 2), mode="bilinear", align_corners=False)
        hint = hint * 2.0 - 1.0
        return self.conv_out(self.act(self.bn(self.conv_down(hint))))


class ResnetBlock(nn.Cell):
    def __init__(self, in_channels, out_channels, emb_dim, groups=8):
        super().__init__()
        self.out_channels = out_channels
        self.in_layers = nn.SequentialCell(
            nn.GroupNorm(groups, in_channels, eps=1e-5), nn.SiLU(), conv3x3(in_channels, out_channels)
        )
        self.emb_layers = nn.SequentialCell(nn.SiLU(), nn.Dense(emb_dim, 2 * out_channels))
        self.out_norm = nn.GroupNorm(groups, out_channels, eps=1e-5)
        self.out_layers = nn.SequentialCell(nn.SiLU(), conv3x3(out_channels, out_channels))
        self.has_shortcut = in_channels != out_channels
        if self.has_shortcut:
            self.shortcut = conv1x1(in_channels, out_channels)

    def construct(self, x, emb):
        h = self.in_layers(x)
        emb_out = self.emb_layers(emb).reshape(x.shape[0], -1, 1, 1)
        scale, shift = ops.split(emb_out, self.out_channels, axis=1)
        h = self.out_norm(h) * (1.0 + scale) + shift
        h = self.out_layers(h)
        if self.has_shortcut:
            x = self.shortcut(x)
        return x + h


class ChannelRMSNorm(nn.Cell):
    """Unit length over the channels times sqrt(channels) and a learned gain."""

    def __init__(self, channels):
        super().__init__()
        self.scale = math.sqrt(channels)
        self.gain = Parameter(Tensor(np.ones((1, channels, 1, 1), np.float32)), name="gain")

    def construct(self, x):
        norm = ops.sqrt(ops.sum(ops.square(x), dim=1, keepdim=True))
        return x / ops.clamp(norm, min=1e-12) * self.scale * self.gain


class LinearAttention(nn.Cell):
    def __init__(self, channels, heads, head_dim, num_memory=5):
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim
        self.scale = head_dim ** -0.5
        self.pre_norm = ChannelRMSNorm(channels)
        self.memory = Parameter(Tensor(np.zeros((2, heads, head_dim, num_memory), np.float32)), name="memory")
        self.to_qkv = conv1x1(channels, 3 * heads * head_dim, has_bias=False)
        self.out_conv = conv1x1(heads * head_dim, channels)
        self.out_norm = ChannelRMSNorm(channels)

    def construct(self, x):
        batch, _, height, width = x.shape
        qkv = self.to_qkv(self.pre_norm(x)).reshape(batch, 3, self.heads, self.head_dim, height * width)
        query, key, value = qkv[:, 0], qkv[:, 1], qkv[:, 2]
        memory = ops.tile(ops.expand_dims(self.memory, 1), (1, batch, 1, 1, 1))
        key = ops.cat((memory[0], key), axis=-1)
        value = ops.cat((memory[1], value), axis=-1)
        query = ops.softmax(query, axis=2) * self.scale
        key = ops.softmax(key, axis=-1)
        context = ops.matmul(value, key.swapaxes(-1, -2))
        out = ops.matmul(context, query)
        out = out.reshape(batch, self.heads * self.head_dim, height, width)
        return x + self.out_norm(self.out_conv(out))


class SpatialSelfAttention(nn.Cell):
    """Self attention over a feature map; each head has a bias per clamped (dy, dx) offset."""

    def __init__(self, channels, heads, radius=3, groups=8):
        super().__init__()
        self.heads = heads
        self.head_dim = channels // heads
        self.radius = radius
        self.norm = nn.GroupNorm(groups, channels, eps=1e-5)
        self.qkv = conv1x1(channels, 3 * channels)
        self.bias_table = Parameter(Tensor(np.zeros(((2 * radius + 1) ** 2, heads), np.float32)), name="bias_table")
        self.proj_out = conv1x1(channels, channels)

    def relative_bias(self, height, width):
        rows, cols = np.divmod(np.arange(height * width), width)
        d_rows = np.clip(rows[:, None] - rows[None, :], -self.radius, self.radius) + self.radius
        d_cols = np.clip(cols[:, None] - cols[None, :], -self.radius, self.radius) + self.radius
        index = Tensor((d_rows * (2 * self.radius + 1) + d_cols).astype(np.int32))
        bias = ops.gather(self.bias_table, index, 0)
        return ops.transpose(bias, (2, 0, 1))

    def construct(self, x):
        batch, channels, height, width = x.shape
        length = height * width
        # the channels are laid out as (heads, 3, head_dim)
        qkv = self.qkv(self.norm(x)).reshape(batch, self.heads, 3, self.head_dim, length)
        query, key, value = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        logits = ops.matmul(query.swapaxes(-1, -2), key) * (self.head_dim ** -0.5)
        logits = logits + self.relative_bias(height, width)
        weight = ops.softmax(logits, axis=-1)
        out = ops.matmul(value, weight.swapaxes(-1, -2))
        out = out.reshape(batch, channels, height, width)
        return x + self.proj_out(out)


class CrossAttention(nn.Cell):
    def __init__(self, dim, context_dim, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.scale = self.head_dim ** -0.5
        self.to_q = nn.Dense(dim, dim, has_bias=False)
        self.to_kv = nn.Dense(context_dim, 2 * dim, has_bias=False)
        self.null_kv = Parameter(Tensor(np.zeros((2, dim), np.float32)), name="null_kv")
        self.to_out = nn.Dense(dim, dim)

    def split_heads(self, x):
        x = x.reshape(x.shape[0], x.shape[1], self.heads, self.head_dim)
        return ops.transpose(x, (0, 2, 1, 3))

    def construct(self, x, context, mask):
        batch, length, dim = x.shape
        query = self.split_heads(self.to_q(x))
        key, value = ops.chunk(self.to_kv(context), 2, axis=-1)
        null_kv = ops.tile(self.null_kv.reshape(2, 1, 1, dim), (1, batch, 1, 1))
        null_k, null_v = null_kv.reshape(2 * batch, 1, dim).split(batch, axis=0)
        key = self.split_heads(ops.cat((null_k, key), axis=1))
        value = self.split_heads(ops.cat((null_v, value), axis=1))
        mask = ops.cat((ops.ones((batch, 1), ms.bool_), mask), axis=1)
        blocked = ops.logical_not(mask).reshape(batch, 1, 1, -1)
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) * self.scale
        scores = ops.masked_fill(scores, blocked, float(np.finfo(np.float32).min))
        out = ops.matmul(ops.softmax(scores, axis=-1), value)
        out = ops.transpose(out, (0, 2, 1, 3)).reshape(batch, length, dim)
        return self.to_out(out)


class GEGLU(nn.Cell):
    def __init__(self, dim, mult=2):
        super().__init__()
        self.proj_in = nn.Dense(dim, 2 * mult * dim)
        self.gelu = nn.GELU(approximate=False)
        self.proj_out = nn.Dense(mult * dim, dim)

    def construct(self, x):
        value, gate = ops.chunk(self.proj_in(x), 2, axis=-1)
        return self.proj_out(value * self.gelu(gate))


class SpatialTransformer(nn.Cell):
    """Cross attention and feed-forward on the tokens of a feature map."""

    def __init__(self, channels, context_dim, heads, groups=8):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)
        self.proj_in = conv1x1(channels, channels)
        self.attn_norm = nn.LayerNorm([channels], epsilon=1e-5)
        self.attn = CrossAttention(channels, context_dim, heads)
        self.ff_norm = nn.LayerNorm([channels], epsilon=1e-5)
        self.ff = GEGLU(channels)
        self.proj_out = conv1x1(channels, channels)

    def construct(self, x, context, mask):
        batch, channels, height, width = x.shape
        tokens = self.proj_in(self.norm(x)).reshape(batch, channels, height * width)
        tokens = ops.transpose(tokens, (0, 2, 1))
        tokens = tokens + sincos_position_table(height, width, channels)
        tokens = tokens + self.attn(self.attn_norm(tokens), context, mask)
        tokens = tokens + self.ff(self.ff_norm(tokens))
        h = ops.transpose(tokens, (0, 2, 1)).reshape(batch, channels, height, width)
        return x + self.proj_out(h)


class Downsample(nn.Cell):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        # the padding is only at the bottom and at the right
        self.conv = nn.Conv2d(
            in_channels, out_channels, 3, stride=2, pad_mode="pad", padding=(0, 1, 0, 1), has_bias=True
        )

    def construct(self, x):
        return self.conv(x)


class Upsample(nn.Cell):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = conv3x3(in_channels, out_channels)

    def construct(self, x, size):
        return self.conv(ops.interpolate(x, size=size, mode="nearest"))


class DownStage(nn.Cell):
    def __init__(self, dim, next_dim, emb_dim, context_dim, heads, linear):
        super().__init__()
        self.resnet = ResnetBlock(dim, dim, emb_dim)
        self.self_attn = LinearAttention(dim, heads, 5) if linear else SpatialSelfAttention(dim, heads)
        self.transformer = SpatialTransformer(dim, context_dim, heads)
        self.down = Downsample(dim, next_dim) if next_dim else None

    def construct(self, h, emb, context, mask):
        after_resnet = self.resnet(h, emb)
        after_attn = self.transformer(self.self_attn(after_resnet), context, mask)
        h = self.down(after_attn) if self.down is not None else after_attn
        return h, (after_resnet, after_attn)


class UpStage(nn.Cell):
    def __init__(self, dim, next_dim, emb_dim, context_dim, heads):
        super().__init__()
        self.skip_scale = 1.0 / math.sqrt(2.0)
        self.resnet1 = ResnetBlock(2 * dim, dim, emb_dim)
        self.resnet2 = ResnetBlock(2 * dim, dim, emb_dim)
        self.transformer = SpatialTransformer(dim, context_dim, heads)
        self.up = Upsample(dim, next_dim) if next_dim else None

    def construct(self, h, skips, emb, context, mask, size):
        after_resnet, after_attn = skips
        h = self.resnet1(ops.cat((h, after_attn * self.skip_scale), axis=1), emb)
        h = self.resnet2(ops.cat((h, after_resnet * self.skip_scale), axis=1), emb)
        h = self.transformer(h, context, mask)
        if self.up is not None:
            h = self.up(h, size)
        return h


class UNet(nn.Cell):
    def __init__(self, in_channels=4, dims=(24, 48, 72), emb_dim=64, context_dim=20, heads=6, hint_channels=3):
        super().__init__()
        self.hint_encoder = HintEncoder(hint_channels, 10, dims[0])
        self.conv_in = conv3x3(in_channels, dims[0])
        self.embedding = ConditionEmbedding(32, 8, 4, context_dim, emb_dim)
        after = list(dims[1:]) + [0]
        before = [0] + list(dims[:-1])
        self.down_stages = nn.CellList(
            [DownStage(d, after[i], emb_dim, context_dim, heads, linear=i == 0) for i, d in enumerate(dims)]
        )
        self.mid_resnet1 = ResnetBlock(dims[-1], dims[-1], emb_dim)
        self.mid_attn = SpatialSelfAttention(dims[-1], heads)
        self.mid_resnet2 = ResnetBlock(dims[-1], dims[-1], emb_dim)
        self.up_stages = nn.CellList(
            [UpStage(dims[i], before[i], emb_dim, context_dim, heads) for i in range(len(dims) - 1, -1, -1)]
        )
        self.norm_out = nn.GroupNorm(8, 2 * dims[0], eps=1e-5)
        self.conv_out = conv3x3(2 * dims[0], in_channels)

    def construct(self, x, timestep, context, mask, pooled, sizes, hint):
        emb = self.embedding(timestep, pooled, sizes)
        stem = self.conv_in(x) + self.hint_encoder(hint, x.shape[2], x.shape[3])
        h = stem
        all_skips = []
        for stage in self.down_stages:
            h, skips = stage(h, emb, context, mask)
            all_skips.append(skips)

        h = self.mid_resnet1(h, emb)
        h = self.mid_attn(h)
        h = self.mid_resnet2(h, emb)

        num_stages = len(self.up_stages)
        for i, stage in enumerate(self.up_stages):
            level = num_stages - 1 - i
            size = all_skips[level - 1][0].shape[2:] if level > 0 else None
            h = stage(h, all_skips[level], emb, context, mask, size)
        h = ops.cat((h, stem), axis=1)
        return self.conv_out(ops.silu(self.norm_out(h)))


class DDIMScheduler(nn.Cell):
    """DDIM with zero terminal SNR, trailing timesteps, v-prediction and dynamic thresholding."""

    def __init__(self, train_steps=250, steps=16, beta_start=0.002, beta_end=0.03, percentile=0.93):
        super().__init__()
        self.percentile = percentile
        self.num_steps = steps
        betas = np.square(np.linspace(math.sqrt(beta_start), math.sqrt(beta_end), train_steps))
        sqrt_alphas = np.sqrt(np.cumprod(1.0 - betas))
        first, last = sqrt_alphas[0], sqrt_alphas[-1]
        sqrt_alphas = (sqrt_alphas - last) * (first / (first - last))
        self.alphas_cumprod = Tensor(np.square(sqrt_alphas).astype(np.float32))
        timesteps = np.round(np.arange(train_steps, 0, -train_steps / steps)) - 1
        self.timesteps = Tensor(timesteps.astype(np.int32))

    def threshold(self, x0):
        flat = x0.reshape(x0.shape[0], -1)
        ordered, _ = ops.sort(ops.abs(flat), axis=1)
        rank = self.percentile * (flat.shape[1] - 1)
        low = int(math.floor(rank))
        high = min(low + 1, flat.shape[1] - 1)
        limit = ordered[:, low] + (rank - low) * (ordered[:, high] - ordered[:, low])
        limit = ops.expand_dims(ops.clamp(limit, min=1.0), 1)
        flat = ops.maximum(ops.minimum(flat, limit), -limit) / limit
        return flat.reshape(x0.shape)

    def construct(self, v, step, sample, noise, eta):
        timestep = ops.gather(self.timesteps, step, 0)
        next_step = ops.clamp(step + 1, max=self.num_steps - 1)
        alpha_t = ops.gather(self.alphas_cumprod, timestep, 0)
        alpha_prev = ops.gather(self.alphas_cumprod, ops.gather(self.timesteps, next_step, 0), 0)
        alpha_prev = ops.where(step + 1 < self.num_steps, alpha_prev, ops.ones_like(alpha_prev))
        alpha_t = alpha_t.reshape(-1, 1, 1, 1)
        alpha_prev = alpha_prev.reshape(-1, 1, 1, 1)
        beta_t = 1.0 - alpha_t
        beta_prev = 1.0 - alpha_prev

        x0 = ops.sqrt(alpha_t) * sample - ops.sqrt(beta_t) * v
        x0 = self.threshold(x0)
        eps = (sample - ops.sqrt(alpha_t) * x0) / ops.sqrt(beta_t)

        variance = (beta_prev / beta_t) * (1.0 - alpha_t / alpha_prev)
        sigma = eta * ops.sqrt(ops.clamp(variance, min=0.0))
        direction = ops.sqrt(ops.clamp(beta_prev - ops.square(sigma), min=0.0)) * eps
        prev_sample = ops.sqrt(alpha_prev) * x0 + direction + sigma * noise
        return prev_sample, x0


class LatentDenoiser(nn.Cell):
    """One guided step of the sampler."""

    def __init__(self, text_dim=14, context_dim=20, guidance_rescale=0.7):
        super().__init__()
        self.guidance_rescale = guidance_rescale
        self.caption_encoder = CaptionEncoder(text_dim, context_dim, 9)
        self.unet = UNet(context_dim=context_dim)
        self.scheduler = DDIMScheduler()

    def construct(self, latents, step, tokens, token_mask, sizes, hint, noise, guidance=3.5, eta=0.6):
        context, mask, pooled = self.caption_encoder(tokens, token_mask)
        timestep = ops.gather(self.scheduler.timesteps, step, 0)
        v = self.unet(
            ops.cat((latents, latents), axis=0),
            ops.cat((timestep, timestep), axis=0),
            context,
            mask,
            pooled,
            ops.tile(sizes, (2, 1)),
            ops.tile(hint, (2, 1, 1, 1)),
        )
        v_uncond, v_cond = ops.chunk(v, 2, axis=0)
        guided = v_uncond + guidance * (v_cond - v_uncond)
        std_cond = ops.std(v_cond, axis=(1, 2, 3), ddof=1, keepdims=True)
        std_guided = ops.std(guided, axis=(1, 2, 3), ddof=1, keepdims=True)
        rescaled = guided * (std_cond / std_guided)
        guided = self.guidance_rescale * rescaled + (1.0 - self.guidance_rescale) * guided
        prev_sample, x0 = self.scheduler(guided, step, latents, noise, eta)
        return prev_sample, x0, guided


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = LatentDenoiser().set_train(False)
    rng = np.random.RandomState(7)
    latents = rng.randn(3, 4, 12, 10).astype(np.float32)
    step = np.array([2, 9, 15], dtype=np.int64)
    tokens = (0.03 * rng.randn(3, 7, 14)).astype(np.float32)
    token_mask = np.arange(7)[None, :] < np.array([[7], [4], [5]])
    sizes = np.array([[96, 80, 0, 7], [120, 64, 13, 0], [75, 75, 4, 21]], dtype=np.float32)
    hint = rng.rand(3, 3, 17, 15).astype(np.float32)
    noise = rng.randn(3, 4, 12, 10).astype(np.float32)
    inputs = tuple(Tensor(a) for a in (latents, step, tokens, token_mask, sizes, hint, noise))
    return net, inputs + (3.5, 0.6)
