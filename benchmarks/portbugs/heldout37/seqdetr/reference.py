"""SeqDETR: a small two-stage deformable DETR with DAB-style box queries."""
import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def inverse_sigmoid(x, eps=1e-5):
    x = x.clamp(min=0, max=1)
    x1 = x.clamp(min=eps)
    x2 = (1 - x).clamp(min=eps)
    return torch.log(x1 / x2)


def box_cxcywh_to_xyxy(x):
    x_c, y_c, w, h = x.unbind(-1)
    return torch.stack([x_c - 0.5 * w, y_c - 0.5 * h, x_c + 0.5 * w, y_c + 0.5 * h], dim=-1)


def gen_sineembed_for_position(pos_tensor, num_feats, temperature=10000):
    """pos_tensor: (bs, nq, 4) boxes in [0, 1], cxcywh -> (bs, nq, 4 * num_feats)"""
    scale = 2 * math.pi
    dim_t = torch.arange(num_feats, dtype=torch.float32, device=pos_tensor.device)
    dim_t = temperature ** (2 * torch.div(dim_t, 2, rounding_mode="floor") / num_feats)
    embeds = []
    for i in (1, 0, 2, 3):  # y, x, w, h
        p = pos_tensor[:, :, i, None] * scale / dim_t
        p = torch.stack((p[:, :, 0::2].sin(), p[:, :, 1::2].cos()), dim=3).flatten(2)
        embeds.append(p)
    return torch.cat(embeds, dim=2)


class MLP(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim, num_layers):
        super().__init__()
        self.num_layers = num_layers
        h = [hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(nn.Linear(n, k) for n, k in zip([input_dim] + h, h + [output_dim]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i < self.num_layers - 1 else layer(x)
        return x


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes, eps=1e-3)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes, eps=1e-3)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride=stride, bias=False),
                                            nn.BatchNorm2d(planes, eps=1e-3))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + identity)


class Backbone(nn.Module):
    def __init__(self, widths=(16, 20, 28, 40)):
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0], eps=1e-3)
        self.act = nn.LeakyReLU(0.1)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = BasicBlock(widths[0], widths[1])
        self.layer2 = nn.Sequential(BasicBlock(widths[1], widths[2], 2), BasicBlock(widths[2], widths[2]))
        self.layer3 = BasicBlock(widths[2], widths[3], 2)
        self.num_channels = widths[2:]

    def forward(self, images, mask):
        x = self.maxpool(self.act(self.bn1(self.conv1(images))))
        x = self.layer1(x)
        feats = []
        for stage in (self.layer2, self.layer3):
            x = stage(x)
            m = F.interpolate(mask[None].float(), size=x.shape[-2:]).to(torch.bool)[0]
            feats.append((x, m))
        return feats


class PositionEmbeddingSine(nn.Module):
    def __init__(self, num_pos_feats, temperature=10000, scale=None):
        super().__init__()
        self.num_pos_feats = num_pos_feats
        self.temperature = temperature
        self.scale = 2 * math.pi if scale is None else scale

    def forward(self, mask):
        not_mask = ~mask
        y_embed = not_mask.cumsum(1, dtype=torch.float32)
        x_embed = not_mask.cumsum(2, dtype=torch.float32)
        y_embed = (y_embed - 0.5) / (y_embed[:, -1:, :] + 1e-6) * self.scale
        x_embed = (x_embed - 0.5) / (x_embed[:, :, -1:] + 1e-6) * self.scale
        dim_t = torch.arange(self.num_pos_feats, dtype=torch.float32, device=mask.device)
        dim_t = self.temperature ** (2 * torch.div(dim_t, 2, rounding_mode="floor") / self.num_pos_feats)
        pos_x = x_embed[:, :, :, None] / dim_t
        pos_y = y_embed[:, :, :, None] / dim_t
        pos_x = torch.stack((pos_x[..., 0::2].sin(), pos_x[..., 1::2].cos()), dim=4).flatten(3)
        pos_y = torch.stack((pos_y[..., 0::2].sin(), pos_y[..., 1::2].cos()), dim=4).flatten(3)
        return torch.cat((pos_y, pos_x), dim=3).permute(0, 3, 1, 2)


class MSDeformAttn(nn.Module):
    def __init__(self, d_model, n_levels, n_heads, n_points):
        super().__init__()
        self.d_model, self.n_levels, self.n_heads, self.n_points = d_model, n_levels, n_heads, n_points
        self.sampling_offsets = nn.Linear(d_model, n_heads * n_levels * n_points * 2)
        self.attention_weights = nn.Linear(d_model, n_heads * n_levels * n_points)
        self.value_proj = nn.Linear(d_model, d_model)
        self.output_proj = nn.Linear(d_model, d_model)

    def forward(self, query, reference_points, input_flatten, spatial_shapes, padding_mask=None):
        """query (N, Lq, C); reference_points (N, Lq, n_levels, 2 or 4); input_flatten (N, sum HW, C)"""
        N, Lq, _ = query.shape
        N, Lin, _ = input_flatten.shape
        M, L, P, D = self.n_heads, self.n_levels, self.n_points, self.d_model // self.n_heads
        value = self.value_proj(input_flatten)
        if padding_mask is not None:
            value = value.masked_fill(padding_mask[..., None], 0.0)
        value = value.view(N, Lin, M, D)
        offsets = self.sampling_offsets(query).view(N, Lq, M, L, P, 2)
        weights = self.attention_weights(query).view(N, Lq, M, L * P)
        weights = F.softmax(weights, -1).view(N, Lq, M, L, P)
        if reference_points.shape[-1] == 2:
            normalizer = torch.tensor([[w, h] for h, w in spatial_shapes], dtype=query.dtype, device=query.device)
            locations = reference_points[:, :, None, :, None, :] \
                + offsets / normalizer[None, None, None, :, None, :]
        else:
            locations = reference_points[:, :, None, :, None, :2] \
                + offsets / P * reference_points[:, :, None, :, None, 2:] * 0.5

        # core: sample every level on its own map
        value_list = value.split([h * w for h, w in spatial_shapes], dim=1)
        grids = 2 * locations - 1
        sampled = []
        for lvl, (h, w) in enumerate(spatial_shapes):
            # N, HW, M, D -> N*M, D, H, W
            value_l = value_list[lvl].flatten(2).transpose(1, 2).reshape(N * M, D, h, w)
            # N, Lq, M, P, 2 -> N*M, Lq, P, 2
            grid_l = grids[:, :, :, lvl].transpose(1, 2).flatten(0, 1)
            sampled.append(F.grid_sample(value_l, grid_l, mode="bilinear", padding_mode="zeros",
                                         align_corners=False))
        weights = weights.transpose(1, 2).reshape(N * M, 1, Lq, L * P)
        out = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1).view(N, M * D, Lq)
        return self.output_proj(out.transpose(1, 2).contiguous())


class EncoderLayer(nn.Module):
    def __init__(self, d_model, d_ffn, n_levels, n_heads, n_points):
        super().__init__()
        self.self_attn = MSDeformAttn(d_model, n_levels, n_heads, n_points)
        self.norm1 = nn.LayerNorm(d_model)
        self.linear1 = nn.Linear(d_model, d_ffn)
        self.linear2 = nn.Linear(d_ffn, d_model)
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, src, pos, reference_points, spatial_shapes, padding_mask):
        src2 = self.self_attn(src + pos, reference_points, src, spatial_shapes, padding_mask)
        src = self.norm1(src + src2)
        src2 = self.linear2(F.gelu(self.linear1(src)))
        return self.norm2(src + src2)


class Encoder(nn.Module):
    def __init__(self, layer, num_layers):
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(num_layers))

    @staticmethod
    def get_reference_points(spatial_shapes, valid_ratios):
        reference_points_list = []
        for lvl, (h, w) in enumerate(spatial_shapes):
            ref_y, ref_x = torch.meshgrid(torch.linspace(0.5, h - 0.5, h), torch.linspace(0.5, w - 0.5, w),
                                          indexing="ij")
            ref_y = ref_y.reshape(-1)[None] / (valid_ratios[:, None, lvl, 1] * h)
            ref_x = ref_x.reshape(-1)[None] / (valid_ratios[:, None, lvl, 0] * w)
            reference_points_list.append(torch.stack((ref_x, ref_y), -1))
        return torch.cat(reference_points_list, 1)[:, :, None] * valid_ratios[:, None]

    def forward(self, src, spatial_shapes, valid_ratios, pos, padding_mask):
        output = src
        reference_points = self.get_reference_points(spatial_shapes, valid_ratios)
        for layer in self.layers:
            output = layer(output, pos, reference_points, spatial_shapes, padding_mask)
        return output


class DecoderLayer(nn.Module):
    def __init__(self, d_model, d_ffn, n_levels, n_heads, n_points):
        super().__init__()
        self.nhead = n_heads
        self.sa_qcontent_proj = nn.Linear(d_model, d_model)
        self.sa_qpos_proj = nn.Linear(d_model, d_model)
        self.sa_kcontent_proj = nn.Linear(d_model, d_model)
        self.sa_kpos_proj = nn.Linear(d_model, d_model)
        self.sa_v_proj = nn.Linear(d_model, d_model)
        self.sa_out_proj = nn.Linear(d_model, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.cross_attn = MSDeformAttn(d_model, n_levels, n_heads, n_points)
        self.norm2 = nn.LayerNorm(d_model)
        self.linear1 = nn.Linear(d_model, d_ffn)
        self.linear2 = nn.Linear(d_ffn, d_model)
        self.norm3 = nn.LayerNorm(d_model)

    def forward(self, tgt, query_pos, reference_points, memory, spatial_shapes, padding_mask):
        bs, nq, c = tgt.shape
        h, d = self.nhead, c // self.nhead
        q = self.sa_qcontent_proj(tgt) + self.sa_qpos_proj(query_pos)
        k = self.sa_kcontent_proj(tgt) + self.sa_kpos_proj(query_pos)
        v = self.sa_v_proj(tgt)
        q, k, v = (t.view(bs, nq, h, d) for t in (q, k, v))
        attn = torch.einsum("bqhd,bkhd->bhqk", q * d ** -0.5, k).softmax(-1)
        tgt2 = torch.einsum("bhqk,bkhd->bqhd", attn, v).reshape(bs, nq, c)
        tgt = self.norm1(tgt + self.sa_out_proj(tgt2))
        tgt2 = self.cross_attn(tgt + query_pos, reference_points, memory, spatial_shapes, padding_mask)
        tgt = self.norm2(tgt + tgt2)
        tgt2 = self.linear2(F.gelu(self.linear1(tgt)))
        return self.norm3(tgt + tgt2)


class Decoder(nn.Module):
    def __init__(self, layer, num_layers, d_model):
        super().__init__()
        self.d_model = d_model
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model)
        self.query_scale = MLP(d_model, d_model, d_model, 2)
        self.ref_point_head = MLP(2 * d_model, d_model, d_model, 2)
        self.bbox_embed = None  # set by SeqDETR

    def forward(self, tgt, reference_points, memory, spatial_shapes, valid_ratios, padding_mask):
        output = tgt
        intermediate, references = [], [reference_points]
        for lid, layer in enumerate(self.layers):
            ref_input = reference_points[:, :, None] * torch.cat([valid_ratios, valid_ratios], -1)[:, None]
            query_sine_embed = gen_sineembed_for_position(ref_input[:, :, 0, :], self.d_model // 2)
            raw_query_pos = self.ref_point_head(query_sine_embed)
            pos_scale = self.query_scale(output) if lid != 0 else 1
            query_pos = pos_scale * raw_query_pos
            output = layer(output, query_pos, ref_input, memory, spatial_shapes, padding_mask)
            # iterative box refinement
            delta = self.bbox_embed[lid](output)
            reference_points = (delta + inverse_sigmoid(reference_points)).sigmoid().detach()
            intermediate.append(self.norm(output))
            references.append(reference_points)
        return intermediate, references


class PostProcess(nn.Module):
    def __init__(self, num_select):
        super().__init__()
        self.num_select = num_select

    def forward(self, out_logits, out_bbox, target_sizes):
        prob = out_logits.sigmoid()
        scores, topk_indexes = torch.topk(prob.view(out_logits.shape[0], -1), self.num_select, dim=1)
        topk_boxes = torch.div(topk_indexes, out_logits.shape[2], rounding_mode="floor")
        labels = topk_indexes % out_logits.shape[2]
        boxes = box_cxcywh_to_xyxy(out_bbox)
        boxes = torch.gather(boxes, 1, topk_boxes.unsqueeze(-1).repeat(1, 1, 4))
        img_h, img_w = target_sizes.unbind(1)
        scale_fct = torch.stack([img_w, img_h, img_w, img_h], dim=1)[:, None, :]
        boxes = torch.minimum((boxes * scale_fct).clamp(min=0), scale_fct)
        return scores, labels, boxes


class SeqDETR(nn.Module):
    def __init__(self, num_classes=5, num_queries=11, d_model=36, nhead=3, d_ffn=52, enc_layers=2, dec_layers=3,
                 num_levels=3, enc_points=4, dec_points=2, num_select=8):
        super().__init__()
        self.num_queries, self.dec_layers = num_queries, dec_layers
        self.backbone = Backbone()
        self.position_embedding = PositionEmbeddingSine(d_model // 2)
        projs = [nn.Sequential(nn.Conv2d(c, d_model, kernel_size=1), nn.GroupNorm(4, d_model))
                 for c in self.backbone.num_channels]
        projs.append(nn.Sequential(nn.Conv2d(self.backbone.num_channels[-1], d_model, kernel_size=3, stride=2,
                                             padding=1), nn.GroupNorm(4, d_model)))
        self.input_proj = nn.ModuleList(projs)
        self.level_embed = nn.Parameter(torch.randn(num_levels, d_model))
        self.tgt_embed = nn.Embedding(num_queries, d_model)
        self.encoder = Encoder(EncoderLayer(d_model, d_ffn, num_levels, nhead, enc_points), enc_layers)
        self.enc_output = nn.Linear(d_model, d_model)
        self.enc_output_norm = nn.LayerNorm(d_model)
        self.decoder = Decoder(DecoderLayer(d_model, d_ffn, num_levels, nhead, dec_points), dec_layers, d_model)
        # one head for every decoder layer, and the last one for the encoder's proposals
        self.class_embed = nn.ModuleList(nn.Linear(d_model, num_classes) for _ in range(dec_layers + 1))
        self.bbox_embed = nn.ModuleList(MLP(d_model, d_model, 4, 3) for _ in range(dec_layers + 1))
        self.decoder.bbox_embed = self.bbox_embed
        self.postprocess = PostProcess(num_select)

    @staticmethod
    def get_valid_ratio(mask):
        _, H, W = mask.shape
        valid_H = torch.sum(~mask[:, :, 0], 1)
        valid_W = torch.sum(~mask[:, 0, :], 1)
        return torch.stack([valid_W.float() / W, valid_H.float() / H], -1)

    def gen_encoder_output_proposals(self, memory, padding_mask, spatial_shapes):
        N = memory.shape[0]
        proposals, cur = [], 0
        for lvl, (H, W) in enumerate(spatial_shapes):
            mask_l = padding_mask[:, cur:cur + H * W].view(N, H, W, 1)
            valid_H = torch.sum(~mask_l[:, :, 0, 0], 1)
            valid_W = torch.sum(~mask_l[:, 0, :, 0], 1)
            grid_y, grid_x = torch.meshgrid(torch.linspace(0, H - 1, H), torch.linspace(0, W - 1, W), indexing="ij")
            grid = torch.stack([grid_x, grid_y], -1)
            scale = torch.stack([valid_W, valid_H], 1).view(N, 1, 1, 2)
            grid = (grid[None].expand(N, -1, -1, -1) + 0.5) / scale
            wh = torch.ones_like(grid) * 0.05 * (2.0 ** lvl)
            proposals.append(torch.cat((grid, wh), -1).view(N, -1, 4))
            cur += H * W
        proposals = torch.cat(proposals, 1)
        valid = ((proposals > 0.01) & (proposals < 0.99)).all(-1, keepdim=True) & ~padding_mask[..., None]
        proposals = torch.log(proposals / (1 - proposals))
        proposals = proposals.masked_fill(~valid, float("inf"))
        output_memory = memory.masked_fill(~valid, 0.0)
        return self.enc_output_norm(self.enc_output(output_memory)), proposals, valid

    def forward(self, images, mask, target_sizes):
        features = self.backbone(images, mask)
        srcs = [self.input_proj[lvl](feat) for lvl, (feat, _) in enumerate(features)]
        masks = [m for _, m in features]
        srcs.append(self.input_proj[-1](features[-1][0]))  # one more level, from the last map
        masks.append(F.interpolate(mask[None].float(), size=srcs[-1].shape[-2:]).to(torch.bool)[0])

        src_flatten, mask_flatten, pos_flatten, spatial_shapes = [], [], [], []
        for lvl, (src, m) in enumerate(zip(srcs, masks)):
            spatial_shapes.append(tuple(src.shape[-2:]))
            pos = self.position_embedding(m).flatten(2).transpose(1, 2)
            src_flatten.append(src.flatten(2).transpose(1, 2))
            mask_flatten.append(m.flatten(1))
            pos_flatten.append(pos + self.level_embed[lvl].view(1, 1, -1))
        src_flatten, mask_flatten, pos_flatten = (torch.cat(t, 1) for t in (src_flatten, mask_flatten, pos_flatten))
        valid_ratios = torch.stack([self.get_valid_ratio(m) for m in masks], 1)
        memory = self.encoder(src_flatten, spatial_shapes, valid_ratios, pos_flatten, mask_flatten)

        # two-stage: the best proposals of the encoder are the decoder's first boxes
        output_memory, proposals, valid = self.gen_encoder_output_proposals(memory, mask_flatten, spatial_shapes)
        enc_class = self.class_embed[self.dec_layers](output_memory).masked_fill(~valid, float("-inf"))
        enc_coord = self.bbox_embed[self.dec_layers](output_memory) + proposals
        topk_proposals = torch.topk(enc_class.max(-1)[0], self.num_queries, dim=1)[1]
        topk_coords = torch.gather(enc_coord, 1, topk_proposals.unsqueeze(-1).repeat(1, 1, 4))
        reference_points = topk_coords.detach().sigmoid()

        tgt = self.tgt_embed.weight[None].expand(images.shape[0], -1, -1)
        hs, references = self.decoder(tgt, reference_points, memory, spatial_shapes, valid_ratios, mask_flatten)

        outputs_classes, outputs_coords = [], []
        for lvl in range(self.dec_layers):
            reference = inverse_sigmoid(references[lvl])
            outputs_classes.append(self.class_embed[lvl](hs[lvl]))
            outputs_coords.append((self.bbox_embed[lvl](hs[lvl]) + reference).sigmoid())
        outputs_class, outputs_coord = torch.stack(outputs_classes), torch.stack(outputs_coords)
        scores, labels, boxes = self.postprocess(outputs_class[-1], outputs_coord[-1], target_sizes)
        return outputs_class, outputs_coord, reference_points, scores, labels, boxes


def randomize(net):
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                m.weight.normal_(0, 1.2 / math.sqrt(m.weight[0].numel()))
                if m.bias is not None:
                    m.bias.uniform_(-0.4, 0.4)
            elif isinstance(m, (nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)):
                m.weight.uniform_(0.6, 1.4)
                m.bias.uniform_(-0.3, 0.3)
                if isinstance(m, nn.BatchNorm2d):
                    m.running_mean.normal_(0, 0.2)
                    m.running_var.copy_(torch.exp(torch.empty_like(m.running_var).uniform_(-3.5, 0.5)))
        for m in filter(lambda x: isinstance(x, MSDeformAttn), net.modules()):
            thetas = torch.arange(m.n_heads, dtype=torch.float32) * (2.0 * math.pi / m.n_heads)
            grid = torch.stack([thetas.cos(), thetas.sin()], -1).view(-1, 1, 1, 2).repeat(1, m.n_levels, m.n_points, 1)
            grid *= torch.arange(1, m.n_points + 1).view(1, 1, -1, 1)
            m.sampling_offsets.bias.add_(grid.view(-1))
        for p in (q for head in net.bbox_embed for q in head.layers[-1].parameters()):  # box deltas are moderate
            p.mul_(0.4)
    return net


def build():
    torch.manual_seed(20)
    net = randomize(SeqDETR())
    rng = np.random.RandomState(7)
    images = rng.randn(2, 3, 88, 120).astype(np.float32)
    mask = np.ones((2, 88, 120), dtype=bool)
    mask[0, :88, :97], mask[1, :71, :120] = False, False
    images = images * ~mask[:, None]
    sizes = np.array([[176, 194], [213, 360]], dtype=np.float32)
    return net.eval(), (torch.from_numpy(images), torch.from_numpy(mask), torch.from_numpy(sizes))
