"""Perceptor: a small Perceiver IO over an image and a partly masked caption.

An image and a token sequence are turned into one array of input elements (features + Fourier position features +
learned modality padding).  Latents read that array several times by cross attention and think in between by
self-attention.  Two decoders query the latents: a dense flow field (convex upsampling as in RAFT) and the words that
were masked out of the caption.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD_ID = 0
MASK_ID = 2


# --------------------------------------------------------------------------- positions

def build_grid(shape, lo=-1.0, hi=1.0):
    """Coordinates in [lo, hi] of every cell of an array with this shape: [*shape, len(shape)]."""
    axes = [torch.linspace(lo, hi, n) for n in shape]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)


class FourierFeatures(nn.Module):
    """sin/cos features at frequencies spaced linearly from 1 to the Nyquist rate of every axis."""

    def __init__(self, resolution, num_bands, concat_pos=True):
        super().__init__()
        self.resolution = tuple(resolution)
        self.num_bands = num_bands
        self.concat_pos = concat_pos
        freqs = torch.stack([torch.linspace(1.0, res / 2, num_bands) for res in self.resolution], dim=0)
        self.register_buffer("freqs", freqs, persistent=False)                      # [axes, bands]

    @property
    def channels(self):
        d = len(self.resolution)
        return 2 * d * self.num_bands + (d if self.concat_pos else 0)

    def forward(self, pos):
        """pos: [..., axes] in [-1, 1]  ->  [..., channels]"""
        phase = math.pi * pos.unsqueeze(-1) * self.freqs                            # [..., axes, bands]
        phase = phase.flatten(-2)
        out = torch.cat([phase.sin(), phase.cos()], dim=-1)
        if self.concat_pos:
            out = torch.cat([pos, out], dim=-1)
        return out


# --------------------------------------------------------------------------- attention

class GEGLU(nn.Module):
    def forward(self, x):
        x, gate = x.chunk(2, dim=-1)
        return x * F.gelu(gate)


class FeedForward(nn.Module):
    def __init__(self, dim, widening=2):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.net = nn.Sequential(
            nn.Linear(dim, dim * widening * 2),
            GEGLU(),
            nn.Linear(dim * widening, dim),
        )

    def forward(self, x):
        return self.net(self.norm(x))


class Attention(nn.Module):
    """Multi-head attention whose queries, keys and values may have different widths."""

    def __init__(self, q_dim, kv_dim, heads, qk_channels, v_channels, out_dim):
        super().__init__()
        assert qk_channels % heads == 0 and v_channels % heads == 0
        self.heads = heads
        self.scale = (qk_channels // heads) ** -0.5
        self.to_q = nn.Linear(q_dim, qk_channels)
        self.to_k = nn.Linear(kv_dim, qk_channels)
        self.to_v = nn.Linear(kv_dim, v_channels)
        self.to_out = nn.Linear(v_channels, out_dim)

    def forward(self, x, context, mask=None):
        b, n, _ = x.shape
        m, h = context.shape[1], self.heads
        q = self.to_q(x).reshape(b, n, h, -1)
        k = self.to_k(context).reshape(b, m, h, -1)
        v = self.to_v(context).reshape(b, m, h, -1)

        sim = torch.einsum("bnhd,bmhd->bhnm", q, k) * self.scale
        if mask is not None:                                                        # [b, m], True = may be read
            sim = sim.masked_fill(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhnm,bmhe->bnhe", attn, v).reshape(b, n, -1)
        return self.to_out(out)


class CrossAttend(nn.Module):
    """Pre-norm cross attention and feed forward; the query residual is optional as in Perceiver IO."""

    def __init__(self, q_dim, kv_dim, heads, qk_channels, v_channels, query_residual=True, widening=2):
        super().__init__()
        self.query_residual = query_residual
        self.norm_q = nn.LayerNorm(q_dim)
        self.norm_kv = nn.LayerNorm(kv_dim)
        self.attn = Attention(q_dim, kv_dim, heads, qk_channels, v_channels, q_dim)
        self.ff = FeedForward(q_dim, widening)

    def forward(self, x, context, mask=None):
        out = self.attn(self.norm_q(x), self.norm_kv(context), mask)
        x = x + out if self.query_residual else out
        return x + self.ff(x)


class SelfAttend(nn.Module):
    def __init__(self, dim, heads, widening=2):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = Attention(dim, dim, heads, dim, dim, dim)
        self.ff = FeedForward(dim, widening)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attn(y, y)
        return x + self.ff(x)


# --------------------------------------------------------------------------- inputs

class ImageInput(nn.Module):
    """Convolutional stem at a quarter of the resolution, flattened, with two dimensional position features."""

    def __init__(self, image_size, in_channels=3, width=12, channels=16, num_bands=4):
        super().__init__()
        self.grid_size = (image_size[0] // 4, image_size[1] // 4)
        self.conv = nn.Conv2d(in_channels, width, 3, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width, eps=1e-3, momentum=0.01)
        self.act = nn.LeakyReLU()
        self.down = nn.Conv2d(width, channels, 3, stride=2, padding=1)
        self.fourier = FourierFeatures(self.grid_size, num_bands)
        self.register_buffer("grid", build_grid(self.grid_size), persistent=False)
        self.channels = channels + self.fourier.channels

    def forward(self, image):
        x = self.down(self.act(self.bn(self.conv(image))))                          # [b, c, h, w]
        b, c, h, w = x.shape
        feats = x.permute(0, 2, 3, 1).reshape(b, h * w, c)
        pos = self.fourier(self.grid).reshape(1, h * w, -1).expand(b, -1, -1)
        return feats, pos


class TextInput(nn.Module):
    """Token embeddings; positions count the tokens that are no padding, and reach from -1 to 1 over max_len."""

    def __init__(self, vocab, dim, max_len, num_bands=6):
        super().__init__()
        self.max_len = max_len
        self.dim = dim
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD_ID)
        self.fourier = FourierFeatures((max_len,), num_bands)
        self.channels = dim + self.fourier.channels

    def positions(self, mask):
        """[b, n] bool -> [b, n, 1]; left padding and right padding are both allowed."""
        index = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
        return (2.0 * index / (self.max_len - 1) - 1.0).unsqueeze(-1)

    def forward(self, tokens, mask):
        feats = self.embed(tokens) * math.sqrt(self.dim)
        pos = self.fourier(self.positions(mask))
        return feats, pos


class PackModalities(nn.Module):
    """Pads all modalities to one width with a learned vector each and joins them to one sequence."""

    def __init__(self, widths, min_padding=3):
        super().__init__()
        self.width = max(widths) + min_padding
        self.padding = nn.ParameterList(
            [nn.Parameter(torch.randn(1, 1, self.width - w)) for w in widths])

    def forward(self, items, masks):
        packed = []
        for (feats, pos), pad in zip(items, self.padding):
            b, n, _ = feats.shape
            packed.append(torch.cat([feats, pos, pad.expand(b, n, -1)], dim=2))
        return torch.cat(packed, dim=1), torch.cat(masks, dim=1)


# --------------------------------------------------------------------------- latents

class LatentEncoder(nn.Module):
    """The first read has weights of its own; later reads and all self-attention blocks share theirs."""

    def __init__(self, num_latents, dim, input_dim, depth, reads, heads, cross_heads, qk_channels):
        super().__init__()
        self.reads = reads
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.cross_first = CrossAttend(dim, input_dim, cross_heads, qk_channels, dim)
        self.cross_later = CrossAttend(dim, input_dim, cross_heads, qk_channels, dim)
        self.layers = nn.ModuleList([SelfAttend(dim, heads) for _ in range(depth)])
        self.read_embed = nn.Embedding(reads, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, inputs, mask):
        x = self.latents.unsqueeze(0).expand(inputs.shape[0], -1, -1)
        total = torch.zeros_like(x)
        for i in range(self.reads):
            cross = self.cross_first if i == 0 else self.cross_later
            x = cross(x + self.read_embed.weight[i], inputs, mask)
            for layer in self.layers:
                x = layer(x)
            total = total + x / (self.reads - i)                                     # later reads count more
        return self.norm(total)


# --------------------------------------------------------------------------- decoders

class FlowDecoder(nn.Module):
    """One query per stem cell (its image features and position), then convex upsampling by `factor`."""

    def __init__(self, feat_dim, pos_dim, query_dim, latent_dim, heads, qk_channels, factor=4):
        super().__init__()
        self.factor = factor
        self.to_query = nn.Linear(feat_dim + pos_dim, query_dim)
        self.cross = CrossAttend(query_dim, latent_dim, heads, qk_channels, query_dim, query_residual=False)
        self.norm = nn.LayerNorm(query_dim)
        self.flow = nn.Linear(query_dim, 2)
        self.weights = nn.Linear(query_dim, 9 * factor * factor)

    def upsample(self, flow, weights):
        """flow [b, 2, h, w], weights [b, 9 * f * f, h, w]: every fine cell is a convex mix of 3 x 3 coarse ones."""
        b, _, h, w = flow.shape
        f = self.factor
        weights = weights.reshape(b, 1, 9, f, f, h, w).softmax(dim=2)
        patches = F.unfold(f * flow, kernel_size=3, padding=1).reshape(b, 2, 9, 1, 1, h, w)
        fine = (weights * patches).sum(dim=2)                                       # [b, 2, f, f, h, w]
        return fine.permute(0, 1, 4, 2, 5, 3).reshape(b, 2, h * f, w * f)

    def forward(self, feats, pos, latents, grid_size):
        b = feats.shape[0]
        h, w = grid_size
        query = self.to_query(torch.cat([feats, pos], dim=-1))
        x = self.norm(self.cross(query, latents))
        flow = self.flow(x).transpose(1, 2).reshape(b, 2, h, w)
        weights = 0.25 * self.weights(x).transpose(1, 2).reshape(b, -1, h, w)
        return self.upsample(flow, weights)


class WordDecoder(nn.Module):
    """Queries the masked places (position features and a learned table); the output embedding is tied."""

    def __init__(self, vocab, embed_dim, pos_dim, query_dim, latent_dim, max_len, heads, qk_channels, smoothing=0.1):
        super().__init__()
        self.smoothing = smoothing
        self.table = nn.Parameter(torch.randn(max_len, query_dim))
        self.from_pos = nn.Linear(pos_dim, query_dim, bias=False)
        self.cross = CrossAttend(query_dim, latent_dim, heads, qk_channels, query_dim)
        self.norm = nn.LayerNorm(query_dim)
        self.to_embed = nn.Linear(query_dim, embed_dim)
        self.bias = nn.Parameter(torch.randn(vocab))

    def forward(self, places, pos, latents, embedding):
        """places [b, k] (negative: unused), pos [b, n, c] of the whole text  ->  log probabilities [b, k, vocab]"""
        index = places.clamp(min=0)
        at = torch.gather(pos, 1, index[..., None].expand(-1, -1, pos.shape[-1]))
        query = self.table[index] + self.from_pos(at)
        x = self.to_embed(F.gelu(self.norm(self.cross(query, latents))))
        logits = x @ embedding.t() / math.sqrt(embedding.shape[1]) + self.bias
        logits[..., PAD_ID] = logits[..., PAD_ID] - 1e4                             # padding is never the answer
        return logits.log_softmax(dim=-1)

    def loss(self, logp, targets, valid):
        """Label-smoothed cross entropy over the used places; the padding word takes no part in the smoothing."""
        nll = -logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        smooth = -logp[..., PAD_ID + 1:].mean(dim=-1)
        each = (1.0 - self.smoothing) * nll + self.smoothing * smooth
        return (each * valid).sum() / valid.sum().clamp(min=1)


# --------------------------------------------------------------------------- the net

class Perceptor(nn.Module):
    def __init__(self, image_size=(24, 40), vocab=29, text_dim=20, max_len=13, num_latents=9, latent_dim=24,
                 depth=2, reads=3):
        super().__init__()
        self.image_in = ImageInput(image_size)
        self.text_in = TextInput(vocab, text_dim, max_len)
        self.pack = PackModalities([self.image_in.channels, self.text_in.channels])
        self.encoder = LatentEncoder(num_latents, latent_dim, self.pack.width, depth, reads,
                                     heads=3, cross_heads=2, qk_channels=16)
        self.flow_out = FlowDecoder(16, self.image_in.fourier.channels, 32, latent_dim, heads=4, qk_channels=24)
        self.word_out = WordDecoder(vocab, text_dim, self.text_in.fourier.channels, 30, latent_dim, max_len,
                                    heads=5, qk_channels=40)

    @staticmethod
    def hide(tokens, places):
        """Writes MASK_ID at the used places; unused ones land in a spare column."""
        b, n = tokens.shape
        target = torch.where(places >= 0, places, torch.full_like(places, n))
        spare = torch.cat([tokens, tokens.new_zeros(b, 1)], dim=1)
        return spare.scatter(1, target, MASK_ID)[:, :n]

    def forward(self, image, tokens, places):
        text_mask = tokens != PAD_ID
        valid = places >= 0
        targets = tokens.gather(1, places.clamp(min=0))

        image_feats, image_pos = self.image_in(image)
        text_feats, text_pos = self.text_in(self.hide(tokens, places), text_mask)
        image_mask = torch.ones(image_feats.shape[:2], dtype=torch.bool, device=image.device)
        inputs, mask = self.pack([(image_feats, image_pos), (text_feats, text_pos)], [image_mask, text_mask])

        latents = self.encoder(inputs, mask)
        flow = self.flow_out(image_feats, image_pos, latents, self.image_in.grid_size)
        logp = self.word_out(places, text_pos, latents, self.text_in.embed.weight)
        loss = self.word_out.loss(logp, targets, valid)
        return flow, logp[..., PAD_ID + 1:], loss


def randomize(net, seed=5):
    """Weights as after training: nothing is at its initial value."""
    g = torch.Generator().manual_seed(seed)

    def normal(shape, std, mean=0.0):
        return torch.randn(shape, generator=g) * std + mean

    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)):
                module.weight.copy_(normal(module.weight.shape, 0.25, 1.0))
                module.bias.copy_(normal(module.bias.shape, 0.3))
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.copy_(normal(module.running_mean.shape, 0.3))
                module.running_var.copy_(torch.rand(module.running_var.shape, generator=g) * 0.4 + 0.02)
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                fan_in = module.weight[0].numel()
                module.weight.copy_(normal(module.weight.shape, 1.7 / math.sqrt(fan_in)))
                if module.bias is not None:
                    module.bias.copy_(normal(module.bias.shape, 0.3))
            if isinstance(module, nn.Embedding):
                module.weight.copy_(normal(module.weight.shape, 0.6))
        for name, p in net.named_parameters():
            if name in ("encoder.latents", "word_out.table", "word_out.bias"):
                p.copy_(normal(p.shape, 0.7))
            elif ".padding." in name:
                p.copy_(normal(p.shape, 0.5))
    return net


def build():
    torch.manual_seed(11)
    net = randomize(Perceptor())
    i = torch.arange(2 * 3 * 24 * 40, dtype=torch.float64)
    image = (torch.sin(i * 0.37) + torch.cos(i * i * 0.0113) * 0.8).float().reshape(2, 3, 24, 40)
    tokens = torch.tensor([[1, 7, 14, 5, 22, 9, 28, 3, 11, 17, 4],
                           [0, 0, 1, 19, 6, 25, 13, 8, 4, 0, 0]])
    places = torch.tensor([[2, 5, 8, -1], [4, 7, -1, -1]])
    return net.eval(), (image, tokens, places)
