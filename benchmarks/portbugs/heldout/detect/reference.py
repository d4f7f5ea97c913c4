"""
A little deformable DETR: two feature levels, one encoder layer, queries taken from the encoder's best places,
two decoder layers that refine their boxes, and boxes with softly suppressed scores as the answer.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn


def channel_norm(x, eps=1e-5):
    # layer norm over the channels of a map, no weights
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    return (x - u) / torch.sqrt(s + eps)


def inverse_sigmoid(x, eps=1e-3):
    x = x.clamp(min=0, max=1)
    return torch.log(x.clamp(min=eps) / (1 - x).clamp(min=eps))


def box_cxcywh_to_xyxy(boxes):
    cx, cy, w, h = boxes.unbind(-1)
    return torch.stack([cx - 0.5 * w, cy - 0.5 * h, cx + 0.5 * w, cy + 0.5 * h], dim=-1)


def box_iou(boxes):
    """(B, Q, 4) -> (B, Q, Q)"""
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    lt = torch.max(boxes[:, :, None, :2], boxes[:, None, :, :2])
    rb = torch.min(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    union = area[:, :, None] + area[:, None, :] - inter
    return inter / union.clamp(min=1e-6)


def position_sine(valid, num_feats, temperature=100.0, scale=2 * math.pi):
    """valid: (B, H, W) bool -> (B, 2*num_feats, H, W)"""
    y_embed = valid.cumsum(1, dtype=torch.float32)
    x_embed = valid.cumsum(2, dtype=torch.float32)
    y_embed = (y_embed - 0.5) / (y_embed[:, -1:, :] + 1e-6) * scale
    x_embed = (x_embed - 0.5) / (x_embed[:, :, -1:] + 1e-6) * scale
    dim_t = torch.arange(num_feats, dtype=torch.float32)
    dim_t = temperature ** (2 * torch.div(dim_t, 2, rounding_mode="floor") / num_feats)
    pos_x = x_embed[..., None] / dim_t
    pos_y = y_embed[..., None] / dim_t
    pos_x = torch.stack((pos_x[..., 0::2].sin(), pos_x[..., 1::2].cos()), dim=4).flatten(3)
    pos_y = torch.stack((pos_y[..., 0::2].sin(), pos_y[..., 1::2].cos()), dim=4).flatten(3)
    return torch.cat((pos_y, pos_x), dim=3).permute(0, 3, 1, 2)


def box_sine(boxes, num_feats, temperature=20.0):
    """(B, Q, 4) cxcywh -> (B, Q, 4*num_feats), the order is y, x, w, h"""
    dim_t = torch.arange(num_feats, dtype=torch.float32)
    dim_t = temperature ** (2 * torch.div(dim_t, 2, rounding_mode="floor") / num_feats)
    angles = (boxes * 2 * math.pi)[..., None] / dim_t
    waves = torch.stack((angles[..., 0::2].sin(), angles[..., 1::2].cos()), dim=-1).flatten(-2)
    cx, cy, w, h = waves.unbind(2)
    return torch.cat((cy, cx, w, h), dim=-1)


def sample_levels(value, shapes, locations, weights):
    """value (B, S, M, D), locations (B, Q, M, L, P, 2) in 0..1, weights (B, Q, M, L, P) -> (B, Q, M*D)"""
    B, _, M, D = value.shape
    _, Q, _, L, P, _ = locations.shape
    values = value.split([h * w for h, w in shapes], dim=1)
    grids = 2 * locations - 1
    sampled = []
    for level, (h, w) in enumerate(shapes):
        v = values[level].flatten(2).transpose(1, 2).reshape(B * M, D, h, w)
        g = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        sampled.append(F.grid_sample(v, g, mode="bilinear", padding_mode="zeros", align_corners=False))
    weights = weights.transpose(1, 2).reshape(B * M, 1, Q, L * P)
    out = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1)
    return out.view(B, M * D, Q).transpose(1, 2).contiguous()


class DeformAttn(nn.Module):
    def __init__(self, d_model, n_levels, n_heads, n_points):
        super().__init__()
        self.n_levels, self.n_heads, self.n_points = n_levels, n_heads, n_points
        self.sampling_offsets = nn.Linear(d_model, n_heads * n_levels * n_points * 2)
        self.attention_weights = nn.Linear(d_model, n_heads * n_levels * n_points)
        self.value_proj = nn.Linear(d_model, d_model)
        self.output_proj = nn.Linear(d_model, d_model)

    def forward(self, query, reference_points, memory, shapes, pad_mask):
        B, Q, C = query.shape
        M, L, P = self.n_heads, self.n_levels, self.n_points
        value = self.value_proj(memory).masked_fill(pad_mask[..., None], 0.0)
        value = value.view(B, -1, M, C // M)
        offsets = self.sampling_offsets(query).view(B, Q, M, L, P, 2)
        weights = self.attention_weights(query).view(B, Q, M, L * P)
        weights = F.softmax(weights, -1).view(B, Q, M, L, P)
        if reference_points.shape[-1] == 2:
            normalizer = torch.tensor([[w, h] for h, w in shapes], dtype=torch.float32)
            locations = reference_points[:, :, None, :, None, :] + offsets / normalizer[None, None, None, :, None, :]
        else:
            centre, extent = reference_points[:, :, None, :, None, :].split(2, dim=-1)
            locations = centre + offsets / P * extent * 0.5
        return self.output_proj(sample_levels(value, shapes, locations, weights))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_levels, n_heads, n_points, d_ffn):
        super().__init__()
        self.self_attn = DeformAttn(d_model, n_levels, n_heads, n_points)
        self.norm1 = nn.LayerNorm(d_model)
        self.linear1 = nn.Linear(d_model, d_ffn)
        self.linear2 = nn.Linear(d_ffn, d_model)
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, src, pos, reference_points, shapes, pad_mask):
        src = self.norm1(src + self.self_attn(src + pos, reference_points, src, shapes, pad_mask))
        return self.norm2(src + self.linear2(F.relu(self.linear1(src))))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, n_levels, n_heads, n_points, d_ffn):
        super().__init__()
        self.n_heads = n_heads
        self.q_k = nn.Linear(d_model, 2 * d_model)
        self.v = nn.Linear(d_model, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.cross_attn = DeformAttn(d_model, n_levels, n_heads, n_points)
        self.norm2 = nn.LayerNorm(d_model)
        self.linear1 = nn.Linear(d_model, d_ffn)
        self.linear2 = nn.Linear(d_ffn, d_model)
        self.norm3 = nn.LayerNorm(d_model)

    def mix_queries(self, tgt, query_pos):
        B, Q, C = tgt.shape
        q, k = self.q_k(tgt + query_pos).chunk(2, dim=-1)
        q, k, v = (t.view(B, Q, self.n_heads, -1).transpose(1, 2) for t in (q, k, self.v(tgt)))
        attn = (q / math.sqrt(C // self.n_heads)) @ k.transpose(-2, -1)
        return (attn.softmax(-1) @ v).transpose(1, 2).reshape(B, Q, C)

    def forward(self, tgt, query_pos, reference_points, memory, shapes, pad_mask):
        tgt = self.norm1(tgt + self.mix_queries(tgt, query_pos))
        tgt2 = self.cross_attn(tgt + query_pos, reference_points, memory, shapes, pad_mask)
        tgt = self.norm2(tgt + tgt2)
        return self.norm3(tgt + self.linear2(F.relu(self.linear1(tgt))))


class Detect(nn.Module):
    def __init__(self, d_model=32, n_heads=4, n_points=3, d_ffn=48, n_queries=12, n_classes=6, n_decoder=2):
        super().__init__()
        self.d_model, self.n_queries, self.n_levels = d_model, n_queries, 2
        self.conv1 = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 24, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(24, 32, 3, stride=2, padding=1)
        self.input_proj = nn.ModuleList([nn.Conv2d(24, d_model, 1), nn.Conv2d(32, d_model, 1)])
        self.level_embed = nn.Parameter(torch.zeros(self.n_levels, d_model))
        self.encoder = EncoderLayer(d_model, self.n_levels, n_heads, n_points, d_ffn)
        self.enc_score = nn.Linear(d_model, 1)
        self.query_pos = nn.Linear(2 * d_model, d_model)
        self.decoder = nn.ModuleList(
            [DecoderLayer(d_model, self.n_levels, n_heads, n_points, d_ffn) for _ in range(n_decoder)])
        self.bbox1 = nn.Linear(d_model, d_model)
        self.bbox2 = nn.Linear(d_model, 4)
        self.class_embed = nn.Linear(d_model, n_classes)

    def features(self, images):
        x = F.relu(channel_norm(self.conv1(images)))
        c2 = F.relu(channel_norm(self.conv2(x)))
        c3 = F.relu(channel_norm(self.conv3(c2)))
        return [proj(c) for proj, c in zip(self.input_proj, (c2, c3))]

    def flatten_levels(self, feats, valid):
        src, pos, masks, shapes, ratios = [], [], [], [], []
        for level, feat in enumerate(feats):
            h, w = feat.shape[-2:]
            mask = F.interpolate(valid[:, None].float(), size=(h, w), mode="nearest")[:, 0] > 0.5
            p = position_sine(mask, self.d_model // 2).flatten(2).transpose(1, 2)
            src.append(feat.flatten(2).transpose(1, 2))
            pos.append(p + self.level_embed[level])
            masks.append(~mask.flatten(1))
            shapes.append((h, w))
            ratio_h = mask[:, :, 0].sum(1).float() / h
            ratio_w = mask[:, 0, :].sum(1).float() / w
            ratios.append(torch.stack([ratio_w, ratio_h], dim=-1))
        return torch.cat(src, 1), torch.cat(pos, 1), torch.cat(masks, 1), shapes, torch.stack(ratios, 1)

    def reference_points(self, shapes, valid_ratios):
        points = []
        for level, (h, w) in enumerate(shapes):
            y, x = torch.meshgrid(
                torch.linspace(0.5, h - 0.5, h), torch.linspace(0.5, w - 0.5, w), indexing="ij")
            y = y.reshape(-1)[None] / (valid_ratios[:, None, level, 1] * h)
            x = x.reshape(-1)[None] / (valid_ratios[:, None, level, 0] * w)
            points.append(torch.stack((x, y), -1))
        return torch.cat(points, 1)

    def select_queries(self, memory, pad_mask, points, shapes):
        sides = torch.cat([torch.full((h * w, 2), 0.15 * 2.0 ** level) for level, (h, w) in enumerate(shapes)])
        proposals = torch.cat([points, sides[None].expand(points.shape[0], -1, -1)], -1)
        score = self.enc_score(memory).squeeze(-1).masked_fill(pad_mask, float("-inf"))
        index = torch.topk(score, self.n_queries, dim=1)[1].unsqueeze(-1)
        tgt = torch.gather(memory, 1, index.expand(-1, -1, self.d_model))
        boxes = torch.gather(proposals, 1, index.expand(-1, -1, 4))
        return tgt, boxes.detach()

    def suppress(self, boxes, prob):
        """A box loses score for every better one that it overlaps (the Gaussian of soft-NMS, all at once)."""
        best = prob.max(-1)[0]
        better = (best[:, None, :] > best[:, :, None]).float()
        decay = torch.exp(-(box_iou(boxes) ** 2 * better).sum(-1) / 0.5)
        return prob * decay[..., None]

    def forward(self, images, sizes):
        B, _, H, W = images.shape
        rows = torch.arange(H)[None, :, None] < sizes[:, 0, None, None]
        cols = torch.arange(W)[None, None, :] < sizes[:, 1, None, None]
        valid = rows & cols
        feats = self.features(images * valid[:, None])
        src, pos, pad_mask, shapes, valid_ratios = self.flatten_levels(feats, valid)
        points = self.reference_points(shapes, valid_ratios)
        memory = self.encoder(src, pos, points[:, :, None] * valid_ratios[:, None], shapes, pad_mask)

        tgt, boxes = self.select_queries(memory, pad_mask, points, shapes)
        box_ratios = torch.cat([valid_ratios, valid_ratios], -1)
        for layer in self.decoder:
            query_pos = self.query_pos(box_sine(boxes, self.d_model // 2))
            tgt = layer(tgt, query_pos, boxes[:, :, None] * box_ratios[:, None], memory, shapes, pad_mask)
            delta = self.bbox2(F.relu(self.bbox1(tgt)))
            boxes = torch.sigmoid(delta + inverse_sigmoid(boxes))

        corners = box_cxcywh_to_xyxy(boxes).clamp(0.0, 1.0)
        scores = self.suppress(corners, torch.sigmoid(self.class_embed(tgt)))
        scale = sizes.flip(1).repeat(1, 2).float() / torch.tensor([W, H, W, H], dtype=torch.float32)
        return torch.cat([corners * scale[:, None], scores], dim=-1)


def build():
    torch.manual_seed(41)
    net = Detect()
    for name, p in net.named_parameters():
        if name.endswith("sampling_offsets.bias"):
            nn.init.normal_(p, std=1.2)
        elif name.endswith(("attention_weights.weight", "q_k.weight", "enc_score.weight")):
            nn.init.normal_(p, std=0.4)
        elif name.endswith(("sampling_offsets.weight", "value_proj.weight", "bbox2.weight", "class_embed.weight")):
            nn.init.normal_(p, std=0.25)
        elif name == "level_embed":
            nn.init.normal_(p, std=0.7)
    for m in net.modules():
        if isinstance(m, nn.LayerNorm):
            nn.init.uniform_(m.weight, 0.7, 1.3)
            nn.init.normal_(m.bias, std=0.1)
    images = F.interpolate(torch.randn(2, 3, 12, 16), scale_factor=4, mode="bilinear") + 0.3 * torch.randn(2, 3, 48, 64)
    return net.eval(), (images, torch.tensor([[48, 52], [38, 64]]))
