"""RT-DETR with padded batches in PyTorch: ResNet-d backbone, hybrid encoder, query selection, deformable decoder."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

IMAGE_SIZE = (128, 160)


@dataclass
class Config:
    num_classes: int = 7
    num_queries: int = 24
    num_top: int = 30
    hidden_dim: int = 32
    nhead: int = 4
    dim_feedforward: int = 64
    num_decoder_layers: int = 3
    strides: tuple = (8, 16, 32)
    num_points: tuple = (4, 3, 2)
    channels: tuple = (16, 24, 32, 40)
    categories: tuple = (1, 2, 4, 7, 8, 11, 13)


def inverse_sigmoid(x, eps: float = 1e-5):
    x = x.clip(min=0.0, max=1.0)
    return torch.log(x.clip(min=eps) / (1 - x).clip(min=eps))


def box_cxcywh_to_xyxy(x):
    cx, cy, w, h = x.unbind(-1)
    return torch.stack([cx - 0.5 * w, cy - 0.5 * h, cx + 0.5 * w, cy + 0.5 * h], dim=-1)


class FrozenBatchNorm2d(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.register_buffer("weight", torch.ones(num_features))
        self.register_buffer("bias", torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.eps = eps

    def forward(self, x):
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        bias = self.bias - self.running_mean * scale
        return x * scale[None, :, None, None] + bias[None, :, None, None]


class ConvNormLayer(nn.Module):
    def __init__(self, ch_in, ch_out, kernel_size, stride, norm=nn.BatchNorm2d, act=None):
        super().__init__()
        self.conv = nn.Conv2d(ch_in, ch_out, kernel_size, stride, padding=(kernel_size - 1) // 2, bias=False)
        self.norm = norm(ch_out)
        self.act = nn.Identity() if act is None else act()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class BasicBlock(nn.Module):
    """Variant d: the shortcut is pooled before its convolution."""

    def __init__(self, ch_in: int, ch_out: int, stride: int):
        super().__init__()
        self.shortcut = ch_in == ch_out and stride == 1
        if not self.shortcut:
            self.short = ConvNormLayer(ch_in, ch_out, 1, 1, FrozenBatchNorm2d)
            if stride == 2:
                self.short = nn.Sequential(nn.AvgPool2d(2, 2, 0, ceil_mode=True), self.short)
        self.branch2a = ConvNormLayer(ch_in, ch_out, 3, stride, FrozenBatchNorm2d, nn.ReLU)
        self.branch2b = ConvNormLayer(ch_out, ch_out, 3, 1, FrozenBatchNorm2d)

    def forward(self, x):
        out = self.branch2b(self.branch2a(x))
        return F.relu(out + (x if self.shortcut else self.short(x)))


class PResNet(nn.Module):
    def __init__(self, channels):
        super().__init__()
        ch_in = stem = channels[0]
        self.conv1 = nn.Sequential(
            ConvNormLayer(3, stem // 2, 3, 2, FrozenBatchNorm2d, nn.ReLU),
            ConvNormLayer(stem // 2, stem, 3, 1, FrozenBatchNorm2d, nn.ReLU),
        )
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.res_layers = nn.ModuleList()
        for i, ch_out in enumerate(channels):
            self.res_layers.append(BasicBlock(ch_in, ch_out, 1 if i == 0 else 2))
            ch_in = ch_out

    def forward(self, x):
        x = self.maxpool(self.conv1(x))
        outs = []
        for idx, stage in enumerate(self.res_layers):
            x = stage(x)
            if idx > 0:
                outs.append(x)
        return outs


class RepVggBlock(nn.Module):
    def __init__(self, ch: int):
        super().__init__()
        self.conv1 = ConvNormLayer(ch, ch, 3, 1)
        self.conv2 = ConvNormLayer(ch, ch, 1, 1)

    def forward(self, x):
        return F.silu(self.conv1(x) + self.conv2(x))


class CSPRepLayer(nn.Module):
    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.conv1 = ConvNormLayer(in_channels, out_channels, 1, 1, act=nn.SiLU)
        self.conv2 = ConvNormLayer(in_channels, out_channels, 1, 1, act=nn.SiLU)
        self.bottlenecks = nn.Sequential(RepVggBlock(out_channels))

    def forward(self, x):
        return self.bottlenecks(self.conv1(x)) + self.conv2(x)


class Attention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, key_padding_mask=None):
        bs, len_q, dim = query.shape
        q = self.q_proj(query).view(bs, len_q, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(key).view(bs, -1, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(value).view(bs, -1, self.num_heads, self.head_dim).transpose(1, 2)
        attn = (q * self.head_dim**-0.5) @ k.transpose(-2, -1)
        if key_padding_mask is not None:
            attn = attn.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
        return self.out_proj((torch.softmax(attn, dim=-1) @ v).transpose(1, 2).reshape(bs, len_q, dim))


class TransformerEncoderLayer(nn.Module):
    def __init__(self, d_model: int, nhead: int, dim_feedforward: int):
        super().__init__()
        self.self_attn = Attention(d_model, nhead)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.activation = nn.GELU()

    def forward(self, src, src_key_padding_mask=None, pos_embed=None):
        q = k = src + pos_embed
        src = self.norm1(src + self.self_attn(q, k, src, key_padding_mask=src_key_padding_mask))
        return self.norm2(src + self.linear2(self.activation(self.linear1(src))))


class HybridEncoder(nn.Module):
    """Attention inside the coarsest scale, then a top-down (FPN) and a bottom-up (PAN) pass over all of them."""

    def __init__(self, in_channels, cfg: Config, pe_temperature: float = 20.0):
        super().__init__()
        dim = cfg.hidden_dim
        self.num_levels = len(in_channels)
        self.input_proj = nn.ModuleList(
            nn.Sequential(nn.Conv2d(ch, dim, 1, bias=False), nn.BatchNorm2d(dim)) for ch in in_channels
        )
        self.layers = nn.ModuleList([TransformerEncoderLayer(dim, cfg.nhead, cfg.dim_feedforward)])
        high, wide = (s // cfg.strides[-1] for s in IMAGE_SIZE)
        pos = self.build_2d_sincos_position_embedding(wide, high, dim, pe_temperature)
        self.register_buffer("pos_embed", pos, persistent=False)
        steps = range(self.num_levels - 1)
        self.lateral_convs = nn.ModuleList(ConvNormLayer(dim, dim, 1, 1, act=nn.SiLU) for _ in steps)
        self.fpn_blocks = nn.ModuleList(CSPRepLayer(2 * dim, dim) for _ in steps)
        self.downsample_convs = nn.ModuleList(ConvNormLayer(dim, dim, 3, 2, act=nn.SiLU) for _ in steps)
        self.pan_blocks = nn.ModuleList(CSPRepLayer(2 * dim, dim) for _ in steps)

    @staticmethod
    def build_2d_sincos_position_embedding(w, h, embed_dim, temperature):
        grid_h, grid_w = torch.meshgrid(torch.arange(h).float(), torch.arange(w).float(), indexing="ij")
        pos_dim = embed_dim // 4
        omega = 1.0 / temperature ** (torch.arange(pos_dim, dtype=torch.float32) / pos_dim)
        out_w = grid_w.flatten()[..., None] @ omega[None]
        out_h = grid_h.flatten()[..., None] @ omega[None]
        return torch.cat([out_w.sin(), out_w.cos(), out_h.sin(), out_h.cos()], dim=1)[None]

    def forward(self, feats, masks):
        proj_feats = [proj(feat) for proj, feat in zip(self.input_proj, feats)]
        src = proj_feats[-1].flatten(2).permute(0, 2, 1)
        for layer in self.layers:
            src = layer(src, src_key_padding_mask=masks[-1].flatten(1), pos_embed=self.pos_embed)
        proj_feats[-1] = src.permute(0, 2, 1).reshape(proj_feats[-1].shape)
        inner_outs = [proj_feats[-1]]
        for idx in range(self.num_levels - 1, 0, -1):
            step = self.num_levels - 1 - idx
            inner_outs[0] = self.lateral_convs[step](inner_outs[0])
            upsample_feat = F.interpolate(inner_outs[0], scale_factor=2.0, mode="nearest")
            inner_outs.insert(0, self.fpn_blocks[step](torch.cat([upsample_feat, proj_feats[idx - 1]], dim=1)))
        outs = [inner_outs[0]]
        for idx in range(self.num_levels - 1):
            downsample_feat = self.downsample_convs[idx](outs[-1])
            outs.append(self.pan_blocks[idx](torch.cat([downsample_feat, inner_outs[idx + 1]], dim=1)))
        return outs


class MLP(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim, num_layers):
        super().__init__()
        dims = [input_dim] + [hidden_dim] * (num_layers - 1) + [output_dim]
        self.layers = nn.ModuleList(nn.Linear(n, k) for n, k in zip(dims[:-1], dims[1:]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i + 1 < len(self.layers) else layer(x)
        return x


def deformable_attention_core_func(value, spatial_shapes, sampling_locations, attention_weights, num_points_list):
    """value [bs, len_v, heads, c], locations [bs, len_q, heads, points, 2], weights [bs, len_q, heads, points]."""
    bs, _, n_head, c = value.shape
    len_q = sampling_locations.shape[1]
    value = value.permute(0, 2, 3, 1).flatten(0, 1).split([h * w for h, w in spatial_shapes], dim=-1)
    grids = (2 * sampling_locations - 1).permute(0, 2, 1, 3, 4).flatten(0, 1).split(num_points_list, dim=-2)
    sampled = []
    for level, (h, w) in enumerate(spatial_shapes):
        value_l = value[level].reshape(bs * n_head, c, h, w)
        sampled.append(F.grid_sample(value_l, grids[level], "bilinear", padding_mode="zeros", align_corners=False))
    weights = attention_weights.permute(0, 2, 1, 3).reshape(bs * n_head, 1, len_q, sum(num_points_list))
    output = (torch.cat(sampled, dim=-1) * weights).sum(-1).reshape(bs, n_head * c, len_q)
    return output.permute(0, 2, 1)


class MSDeformableAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, num_points, offset_scale=0.5):
        super().__init__()
        self.num_heads, self.offset_scale = num_heads, offset_scale
        self.num_points_list = list(num_points)
        total = sum(num_points)
        scale = torch.tensor([1 / n for n in num_points for _ in range(n)])
        self.register_buffer("num_points_scale", scale.view(1, 1, 1, total, 1), persistent=False)
        self.sampling_offsets = nn.Linear(embed_dim, num_heads * total * 2)
        self.attention_weights = nn.Linear(embed_dim, num_heads * total)
        self.value_proj = nn.Linear(embed_dim, embed_dim)
        self.output_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, reference_points, value, spatial_shapes, value_mask):
        bs, len_q, dim = query.shape
        total = sum(self.num_points_list)
        value = self.value_proj(value).masked_fill(value_mask.unsqueeze(-1), 0.0)
        value = value.reshape(bs, -1, self.num_heads, dim // self.num_heads)
        offsets = self.sampling_offsets(query).reshape(bs, len_q, self.num_heads, total, 2)
        weights = self.attention_weights(query).reshape(bs, len_q, self.num_heads, total).softmax(dim=-1)
        reference = reference_points.repeat_interleave(torch.tensor(self.num_points_list), dim=2)[:, :, None]
        offsets = offsets * self.num_points_scale * reference[..., 2:] * self.offset_scale
        locations = reference[..., :2] + offsets
        output = deformable_attention_core_func(value, spatial_shapes, locations, weights, self.num_points_list)
        return self.output_proj(output)


class TransformerDecoderLayer(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        dim = cfg.hidden_dim
        self.self_attn = Attention(dim, cfg.nhead)
        self.norm1 = nn.LayerNorm(dim)
        self.cross_attn = MSDeformableAttention(dim, cfg.nhead, cfg.num_points)
        self.norm2 = nn.LayerNorm(dim)
        self.linear1 = nn.Linear(dim, cfg.dim_feedforward)
        self.linear2 = nn.Linear(cfg.dim_feedforward, dim)
        self.norm3 = nn.LayerNorm(dim)

    def forward(self, tgt, reference_points, memory, spatial_shapes, memory_mask, query_pos):
        q = k = tgt + query_pos
        tgt = self.norm1(tgt + self.self_attn(q, k, value=tgt))
        tgt2 = self.cross_attn(tgt + query_pos, reference_points, memory, spatial_shapes, memory_mask)
        tgt = self.norm2(tgt + tgt2)
        return self.norm3(tgt + self.linear2(F.relu(self.linear1(tgt))))


def gen_sineembed_for_position(pos_tensor, num_feats: int, temperature: float = 20.0):
    dim_t = temperature ** (2 * (torch.arange(num_feats, device=pos_tensor.device) // 2) / num_feats)
    parts = []
    for i in (1, 0, 2, 3):  # y, x, w, h
        embed = pos_tensor[:, :, i, None] * (2 * math.pi) / dim_t
        parts.append(torch.stack((embed[:, :, 0::2].sin(), embed[:, :, 1::2].cos()), dim=3).flatten(2))
    return torch.cat(parts, dim=2)


class TransformerDecoder(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.hidden_dim = cfg.hidden_dim
        self.layers = nn.ModuleList(TransformerDecoderLayer(cfg) for _ in range(cfg.num_decoder_layers))

    def forward(self, tgt, ref_unact, memory, spatial_shapes, mask, ratios, bbox_head, score_head, query_pos_head):
        output, out_bboxes, out_logits = tgt, [], []
        ref_points = torch.sigmoid(ref_unact)
        for i, layer in enumerate(self.layers):
            ref_input = ref_points[:, :, None] * torch.cat([ratios, ratios], -1)[:, None]
            query_pos = query_pos_head(gen_sineembed_for_position(ref_points, self.hidden_dim // 2))
            output = layer(output, ref_input, memory, spatial_shapes, mask, query_pos)
            inter_ref = torch.sigmoid(bbox_head[i](output) + inverse_sigmoid(ref_points))
            out_logits.append(score_head[i](output))
            out_bboxes.append(inter_ref)
            ref_points = inter_ref.detach()
        return torch.stack(out_bboxes), torch.stack(out_logits)


class RTDETRTransformer(nn.Module):
    def __init__(self, cfg: Config, eps: float = 3e-2):
        super().__init__()
        dim = cfg.hidden_dim
        self.num_queries, self.eps = cfg.num_queries, eps
        self.decoder = TransformerDecoder(cfg)
        self.query_pos_head = MLP(2 * dim, dim, dim, 2)
        self.enc_output = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.enc_score_head = nn.Linear(dim, cfg.num_classes)
        self.enc_bbox_head = MLP(dim, dim, 4, 3)
        self.dec_score_head = nn.ModuleList(nn.Linear(dim, cfg.num_classes) for _ in range(cfg.num_decoder_layers))
        self.dec_bbox_head = nn.ModuleList(MLP(dim, dim, 4, 3) for _ in range(cfg.num_decoder_layers))
        shapes = [(IMAGE_SIZE[0] // s, IMAGE_SIZE[1] // s) for s in cfg.strides]
        for name, table in zip(("centers", "sizes", "levels"), self._generate_anchors(shapes)):
            self.register_buffer("anchor_" + name, table, persistent=False)

    @staticmethod
    def _generate_anchors(spatial_shapes, grid_size: float = 0.05):
        centers, sizes, levels = [], [], []
        for lvl, (h, w) in enumerate(spatial_shapes):
            grid_y, grid_x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            grid_xy = (torch.stack([grid_x, grid_y], dim=-1) + 0.5) / torch.tensor([w, h], dtype=torch.float32)
            centers.append(grid_xy.reshape(1, h * w, 2))
            sizes.append(torch.ones(1, h * w, 2) * grid_size * (2.0**lvl))
            levels.append(torch.full((h * w,), lvl))
        return torch.cat(centers, 1), torch.cat(sizes, 1), torch.cat(levels)

    @staticmethod
    def get_valid_ratio(mask):
        valid_h, valid_w = (~mask[:, :, 0]).sum(1), (~mask[:, 0, :]).sum(1)
        return torch.stack([valid_w.float() / mask.shape[2], valid_h.float() / mask.shape[1]], -1)

    def _get_anchors(self, ratios, mask_flatten):
        centers = self.anchor_centers / ratios[:, self.anchor_levels]
        anchors = torch.cat([centers, self.anchor_sizes.expand_as(centers)], dim=-1)
        valid = ((anchors > self.eps) & (anchors < 1 - self.eps)).all(-1) & ~mask_flatten
        anchors = torch.log(anchors / (1 - anchors))
        return anchors.masked_fill(~valid.unsqueeze(-1), float("inf")), valid

    def _get_decoder_input(self, memory, ratios, mask_flatten):
        anchors, valid = self._get_anchors(ratios, mask_flatten)
        output_memory = self.enc_output(valid.unsqueeze(-1).to(memory.dtype) * memory)
        logits = self.enc_score_head(output_memory)
        coord_unact = self.enc_bbox_head(output_memory) + anchors
        scores = logits.max(-1).values.masked_fill(~valid, float("-inf"))
        _, topk_ind = torch.topk(scores, self.num_queries, dim=1)
        parts = (output_memory, coord_unact, logits)
        target, ref, logits = (x.gather(1, topk_ind[..., None].repeat(1, 1, x.shape[-1])) for x in parts)
        return target, ref, {"logits": logits, "boxes": ref.sigmoid()}

    def forward(self, feats, masks):
        memory = torch.cat([feat.flatten(2).permute(0, 2, 1) for feat in feats], 1)
        mask_flatten = torch.cat([mask.flatten(1) for mask in masks], 1)
        spatial_shapes = [tuple(feat.shape[2:]) for feat in feats]
        ratios = torch.stack([self.get_valid_ratio(mask) for mask in masks], 1)
        target, ref_unact, enc = self._get_decoder_input(memory, ratios, mask_flatten)
        out_bboxes, out_logits = self.decoder(
            target, ref_unact, memory, spatial_shapes, mask_flatten, ratios,
            self.dec_bbox_head, self.dec_score_head, self.query_pos_head,
        )
        return {"pred_logits": out_logits, "pred_boxes": out_bboxes, "enc": enc}


class RTDETRPostProcessor(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.num_classes, self.num_top = cfg.num_classes, cfg.num_top
        self.register_buffer("categories", torch.tensor(cfg.categories), persistent=False)

    def forward(self, outputs, orig_target_sizes):
        logits, boxes = outputs["pred_logits"][-1], outputs["pred_boxes"][-1]
        size = orig_target_sizes.to(boxes.dtype).repeat(1, 2).unsqueeze(1)
        bbox_pred = torch.minimum((box_cxcywh_to_xyxy(boxes) * size).clamp(min=0.0), size)
        scores, index = torch.topk(logits.sigmoid().flatten(1), self.num_top, dim=-1)
        labels, index = index % self.num_classes, torch.div(index, self.num_classes, rounding_mode="floor")
        boxes = bbox_pred.gather(dim=1, index=index.unsqueeze(-1).repeat(1, 1, 4))
        return self.categories[labels], boxes, scores


class RTDETR(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)
        self.backbone = PResNet(cfg.channels)
        self.encoder = HybridEncoder(cfg.channels[1:], cfg)
        self.decoder = RTDETRTransformer(cfg)
        self.postprocessor = RTDETRPostProcessor(cfg)

    def forward(self, images, mask, orig_target_sizes):
        x = ((images - self.mean) / self.std).masked_fill(mask[:, None], 0.0)
        feats = self.backbone(x)
        masks = [F.interpolate(mask[None].float(), size=f.shape[-2:], mode="nearest")[0].bool() for f in feats]
        out = self.decoder(self.encoder(feats, masks), masks)
        found, enc = self.postprocessor(out, orig_target_sizes), out["enc"]
        return *found, out["pred_logits"], out["pred_boxes"], enc["logits"], enc["boxes"]


def make_inputs():
    """Two pictures of spots, padded at the right and the bottom to one size, and their sizes before (width, height)."""
    rng = np.random.RandomState(5)
    high, wide = IMAGE_SIZE
    y, x = np.mgrid[0:high, 0:wide]
    images = np.full((2, 3, high, wide), 0.45)
    mask = np.ones((2, high, wide), dtype=bool)
    for picture, hidden, (h, w) in zip(images, mask, ((128, 136), (92, 160))):
        for _ in range(24):
            far = (x - rng.uniform(0, wide)) ** 2 + (y - rng.uniform(0, high)) ** 2
            picture += rng.uniform(-0.7, 0.7, (3, 1, 1)) * np.exp(-far / rng.uniform(20, 500))
        hidden[:h, :w] = False
    images = np.clip(images + 0.05 * rng.randn(*images.shape), 0, 1)
    images = np.where(mask[:, None], 0.0, images).astype(np.float32)
    return images, mask, np.array([[408, 384], [640, 368]], dtype=np.int64)


def build():
    """The net in eval mode with the same weights on every run, and a padded batch of two."""
    torch.manual_seed(22)
    net = RTDETR(Config())
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm2d, FrozenBatchNorm2d)):
            nn.init.uniform_(module.weight, 0.8, 1.6)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.15, 0.5)
        elif isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.7, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            nn.init.normal_(module.bias, std=0.1)
    for layer in net.decoder.decoder.layers:
        nn.init.normal_(layer.cross_attn.sampling_offsets.bias, std=2.0)
    return net.eval(), tuple(torch.from_numpy(part) for part in make_inputs())
