"""Interpolation of video frames at any time between two (coarse-to-fine flows, splatting, refinement), in PyTorch."""

import math

import torch
import torch.nn.functional as F
from torch import nn

LOSS_WEIGHTS = {"lap": 1.0, "census": 0.5, "deep": 0.3, "distill": 0.2}


def resize(x, factor):
    """Bilinear, the corners not aligned."""
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)


backwarp_grids = {}


def warp(x, flow):
    """What x shows at the places to which the flow points (backward warping)."""
    n, _, h, w = flow.shape
    key = (str(flow.device), h, w)
    if key not in backwarp_grids:
        hor = torch.linspace(-1.0, 1.0, w, device=flow.device).view(1, 1, 1, w).expand(-1, -1, h, -1)
        ver = torch.linspace(-1.0, 1.0, h, device=flow.device).view(1, 1, h, 1).expand(-1, -1, -1, w)
        backwarp_grids[key] = torch.cat([hor, ver], dim=1)
    flow = torch.cat([flow[:, 0:1] / ((w - 1.0) / 2.0), flow[:, 1:2] / ((h - 1.0) / 2.0)], dim=1)
    grid = (backwarp_grids[key] + flow).permute(0, 2, 3, 1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=True)


def forward_splat(x, flow):
    """Every pixel is added, bilinearly, where its flow takes it; what leaves the image is lost."""
    n, c, h, w = x.shape
    ys, xs = torch.meshgrid(torch.arange(h, device=x.device), torch.arange(w, device=x.device), indexing="ij")
    px, py = xs + flow[:, 0], ys + flow[:, 1]
    left, top = px.floor(), py.floor()
    out = x.new_zeros(n, c, h * w)
    for dy in (0, 1):
        for dx in (0, 1):
            cx, cy = left + dx, top + dy
            weight = (1 - (px - cx).abs()) * (1 - (py - cy).abs())
            inside = (cx >= 0) & (cx < w) & (cy >= 0) & (cy < h)
            index = (cy.clamp(0, h - 1) * w + cx.clamp(0, w - 1)).long().view(n, 1, -1).expand(-1, c, -1)
            out.scatter_add_(2, index, x.flatten(2) * (weight * inside).view(n, 1, -1))
    return out.view(n, c, h, w)


def conv(in_planes, out_planes, kernel_size=3, stride=1, padding=1, dilation=1):
    layer = nn.Conv2d(in_planes, out_planes, kernel_size, stride, padding, dilation=dilation)
    return nn.Sequential(layer, nn.PReLU(out_planes))


def deconv(in_planes, out_planes):
    return nn.Sequential(nn.ConvTranspose2d(in_planes, out_planes, 4, 2, 1), nn.PReLU(out_planes))


class ResBlock(nn.Module):
    """Residual block which treats its last channels once more in between."""

    def __init__(self, channels, side):
        super().__init__()
        self.side = side
        self.conv1 = conv(channels, channels)
        self.conv2 = conv(side, side)
        self.conv3 = nn.Conv2d(channels, channels, 3, 1, 1)
        self.prelu = nn.PReLU(channels)

    def forward(self, x):
        out = self.conv1(x)
        out[:, -self.side:] = self.conv2(out[:, -self.side:].clone())
        return self.prelu(x + self.conv3(out))


class PyramidEncoder(nn.Module):
    """Features of one frame at 1/2, 1/4 and 1/8, and a few channels at full size."""

    def __init__(self, dims, full_dim):
        super().__init__()
        self.levels = nn.ModuleList()
        planes = 3
        for dim in dims:
            down = nn.Conv2d(planes, dim, 3, 2, 1, bias=False)
            self.levels.append(nn.Sequential(down, nn.BatchNorm2d(dim, eps=1e-3), nn.LeakyReLU(0.1), conv(dim, dim)))
            planes = dim
        self.head = nn.ConvTranspose2d(dims[0], full_dim, 4, 2, 1)

    def forward(self, x):
        pyramid = []
        for level in self.levels:
            x = level(x)
            pyramid.append(x)
        return self.head(pyramid[0]), pyramid


class CoarseFlow(nn.Module):
    """Flow from one frame to the other at 1/8, out of a local cost volume."""

    def __init__(self, dim, radius):
        super().__init__()
        self.radius = radius
        self.conv1 = conv((2 * radius + 1) ** 2 + dim, 32)
        self.conv2 = conv(32, 32, padding=2, dilation=2)
        self.predict = nn.Conv2d(32, 2, 3, 1, 1)

    def cost_volume(self, first, second):
        _, _, h, w = first.shape
        first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
        second = F.pad(second, [self.radius] * 4)
        shifts = [(dy, dx) for dy in range(2 * self.radius + 1) for dx in range(2 * self.radius + 1)]
        costs = [(first * second[:, :, dy:dy + h, dx:dx + w]).sum(dim=1, keepdim=True) for dy, dx in shifts]
        return F.leaky_relu(torch.cat(costs, dim=1), 0.1)

    def forward(self, first, second):
        x = torch.cat([self.cost_volume(first, second), first], dim=1)
        x = self.conv1(x)
        x = x + self.conv2(x)
        return self.predict(x)


def intermediate_flows(flow01, flow10, t):
    """Flows from time t to both frames, if motion is linear."""
    flow_t0 = -(1 - t) * t * flow01 + t * t * flow10
    flow_t1 = (1 - t) * (1 - t) * flow01 - t * (1 - t) * flow10
    return flow_t0, flow_t1


class TimeEmbedding(nn.Module):
    """Sines and cosines of the time, and a perceptron."""

    def __init__(self, freqs, dim):
        super().__init__()
        self.register_buffer("freqs", math.pi * 2.0 ** (torch.arange(freqs) / 2), persistent=False)
        self.fc1 = nn.Linear(2 * freqs + 1, dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(dim, dim)

    def forward(self, t):
        angles = t[:, None] * self.freqs[None, :]
        x = torch.cat([t[:, None], angles.sin(), angles.cos()], dim=1)
        return self.fc2(self.act(self.fc1(x)))


class FlowBlock(nn.Module):
    """A step of the refinement on smaller images: what is added to flows and mask, and hidden channels."""

    def __init__(self, in_planes, c, time_dim, hidden, side):
        super().__init__()
        self.conv0 = nn.Sequential(conv(in_planes, c // 2, 3, 2, 1), conv(c // 2, c, 3, 2, 1))
        self.norm = nn.GroupNorm(4, c)
        self.to_scale = nn.Linear(time_dim, c)
        self.to_shift = nn.Linear(time_dim, c)
        self.convblock = nn.Sequential(ResBlock(c, side), ResBlock(c, side))
        self.lastconv = nn.Sequential(nn.ConvTranspose2d(c, 4 * (5 + hidden), 4, 2, 1), nn.PixelShuffle(2))

    def forward(self, x, flow, temb, scale):
        x = resize(x, 1.0 / scale)
        flow = resize(flow, 1.0 / scale) * (1.0 / scale)
        feat = self.conv0(torch.cat([x, flow], dim=1))
        gain, shift = self.to_scale(temb)[:, :, None, None], self.to_shift(temb)[:, :, None, None]
        feat = self.norm(feat) * (1 + gain) + shift
        feat = self.convblock(feat)
        out = resize(self.lastconv(feat), scale)
        return out[:, :4] * scale, out[:, 4:5], out[:, 5:]


class Occlusion(nn.Module):
    """Who is seen in which frame: pixels that share a place in a frame share their visibility there."""

    def __init__(self, alpha):
        super().__init__()
        self.alpha = alpha
        self.gain = nn.Parameter(torch.zeros(1))
        self.fuse = nn.Sequential(conv(5, 8), nn.Conv2d(8, 1, 3, 1, 1))

    def forward(self, warped0, warped1, flow, mask):
        error = (warped0 - warped1).abs().mean(dim=1, keepdim=True)
        metric = torch.exp(-self.alpha * error)
        visible, holes = [], []
        for side in (flow[:, :2], flow[:, 2:]):
            splatted = forward_splat(torch.cat([metric, torch.ones_like(metric)], dim=1), side)
            back = warp(splatted[:, :1], side)
            visible.append((metric / (back + 0.05)).clamp(max=1.0))
            holes.append(1.0 - splatted[:, 1:].clamp(0.0, 1.0))
        visible, holes = torch.cat(visible, dim=1), torch.cat(holes, dim=1)
        ratio = torch.log(visible[:, :1] + 0.1) - torch.log(visible[:, 1:] + 0.1)
        mask = mask + self.gain * ratio + self.fuse(torch.cat([visible, holes, error], dim=1))
        return mask, visible, holes


class ContextNet(nn.Module):
    """Features of a frame at 1/2, 1/4 and 1/8, warped to the time asked for."""

    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Sequential(conv(3, c, 3, 2, 1), conv(c, c))
        self.conv2 = nn.Sequential(conv(c, 2 * c, 3, 2, 1), conv(2 * c, 2 * c))
        self.conv3 = nn.Sequential(conv(2 * c, 4 * c, 3, 2, 1), conv(4 * c, 4 * c))

    def forward(self, x, flow):
        warped = []
        for stage in (self.conv1, self.conv2, self.conv3):
            x = stage(x)
            flow = resize(flow, 0.5) * 0.5
            warped.append(warp(x, flow))
        return warped


class UNet(nn.Module):
    """A residual on the blended frame from everything that is known."""

    def __init__(self, c, context):
        super().__init__()
        self.down0 = nn.Sequential(conv(19, c, 3, 2, 1), conv(c, c))
        self.down1 = nn.Sequential(conv(c + 2 * context, 2 * c, 3, 2, 1), conv(2 * c, 2 * c))
        self.down2 = nn.Sequential(conv(2 * c + 4 * context, 4 * c, 3, 2, 1), conv(4 * c, 4 * c))
        self.up0 = deconv(4 * c + 8 * context, 2 * c)
        self.up1 = deconv(4 * c, c)
        self.up2 = deconv(2 * c, c)
        self.last = nn.Conv2d(c, 3, 3, 1, 1)

    def forward(self, img0, img1, warped0, warped1, mask, flow, holes, c0, c1):
        s0 = self.down0(torch.cat([img0, img1, warped0, warped1, mask, flow, holes], dim=1))
        s1 = self.down1(torch.cat([s0, c0[0], c1[0]], dim=1))
        s2 = self.down2(torch.cat([s1, c0[1], c1[1]], dim=1))
        x = self.up0(torch.cat([s2, c0[2], c1[2]], dim=1))
        x = self.up1(torch.cat([x, s1], dim=1))
        x = self.up2(torch.cat([x, s0], dim=1))
        return torch.sigmoid(self.last(x)) * 2 - 1


class LapLoss(nn.Module):
    """Distance of Laplacian pyramids; coarse levels count more."""

    def __init__(self, levels, channels=3):
        super().__init__()
        self.levels = levels
        row = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0])
        kernel = (row[:, None] * row[None, :] / 256.0).expand(channels, 1, 5, 5)
        self.register_buffer("kernel", kernel.contiguous(), persistent=False)

    def blur(self, x, factor=1.0):
        return F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), factor * self.kernel, groups=x.shape[1])

    def upsample(self, x, size):
        b, c, h, w = x.shape
        x = torch.cat([x, torch.zeros_like(x)], dim=3).view(b, c, h * 2, w).permute(0, 1, 3, 2)
        x = torch.cat([x, torch.zeros_like(x)], dim=3).view(b, c, w * 2, h * 2).permute(0, 1, 3, 2)
        return self.blur(x[:, :, :size[0], :size[1]], 4.0)

    def pyramid(self, x):
        bands = []
        for _ in range(self.levels - 1):
            down = self.blur(x)[:, :, ::2, ::2]
            bands.append(x - self.upsample(down, x.shape[2:]))
            x = down
        bands.append(x)
        return bands

    def forward(self, x, y):
        loss = 0.0
        for level, (a, b) in enumerate(zip(self.pyramid(x), self.pyramid(y))):
            loss = loss + 2.0**level * (a - b).abs().mean(dim=(1, 2, 3))
        return loss


class CensusLoss(nn.Module):
    """Soft distance of ternary census transforms, where the pixel is seen, and not at the border."""

    def __init__(self, radius):
        super().__init__()
        self.radius = radius
        self.register_buffer("gray", torch.tensor([0.2989, 0.5870, 0.1140]).view(1, 3, 1, 1), persistent=False)

    def transform(self, img):
        k = 2 * self.radius + 1
        gray = (img * self.gray).sum(dim=1, keepdim=True) * 255.0
        n, _, h, w = gray.shape
        patches = F.unfold(gray, k, padding=self.radius).view(n, k * k, h, w)
        diff = patches - gray
        return diff / torch.sqrt(0.81 + diff**2)

    def forward(self, x, y, weight):
        dist = (self.transform(x) - self.transform(y)) ** 2
        dist = (dist / (0.1 + dist)).mean(dim=1, keepdim=True)
        r = self.radius
        inner = torch.ones_like(dist)[:, :, r:-r, r:-r]
        weight = weight * F.pad(inner, [r] * 4)
        return (dist * weight).sum(dim=(1, 2, 3)) / (weight.sum(dim=(1, 2, 3)) + 1e-6)


class DistillLoss(nn.Module):
    """Charbonnier distance to a teacher's flow, whose shape depends on how far the student still is."""

    def forward(self, flow, label):
        epe = ((flow - label) ** 2).unflatten(1, (2, 2)).sum(dim=2).sqrt()
        robust = torch.exp(-0.3 * epe).repeat_interleave(2, dim=1).detach()
        alpha = robust / 2
        eps = 10 ** (-(10 * robust - 1) / 3)
        return (((flow - label) ** 2 + eps**2) ** alpha).mean(dim=(1, 2, 3))


class FrameInterpolator(nn.Module):
    def __init__(self, encoder_dims=(12, 16, 24), full_dim=4, flow_dims=(32, 24, 16), flow_scales=(4, 2, 1),
                 hidden_dim=3, side=6, time_dim=20, context_dim=6, unet_dim=8):
        super().__init__()
        self.flow_scales, self.hidden_dim = flow_scales, hidden_dim
        self.encoder = PyramidEncoder(encoder_dims, full_dim)
        self.coarse = CoarseFlow(encoder_dims[-1], radius=2)
        self.time_embed = TimeEmbedding(6, time_dim)
        planes = 6 + 2 * full_dim + 2 + hidden_dim + 4
        self.blocks = nn.ModuleList(FlowBlock(planes, c, time_dim, hidden_dim, side) for c in flow_dims)
        self.occlusion = Occlusion(alpha=2.5)
        self.contextnet = ContextNet(context_dim)
        self.unet = UNet(unet_dim, context_dim)
        self.lap = LapLoss(levels=3)
        self.census = CensusLoss(radius=2)
        self.distill = DistillLoss()

    def estimate(self, img0, img1, timestep):
        """Flows to both frames and the logits of the blend, and the blend after every step."""
        t = timestep.view(-1, 1, 1, 1)
        temb = self.time_embed(timestep)
        full0, pyramid0 = self.encoder(img0)
        full1, pyramid1 = self.encoder(img1)
        flow01 = self.coarse(pyramid0[-1], pyramid1[-1])
        flow10 = self.coarse(pyramid1[-1], pyramid0[-1])
        flow = resize(torch.cat(intermediate_flows(flow01, flow10, t), dim=1), 8) * 8
        n, _, h, w = img0.shape
        plane = t.expand(n, 1, h, w)
        mask = img0.new_zeros(n, 1, h, w)
        hidden = img0.new_zeros(n, self.hidden_dim, h, w)
        warped0, warped1 = warp(img0, flow[:, :2]), warp(img1, flow[:, 2:])
        merged = []
        for block, scale in zip(self.blocks, self.flow_scales):
            feats = [warp(full0, flow[:, :2]), warp(full1, flow[:, 2:])]
            x = torch.cat([warped0, warped1, *feats, plane, mask, hidden], dim=1)
            flow_delta, mask_delta, hidden = block(x, flow, temb, scale)
            flow, mask = flow + flow_delta, mask + mask_delta
            warped0, warped1 = warp(img0, flow[:, :2]), warp(img1, flow[:, 2:])
            blend = torch.sigmoid(mask)
            merged.append(warped0 * blend + warped1 * (1 - blend))
        return flow, mask, warped0, warped1, merged

    def losses(self, pred, merged, target, flow, label, visible):
        """All terms for each sample, and their sum."""
        terms = {"lap": self.lap(pred, target), "census": self.census(pred, target, visible.amax(dim=1, keepdim=True))}
        terms["deep"] = sum(0.8 ** (len(merged) - 1 - i) * self.lap(frame, target) for i, frame in enumerate(merged))
        terms["distill"] = self.distill(flow, label)
        terms["total"] = sum(LOSS_WEIGHTS[name] * term for name, term in terms.items())
        return terms

    def forward(self, img0, img1, timestep, target, label):
        """Frames (batch, 3, height, width) in [0, 1], times (batch,), the true frame and the teacher's flows."""
        h, w = img0.shape[-2:]
        more_h, more_w = -h % 16, -w % 16
        top, left = more_h // 2, more_w // 2
        mean = torch.cat([img0, img1], dim=2).mean(dim=(1, 2, 3), keepdim=True)
        pad = (left, more_w - left, top, more_h - top)
        img0, img1 = (F.pad(img - mean, pad, mode="replicate") for img in (img0, img1))

        flow, mask, warped0, warped1, merged = self.estimate(img0, img1, timestep)
        mask, visible, holes = self.occlusion(warped0, warped1, flow, mask)
        blend = torch.sigmoid(mask)
        base = warped0 * blend + warped1 * (1 - blend)
        c0, c1 = self.contextnet(img0, flow[:, :2]), self.contextnet(img1, flow[:, 2:])
        pred = base + self.unet(img0, img1, warped0, warped1, blend, flow, holes, c0, c1)

        pred, flow, blend, visible, *merged = (
            x[..., top:top + h, left:left + w] for x in (pred, flow, blend, visible, *merged)
        )
        pred, merged = (pred + mean).clamp(0.0, 1.0), [frame + mean for frame in merged]
        psnr = -10 * torch.log10(((pred - target) ** 2).mean(dim=(1, 2, 3)).clamp(min=1e-8))
        terms = self.losses(pred, merged, target, flow, label, visible)
        return {"pred": pred, "flow": flow, "blend": blend, "visible": visible, "psnr": psnr, **terms}


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            # of the transposed kernels of 4 by 4 a quarter meets each pixel
            fan_in = module.in_channels * 4 if isinstance(module, nn.ConvTranspose2d) else module.weight[0].numel()
            nn.init.normal_(module.weight, std=1.2 * fan_in**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.PReLU):
            nn.init.uniform_(module.weight, 0.05, 0.45)
        elif isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
    for level, var in zip(net.encoder.levels, (0.06, 0.5, 0.7)):
        nn.init.normal_(level[1].running_mean, std=0.3 * var**0.5)
        nn.init.uniform_(level[1].running_var, 0.5 * var, 1.5 * var)
    for module in net.contextnet.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data *= 1.4
    # flows of some pixels, and a residual which is less than the frames
    nn.init.constant_(net.occlusion.gain, 0.7)
    net.encoder.head.weight.data *= 0.3
    net.coarse.predict.weight.data *= 0.6
    for block, factor in zip(net.blocks, (0.25, 0.16, 0.1)):
        block.lastconv[0].weight.data *= factor
    net.unet.last.weight.data *= 0.15
    return net


def build():
    """The net with the same weights on every run, and two pairs of frames that move."""
    torch.manual_seed(2022)
    net = trained_like(FrameInterpolator())
    scene = F.interpolate(torch.rand(2, 3, 9, 11), size=(61, 74), mode="bicubic").clamp(0.05, 0.95)
    scene = 0.95 * scene + 0.05 * torch.rand(2, 3, 61, 74)
    img0, target, img1 = scene[:, :, 4:49, 3:61], scene[:, :, 6:51, 6:64], scene[:, :, 9:54, 10:68]
    timestep = torch.tensor([0.4, 0.65])
    label = 1.5 * torch.randn(2, 4, 1, 1) + 0.5 * torch.randn(2, 4, 45, 58)
    return net.eval(), (img0.contiguous(), img1.contiguous(), timestep, target.contiguous(), label)
