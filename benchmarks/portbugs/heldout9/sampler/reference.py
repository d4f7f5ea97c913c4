"""Text to image by latent diffusion: a text encoder, a UNet, a solver of second order with guidance, and a decoder."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class TimeFeatures(nn.Module):
    """Cosines, then sines, of a number at frequencies that fall geometrically."""

    def __init__(self, width: int, period: float = 10000.0):
        super().__init__()
        half = width // 2
        frequencies = torch.exp(-math.log(period) * torch.arange(half, dtype=torch.float64) / half)
        self.register_buffer("frequencies", frequencies.float(), persistent=False)

    def forward(self, numbers):
        angles = numbers.float().unsqueeze(-1) * self.frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=-1)


class TextBlock(nn.Module):
    """Causal self-attention and a feed-forward with the sigmoid's GELU."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -1e9).softmax(dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        h = self.fc1(self.norm2(x))
        return x + self.fc2(h * torch.sigmoid(1.702 * h))


class TextEncoder(nn.Module):
    """Vectors of the words, weighted by the user; the end's vector; which words count."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, depth: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList([TextBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, width, bias=False)

    def forward(self, tokens, emphasis):
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.places[:length]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        end = tokens.argmax(dim=-1)
        pooled = self.project(x[torch.arange(len(x)), end])
        keep = torch.arange(length, device=x.device) <= end.unsqueeze(1)
        weighted = x * emphasis.unsqueeze(-1)
        before = x.square().sum(dim=(1, 2), keepdim=True).sqrt()
        after = weighted.square().sum(dim=(1, 2), keepdim=True).sqrt()
        return weighted * (before / after.clamp(min=1e-6)), pooled, keep


class Attention(nn.Module):
    """Attention with several heads over itself or over a context, of which some places may not count."""

    def __init__(self, width: int, context: int, heads: int):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(context, width, bias=False)
        self.to_v = nn.Linear(context, width, bias=False)
        self.to_out = nn.Linear(width, width)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, context=None, keep=None):
        context = x if context is None else context
        q, k, v = self.split(self.to_q(x)), self.split(self.to_k(context)), self.split(self.to_v(context))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None, :], torch.finfo(scores.dtype).min)
        mixed = torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)
        return self.to_out(mixed.transpose(1, 2).flatten(2))


class GatedFeedForward(nn.Module):
    """The first half is the value, the GELU of the second half its gate."""

    def __init__(self, width: int, times: int = 2):
        super().__init__()
        self.proj = nn.Linear(width, 2 * times * width)
        self.out = nn.Linear(times * width, width)

    def forward(self, x):
        value, gate = self.proj(x).chunk(2, dim=-1)
        return self.out(value * functional.gelu(gate))


class SpatialTransformer(nn.Module):
    """The picture's places as words: self-attention, attention over the text, feed-forward."""

    def __init__(self, width: int, context: int, heads: int):
        super().__init__()
        self.norm = nn.GroupNorm(8, width, eps=1e-6)
        self.proj_in = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width)
        self.attn1 = Attention(width, width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.attn2 = Attention(width, context, heads)
        self.norm3 = nn.LayerNorm(width)
        self.ff = GatedFeedForward(width)
        self.proj_out = nn.Linear(width, width)

    def forward(self, x, context, keep):
        batch, width, height, breadth = x.shape
        h = self.norm(x).permute(0, 2, 3, 1).reshape(batch, height * breadth, width)
        h = self.proj_in(h)
        h = h + self.attn1(self.norm1(h))
        h = h + self.attn2(self.norm2(h), context, keep)
        h = h + self.ff(self.norm3(h))
        h = self.proj_out(h).reshape(batch, height, breadth, width).permute(0, 3, 1, 2)
        return x + h


class ResBlock(nn.Module):
    """Two convolutions; the second norm is scaled and shifted by the embedding."""

    def __init__(self, inside: int, outside: int, embedding: int = 0):
        super().__init__()
        self.norm1 = nn.GroupNorm(8, inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1)
        self.emb = nn.Linear(embedding, 2 * outside) if embedding else None
        self.norm2 = nn.GroupNorm(8, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x, emb=None):
        h = self.conv1(functional.silu(self.norm1(x)))
        h = self.norm2(h)
        if emb is not None:
            scale, shift = self.emb(functional.silu(emb))[:, :, None, None].chunk(2, dim=1)
            h = h * (1 + scale) + shift
        h = self.conv2(functional.silu(h))
        return (self.skip(x) + h) * math.sqrt(0.5)


class Down(nn.Module):
    """A residual block, attention where it is asked for, and half the size."""

    def __init__(self, inside, outside, embedding, context, heads):
        super().__init__()
        self.res = ResBlock(inside, outside, embedding)
        self.attn = SpatialTransformer(outside, context, heads) if heads else None
        self.down = nn.Conv2d(outside, outside, 3, stride=2, padding=1)

    def forward(self, x, emb, context, keep):
        kept = self.res(x, emb)
        if self.attn is not None:
            kept = self.attn(kept, context, keep)
        return self.down(kept), kept


class Up(nn.Module):
    """Twice the size, the kept picture beside it, a residual block and attention where it is asked for."""

    def __init__(self, inside, kept, outside, embedding, context, heads):
        super().__init__()
        self.conv = nn.Conv2d(inside, inside, 3, padding=1)
        self.res = ResBlock(inside + kept, outside, embedding)
        self.attn = SpatialTransformer(outside, context, heads) if heads else None

    def forward(self, x, kept, emb, context, keep):
        x = self.conv(functional.interpolate(x, size=kept.shape[-2:], mode="nearest"))
        x = self.res(torch.cat([x, kept], dim=1), emb)
        return x if self.attn is None else self.attn(x, context, keep)


class UNet(nn.Module):
    """What was mixed into the latent picture, given the time, the text and the sizes that are asked."""

    def __init__(self, latent: int, width: int, context: int, heads: int):
        super().__init__()
        embedding = 2 * width
        self.features = TimeFeatures(width)
        self.time_mlp = nn.Sequential(nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        more = context + 2 * width
        self.add_mlp = nn.Sequential(nn.Linear(more, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.conv_in = nn.Conv2d(latent, width, 3, padding=1)
        stages = [(width, 0), (2 * width, heads)]
        self.down = nn.ModuleList()
        inside = width
        for outside, count in stages:
            self.down.append(Down(inside, outside, embedding, context, count))
            inside = outside
        self.mid = ResBlock(inside, inside, embedding)
        self.mid_attn = SpatialTransformer(inside, context, heads)
        self.up = nn.ModuleList()
        for outside, count in reversed(stages):
            self.up.append(Up(inside, outside, outside, embedding, context, count))
            inside = outside
        self.norm_out = nn.GroupNorm(8, width)
        self.conv_out = nn.Conv2d(width, latent, 3, padding=1)

    def forward(self, x, step, context, keep, pooled, sizes):
        emb = self.time_mlp(self.features(step))
        extra = self.features(sizes).flatten(1)
        emb = emb + self.add_mlp(torch.cat([pooled, extra], dim=-1))
        h = self.conv_in(x)
        stack = []
        for stage in self.down:
            h, kept = stage(h, emb, context, keep)
            stack.append(kept)
        h = self.mid_attn(self.mid(h, emb), context, keep)
        for stage in self.up:
            h = stage(h, stack.pop(), emb, context, keep)
        return self.conv_out(functional.silu(self.norm_out(h)))


class Guidance(nn.Module):
    """Away from the empty prompt, towards the prompt, with the spread of the prompt's answer partly restored."""

    def __init__(self, scale: float, rescale: float):
        super().__init__()
        self.scale = scale
        self.rescale = rescale

    def forward(self, both):
        without, given = both.chunk(2, dim=0)
        guided = without + self.scale * (given - without)
        ratio = given.std(dim=(1, 2, 3), keepdim=True) / guided.std(dim=(1, 2, 3), keepdim=True)
        return self.rescale * guided * ratio + (1 - self.rescale) * guided


class Solver(nn.Module):
    """DPM-Solver++ of second order with two steps' memory, for nets that answer with the velocity."""

    def __init__(self, count: int, train: int = 1000, first: float = 0.00085, last: float = 0.012):
        super().__init__()
        self.count = count
        betas = torch.linspace(first**0.5, last**0.5, train, dtype=torch.float64) ** 2
        product = torch.cumprod(1 - betas, dim=0)
        steps = torch.linspace(0, train - 1, count + 1, dtype=torch.float64).round().long().flip(0)
        alphas, sigmas = product[steps].sqrt(), (1 - product[steps]).sqrt()
        self.register_buffer("steps", steps, persistent=False)
        self.register_buffer("alphas", alphas.float(), persistent=False)
        self.register_buffer("sigmas", sigmas.float(), persistent=False)
        self.register_buffer("lambdas", (alphas.log() - sigmas.log()).float(), persistent=False)

    def clip(self, clean, share: float = 0.95):
        flat = clean.flatten(1).abs()
        limit = torch.quantile(flat, share, dim=1).clamp(min=1.0)[:, None, None, None]
        return torch.minimum(torch.maximum(clean, -limit), limit) / limit

    def forward(self, x, velocity, previous, i: int):
        clean = self.clip(self.alphas[i] * x - self.sigmas[i] * velocity)
        h = self.lambdas[i + 1] - self.lambdas[i]
        direction = clean
        if previous is not None and i < self.count - 1:
            ratio = (self.lambdas[i] - self.lambdas[i - 1]) / h
            direction = clean + 0.5 / ratio * (clean - previous)
        x = self.sigmas[i + 1] / self.sigmas[i] * x - self.alphas[i + 1] * torch.expm1(-h) * direction
        return x, clean


class Decoder(nn.Module):
    """From the latent picture to colours: attention with one head, bilinear growth, and a shuffle of pixels."""

    def __init__(self, latent: int, width: int):
        super().__init__()
        self.conv_in = nn.Conv2d(latent, width, 3, padding=1)
        self.res1 = ResBlock(width, width)
        self.norm = nn.GroupNorm(8, width)
        self.qkv = nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)
        self.conv_up = nn.Conv2d(width, width, 3, padding=1)
        self.res2 = ResBlock(width, width)
        self.norm_out = nn.GroupNorm(8, width, eps=1e-6)
        self.act = nn.LeakyReLU()
        self.conv_out = nn.Conv2d(width, 12, 3, padding=1, padding_mode="replicate")

    def forward(self, z):
        h = self.res1(self.conv_in(z))
        batch, width, height, breadth = h.shape
        q, k, v = self.qkv(self.norm(h)).flatten(2).chunk(3, dim=1)
        weights = torch.bmm(q.transpose(1, 2), k).mul(width**-0.5).softmax(dim=2)
        mixed = torch.bmm(v, weights.transpose(1, 2)).view(batch, width, height, breadth)
        h = h + self.out(mixed)
        h = functional.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)
        h = self.res2(self.conv_up(h))
        image = functional.pixel_shuffle(self.conv_out(self.act(self.norm_out(h))), 2)
        return (image.tanh() + 1) / 2


class Sampler(nn.Module):
    """Prompt and noise in, picture and latent picture out."""

    def __init__(self, vocabulary: int = 120, length: int = 12, width: int = 24, context: int = 24, heads: int = 4):
        super().__init__()
        self.latent_scale = 0.6
        self.text = TextEncoder(vocabulary, length, context, heads, 2)
        self.unet = UNet(4, width, context, heads)
        self.guidance = Guidance(3.0, 0.7)
        self.solver = Solver(3)
        self.decoder = Decoder(4, width)

    def forward(self, noise, prompt, negative, emphasis, sizes):
        tokens = torch.cat([negative, prompt], dim=0)
        emphasis = torch.cat([torch.ones_like(emphasis), emphasis], dim=0)
        context, pooled, keep = self.text(tokens, emphasis)
        sizes = sizes.repeat(2, 1)
        x, previous = noise, None
        for i in range(self.solver.count):
            step = self.solver.steps[i].expand(2 * len(x))
            both = self.unet(x.repeat(2, 1, 1, 1), step, context, keep, pooled, sizes)
            x, previous = self.solver(x, self.guidance(both), previous, i)
        mean = x.mean(dim=(2, 3), keepdim=True)
        spread = x.std(dim=(2, 3), keepdim=True)
        latent = mean + (x - mean) * (1.0 / spread.clamp(min=0.05)).clamp(max=4.0)
        return self.decoder(latent / self.latent_scale), x


def build():
    """The net with the same weights on every run, two prompts, and the noise to begin with."""
    torch.manual_seed(29)
    net = Sampler()
    for name, module in net.named_modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.6)
        elif isinstance(module, nn.Linear) and name.split(".")[-1] in ("to_q", "to_k", "qkv"):
            nn.init.normal_(module.weight, std=1.6 / math.sqrt(module.in_features))
    nn.init.normal_(net.text.places, std=0.3)
    nn.init.normal_(net.decoder.qkv.weight, std=0.3)
    for block, gain in ((net.unet.conv_out, 1.4), (net.decoder.conv_out, 0.7), (net.decoder.out, 1.4)):
        nn.init.normal_(block.weight, std=gain / math.sqrt(block.weight[0].numel()))
    prompt = torch.randint(1, 118, (2, 12))
    negative = torch.randint(1, 118, (2, 12))
    prompt[0, 7], prompt[1, 10], negative[0, 3], negative[1, 5] = 119, 119, 119, 119
    prompt[0, 8:], prompt[1, 11:], negative[0, 4:], negative[1, 6:] = 0, 0, 0, 0
    emphasis = torch.ones(2, 12)
    emphasis[0, 2:5], emphasis[1, 4], emphasis[1, 6:8] = 1.6, 0.4, 1.9
    noise = torch.randn(2, 4, 6, 8)
    sizes = torch.tensor([[64, 96], [48, 80]])
    return net.eval(), (noise, prompt, negative, emphasis, sizes)
