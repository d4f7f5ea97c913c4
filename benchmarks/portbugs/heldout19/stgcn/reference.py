"""Skeleton based action recognition with channel-wise topology refinement over joint, motion and bone streams, in PyTorch.

The graph is ST-GCN's (spatial partitions round a centre joint), the graph convolution CTR-GCN's, the streams and the
attention over frames and joints EfficientGCN's. Frames in which a person was not found are masked throughout.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

# pelvis, spine, neck, l_shoulder, l_elbow, r_shoulder, r_elbow, l_hip, l_knee, r_hip, r_knee
PARENTS = [1, 1, 1, 2, 3, 2, 5, 0, 7, 0, 9]
CENTER = 1


def get_hop_distance(num_node, edge, max_hop=1):
    A = np.zeros((num_node, num_node))
    for i, j in edge:
        A[j, i] = 1
        A[i, j] = 1
    hop_dis = np.zeros((num_node, num_node)) + np.inf
    transfer_mat = [np.linalg.matrix_power(A, d) for d in range(max_hop + 1)]
    arrive_mat = np.stack(transfer_mat) > 0
    for d in range(max_hop, -1, -1):
        hop_dis[arrive_mat[d]] = d
    return hop_dis


def normalize_digraph(A):
    """A D^-1: each column is divided by its degree."""
    Dl = np.sum(A, 0)
    num_node = A.shape[0]
    Dn = np.zeros((num_node, num_node))
    for i in range(num_node):
        if Dl[i] > 0:
            Dn[i, i] = Dl[i] ** (-1)
    return np.dot(A, Dn)


class Graph:
    """Adjacency of the skeleton in three partitions: as far from the centre, closer to it, further from it."""

    def __init__(self, parents=PARENTS, center=CENTER, max_hop=2):
        self.num_node = len(parents)
        self.edge = [(i, i) for i in range(self.num_node)]
        self.edge += [(i, p) for i, p in enumerate(parents) if i != p]
        self.center = center
        self.hop_dis = get_hop_distance(self.num_node, self.edge, max_hop)
        self.depth = get_hop_distance(self.num_node, self.edge, self.num_node)[:, center]
        self.A = self.get_adjacency(max_hop)

    def get_adjacency(self, max_hop):
        adjacency = np.zeros((self.num_node, self.num_node))
        for hop in range(max_hop + 1):
            adjacency[self.hop_dis == hop] = 1
        normalized = normalize_digraph(adjacency)
        A = np.zeros((3, self.num_node, self.num_node))
        for i in range(self.num_node):
            for j in range(self.num_node):
                if self.hop_dis[j, i] > max_hop:
                    continue
                if self.depth[j] == self.depth[i]:
                    A[0, j, i] = normalized[j, i]
                elif self.depth[j] > self.depth[i]:
                    A[1, j, i] = normalized[j, i]
                else:
                    A[2, j, i] = normalized[j, i]
        return A


def sinusoid_table(channels, length):
    """Table (channels, length): sine on the even channels, cosine on the odd ones."""
    position = torch.arange(length).float()[:, None]
    div_term = torch.exp(torch.arange(0, channels, 2).float() * (-math.log(10000.0) / channels))
    table = torch.zeros(length, channels)
    table[:, 0::2] = torch.sin(position * div_term)
    table[:, 1::2] = torch.cos(position * div_term)
    return table.t().contiguous()


def frame_mask(data, lengths):
    """True (N, T, M) where a person was found: some coordinate is not zero, and the clip has not ended."""
    T = data.shape[2]
    found = data.abs().sum(dim=(1, 3)) > 1e-5
    inside = torch.arange(T, device=data.device)[None, :] < lengths[:, None]
    return found & inside[:, :, None]


def fill_missing(data, valid):
    """A person who is missing keeps the last pose that was seen."""
    frames = []
    last = torch.zeros_like(data[:, :, 0])
    for t in range(data.shape[2]):
        last = torch.where(valid[:, None, t, None, :], data[:, :, t], last)
        frames.append(last)
    return torch.stack(frames, dim=2)


def masked_mean(x, mask, dim):
    """Mean over the places of a dimension where the mask is one."""
    return (x * mask).sum(dim=dim) / mask.sum(dim=dim).clamp(min=1)


def conv_branch_init(conv, branches):
    n, k1, k2 = conv.weight.shape[0], conv.weight.shape[1], conv.weight.shape[2]
    nn.init.normal_(conv.weight, 0, math.sqrt(2.0 / (n * k1 * k2 * branches)))


class CTRGC(nn.Module):
    """One subset's graph convolution, with a topology of its own for each channel."""

    def __init__(self, in_channels, out_channels, rel_reduction=4):
        super().__init__()
        self.rel_channels = 4 if in_channels <= 9 else in_channels // rel_reduction
        self.conv1 = nn.Conv2d(in_channels, self.rel_channels, kernel_size=1)
        self.conv2 = nn.Conv2d(in_channels, self.rel_channels, kernel_size=1)
        self.conv3 = nn.Conv2d(in_channels, out_channels, kernel_size=1)
        self.conv4 = nn.Conv2d(self.rel_channels, out_channels, kernel_size=1)
        self.tanh = nn.Tanh()

    def forward(self, x, A, mask, alpha=1):
        w = mask[:, None, :, None]
        x1 = masked_mean(self.conv1(x), w, dim=2)
        x2 = masked_mean(self.conv2(x), w, dim=2)
        x3 = self.conv3(x)
        rel = self.tanh(x1.unsqueeze(-1) - x2.unsqueeze(-2))
        rel = self.conv4(rel) * alpha + A[None, None]
        return torch.einsum("ncuv,nctv->nctu", rel, x3)


class unit_gcn(nn.Module):
    def __init__(self, in_channels, out_channels, num_subset=3):
        super().__init__()
        self.num_subset = num_subset
        self.convs = nn.ModuleList([CTRGC(in_channels, out_channels) for _ in range(num_subset)])
        if in_channels != out_channels:
            self.down = nn.Sequential(nn.Conv2d(in_channels, out_channels, 1), nn.BatchNorm2d(out_channels))
        else:
            self.down = nn.Identity()
        self.alpha = nn.Parameter(torch.zeros(1))
        self.bn = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=False)

    def forward(self, x, A, mask):
        y = None
        for i in range(self.num_subset):
            z = self.convs[i](x, A[i], mask, self.alpha)
            y = z if y is None else y + z
        y = self.bn(y)
        y = y + self.down(x)
        return self.relu(y)


class TemporalConv(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, dilation=1):
        super().__init__()
        pad = (kernel_size + (kernel_size - 1) * (dilation - 1) - 1) // 2
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=(kernel_size, 1), padding=(pad, 0),
                              stride=(stride, 1), dilation=(dilation, 1))
        self.bn = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        return self.bn(self.conv(x))


class MultiScale_TemporalConv(nn.Module):
    """Branches side by side: dilated convolutions, a maximum over three frames, and the frame alone."""

    def __init__(self, in_channels, out_channels, kernel_size=5, stride=1, dilations=(1, 2)):
        super().__init__()
        self.num_branches = len(dilations) + 2
        assert out_channels % self.num_branches == 0
        branch_channels = out_channels // self.num_branches
        self.branches = nn.ModuleList([
            nn.Sequential(
                nn.Conv2d(in_channels, branch_channels, kernel_size=1),
                nn.BatchNorm2d(branch_channels),
                nn.LeakyReLU(),
                TemporalConv(branch_channels, branch_channels, kernel_size, stride=stride, dilation=dilation),
            )
            for dilation in dilations
        ])
        self.branches.append(nn.Sequential(
            nn.Conv2d(in_channels, branch_channels, kernel_size=1),
            nn.BatchNorm2d(branch_channels),
            nn.LeakyReLU(),
            nn.MaxPool2d(kernel_size=(3, 1), stride=(stride, 1), padding=(1, 0)),
            nn.BatchNorm2d(branch_channels),
        ))
        self.branches.append(nn.Sequential(
            nn.Conv2d(in_channels, branch_channels, kernel_size=1, stride=(stride, 1)),
            nn.BatchNorm2d(branch_channels),
        ))

    def forward(self, x):
        branch_outs = []
        for tempconv in self.branches:
            branch_outs.append(tempconv(x))
        return torch.cat(branch_outs, dim=1)


class ST_Joint_Att(nn.Module):
    """Attention over frames times attention over joints."""

    def __init__(self, channel, reduct_ratio=4):
        super().__init__()
        inner_channel = channel // reduct_ratio
        self.fcn = nn.Sequential(
            nn.Conv2d(channel, inner_channel, kernel_size=1),
            nn.BatchNorm2d(inner_channel),
            nn.Hardswish(),
        )
        self.conv_t = nn.Conv2d(inner_channel, channel, kernel_size=1)
        self.conv_v = nn.Conv2d(inner_channel, channel, kernel_size=1)

    def forward(self, x, mask):
        N, C, T, V = x.size()
        x_t = x.mean(3, keepdim=True)
        x_v = masked_mean(x, mask[:, None, :, None], dim=2).unsqueeze(-1)
        x_att = self.fcn(torch.cat([x_t, x_v], dim=2))
        x_t, x_v = torch.split(x_att, [T, V], dim=2)
        x_t_att = self.conv_t(x_t).sigmoid()
        x_v_att = self.conv_v(x_v.transpose(2, 3)).sigmoid()
        return x_t_att * x_v_att


class TCN_GCN_unit(nn.Module):
    """Graph convolution, temporal convolutions, attention, and a residual link; the mask goes along with the frames."""

    def __init__(self, in_channels, out_channels, stride=1, residual=True, attention=True):
        super().__init__()
        self.stride = stride
        self.gcn1 = unit_gcn(in_channels, out_channels)
        self.tcn1 = MultiScale_TemporalConv(out_channels, out_channels, stride=stride)
        self.att = ST_Joint_Att(out_channels) if attention else None
        self.relu = nn.ReLU(inplace=False)
        if not residual:
            self.residual = None
        elif in_channels == out_channels and stride == 1:
            self.residual = nn.Identity()
        else:
            self.residual = TemporalConv(in_channels, out_channels, kernel_size=1, stride=stride)

    def forward(self, x, A, mask):
        y = self.gcn1(x, A, mask) * mask[:, None, :, None]
        y = self.tcn1(y)
        mask = mask[:, ::self.stride]
        if self.att is not None:
            y = y * self.att(y, mask)
        if self.residual is not None:
            y = y + self.residual(x)
        return self.relu(y) * mask[:, None, :, None], mask


class Model(nn.Module):
    def __init__(self, num_class=9, num_person=2, in_channels=3, stem_channels=12, max_frames=32, drop_out=0.0):
        super().__init__()
        graph = Graph()
        num_point = graph.num_node
        self.center = graph.center
        self.register_buffer("A", torch.tensor(graph.A, dtype=torch.float32), persistent=False)
        self.register_buffer("parents", torch.tensor(PARENTS), persistent=False)
        self.register_buffer("time_table", sinusoid_table(3 * stem_channels, max_frames), persistent=False)

        self.data_bn = nn.ModuleList([nn.BatchNorm1d(num_person * num_point * 2 * in_channels) for _ in range(3)])
        self.stems = nn.ModuleList([
            TCN_GCN_unit(2 * in_channels, stem_channels, residual=False, attention=False) for _ in range(3)
        ])
        self.blocks = nn.ModuleList([
            TCN_GCN_unit(3 * stem_channels, 32),
            TCN_GCN_unit(32, 48, stride=2),
            TCN_GCN_unit(48, 48),
        ])
        self.edge_importance = nn.ParameterList([
            nn.Parameter(torch.ones(3, num_point, num_point)) for _ in range(len(self.stems) + len(self.blocks))
        ])
        self.drop_out = nn.Dropout(drop_out)
        self.fc = nn.Linear(2 * 48, num_class)

    def joint_stream(self, data):
        return torch.cat([data, data - data[:, :, :, self.center:self.center + 1]], dim=1)

    def motion_stream(self, data):
        """Steps to the next frame and to the one after it; a pose that is held does not move."""
        fast = torch.zeros_like(data)
        slow = torch.zeros_like(data)
        fast[:, :, :-1] = data[:, :, 1:] - data[:, :, :-1]
        slow[:, :, :-2] = data[:, :, 2:] - data[:, :, :-2]
        return torch.cat([fast, slow], dim=1)

    def bone_stream(self, data):
        """Bones from each joint's parent to the joint, and their angles to the axes."""
        bone = data - data.index_select(3, self.parents)
        length = bone.pow(2).sum(dim=1, keepdim=True).sqrt() + 1e-3
        return torch.cat([bone, torch.acos(bone / length)], dim=1)

    def normalise(self, x, bn):
        """Batch norm with statistics for each person's joints, and people into the batch."""
        N, C, T, V, M = x.size()
        x = x.permute(0, 4, 3, 1, 2).contiguous().view(N, M * V * C, T)
        x = bn(x)
        return x.view(N, M, V, C, T).permute(0, 1, 3, 4, 2).contiguous().view(N * M, C, T, V)

    def pool(self, x, mask):
        """(N, M, C, T, V) to (N, 2 C): mean and maximum over the valid frames, then the mean over those present."""
        x = x.mean(dim=4)
        w = mask[:, :, None, :]
        mean = masked_mean(x, w, dim=3)
        top = x.masked_fill(w == 0, -1e4).amax(dim=3)
        x = torch.cat([mean, top], dim=2)
        present = (mask.sum(dim=2) > 0).float()
        return masked_mean(x, present[:, :, None], dim=1)

    def forward(self, data, lengths):
        N, C, T, V, M = data.size()
        valid = frame_mask(data, lengths)
        data = fill_missing(data, valid)
        mask = valid.permute(0, 2, 1).reshape(N * M, T).float()

        streams = [self.joint_stream(data), self.motion_stream(data), self.bone_stream(data)]
        hidden = []
        for i, stem in enumerate(self.stems):
            h = self.normalise(streams[i], self.data_bn[i]) * mask[:, None, :, None]
            h, _ = stem(h, self.A * self.edge_importance[i], mask)
            hidden.append(h)
        x = torch.cat(hidden, dim=1)
        x = (x + self.time_table[None, :, :T, None]) * mask[:, None, :, None]

        for i, block in enumerate(self.blocks):
            x, mask = block(x, self.A * self.edge_importance[len(self.stems) + i], mask)

        x = x.view(N, M, x.size(1), x.size(2), V)
        pooled = self.pool(x, mask.reshape(N, M, -1))
        scores = self.fc(self.drop_out(pooled))
        return scores, x.permute(0, 2, 3, 4, 1).contiguous()


def make_clips(generator, batch=3, frames=20, people=2):
    """Walking skeletons: rest pose, swings of the joints, drift; gaps, hidden joints, and noise after the end."""
    rest = torch.tensor([
        [0.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.9, 0.1], [0.3, 0.8, 0.0], [0.5, 0.4, 0.1], [-0.3, 0.8, 0.0],
        [-0.5, 0.4, 0.1], [0.2, -0.1, 0.0], [0.2, -0.6, 0.1], [-0.2, -0.1, 0.0], [-0.2, -0.6, 0.1],
    ])
    t = torch.arange(frames).float()
    V = rest.shape[0]
    phase = torch.rand(batch, 3, 1, V, people, generator=generator) * 2 * math.pi
    size = torch.rand(batch, 3, 1, V, people, generator=generator) * 0.3
    drift = torch.randn(batch, 3, 1, 1, people, generator=generator) * 0.03
    place = torch.randn(batch, 3, 1, 1, people, generator=generator) * 0.5
    t = t.view(1, 1, frames, 1, 1)
    data = rest.t().reshape(1, 3, 1, V, 1) + size * torch.sin(0.6 * t + phase) + drift * t + place
    data = data + 0.03 * torch.randn(data.shape, generator=generator)
    lengths = torch.tensor([20, 17, 13])[:batch]
    data[0, :, 6:9, :, 0] = 0.0  # a gap
    data[0, :, 11, :, 1] = 0.0
    data[0, :, :2, :, 1] = 0.0  # the second person comes later
    data[1, :, :, :, 1] = 0.0  # and is not there at all
    data[1, :, 9:11, :, 0] = 0.0
    data[2, :, 4:6, :, 1] = 0.0
    data[2, :, 7, 4, 0] = 0.0  # one hidden joint
    return data, lengths


def build():
    """The net with the same weights on every run, and a batch of three clips."""
    torch.manual_seed(191)
    generator = torch.Generator().manual_seed(19)
    net = Model()
    norms = [m for m in net.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            conv_branch_init(module, 1)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, unit_gcn):
            nn.init.uniform_(module.alpha, 0.3, 0.8)
    for p in net.edge_importance:
        nn.init.uniform_(p, 0.5, 1.5)
    nn.init.normal_(net.fc.weight, std=0.4)
    nn.init.normal_(net.fc.bias, std=0.2)
    for bn in norms:
        nn.init.uniform_(bn.weight, 0.6, 1.4)
        nn.init.normal_(bn.bias, std=0.2)
        bn.momentum = 0.5
    net.train()
    with torch.no_grad():
        for _ in range(4):
            net(*make_clips(generator))
        for bn in norms:
            bn.momentum = 0.1
            bn.running_mean += 0.2 * bn.running_var.sqrt() * torch.randn(bn.running_mean.shape, generator=generator)
            bn.running_var *= torch.rand(bn.running_var.shape, generator=generator) * 0.7 + 0.7
            bn.running_var.clamp_(min=0.02)
    data, lengths = make_clips(generator)
    return net.eval(), (data, lengths)
