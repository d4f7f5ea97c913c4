"""A Perceiver IO that reads and writes audio, images and labels at once, in PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

# the order in which the modalities are laid side by side, alphabetic as in the original
MODALITIES = ("audio", "image", "label")

IMAGE_MEAN = (0.4802, 0.4481, 0.3975)
IMAGE_STD = (0.2770, 0.2691, 0.2821)


class Config:
    """The small multimodal autoencoder."""

    # audio
    num_samples, frame_length, hop = 105, 9, 6
    audio_channels, audio_bands = 10, 5
    # image
    image_size, patch = (14, 20), 2
    stem_channels, stem_groups, image_bands = 12, 3, 4
    # tags, 0 is no tag
    num_tags, max_tags, num_classes = 11, 4, 7
    tag_channels, tag_pos_channels = 9, 5
    # encoder
    min_padding = 3
    num_latents, latent_dim = 13, 48
    cross_heads, cross_qk_channels, cross_v_channels = 3, 24, 45
    self_heads, num_self_attends, num_blocks = 4, 2, 3
    widening = 2
    # decoder
    query_audio_bands, query_image_bands, query_min_padding = 6, 3, 2
    label_queries, label_query_channels = 3, 11
    decoder_heads, decoder_qk_channels, decoder_v_channels, decoder_out = 2, 20, 32, 28

    @property
    def num_frames(self):
        return (self.num_samples - self.frame_length) // self.hop + 1

    @property
    def grid(self):
        return tuple(n // self.patch for n in self.image_size)


def build_linear_positions(index_dims):
    """Coordinates in [-1, 1] of every cell of a grid, (*index_dims, number of dims)."""
    axes = [torch.linspace(-1.0, 1.0, steps=n) for n in index_dims]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=len(index_dims))


def generate_fourier_features(pos, num_bands, max_resolution, concat_pos=True):
    """Sines and cosines of positions (batch, points, dims) at frequencies up to the Nyquist frequency of each axis."""
    freq_bands = torch.stack([torch.linspace(1.0, res / 2, steps=num_bands) for res in max_resolution], dim=0)
    per_pos = (pos[..., None] * freq_bands.to(pos.dtype)).flatten(-2)
    features = torch.cat([torch.sin(math.pi * per_pos), torch.cos(math.pi * per_pos)], dim=-1)
    return torch.cat([pos, features], dim=-1) if concat_pos else features


def fourier_channels(num_bands, num_dims):
    return num_dims * (2 * num_bands + 1)


class AudioPreprocessor(nn.Module):
    """Overlapping windowed frames of a waveform, with Fourier positions."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("window", torch.hann_window(cfg.frame_length), persistent=False)
        self.proj = nn.Linear(cfg.frame_length, cfg.audio_channels)
        self.num_channels = cfg.audio_channels + fourier_channels(cfg.audio_bands, 1)

    def forward(self, audio, audio_length):
        cfg = self.cfg
        alive = torch.arange(audio.shape[1])[None, :] < audio_length[:, None]
        weight = alive.to(audio.dtype)
        count = weight.sum(dim=1, keepdim=True)
        mean = (audio * weight).sum(dim=1, keepdim=True) / count
        var = ((audio - mean).square() * weight).sum(dim=1, keepdim=True) / count
        audio = (audio - mean) / torch.sqrt(var + 1e-5) * weight

        frames = audio.unfold(1, cfg.frame_length, cfg.hop)
        x = self.proj(frames * self.window)
        b, n, _ = x.shape
        pos = build_linear_positions((n,)).unsqueeze(0).expand(b, -1, -1)
        pos_enc = generate_fourier_features(pos, cfg.audio_bands, (n,))
        x = torch.cat([x, pos_enc], dim=-1)

        # a frame counts where it starts inside of the recording
        valid = (torch.arange(n) * cfg.hop)[None, :] < audio_length[:, None]
        return x, valid, (mean, torch.sqrt(var + 1e-5))


class ImagePreprocessor(nn.Module):
    """A convolutional stem at half the resolution, with Fourier positions in two dimensions."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.conv = nn.Conv2d(3, cfg.stem_channels, kernel_size=5, stride=cfg.patch, padding=2)
        self.norm = nn.GroupNorm(cfg.stem_groups, cfg.stem_channels)
        self.act = nn.SiLU()
        self.num_channels = cfg.stem_channels + fourier_channels(cfg.image_bands, 2)

    def forward(self, image):
        x = self.act(self.norm(self.conv(image)))
        b, _, h, w = x.shape
        x = x.flatten(2).transpose(1, 2)
        pos = build_linear_positions((h, w)).reshape(1, h * w, 2).expand(b, -1, -1)
        pos_enc = generate_fourier_features(pos, self.cfg.image_bands, (h, w))
        x = torch.cat([x, pos_enc], dim=-1)
        return x, torch.ones(b, h * w, dtype=torch.bool)


class LabelPreprocessor(nn.Module):
    """Tags by a table of embeddings, with trainable positions."""

    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.num_tags + 1, cfg.tag_channels, padding_idx=0)
        self.norm = nn.LayerNorm(cfg.tag_channels)
        self.pos = nn.Parameter(torch.zeros(cfg.max_tags, cfg.tag_pos_channels))
        self.num_channels = cfg.tag_channels + cfg.tag_pos_channels

    def forward(self, tags):
        b, n = tags.shape
        x = self.norm(self.embed(tags))
        x = torch.cat([x, self.pos[:n].unsqueeze(0).expand(b, -1, -1)], dim=-1)
        return x, tags != 0


class ModalityAdapter(nn.Module):
    """Brings a modality to the common width; where it is missing its tokens become the mask token."""

    def __init__(self, num_channels, common):
        super().__init__()
        self.padding = nn.Parameter(torch.zeros(1, common - num_channels))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, common))

    def forward(self, x, present):
        b, n, _ = x.shape
        x = torch.cat([x, self.padding[None].expand(b, n, -1)], dim=-1)
        return torch.where(present[:, None, None], x, self.mask_token.expand(b, n, -1))


class MultimodalPreprocessor(nn.Module):
    """All modalities as one sequence, with the mask of the tokens that may be attended to."""

    def __init__(self, cfg):
        super().__init__()
        self.modalities = nn.ModuleDict(
            {"audio": AudioPreprocessor(cfg), "image": ImagePreprocessor(cfg), "label": LabelPreprocessor(cfg)}
        )
        self.num_channels = max(m.num_channels for m in self.modalities.values()) + cfg.min_padding
        self.adapters = nn.ModuleDict(
            {name: ModalityAdapter(m.num_channels, self.num_channels) for name, m in self.modalities.items()}
        )

    def forward(self, audio, audio_length, image, tags, present):
        audio_x, audio_valid, audio_stats = self.modalities["audio"](audio, audio_length)
        image_x, image_valid = self.modalities["image"](image)
        label_x, label_valid = self.modalities["label"](tags)
        tokens = {"audio": audio_x, "image": image_x, "label": label_x}
        valid = {"audio": audio_valid, "image": image_valid, "label": label_valid}

        sequence, mask = [], []
        for index, name in enumerate(MODALITIES):
            here = present[:, index]
            sequence.append(self.adapters[name](tokens[name], here))
            # mask tokens are always seen: they tell the encoder that the modality is missing
            mask.append(valid[name] | ~here[:, None])
        return torch.cat(sequence, dim=1), torch.cat(mask, dim=1), audio_stats


class Attention(nn.Module):
    """Multi-head attention whose query/key width differs from the width of the values."""

    def __init__(self, q_dim, kv_dim, qk_channels, v_channels, out_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qk_head, self.v_head = qk_channels // num_heads, v_channels // num_heads
        self.query = nn.Linear(q_dim, qk_channels)
        self.key = nn.Linear(kv_dim, qk_channels)
        self.value = nn.Linear(kv_dim, v_channels)
        self.output = nn.Linear(v_channels, out_dim)

    def _split(self, x, channels):
        return x.view(*x.shape[:-1], self.num_heads, channels).permute(0, 2, 1, 3)

    def forward(self, queries, keys, mask=None):
        q = self._split(self.query(queries), self.qk_head)
        k = self._split(self.key(keys), self.qk_head)
        v = self._split(self.value(keys), self.v_head)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.qk_head)
        if mask is not None:
            scores = scores + (1.0 - mask[:, None, None, :].to(scores.dtype)) * torch.finfo(scores.dtype).min
        probs = scores.softmax(dim=-1)
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        context = context.view(*context.shape[:-2], self.num_heads * self.v_head)
        return self.output(context)


class Mlp(nn.Module):
    def __init__(self, dim, widening):
        super().__init__()
        self.dense1 = nn.Linear(dim, widening * dim)
        self.act = nn.GELU()
        self.dense2 = nn.Linear(widening * dim, dim)

    def forward(self, x):
        return self.dense2(self.act(self.dense1(x)))


class PerceiverLayer(nn.Module):
    """Cross attention where keys come along, self attention where not, then the perceptron."""

    def __init__(self, q_dim, kv_dim, qk_channels, v_channels, out_dim, num_heads, widening, is_cross,
                 use_query_residual=True):
        super().__init__()
        self.use_query_residual = use_query_residual
        self.norm_q = nn.LayerNorm(q_dim)
        self.norm_kv = nn.LayerNorm(kv_dim) if is_cross else None
        self.attention = Attention(q_dim, kv_dim, qk_channels, v_channels, out_dim, num_heads)
        self.norm_mlp = nn.LayerNorm(out_dim)
        self.mlp = Mlp(out_dim, widening)

    def forward(self, x, inputs=None, mask=None):
        queries = self.norm_q(x)
        keys = queries if self.norm_kv is None else self.norm_kv(inputs)
        attended = self.attention(queries, keys, mask)
        if self.use_query_residual:
            attended = attended + x
        return attended + self.mlp(self.norm_mlp(attended))


class PerceiverEncoder(nn.Module):
    """Latents that look at the inputs in each block; all blocks but the first share the cross attention too."""

    def __init__(self, cfg, input_dim):
        super().__init__()
        dim = cfg.latent_dim
        self.num_blocks = cfg.num_blocks
        self.latents = nn.Parameter(torch.zeros(cfg.num_latents, dim))
        self.step_embed = nn.Parameter(torch.zeros(cfg.num_blocks, dim))
        self.cross_attends = nn.ModuleList(
            PerceiverLayer(dim, input_dim, cfg.cross_qk_channels, cfg.cross_v_channels, dim, cfg.cross_heads,
                           cfg.widening, is_cross=True)
            for _ in range(2)
        )
        self.self_attends = nn.ModuleList(
            PerceiverLayer(dim, dim, dim, dim, dim, cfg.self_heads, cfg.widening, is_cross=False)
            for _ in range(cfg.num_self_attends)
        )

    def forward(self, inputs, mask):
        x = self.latents.unsqueeze(0).expand(inputs.shape[0], -1, -1)
        for block in range(self.num_blocks):
            cross = self.cross_attends[0] if block == 0 else self.cross_attends[1]
            x = cross(x, inputs, mask)
            x = x + self.step_embed[block]
            for layer in self.self_attends:
                x = layer(x)
        return x


class AudioQuery(nn.Module):
    """Queries for chosen frames: positions of the points, whose last is short of 1 as in the original."""

    def __init__(self, cfg, common):
        super().__init__()
        self.cfg = cfg
        self.padding = nn.Parameter(torch.zeros(1, common - fourier_channels(cfg.query_audio_bands, 1)))

    def forward(self, points):
        n = self.cfg.num_frames
        b, k = points.shape
        pos = -1.0 + 2.0 * points.to(torch.float32) / n
        queries = generate_fourier_features(pos.unsqueeze(-1), self.cfg.query_audio_bands, (n,))
        return torch.cat([queries, self.padding[None].expand(b, k, -1)], dim=-1)


class ImageQuery(nn.Module):
    """A query for each patch of the image."""

    def __init__(self, cfg, common):
        super().__init__()
        self.cfg = cfg
        self.padding = nn.Parameter(torch.zeros(1, common - fourier_channels(cfg.query_image_bands, 2)))

    def forward(self, batch):
        h, w = self.cfg.grid
        pos = build_linear_positions((h, w)).reshape(1, h * w, 2)
        queries = generate_fourier_features(pos, self.cfg.query_image_bands, (h, w))
        queries = torch.cat([queries, self.padding[None].expand(1, h * w, -1)], dim=-1)
        return queries.expand(batch, -1, -1)


class LabelQuery(nn.Module):
    """Trainable queries."""

    def __init__(self, cfg, common):
        super().__init__()
        self.tokens = nn.Parameter(torch.zeros(cfg.label_queries, cfg.label_query_channels))
        self.padding = nn.Parameter(torch.zeros(1, common - cfg.label_query_channels))

    def forward(self, batch):
        queries = torch.cat([self.tokens, self.padding.expand(self.tokens.shape[0], -1)], dim=-1)
        return queries.unsqueeze(0).expand(batch, -1, -1)


class PerceiverDecoder(nn.Module):
    """The queries of all modalities attend to the latents; the answers are split again."""

    def __init__(self, cfg):
        super().__init__()
        widths = (fourier_channels(cfg.query_audio_bands, 1), fourier_channels(cfg.query_image_bands, 2),
                  cfg.label_query_channels)
        common = max(widths) + cfg.query_min_padding
        self.queries = nn.ModuleDict(
            {"audio": AudioQuery(cfg, common), "image": ImageQuery(cfg, common), "label": LabelQuery(cfg, common)}
        )
        self.cross_attend = PerceiverLayer(
            common, cfg.latent_dim, cfg.decoder_qk_channels, cfg.decoder_v_channels, cfg.decoder_out,
            cfg.decoder_heads, cfg.widening, is_cross=True, use_query_residual=False,
        )

    def forward(self, latents, points):
        b = latents.shape[0]
        queries = {name: module(points if name == "audio" else b) for name, module in self.queries.items()}
        x = torch.cat([queries[name] for name in MODALITIES], dim=1)
        x = self.cross_attend(x, latents)
        sizes = [queries[name].shape[1] for name in MODALITIES]
        return dict(zip(MODALITIES, torch.split(x, sizes, dim=1)))


class AudioHead(nn.Module):
    """Samples of the asked frames, laid into a waveform that is zero elsewhere."""

    def __init__(self, cfg):
        super().__init__()
        self.num_frames, self.hop = cfg.num_frames, cfg.hop
        self.proj = nn.Linear(cfg.decoder_out, cfg.hop)

    def forward(self, x, points, stats):
        mean, std = stats
        samples = self.proj(x) * std.unsqueeze(-1) + mean.unsqueeze(-1)
        wave = samples.new_zeros(samples.shape[0], self.num_frames, self.hop)
        wave = wave.scatter(1, points.unsqueeze(-1).expand(-1, -1, self.hop), samples)
        return wave.flatten(1)


class ImageHead(nn.Module):
    """Patches back to pixels, and a small convolution over the seams."""

    def __init__(self, cfg):
        super().__init__()
        self.grid, self.patch = cfg.grid, cfg.patch
        self.proj = nn.Linear(cfg.decoder_out, 3 * cfg.patch**2)
        self.refine = nn.Conv2d(3, 3, kernel_size=3, padding=2, dilation=2)

    def forward(self, x):
        (h, w), p = self.grid, self.patch
        x = self.proj(x).reshape(-1, h, w, p, p, 3)
        x = torch.einsum("bhwpqc->bchpwq", x).reshape(-1, 3, h * p, w * p)
        return x + self.refine(x)


class LabelHead(nn.Module):
    """Classifier on the label tokens, pooled by learned weights."""

    def __init__(self, cfg):
        super().__init__()
        self.score = nn.Linear(cfg.decoder_out, 1)
        self.proj = nn.Linear(cfg.decoder_out, cfg.num_classes)

    def forward(self, x):
        weights = F.softmax(self.score(x), dim=1)
        return self.proj((weights * x).sum(dim=1))


class PerceiverIO(nn.Module):
    """Audio, image and tags in; audio, image and class scores out."""

    def __init__(self, cfg):
        super().__init__()
        self.preprocessor = MultimodalPreprocessor(cfg)
        self.encoder = PerceiverEncoder(cfg, self.preprocessor.num_channels)
        self.decoder = PerceiverDecoder(cfg)
        self.heads = nn.ModuleDict({"audio": AudioHead(cfg), "image": ImageHead(cfg), "label": LabelHead(cfg)})
        self.register_buffer("image_mean", torch.tensor(IMAGE_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("image_std", torch.tensor(IMAGE_STD).view(1, 3, 1, 1), persistent=False)

    def forward(self, audio, audio_length, image, tags, present, points):
        image = (image - self.image_mean) / self.image_std
        inputs, mask, audio_stats = self.preprocessor(audio, audio_length, image, tags, present)
        latents = self.encoder(inputs, mask)
        answers = self.decoder(latents, points)
        audio_out = self.heads["audio"](answers["audio"], points, audio_stats)
        image_out = self.heads["image"](answers["image"]) * self.image_std + self.image_mean
        label_out = self.heads["label"](answers["label"])
        return audio_out, image_out, label_out


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for name, parameter in net.named_parameters():
        if name.endswith(("padding", "mask_token", "latents", "step_embed", "tokens", ".pos")):
            nn.init.normal_(parameter, std=0.6)
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.2 * module.in_features**-0.5)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.005)
            module.weight.data[module.padding_idx] = 0.0
    for module in net.modules():
        if isinstance(module, Attention):
            # trained attention is sharper than at the start
            module.query.weight.data *= 1.5
            module.key.weight.data *= 1.5
    return net


def build():
    """The net with the same weights on every run, and three samples: one whole, one without tags, one without audio."""
    cfg = Config()
    torch.manual_seed(2107)
    net = trained_like(PerceiverIO(cfg))
    time = torch.arange(cfg.num_samples) / 16.0
    audio = torch.sin(time * torch.tensor([[3.1], [5.3], [2.2]])) * 0.5 + 0.2 * torch.randn(3, cfg.num_samples) + 0.1
    audio_length = torch.tensor([105, 58, 87])
    image = 0.5 * torch.rand(3, 3, *cfg.image_size) + 0.5 * F.interpolate(
        torch.rand(3, 3, 4, 5), size=cfg.image_size, mode="bilinear", align_corners=False
    )
    tags = torch.tensor([[3, 7, 0, 0], [9, 1, 4, 0], [2, 11, 5, 8]])
    present = torch.tensor([[True, True, True], [True, True, False], [False, True, True]])
    points = torch.stack([torch.randperm(cfg.num_frames)[:8] for _ in range(3)])
    return net.eval(), (audio, audio_length, image, tags, present, points)
