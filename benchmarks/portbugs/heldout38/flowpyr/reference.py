"""Optical flow with recurrent all-pairs field transforms (RAFT), with the usual later additions: sine positions on the
features, an initial flow by global matching, global motion aggregation (GMA) and both directions in one batch with a
forward-backward check."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class InputPadder:
    def __init__(self, dims, divisor=4):
        self.ht, self.wd = dims[-2:]
        pad_ht, pad_wd = (-self.ht) % divisor, (-self.wd) % divisor
        self._pad = [pad_wd // 2, pad_wd - pad_wd // 2, pad_ht // 2, pad_ht - pad_ht // 2]

    def pad(self, *images):
        return [F.pad(x, self._pad, mode='replicate') for x in images]

    def unpad(self, x):
        ht, wd = x.shape[-2:]
        return x[..., self._pad[2]:ht - self._pad[3], self._pad[0]:wd - self._pad[1]]


def coords_grid(batch, ht, wd, device):
    coords = torch.meshgrid(torch.arange(ht, device=device), torch.arange(wd, device=device), indexing='ij')
    coords = torch.stack(coords[::-1], dim=0).float()
    return coords[None].repeat(batch, 1, 1, 1)


def bilinear_sampler(img, coords, mask=False):
    """Wrapper for grid_sample, uses pixel coordinates (x, y in the last axis)."""
    H, W = img.shape[-2:]
    xgrid, ygrid = coords.split([1, 1], dim=-1)
    xgrid, ygrid = 2 * xgrid / (W - 1) - 1, 2 * ygrid / (H - 1) - 1
    grid = torch.cat([xgrid, ygrid], dim=-1)
    img = F.grid_sample(img, grid, align_corners=True)
    if mask:
        inside = (xgrid > -1) & (ygrid > -1) & (xgrid < 1) & (ygrid < 1)
        return img, inside.float()
    return img


class ResidualBlock(nn.Module):
    def __init__(self, in_planes, planes, norm_fn='batch', stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, padding=1, stride=stride)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.norm1 = make_norm(norm_fn, planes)
        self.norm2 = make_norm(norm_fn, planes)
        self.downsample = None
        if stride != 1 or in_planes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(in_planes, planes, 1, stride=stride), make_norm(norm_fn, planes))

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        if self.downsample is not None:
            x = self.downsample(x)
        return self.relu(x + y)


def make_norm(norm_fn, planes):
    return nn.BatchNorm2d(planes, eps=1e-3) if norm_fn == 'batch' else nn.InstanceNorm2d(planes)


class BasicEncoder(nn.Module):
    """Features at a quarter of the resolution. A list of images is run as one batch and split again."""

    def __init__(self, output_dim, dims=(16, 24, 32), norm_fn='batch'):
        super().__init__()
        self.conv1 = nn.Conv2d(3, dims[0], 7, stride=2, padding=3)
        self.norm1 = make_norm(norm_fn, dims[0])
        self.relu1 = nn.ReLU(inplace=True)
        self.layer1 = self._make_layer(dims[0], dims[1], norm_fn, stride=1)
        self.layer2 = self._make_layer(dims[1], dims[2], norm_fn, stride=2)
        self.conv2 = nn.Conv2d(dims[2], output_dim, 1)

    @staticmethod
    def _make_layer(in_dim, dim, norm_fn, stride):
        return nn.Sequential(ResidualBlock(in_dim, dim, norm_fn, stride), ResidualBlock(dim, dim, norm_fn, 1))

    def forward(self, x):
        is_list = isinstance(x, (tuple, list))
        if is_list:
            batch_dim = x[0].shape[0]
            x = torch.cat(x, dim=0)
        x = self.relu1(self.norm1(self.conv1(x)))
        x = self.conv2(self.layer2(self.layer1(x)))
        return torch.split(x, [batch_dim, batch_dim], dim=0) if is_list else x


class PositionEmbeddingSine(nn.Module):
    def __init__(self, num_pos_feats, temperature=10000, scale=2 * math.pi):
        super().__init__()
        self.scale, self.eps = scale, 1e-6
        dim_t = torch.arange(num_pos_feats, dtype=torch.float32)
        dim_t = temperature ** (2 * torch.div(dim_t, 2, rounding_mode='trunc') / num_pos_feats)
        self.register_buffer('dim_t', dim_t, persistent=False)

    def forward(self, x):
        b, _, h, w = x.shape
        ones = torch.ones((b, h, w), device=x.device)
        y_embed, x_embed = ones.cumsum(1), ones.cumsum(2)
        y_embed = y_embed / (y_embed[:, -1:, :] + self.eps) * self.scale
        x_embed = x_embed / (x_embed[:, :, -1:] + self.eps) * self.scale
        pos_x, pos_y = x_embed[..., None] / self.dim_t, y_embed[..., None] / self.dim_t
        pos_x = torch.stack((pos_x[..., 0::2].sin(), pos_x[..., 1::2].cos()), dim=4).flatten(3)
        pos_y = torch.stack((pos_y[..., 0::2].sin(), pos_y[..., 1::2].cos()), dim=4).flatten(3)
        return torch.cat((pos_y, pos_x), dim=3).permute(0, 3, 1, 2)


class CorrPyramid(nn.Module):
    def __init__(self, num_levels):
        super().__init__()
        self.num_levels = num_levels

    def forward(self, fmap1, fmap2):
        b, dim, ht, wd = fmap1.shape
        corr = torch.matmul(fmap1.view(b, dim, ht * wd).transpose(1, 2), fmap2.view(b, dim, ht * wd))
        corr = corr / math.sqrt(dim)
        volume = corr.view(b * ht * wd, 1, ht, wd)
        pyramid = [volume]
        for _ in range(self.num_levels - 1):
            volume = F.avg_pool2d(volume, 2)
            pyramid.append(volume)
        return corr, pyramid


class CorrLookup(nn.Module):
    def __init__(self, radius):
        super().__init__()
        self.radius = radius

    def forward(self, pyramid, coords):
        r = self.radius
        coords = coords.permute(0, 2, 3, 1)
        b, h1, w1, _ = coords.shape
        out = []
        for i, corr in enumerate(pyramid):
            d = torch.linspace(-r, r, 2 * r + 1, device=coords.device)
            delta = torch.stack(torch.meshgrid(d, d, indexing='ij'), dim=-1)
            centroid_lvl = coords.reshape(b * h1 * w1, 1, 1, 2) / 2 ** i
            delta_lvl = delta.view(1, 2 * r + 1, 2 * r + 1, 2)
            corr = bilinear_sampler(corr, centroid_lvl + delta_lvl)
            out.append(corr.view(b, h1, w1, -1))
        return torch.cat(out, dim=-1).permute(0, 3, 1, 2).contiguous().float()


class GlobalMatching(nn.Module):
    def __init__(self, scale=1.2, window=3):
        super().__init__()
        self.scale, self.window = scale, window

    def forward(self, corr, coords):
        b, _, h, w = coords.shape
        grid = coords.view(b, 2, h * w).permute(0, 2, 1)
        far = (grid[:, :, None] - grid[:, None]).abs().amax(dim=-1) > self.window
        prob = F.softmax((self.scale * corr).masked_fill(far, -1e9), dim=-1)
        match = torch.matmul(prob, grid).view(b, h, w, 2).permute(0, 3, 1, 2)
        return match - coords


class RelPosEmb(nn.Module):
    def __init__(self, max_pos_size, dim_head):
        super().__init__()
        self.rel_height = nn.Embedding(2 * max_pos_size - 1, dim_head)
        self.rel_width = nn.Embedding(2 * max_pos_size - 1, dim_head)
        deltas = torch.arange(max_pos_size).view(1, -1) - torch.arange(max_pos_size).view(-1, 1)
        self.register_buffer('rel_ind', deltas + max_pos_size - 1, persistent=False)

    def forward(self, q):
        _, heads, h, w, _ = q.shape
        height_emb = self.rel_height(self.rel_ind[:h, :h].reshape(-1)).view(h, h, 1, -1)     # x u () d
        width_emb = self.rel_width(self.rel_ind[:w, :w].reshape(-1)).view(w, 1, w, -1)       # y () v d
        height_score = torch.einsum('bhxyd,xuvd->bhxyuv', q, height_emb)
        width_score = torch.einsum('bhxyd,yuvd->bhxyuv', q, width_emb)
        return height_score + width_score


class Attention(nn.Module):
    def __init__(self, dim, heads=3, dim_head=10, max_pos_size=16):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.to_qk = nn.Conv2d(dim, heads * dim_head * 2, 1, bias=False)
        self.pos_emb = RelPosEmb(max_pos_size, dim_head)

    def forward(self, fmap):
        (b, _, h, w), heads = fmap.shape, self.heads
        q, k = self.to_qk(fmap).chunk(2, dim=1)
        q = self.scale * q.view(b, heads, -1, h, w).permute(0, 1, 3, 4, 2)
        k = k.view(b, heads, -1, h, w).permute(0, 1, 3, 4, 2)
        sim = torch.einsum('bhxyd,bhuvd->bhxyuv', q, k) + self.pos_emb(q)
        return sim.reshape(b, heads, h * w, h * w).softmax(dim=-1)


class Aggregate(nn.Module):
    def __init__(self, dim, heads=3, dim_head=8):
        super().__init__()
        self.heads = heads
        self.to_v = nn.Conv2d(dim, heads * dim_head, 1, bias=False)
        self.gamma = nn.Parameter(torch.zeros(1))
        self.project = nn.Conv2d(heads * dim_head, dim, 1, bias=False)

    def forward(self, attn, fmap):
        b, _, h, w = fmap.shape
        v = self.to_v(fmap).view(b, self.heads, -1, h * w).transpose(2, 3)
        out = torch.einsum('bhij,bhjd->bhid', attn, v).transpose(2, 3).reshape(b, -1, h, w)
        return fmap + self.gamma * self.project(out)


class MotionEncoder(nn.Module):
    def __init__(self, corr_planes, out_dim=30):
        super().__init__()
        self.convc1 = nn.Conv2d(corr_planes, 40, 1)
        self.convc2 = nn.Conv2d(40, 32, 3, padding=1)
        self.normc = nn.GroupNorm(4, 32)
        self.convf1 = nn.Conv2d(2, 24, 7, padding=3)
        self.convf2 = nn.Conv2d(24, 16, 3, padding=2, dilation=2)
        self.conv = nn.Conv2d(32 + 16, out_dim - 2, 3, padding=1)

    def forward(self, flow, corr):
        cor = F.relu(self.convc1(corr))
        cor = F.relu(self.normc(self.convc2(cor)))
        flo = F.relu(self.convf1(flow))
        flo = F.relu(self.convf2(flo))
        out = F.relu(self.conv(torch.cat([cor, flo], dim=1)))
        return torch.cat([out, flow], dim=1)


class SepConvGRU(nn.Module):
    def __init__(self, hidden_dim, input_dim):
        super().__init__()
        dim = hidden_dim + input_dim
        self.convz1, self.convr1, self.convq1 = [
            nn.Conv2d(dim, hidden_dim, (1, 5), padding=(0, 2)) for _ in range(3)]
        self.convz2, self.convr2, self.convq2 = [
            nn.Conv2d(dim, hidden_dim, (5, 1), padding=(2, 0)) for _ in range(3)]

    def forward(self, h, x):
        for convz, convr, convq in ((self.convz1, self.convr1, self.convq1), (self.convz2, self.convr2, self.convq2)):
            hx = torch.cat([h, x], dim=1)
            z = torch.sigmoid(convz(hx))
            r = torch.sigmoid(convr(hx))
            q = torch.tanh(convq(torch.cat([r * h, x], dim=1)))
            h = (1 - z) * h + z * q
        return h


class FlowHead(nn.Module):
    def __init__(self, input_dim, hidden_dim=36):
        super().__init__()
        self.conv1 = nn.Conv2d(input_dim, hidden_dim, 3, padding=1)
        self.act = nn.LeakyReLU(0.1)
        self.conv2 = nn.Conv2d(hidden_dim, 2, 3, padding=1)

    def forward(self, x):
        return self.conv2(self.act(self.conv1(x)))


class UpdateBlock(nn.Module):
    def __init__(self, corr_planes, hidden_dim, context_dim, motion_dim=30, factor=4):
        super().__init__()
        self.encoder = MotionEncoder(corr_planes, motion_dim)
        self.aggregator = Aggregate(motion_dim)
        self.gru = SepConvGRU(hidden_dim, context_dim + 2 * motion_dim)
        self.flow_head = FlowHead(hidden_dim)
        self.mask = nn.Sequential(
            nn.Conv2d(hidden_dim, 40, 3, padding=1), nn.GELU(), nn.Conv2d(40, factor * factor * 9, 1))

    def forward(self, net, inp, corr, flow, attention):
        motion = self.encoder(flow, corr)
        motion_global = self.aggregator(attention, motion)
        net = self.gru(net, torch.cat([inp, motion, motion_global], dim=1))
        return net, .25 * self.mask(net), self.flow_head(net)     # scale mask to balance gradients


class FlowPyr(nn.Module):
    def __init__(self, fdim=48, hidden_dim=28, context_dim=20, corr_levels=3, corr_radius=2, iters=3):
        super().__init__()
        self.hidden_dim, self.context_dim, self.iters, self.factor = hidden_dim, context_dim, iters, 4
        self.fnet = BasicEncoder(fdim, norm_fn='instance')
        self.cnet = BasicEncoder(hidden_dim + context_dim, norm_fn='batch')
        self.pos = PositionEmbeddingSine(fdim // 2)
        self.pyramid = CorrPyramid(corr_levels)
        self.lookup = CorrLookup(corr_radius)
        self.matching = GlobalMatching()
        self.att = Attention(context_dim)
        self.update_block = UpdateBlock(corr_levels * (2 * corr_radius + 1) ** 2, hidden_dim, context_dim)

    def upsample_flow(self, flow, mask):
        """[H/4, W/4, 2] -> [H, W, 2] by a convex combination of the 3x3 neighbours."""
        (N, _, H, W), k = flow.shape, self.factor
        mask = torch.softmax(mask.view(N, 1, 9, k, k, H, W), dim=2)
        up_flow = F.unfold(k * flow, [3, 3], padding=1).view(N, 2, 9, 1, 1, H, W)
        up_flow = torch.sum(mask * up_flow, dim=2)
        up_flow = up_flow.permute(0, 1, 4, 2, 5, 3)
        return up_flow.reshape(N, 2, k * H, k * W)

    def consistency(self, flow_fw, flow_bw, alpha=0.05, beta=10.0):
        """Confidence in the forward flow by the forward-backward check, 0 where the target leaves the frame."""
        b, _, h, w = flow_fw.shape
        target = coords_grid(b, h, w, flow_fw.device) + flow_fw
        warped, inside = bilinear_sampler(flow_bw, target.permute(0, 2, 3, 1), mask=True)
        mag = torch.norm(flow_fw, dim=1) + torch.norm(warped, dim=1)
        diff = torch.norm(flow_fw + warped, dim=1)
        return torch.exp(-diff / (alpha * mag + beta)) * inside.squeeze(-1)

    def sequence_loss(self, preds, flow_gt, valid, gamma=0.8, max_flow=7.0):
        n, mag = len(preds), torch.sum(flow_gt ** 2, dim=1).sqrt()
        valid = ((valid >= 0.5) & (mag < max_flow)).float()
        loss = 0.0
        for i, pred in enumerate(preds):
            loss = loss + gamma ** (n - i - 1) * (valid[:, None] * (pred - flow_gt).abs()).mean()
        epe = torch.sum((preds[-1] - flow_gt) ** 2, dim=1).sqrt()
        epe = (epe * valid).sum() / valid.sum().clamp(min=1.0)
        return loss, epe

    def forward(self, image1, image2, flow_gt, valid):
        padder = InputPadder(image1.shape, self.factor)
        image1, image2 = padder.pad(2 * (image1 / 255.0) - 1.0, 2 * (image2 / 255.0) - 1.0)
        b = image1.shape[0]

        # features, both directions in one batch
        fmap1, fmap2 = self.fnet([image1, image2])
        fmap1, fmap2 = fmap1 + self.pos(fmap1), fmap2 + self.pos(fmap2)
        src = torch.cat([fmap1, fmap2], dim=0)
        tgt = torch.cat([fmap2, fmap1], dim=0)
        corr, pyramid = self.pyramid(src, tgt)

        cnet = self.cnet(torch.cat([image1, image2], dim=0))
        net, inp = torch.split(cnet, [self.hidden_dim, self.context_dim], dim=1)
        net, inp = torch.tanh(net), torch.relu(inp)
        attention = self.att(inp)

        coords0 = coords_grid(2 * b, src.shape[2], src.shape[3], src.device)
        coords1 = coords0 + self.matching(corr, coords0)

        preds = []
        for _ in range(self.iters):
            coords1 = coords1.detach()
            sampled = self.lookup(pyramid, coords1)
            flow = coords1 - coords0
            net, mask, delta_flow = self.update_block(net, inp, sampled, flow, attention)
            coords1 = coords1 + delta_flow
            preds.append(padder.unpad(self.upsample_flow(coords1 - coords0, mask)))

        forward_preds = [p[:b] for p in preds]
        conf = self.consistency(preds[-1][:b], preds[-1][b:])
        loss, epe = self.sequence_loss(forward_preds, flow_gt, valid)
        return torch.stack(forward_preds, dim=1), coords1 - coords0, conf, loss, epe


def make_inputs(b=2, h=41, w=58):
    rng = np.random.RandomState(11)
    yy, xx = np.meshgrid(np.arange(h), np.arange(w), indexing='ij')
    im1, im2, flow = np.zeros((b, 3, h, w)), np.zeros((b, 3, h, w)), np.zeros((b, 2, h, w))
    for n in range(b):
        flow[n, 0], flow[n, 1] = 2.5 - 3.0 * n + 0.09 * yy, -1.5 + 5.0 * n + 0.07 * xx
        for c in range(3):
            for _ in range(5):
                fy, fx, ph = rng.uniform(0.1, 0.7), rng.uniform(0.1, 0.7), rng.uniform(0, 6.28)
                im1[n, c] += np.sin(fy * yy + fx * xx + ph)
                im2[n, c] += np.sin(fy * (yy - flow[n, 1]) + fx * (xx - flow[n, 0]) + ph)
    im1, im2 = [np.clip(127.5 + 40 * im + rng.normal(0, 4, im.shape), 0, 255) for im in (im1, im2)]
    valid = rng.uniform(size=(b, h, w)) < 0.8
    return [a.astype(np.float32) for a in (im1, im2, flow, valid)]


def init_weights(net):
    torch.manual_seed(5)
    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            fan = m.weight[0].numel()
            nn.init.normal_(m.weight, 0, 1.2 / math.sqrt(fan))
            if m.bias is not None:
                nn.init.normal_(m.bias, 0, 0.2)
        elif isinstance(m, (nn.BatchNorm2d, nn.GroupNorm)):
            nn.init.uniform_(m.weight, 0.6, 1.4)
            nn.init.normal_(m.bias, 0, 0.2)
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.normal_(0, 0.2)
                m.running_var.uniform_(0.3, 1.5)
        elif isinstance(m, nn.Embedding):
            nn.init.normal_(m.weight, 0, 0.4)
    net.update_block.aggregator.gamma.data.fill_(0.7)
    for conv, factor in ((net.update_block.mask[2], 3.0), (net.cnet.conv2, 0.4), (net.fnet.conv2, 0.4),
                         (net.update_block.flow_head.conv2, 0.5)):
        conv.weight.data.mul_(factor)


def build():
    net = FlowPyr()
    with torch.no_grad():
        init_weights(net)
    return net.eval(), tuple(torch.from_numpy(a) for a in make_inputs())
