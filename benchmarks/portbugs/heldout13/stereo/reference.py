"""A stereo matching net: group-wise correlation volume, 3D hourglass, recurrent refinement, left-right check; in PyTorch."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


def convbn(in_planes, out_planes, kernel_size, stride=1, dilation=1):
    pad = dilation * (kernel_size - 1) // 2
    return nn.Sequential(
        nn.Conv2d(in_planes, out_planes, kernel_size, stride, pad, dilation, bias=False), nn.BatchNorm2d(out_planes)
    )


def convbn_3d(in_planes, out_planes, kernel_size, stride=1, up=False):
    pad = (kernel_size - 1) // 2
    if up:
        conv = nn.ConvTranspose3d(in_planes, out_planes, kernel_size, stride, pad, output_padding=1, bias=False)
    else:
        conv = nn.Conv3d(in_planes, out_planes, kernel_size, stride, pad, bias=False)
    return nn.Sequential(conv, nn.BatchNorm3d(out_planes))


def groupwise_correlation(fea1, fea2, num_groups):
    B, C, H, W = fea1.shape
    fea1 = fea1.view(B, num_groups, C // num_groups, H, W)
    fea2 = fea2.view(B, num_groups, C // num_groups, H, W)
    fea1 = fea1 / (torch.norm(fea1, 2, 2, True) + 1e-5)
    fea2 = fea2 / (torch.norm(fea2, 2, 2, True) + 1e-5)
    return (fea1 * fea2).mean(dim=2)


def build_volume(gwc1, gwc2, cat1, cat2, maxdisp, num_groups):
    """Correlation of groups and both views' features, for each shift of the right view: [B, G + 2C, D, H, W]."""
    B, C, H, W = cat1.shape
    volume = cat1.new_zeros([B, num_groups + 2 * C, maxdisp, H, W])
    for i in range(maxdisp):
        volume[:, :num_groups, i, :, i:] = groupwise_correlation(gwc1[..., i:], gwc2[..., : W - i], num_groups)
        volume[:, num_groups : num_groups + C, i, :, i:] = cat1[..., i:]
        volume[:, num_groups + C :, i, :, i:] = cat2[..., : W - i]
    return volume.contiguous()


def disparity_regression(prob, maxdisp):
    """Soft-argmin: the mean of the distribution over disparities, and its deviation."""
    values = torch.arange(0, maxdisp, dtype=prob.dtype).view(1, maxdisp, 1, 1)
    mean = torch.sum(prob * values, 1, keepdim=True)
    var = torch.sum(prob * (values - mean) ** 2, 1, keepdim=True)
    return mean, torch.sqrt(var + 1e-6)


def bilinear_sampler(img, coords):
    """Wrapper for grid_sample, uses pixel coordinates; only along the last axis."""
    W = img.shape[-1]
    xgrid, ygrid = coords.split([1, 1], dim=-1)
    xgrid = 2 * xgrid / (W - 1) - 1
    return F.grid_sample(img, torch.cat([xgrid, ygrid], dim=-1), align_corners=True)


def disp_warp(img, disp):
    """img of the other view (B, C, H, W) seen from this one, where disp (B, H, W) is."""
    B, _, H, W = img.shape
    ys, xs = torch.meshgrid(torch.arange(H, dtype=img.dtype), torch.arange(W, dtype=img.dtype), indexing="ij")
    x = xs.unsqueeze(0) - disp
    y = ys.unsqueeze(0).expand_as(x)
    grid = torch.stack([2 * x / (W - 1) - 1, 2 * y / (H - 1) - 1], dim=-1)
    warped = F.grid_sample(img, grid, mode="bilinear", padding_mode="border", align_corners=True)
    return warped, (x >= 0).to(img.dtype).unsqueeze(1)


def upsample_disp(disp, mask, factor):
    """Convex combination of the 3x3 neighbours, [N, 1, H, W] -> [N, factor * H, factor * W]."""
    N, _, H, W = disp.shape
    mask = mask.view(N, 9, factor, factor, H, W)
    mask = torch.softmax(mask, dim=1)
    up = F.unfold(factor * disp, [3, 3], padding=1)
    up = up.view(N, 9, 1, 1, H, W)
    up = torch.sum(mask * up, dim=1)
    return up.permute(0, 3, 1, 4, 2).reshape(N, factor * H, factor * W)


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1, dilation=1):
        super().__init__()
        self.conv1 = nn.Sequential(convbn(inplanes, planes, 3, stride, dilation), nn.ReLU(inplace=True))
        self.conv2 = convbn(planes, planes, 3, 1, dilation)
        self.downsample = convbn(inplanes, planes, 1, stride) if stride != 1 or inplanes != planes else None

    def forward(self, x):
        out = self.conv2(self.conv1(x))
        if self.downsample is not None:
            x = self.downsample(x)
        return out + x


class FeatureExtraction(nn.Module):
    """Residual trunk to a quarter of the size, with pooled branches; features for groups and for concatenation."""

    def __init__(self, channels, concat_channels, pools=(4, 2)):
        super().__init__()
        self.pools = pools
        self.firstconv = nn.Sequential(convbn(3, 12, 3, 2), nn.ReLU(), convbn(12, 12, 3), nn.ReLU())
        self.layer1 = BasicBlock(12, 12)
        self.layer2 = nn.Sequential(BasicBlock(12, 16, 2), BasicBlock(16, 16))
        self.layer3 = BasicBlock(16, 24, dilation=2)
        self.branches = nn.ModuleList([nn.Sequential(convbn(24, 8, 1), nn.ReLU()) for _ in pools])
        self.lastconv = nn.Sequential(
            convbn(16 + 24 + 8 * len(pools), 32, 3), nn.ReLU(), nn.Conv2d(32, channels, 1, bias=False)
        )
        self.concatconv = nn.Sequential(
            convbn(channels, 16, 3), nn.ReLU(), nn.Conv2d(16, concat_channels, 1, bias=False)
        )

    def forward(self, x):
        x = self.layer1(self.firstconv(x))
        raw = self.layer2(x)
        skip = self.layer3(raw)
        outs = [raw, skip]
        for size, branch in zip(self.pools, self.branches):
            pooled = branch(F.avg_pool2d(skip, size, stride=size))
            outs.append(F.interpolate(pooled, skip.shape[2:], mode="bilinear", align_corners=False))
        gwc = self.lastconv(torch.cat(outs, dim=1))
        return gwc, self.concatconv(gwc)


class ContextNet(nn.Module):
    """First state of the recurrent cells and what they see in every step, at a quarter and an eighth of the size."""

    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 7, 2, 3), nn.GroupNorm(3, 12), nn.ReLU())
        self.layer1 = BasicBlock(12, 16, 2)
        self.layer2 = BasicBlock(16, 24, 2)
        self.head04 = nn.Conv2d(16, 2 * hidden, 3, padding=1)
        self.head08 = nn.Conv2d(24, 2 * hidden, 3, padding=1)
        self.zqr = nn.ModuleList([nn.Conv2d(hidden, 3 * hidden, 3, padding=1) for _ in range(2)])

    def forward(self, image):
        x04 = self.layer1(self.stem(image))
        x08 = self.layer2(F.relu(x04))
        states, contexts = [], []
        for head, conv, x in zip((self.head04, self.head08), self.zqr, (x04, x08)):
            state, inp = torch.split(head(x), self.hidden, dim=1)
            states.append(torch.tanh(state))
            contexts.append(list(conv(F.relu(inp)).split(self.hidden, dim=1)))
        return states, contexts


class Hourglass(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Sequential(convbn_3d(c, c * 2, 3, 2), nn.ReLU(inplace=True))
        self.conv2 = nn.Sequential(convbn_3d(c * 2, c * 2, 3), nn.ReLU(inplace=True))
        self.conv3 = nn.Sequential(convbn_3d(c * 2, c * 4, 3, 2), nn.ReLU(inplace=True))
        self.conv4 = nn.Sequential(convbn_3d(c * 4, c * 4, 3), nn.ReLU(inplace=True))
        self.conv5 = convbn_3d(c * 4, c * 2, 3, 2, up=True)
        self.conv6 = convbn_3d(c * 2, c, 3, 2, up=True)
        self.redir1 = convbn_3d(c, c, 1)
        self.redir2 = convbn_3d(c * 2, c * 2, 1)

    def forward(self, x):
        conv2 = self.conv2(self.conv1(x))
        conv4 = self.conv4(self.conv3(conv2))
        conv5 = F.relu(self.conv5(conv4) + self.redir2(conv2), inplace=True)
        return F.relu(self.conv6(conv5) + self.redir1(x), inplace=True)


class CostAggregation(nn.Module):
    """3D convolutions over the volume, excited by the image's features, and the logits of each disparity."""

    def __init__(self, volume_channels, feature_channels, c=8):
        super().__init__()
        self.dres0 = nn.Sequential(
            convbn_3d(volume_channels, c, 3), nn.ReLU(inplace=True), convbn_3d(c, c, 3), nn.ReLU(inplace=True)
        )
        self.dres1 = nn.Sequential(convbn_3d(c, c, 3), nn.ReLU(inplace=True), convbn_3d(c, c, 3))
        self.excite = nn.Sequential(convbn(feature_channels, 16, 1), nn.ReLU(), nn.Conv2d(16, c, 1))
        self.hourglass = Hourglass(c)
        self.classif = nn.Sequential(convbn_3d(c, c, 3), nn.ReLU(inplace=True), nn.Conv3d(c, 1, 3, 1, 1, bias=False))

    def forward(self, volume, feature):
        cost0 = self.dres0(volume)
        cost0 = self.dres1(cost0) + cost0
        cost0 = torch.sigmoid(self.excite(feature)).unsqueeze(2) * cost0
        geo = self.hourglass(cost0)
        return geo, self.classif(geo).squeeze(1)


class CombinedGeoEncodingVolume:
    """Pyramids of the aggregated volume and of all pairs' correlation, looked up around the present disparity."""

    def __init__(self, geo_volume, fmap1, fmap2, num_levels=2, radius=2):
        self.num_levels, self.radius = num_levels, radius
        b, c, d, h, w = geo_volume.shape
        geo = geo_volume.permute(0, 3, 4, 1, 2).reshape(b * h * w, c, 1, d)
        corr = torch.einsum("aijk,aijh->ajkh", fmap1, fmap2) / fmap1.shape[1] ** 0.5
        corr = corr.reshape(b * h * w, 1, 1, w)
        self.geo_pyramid, self.corr_pyramid = [geo], [corr]
        for _ in range(num_levels - 1):
            geo = F.avg_pool2d(geo, [1, 2], stride=[1, 2])
            corr = F.avg_pool2d(corr, [1, 2], stride=[1, 2])
            self.geo_pyramid.append(geo)
            self.corr_pyramid.append(corr)

    def __call__(self, disp, coords):
        r = self.radius
        b, _, h, w = disp.shape
        dx = torch.linspace(-r, r, 2 * r + 1).view(1, 1, 2 * r + 1, 1)
        out = []
        for i in range(self.num_levels):
            x0 = dx + disp.reshape(b * h * w, 1, 1, 1) / 2**i
            geo = bilinear_sampler(self.geo_pyramid[i], torch.cat([x0, torch.zeros_like(x0)], dim=-1))
            x1 = (coords - disp).reshape(b * h * w, 1, 1, 1) / 2**i + dx
            corr = bilinear_sampler(self.corr_pyramid[i], torch.cat([x1, torch.zeros_like(x1)], dim=-1))
            out += [geo.view(b, h, w, -1), corr.view(b, h, w, -1)]
        return torch.cat(out, dim=-1).permute(0, 3, 1, 2).contiguous()


class MotionEncoder(nn.Module):
    def __init__(self, lookup_channels, out):
        super().__init__()
        self.convc1 = nn.Conv2d(lookup_channels, 24, 1)
        self.convc2 = nn.Conv2d(24, 24, 3, padding=1)
        self.convd1 = nn.Conv2d(2, 12, 7, padding=3)
        self.convd2 = nn.Conv2d(12, 12, 3, padding=1)
        self.conv = nn.Conv2d(24 + 12, out - 1, 3, padding=1)

    def forward(self, disp, spread, lookup):
        cor = F.relu(self.convc2(F.relu(self.convc1(lookup))))
        d = F.relu(self.convd2(F.relu(self.convd1(torch.cat([disp, spread], dim=1)))))
        return torch.cat([F.relu(self.conv(torch.cat([cor, d], dim=1))), disp], dim=1)


class ConvGRU(nn.Module):
    def __init__(self, hidden, inputs):
        super().__init__()
        self.convz = nn.Conv2d(hidden + inputs, hidden, 3, padding=1)
        self.convr = nn.Conv2d(hidden + inputs, hidden, 3, padding=1)
        self.convq = nn.Conv2d(hidden + inputs, hidden, 3, padding=1)

    def forward(self, h, cz, cr, cq, *x_list):
        x = torch.cat(x_list, dim=1)
        hx = torch.cat([h, x], dim=1)
        z = torch.sigmoid(self.convz(hx) + cz)
        r = torch.sigmoid(self.convr(hx) + cr)
        q = torch.tanh(self.convq(torch.cat([r * h, x], dim=1)) + cq)
        return (1 - z) * h + z * q


class UpdateBlock(nn.Module):
    """One step: the coarse cell first, then the fine one with the motion's features; change and weights of upsampling."""

    def __init__(self, hidden, lookup_channels, factor, motion=24):
        super().__init__()
        self.encoder = MotionEncoder(lookup_channels, motion)
        self.gru08 = ConvGRU(hidden, hidden)
        self.gru04 = ConvGRU(hidden, motion + hidden)
        self.disp_head = nn.Sequential(nn.Conv2d(hidden, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 1, 3, padding=1))
        self.mask = nn.Sequential(nn.Conv2d(hidden, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 9 * factor**2, 1))

    def forward(self, states, contexts, lookup, disp, spread):
        net04, net08 = states
        net08 = self.gru08(net08, *contexts[1], F.avg_pool2d(net04, 3, stride=2, padding=1))
        motion = self.encoder(disp, spread, lookup)
        above = F.interpolate(net08, net04.shape[2:], mode="bilinear", align_corners=True)
        net04 = self.gru04(net04, *contexts[0], motion, above)
        return [net04, net08], 0.25 * self.mask(net04), self.disp_head(net04)


class Refinement(nn.Module):
    """Residual of the disparity from the image, the error of the warped one, and the confidence."""

    def __init__(self, maxdisp, planes=12, dilations=(1, 2, 4)):
        super().__init__()
        self.maxdisp = maxdisp
        self.first = nn.Sequential(convbn(3 + 3 + 2, planes, 3), nn.LeakyReLU())
        self.blocks = nn.ModuleList([convbn(planes, planes, 3, dilation=d) for d in dilations])
        self.last = nn.Conv2d(planes, 1, 3, padding=1)

    def forward(self, left, right, disp, confidence):
        warped, inside = disp_warp(right, disp)
        error = (left - warped).abs() * inside
        scaled = (disp / self.maxdisp).unsqueeze(1)
        x = self.first(torch.cat([left, error, scaled, confidence.unsqueeze(1)], dim=1))
        for conv in self.blocks:
            x = F.leaky_relu(conv(x) + x)
        return F.relu(disp + self.last(x).squeeze(1))


class StereoNet(nn.Module):
    """Disparity of the left view, how far it agrees with the right view's, and all steps on the way."""

    def __init__(self, maxdisp=32, groups=8, hidden=16, channels=32, concat_channels=6, iters=3):
        super().__init__()
        self.maxdisp, self.groups, self.iters = maxdisp, groups, iters
        self.levels, self.radius, self.factor = 2, 2, 4
        self.feature = FeatureExtraction(channels, concat_channels)
        self.context = ContextNet(hidden)
        self.aggregation = CostAggregation(groups + 2 * concat_channels, channels)
        self.update = UpdateBlock(hidden, self.levels * (2 * self.radius + 1) * (8 + 1), self.factor)
        self.refine = Refinement(maxdisp)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)

    def match(self, image1, image2):
        n = image1.shape[0]
        gwc, cat = self.feature(torch.cat([image1, image2], dim=0))
        fmap1, fmap2 = gwc.split(n, dim=0)
        cat1, cat2 = cat.split(n, dim=0)
        bins = self.maxdisp // self.factor
        geo, logits = self.aggregation(build_volume(fmap1, fmap2, cat1, cat2, bins, self.groups), fmap1)
        disp, spread = disparity_regression(F.softmax(logits, dim=1), bins)
        states, contexts = self.context(image1)
        lookup = CombinedGeoEncodingVolume(geo, fmap1, fmap2, self.levels, self.radius)
        coords = torch.arange(fmap1.shape[3], dtype=disp.dtype).view(1, 1, 1, -1).expand_as(disp)
        steps = []
        for _ in range(self.iters):
            states, mask, delta = self.update(states, contexts, lookup(disp, coords), disp, spread)
            disp = disp + delta
            steps.append(upsample_disp(disp, mask, self.factor))
        return torch.stack(steps, dim=1)

    def check(self, disp_left, disp_right):
        """Left-right consistency; where it fails, the mean of the agreeing neighbours in the row is taken."""
        back, inside = disp_warp(disp_right.unsqueeze(1), disp_left)
        confidence = torch.exp(-(disp_left - back.squeeze(1)).abs() / 4.0) * inside.squeeze(1).clamp(min=0.05)
        weighted = F.avg_pool2d((confidence * disp_left).unsqueeze(1), (1, 9), stride=1, padding=(0, 4))
        weights = F.avg_pool2d(confidence.unsqueeze(1), (1, 9), stride=1, padding=(0, 4))
        filled = (weighted / (weights + 1e-4)).squeeze(1)
        return confidence * disp_left + (1 - confidence) * filled, confidence

    def forward(self, left, right):
        b = left.shape[0]
        left = (left / 255.0 - self.mean) / self.std
        right = (right / 255.0 - self.mean) / self.std
        # mirrored, the right view is a left one: both are matched in one batch
        steps = self.match(torch.cat([left, right.flip(3)], dim=0), torch.cat([right, left.flip(3)], dim=0))
        disp_left, disp_right = steps[:b, -1], steps[b:, -1].flip(2)
        filled, confidence = self.check(disp_left, disp_right)
        return self.refine(left, right, filled, confidence), confidence, steps[:b]


def make_views(batch, height, width):
    """Smooth textures of several scales seen from the right, and from the left, nearer towards the bottom."""
    shape = (height, width + 64)
    noise = [torch.rand(batch, 3, shape[0] // s, shape[1] // s) * 85 for s in (16, 4, 2)]
    wide = sum(F.interpolate(x, shape, mode="bilinear") for x in noise)
    shift = torch.linspace(4.0, 18.0, height).view(1, height, 1) + 4 * torch.rand(batch, 1, 1)
    left, _ = disp_warp(wide, shift.expand(batch, *shape))
    return left[..., 64:].contiguous(), wide[..., 64:].contiguous()


def build():
    """The net with the same weights on every run, and two pairs of views."""
    torch.manual_seed(21)
    net = StereoNet()
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Conv3d, nn.ConvTranspose3d)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, (nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.2)
            nn.init.normal_(module.bias, std=0.1)
            module.momentum = 0.5
    views = make_views(2, 32, 64)
    with torch.no_grad():
        net.update.disp_head[2].weight.mul_(0.4)
        net.update.disp_head[2].bias.fill_(0.5)
        net.update.encoder.convd1.weight.mul_(0.4)
        net.aggregation.classif[2].weight.mul_(2.0)
        for _ in range(4):  # the running statistics come to those of the data
            net.train()(*views)
    return net.eval(), views
