"""Contrastive image-text pre-training: a vision transformer with a class token, a causal text transformer, the softmax
loss of CLIP on the class token and the sigmoid loss of SigLIP on attention-pooled patches.

Images of a batch may differ in size: they are padded at the right and the bottom, `sizes` counts their patches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vision_width: int = 64
    vision_layers: int = 3
    vision_heads: int = 4
    stem_width: int = 24
    stem_groups: int = 8
    patch_size: int = 8
    grid_size: int = 4  # the grid of the table of positions
    num_latents: int = 2
    text_width: int = 48
    text_layers: int = 3
    text_heads: int = 4
    mlp_ratio: float = 2.0
    context_length: int = 16
    vocab_size: int = 96
    sot_id: int = 94
    eot_id: int = 95  # the tokenizer pads with it, too
    embed_dim: int = 32
    sig_hidden: int = 56
    max_logit_scale: float = 30.0
    label_smoothing: float = 0.1
    sig_chunk: int = 2  # what one device holds of the batch
    retrieval_temperature: float = 20.0


class QuickGELU(nn.Module):
    """The sigmoid approximation of GELU that the first CLIP models were trained with."""

    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class LayerScale(nn.Module):
    """A learnt factor for each channel of a residual branch."""

    def __init__(self, dim, init_value=0.1):
        super().__init__()
        self.gamma = nn.Parameter(init_value * torch.ones(dim))

    def forward(self, x):
        return x * self.gamma


class Mlp(nn.Module):
    def __init__(self, dim, hidden, act):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = act
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Attention(nn.Module):
    """Multi-head self-attention, with norms on queries and keys in the vision tower."""

    def __init__(self, dim, num_heads, qk_norm=False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.q_norm = nn.LayerNorm(self.head_dim, eps=1e-6) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim, eps=1e-6) if qk_norm else nn.Identity()
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, allowed=None):
        """`allowed` is true where a query may look at a key; it broadcasts to (batch, heads, queries, keys)."""
        b, n, d = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)

        attn = (q * self.scale) @ k.transpose(-2, -1)
        if allowed is not None:
            attn = attn.masked_fill(~allowed, torch.finfo(attn.dtype).min)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(b, n, d)
        return self.proj(x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio, act, qk_norm=False, layer_scale=False):
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, num_heads, qk_norm)
        self.ls_1 = LayerScale(dim) if layer_scale else nn.Identity()
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), act)
        self.ls_2 = LayerScale(dim) if layer_scale else nn.Identity()

    def forward(self, x, allowed=None):
        x = x + self.ls_1(self.attn(self.ln_1(x), allowed))
        x = x + self.ls_2(self.mlp(self.ln_2(x)))
        return x


class AttentionPool(nn.Module):
    """Learnt latents look at the patches; what they find is averaged."""

    def __init__(self, dim, num_heads, num_latents, mlp_ratio):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.latent = nn.Parameter(torch.zeros(1, num_latents, dim))
        self.norm_kv = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, dim * 2)
        self.proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), nn.GELU())

    def forward(self, x, valid):
        b, n, d = x.shape
        q = self.q(self.latent).reshape(1, -1, self.num_heads, self.head_dim).transpose(1, 2)
        kv = self.kv(self.norm_kv(x)).reshape(b, n, 2, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        k, v = kv.unbind(0)

        attn = q.expand(b, -1, -1, -1) @ k.transpose(-2, -1) * self.head_dim**-0.5
        attn = attn.masked_fill(~valid[:, None, None, :], torch.finfo(attn.dtype).min)
        x = attn.softmax(dim=-1) @ v
        x = self.proj(x.transpose(1, 2).reshape(b, -1, d))
        x = x + self.mlp(self.norm(x))
        return x.mean(dim=1)


class ConvStem(nn.Module):
    """Two convolutions and a pooling before the patches are cut (https://arxiv.org/abs/2106.14881)."""

    def __init__(self, in_channels, hidden, groups, width, patch_size):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, hidden, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(hidden)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(hidden, hidden, 3, padding=1, bias=False)
        self.gn2 = nn.GroupNorm(groups, hidden)
        self.act2 = nn.ReLU()
        self.pool = nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False)
        self.patch = nn.Conv2d(hidden, width, patch_size // 4, stride=patch_size // 4)

    def forward(self, x):
        x = self.act1(self.bn1(self.conv1(x)))
        x = self.act2(self.gn2(self.conv2(x)))
        return self.patch(self.pool(x))


class ProjectionHead(nn.Module):
    """Perceptron with batch norm from the width of a tower to that of the joint space."""

    def __init__(self, dim, hidden, embed_dim):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden, bias=False)
        self.bn = nn.BatchNorm1d(hidden)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(hidden, embed_dim)

    def forward(self, x):
        return self.fc2(self.act(self.bn(self.fc1(x))))


def patch_mask(sizes, grid):
    """(batch, rows, columns), true where an image of that size has a patch."""
    rows = torch.arange(grid[0], device=sizes.device)[None, :] < sizes[:, :1]
    columns = torch.arange(grid[1], device=sizes.device)[None, :] < sizes[:, 1:]
    return rows[:, :, None] & columns[:, None, :]


def resize_positions(table, size):
    """The table (side * side, width) for a grid of another size: (width, rows, columns)."""
    side = int(math.sqrt(table.shape[0]))
    grid = table.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    return F.interpolate(grid, size=size, mode="bicubic", align_corners=False).squeeze(0)


class VisionTower(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        width = cfg.vision_width
        self.patch_size = cfg.patch_size
        self.stem = ConvStem(3, cfg.stem_width, cfg.stem_groups, width, cfg.patch_size)
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.positional_embedding = nn.Parameter(torch.zeros(cfg.grid_size**2 + 1, width))
        self.ln_pre = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            ResidualAttentionBlock(width, cfg.vision_heads, cfg.mlp_ratio, QuickGELU(), True, True)
            for _ in range(cfg.vision_layers)
        )
        self.ln_post = nn.LayerNorm(width)
        self.attn_pool = AttentionPool(width, cfg.vision_heads, cfg.num_latents, cfg.mlp_ratio)

    def _positions(self, sizes, grid):
        """Each image has the table stretched to its own size; padding has zeros."""
        out = []
        for h, w in sizes.tolist():
            pos = resize_positions(self.positional_embedding[1:], (h, w))
            out.append(F.pad(pos, (0, grid[1] - w, 0, grid[0] - h)))
        return torch.stack(out).flatten(2).transpose(1, 2)

    def forward(self, images, sizes):
        """The normalised class token, and the pooled patches."""
        b, _, height, width = images.shape
        grid = (height // self.patch_size, width // self.patch_size)
        valid = patch_mask(sizes, grid)
        pixels = valid.repeat_interleave(self.patch_size, dim=1).repeat_interleave(self.patch_size, dim=2)
        x = (images - 0.5) / 0.5
        x = self.stem(x * pixels.unsqueeze(1).to(x.dtype))

        tokens = x.flatten(2).transpose(1, 2) + self._positions(sizes, grid)
        cls = (self.class_embedding + self.positional_embedding[0]).expand(b, 1, -1)
        x = self.ln_pre(torch.cat([cls, tokens], dim=1))
        valid = F.pad(valid.flatten(1), (1, 0), value=True)
        for block in self.blocks:
            x = block(x, valid[:, None, None, :])

        pooled = self.attn_pool(x[:, 1:], valid[:, 1:])
        return self.ln_post(x[:, 0]), pooled


class TextTower(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        width = cfg.text_width
        self.eot_id = cfg.eot_id
        self.token_embedding = nn.Embedding(cfg.vocab_size, width)
        self.positional_embedding = nn.Parameter(torch.zeros(cfg.context_length, width))
        self.blocks = nn.ModuleList(
            ResidualAttentionBlock(width, cfg.text_heads, cfg.mlp_ratio, nn.GELU(approximate="tanh"))
            for _ in range(cfg.text_layers)
        )
        self.ln_final = nn.LayerNorm(width)
        causal = torch.ones(cfg.context_length, cfg.context_length, dtype=torch.bool).tril()
        self.register_buffer("causal", causal, persistent=False)

    def forward(self, text):
        """Features at the first end-of-text token; everything after that is padding."""
        b, n = text.shape
        eot = (text == self.eot_id).int().argmax(dim=-1)
        x = self.token_embedding(text) + self.positional_embedding[:n]
        valid = torch.arange(n, device=text.device)[None, :] <= eot[:, None]
        allowed = self.causal[None, :n, :n] & valid[:, None, :]
        for block in self.blocks:
            x = block(x, allowed.unsqueeze(1))
        x = self.ln_final(x)
        return x[torch.arange(b, device=text.device), eot]


def soft_targets(labels, smoothing):
    """Pairs of the same label are positives of each other, too (UniCL); the rest is label smoothing."""
    same = (labels[:, None] == labels[None, :]).float()
    targets = same / same.sum(dim=1, keepdim=True)
    return (1 - smoothing) * targets + smoothing / labels.shape[0]


def softmax_contrastive_loss(image, text, scale, labels, smoothing):
    """Cross entropy over the texts for each image and over the images for each text."""
    logits = scale * image @ text.t()
    targets = soft_targets(labels, smoothing)
    loss_image = F.cross_entropy(logits, targets)
    loss_text = F.cross_entropy(logits.t(), targets)
    return (loss_image + loss_text) / 2


def sigmoid_contrastive_loss(image, text, scale, bias, chunk):
    """Every pair is a binary decision; chunks of texts go round as they do between devices."""
    images, texts = image.split(chunk), text.split(chunk)
    count = len(images)
    loss = 0.0
    for step in range(count):
        for index in range(count):
            logits = scale * images[index] @ texts[(index + step) % count].t() + bias
            labels = -torch.ones_like(logits)
            if step == 0:
                labels = labels + 2 * torch.eye(logits.shape[0], device=logits.device)
            loss = loss - F.logsigmoid(labels * logits).sum()
    return loss / image.shape[0]


def ownership(owner, num_images):
    """(images, texts), true where the caption is the image's own."""
    return owner[None, :] == torch.arange(num_images, device=owner.device)[:, None]


def dual_softmax(sims, temperature):
    """Re-weights a caption's similarities by how it prefers the images (https://arxiv.org/abs/2109.04290)."""
    return sims * F.softmax(temperature * sims, dim=0) * sims.shape[0]


def retrieval_ranks(sims, owner):
    """The rank, from zero, of the best own caption of each image, and of the image of each caption."""
    num_images, num_texts = sims.shape
    place = sims.argsort(dim=1, descending=True).argsort(dim=1)
    image_ranks = place.masked_fill(~ownership(owner, num_images), num_texts).min(dim=1).values
    place = sims.argsort(dim=0, descending=True).argsort(dim=0)
    return image_ranks, place.gather(0, owner[None, :]).squeeze(0)


class ContrastiveModel(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.visual = VisionTower(cfg)
        self.text = TextTower(cfg)
        self.image_projection = nn.Parameter(torch.zeros(cfg.vision_width, cfg.embed_dim))
        self.text_projection = nn.Parameter(torch.zeros(cfg.text_width, cfg.embed_dim))
        self.image_sig_head = ProjectionHead(cfg.vision_width, cfg.sig_hidden, cfg.embed_dim)
        self.text_sig_head = ProjectionHead(cfg.text_width, cfg.sig_hidden, cfg.embed_dim)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.sig_logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))
        self.sig_logit_bias = nn.Parameter(torch.tensor(-10.0))

    def encode_image(self, images, sizes):
        cls, pooled = self.visual(images, sizes)
        return F.normalize(cls @ self.image_projection, dim=-1), F.normalize(self.image_sig_head(pooled), dim=-1)

    def encode_text(self, text):
        features = self.text(text)
        return F.normalize(features @ self.text_projection, dim=-1), F.normalize(self.text_sig_head(features), dim=-1)

    def zero_shot_classifier(self, prompts):
        """One unit vector for each class and space; a class may have fewer templates than the tensor has rows."""
        clip_weights, sig_weights = [], []
        for templates in prompts:
            templates = templates[templates[:, 0] == self.cfg.sot_id]
            clip_embeds, sig_embeds = self.encode_text(templates)
            clip_weights.append(F.normalize(clip_embeds.mean(dim=0), dim=0))
            sig_weights.append(F.normalize(sig_embeds.mean(dim=0), dim=0))
        return torch.stack(clip_weights), torch.stack(sig_weights)

    def forward(self, images, sizes, labels, captions, owner, prompts):
        """images (batch, 3, height, width), sizes (batch, 2) in patches, labels (batch,) the class of each image,
        captions (texts, length), owner (texts,) the image of each caption, prompts (classes, templates, length)."""
        cfg = self.cfg
        image_clip, image_sig = self.encode_image(images, sizes)
        text_clip, text_sig = self.encode_text(captions)
        scale = self.logit_scale.clamp(0.0, math.log(cfg.max_logit_scale)).exp()
        sig_scale, sig_bias = self.sig_logit_scale.exp(), self.sig_logit_bias

        first = ownership(owner, images.shape[0]).int().argmax(dim=1)  # each image's first caption
        softmax_loss = softmax_contrastive_loss(image_clip, text_clip[first], scale, labels, cfg.label_smoothing)
        sigmoid_loss = sigmoid_contrastive_loss(image_sig, text_sig[first], sig_scale, sig_bias, cfg.sig_chunk)

        clip_weights, sig_weights = self.zero_shot_classifier(prompts)
        class_probs = (scale * image_clip @ clip_weights.t()).softmax(dim=-1)
        class_scores = torch.sigmoid(sig_scale * image_sig @ sig_weights.t() + sig_bias)

        sims = (image_clip @ text_clip.t() + image_sig @ text_sig.t()) / 2
        sims = dual_softmax(sims, cfg.retrieval_temperature)
        losses, scores, ranks = (softmax_loss, sigmoid_loss), (class_probs, class_scores), retrieval_ranks(sims, owner)
        return (image_clip, text_clip, image_sig, text_sig, *losses, *scores, sims, *ranks)


@torch.no_grad()
def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            if hasattr(module, "running_mean"):
                nn.init.normal_(module.running_mean, std=0.2)
                nn.init.uniform_(module.running_var, 0.3, 1.2)
        elif isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, std=1.4 * module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
    for name, parameter in net.named_parameters():
        if name.endswith("gamma"):
            nn.init.uniform_(parameter, 0.4, 1.2)
        elif "embedding" in name or "latent" in name:
            nn.init.normal_(parameter, std=0.7 if "token" in name else 0.3)
        elif name.endswith("_projection"):
            nn.init.normal_(parameter, std=parameter.shape[0] ** -0.5)
    net.logit_scale.fill_(math.log(41.0))
    net.sig_logit_scale.fill_(math.log(7.5))
    net.sig_logit_bias.fill_(-2.3)
    return net


def sample_texts(rng, cfg, lengths, context):
    """Token ids: start, some words, end, and the end again as padding."""
    words = rng.randint(1, cfg.sot_id, (len(lengths), context))
    ids = np.where(np.arange(context) <= lengths[:, None], words, cfg.eot_id)
    ids[:, 0] = cfg.sot_id
    return ids


def build():
    """The net with the same weights on every run, and six images with ten captions and the prompts of five classes."""
    torch.manual_seed(1907)
    cfg = Config()
    net = trained_like(ContrastiveModel(cfg))
    rng = np.random.RandomState(11)
    coarse = rng.rand(6, 3, 5, 7).repeat(8, axis=2).repeat(8, axis=3)
    images = (0.3 * rng.rand(6, 3, 40, 56) + 0.4 * coarse + 0.3 * rng.rand(6, 3, 1, 1)).astype(np.float32)
    sizes = np.array([[5, 7], [4, 4], [5, 3], [3, 7], [2, 6], [4, 5]])
    labels = np.array([0, 3, 1, 3, 4, 0])
    captions = sample_texts(rng, cfg, rng.randint(3, 12, 10), 14)
    owner = np.array([3, 0, 1, 1, 2, 0, 4, 5, 3, 5])
    prompts = sample_texts(rng, cfg, rng.randint(3, 8, 15), 10).reshape(5, 3, 10)
    prompts[1, 2:], prompts[3, 1:], prompts[4, 2:] = 0, 0, 0
    return net.eval(), tuple(map(torch.from_numpy, (images, sizes, labels, captions, owner, prompts)))
