"""A small text- and layout-conditioned latent diffusion UNet with one DDIM step (classifier-free guidance, v-prediction)."""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def timestep_embedding(t, dim, max_period=10000, shift=1.0):
    """Sinusoidal embedding of a flat vector of (possibly fractional) positions, cosines first."""
    half = dim // 2
    exponent = -math.log(max_period) * torch.arange(half, dtype=torch.float32, device=t.device)
    freqs = torch.exp(exponent / (half - shift))
    args = t.float()[:, None] * freqs[None]
    emb = torch.cat([torch.cos(args), torch.sin(args)], dim=-1)
    if dim % 2:
        emb = F.pad(emb, (0, 1))
    return emb


def sincos_2d(height, width, dim):
    """(height * width, dim) table: a quarter each of sin(y), cos(y), sin(x), cos(x)."""
    quarter = dim // 4
    omega = 1.0 / (100.0 ** (torch.arange(quarter, dtype=torch.float32) / quarter))
    ys, xs = torch.meshgrid(torch.arange(height).float(), torch.arange(width).float(), indexing="ij")
    ang_y = ys.reshape(-1, 1) * omega
    ang_x = xs.reshape(-1, 1) * omega
    return torch.cat([ang_y.sin(), ang_y.cos(), ang_x.sin(), ang_x.cos()], dim=1)


class TextConditioner(nn.Module):
    """Projects caption features, doubles the batch with the learned empty caption and pools both halves."""

    def __init__(self, in_dim, dim, max_len):
        super().__init__()
        self.norm = nn.LayerNorm(in_dim)
        self.proj = nn.Linear(in_dim, dim)
        self.pos = nn.Parameter(torch.zeros(max_len, dim))
        self.null = nn.Parameter(torch.zeros(max_len, dim))
        self.pool_score = nn.Linear(dim, 1)

    def forward(self, tokens, mask):
        b, n, _ = tokens.shape
        h = self.proj(self.norm(tokens))
        null = self.null[:n].expand(b, n, -1)
        h = torch.where(mask[..., None], h, null)
        context = torch.cat([null, h], dim=0) + self.pos[:n]
        context_mask = torch.cat([torch.ones_like(mask), mask], dim=0)
        score = self.pool_score(context).squeeze(-1).masked_fill(~context_mask, float("-inf"))
        pooled = torch.einsum("bn,bnd->bd", score.softmax(dim=-1), context)
        return context, context_mask, pooled


class ConditionEmbedding(nn.Module):
    """timestep + (pooled caption, micro-conditioning sizes) -> one vector per sample."""

    def __init__(self, freq_dim, size_dim, n_sizes, text_dim, dim):
        super().__init__()
        self.freq_dim = freq_dim
        self.size_dim = size_dim
        self.time_mlp = nn.Sequential(nn.Linear(freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.add_mlp = nn.Sequential(nn.Linear(text_dim + n_sizes * size_dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t, pooled, sizes):
        emb = self.time_mlp(timestep_embedding(t, self.freq_dim, shift=0.0))
        size_emb = timestep_embedding(sizes.flatten(), self.size_dim).reshape(sizes.shape[0], -1)
        added = self.add_mlp(torch.cat([pooled, size_emb], dim=-1))
        return emb + added


class HintEncoder(nn.Module):
    """A layout image of any size -> features at the latent's resolution."""

    def __init__(self, in_ch, mid_ch, out_ch):
        super().__init__()
        self.conv1 = nn.Conv2d(in_ch, mid_ch, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(mid_ch, eps=1e-3)
        self.conv2 = nn.Conv2d(mid_ch, out_ch, 3, padding=1)

    def forward(self, hint, size):
        hint = F.interpolate(hint, size=(2 * size[0], 2 * size[1]), mode="bilinear", align_corners=False)
        hint = hint * 2.0 - 1.0
        return self.conv2(F.leaky_relu(self.bn1(self.conv1(hint)), 0.1))


class ResBlock(nn.Module):
    def __init__(self, in_ch, out_ch, emb_dim, groups=8):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, in_ch)
        self.conv1 = nn.Conv2d(in_ch, out_ch, 3, padding=1)
        self.emb_proj = nn.Linear(emb_dim, 2 * out_ch)
        self.norm2 = nn.GroupNorm(groups, out_ch)
        self.conv2 = nn.Conv2d(out_ch, out_ch, 3, padding=1)
        self.skip = nn.Conv2d(in_ch, out_ch, 1) if in_ch != out_ch else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.emb_proj(F.silu(emb))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        h = self.conv2(F.silu(h))
        return self.skip(x) + h


class ChannelRMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim ** 0.5
        self.g = nn.Parameter(torch.ones(1, dim, 1, 1))

    def forward(self, x):
        return F.normalize(x, dim=1) * self.g * self.scale


class LinearAttention(nn.Module):
    """Attention with linear cost for the full resolution, with a few learned memory keys and values."""

    def __init__(self, dim, heads, head_dim, n_mem=5):
        super().__init__()
        self.heads = heads
        self.scale = head_dim ** -0.5
        self.norm = ChannelRMSNorm(dim)
        self.mem_kv = nn.Parameter(torch.zeros(2, heads, head_dim, n_mem))
        self.to_qkv = nn.Conv2d(dim, heads * head_dim * 3, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(heads * head_dim, dim, 1), ChannelRMSNorm(dim))

    def forward(self, x):
        b, _, height, width = x.shape
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, dim=1)
        q, k, v = (t.reshape(b, self.heads, -1, height * width) for t in (q, k, v))
        mk, mv = (t.expand(b, -1, -1, -1) for t in self.mem_kv)
        k = torch.cat((mk, k), dim=-1)
        v = torch.cat((mv, v), dim=-1)
        q = q.softmax(dim=-2) * self.scale
        k = k.softmax(dim=-1)
        context = torch.einsum("bhdn,bhen->bhde", k, v)
        out = torch.einsum("bhde,bhdn->bhen", context, q)
        return x + self.to_out(out.reshape(b, -1, height, width))


class SpatialSelfAttention(nn.Module):
    """Full attention over a feature map with a clamped two-dimensional relative position bias."""

    def __init__(self, dim, heads, radius=3, groups=8):
        super().__init__()
        self.heads = heads
        self.radius = radius
        self.norm = nn.GroupNorm(groups, dim)
        self.qkv = nn.Conv2d(dim, 3 * dim, 1)
        self.rel_bias = nn.Parameter(torch.zeros((2 * radius + 1) ** 2, heads))
        self.proj = nn.Conv2d(dim, dim, 1)

    def bias(self, height, width, device):
        r = self.radius
        ys, xs = torch.meshgrid(torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij")
        ys, xs = ys.flatten(), xs.flatten()
        dy = (ys[:, None] - ys[None, :]).clamp(-r, r) + r
        dx = (xs[:, None] - xs[None, :]).clamp(-r, r) + r
        index = dy * (2 * r + 1) + dx
        return self.rel_bias[index].permute(2, 0, 1)

    def forward(self, x):
        b, c, height, width = x.shape
        d = c // self.heads
        # heads come first in the channels, then q, k, v inside each head
        qkv = self.qkv(self.norm(x)).reshape(b * self.heads, 3 * d, height * width)
        q, k, v = qkv.split(d, dim=1)
        scale = d ** -0.25
        logits = torch.einsum("bct,bcs->bts", q * scale, k * scale).unflatten(0, (b, self.heads))
        logits = logits + self.bias(height, width, x.device)
        weight = logits.softmax(dim=-1).flatten(0, 1)
        out = torch.einsum("bts,bcs->bct", weight, v)
        return x + self.proj(out.reshape(b, c, height, width))


class CrossAttention(nn.Module):
    def __init__(self, dim, context_dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(context_dim, 2 * dim, bias=False)
        self.null_kv = nn.Parameter(torch.zeros(2, dim))
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context, mask):
        b, n, c = x.shape
        h, d = self.heads, c // self.heads
        q = self.to_q(x).reshape(b, n, h, d).transpose(1, 2)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        k = torch.cat([self.null_kv[0].expand(b, 1, c), k], dim=1)
        v = torch.cat([self.null_kv[1].expand(b, 1, c), v], dim=1)
        mask = F.pad(mask, (1, 0), value=True)
        k = k.reshape(b, -1, h, d).transpose(1, 2)
        v = v.reshape(b, -1, h, d).transpose(1, 2)
        sim = q @ k.transpose(-1, -2) * d ** -0.5
        sim = sim.masked_fill(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)
        out = sim.softmax(dim=-1) @ v
        return self.to_out(out.transpose(1, 2).reshape(b, n, c))


class GEGLU(nn.Module):
    def __init__(self, dim, mult=2):
        super().__init__()
        self.proj_in = nn.Linear(dim, 2 * mult * dim)
        self.proj_out = nn.Linear(mult * dim, dim)

    def forward(self, x):
        x, gate = self.proj_in(x).chunk(2, dim=-1)
        return self.proj_out(x * F.gelu(gate))


class SpatialTransformer(nn.Module):
    """Feature map -> tokens with positions -> cross attention and feed-forward -> feature map."""

    def __init__(self, dim, context_dim, heads, groups=8):
        super().__init__()
        self.norm = nn.GroupNorm(groups, dim, eps=1e-6)
        self.proj_in = nn.Conv2d(dim, dim, 1)
        self.norm1 = nn.LayerNorm(dim)
        self.attn = CrossAttention(dim, context_dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.ff = GEGLU(dim)
        self.proj_out = nn.Conv2d(dim, dim, 1)

    def forward(self, x, context, mask):
        b, c, height, width = x.shape
        h = self.proj_in(self.norm(x))
        h = h.permute(0, 2, 3, 1).reshape(b, height * width, c)
        h = h + sincos_2d(height, width, c).to(h)
        h = h + self.attn(self.norm1(h), context, mask)
        h = h + self.ff(self.norm2(h))
        h = h.reshape(b, height, width, c).permute(0, 3, 1, 2)
        return x + self.proj_out(h)


class Downsample(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.conv = nn.Conv2d(in_ch, out_ch, 3, stride=2)

    def forward(self, x):
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.conv = nn.Conv2d(in_ch, out_ch, 3, padding=1)

    def forward(self, x, size):
        return self.conv(F.interpolate(x, size=size, mode="nearest"))


class UNet(nn.Module):
    def __init__(self, in_ch=4, dims=(24, 48, 72), emb_dim=64, context_dim=20, heads=6, hint_ch=3):
        super().__init__()
        self.hint = HintEncoder(hint_ch, 10, dims[0])
        self.conv_in = nn.Conv2d(in_ch, dims[0], 3, padding=1)
        self.embed = ConditionEmbedding(32, 8, 4, context_dim, emb_dim)
        self.downs = nn.ModuleList()
        for i, dim in enumerate(dims):
            last = i == len(dims) - 1
            self.downs.append(nn.ModuleList([
                ResBlock(dim, dim, emb_dim),
                LinearAttention(dim, heads, 5) if i == 0 else SpatialSelfAttention(dim, heads),
                SpatialTransformer(dim, context_dim, heads),
                nn.Identity() if last else Downsample(dim, dims[i + 1]),
            ]))
        self.mid1 = ResBlock(dims[-1], dims[-1], emb_dim)
        self.mid_attn = SpatialSelfAttention(dims[-1], heads)
        self.mid2 = ResBlock(dims[-1], dims[-1], emb_dim)
        self.ups = nn.ModuleList()
        for i, dim in reversed(list(enumerate(dims))):
            self.ups.append(nn.ModuleList([
                ResBlock(2 * dim, dim, emb_dim),
                ResBlock(2 * dim, dim, emb_dim),
                SpatialTransformer(dim, context_dim, heads),
                nn.Identity() if i == 0 else Upsample(dim, dims[i - 1]),
            ]))
        self.norm_out = nn.GroupNorm(8, 2 * dims[0])
        self.conv_out = nn.Conv2d(2 * dims[0], in_ch, 3, padding=1)

    def forward(self, x, t, context, mask, pooled, sizes, hint):
        emb = self.embed(t, pooled, sizes)
        h = stem = self.conv_in(x) + self.hint(hint, x.shape[-2:])
        skips, shapes = [], []
        for res, attn, transformer, down in self.downs:
            h = res(h, emb)
            skips.append(h)
            h = transformer(attn(h), context, mask)
            skips.append(h)
            shapes.append(h.shape[-2:])
            h = down(h)
        h = self.mid2(self.mid_attn(self.mid1(h, emb)), emb)
        shapes.pop()
        for res1, res2, transformer, up in self.ups:
            h = res1(torch.cat([h, skips.pop() * 2 ** -0.5], dim=1), emb)
            h = res2(torch.cat([h, skips.pop() * 2 ** -0.5], dim=1), emb)
            h = transformer(h, context, mask)
            if shapes:
                h = up(h, shapes.pop())
        h = torch.cat([h, stem], dim=1)
        return self.conv_out(F.silu(self.norm_out(h)))


class DDIMScheduler(nn.Module):
    """Scaled-linear betas rescaled to zero terminal SNR, trailing timesteps."""
    def __init__(self, train_steps=250, steps=16, beta_start=0.002, beta_end=0.03, percentile=0.93):
        super().__init__()
        self.percentile = percentile
        betas = torch.linspace(beta_start ** 0.5, beta_end ** 0.5, train_steps, dtype=torch.float64) ** 2
        root = torch.cumprod(1.0 - betas, dim=0).sqrt()
        first, last = root[0].clone(), root[-1].clone()
        root = (root - last) * first / (first - last)
        timesteps = np.round(np.arange(train_steps, 0, -train_steps / steps)).astype(np.int64) - 1
        self.register_buffer("alphas_cumprod", (root ** 2).float(), persistent=False)
        self.register_buffer("timesteps", torch.from_numpy(timesteps), persistent=False)

    def threshold(self, x0):
        """Dynamic thresholding: squeeze each sample into its own percentile, never below one."""
        flat = x0.reshape(x0.shape[0], -1)
        s = torch.quantile(flat.abs(), self.percentile, dim=1).clamp(min=1.0)[:, None]
        return (torch.maximum(torch.minimum(flat, s), -s) / s).reshape(x0.shape)

    def forward(self, v, step, sample, noise, eta):
        n = self.timesteps.shape[0]
        t = self.timesteps[step]
        nxt = torch.clamp(step + 1, max=n - 1)
        a_t = self.alphas_cumprod[t]
        a_prev = torch.where(step + 1 < n, self.alphas_cumprod[self.timesteps[nxt]], torch.ones_like(a_t))
        a_t, a_prev = a_t.view(-1, 1, 1, 1), a_prev.view(-1, 1, 1, 1)

        x0 = a_t.sqrt() * sample - (1 - a_t).sqrt() * v
        x0 = self.threshold(x0)
        eps = (sample - a_t.sqrt() * x0) / (1 - a_t).sqrt()

        variance = (1 - a_prev) / (1 - a_t) * (1 - a_t / a_prev)
        sigma = eta * variance.clamp(min=0).sqrt()
        direction = (1 - a_prev - sigma ** 2).clamp(min=0).sqrt() * eps
        prev = a_prev.sqrt() * x0 + direction + sigma * noise
        return prev, x0


class LatentDenoiser(nn.Module):
    """One guided denoising step for a batch whose samples may be at different steps of the schedule."""

    def __init__(self, text_dim=14, context_dim=20, rescale=0.7):
        super().__init__()
        self.rescale = rescale
        self.text = TextConditioner(text_dim, context_dim, 9)
        self.unet = UNet(context_dim=context_dim)
        self.scheduler = DDIMScheduler()

    def forward(self, latents, step, tokens, token_mask, sizes, hint, noise, guidance=3.5, eta=0.6):
        context, mask, pooled = self.text(tokens, token_mask)
        t = self.scheduler.timesteps[step]
        v = self.unet(
            latents.repeat(2, 1, 1, 1), t.repeat(2), context, mask, pooled, sizes.repeat(2, 1), hint.repeat(2, 1, 1, 1)
        )
        v_uncond, v_cond = v.chunk(2, dim=0)
        guided = v_uncond + guidance * (v_cond - v_uncond)
        std_cond = v_cond.std(dim=(1, 2, 3), keepdim=True)
        std_guided = guided.std(dim=(1, 2, 3), keepdim=True)
        rescaled = guided * (std_cond / std_guided)
        guided = self.rescale * rescaled + (1.0 - self.rescale) * guided
        prev, x0 = self.scheduler(guided, step, latents, noise, eta)
        return prev, x0, guided


def build():
    torch.manual_seed(38)
    net = LatentDenoiser().eval()
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, (nn.GroupNorm, nn.LayerNorm, nn.BatchNorm2d)):
                module.weight.normal_(1.0, 0.25)
                module.bias.normal_(0.0, 0.2)
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0.0, 0.1)
                module.running_var.uniform_(0.02, 0.12)
            elif isinstance(module, (nn.Linear, nn.Conv2d)):
                module.weight.normal_(0.0, 1.1 / math.sqrt(module.weight[0].numel()))
                if module.bias is not None:
                    module.bias.normal_(0.0, 0.1)
            for name, value in module.named_parameters(recurse=False):
                if name == "g":
                    value.normal_(1.0, 0.25)
                elif name in ("pos", "null", "mem_kv", "null_kv", "rel_bias"):
                    value.normal_(0.0, 0.8)
    rng = np.random.RandomState(7)
    latents = rng.randn(3, 4, 12, 10).astype(np.float32)
    step = np.array([2, 9, 15], dtype=np.int64)
    tokens = (0.03 * rng.randn(3, 7, 14)).astype(np.float32)
    token_mask = np.arange(7)[None, :] < np.array([[7], [4], [5]])
    sizes = np.array([[96, 80, 0, 7], [120, 64, 13, 0], [75, 75, 4, 21]], dtype=np.float32)
    hint = rng.rand(3, 3, 17, 15).astype(np.float32)
    noise = rng.randn(3, 4, 12, 10).astype(np.float32)
    inputs = tuple(torch.from_numpy(a) for a in (latents, step, tokens, token_mask, sizes, hint, noise))
    return net, inputs + (3.5, 0.6)
