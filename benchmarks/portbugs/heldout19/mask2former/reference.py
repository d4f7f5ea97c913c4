"""Mask classification for semantic and instance segmentation, in the manner of Mask2Former, in PyTorch: the reference."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

PIXEL_MEAN = (123.675, 116.280, 103.530)
PIXEL_STD = (58.395, 57.120, 57.375)


def make_padding_mask(sizes, height: int, width: int):
    """True where a pixel of the padded batch lies outside of its image."""
    ys = torch.arange(height, device=sizes.device)
    xs = torch.arange(width, device=sizes.device)
    outside_y = ys[None, :] >= sizes[:, 0:1]
    outside_x = xs[None, :] >= sizes[:, 1:2]
    return outside_y[:, :, None] | outside_x[:, None, :]


def resize_padding_mask(mask, size):
    """The padding mask at the resolution of a feature map."""
    return F.interpolate(mask[:, None].float(), size=size, mode="nearest")[:, 0].to(torch.bool)


def with_pos_embed(tensor, pos):
    return tensor if pos is None else tensor + pos


def masks_to_boxes(masks):
    """Boxes x0, y0, x1, y1 (ends exclusive) around boolean masks of N x H x W; zeros for an empty mask."""
    n, h, w = masks.shape
    ys = torch.arange(h, device=masks.device)
    xs = torch.arange(w, device=masks.device)
    rows = masks.any(dim=2)
    cols = masks.any(dim=1)
    x0 = torch.where(cols, xs, w).amin(dim=1)
    y0 = torch.where(rows, ys, h).amin(dim=1)
    x1 = torch.where(cols, xs + 1, 0).amax(dim=1)
    y1 = torch.where(rows, ys + 1, 0).amax(dim=1)
    boxes = torch.stack([x0, y0, x1, y1], dim=1).float()
    return boxes * rows.any(dim=1, keepdim=True).float()


def crop_and_resize(result, image_size, output_size):
    """Takes the padding off and brings a C x H x W map to the size that was asked for."""
    result = result[:, : image_size[0], : image_size[1]][None]
    return F.interpolate(result, size=output_size, mode="bilinear", align_corners=False)[0]


class BasicBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        identity = x if self.shortcut is None else self.shortcut(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + identity)


class Backbone(nn.Module):
    """A short residual net; gives the maps at strides 4, 8 and 16."""

    def __init__(self, stem: int = 16, channels=(24, 40, 56)):
        super().__init__()
        self.stem_conv = nn.Conv2d(3, stem, 7, stride=2, padding=3, bias=False)
        self.stem_bn = nn.BatchNorm2d(stem)
        self.stem_pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = nn.ModuleList()
        in_channels = stem
        for i, out_channels in enumerate(channels):
            blocks = [BasicBlock(in_channels, out_channels, stride=1 if i == 0 else 2)]
            if i > 0:
                blocks.append(BasicBlock(out_channels, out_channels))
            self.stages.append(nn.Sequential(*blocks))
            in_channels = out_channels

    def forward(self, x):
        x = self.stem_pool(F.relu(self.stem_bn(self.stem_conv(x))))
        features = {}
        for i, stage in enumerate(self.stages):
            x = stage(x)
            features[f"res{i + 2}"] = x
        return features


class PositionEmbeddingSine(nn.Module):
    """Sines and cosines of the place in the picture that is not padding, normalised to one turn."""

    def __init__(self, num_pos_feats: int, temperature: float = 10000.0, scale: float = 2 * math.pi):
        super().__init__()
        self.num_pos_feats = num_pos_feats
        self.temperature = temperature
        self.scale = scale
        index = torch.arange(num_pos_feats, dtype=torch.float32)
        dim_t = temperature ** (2 * torch.div(index, 2, rounding_mode="floor") / num_pos_feats)
        self.register_buffer("dim_t", dim_t, persistent=False)

    def forward(self, mask):
        not_mask = (~mask).float()
        y_embed = not_mask.cumsum(1)
        x_embed = not_mask.cumsum(2)
        eps = 1e-6
        y_embed = y_embed / (y_embed[:, -1:, :] + eps) * self.scale
        x_embed = x_embed / (x_embed[:, :, -1:] + eps) * self.scale

        pos_x = x_embed[:, :, :, None] / self.dim_t
        pos_y = y_embed[:, :, :, None] / self.dim_t
        pos_x = torch.stack((pos_x[..., 0::2].sin(), pos_x[..., 1::2].cos()), dim=4).flatten(3)
        pos_y = torch.stack((pos_y[..., 0::2].sin(), pos_y[..., 1::2].cos()), dim=4).flatten(3)
        return torch.cat((pos_y, pos_x), dim=3).permute(0, 3, 1, 2)


class MultiheadAttention(nn.Module):
    """Attention with packed projections; masks are boolean, True means closed, (batch * heads) x queries x keys."""

    def __init__(self, embed_dim: int, num_heads: int):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def split_heads(self, x):
        b, length, _ = x.shape
        x = x.reshape(b, length, self.num_heads, self.head_dim).transpose(1, 2)
        return x.reshape(b * self.num_heads, length, self.head_dim)

    def forward(self, query, key, value, attn_mask=None):
        b, length, c = query.shape
        w_q, w_k, w_v = self.in_proj_weight.chunk(3)
        b_q, b_k, b_v = self.in_proj_bias.chunk(3)
        q = self.split_heads(F.linear(query, w_q, b_q)) * self.head_dim**-0.5
        k = self.split_heads(F.linear(key, w_k, b_k))
        v = self.split_heads(F.linear(value, w_v, b_v))
        scores = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask, torch.finfo(scores.dtype).min)
        out = torch.bmm(scores.softmax(dim=-1), v)
        out = out.reshape(b, self.num_heads, length, self.head_dim).transpose(1, 2).reshape(b, length, c)
        return self.out_proj(out)


class EncoderLayer(nn.Module):
    def __init__(self, d_model: int, nhead: int, dim_feedforward: int):
        super().__init__()
        self.self_attn = MultiheadAttention(d_model, nhead)
        self.norm1 = nn.LayerNorm(d_model)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, src, mask, pos):
        q = k = with_pos_embed(src, pos)
        src = self.norm1(src + self.self_attn(q, k, src, attn_mask=mask))
        src2 = self.linear2(F.gelu(self.linear1(src)))
        return self.norm2(src + src2)


class PixelDecoder(nn.Module):
    """A transformer encoder on the coarsest map and a feature pyramid down to the finest."""

    def __init__(self, in_channels, conv_dim: int, mask_dim: int, nheads: int, dim_feedforward: int, enc_layers: int):
        super().__init__()
        self.in_features = [f"res{i + 2}" for i in range(len(in_channels))]
        self.nheads = nheads
        self.pe_layer = PositionEmbeddingSine(conv_dim // 2)
        self.input_proj = nn.Conv2d(in_channels[-1], conv_dim, kernel_size=1)
        self.encoder = nn.ModuleList(EncoderLayer(conv_dim, nheads, dim_feedforward) for _ in range(enc_layers))
        self.lateral_convs = nn.ModuleList()
        self.lateral_norms = nn.ModuleList()
        self.output_convs = nn.ModuleList()
        self.output_norms = nn.ModuleList()
        for channels in in_channels[:-1][::-1]:
            self.lateral_convs.append(nn.Conv2d(channels, conv_dim, 1, bias=False))
            self.lateral_norms.append(nn.GroupNorm(8, conv_dim))
        for _ in in_channels:
            self.output_convs.append(nn.Conv2d(conv_dim, conv_dim, 3, padding=1, bias=False))
            self.output_norms.append(nn.GroupNorm(8, conv_dim))
        self.mask_features = nn.Conv2d(conv_dim, mask_dim, 3, padding=1)

    def encode(self, x, padding_mask):
        b, _, h, w = x.shape
        mask = resize_padding_mask(padding_mask, (h, w))
        pos = self.pe_layer(mask).flatten(2).transpose(1, 2)
        tokens = self.input_proj(x).flatten(2).transpose(1, 2)
        closed = mask.flatten(1)[:, None, None, :].expand(b, self.nheads, h * w, h * w).reshape(-1, h * w, h * w)
        for layer in self.encoder:
            tokens = layer(tokens, closed, pos)
        return tokens.transpose(1, 2).reshape(b, -1, h, w)

    def forward(self, features, padding_mask):
        multi_scale = []
        y = None
        for idx, name in enumerate(self.in_features[::-1]):
            x = features[name]
            if idx == 0:
                y = self.encode(x, padding_mask)
            else:
                lateral = self.lateral_norms[idx - 1](self.lateral_convs[idx - 1](x))
                y = lateral + F.interpolate(y, size=lateral.shape[-2:], mode="bilinear", align_corners=False)
            y = F.relu(self.output_norms[idx](self.output_convs[idx](y)))
            multi_scale.append(y)
        return self.mask_features(y), multi_scale


class SelfAttentionLayer(nn.Module):
    def __init__(self, d_model: int, nhead: int):
        super().__init__()
        self.self_attn = MultiheadAttention(d_model, nhead)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tgt, query_pos=None):
        q = k = with_pos_embed(tgt, query_pos)
        return self.norm(tgt + self.self_attn(q, k, value=tgt))


class CrossAttentionLayer(nn.Module):
    def __init__(self, d_model: int, nhead: int):
        super().__init__()
        self.multihead_attn = MultiheadAttention(d_model, nhead)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tgt, memory, memory_mask=None, pos=None, query_pos=None):
        tgt2 = self.multihead_attn(
            with_pos_embed(tgt, query_pos), with_pos_embed(memory, pos), memory, attn_mask=memory_mask
        )
        return self.norm(tgt + tgt2)


class FFNLayer(nn.Module):
    def __init__(self, d_model: int, dim_feedforward: int):
        super().__init__()
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tgt):
        return self.norm(tgt + self.linear2(F.relu(self.linear1(tgt))))


class MLP(nn.Module):
    def __init__(self, input_dim: int, hidden_dim: int, output_dim: int, num_layers: int):
        super().__init__()
        h = [hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(nn.Linear(n, k) for n, k in zip([input_dim] + h, h + [output_dim]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i < len(self.layers) - 1 else layer(x)
        return x


class MaskedTransformerDecoder(nn.Module):
    """Queries that look at one level after the other, each where its own mask of the layer before was set."""

    def __init__(self, conv_dim, hidden_dim, num_queries, num_classes, nheads, dim_feedforward, dec_layers, mask_dim):
        super().__init__()
        self.num_heads = nheads
        self.num_layers = dec_layers
        self.num_feature_levels = 3
        self.pe_layer = PositionEmbeddingSine(hidden_dim // 2)
        self.transformer_self_attention_layers = nn.ModuleList()
        self.transformer_cross_attention_layers = nn.ModuleList()
        self.transformer_ffn_layers = nn.ModuleList()
        for _ in range(dec_layers):
            self.transformer_self_attention_layers.append(SelfAttentionLayer(hidden_dim, nheads))
            self.transformer_cross_attention_layers.append(CrossAttentionLayer(hidden_dim, nheads))
            self.transformer_ffn_layers.append(FFNLayer(hidden_dim, dim_feedforward))
        self.decoder_norm = nn.LayerNorm(hidden_dim)
        self.query_feat = nn.Embedding(num_queries, hidden_dim)
        self.query_embed = nn.Embedding(num_queries, hidden_dim)
        self.level_embed = nn.Embedding(self.num_feature_levels, hidden_dim)
        self.input_proj = nn.ModuleList(
            nn.Conv2d(conv_dim, hidden_dim, kernel_size=1) for _ in range(self.num_feature_levels)
        )
        self.class_embed = nn.Linear(hidden_dim, num_classes + 1)
        self.mask_embed = MLP(hidden_dim, hidden_dim, mask_dim, 3)

    def forward_prediction_heads(self, output, mask_features, target_size, padding):
        decoder_output = self.decoder_norm(output)
        outputs_class = self.class_embed(decoder_output)
        mask_embed = self.mask_embed(decoder_output)
        outputs_mask = torch.einsum("bqc,bchw->bqhw", mask_embed, mask_features)

        # where the mask of this layer is not set, the next one does not look
        attn_mask = F.interpolate(outputs_mask, size=target_size, mode="bilinear", align_corners=False)
        attn_mask = attn_mask.sigmoid().flatten(2) < 0.5
        attn_mask = attn_mask | padding[:, None, :]
        # a query with nothing to look at looks at everything
        attn_mask = attn_mask & ~attn_mask.all(dim=-1, keepdim=True)
        attn_mask = attn_mask.unsqueeze(1).repeat(1, self.num_heads, 1, 1).flatten(0, 1)
        return outputs_class, outputs_mask, attn_mask.detach()

    def forward(self, x, mask_features, padding_mask):
        src, pos, paddings, size_list = [], [], [], []
        for i in range(self.num_feature_levels):
            size_list.append(x[i].shape[-2:])
            mask = resize_padding_mask(padding_mask, size_list[-1])
            paddings.append(mask.flatten(1))
            pos.append(self.pe_layer(mask).flatten(2).transpose(1, 2))
            src.append((self.input_proj[i](x[i]).flatten(2) + self.level_embed.weight[i][None, :, None]).transpose(1, 2))

        b = mask_features.shape[0]
        query_embed = self.query_embed.weight.unsqueeze(0).repeat(b, 1, 1)
        output = self.query_feat.weight.unsqueeze(0).repeat(b, 1, 1)

        predictions_class, predictions_mask = [], []
        outputs_class, outputs_mask, attn_mask = self.forward_prediction_heads(
            output, mask_features, size_list[0], paddings[0]
        )
        predictions_class.append(outputs_class)
        predictions_mask.append(outputs_mask)

        for i in range(self.num_layers):
            level = i % self.num_feature_levels
            following = (i + 1) % self.num_feature_levels
            output = self.transformer_cross_attention_layers[i](
                output, src[level], memory_mask=attn_mask, pos=pos[level], query_pos=query_embed
            )
            output = self.transformer_self_attention_layers[i](output, query_pos=query_embed)
            output = self.transformer_ffn_layers[i](output)
            outputs_class, outputs_mask, attn_mask = self.forward_prediction_heads(
                output, mask_features, size_list[following], paddings[following]
            )
            predictions_class.append(outputs_class)
            predictions_mask.append(outputs_mask)
        return predictions_class, predictions_mask


class MaskFormer(nn.Module):
    def __init__(self, num_classes: int = 7, num_queries: int = 10, topk: int = 6, output_size=(30, 38)):
        super().__init__()
        channels = (24, 40, 56)
        self.num_classes = num_classes
        self.num_queries = num_queries
        self.topk = topk
        self.output_size = output_size
        self.register_buffer("pixel_mean", torch.tensor(PIXEL_MEAN).view(-1, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(PIXEL_STD).view(-1, 1, 1), persistent=False)
        self.backbone = Backbone(16, channels)
        self.pixel_decoder = PixelDecoder(channels, 48, 32, nheads=6, dim_feedforward=72, enc_layers=2)
        self.predictor = MaskedTransformerDecoder(
            48, 40, num_queries, num_classes, nheads=5, dim_feedforward=96, dec_layers=4, mask_dim=32
        )

    def semantic_inference(self, mask_cls, mask_pred):
        mask_cls = F.softmax(mask_cls, dim=-1)[..., :-1]
        mask_pred = mask_pred.sigmoid()
        return torch.einsum("qc,qhw->chw", mask_cls, mask_pred)

    def instance_inference(self, mask_cls, mask_pred):
        scores = F.softmax(mask_cls, dim=-1)[:, :-1]
        labels = torch.arange(self.num_classes, device=scores.device)
        labels = labels.unsqueeze(0).repeat(self.num_queries, 1).flatten(0, 1)
        scores_per_image, topk_indices = scores.flatten(0, 1).topk(self.topk, sorted=True)
        labels_per_image = labels[topk_indices]
        mask_pred = mask_pred[torch.div(topk_indices, self.num_classes, rounding_mode="floor")]

        pred_masks = (mask_pred > 0).float()
        mask_scores = (mask_pred.sigmoid().flatten(1) * pred_masks.flatten(1)).sum(1)
        mask_scores = mask_scores / (pred_masks.flatten(1).sum(1) + 1e-6)
        return scores_per_image * mask_scores, labels_per_image, pred_masks, masks_to_boxes(pred_masks > 0)

    def forward(self, images, image_sizes):
        h, w = images.shape[-2:]
        padding_mask = make_padding_mask(image_sizes, h, w)
        x = (images - self.pixel_mean) / self.pixel_std
        x = x.masked_fill(padding_mask[:, None], 0.0)

        features = self.backbone(x)
        mask_features, multi_scale = self.pixel_decoder(features, padding_mask)
        predictions_class, predictions_mask = self.predictor(multi_scale, mask_features, padding_mask)
        mask_cls_results = predictions_class[-1]
        mask_pred_results = F.interpolate(predictions_mask[-1], size=(h, w), mode="bilinear", align_corners=False)

        semantic, instances = [], []
        for mask_cls, mask_pred, size in zip(mask_cls_results, mask_pred_results, image_sizes.tolist()):
            mask_pred = crop_and_resize(mask_pred, size, self.output_size)
            semantic.append(self.semantic_inference(mask_cls, mask_pred))
            instances.append(self.instance_inference(mask_cls, mask_pred))
        scores, labels, masks, boxes = (torch.stack(field) for field in zip(*instances))
        return mask_cls_results, predictions_mask[-1], torch.stack(semantic), scores, labels, masks, boxes


def init_like_trained(net):
    """Weights, biases and statistics as they are after training."""
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, std=math.sqrt(1.6 / fan_in))
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, MultiheadAttention):
            nn.init.normal_(module.in_proj_weight, std=math.sqrt(2.2 / module.embed_dim))
            nn.init.normal_(module.in_proj_bias, std=0.15)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.8)
        elif isinstance(module, (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.3)
                nn.init.uniform_(module.running_var, 0.5, 1.6)
    for name, module in net.predictor.named_modules():
        if name.endswith(("out_proj", "linear2")):
            nn.init.normal_(module.weight, std=math.sqrt(0.25 / module.in_features))
    nn.init.normal_(net.predictor.query_feat.weight, std=1.6)
    nn.init.normal_(net.predictor.class_embed.weight, std=0.4)
    with torch.no_grad():
        net.predictor.class_embed.bias[-1] += 2.5


def build():
    """The net with the same weights on every run, and a batch of three padded images with their sizes."""
    torch.manual_seed(17)
    net = MaskFormer()
    init_like_trained(net)
    sizes = torch.tensor([[56, 72], [38, 66], [50, 44]])
    coarse = torch.randn(3, 3, 7, 9)
    images = F.interpolate(coarse, size=(56, 72), mode="bicubic", align_corners=False) * 55.0 + 118.0
    images = (images + torch.randn(3, 3, 56, 72) * 12.0).clamp(0.0, 255.0)
    images = images.masked_fill(make_padding_mask(sizes, 56, 72)[:, None], 0.0)
    return net.eval(), (images, sizes)
