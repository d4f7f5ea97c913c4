"""A multi-object tracker with deformable attention and track queries over a few frames, in PyTorch: the reference."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


def inverse_sigmoid(x, eps: float = 1e-5):
    x = x.clamp(0.0, 1.0)
    return torch.log(x.clamp(min=eps) / (1.0 - x).clamp(min=eps))


def take(x, index):
    """Picks rows of [B, Q, ...] by an index [B, K]."""
    return torch.gather(x, 1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def sample_levels(value, shapes, locations, weights):
    """Weighted bilinear samples: value [B, S, H, D], locations [B, Q, H, L, P, 2], weights [B, Q, H, L, P]."""
    batch, _, heads, width = value.shape
    queries, levels, points = locations.shape[1], locations.shape[3], locations.shape[4]
    planes = value.split([h * w for h, w in shapes], dim=1)
    grids = 2.0 * locations - 1.0
    sampled = []
    for level, (h, w) in enumerate(shapes):
        plane = planes[level].flatten(2).transpose(1, 2).reshape(batch * heads, width, h, w)
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        sampled.append(
            functional.grid_sample(plane, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        )
    weights = weights.transpose(1, 2).reshape(batch * heads, 1, queries, levels * points)
    out = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1)
    return out.view(batch, heads * width, queries).transpose(1, 2)


def pairwise_iou(boxes):
    """IoU of every pair of corner boxes: [..., K, 4] -> [..., K, K]."""
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    top_left = torch.maximum(boxes[..., :, None, :2], boxes[..., None, :, :2])
    bottom_right = torch.minimum(boxes[..., :, None, 2:], boxes[..., None, :, 2:])
    inter = (bottom_right - top_left).clamp(min=0.0).prod(-1)
    return inter / (area[..., :, None] + area[..., None, :] - inter + 1e-6)


class FrozenBatchNorm2d(nn.Module):
    """A batch norm whose statistics and affine never change."""

    def __init__(self, channels: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


class ConvNorm(nn.Module):
    def __init__(self, inner: int, outer: int, size: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, size, stride, padding=size // 2, bias=False)
        self.norm = FrozenBatchNorm2d(outer)

    def forward(self, x):
        return self.norm(self.conv(x))


class Backbone(nn.Module):
    """Features at an eighth and a sixteenth of the frame."""

    def __init__(self, widths):
        super().__init__()
        self.stem = ConvNorm(3, widths[0], 7, 2)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.block = nn.ModuleList([ConvNorm(widths[0], widths[0], 3, 1) for _ in range(2)])
        self.down = nn.ModuleList([ConvNorm(a, b, 3, 2) for a, b in zip(widths[:-1], widths[1:])])

    def forward(self, x):
        x = self.pool(self.stem(x).relu())
        x = (x + self.block[1](self.block[0](x).relu())).relu()
        features = []
        for down in self.down:
            x = down(x).relu()
            features.append(x)
        return features


class PositionSine(nn.Module):
    """Sines of the place inside the unpadded part of the frame, rows first, then columns."""

    def __init__(self, features: int, temperature: float = 10000.0, scale: float = 2 * math.pi):
        super().__init__()
        self.scale = scale
        steps = torch.arange(features, dtype=torch.float32)
        table = temperature ** (2 * torch.div(steps, 2, rounding_mode="floor") / features)
        self.register_buffer("table", table, persistent=False)

    def forward(self, mask):
        valid = (~mask).float()
        rows, columns = valid.cumsum(1), valid.cumsum(2)
        rows = (rows - 0.5) / (rows[:, -1:, :] + 1e-6) * self.scale
        columns = (columns - 0.5) / (columns[:, :, -1:] + 1e-6) * self.scale
        parts = []
        for place in (rows, columns):
            angle = place[..., None] / self.table
            parts.append(torch.stack((angle[..., 0::2].sin(), angle[..., 1::2].cos()), dim=4).flatten(3))
        return torch.cat(parts, dim=3).permute(0, 3, 1, 2)


class DeformableAttention(nn.Module):
    def __init__(self, width: int, heads: int, levels: int, points: int):
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.sampling_offsets = nn.Linear(width, heads * levels * points * 2)
        self.attention_weights = nn.Linear(width, heads * levels * points)
        self.value_proj = nn.Linear(width, width)
        self.output_proj = nn.Linear(width, width)

    def forward(self, query, reference, source, shapes, mask):
        batch, queries, width = query.shape
        value = self.value_proj(source).masked_fill(mask[..., None], 0.0)
        value = value.view(batch, source.shape[1], self.heads, width // self.heads)
        offsets = self.sampling_offsets(query).view(batch, queries, self.heads, self.levels, self.points, 2)
        weights = self.attention_weights(query).view(batch, queries, self.heads, self.levels * self.points)
        weights = weights.softmax(-1).view(batch, queries, self.heads, self.levels, self.points)
        if reference.shape[-1] == 2:
            size = torch.tensor([[w, h] for h, w in shapes], dtype=query.dtype, device=query.device)
            locations = reference[:, :, None, :, None, :] + offsets / size[None, None, None, :, None, :]
        else:
            extent = reference[:, :, None, :, None, 2:]
            locations = reference[:, :, None, :, None, :2] + offsets / self.points * extent * 0.5
        return self.output_proj(sample_levels(value, shapes, locations, weights))


class MLP(nn.Module):
    def __init__(self, *widths: int):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:])])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int, levels: int, points: int):
        super().__init__()
        self.attn = DeformableAttention(width, heads, levels, points)
        self.norm1 = nn.LayerNorm(width)
        self.ffn = MLP(width, 2 * width, width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x, position, reference, shapes, mask):
        x = self.norm1(x + self.attn(x + position, reference, x, shapes, mask))
        return self.norm2(x + self.ffn(x))


class Encoder(nn.Module):
    def __init__(self, width: int, heads: int, levels: int, points: int, depth: int):
        super().__init__()
        self.layers = nn.ModuleList([EncoderLayer(width, heads, levels, points) for _ in range(depth)])

    def forward(self, x, position, shapes, ratios, mask):
        places = []
        for level, (h, w) in enumerate(shapes):
            ys, xs = torch.meshgrid(
                torch.arange(h, dtype=x.dtype, device=x.device) + 0.5,
                torch.arange(w, dtype=x.dtype, device=x.device) + 0.5,
                indexing="ij",
            )
            ys = ys.reshape(-1)[None] / (ratios[:, None, level, 1] * h)
            xs = xs.reshape(-1)[None] / (ratios[:, None, level, 0] * w)
            places.append(torch.stack((xs, ys), -1))
        reference = torch.cat(places, 1)[:, :, None] * ratios[:, None]
        for layer in self.layers:
            x = layer(x, position, reference, shapes, mask)
        return x


class DecoderLayer(nn.Module):
    def __init__(self, width: int, heads: int, levels: int, points: int):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.cross_attn = DeformableAttention(width, heads, levels, points)
        self.norm2 = nn.LayerNorm(width)
        self.ffn = MLP(width, 2 * width, width)
        self.norm3 = nn.LayerNorm(width)

    def forward(self, x, position, reference, source, shapes, mask):
        query = x + position
        x = self.norm1(x + self.self_attn(query, query, x, need_weights=False)[0])
        x = self.norm2(x + self.cross_attn(x + position, reference, source, shapes, mask))
        return self.norm3(x + self.ffn(x))


class Decoder(nn.Module):
    """Refines the boxes after every layer."""

    def __init__(self, width: int, heads: int, levels: int, points: int, depth: int):
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(width, heads, levels, points) for _ in range(depth)])
        self.box_embed = nn.ModuleList([MLP(width, width, 4) for _ in range(depth)])

    def forward(self, x, position, boxes, source, shapes, ratios, mask):
        for layer, head in zip(self.layers, self.box_embed):
            reference = boxes[:, :, None] * torch.cat([ratios, ratios], -1)[:, None]
            x = layer(x, position, reference, source, shapes, mask)
            boxes = (head(x) + inverse_sigmoid(boxes)).sigmoid()
        return x, boxes


class Appearance(nn.Module):
    """Unit embeddings, and by their cosine to each remembered track how surely each query is one of them."""

    def __init__(self, width: int, embedding: int, temperature: float = 0.7):
        super().__init__()
        self.temperature = temperature
        self.project = nn.Linear(width, width)
        self.act = nn.LeakyReLU()
        self.embed = nn.Linear(width, embedding)

    def forward(self, hidden, bank=None):
        embedding = functional.normalize(self.embed(self.act(self.project(hidden))), dim=-1)
        if bank is None:
            return embedding, None
        cosine = embedding @ bank.transpose(1, 2)
        spread = (cosine - cosine.mean(-1, keepdim=True)) / (cosine.std(-1, keepdim=True) + 1e-4)
        return embedding, (spread / self.temperature).softmax(-1)


class MovingAverage(nn.Module):
    """Sure tracks move their embedding faster; new tracks start with their own."""

    def __init__(self, quick: float = 0.6, slow: float = 0.9):
        super().__init__()
        self.quick, self.slow = quick, slow

    def forward(self, bank, embedding, scores, carried):
        sure = scores > scores.mean(1, keepdim=True)
        keep = torch.where(sure, self.quick, self.slow)[..., None]
        mixed = functional.normalize(keep * bank + (1.0 - keep) * embedding, dim=-1)
        return torch.where(carried[..., None], mixed, embedding)


class QueryInteraction(nn.Module):
    """Tracks look at each other, unsure ones are not looked at; a gate says how much of it is taken."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query_key = nn.Linear(width, 2 * width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width)
        self.ffn = MLP(width, 2 * width, width)
        self.norm2 = nn.LayerNorm(width)
        self.gate = nn.Linear(2 * width, width)
        self.pos = MLP(width, width, width)
        self.norm_pos = nn.LayerNorm(width)

    def forward(self, hidden, position, scores):
        batch, count, width = hidden.shape
        query, key = self.query_key(hidden + position).chunk(2, dim=-1)
        query, key, value = (
            t.view(batch, count, self.heads, width // self.heads).transpose(1, 2)
            for t in (query, key, self.value(hidden))
        )
        logits = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
        unsure = scores < scores.mean(1, keepdim=True)
        logits = logits.masked_fill(unsure[:, None, None, :], -1e4)
        mixed = (logits.softmax(-1) @ value).transpose(1, 2).reshape(batch, count, width)
        x = self.norm1(hidden + self.out(mixed))
        x = self.norm2(x + self.ffn(x))
        gate = self.gate(torch.cat([x, hidden], -1)).sigmoid()
        return gate * x + (1.0 - gate) * hidden, self.norm_pos(position + self.pos(x))


class PostProcess(nn.Module):
    """Corner boxes in pixels; scores fade where a better box of the same frame overlaps."""

    def __init__(self, sigma: float = 0.5):
        super().__init__()
        self.sigma = sigma

    def forward(self, boxes, logits, sizes):
        center, extent = boxes.chunk(2, dim=-1)
        corners = torch.cat([center - 0.5 * extent, center + 0.5 * extent], -1).clamp(0.0, 1.0)
        corners = corners * torch.cat([sizes, sizes], -1)[:, None, None, :]
        scores = logits.sigmoid().amax(-1)
        better = scores[..., None, :] > scores[..., :, None]
        overlap = torch.where(better, pairwise_iou(corners), 0.0)
        return corners, scores * torch.exp(-(overlap**2) / self.sigma).prod(-1)


class Tracker(nn.Module):
    """Boxes, scores and embeddings of the tracks kept in each frame."""

    def __init__(self, width: int = 64, heads: int = 4, points: int = 4, objects: int = 14, kept: int = 6,
                 classes: int = 5, widths=(24, 32, 56)):
        super().__init__()
        self.kept, self.levels = kept, 3
        self.backbone = Backbone(widths)
        convs = [nn.Conv2d(inner, width, 1) for inner in widths[1:]]
        convs.append(nn.Conv2d(widths[-1], width, 3, 2, padding=1))
        self.input_proj = nn.ModuleList([nn.Sequential(conv, nn.GroupNorm(8, width)) for conv in convs])
        self.position = PositionSine(width // 2)
        self.level_embed = nn.Parameter(torch.randn(self.levels, width))
        self.encoder = Encoder(width, heads, self.levels, points, 2)
        self.query_embed = nn.Embedding(objects, 2 * width)
        self.reference = nn.Linear(width, 4)
        self.decoder = Decoder(width, heads, self.levels, points, 2)
        self.class_embed = nn.Linear(width, classes)
        self.appearance = Appearance(width, 32)
        self.average = MovingAverage()
        self.interaction = QueryInteraction(width, heads)
        self.postprocess = PostProcess()

    def encode(self, frame, mask):
        features = self.backbone(frame)
        tokens, positions, masks, shapes, ratios = [], [], [], [], []
        for level, project in enumerate(self.input_proj):
            feature = project(features[min(level, len(features) - 1)])
            h, w = feature.shape[-2:]
            small = functional.interpolate(mask[:, None].float(), size=(h, w), mode="nearest")[:, 0].bool()
            position = self.position(small).flatten(2).transpose(1, 2) + self.level_embed[level].view(1, 1, -1)
            tall = (~small[:, :, 0]).sum(1).float() / h
            wide = (~small[:, 0, :]).sum(1).float() / w
            ratios.append(torch.stack([wide, tall], -1))
            tokens.append(feature.flatten(2).transpose(1, 2))
            positions.append(position)
            masks.append(small.flatten(1))
            shapes.append((h, w))
        mask, ratios = torch.cat(masks, 1), torch.stack(ratios, 1)
        return self.encoder(torch.cat(tokens, 1), torch.cat(positions, 1), shapes, ratios, mask), shapes, ratios, mask

    def queries(self, batch, tracks):
        position, content = self.query_embed.weight.chunk(2, dim=-1)
        boxes = self.reference(position).sigmoid().expand(batch, -1, -1)
        position, content = position.expand(batch, -1, -1), content.expand(batch, -1, -1)
        if tracks is not None:
            content = torch.cat([tracks["content"], content], 1)
            position = torch.cat([tracks["position"], position], 1)
            boxes = torch.cat([tracks["ahead"], boxes], 1)
        return content, position, boxes

    def carry(self, tracks, hidden, position, boxes, logits, embedding, match):
        """Keeps the best queries; those that were tracks already keep their motion and their memory."""
        scores = logits.sigmoid().amax(-1)
        if tracks is not None:
            scores = scores * (0.7 + 0.3 * match.amax(-1))
        scores, index = scores.topk(self.kept, dim=1)
        hidden, position, boxes = take(hidden, index), take(position, index), take(boxes, index)
        bank, ahead = take(embedding, index), boxes
        if tracks is not None:
            carried = index < self.kept
            slot = index.clamp(max=self.kept - 1)
            bank = self.average(take(tracks["bank"], slot), bank, scores, carried)
            motion = torch.where(carried[..., None], boxes[..., :2] - take(tracks["boxes"], slot)[..., :2], 0.0)
            ahead = torch.cat([(boxes[..., :2] + 0.5 * motion).clamp(0.0, 1.0), boxes[..., 2:]], -1)
        content, position = self.interaction(hidden, position, scores)
        return {"content": content, "position": position, "boxes": boxes, "ahead": ahead, "bank": bank,
                "logits": take(logits, index)}

    def forward(self, frames, mask):
        batch, length = frames.shape[:2]
        sizes = torch.stack([(~mask[:, 0, :]).sum(1), (~mask[:, :, 0]).sum(1)], -1).float()
        tracks, boxes, logits, matches = None, [], [], []
        for step in range(length):
            source, shapes, ratios, flat = self.encode(frames[:, step], mask)
            content, position, start = self.queries(batch, tracks)
            hidden, found = self.decoder(content, position, start, source, shapes, ratios, flat)
            scored = self.class_embed(hidden)
            embedding, match = self.appearance(hidden, None if tracks is None else tracks["bank"])
            tracks = self.carry(tracks, hidden, position, found, scored, embedding, match)
            boxes.append(tracks["boxes"])
            logits.append(tracks["logits"])
            if match is not None:
                matches.append(match)
        corners, scores = self.postprocess(torch.stack(boxes, 1), torch.stack(logits, 1), sizes)
        return corners, scores, torch.stack(matches, 1), tracks["bank"], tracks["content"]


def build():
    """The net with the same weights on every run, and three frames of two clips with different padding."""
    torch.manual_seed(39)
    net = Tracker()
    for name, module in net.named_modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, FrozenBatchNorm2d):
            module.weight.uniform_(0.8, 1.6)
            module.bias.normal_(std=0.2)
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.4, 1.2)
        elif isinstance(module, nn.MultiheadAttention):
            nn.init.normal_(module.in_proj_bias, std=0.1)
            nn.init.normal_(module.out_proj.bias, std=0.1)
        elif name.endswith("sampling_offsets"):
            nn.init.normal_(module.weight, std=0.1)
            nn.init.normal_(module.bias, std=1.5)
        elif name.endswith(("attention_weights", "class_embed", "reference")):
            nn.init.normal_(module.weight, std=0.2)
            nn.init.normal_(module.bias, std=0.3)
    frames = functional.interpolate(torch.randn(6, 3, 24, 32), size=(96, 128), mode="bilinear", align_corners=False)
    frames = frames.view(2, 3, 3, 96, 128) + 0.3 * torch.randn(2, 3, 3, 96, 128)
    frames = 0.6 * frames + 0.8 * frames[:, :1]
    mask = torch.zeros(2, 96, 128, dtype=torch.bool)
    mask[0, :, 96:] = True
    mask[1, 72:, :] = True
    mask[1, :, 112:] = True
    return net.eval(), (frames.masked_fill(mask[:, None, None], 0.0), mask)
