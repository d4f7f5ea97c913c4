"""Open-vocabulary detection by phrases: deformable image encoder fused with text, grounded queries, box refinement."""

import math

import torch
import torch.nn.functional as F
from torch import nn

CLS, SEP, DOT, PAD = 1, 2, 3, 0


class Config:
    vocab, max_positions, text_dim, text_heads, text_hidden, text_layers = 40, 20, 24, 3, 40, 2
    max_phrases, stem, widths = 3, 12, (16, 24)
    d_model, heads, points, levels, ffn, fusion_dim, fusion_heads = 32, 4, 3, 2, 48, 40, 4
    enc_layers, dec_layers, num_queries = 2, 2, 8


def phrase_masks(input_ids, max_phrases):
    """Block-diagonal attention between the separators, positions that restart in each block, and tokens by phrase."""
    bs, num = input_ids.shape
    special = (input_ids[..., None] == torch.tensor([CLS, SEP, DOT])).any(-1)
    attention = torch.eye(num, dtype=torch.bool).unsqueeze(0).repeat(bs, 1, 1)
    positions = torch.zeros((bs, num), dtype=torch.long)
    phrases = torch.zeros((bs, max_phrases, num), dtype=torch.bool)
    counts, previous = [0] * bs, 0
    for row, col in torch.nonzero(special).tolist():
        if col not in (0, num - 1):
            attention[row, previous + 1 : col + 1, previous + 1 : col + 1] = True
            positions[row, previous + 1 : col + 1] = torch.arange(col - previous)
            if col > previous + 1:
                phrases[row, counts[row], previous + 1 : col] = True
                counts[row] += 1
        previous = col
    return attention, positions, phrases


def sine_embed(pos, dim, temperature=10000):
    """(..., n) to (..., n * dim): sine and cosine in turn."""
    i = torch.arange(dim, dtype=torch.float32)
    dim_t = temperature ** (2 * torch.div(i, 2, rounding_mode="floor") / dim)
    angle = pos[..., None] * 2 * math.pi / dim_t
    return torch.stack((angle[..., 0::2].sin(), angle[..., 1::2].cos()), dim=-1).flatten(-3)


def box_cxcywh_to_xyxy(x):
    center, size = x.split(2, dim=-1)
    return torch.cat((center - 0.5 * size, center + 0.5 * size), dim=-1)


def box_iou(a, b):
    """IoU and generalised IoU of boxes that broadcast."""
    area_a = (a[..., 2:] - a[..., :2]).prod(-1)
    area_b = (b[..., 2:] - b[..., :2]).prod(-1)
    inter = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    hull = (torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])).prod(-1)
    union = area_a + area_b - inter
    iou = inter / union.clamp(min=1e-7)
    return iou, iou - (hull - union) / hull.clamp(min=1e-7)


def image_positions(mask, dim, temperature=20):
    """Sines of how far down and how far right a cell lies in the part that is not padding."""
    y, x = (~mask).cumsum(1, dtype=torch.float32), (~mask).cumsum(2, dtype=torch.float32)
    yx = torch.stack((y / (y[:, -1:, :] + 1e-6), x / (x[:, :, -1:] + 1e-6)), -1)
    return sine_embed(yx, dim, temperature).flatten(1, 2)


def grid_centers(shapes, valid_ratios):
    """For each level the middles of the cells, (x, y) relative to the part of the image that is not padding."""
    centers = []
    for level, (h, w) in enumerate(shapes):
        y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
        grid = torch.stack((x, y), -1).reshape(1, -1, 2)
        centers.append(grid / (valid_ratios[:, None, level] * torch.tensor([w, h])))
    return centers


def mlp(in_dim, hidden, out_dim, layers):
    dims = [in_dim] + [hidden] * (layers - 1)
    modules = [module for dim in dims[:-1] for module in (nn.Linear(dim, hidden), nn.ReLU())]
    return nn.Sequential(*modules, nn.Linear(hidden, out_dim))


class TextLayer(nn.Module):
    def __init__(self, dim, heads, ffn, activation):
        super().__init__()
        self.activation = activation
        self.self_attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.linear1, self.linear2 = nn.Linear(dim, ffn), nn.Linear(ffn, dim)

    def forward(self, x, attention, pos=0.0):
        blocked = (~attention).repeat_interleave(self.self_attn.num_heads, dim=0)
        q = x + pos
        x = self.norm1(x + self.self_attn(q, q, x, attn_mask=blocked, need_weights=False)[0])
        return self.norm2(x + self.linear2(self.activation(self.linear1(x))))


class TextEncoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        dim, heads, layers = cfg.text_dim, cfg.text_heads, range(cfg.text_layers)
        self.word_embeddings = nn.Embedding(cfg.vocab, dim, padding_idx=PAD)
        self.position_embeddings, self.norm = nn.Embedding(cfg.max_positions, dim), nn.LayerNorm(dim, eps=1e-12)
        self.layers = nn.ModuleList(TextLayer(dim, heads, cfg.text_hidden, F.gelu) for _ in layers)

    def forward(self, input_ids, attention, positions):
        x = self.norm(self.word_embeddings(input_ids) + self.position_embeddings(positions))
        for layer in self.layers:
            x = layer(x, attention)
        return x


class BasicBlock(nn.Module):
    def __init__(self, in_dim, dim):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(in_dim, dim, 3, 2, 1, bias=False), nn.BatchNorm2d(dim)
        self.conv2, self.bn2 = nn.Conv2d(dim, dim, 3, 1, 1, bias=False), nn.BatchNorm2d(dim)
        pool = nn.AvgPool2d(3, 2, 1, count_include_pad=False)
        self.downsample = nn.Sequential(pool, nn.Conv2d(in_dim, dim, 1, bias=False), nn.BatchNorm2d(dim))

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.downsample(x))


class Backbone(nn.Module):
    def __init__(self, stem, widths):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, stem, 7, 2, 3, bias=False), nn.BatchNorm2d(stem)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.ModuleList(BasicBlock(n, k) for n, k in zip((stem,) + widths[:-1], widths))

    def forward(self, x, mask):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        out = []
        for block in self.blocks:
            x = block(x)
            out.append((x, F.interpolate(mask[None].float(), size=x.shape[-2:])[0].bool()))
        return out


class MSDeformAttn(nn.Module):
    def __init__(self, dim, levels, heads, points):
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.sampling_offsets = nn.Linear(dim, heads * levels * points * 2)
        self.attention_weights = nn.Linear(dim, heads * levels * points)
        self.value_proj, self.output_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, query, reference_points, value, shapes, padding_mask):
        bs, num, dim = query.shape
        value = self.value_proj(value).masked_fill(padding_mask[..., None], 0.0)
        value = value.view(bs, -1, self.heads, dim // self.heads)
        offsets = self.sampling_offsets(query).view(bs, num, self.heads, self.levels, self.points, 2)
        weights = self.attention_weights(query).view(bs, num, self.heads, self.levels * self.points).softmax(-1)
        if reference_points.shape[-1] == 2:
            normalizer = torch.tensor([(w, h) for h, w in shapes], dtype=query.dtype)
            locations = reference_points[:, :, None, :, None] + offsets / normalizer[:, None]
        else:
            xy, wh = reference_points[:, :, None, :, None].split(2, dim=-1)
            locations = xy + offsets / self.points * wh * 0.5
        grids, sampled = 2 * locations - 1, []
        for level, chunk in enumerate(value.split([h * w for h, w in shapes], dim=1)):
            chunk = chunk.flatten(2).transpose(1, 2).reshape(bs * self.heads, -1, *shapes[level])
            grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
            sampled.append(F.grid_sample(chunk, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
        weights = weights.transpose(1, 2).reshape(bs * self.heads, 1, num, -1)
        out = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1)
        return self.output_proj(out.view(bs, dim, num).transpose(1, 2))


class BiAttentionBlock(nn.Module):
    """One matrix of similarities, normalised over the text for the image and over the image for the text."""

    def __init__(self, dim, embed, heads):
        super().__init__()
        self.heads, self.scale = heads, (embed // heads) ** -0.5
        self.layer_norm_v, self.layer_norm_l = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.v_proj, self.l_proj = nn.Linear(dim, embed), nn.Linear(dim, embed)
        self.values_v_proj, self.values_l_proj = nn.Linear(dim, embed), nn.Linear(dim, embed)
        self.out_v_proj, self.out_l_proj = nn.Linear(embed, dim), nn.Linear(embed, dim)
        self.gamma_v, self.gamma_l = nn.Parameter(torch.full((dim,), 0.5)), nn.Parameter(torch.full((dim,), 0.5))

    def forward(self, v, l, mask_v, mask_l):
        v_norm, l_norm = self.layer_norm_v(v), self.layer_norm_l(l)
        image = self.v_proj(v_norm) * self.scale, self.values_v_proj(v_norm)
        text = self.l_proj(l_norm), self.values_l_proj(l_norm)
        q, value_v, k, value_l = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in image + text)
        attn = q @ k.transpose(-1, -2)
        attn = (attn - attn.max()).clamp(min=-50000)
        attn_l = attn.transpose(-1, -2).masked_fill(mask_v[:, None, None], float("-inf")).softmax(dim=-1)
        attn_v = attn.masked_fill(mask_l[:, None, None], float("-inf")).softmax(dim=-1)
        out_v = self.out_v_proj((attn_v @ value_l).transpose(1, 2).flatten(2))
        out_l = self.out_l_proj((attn_l @ value_v).transpose(1, 2).flatten(2))
        return v + self.gamma_v * out_v, l + self.gamma_l * out_l


class DeformableEncoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.self_attn = MSDeformAttn(cfg.d_model, cfg.levels, cfg.heads, cfg.points)
        self.norm1, self.norm2 = nn.LayerNorm(cfg.d_model), nn.LayerNorm(cfg.d_model)
        self.linear1, self.linear2 = nn.Linear(cfg.d_model, cfg.ffn), nn.Linear(cfg.ffn, cfg.d_model)

    def forward(self, src, pos, reference_points, shapes, mask):
        src = self.norm1(src + self.self_attn(src + pos, reference_points, src, shapes, mask))
        return self.norm2(src + self.linear2(F.relu(self.linear1(src))))


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        dim, layers = cfg.d_model, range(cfg.enc_layers)
        self.fusion = nn.ModuleList(BiAttentionBlock(dim, cfg.fusion_dim, cfg.fusion_heads) for _ in layers)
        self.text_layers = nn.ModuleList(TextLayer(dim, cfg.heads // 2, cfg.ffn // 2, F.relu) for _ in layers)
        self.layers = nn.ModuleList(DeformableEncoderLayer(cfg) for _ in layers)

    def forward(self, src, pos, mask, shapes, valid_ratios, text, text_mask, attention, positions):
        points = torch.cat(grid_centers(shapes, valid_ratios), 1)[:, :, None] * valid_ratios[:, None]
        text_pos = sine_embed(positions[..., None].float(), text.shape[-1])
        for fusion, text_layer, layer in zip(self.fusion, self.text_layers, self.layers):
            src, text = fusion(src, text, mask, ~text_mask)
            text = text_layer(text, attention, text_pos)
            src = layer(src, pos, points, shapes, mask)
        return src, text


class ContrastiveEmbed(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([-math.log((1 - 0.01) / 0.01)]))

    def forward(self, x, text, text_mask):
        logits = x @ text.transpose(-1, -2) / math.sqrt(x.shape[-1]) + self.bias
        return logits.masked_fill(~text_mask[:, None], -30.0)


class DecoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        dim = cfg.d_model
        self.self_attn = nn.MultiheadAttention(dim, cfg.heads, batch_first=True)
        self.ca_text = nn.MultiheadAttention(dim, cfg.heads, batch_first=True)
        self.cross_attn = MSDeformAttn(dim, cfg.levels, cfg.heads, cfg.points)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.norm3, self.catext_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.linear1, self.linear2 = nn.Linear(dim, cfg.ffn), nn.Linear(cfg.ffn, dim)

    def forward(self, tgt, query_pos, reference_points, text, text_mask, memory, shapes, mask):
        q = tgt + query_pos
        tgt = self.norm2(tgt + self.self_attn(q, q, tgt, need_weights=False)[0])
        q = tgt + query_pos
        tgt = self.catext_norm(tgt + self.ca_text(q, text, text, key_padding_mask=~text_mask, need_weights=False)[0])
        tgt = self.norm1(tgt + self.cross_attn(tgt + query_pos, reference_points, memory, shapes, mask))
        return self.norm3(tgt + self.linear2(F.relu(self.linear1(tgt))))


class Decoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        dim, layers = cfg.d_model, range(cfg.dec_layers)
        self.layers = nn.ModuleList(DecoderLayer(cfg) for _ in layers)
        self.bbox_embed = nn.ModuleList(mlp(dim, dim, 4, 3) for _ in layers)
        self.ref_point_head, self.norm = mlp(2 * dim, dim, dim, 2), nn.LayerNorm(dim)

    def forward(self, tgt, boxes, memory, mask, shapes, valid_ratios, text, text_mask):
        hidden, references = [], [boxes]
        for layer, bbox_embed in zip(self.layers, self.bbox_embed):
            points = boxes[:, :, None] * torch.cat((valid_ratios, valid_ratios), -1)[:, None]
            x, y, w, h = points[:, :, 0].unbind(-1)
            query_pos = self.ref_point_head(sine_embed(torch.stack((y, x, w, h), -1), tgt.shape[-1] // 2))
            tgt = layer(tgt, query_pos, points, text, text_mask, memory, shapes, mask)
            boxes = (bbox_embed(tgt) + boxes.logit(eps=1e-3)).sigmoid()
            hidden.append(self.norm(tgt))
            references.append(boxes)
            boxes = boxes.detach()
        return hidden, references


class PostProcess(nn.Module):
    """The best pairs of a query and a phrase, with suppression within each phrase."""

    num_select, threshold = 12, 0.4

    def forward(self, logits, boxes, phrases, sizes):
        phrase_map = phrases / phrases.sum(-1, keepdim=True).clamp(min=1)
        phrase_scores = logits.sigmoid() @ phrase_map.transpose(1, 2)
        scores, index = phrase_scores.flatten(1).topk(self.num_select, dim=1)
        query, labels = index // phrases.shape[1], index % phrases.shape[1]
        boxes = box_cxcywh_to_xyxy(boxes.gather(1, query[..., None].expand(-1, -1, 4)))
        boxes = boxes.clamp(0, 1) * sizes.flip(1).repeat(1, 2)[:, None]
        iou = box_iou(boxes[:, :, None], boxes[:, None])[0]
        keep = torch.ones_like(labels, dtype=torch.bool)
        for i in range(self.num_select - 1):
            drop = (iou[:, i] > self.threshold) & (labels == labels[:, i : i + 1]) & keep[:, i : i + 1]
            drop[:, : i + 1] = False
            keep = keep & ~drop
        return phrase_scores, scores * keep, labels.masked_fill(~keep, -1), boxes


class Criterion(nn.Module):
    alpha, gamma, weights = 0.25, 2.0, (2.0, 5.0, 2.0)

    def forward(self, outputs, phrases, text_mask, match, target_boxes, target_phrase, valid):
        rows = torch.arange(match.shape[0])[:, None].expand_as(match)[valid]
        match, target_boxes, target_phrase = match[valid], target_boxes[valid], target_phrase[valid]
        num_boxes, losses = max(len(rows), 1), []
        for logits, boxes in outputs:
            target = torch.zeros_like(logits)
            target[rows, match] = phrases[rows, target_phrase].float()
            p_t = torch.where(target > 0, logits.sigmoid(), (-logits).sigmoid())
            focal = F.binary_cross_entropy_with_logits(logits, target, reduction="none") * (1 - p_t) ** self.gamma
            focal = (self.alpha * target + (1 - self.alpha) * (1 - target)) * focal * text_mask[:, None]
            src = boxes[rows, match]
            giou = box_iou(box_cxcywh_to_xyxy(src), box_cxcywh_to_xyxy(target_boxes))[1]
            parts = (focal.mean(1).sum() * logits.shape[1], (src - target_boxes).abs().sum(), (1 - giou).sum())
            losses.append(torch.stack(parts) / num_boxes)
        losses = torch.stack(losses)
        return losses, (losses * torch.tensor(self.weights)).sum()


class GroundedDetector(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("pixel_mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1), persistent=False)
        dim = cfg.d_model
        self.bert, self.feat_map = TextEncoder(cfg), nn.Linear(cfg.text_dim, dim)
        self.backbone = Backbone(cfg.stem, cfg.widths)
        self.input_proj = nn.ModuleList(nn.Sequential(nn.Conv2d(n, dim, 1), nn.GroupNorm(8, dim)) for n in cfg.widths)
        self.level_embed, self.encoder = nn.Parameter(torch.zeros(cfg.levels, dim)), Encoder(cfg)
        self.enc_output, self.enc_output_norm = nn.Linear(dim, dim), nn.LayerNorm(dim)
        self.enc_class_embed, self.enc_bbox_embed = ContrastiveEmbed(), mlp(dim, dim, 4, 3)
        self.tgt_embed, self.decoder = nn.Embedding(cfg.num_queries, dim), Decoder(cfg)
        self.class_embed = nn.ModuleList(ContrastiveEmbed() for _ in range(cfg.dec_layers))
        self.postprocess, self.criterion = PostProcess(), Criterion()

    def encoder_proposals(self, memory, mask, shapes, valid_ratios):
        centers = enumerate(grid_centers(shapes, valid_ratios))
        proposals = torch.cat([torch.cat((xy, torch.full_like(xy, 0.05 * 2.0**level)), -1) for level, xy in centers], 1)
        invalid = mask | ~((proposals > 0.01) & (proposals < 0.99)).all(-1)
        proposals = proposals.logit().masked_fill(invalid[..., None], float("inf"))
        memory = memory.masked_fill(invalid[..., None], 0.0)
        return self.enc_output_norm(self.enc_output(memory)), proposals

    def forward(self, images, mask, input_ids, sizes, match, target_boxes, target_phrase, target_valid):
        """mask is true on the padding of the images; boxes are (cx, cy, w, h) relative to the images without it."""
        text_mask = input_ids != PAD
        attention, positions, phrases = phrase_masks(input_ids, self.cfg.max_phrases)
        text = self.feat_map(self.bert(input_ids, attention, positions))

        x = ((images - self.pixel_mean) / self.pixel_std).masked_fill(mask[:, None], 0.0)
        src, pos, masks, shapes, ratios = [], [], [], [], []
        for level, (feature, m) in enumerate(self.backbone(x, mask)):
            shapes.append(tuple(feature.shape[-2:]))
            src.append(self.input_proj[level](feature).flatten(2).transpose(1, 2))
            pos.append(image_positions(m, self.cfg.d_model // 2) + self.level_embed[level])
            masks.append(m.flatten(1))
            ratios.append(torch.stack(((~m[:, 0]).float().mean(1), (~m[:, :, 0]).float().mean(1)), -1))
        src, pos, mask, ratios = torch.cat(src, 1), torch.cat(pos, 1), torch.cat(masks, 1), torch.stack(ratios, 1)
        memory, text = self.encoder(src, pos, mask, shapes, ratios, text, text_mask, attention, positions)

        output_memory, proposals = self.encoder_proposals(memory, mask, shapes, ratios)
        enc_logits = self.enc_class_embed(output_memory, text, text_mask)
        enc_boxes = (self.enc_bbox_embed(output_memory) + proposals).sigmoid()
        top = enc_logits.max(-1)[0].topk(self.cfg.num_queries, dim=1)[1][..., None]
        enc_logits = enc_logits.gather(1, top.expand(-1, -1, enc_logits.shape[-1]))
        enc_boxes = enc_boxes.gather(1, top.expand(-1, -1, 4))

        tgt = self.tgt_embed.weight[None].expand(images.shape[0], -1, -1)
        hidden, references = self.decoder(tgt, enc_boxes.detach(), memory, mask, shapes, ratios, text, text_mask)
        outputs = []
        for i, hs in enumerate(hidden):
            boxes = (self.decoder.bbox_embed[i](hs) + references[i].logit(eps=1e-3)).sigmoid()
            outputs.append((self.class_embed[i](hs, text, text_mask), boxes))
        logits, boxes = outputs[-1]
        scored = self.postprocess(logits, boxes, phrases, sizes)
        outputs.append((enc_logits, enc_boxes))
        losses, loss = self.criterion(outputs, phrases, text_mask, match, target_boxes, target_phrase, target_valid)
        names = ("logits", "boxes", "aux_boxes", "enc_boxes", "phrase_scores", "scores", "labels", "detections")
        results = dict(zip(names, (logits, boxes, outputs[0][1], enc_boxes, *scored)))
        return {**results, "losses": losses, "loss": loss}


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for parameter in net.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        else:
            parameter.data += torch.randn_like(parameter) * 0.2
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    for parameter in net.enc_output.parameters():
        parameter.data *= 0.008
    for head in net.decoder.bbox_embed:
        head[-1].bias.data[2:] += 0.7
    net.tgt_embed.weight.data *= 4.0
    return net


def build():
    """The net with the same weights on every run; the second picture is padded, and its text is shorter."""
    torch.manual_seed(383)
    net = trained_like(GroundedDetector(Config()))
    coarse = F.interpolate(torch.rand(2, 3, 6, 8), size=(72, 88), mode="bilinear")
    images = 0.4 * torch.rand(2, 3, 72, 88) + 0.6 * coarse
    mask = torch.zeros(2, 72, 88, dtype=torch.bool)
    mask[1, 56:], mask[1, :, 64:] = True, True
    input_ids = torch.tensor([[1, 8, 21, 3, 13, 3, 30, 17, 6, 25, 3, 2], [1, 33, 9, 3, 28, 3, 2, 0, 0, 0, 0, 0]])
    sizes = torch.tensor([[360.0, 440.0], [420.0, 480.0]])
    match, target_phrase = torch.tensor([[2, 5, 0], [7, 3, 0]]), torch.tensor([[1, 2, 0], [0, 1, 0]])
    target_boxes = torch.rand(2, 3, 4) * 0.4 + torch.tensor([0.3, 0.3, 0.2, 0.2])
    valid = torch.tensor([[True, True, True], [True, True, False]])
    return net.eval(), (images, mask, input_ids, sizes, match, target_boxes, target_phrase, valid)
