"""Slot attention for video with a temporal predictor and greedy tracks, in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    """The small model."""

    image_size: tuple = (24, 32)
    encoder_channels: tuple = (16, 20, 26)
    encoder_hidden: int = 34
    num_slots: int = 5
    slot_dim: int = 28
    slot_hidden: int = 42
    attn_eps: float = 1e-8
    first_turns: int = 3
    later_turns: int = 2
    # predictor
    window: int = 4
    model_dim: int = 36
    num_heads: int = 3
    num_layers: int = 2
    ffn_dim: int = 52
    # decoder
    broadcast_size: tuple = (6, 8)
    decoder_channels: tuple = (22, 14)
    # tracks
    match_dim: int = 10
    distance_weight: float = 0.5
    readout_hidden: int = 30
    num_classes: int = 9


def build_grid(size):
    """The four distances of each place to the sides of the image: (1, height, width, 4)."""
    axes = [torch.linspace(0.0, 1.0, steps=n) for n in size]
    y, x = torch.meshgrid(*axes, indexing="ij")
    grid = torch.stack([y, x], dim=-1)
    return torch.cat([grid, 1.0 - grid], dim=-1).unsqueeze(0)


def pixel_centers(height, width):
    """The middle of each pixel as (row, column) in [0, 1]: (height * width, 2)."""
    y = (torch.arange(height, dtype=torch.float32) + 0.5) / height
    x = (torch.arange(width, dtype=torch.float32) + 0.5) / width
    y = y[:, None].expand(height, width)
    x = x[None, :].expand(height, width)
    return torch.stack([y, x], dim=-1).reshape(height * width, 2)


def gather_slots(tensor, index):
    """tensor is (batch, slots, ...), index (batch, tracks): which slot each track takes."""
    shape = index.shape + (1,) * (tensor.ndim - 2)
    index = index.reshape(shape).expand(*index.shape, *tensor.shape[2:])
    return tensor.gather(1, index)


def greedy_assignment(similarity):
    """Takes the best pair, then the best of those left, and so on.

    similarity is (batch, tracks, slots); the result (batch, tracks) holds the slot of each track.
    """
    b, k, _ = similarity.shape
    similarity = similarity.clone()
    rows = torch.arange(b)
    index = torch.zeros(b, k, dtype=torch.long)
    for _ in range(k):
        best = similarity.flatten(1).argmax(dim=1)
        track = torch.div(best, k, rounding_mode="floor")
        slot = best % k
        index[rows, track] = slot
        similarity[rows, track, :] = float("-inf")
        similarity[rows, :, slot] = float("-inf")
    return index


class SoftPositionEmbed(nn.Module):
    """Adds a projection of the distances to the four sides."""

    def __init__(self, dim, size):
        super().__init__()
        self.proj = nn.Linear(4, dim)
        self.register_buffer("grid", build_grid(size), persistent=False)

    def forward(self, x):
        """x is (batch, channels, height, width)."""
        return x + self.proj(self.grid).permute(0, 3, 1, 2)


class Encoder(nn.Module):
    """Frames to sets of features."""

    def __init__(self, cfg):
        super().__init__()
        c1, c2, c3 = cfg.encoder_channels
        height, width = cfg.image_size
        self.conv1 = nn.Conv2d(3, c1, 5, padding=2, bias=False)
        self.bn1 = nn.BatchNorm2d(c1, eps=1e-3)
        self.conv2 = nn.Conv2d(c1, c2, 5, stride=2, padding=2)
        self.norm2 = nn.GroupNorm(4, c2)
        self.conv3 = nn.Conv2d(c2, c3, 3, padding=2, dilation=2, groups=2)
        self.act = nn.ReLU()
        self.pos = SoftPositionEmbed(c3, (height // 2, width // 2))
        self.norm = nn.LayerNorm(c3)
        self.fc1 = nn.Linear(c3, cfg.encoder_hidden)
        self.fc2 = nn.Linear(cfg.encoder_hidden, c3)

    def forward(self, video):
        """video is (batch, frames, 3, height, width), in [0, 1]."""
        b, t = video.shape[:2]
        x = video.flatten(0, 1) * 2.0 - 1.0
        x = self.act(self.bn1(self.conv1(x)))
        x = self.act(self.norm2(self.conv2(x)))
        x = self.act(self.conv3(x))
        x = self.pos(x)
        h, w = x.shape[2:]
        x = x.flatten(2).transpose(1, 2)
        x = self.fc2(self.act(self.fc1(self.norm(x))))
        return x.reshape(b, t, h * w, -1), (h, w)


class SlotAttention(nn.Module):
    """Slots compete for the features of a frame, over several turns."""

    def __init__(self, cfg):
        super().__init__()
        in_dim, dim = cfg.encoder_channels[-1], cfg.slot_dim
        self.eps = cfg.attn_eps
        self.scale = dim**-0.5
        self.norm_inputs = nn.LayerNorm(in_dim)
        self.norm_slots = nn.LayerNorm(dim)
        self.norm_mlp = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(in_dim, dim, bias=False)
        self.to_v = nn.Linear(in_dim, dim, bias=False)
        self.gru = nn.GRUCell(dim, dim)
        self.fc1 = nn.Linear(dim, cfg.slot_hidden)
        self.fc2 = nn.Linear(cfg.slot_hidden, dim)

    def forward(self, inputs, slots, slot_mask, turns):
        """inputs (batch, places, channels), slots (batch, slots, channels), slot_mask true where a slot is in use."""
        b, k, d = slots.shape
        inputs = self.norm_inputs(inputs)
        keys, values = self.to_k(inputs), self.to_v(inputs)
        weights = None
        for _ in range(turns):
            slots_prev = slots
            queries = self.to_q(self.norm_slots(slots))
            logits = torch.einsum("bnd,bkd->bnk", keys, queries) * self.scale
            logits = logits.masked_fill(~slot_mask[:, None, :], torch.finfo(logits.dtype).min)
            attn = logits.softmax(dim=-1) + self.eps
            weights = attn / attn.sum(dim=1, keepdim=True)
            updates = torch.einsum("bnk,bnd->bkd", weights, values)
            slots = self.gru(updates.reshape(b * k, d), slots_prev.reshape(b * k, d)).reshape(b, k, d)
            slots = slots + self.fc2(F.relu(self.fc1(self.norm_mlp(slots))))
        return slots, weights.transpose(1, 2)


class SelfAttention(nn.Module):
    """Multi-head attention with a mask of keys."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, key_mask):
        b, length, dim = x.shape
        qkv = self.qkv(x).reshape(b, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        logits = q @ k.transpose(-2, -1) / self.head_dim**0.5
        logits = logits.masked_fill(~key_mask[:, None, None, :], torch.finfo(logits.dtype).min)
        out = logits.softmax(dim=-1) @ v
        return self.proj(out.transpose(1, 2).reshape(b, length, dim))


class PredictorLayer(nn.Module):
    """Transformer layer, norms first."""

    def __init__(self, dim, num_heads, ffn_dim):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(ffn_dim, dim)

    def forward(self, x, key_mask):
        x = x + self.attn(self.norm1(x), key_mask)
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class SlotPredictor(nn.Module):
    """The next slots from those of the last frames: the last slots and a step."""

    def __init__(self, cfg):
        super().__init__()
        self.window = cfg.window
        self.in_proj = nn.Linear(cfg.slot_dim, cfg.model_dim)
        self.time_embed = nn.Embedding(cfg.window, cfg.model_dim)
        self.layers = nn.ModuleList(
            PredictorLayer(cfg.model_dim, cfg.num_heads, cfg.ffn_dim) for _ in range(cfg.num_layers)
        )
        self.norm = nn.LayerNorm(cfg.model_dim)
        self.out_proj = nn.Linear(cfg.model_dim, cfg.slot_dim)

    def forward(self, history, frame_mask, slot_mask):
        """history (batch, frames, slots, channels), frame_mask (batch, frames), slot_mask (batch, slots)."""
        history = history[:, -self.window :]
        frame_mask = frame_mask[:, -self.window :]
        b, n, k, _ = history.shape
        age = torch.arange(n - 1, -1, -1)
        x = self.in_proj(history) + self.time_embed(age)[None, :, None, :]
        x = x.reshape(b, n * k, -1)
        key_mask = (frame_mask[:, :, None] & slot_mask[:, None, :]).reshape(b, n * k)
        for layer in self.layers:
            x = layer(x, key_mask)
        step = self.out_proj(self.norm(x[:, -k:]))
        return history[:, -1] + step


class SlotMatcher(nn.Module):
    """Which slot of this frame continues which track."""

    def __init__(self, cfg):
        super().__init__()
        self.distance_weight = cfg.distance_weight
        self.proj_track = nn.Linear(cfg.slot_dim, cfg.match_dim)
        self.proj_slot = nn.Linear(cfg.slot_dim, cfg.match_dim)

    def forward(self, tracks, slots, track_centers, slot_centers, slot_mask):
        a = F.normalize(self.proj_track(tracks), dim=-1)
        b = F.normalize(self.proj_slot(slots), dim=-1)
        similarity = a @ b.transpose(1, 2)
        distance = (track_centers[:, :, None] - slot_centers[:, None, :]).pow(2).sum(-1).sqrt()
        similarity = similarity - self.distance_weight * distance
        # slots out of use stay among themselves
        alike = slot_mask[:, :, None] == slot_mask[:, None, :]
        similarity = similarity.masked_fill(~alike, -100.0)
        return greedy_assignment(similarity)


class BroadcastDecoder(nn.Module):
    """Each slot paints an image and a mask; the masks share each pixel among the slots."""

    def __init__(self, cfg):
        super().__init__()
        c1, c2 = cfg.decoder_channels
        self.size = cfg.broadcast_size
        self.pos = SoftPositionEmbed(cfg.slot_dim, cfg.broadcast_size)
        self.deconv1 = nn.ConvTranspose2d(cfg.slot_dim, c1, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2d(c1, c2, 5, padding=2)
        self.conv3 = nn.Conv2d(c2, 4, 3, padding=1)

    def forward(self, slots, slot_mask):
        """slots (batch, frames, slots, channels) -> images (b, t, 3, h, w) and masks (b, t, k, h, w)."""
        b, t, k, d = slots.shape
        x = slots.reshape(b * t * k, d, 1, 1).expand(-1, -1, *self.size)
        x = self.pos(x)
        x = F.relu(self.deconv1(x))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = F.relu(self.conv2(x))
        x = self.conv3(x)
        x = x.reshape(b, t, k, 4, *x.shape[2:])
        rgb, alpha = x.split([3, 1], dim=3)
        alpha = alpha.masked_fill(~slot_mask[:, None, :, None, None, None], torch.finfo(alpha.dtype).min)
        masks = alpha.softmax(dim=2)
        image = (rgb.sigmoid() * masks).sum(dim=2)
        return image, masks.squeeze(3)


class TrackReadout(nn.Module):
    """Scores of each track from the largest features over its frames."""

    def __init__(self, cfg):
        super().__init__()
        self.norm = nn.LayerNorm(cfg.slot_dim)
        self.fc1 = nn.Linear(cfg.slot_dim, cfg.readout_hidden)
        self.act = nn.LeakyReLU(0.1)
        self.fc2 = nn.Linear(cfg.readout_hidden, cfg.num_classes)

    def forward(self, tracks, frame_mask, slot_mask):
        x = self.fc1(self.norm(tracks))
        x = x.masked_fill(~frame_mask[:, :, None, None], float("-inf"))
        x = self.act(x.amax(dim=1))
        return self.fc2(x) * slot_mask.unsqueeze(-1).to(x.dtype)


class SlotVideo(nn.Module):
    """Slots over a clip: corrected by each frame, predicted in between, put in order as tracks, and painted."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.slots_mu = nn.Parameter(torch.zeros(1, 1, cfg.slot_dim))
        self.slots_log_sigma = nn.Parameter(torch.zeros(1, 1, cfg.slot_dim))
        self.encoder = Encoder(cfg)
        self.corrector = SlotAttention(cfg)
        self.predictor = SlotPredictor(cfg)
        self.matcher = SlotMatcher(cfg)
        self.decoder = BroadcastDecoder(cfg)
        self.readout = TrackReadout(cfg)

    def initial_slots(self, noise):
        return self.slots_mu + self.slots_log_sigma.exp() * noise

    def forward(self, video, frame_mask, slot_mask, noise):
        """video (b, t, 3, h, w); frame_mask (b, t), false where a frame is missing or padding, the first is always
        there; slot_mask (b, slots), true where a slot is in use; noise (b, slots, channels) for the first slots."""
        frames = video.shape[1]
        features, (h, w) = self.encoder(video)
        places = pixel_centers(h, w).to(features)

        predicted = self.initial_slots(noise)
        history, tracks, track_centers = [], [], []
        anchor, anchor_centers, centers = None, None, None
        for t in range(frames):
            here = frame_mask[:, t, None, None]
            turns = self.cfg.first_turns if t == 0 else self.cfg.later_turns
            corrected, attn = self.corrector(features[:, t], predicted, slot_mask, turns)
            # without a frame the prediction goes on by itself
            slots = torch.where(here, corrected, predicted)
            seen_centers = attn @ places
            centers = seen_centers if t == 0 else torch.where(here, seen_centers, centers)
            history.append(slots)

            if t == 0:
                ordered, ordered_centers = slots, centers
                anchor, anchor_centers = ordered, ordered_centers
            else:
                index = self.matcher(anchor, slots, anchor_centers, centers, slot_mask)
                ordered = gather_slots(slots, index)
                ordered_centers = gather_slots(centers, index)
                anchor = torch.where(here, ordered, anchor)
                anchor_centers = torch.where(here, ordered_centers, anchor_centers)
            tracks.append(ordered)
            track_centers.append(ordered_centers)

            predicted = self.predictor(torch.stack(history, dim=1), frame_mask[:, : t + 1], slot_mask)

        tracks = torch.stack(tracks, dim=1)
        track_centers = torch.stack(track_centers, dim=1)
        image, masks = self.decoder(tracks, slot_mask)
        scores = self.readout(tracks, frame_mask, slot_mask)

        keep = frame_mask.to(tracks.dtype)
        image = image * keep[:, :, None, None, None]
        masks = masks * keep[:, :, None, None, None]
        tracks = tracks * (keep[:, :, None] * slot_mask[:, None, :].to(keep.dtype)).unsqueeze(-1)
        track_centers = track_centers * keep[:, :, None, None]
        return image, masks, tracks, track_centers, scores, predicted


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.2)
                nn.init.uniform_(module.running_var, 0.2, 0.8)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=1.4 * module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.ConvTranspose2d):
            nn.init.normal_(module.weight, std=(4 * module.in_channels) ** -0.5)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.GRUCell):
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=1.2 * module.hidden_size**-0.5 if parameter.ndim == 2 else 0.2)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.7)
    with torch.no_grad():
        net.slots_mu.normal_(std=0.5)
        net.slots_log_sigma.uniform_(-1.2, 0.3)
        # the features of a trained encoder are small, the norm of the corrector brings them up
        net.encoder.fc2.weight.mul_(0.02)
        net.encoder.fc2.bias.mul_(0.05)
        net.corrector.to_q.weight.mul_(1.6)
        net.predictor.out_proj.weight.mul_(0.2)
        net.corrector.fc2.weight.mul_(0.3)
        # the two sides of the matching are near each other after training
        net.matcher.proj_slot.weight.mul_(0.3).add_(net.matcher.proj_track.weight)
        net.matcher.proj_slot.bias.mul_(0.3).add_(net.matcher.proj_track.bias)
        net.decoder.conv3.weight[3].mul_(1.2)
    return net


def build():
    """The net with the same weights on every run, and three clips: one whole, one short, one short with a gap."""
    torch.manual_seed(2022)
    cfg = Config()
    net = trained_like(SlotVideo(cfg))
    height, width = cfg.image_size
    coarse = torch.rand(3, 3, 3, 4, 5)
    video = 0.7 * F.interpolate(coarse, size=(7, height, width), mode="trilinear") + 0.3 * torch.rand(3, 3, 7, height, width)
    video = video.transpose(1, 2).contiguous()
    frame_mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 1, 0]]).bool()
    slot_mask = torch.arange(cfg.num_slots)[None, :] < torch.tensor([5, 4, 3])[:, None]
    noise = torch.randn(3, cfg.num_slots, cfg.slot_dim)
    return net.eval(), (video, frame_mask, slot_mask, noise)
