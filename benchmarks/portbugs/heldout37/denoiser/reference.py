"""Text and class conditioned latent diffusion UNet with one guided DDIM step (PyTorch)."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BOS, EOS, PAD = 29, 30, 0


def timestep_embedding(timesteps, dim, max_period=10000):
    """Sinusoidal embedding of (possibly fractional) timesteps: [cos | sin]."""
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(0, half, dtype=torch.float32) / half)
    args = timesteps[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


# text
class TextBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x, allowed):
        b, n, d = x.shape
        q, k, v = self.qkv(self.ln_1(x)).chunk(3, dim=-1)
        q = q.view(b, n, self.heads, -1).transpose(1, 2)
        k = k.view(b, n, self.heads, -1).transpose(1, 2)
        v = v.view(b, n, self.heads, -1).transpose(1, 2)
        logits = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads)
        logits = logits.masked_fill(~allowed[:, None], -1e9)
        att = logits.softmax(dim=-1)
        y = (att @ v).transpose(1, 2).reshape(b, n, d)
        x = x + self.proj(y)
        h = self.fc1(self.ln_2(x))
        h = h * torch.sigmoid(1.702 * h)
        return x + self.fc2(h)


class TextEncoder(nn.Module):
    def __init__(self, vocab, dim, heads, depth, max_len):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, dim)
        self.positional_embedding = nn.Parameter(torch.zeros(max_len, dim))
        self.layers = nn.ModuleList([TextBlock(dim, heads) for _ in range(depth)])
        self.ln_final = nn.LayerNorm(dim)
        self.text_projection = nn.Linear(dim, dim, bias=False)

    def forward(self, tokens, mask):
        b, n = tokens.shape
        x = self.token_embedding(tokens) + self.positional_embedding[:n]
        causal = torch.ones(n, n, dtype=torch.bool, device=tokens.device).tril()
        allowed = causal[None] & mask[:, None, :]
        for layer in self.layers:
            x = layer(x, allowed)
        x = self.ln_final(x)
        # EOS has the highest id of all tokens
        pooled = x[torch.arange(b), tokens.argmax(dim=-1)]
        return x, self.text_projection(pooled)


# building blocks of the UNet
class Downsample(nn.Module):
    def __init__(self, channels, out_channels):
        super().__init__()
        self.op = nn.Conv2d(channels, out_channels, 3, stride=2, padding=1)

    def forward(self, x):
        return self.op(x)


class Upsample(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return self.conv(self.up(x))


class ResBlock(nn.Module):
    """Residual block whose second norm is modulated by the embedding."""

    def __init__(self, channels, out_channels, emb_channels, groups):
        super().__init__()
        self.in_norm = nn.GroupNorm(groups, channels)
        self.in_conv = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.emb_proj = nn.Linear(emb_channels, 2 * out_channels)
        self.out_norm = nn.GroupNorm(groups, out_channels)
        self.out_conv = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        if channels == out_channels:
            self.skip = nn.Identity()
        else:
            self.skip = nn.Conv2d(channels, out_channels, 1)

    def forward(self, x, emb):
        h = self.in_conv(F.silu(self.in_norm(x)))
        emb_out = self.emb_proj(F.silu(emb))[:, :, None, None]
        scale, shift = torch.chunk(emb_out, 2, dim=1)
        h = self.out_norm(h) * (1 + scale) + shift
        h = self.out_conv(F.silu(h))
        return self.skip(x) + h


class AttentionBlock(nn.Module):
    """Self attention over all positions; heads are split before q, k and v."""

    def __init__(self, channels, heads, groups):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(groups, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        b, c, *spatial = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, 3 * c, -1)
        length = qkv.shape[-1]
        ch = c // self.heads
        q, k, v = qkv.reshape(b * self.heads, ch * 3, length).split(ch, dim=1)
        scale = 1 / math.sqrt(math.sqrt(ch))
        weight = torch.einsum("bct,bcs->bts", q * scale, k * scale)
        weight = torch.softmax(weight, dim=-1)
        h = torch.einsum("bts,bcs->bct", weight, v).reshape(b, c, *spatial)
        return x + self.proj_out(h)


class CrossAttention(nn.Module):
    def __init__(self, query_dim, context_dim, heads, dim_head):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.to_q = nn.Linear(query_dim, inner, bias=False)
        self.to_k = nn.Linear(context_dim, inner, bias=False)
        self.to_v = nn.Linear(context_dim, inner, bias=False)
        self.to_out = nn.Linear(inner, query_dim)

    def _split(self, t):
        b, n, _ = t.shape
        t = t.reshape(b, n, self.heads, -1).permute(0, 2, 1, 3)
        return t.reshape(b * self.heads, n, -1)

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        b, n, _ = x.shape
        q, k, v = map(self._split, (self.to_q(x), self.to_k(context), self.to_v(context)))
        sim = torch.einsum("bid,bjd->bij", q, k) * self.scale
        if mask is not None:
            mask = mask.repeat_interleave(self.heads, dim=0)[:, None, :]
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bij,bjd->bid", attn, v)
        out = out.reshape(b, self.heads, n, -1).permute(0, 2, 1, 3).reshape(b, n, -1)
        return self.to_out(out)


class FeedForward(nn.Module):
    """GEGLU feed forward."""

    def __init__(self, dim, mult=3):
        super().__init__()
        self.proj = nn.Linear(dim, 2 * mult * dim)
        self.act = nn.GELU()
        self.out = nn.Linear(mult * dim, dim)

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, dim=-1)
        return self.out(x * self.act(gate))


class BasicTransformerBlock(nn.Module):
    def __init__(self, dim, context_dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn1 = CrossAttention(dim, dim, heads, dim // heads)
        self.norm2 = nn.LayerNorm(dim)
        self.attn2 = CrossAttention(dim, context_dim, heads, dim // heads)
        self.norm3 = nn.LayerNorm(dim)
        self.ff = FeedForward(dim)

    def forward(self, x, context, mask):
        x = self.attn1(self.norm1(x)) + x
        x = self.attn2(self.norm2(x), context, mask) + x
        return self.ff(self.norm3(x)) + x


class SpatialTransformer(nn.Module):
    def __init__(self, channels, context_dim, heads, groups, depth=1):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)
        self.proj_in = nn.Conv2d(channels, channels, 1)
        self.blocks = nn.ModuleList(
            [BasicTransformerBlock(channels, context_dim, heads) for _ in range(depth)])
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x, context, mask):
        b, c, h, w = x.shape
        residual = x
        x = self.proj_in(self.norm(x))
        x = x.permute(0, 2, 3, 1).reshape(b, h * w, c)
        for block in self.blocks:
            x = block(x, context, mask)
        x = x.reshape(b, h, w, c).permute(0, 3, 1, 2)
        return self.proj_out(x) + residual


class Stage(nn.Module):
    """One step of the UNet: residual block, optional attention, optional resampling."""

    def __init__(self, res, attn=None, resample=None):
        super().__init__()
        self.res = res
        self.attn = attn
        self.resample = resample

    def forward(self, x, emb, context, mask):
        x = self.res(x, emb)
        if isinstance(self.attn, SpatialTransformer):
            x = self.attn(x, context, mask)
        elif self.attn is not None:
            x = self.attn(x)
        if self.resample is not None:
            x = self.resample(x)
        return x


# UNet
class UNet(nn.Module):
    def __init__(self, in_channels=4, model_channels=24, channel_mult=(1, 2, 3), num_classes=7,
                 context_dim=20, heads=3, groups=6):
        super().__init__()
        self.model_channels = model_channels
        emb_dim = 4 * model_channels
        self.time_embed = nn.Sequential(
            nn.Linear(model_channels, emb_dim), nn.SiLU(), nn.Linear(emb_dim, emb_dim))
        # the last row is the class of "no class"
        self.label_emb = nn.Embedding(num_classes + 1, emb_dim)
        self.pool_proj = nn.Linear(context_dim, emb_dim)

        def attention(level, ch):
            if level == 1:
                return SpatialTransformer(ch, context_dim, heads, groups)
            if level == 2:
                return AttentionBlock(ch, heads, groups)
            return None

        ch = model_channels
        self.conv_in = nn.Conv2d(in_channels, ch, 3, padding=1)
        self.input_blocks = nn.ModuleList()
        self.downs = nn.ModuleList()
        skips = [ch]
        for level, mult in enumerate(channel_mult):
            out = mult * model_channels
            self.input_blocks.append(Stage(ResBlock(ch, out, emb_dim, groups), attention(level, out)))
            ch = out
            skips.append(ch)
            if level != len(channel_mult) - 1:
                self.downs.append(Downsample(ch, ch))
                skips.append(ch)

        self.mid_res1 = ResBlock(ch, ch, emb_dim, groups)
        self.mid_attn = SpatialTransformer(ch, context_dim, heads, groups)
        self.mid_res2 = ResBlock(ch, ch, emb_dim, groups)

        self.output_blocks = nn.ModuleList()
        for level, mult in reversed(list(enumerate(channel_mult))):
            out = mult * model_channels
            for i in range(2):
                up = Upsample(out) if level and i == 1 else None
                res = ResBlock(ch + skips.pop(), out, emb_dim, groups)
                self.output_blocks.append(Stage(res, attention(level, out), up))
                ch = out
        self.out_norm = nn.GroupNorm(groups, ch)
        self.out_conv = nn.Conv2d(ch, in_channels, 3, padding=1)

    def forward(self, x, timesteps, labels, context, pooled, mask):
        emb = self.time_embed(timestep_embedding(timesteps, self.model_channels))
        emb = emb + self.label_emb(labels) + self.pool_proj(pooled)
        h = self.conv_in(x)
        hs = [h]
        for i, block in enumerate(self.input_blocks):
            h = block(h, emb, context, mask)
            hs.append(h)
            if i < len(self.downs):
                h = self.downs[i](h)
                hs.append(h)
        h = self.mid_res1(h, emb)
        h = self.mid_attn(h, context, mask)
        h = self.mid_res2(h, emb)
        for block in self.output_blocks:
            h = torch.cat([h, hs.pop()], dim=1)
            h = block(h, emb, context, mask)
        return self.out_conv(F.silu(self.out_norm(h)))


# guided sampling step
class GuidedDenoiser(nn.Module):
    """One DDIM step of a v-prediction model with classifier-free guidance."""

    def __init__(self, num_train_steps=100, num_steps=7, beta_start=0.0085, beta_end=0.12,
                 guidance_rescale=0.7, eta=0.6, quantile=0.95, num_classes=7, text_dim=20):
        super().__init__()
        self.num_train_steps = num_train_steps
        self.num_steps = num_steps
        self.guidance_rescale = guidance_rescale
        self.eta = eta
        self.quantile = quantile
        self.null_class = num_classes
        self.text = TextEncoder(31, text_dim, heads=4, depth=2, max_len=11)
        self.unet = UNet(num_classes=num_classes, context_dim=text_dim)

        betas = torch.linspace(beta_start ** 0.5, beta_end ** 0.5, num_train_steps) ** 2
        self.register_buffer("alphas_cumprod", torch.cumprod(1.0 - betas, dim=0))
        ratio = num_train_steps // num_steps
        timesteps = (torch.arange(num_steps) * ratio).flip(0) + 1
        self.register_buffer("timesteps", timesteps)

    def null_prompt(self, tokens):
        null = torch.full_like(tokens, PAD)
        null[:, 0] = BOS
        null[:, 1] = EOS
        return null

    def predict(self, x, t, tokens, labels, guidance):
        tokens = torch.cat([self.null_prompt(tokens), tokens], dim=0)
        labels = torch.cat([torch.full_like(labels, self.null_class), labels], dim=0)
        mask = tokens != PAD
        context, pooled = self.text(tokens, mask)
        v = self.unet(torch.cat([x, x]), torch.cat([t, t]), labels, context, pooled, mask)
        v_uncond, v_cond = v.chunk(2, dim=0)
        v = v_uncond + guidance * (v_cond - v_uncond)
        std_cond = v_cond.std(dim=(1, 2, 3), keepdim=True)
        std_cfg = v.std(dim=(1, 2, 3), keepdim=True)
        rescaled = v * (std_cond / std_cfg)
        return self.guidance_rescale * rescaled + (1 - self.guidance_rescale) * v

    def forward(self, x, step, tokens, labels, noise, guidance):
        t = self.timesteps[step]
        v = self.predict(x, t, tokens, labels, guidance)

        prev_t = t - self.num_train_steps // self.num_steps
        a_t = self.alphas_cumprod[t]
        a_prev = torch.where(prev_t >= 0, self.alphas_cumprod[prev_t.clamp(min=0)], self.alphas_cumprod[0])
        a_t, a_prev = a_t[:, None, None, None], a_prev[:, None, None, None]

        x0 = a_t.sqrt() * x - (1 - a_t).sqrt() * v
        # dynamic thresholding
        s = torch.quantile(x0.abs().flatten(1), self.quantile, dim=1).clamp(min=1.0)
        s = s[:, None, None, None]
        x0 = torch.maximum(torch.minimum(x0, s), -s) / s
        eps = (x - a_t.sqrt() * x0) / (1 - a_t).sqrt()

        sigma = self.eta * ((1 - a_prev) / (1 - a_t) * (1 - a_t / a_prev)).sqrt()
        direction = (1 - a_prev - sigma ** 2).sqrt() * eps
        prev = a_prev.sqrt() * x0 + direction + sigma * noise
        return prev, x0


def randomize(net):
    for name, p in net.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if "emb" in name and leaf == "weight" and p.shape[0] < 40 or "positional" in name:
            p.data.normal_(0, 0.5)
        elif leaf == "bias":
            p.data.normal_(0, 0.15)
        elif p.dim() == 1:
            p.data.normal_(1.0, 0.2)
        else:
            p.data.normal_(0, 1.1 / math.sqrt(p[0].numel()))


def build():
    torch.manual_seed(17)
    net = GuidedDenoiser()
    randomize(net)
    rng = np.random.RandomState(5)
    x = rng.randn(2, 4, 12, 20).astype(np.float32)
    noise = rng.randn(2, 4, 12, 20).astype(np.float32)
    step = np.array([3, 6], dtype=np.int64)
    tokens = np.array([[BOS, 4, 17, 8, 22, 3, 11, 26, EOS],
                       [BOS, 13, 6, 25, 9, EOS, PAD, PAD, PAD]], dtype=np.int64)
    labels = np.array([5, 2], dtype=np.int64)
    inputs = tuple(torch.from_numpy(a) for a in (x, step, tokens, labels, noise)) + (4.5,)
    return net.eval(), inputs
