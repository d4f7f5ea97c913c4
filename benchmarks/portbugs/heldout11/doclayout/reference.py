"""A small document model: words with their boxes and patches of the page in one encoder, in PyTorch: the reference.

The page goes through a stem and a merging of patches (Donut), each word takes the patch under its box (UDOP), and words
and patches attend to each other with 1D and 2D biases in buckets and PB-relax (LayoutLMv3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class DocConfig:
    vocab_size: int = 130
    hidden_size: int = 96
    num_heads: int = 6
    num_layers: int = 2
    intermediate_size: int = 192
    max_positions: int = 48
    pad_token_id: int = 1
    coordinate_size: int = 16
    max_2d_positions: int = 256
    max_coordinate: int = 1000
    rel_pos_bins: int = 32
    max_rel_pos: int = 100
    rel_2d_pos_bins: int = 64
    max_rel_2d_pos: int = 300
    image_size: tuple = (48, 64)
    stem_width: int = 24
    patch_width: int = 48
    pretrained_grid: tuple = (8, 10)
    num_labels: int = 9
    num_classes: int = 6


def relative_position_bucket(relative_position, num_buckets, max_distance):
    """Half of the buckets for either direction; exact for small distances, logarithmic up to the largest one."""
    num_buckets //= 2
    ret = (relative_position > 0).long() * num_buckets
    n = torch.abs(relative_position)
    max_exact = num_buckets // 2
    is_small = n < max_exact
    val_if_large = max_exact + (
        torch.log(n.float() / max_exact) / math.log(max_distance / max_exact) * (num_buckets - max_exact)
    ).to(torch.long)
    val_if_large = torch.min(val_if_large, torch.full_like(val_if_large, num_buckets - 1))
    return ret + torch.where(is_small, n, val_if_large)


class TextEmbeddings(nn.Module):
    """Words, their places, and the six coordinates of their boxes."""

    def __init__(self, config):
        super().__init__()
        self.pad = config.pad_token_id
        self.max_2d = config.max_2d_positions
        self.max_coordinate = config.max_coordinate
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=self.pad)
        self.token_type_embeddings = nn.Embedding(2, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_positions, config.hidden_size, padding_idx=self.pad)
        self.x_position_embeddings = nn.Embedding(config.max_2d_positions, config.coordinate_size)
        self.y_position_embeddings = nn.Embedding(config.max_2d_positions, config.coordinate_size)
        self.h_position_embeddings = nn.Embedding(config.max_2d_positions, config.coordinate_size)
        self.w_position_embeddings = nn.Embedding(config.max_2d_positions, config.coordinate_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size)

    def create_position_ids(self, input_ids):
        mask = input_ids.ne(self.pad).int()
        return (torch.cumsum(mask, dim=1).type_as(mask) * mask).long() + self.pad

    def spatial_embeddings(self, bbox):
        scaled = torch.div(bbox * self.max_2d, self.max_coordinate, rounding_mode="floor").clamp(0, self.max_2d - 1)
        left = self.x_position_embeddings(scaled[:, :, 0])
        upper = self.y_position_embeddings(scaled[:, :, 1])
        right = self.x_position_embeddings(scaled[:, :, 2])
        lower = self.y_position_embeddings(scaled[:, :, 3])
        height = self.h_position_embeddings(torch.clip(2 * (scaled[:, :, 3] - scaled[:, :, 1]), 0, self.max_2d - 1))
        width = self.w_position_embeddings(torch.clip(2 * (scaled[:, :, 2] - scaled[:, :, 0]), 0, self.max_2d - 1))
        return torch.cat([left, upper, right, lower, height, width], dim=-1)

    def forward(self, input_ids, bbox):
        position_ids = self.create_position_ids(input_ids)
        token_types = torch.zeros_like(input_ids)
        token_types[:, 0] = 1
        embeddings = self.word_embeddings(input_ids) + self.token_type_embeddings(token_types)
        embeddings = embeddings + self.position_embeddings(position_ids) + self.spatial_embeddings(bbox)
        return self.LayerNorm(embeddings), position_ids


class PatchMerging(nn.Module):
    def __init__(self, dim, out):
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, out, bias=False)

    def forward(self, x, grid):
        x = x.view(x.shape[0], grid[0], grid[1], -1)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], dim=-1)
        return self.reduction(self.norm(x.flatten(1, 2))), (grid[0] // 2, grid[1] // 2)


class PageBackbone(nn.Module):
    """The picture of the page to patches of an eighth of its size."""

    def __init__(self, config):
        super().__init__()
        self.register_buffer("pixel_mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)
        self.conv1 = nn.Conv2d(3, config.stem_width, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(config.stem_width, eps=1e-3)
        self.conv2 = nn.Conv2d(config.stem_width, config.patch_width, 2, stride=2)
        self.merge = PatchMerging(config.patch_width, config.hidden_size)

    def forward(self, pixels):
        x = (pixels - self.pixel_mean) / self.pixel_std
        x = self.conv2(F.hardswish(self.bn1(self.conv1(x))))
        return self.merge(x.flatten(2).transpose(1, 2), tuple(x.shape[-2:]))


class DocSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_heads
        self.head_size = config.hidden_size // config.num_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def transpose_for_scores(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.head_size).permute(0, 2, 1, 3)

    def cogview_attention(self, attention_scores, alpha=32):
        """PB-relax: softmax of alpha * (s / alpha - max(s / alpha)), which does not overflow in half precision."""
        scaled = attention_scores / alpha
        max_value = scaled.amax(dim=-1).unsqueeze(-1)
        return ((scaled - max_value) * alpha).softmax(dim=-1)

    def forward(self, hidden_states, attention_mask, rel_pos, rel_2d_pos):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))
        scores = torch.matmul(q / math.sqrt(self.head_size), k.transpose(-1, -2))
        scores = scores + (rel_pos + rel_2d_pos) / math.sqrt(self.head_size)
        scores = scores + attention_mask
        context = torch.matmul(self.cogview_attention(scores), v)
        return context.permute(0, 2, 1, 3).contiguous().flatten(2)


class DocSelfOutput(nn.Module):
    def __init__(self, config, width):
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size)

    def forward(self, hidden_states, input_tensor):
        return self.LayerNorm(self.dense(hidden_states) + input_tensor)


class DocLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = DocSelfAttention(config)
        self.attention_output = DocSelfOutput(config, config.hidden_size)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = DocSelfOutput(config, config.intermediate_size)

    def forward(self, hidden_states, attention_mask, rel_pos, rel_2d_pos):
        attended = self.attention(hidden_states, attention_mask, rel_pos, rel_2d_pos)
        attended = self.attention_output(attended, hidden_states)
        return self.output(F.gelu(self.intermediate(attended)), attended)


class DocEncoder(nn.Module):
    """The layers, and the biases that all of them share."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.rel_pos_bias = nn.Linear(config.rel_pos_bins, config.num_heads, bias=False)
        self.rel_pos_x_bias = nn.Linear(config.rel_2d_pos_bins, config.num_heads, bias=False)
        self.rel_pos_y_bias = nn.Linear(config.rel_2d_pos_bins, config.num_heads, bias=False)
        self.layer = nn.ModuleList([DocLayer(config) for _ in range(config.num_layers)])

    def one_hot_bias(self, positions, table, bins, max_distance):
        relative = positions.unsqueeze(-2) - positions.unsqueeze(-1)
        buckets = relative_position_bucket(relative, bins, max_distance)
        one_hot = F.one_hot(buckets, num_classes=bins).to(table.weight.dtype)
        return table(one_hot).permute(0, 3, 1, 2).contiguous()

    def forward(self, hidden_states, bbox, keep, position_ids):
        config = self.config
        rel_pos = self.one_hot_bias(position_ids, self.rel_pos_bias, config.rel_pos_bins, config.max_rel_pos)
        rel_x = self.one_hot_bias(bbox[:, :, 0], self.rel_pos_x_bias, config.rel_2d_pos_bins, config.max_rel_2d_pos)
        rel_y = self.one_hot_bias(bbox[:, :, 3], self.rel_pos_y_bias, config.rel_2d_pos_bins, config.max_rel_2d_pos)
        attention_mask = (1.0 - keep[:, None, None, :].float()) * -10000.0
        for layer in self.layer:
            hidden_states = layer(hidden_states, attention_mask, rel_pos, rel_x + rel_y)
        return hidden_states


class TokenHead(nn.Module):
    """Labels of words, seen with the mean of their own line and of the line before."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(3 * config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden_states, bbox, mask):
        length = hidden_states.shape[1]
        changed = (bbox[:, 1:] != bbox[:, :-1]).any(dim=-1)
        line_ids = F.pad(torch.cumsum(changed.long(), dim=1), (1, 0))
        member = F.one_hot(line_ids, length).to(hidden_states) * mask.unsqueeze(-1)
        count = member.sum(dim=1).clamp(min=1.0)
        means = torch.matmul(member.transpose(1, 2), hidden_states) / count.unsqueeze(-1)
        before = F.pad(means[:, :-1], (0, 0, 1, 0))
        features = torch.cat([hidden_states, torch.matmul(member, means), torch.matmul(member, before)], dim=-1)
        return self.out_proj(self.norm(F.gelu(self.dense(features)))).masked_fill(~mask.bool().unsqueeze(-1), 0.0)


class DocumentPooler(nn.Module):
    """The first word, mean and deviation of all by a learned weight, and the maximum of the patches."""

    def __init__(self, config):
        super().__init__()
        self.attention = nn.Linear(config.hidden_size, config.hidden_size // 2)
        self.score = nn.Linear(config.hidden_size // 2, 1)
        self.dense = nn.Linear(4 * config.hidden_size, config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.num_classes)

    def forward(self, hidden_states, keep, text_length):
        scores = self.score(torch.tanh(self.attention(hidden_states))).squeeze(-1)
        weights = torch.softmax(scores.masked_fill(~keep, torch.finfo(scores.dtype).min), dim=-1)
        mean = torch.einsum("bt,btd->bd", weights, hidden_states)
        variance = torch.einsum("bt,btd->bd", weights, (hidden_states - mean.unsqueeze(1)) ** 2)
        patches = hidden_states[:, text_length + 1 :].masked_fill(~keep[:, text_length + 1 :, None], -1e4)
        pooled = [hidden_states[:, 0], mean, torch.sqrt(variance.clamp(min=1e-6)), patches.amax(dim=1)]
        return self.out_proj(torch.tanh(self.dense(torch.cat(pooled, dim=-1))))


class DocLayoutModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + math.prod(config.pretrained_grid), config.hidden_size))
        self.embeddings = TextEmbeddings(config)
        self.backbone = PageBackbone(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=1e-6)
        self.LayerNorm = nn.LayerNorm(config.hidden_size)
        self.encoder = DocEncoder(config)
        self.classifier = TokenHead(config)
        self.pooler = DocumentPooler(config)
        grid = (config.image_size[0] // 8, config.image_size[1] // 8)
        self.register_buffer("visual_bbox", self.init_visual_bbox(grid, config.max_coordinate), persistent=False)

    @staticmethod
    def init_visual_bbox(grid, max_len):
        rows, cols = grid
        x = torch.div(torch.arange(0, max_len * (cols + 1), max_len), cols, rounding_mode="trunc")
        y = torch.div(torch.arange(0, max_len * (rows + 1), max_len), rows, rounding_mode="trunc")
        boxes = [x[:-1].repeat(rows, 1), y[:-1].repeat(cols, 1).t(), x[1:].repeat(rows, 1), y[1:].repeat(cols, 1).t()]
        cls_box = torch.tensor([[1, 1, max_len - 1, max_len - 1]])
        return torch.cat([cls_box, torch.stack(boxes, dim=-1).view(-1, 4)], dim=0)

    def interpolate_pos_embed(self, grid):
        rows, cols = self.config.pretrained_grid
        table = self.pos_embed[:, 1:].reshape(1, rows, cols, -1).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=grid, mode="bilinear", align_corners=False)
        return self.pos_embed[:, :1], table.permute(0, 2, 3, 1).flatten(1, 2)

    def combine_image_text(self, words, patches, bbox, mask, grid):
        """Adds to each word the patch under the middle of its box; such patches are not looked at by themselves."""
        rows, cols = grid
        middle_x = (bbox[:, :, 0] + bbox[:, :, 2]) / 2.0 / self.config.max_coordinate
        middle_y = (bbox[:, :, 1] + bbox[:, :, 3]) / 2.0 / self.config.max_coordinate
        points_x = torch.clip(torch.floor(middle_x * cols).long(), 0, cols - 1)
        points_y = torch.clip(torch.floor(middle_y * rows).long(), 0, rows - 1)
        points = points_x + points_y * cols
        no_box = (bbox.float().mean(-1) == 0.0) | ~mask.bool()
        taken = torch.gather(patches, 1, points.unsqueeze(-1).repeat(1, 1, patches.shape[-1]))
        words = words + taken.masked_fill(no_box.unsqueeze(-1), 0.0)
        keep = torch.ones(patches.shape[:2], dtype=torch.bool)
        batch_index = torch.arange(len(points)).unsqueeze(1).expand_as(points)
        keep[batch_index[~no_box], points[~no_box]] = False
        return words, keep

    def forward(self, input_ids, bbox, attention_mask, pixel_values):
        batch, text_length = input_ids.shape
        words, position_ids = self.embeddings(input_ids, bbox)
        patches, grid = self.backbone(pixel_values)
        cls_pos, patch_pos = self.interpolate_pos_embed(grid)
        patches = patches + patch_pos
        words, keep_patches = self.combine_image_text(words, patches, bbox, attention_mask, grid)
        visual = self.norm(torch.cat([(self.cls_token + cls_pos).expand(batch, -1, -1), patches], dim=1))
        hidden_states = self.LayerNorm(torch.cat([words, visual], dim=1))
        keep = torch.cat([attention_mask.bool(), torch.ones(batch, 1, dtype=torch.bool), keep_patches], dim=1)
        visual_ids = torch.arange(visual.shape[1]).repeat(batch, 1)
        full_bbox = torch.cat([bbox, self.visual_bbox.repeat(batch, 1, 1)], dim=1)
        hidden_states = self.encoder(hidden_states, full_bbox, keep, torch.cat([position_ids, visual_ids], dim=1))
        logits = self.classifier(hidden_states[:, :text_length], bbox, attention_mask)
        return logits, self.pooler(hidden_states, keep, text_length)


def make_page(generator, lines, length):
    """Boxes of lines down the page, each shared by a few tokens; the first token has none, the rest is padding."""
    boxes = [[0, 0, 0, 0]]
    for line in range(lines):
        left, width, height, words = torch.randint(0, 400, (4,), generator=generator).tolist()
        left, top = left + 30, 35 + line * 940 // lines
        boxes += [[left, top, left + 60 + width, top + 18 + height // 10]] * (2 + words % 3)
    return boxes + [[0, 0, 0, 0]] * (length - len(boxes)), len(boxes)


def build():
    """The net with the same weights on every run, and two pages with their words."""
    torch.manual_seed(29)
    config = DocConfig()
    net = DocLayoutModel(config)
    for name, module in net.named_modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.005, 0.9)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.4)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.2 / math.sqrt(module.in_features))
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        if name.startswith("encoder.rel_pos"):
            nn.init.normal_(module.weight, std=2.0)
    nn.init.normal_(net.cls_token, std=0.5)
    nn.init.normal_(net.pos_embed, std=0.6)
    generator = torch.Generator().manual_seed(5)
    length = 36
    pages = [make_page(generator, lines, length) for lines in (11, 8)]
    bbox = torch.tensor([page[0] for page in pages])
    mask = (torch.arange(length) < torch.tensor([[page[1]] for page in pages])).long()
    ids = torch.randint(4, config.vocab_size, (2, length)) * mask + config.pad_token_id * (1 - mask)
    ids[:, 0] = 0
    return net.eval(), (ids, bbox, mask, torch.rand(2, 3, *config.image_size))
