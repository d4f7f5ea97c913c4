"""BEVNet: boxes in bird's eye view from a rig of cameras (lift, splat, remember, detect), in PyTorch.

The images of each frame are encoded by a small ResNet with an FPN neck, each pixel is lifted to a ray of depths, the
rays are summed into a grid around the ego vehicle, the grid of the frame before is warped by the ego motion and fused,
and a head of the CenterPoint kind finds the boxes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

GRID = {"x": (-12.0, 12.0, 1.0), "y": (-10.0, 10.0, 1.0), "z": (-3.0, 3.0, 3.0), "depth": (1.0, 13.0, 1.0)}
SEED = 17
SPREADS = (("reg", 0.2), ("height", 0.5), ("dim", 0.3), ("rot", 0.7), ("vel", 0.8), ("heatmap", 0.6))
TASKS = (("car", "truck"), ("pedestrian", "bicycle", "cone"))


def gen_dx_bx(xbound, ybound, zbound):
    """Cell sizes, centres of the first cells and numbers of cells, all in the order x, y, z."""
    dx = torch.tensor([row[2] for row in (xbound, ybound, zbound)])
    bx = torch.tensor([row[0] + row[2] / 2.0 for row in (xbound, ybound, zbound)])
    nx = [int(round((row[1] - row[0]) / row[2])) for row in (xbound, ybound, zbound)]
    return dx, bx, nx


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(
                nn.Conv2d(inplanes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + identity)


class ImgBackbone(nn.Module):
    """Stem and three stages; features of strides 4, 8 and 16."""

    def __init__(self, widths=(16, 24, 40, 56), blocks=(1, 2, 1)):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(inplace=True),
        )
        stages, inplanes = [], widths[0]
        for planes, number in zip(widths[1:], blocks):
            layers = [BasicBlock(inplanes, planes, stride=2)]
            layers += [BasicBlock(planes, planes) for _ in range(number - 1)]
            stages.append(nn.Sequential(*layers))
            inplanes = planes
        self.stages = nn.ModuleList(stages)

    def forward(self, x):
        x = self.stem(x)
        outs = []
        for stage in self.stages:
            x = stage(x)
            outs.append(x)
        return outs


class FPNNeck(nn.Module):
    """Top-down pyramid; all levels are brought to the size of the middle one and fused."""

    def __init__(self, in_channels=(24, 40, 56), width=28, out_channels=36):
        super().__init__()
        self.lateral_convs = nn.ModuleList([nn.Conv2d(c, width, 1) for c in in_channels])
        self.fpn_convs = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in in_channels])
        self.out_conv = nn.Sequential(
            nn.Conv2d(width * len(in_channels), out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, feats):
        laterals = [conv(feat) for conv, feat in zip(self.lateral_convs, feats)]
        for i in range(len(laterals) - 1, 0, -1):
            laterals[i - 1] = laterals[i - 1] + F.interpolate(
                laterals[i], size=laterals[i - 1].shape[2:], mode="nearest"
            )
        outs = [conv(lateral) for conv, lateral in zip(self.fpn_convs, laterals)]
        size = outs[1].shape[2:]
        outs = [
            F.avg_pool2d(outs[0], kernel_size=2, stride=2),
            outs[1],
            F.interpolate(outs[2], size=size, mode="bilinear", align_corners=False),
        ]
        return self.out_conv(torch.cat(outs, dim=1))


class Mlp(nn.Module):
    def __init__(self, in_features, hidden, out_features):
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(hidden, out_features)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class SELayer(nn.Module):
    """Channels weighted by a vector from elsewhere."""

    def __init__(self, channels):
        super().__init__()
        self.conv_reduce = nn.Conv2d(channels, channels, 1)
        self.act1 = nn.ReLU()
        self.conv_expand = nn.Conv2d(channels, channels, 1)
        self.gate = nn.Sigmoid()

    def forward(self, x, x_se):
        x_se = self.conv_expand(self.act1(self.conv_reduce(x_se)))
        return x * self.gate(x_se)


class DepthNet(nn.Module):
    """Depth logits and context of each pixel, both aware of the camera's parameters."""

    def __init__(self, in_channels, mid_channels, context_channels, depth_channels, camera_dim):
        super().__init__()
        self.reduce_conv = nn.Sequential(
            nn.Conv2d(in_channels, mid_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(mid_channels),
            nn.ReLU(inplace=True),
        )
        self.bn = nn.BatchNorm1d(camera_dim)
        self.context_mlp = Mlp(camera_dim, mid_channels, mid_channels)
        self.context_se = SELayer(mid_channels)
        self.context_conv = nn.Conv2d(mid_channels, context_channels, 1)
        self.depth_mlp = Mlp(camera_dim, mid_channels, mid_channels)
        self.depth_se = SELayer(mid_channels)
        self.depth_conv = nn.Sequential(
            BasicBlock(mid_channels, mid_channels),
            nn.Conv2d(mid_channels, depth_channels, 1),
        )

    def forward(self, x, camera):
        camera = self.bn(camera.reshape(-1, camera.shape[-1]))
        x = self.reduce_conv(x)
        context_se = self.context_mlp(camera)[..., None, None]
        context = self.context_se(x, context_se)
        context = self.context_conv(context)
        depth_se = self.depth_mlp(camera)[..., None, None]
        depth = self.depth_se(x, depth_se)
        depth = self.depth_conv(depth)
        return depth, context


class LSSViewTransformer(nn.Module):
    """Lift: a depth distribution times a context for each pixel. Splat: the sum of them in each cell of the grid."""

    def __init__(self, grid, input_size, downsample, in_channels, mid_channels, out_channels):
        super().__init__()
        self.grid = grid
        self.input_size = input_size
        self.downsample = downsample
        dx, bx, nx = gen_dx_bx(grid["x"], grid["y"], grid["z"])
        self.register_buffer("dx", dx, persistent=False)
        self.register_buffer("bx", bx, persistent=False)
        self.nx = nx
        self.register_buffer("frustum", self.create_frustum(), persistent=False)
        self.D = self.frustum.shape[0]
        self.C = out_channels
        self.depthnet = DepthNet(in_channels, mid_channels, out_channels, self.D, camera_dim=22)

    def create_frustum(self):
        """Columns, rows and depths of the points of one image, (D, H, W, 3)."""
        H, W = self.input_size
        fH, fW = H // self.downsample, W // self.downsample
        ds = torch.arange(*self.grid["depth"], dtype=torch.float).view(-1, 1, 1).expand(-1, fH, fW)
        D = ds.shape[0]
        xs = torch.linspace(0, W - 1, fW, dtype=torch.float).view(1, 1, fW).expand(D, fH, fW)
        ys = torch.linspace(0, H - 1, fH, dtype=torch.float).view(1, fH, 1).expand(D, fH, fW)
        return torch.stack((xs, ys, ds), -1)

    def get_geometry(self, rots, trans, intrins, post_rots, post_trans):
        """The points in coordinates of the ego vehicle, (B, N, D, H, W, 3)."""
        B, N, _ = trans.shape
        # undo the augmentation of the images
        points = self.frustum - post_trans.view(B, N, 1, 1, 1, 3)
        points = torch.inverse(post_rots).view(B, N, 1, 1, 1, 3, 3).matmul(points.unsqueeze(-1))
        # camera to ego
        points = torch.cat((points[:, :, :, :, :, :2] * points[:, :, :, :, :, 2:3], points[:, :, :, :, :, 2:3]), 5)
        combine = rots.matmul(torch.inverse(intrins))
        points = combine.view(B, N, 1, 1, 1, 3, 3).matmul(points).squeeze(-1)
        points = points + trans.view(B, N, 1, 1, 1, 3)
        return points

    def get_mlp_input(self, rots, trans, intrins, post_rots, post_trans):
        """The camera's parameters as one vector of 22 values."""
        B, N, _ = trans.shape
        params = torch.stack(
            [
                intrins[:, :, 0, 0], intrins[:, :, 1, 1], intrins[:, :, 0, 2], intrins[:, :, 1, 2],
                post_rots[:, :, 0, 0], post_rots[:, :, 0, 1], post_trans[:, :, 0],
                post_rots[:, :, 1, 0], post_rots[:, :, 1, 1], post_trans[:, :, 1],
            ],
            dim=-1,
        )
        sensor2ego = torch.cat([rots, trans.unsqueeze(-1)], dim=-1).reshape(B, N, 12)
        return torch.cat([params, sensor2ego], dim=-1)

    def voxel_pooling(self, geom, x):
        B, N, D, H, W, C = x.shape
        nprime = B * N * D * H * W
        nx, ny, nz = self.nx
        x = x.reshape(nprime, C)
        geom = ((geom - (self.bx - self.dx / 2.0)) / self.dx).long().view(nprime, 3)
        batch_ix = torch.arange(B, device=x.device).repeat_interleave(nprime // B)
        kept = (
            (geom[:, 0] >= 0) & (geom[:, 0] < nx)
            & (geom[:, 1] >= 0) & (geom[:, 1] < ny)
            & (geom[:, 2] >= 0) & (geom[:, 2] < nz)
        )
        x, geom, batch_ix = x[kept], geom[kept], batch_ix[kept]
        ranks = ((batch_ix * nz + geom[:, 2]) * ny + geom[:, 1]) * nx + geom[:, 0]
        final = x.new_zeros((B * nz * ny * nx, C))
        final.index_add_(0, ranks, x)
        final = final.view(B, nz, ny, nx, C).permute(0, 4, 1, 2, 3).contiguous()
        # collapse z
        return torch.cat(final.unbind(dim=2), 1)

    def forward(self, x, rots, trans, intrins, post_rots, post_trans):
        B, N, C, H, W = x.shape
        camera = self.get_mlp_input(rots, trans, intrins, post_rots, post_trans)
        depth, context = self.depthnet(x.view(B * N, C, H, W), camera)
        depth = depth.softmax(dim=1)
        volume = torch.einsum("bdhw,bchw->bdhwc", depth, context)
        volume = volume.view(B, N, self.D, H, W, self.C)
        geom = self.get_geometry(rots, trans, intrins, post_rots, post_trans)
        return self.voxel_pooling(geom, volume)


class TemporalFusion(nn.Module):
    """Warps the memory into the present frame and lets a gate choose between it and the new features."""

    def __init__(self, channels, grid):
        super().__init__()
        dx, bx, nx = gen_dx_bx(grid["x"], grid["y"], grid["z"])
        xs = bx[0] + dx[0] * torch.arange(nx[0])
        ys = bx[1] + dx[1] * torch.arange(nx[1])
        gy, gx = torch.meshgrid(ys, xs, indexing="ij")
        self.register_buffer("centres", torch.stack([gx, gy, torch.ones_like(gx)], dim=-1), persistent=False)
        self.register_buffer("first", bx[:2].clone(), persistent=False)
        self.register_buffer("extent", dx[:2] * (torch.tensor(nx[:2]) - 1), persistent=False)
        self.cand = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.gate = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.act = nn.LeakyReLU()

    def align(self, memory, pose_prev, pose_cur):
        """The memory as it looks from where the vehicle is now."""
        cur2prev = torch.inverse(pose_prev) @ pose_cur
        plane = cur2prev[:, [0, 1, 3]][:, :, [0, 1, 3]]
        places = torch.einsum("bij,hwj->bhwi", plane, self.centres)[..., :2]
        places = (places - self.first) / self.extent * 2.0 - 1.0
        return F.grid_sample(memory, places, mode="bilinear", padding_mode="zeros", align_corners=True)

    def forward(self, bev, memory, pose_prev, pose_cur):
        warped = bev if memory is None else self.align(memory, pose_prev, pose_cur)
        both = torch.cat([bev, warped], dim=1)
        cand = self.act(self.cand(both))
        gate = torch.sigmoid(self.gate(both))
        return gate * cand + (1.0 - gate) * warped


class BEVEncoder(nn.Module):
    """Residual stages over the grid; the coarsest is brought up again, in two steps."""

    def __init__(self, in_channels, widths=(44, 64), out_channels=48):
        super().__init__()
        self.layer1 = nn.Sequential(BasicBlock(in_channels, widths[0], 2), BasicBlock(widths[0], widths[0]))
        self.layer2 = BasicBlock(widths[0], widths[1], 2)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.fuse = nn.Sequential(
            nn.Conv2d(widths[1] + widths[0], widths[1], 3, padding=1, bias=False),
            nn.BatchNorm2d(widths[1]),
            nn.ReLU(inplace=True),
        )
        self.up2 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.out = nn.Sequential(
            nn.Conv2d(widths[1], out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )
        self.skip = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x):
        x1 = self.layer1(x)
        x2 = self.layer2(x1)
        up = self.fuse(torch.cat([self.up1(x2), x1], dim=1))
        return self.out(self.up2(up)) + self.skip(x)


def _gather_feat(feat, ind):
    dim = feat.size(2)
    ind = ind.unsqueeze(2).expand(ind.size(0), ind.size(1), dim)
    return feat.gather(1, ind)


def _transpose_and_gather_feat(feat, ind):
    feat = feat.permute(0, 2, 3, 1).contiguous()
    feat = feat.view(feat.size(0), -1, feat.size(3))
    return _gather_feat(feat, ind)


def _nms(heat, kernel=3):
    hmax = F.max_pool2d(heat, (kernel, kernel), stride=1, padding=(kernel - 1) // 2)
    keep = (hmax == heat).float()
    return heat * keep


def _topk(scores, K):
    """The best K peaks over all classes: their scores, flat places, classes, rows and columns."""
    batch, cat, height, width = scores.size()
    topk_scores, topk_inds = torch.topk(scores.view(batch, cat, -1), K)
    topk_inds = topk_inds % (height * width)
    topk_score, topk_ind = torch.topk(topk_scores.view(batch, -1), K)
    topk_clses = torch.div(topk_ind, K, rounding_mode="floor")
    topk_inds = _gather_feat(topk_inds.view(batch, -1, 1), topk_ind).view(batch, K)
    topk_ys = torch.div(topk_inds, width, rounding_mode="floor").float()
    topk_xs = (topk_inds % width).float()
    return topk_score, topk_inds, topk_clses, topk_ys, topk_xs


class SeparateHead(nn.Module):
    """One small branch for each quantity."""

    def __init__(self, in_channels, heads, head_conv=20):
        super().__init__()
        self.heads = heads
        for head, classes in heads.items():
            fc = nn.Sequential(
                nn.Conv2d(in_channels, head_conv, 3, padding=1, bias=False),
                nn.BatchNorm2d(head_conv),
                nn.ReLU(inplace=True),
                nn.Conv2d(head_conv, classes, 3, padding=1),
            )
            self.__setattr__(head, fc)

    def forward(self, x):
        return {head: self.__getattr__(head)(x) for head in self.heads}


class CenterHead(nn.Module):
    """Heatmaps of centres and the boxes at their peaks, (x, y, z, w, l, h, yaw, vx, vy)."""

    def __init__(self, in_channels, grid, tasks=TASKS, share_conv=32, max_num=6, post_max=9):
        super().__init__()
        self.num_classes = [len(names) for names in tasks]
        self.max_num = max_num
        self.post_max = post_max
        self.pc_range = (grid["x"][0], grid["y"][0])
        self.voxel_size = (grid["x"][2], grid["y"][2])
        self.score_threshold = 0.1
        self.shared_conv = nn.Sequential(
            nn.Conv2d(in_channels, share_conv, 3, padding=1),
            nn.BatchNorm2d(share_conv),
            nn.ReLU(inplace=True),
        )
        self.task_heads = nn.ModuleList()
        for number in self.num_classes:
            heads = {"reg": 2, "height": 1, "dim": 3, "rot": 2, "vel": 2, "heatmap": number}
            self.task_heads.append(SeparateHead(share_conv, heads))

    def decode(self, preds):
        heat = _nms(preds["heatmap"].sigmoid())
        batch, K = heat.shape[0], self.max_num
        scores, inds, clses, ys, xs = _topk(heat, K)
        reg = _transpose_and_gather_feat(preds["reg"], inds)
        xs = xs.view(batch, K, 1) + reg[:, :, 0:1]
        ys = ys.view(batch, K, 1) + reg[:, :, 1:2]
        xs = xs * self.voxel_size[0] + self.pc_range[0]
        ys = ys * self.voxel_size[1] + self.pc_range[1]
        height = _transpose_and_gather_feat(preds["height"], inds)
        dim = _transpose_and_gather_feat(preds["dim"].exp(), inds)
        rot = _transpose_and_gather_feat(preds["rot"], inds)
        yaw = torch.atan2(rot[:, :, 0:1], rot[:, :, 1:2])
        vel = _transpose_and_gather_feat(preds["vel"], inds)
        height = height - dim[:, :, 2:3] * 0.5
        boxes = torch.cat([xs, ys, height, dim, yaw, vel], dim=2)
        scores = torch.where(scores > self.score_threshold, scores, torch.zeros_like(scores))
        return boxes, scores, clses

    def forward(self, x):
        x = self.shared_conv(x)
        boxes, scores, labels = [], [], []
        flag = 0
        for number, task in zip(self.num_classes, self.task_heads):
            box, score, cls = self.decode(task(x))
            boxes.append(box)
            scores.append(score)
            labels.append(cls + flag)
            flag += number
        boxes, scores, labels = torch.cat(boxes, 1), torch.cat(scores, 1), torch.cat(labels, 1)
        scores, order = torch.topk(scores, self.post_max, dim=1)
        return _gather_feat(boxes, order), scores, labels.gather(1, order)


class BEVNet(nn.Module):
    def __init__(self, grid=GRID, input_size=(48, 80), neck_channels=36, bev_channels=20):
        super().__init__()
        self.register_buffer("mean", torch.tensor([123.675, 116.28, 103.53]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([58.395, 57.12, 57.375]).view(1, 3, 1, 1), persistent=False)
        self.img_backbone = ImgBackbone()
        self.img_neck = FPNNeck(out_channels=neck_channels)
        self.img_view_transformer = LSSViewTransformer(grid, input_size, 8, neck_channels, 32, bev_channels)
        channels = bev_channels * self.img_view_transformer.nx[2]
        self.temporal = TemporalFusion(channels, grid)
        self.bev_encoder = BEVEncoder(channels)
        self.pts_bbox_head = CenterHead(48, grid)

    def extract_img_feat(self, imgs):
        B, N, C, H, W = imgs.shape
        imgs = imgs.reshape(B * N, C, H, W)
        x = self.img_neck(self.img_backbone((imgs - self.mean) / self.std))
        return x.view(B, N, *x.shape[1:])

    def forward(self, imgs, rots, trans, intrins, post_rots, post_trans, poses):
        memory = None
        for t in range(imgs.shape[1]):
            x = self.extract_img_feat(imgs[:, t])
            bev = self.img_view_transformer(x, rots, trans, intrins, post_rots, post_trans)
            memory = self.temporal(bev, memory, poses[:, max(t - 1, 0)], poses[:, t])
        return self.pts_bbox_head(self.bev_encoder(memory))


def _rotation(axis, angle):
    c, s = math.cos(angle), math.sin(angle)
    i, j = [(1, 2), (2, 0), (0, 1)][axis]
    matrix = torch.eye(3)
    matrix[i, i], matrix[i, j], matrix[j, i], matrix[j, j] = c, -s, s, c
    return matrix


def _inputs(generator, B=2, T=3, N=3, H=48, W=80):
    def rand(low, high):
        return low + (high - low) * torch.rand((), generator=generator).item()

    # smooth images in 0..255
    coarse = torch.rand(B * T * N, 3, H // 8, W // 8, generator=generator)
    imgs = F.interpolate(coarse, size=(H, W), mode="bicubic", align_corners=False).view(B, T, N, 3, H, W)
    imgs = (255 * (0.8 * imgs + 0.2 * torch.rand(B, T, N, 3, H, W, generator=generator))).clamp(0, 255).round()
    axes = torch.tensor([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])  # camera to ego, looking ahead
    rots, trans, intrins = torch.zeros(B, N, 3, 3), torch.zeros(B, N, 3), torch.zeros(B, N, 3, 3)
    post_rots, post_trans = torch.zeros(B, N, 3, 3), torch.zeros(B, N, 3)
    poses = torch.zeros(B, T, 4, 4)
    for b in range(B):
        for n, yaw in enumerate((0.0, 1.9, -2.0)):
            pitch = _rotation(1, rand(-0.03, 0.12))
            rots[b, n] = _rotation(2, yaw + rand(-0.1, 0.1)) @ pitch @ _rotation(0, rand(-0.04, 0.04)) @ axes
            trans[b, n] = torch.tensor([rand(0.2, 1.2) * math.cos(yaw), 0.6 * math.sin(yaw), rand(1.3, 1.8)])
            intrins[b, n] = torch.tensor(
                [[rand(80, 100), 0, rand(77, 84)], [0, rand(80, 100), rand(45, 52)], [0, 0, 1]]
            )
            post_rots[b, n] = _rotation(2, rand(-0.08, 0.08))
            post_rots[b, n, :2, :2] *= rand(0.46, 0.56)
            post_trans[b, n, :2] = torch.tensor([rand(-6, 3), rand(-4, 3)])
        heading, x, y = rand(-2.5, 2.5), rand(-30, 30), rand(-30, 30)
        for t in range(T):
            poses[b, t] = torch.eye(4)
            poses[b, t, :3, :3] = _rotation(2, heading)
            poses[b, t, :3, 3] = torch.tensor([x, y, 0.4])
            step, turn = rand(1.2, 2.4), rand(0.05, 0.2)
            x, y, heading = x + step * math.cos(heading), y + step * math.sin(heading), heading + turn
    return imgs, rots, trans, intrins, post_rots, post_trans, poses


def build():
    """The net with the same weights on every run, and two sequences of three frames from three cameras."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    net = BEVNet()
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=(1.3 / module.weight[0].numel()) ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.4 / math.sqrt(module.in_features))
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            module.momentum = 1.0
    inputs = _inputs(generator)
    with torch.no_grad():
        net.img_view_transformer.depthnet.context_conv.weight.mul_(2.0)
        for task in net.pts_bbox_head.task_heads:
            for name, spread in SPREADS:
                getattr(task, name)[3].weight.mul_(spread)
            task.reg[3].bias.add_(0.5)
            task.dim[3].bias.add_(0.6)
            task.heatmap[3].bias.sub_(2.4)
        net.train()(*inputs)  # the statistics of the last frame, and some noise as from other batches
        for module in net.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                deviation = (module.running_var + 1e-4).sqrt()
                module.running_mean.add_(0.2 * deviation * torch.randn_like(deviation))
                module.running_var.add_(1e-4).mul_(0.7 + 0.6 * torch.rand_like(deviation))
                module.momentum = 0.1
    return net.eval(), inputs
