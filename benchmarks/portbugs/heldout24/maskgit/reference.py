"""MaskGIT-style image editing in PyTorch: VQ tokens, a bidirectional transformer, parallel decoding with guidance."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class Config:
    # tokenizer
    in_channels = 3
    widths = (16, 24)
    num_groups = 4
    code_dim = 10
    codebook_size = 41
    patch = 4
    mid_dilation = 2
    slope = 0.2
    # transformer
    num_classes = 6
    hidden = 36
    heads = 4
    ffn = 80
    layers = 3
    max_rows = 8
    max_cols = 11
    layer_norm_eps = 1e-6
    # decoding
    steps = 5
    guidance = 2.4
    sample_temperature = 1.2
    choice_temperature = 1.5


PIXEL_MEAN = (0.5, 0.46, 0.41)
PIXEL_STD = (0.27, 0.26, 0.28)


# --------------------------------------------------------------------------------------------------------------------
# tokenizer


def nonlinearity(x):
    """swish"""
    return x * torch.sigmoid(x)


def group_norm(channels, groups):
    return nn.GroupNorm(num_groups=groups, num_channels=channels, eps=1e-6, affine=True)


class ResnetBlock(nn.Module):
    """Two convolutions before which there is a norm and a swish; a 1x1 convolution on the skip where widths differ."""

    def __init__(self, in_channels, out_channels, groups, dilation=1):
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.norm1 = group_norm(in_channels, groups)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=1, padding=dilation, dilation=dilation)
        self.norm2 = group_norm(out_channels, groups)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, stride=1, padding=1)
        if in_channels != out_channels:
            self.nin_shortcut = nn.Conv2d(in_channels, out_channels, 1, bias=False)

    def forward(self, x):
        h = self.norm1(x)
        h = nonlinearity(h)
        h = self.conv1(h)
        h = self.norm2(h)
        h = nonlinearity(h)
        h = self.conv2(h)
        if self.in_channels != self.out_channels:
            x = self.nin_shortcut(x)
        return x + h


class Downsample(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 4, stride=2, padding=1)

    def forward(self, x):
        return self.conv(x)


class Upsample(nn.Module):
    """Nearest neighbour, then a convolution."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.conv(x)


class Encoder(nn.Module):
    """Pixels to a grid of features, four times smaller."""

    def __init__(self, cfg):
        super().__init__()
        first, last = cfg.widths
        self.conv_in = nn.Conv2d(cfg.in_channels, first, 3, padding=1)
        self.block1 = ResnetBlock(first, first, cfg.num_groups)
        self.down1 = Downsample(first)
        self.block2 = ResnetBlock(first, last, cfg.num_groups)
        self.down2 = Downsample(last)
        self.mid = ResnetBlock(last, last, cfg.num_groups, dilation=cfg.mid_dilation)
        self.norm_out = group_norm(last, cfg.num_groups)
        self.conv_out = nn.Conv2d(last, cfg.code_dim, 1)

    def forward(self, x):
        h = self.conv_in(x)
        h = self.down1(self.block1(h))
        h = self.down2(self.block2(h))
        h = self.mid(h)
        return self.conv_out(nonlinearity(self.norm_out(h)))


class VectorQuantizer(nn.Module):
    """Nearest code on the unit sphere; at inference there is no straight-through estimate."""

    def __init__(self, codebook_size, code_dim):
        super().__init__()
        self.code_dim = code_dim
        self.embedding = nn.Embedding(codebook_size, code_dim)

    def codes(self):
        return F.normalize(self.embedding.weight, p=2, dim=-1)

    def forward(self, z):
        """z (batch, channels, rows, cols) to indices (batch, rows * cols) and the distance to the chosen codes."""
        b, c, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).contiguous().view(-1, self.code_dim)
        flat = F.normalize(flat, p=2, dim=-1)
        codes = self.codes()
        dist = (
            flat.pow(2).sum(dim=1, keepdim=True)
            + codes.pow(2).sum(dim=1)
            - 2 * torch.einsum("nd,kd->nk", flat, codes)
        )
        best, index = dist.min(dim=1)
        return index.view(b, h * w), best.view(b, h * w)

    def lookup(self, index, grid):
        """Indices (batch, rows * cols) to the codes as a map."""
        b = index.shape[0]
        quant = F.embedding(index.reshape(-1), self.codes())
        return quant.view(b, grid[0], grid[1], self.code_dim).permute(0, 3, 1, 2).contiguous()


class Decoder(nn.Module):
    """Features of the tokens back to pixels."""

    def __init__(self, cfg):
        super().__init__()
        first, last = cfg.widths
        self.conv_in = nn.Conv2d(cfg.code_dim, last, 3, padding=1)
        self.mid = ResnetBlock(last, last, cfg.num_groups, dilation=cfg.mid_dilation)
        self.up1 = Upsample(last)
        self.block1 = ResnetBlock(last, first, cfg.num_groups)
        self.up2 = Upsample(first)
        self.block2 = ResnetBlock(first, first, cfg.num_groups)
        self.norm_out = group_norm(first, cfg.num_groups)
        self.act_out = nn.LeakyReLU(cfg.slope)
        self.conv_out = nn.Conv2d(first, cfg.in_channels, 3, padding=1)

    def forward(self, quant, valid):
        """quant (batch, code_dim, rows, cols), valid (batch, rows, cols)."""
        h = self.conv_in(quant * valid[:, None].to(quant.dtype))
        h = self.mid(h)
        h = self.block1(self.up1(h))
        h = self.block2(self.up2(h))
        h = self.act_out(self.norm_out(h))
        return self.conv_out(h)


# --------------------------------------------------------------------------------------------------------------------
# transformer


class TokenEmbeddings(nn.Module):
    """One table for codes, classes, "no class", mask and padding; places are a row's vector plus a column's."""

    def __init__(self, cfg, vocab):
        super().__init__()
        self.max_rows, self.max_cols = cfg.max_rows, cfg.max_cols
        self.word = nn.Embedding(vocab, cfg.hidden)
        self.row_embed = nn.Parameter(torch.zeros(cfg.max_rows, cfg.hidden))
        self.col_embed = nn.Parameter(torch.zeros(cfg.max_cols, cfg.hidden))
        self.class_pos = nn.Parameter(torch.zeros(1, cfg.hidden))
        self.norm = nn.LayerNorm(cfg.hidden, eps=cfg.layer_norm_eps)

    def positions(self, grid):
        """The middle of the tables for grids that are smaller than the largest; (1 + rows * cols, hidden)."""
        h, w = grid
        top = (self.max_rows - h) // 2
        left = (self.max_cols - w) // 2
        rows = self.row_embed[top : top + h]
        cols = self.col_embed[left : left + w]
        pos = rows[:, None, :] + cols[None, :, :]
        return torch.cat((self.class_pos, pos.reshape(h * w, -1)), dim=0)

    def forward(self, ids, grid):
        x = self.word(ids) + self.positions(grid).unsqueeze(0)
        return self.norm(x)


class SelfAttention(nn.Module):
    """Attention without a causal mask."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = hidden // heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def split(self, x):
        b, n, _ = x.shape
        return x.view(b, n, self.heads, self.head_dim).transpose(1, 2)

    def forward(self, x, key_mask):
        b, n, d = x.shape
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~key_mask[:, None, None, :], float("-inf"))
        probs = scores.softmax(dim=-1)
        context = torch.einsum("bhij,bhjd->bhid", probs, v)
        context = context.permute(0, 2, 1, 3).contiguous().view(b, n, d)
        return self.out(context)


class FeedForward(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.fc1 = nn.Linear(hidden, ffn)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(ffn, hidden)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class TransformerLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.attention = SelfAttention(cfg.hidden, cfg.heads)
        self.attention_norm = nn.LayerNorm(cfg.hidden, eps=cfg.layer_norm_eps)
        self.mlp = FeedForward(cfg.hidden, cfg.ffn)
        self.mlp_norm = nn.LayerNorm(cfg.hidden, eps=cfg.layer_norm_eps)

    def forward(self, x, key_mask):
        x = self.attention_norm(x + self.attention(x, key_mask))
        x = self.mlp_norm(x + self.mlp(x))
        return x


class MlmHead(nn.Module):
    """A dense layer, then the product with the embeddings, which are shared."""

    def __init__(self, hidden, vocab, eps):
        super().__init__()
        self.dense = nn.Linear(hidden, hidden)
        self.act = nn.GELU()
        self.norm = nn.LayerNorm(hidden, eps=eps)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, x, table):
        x = self.norm(self.act(self.dense(x)))
        return torch.matmul(x, table.t()) + self.bias


class BidirectionalTransformer(nn.Module):
    def __init__(self, cfg, vocab):
        super().__init__()
        self.embeddings = TokenEmbeddings(cfg, vocab)
        self.layers = nn.ModuleList(TransformerLayer(cfg) for _ in range(cfg.layers))
        self.mlm_head = MlmHead(cfg.hidden, vocab, cfg.layer_norm_eps)

    def forward(self, ids, key_mask, grid):
        x = self.embeddings(ids, grid)
        for layer in self.layers:
            x = layer(x, key_mask)
        return self.mlm_head(x, self.embeddings.word.weight)


# --------------------------------------------------------------------------------------------------------------------
# decoding


def mask_ratios(steps):
    """The share of tokens that is still masked after each round."""
    ratio = torch.arange(1, steps + 1, dtype=torch.float64) / steps
    return torch.cos(math.pi / 2 * ratio).clamp(min=0.0)


def mask_by_topk(mask_len, probs, noise, temperature):
    """True for the mask_len (batch, 1) tokens of least confidence in each row."""
    confidence = torch.log(probs.clamp(min=1e-9)) + temperature * noise
    ordered, _ = torch.sort(confidence, dim=-1)
    cut_off = torch.gather(ordered, 1, mask_len)
    return confidence < cut_off


def valid_maps(sizes, height, width):
    """(batch, height, width), true inside the image; sizes (batch, 2) are rows and columns."""
    rows = torch.arange(height)[None, :] < sizes[:, :1]
    cols = torch.arange(width)[None, :] < sizes[:, 1:]
    return rows[:, :, None] & cols[:, None, :]


class MaskGit(nn.Module):
    """Regenerates the edited part of an image for a class."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.class_offset = cfg.codebook_size
        self.null_id = cfg.codebook_size + cfg.num_classes
        self.mask_id = self.null_id + 1
        self.pad_id = self.null_id + 2
        self.register_buffer("mean", torch.tensor(PIXEL_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(PIXEL_STD).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("ratios", mask_ratios(cfg.steps), persistent=False)
        self.encoder = Encoder(cfg)
        self.quantizer = VectorQuantizer(cfg.codebook_size, cfg.code_dim)
        self.transformer = BidirectionalTransformer(cfg, self.pad_id + 1)
        self.decoder = Decoder(cfg)

    def guided_logits(self, ids, labels, valid, grid, scale):
        """Logits over the codes at the image's tokens, from one pass over a batch of both kinds."""
        cond = (labels + self.class_offset)[:, None]
        uncond = torch.full_like(cond, self.null_id)
        both = torch.cat((torch.cat((cond, ids), dim=1), torch.cat((uncond, ids), dim=1)), dim=0)
        key_mask = F.pad(valid, (1, 0), value=True).repeat(2, 1)
        logits = self.transformer(both, key_mask, grid)[:, 1:, : self.cfg.codebook_size]
        with_class, without = logits.chunk(2, dim=0)
        return without + scale * (with_class - without)

    def generate(self, ids, labels, valid, grid, sample_noise, choice_noise):
        """Fill in the masked tokens round by round; the most confident ones stay."""
        cfg = self.cfg
        unknown_at_start = (ids == self.mask_id).sum(dim=1, keepdim=True)
        kept_probs = []
        for step in range(cfg.steps):
            ratio = (step + 1) / cfg.steps
            logits = self.guided_logits(ids, labels, valid, grid, cfg.guidance * ratio)
            sampled = (logits + cfg.sample_temperature * sample_noise[step]).argmax(dim=-1)
            unknown = ids == self.mask_id
            sampled = torch.where(unknown, sampled, ids)

            probs = logits.softmax(dim=-1)
            index = sampled.clamp(max=cfg.codebook_size - 1).unsqueeze(-1)
            selected = torch.gather(probs, -1, index).squeeze(-1)
            kept_probs.append(torch.where(unknown, selected, torch.ones_like(selected)))
            # what is given must never be masked
            selected = torch.where(unknown, selected, torch.full_like(selected, float("inf")))

            if step == cfg.steps - 1:
                ids = sampled
                break
            mask_len = torch.floor(unknown_at_start * self.ratios[step]).long()
            left = unknown.sum(dim=1, keepdim=True) - 1
            mask_len = torch.maximum(torch.ones_like(mask_len), torch.minimum(left, mask_len))
            masking = mask_by_topk(mask_len, selected, choice_noise[step], cfg.choice_temperature * (1.0 - ratio))
            ids = torch.where(masking, torch.full_like(sampled, self.mask_id), sampled)
        return ids, logits, torch.stack(kept_probs, dim=1)

    def forward(self, image, edit, sizes, labels, sample_noise, choice_noise):
        """image (batch, 3, height, width) in [0, 1]; edit (batch, height, width), true where to paint anew."""
        b, _, height, width = image.shape
        grid = (height // self.cfg.patch, width // self.cfg.patch)
        inside = valid_maps(sizes, height, width)
        valid_grid = valid_maps(torch.div(sizes, self.cfg.patch, rounding_mode="floor"), *grid)
        valid = valid_grid.flatten(1)

        x = (image - self.mean) / self.std
        z = self.encoder(x * inside[:, None].to(x.dtype))
        index, distance = self.quantizer(z)

        # a token is painted anew when one pixel of its patch is
        touched = F.max_pool2d(edit[:, None].float(), self.cfg.patch)[:, 0].flatten(1) > 0
        ids = index.masked_fill(touched, self.mask_id).masked_fill(~valid, self.pad_id)
        ids, logits, kept_probs = self.generate(ids, labels, valid, grid, sample_noise, choice_noise)

        tokens = torch.where(valid, ids, torch.zeros_like(ids))
        quant = self.quantizer.lookup(tokens, grid)
        painted = self.decoder(quant, valid_grid) * self.std + self.mean
        merged = torch.where(edit[:, None], painted, image) * inside[:, None].to(image.dtype)
        return {
            "painted": painted,
            "merged": merged,
            "tokens": tokens,
            "logits": logits,
            "kept_probs": kept_probs,
            "distance": distance * valid.to(distance.dtype),
        }


def trained_like(net):
    """Values as after training."""
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.5)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.Linear, nn.Conv2d)):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, std=1.3 * fan_in**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.3)
    for name, parameter in net.named_parameters():
        if name.endswith(("row_embed", "col_embed", "class_pos")):
            nn.init.normal_(parameter, std=0.4)
        elif name.endswith("mlm_head.bias"):
            nn.init.normal_(parameter, std=0.2)
    return net


def build():
    """The net with the same weights on every run, and three images of three sizes on one canvas."""
    torch.manual_seed(2022)
    cfg = Config()
    net = trained_like(MaskGit(cfg))
    b, height, width = 3, 20, 28
    length = (height // cfg.patch) * (width // cfg.patch)
    image = torch.rand(b, 3, height, width)
    image = 0.5 * image + 0.5 * F.interpolate(torch.rand(b, 3, 5, 7), size=(height, width), mode="bilinear")
    sizes = torch.tensor([[20, 28], [16, 28], [20, 20]])
    edit = torch.zeros(b, height, width, dtype=torch.bool)
    edit[0, 5:18, 5:23] = True
    edit[1, 3:15, 8:27] = True
    edit[2, 6:20, 2:15] = True
    labels = torch.tensor([4, 0, 3])
    uniform = torch.rand(cfg.steps, b, length, cfg.codebook_size).clamp(1e-4, 1 - 1e-4)
    sample_noise = -torch.log(-torch.log(uniform))
    uniform = torch.rand(cfg.steps, b, length).clamp(1e-4, 1 - 1e-4)
    choice_noise = -torch.log(-torch.log(uniform))
    return net.eval(), (image, edit, sizes, labels, sample_noise, choice_noise)
