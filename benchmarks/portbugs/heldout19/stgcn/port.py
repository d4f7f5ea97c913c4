"""Skeleton action recognition with refined topologies, three streams and masked frames, for MindSpore (PyNative)."""

from __future__ import annotations

from collections import deque

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops

# pelvis, spine, neck, left shoulder, elbow, right shoulder, elbow, left hip, knee, right hip, knee
SKELETON = (1, 1, 1, 2, 3, 2, 5, 0, 7, 0, 9)
ROOT_JOINT = 1
NUM_PARTITIONS = 3


# ---------------------------------------------------------------------------------------------------------------------
# tables


def hops_between(parents):
    """How many bones lie between any two joints (breadth first from each)."""
    count = len(parents)
    neighbours = [set() for _ in range(count)]
    for joint, parent in enumerate(parents):
        if joint != parent:
            neighbours[joint].add(parent)
            neighbours[parent].add(joint)
    hops = np.full((count, count), np.inf)
    for start in range(count):
        hops[start, start] = 0
        queue = deque([start])
        while queue:
            here = queue.popleft()
            for there in neighbours[here]:
                if np.isinf(hops[start, there]):
                    hops[start, there] = hops[start, here] + 1
                    queue.append(there)
    return hops


def spatial_adjacency(parents, root, max_hop=2):
    """Three matrices (to, from): joints as far from the root, those nearer to it, those further away."""
    hops = hops_between(parents)
    linked = (hops <= max_hop).astype(np.float64)
    degree = linked.sum(axis=0, keepdims=True)
    normed = linked / np.maximum(degree, 1)
    depth = hops[root]
    target, source = depth[:, None], depth[None, :]
    return np.stack([
        np.where(target == source, normed, 0),
        np.where(target > source, normed, 0),
        np.where(target < source, normed, 0),
    ]).astype(np.float32)


def time_encoding(channels, length):
    """(channels, length), sines and cosines by turns."""
    rates = 1.0 / np.power(10000.0, np.arange(0, channels, 2) / channels)
    angles = rates[:, None] * np.arange(length)[None, :]
    table = np.empty((channels, length), np.float32)
    table[0::2] = np.sin(angles)
    table[1::2] = np.cos(angles)
    return table


# ---------------------------------------------------------------------------------------------------------------------
# masks and poses


def find_people(clips, lengths):
    """(N, T, M), true where there is a person: a pose that is not all zeros, in a frame of the clip."""
    frames = clips.shape[2]
    seen = ops.abs(clips).sum(axis=(1, 3)) > 1e-5
    in_clip = ops.arange(frames).reshape(1, -1) < lengths.reshape(-1, 1)
    return ops.logical_and(seen, in_clip.expand_dims(-1))


def hold_last_pose(clips, valid):
    """Missing frames repeat the pose before them."""
    batch, _, frames, _, people = clips.shape
    held = []
    pose = ops.zeros_like(clips[:, :, 0])
    for step in range(frames):
        now = clips[:, :, step]
        pose = ops.where(valid[:, step].reshape(batch, 1, 1, people), now, pose)
        held.append(pose)
    return ops.stack(held, axis=2)


def average(x, weight, axis):
    """Mean along an axis over what has weight one."""
    return (x * weight).sum(axis=axis) / ops.clamp(weight.sum(axis=axis), min=1)


def joint_features(clips, root):
    """Places, and places seen from the root joint."""
    return ops.cat((clips, clips - clips[:, :, :, root:root + 1]), axis=1)


def step_features(clips):
    """Differences to the next frame and to the one after, zero at the end of the clip."""
    parts = []
    for gap in (1, 2):
        step = clips[:, :, gap:] - clips[:, :, :-gap]
        rest = ops.zeros_like(clips[:, :, :gap])
        parts.append(ops.cat((step, rest), axis=2))
    return ops.cat(parts, axis=1)


def bone_features(clips, parents):
    """Vectors along the bones, and their angles with the three axes."""
    bones = clips - ops.gather(clips, parents, 3)
    norm = ops.sqrt(ops.square(bones).sum(axis=1, keepdims=True)) + 1e-3
    return ops.cat((bones, ops.acos(bones / norm)), axis=1)


# ---------------------------------------------------------------------------------------------------------------------
# layers


def pointwise(inputs, outputs, stride=1):
    """1x1 convolution with bias; the stride is along the frames."""
    return nn.Conv2d(inputs, outputs, 1, stride=(stride, 1), pad_mode="valid", has_bias=True)


class RefinedGraphConv(nn.Cell):
    """Graph convolution of one partition whose matrix is refined channel by channel."""

    def __init__(self, inputs, outputs):
        super().__init__()
        relation = 4 if inputs <= 9 else inputs // 4
        self.to_target = pointwise(inputs, relation)
        self.to_source = pointwise(inputs, relation)
        self.to_value = pointwise(inputs, outputs)
        self.to_matrix = pointwise(relation, outputs)

    def construct(self, x, matrix, weight, strength):
        target = average(self.to_target(x), weight, 2)
        source = average(self.to_source(x), weight, 2)
        value = self.to_value(x)
        relation = ops.tanh(target.expand_dims(3) - source.expand_dims(2))
        refined = self.to_matrix(relation) * strength + matrix
        return ops.matmul(value, refined.swapaxes(2, 3))


class FrameConv(nn.Cell):
    """Convolution along the frames and its norm."""

    def __init__(self, inputs, outputs, kernel, stride=1, dilation=1):
        super().__init__()
        side = (kernel - 1) * dilation // 2
        self.conv = nn.Conv2d(inputs, outputs, (kernel, 1), stride=(stride, 1), pad_mode="pad",
                              padding=(side, side, 0, 0), dilation=(dilation, 1), has_bias=True)
        self.norm = nn.BatchNorm2d(outputs)

    def construct(self, x):
        return self.norm(self.conv(x))


class FrameBranches(nn.Cell):
    """Four ways to look along the frames, side by side."""

    def __init__(self, width, stride=1, kernel=5, dilations=(1, 2)):
        super().__init__()
        part = width // (len(dilations) + 2)
        branches = []
        for dilation in dilations:
            branches.append(nn.SequentialCell(
                pointwise(width, part), nn.BatchNorm2d(part), nn.LeakyReLU(alpha=0.01),
                FrameConv(part, part, kernel, stride, dilation)))
        branches.append(nn.SequentialCell(
            pointwise(width, part), nn.BatchNorm2d(part), nn.LeakyReLU(alpha=0.01),
            nn.MaxPool2d(kernel_size=(3, 1), stride=(stride, 1), pad_mode="pad", padding=(1, 0)),
            nn.BatchNorm2d(part)))
        branches.append(nn.SequentialCell(pointwise(width, part, stride), nn.BatchNorm2d(part)))
        self.branches = nn.CellList(branches)

    def construct(self, x):
        return ops.cat([branch(x) for branch in self.branches], axis=1)


class FrameJointGate(nn.Cell):
    """A gate for each frame times a gate for each joint."""

    def __init__(self, width, reduction=4):
        super().__init__()
        inner = width // reduction
        self.squeeze = pointwise(width, inner)
        self.norm = nn.BatchNorm2d(inner)
        self.act = nn.HSwish()
        self.frame_gate = pointwise(inner, width)
        self.joint_gate = pointwise(inner, width)

    def construct(self, x, weight):
        frames = x.shape[2]
        by_frame = x.mean(axis=3, keep_dims=True)
        by_joint = average(x, weight, 2).expand_dims(3)
        both = self.act(self.norm(self.squeeze(ops.cat((by_frame, by_joint), axis=2))))
        by_frame, by_joint = both[:, :, :frames], both[:, :, frames:]
        frame_gate = ops.sigmoid(self.frame_gate(by_frame))
        joint_gate = ops.sigmoid(self.joint_gate(by_joint.swapaxes(2, 3)))
        return frame_gate * joint_gate


class GraphBlock(nn.Cell):
    """Joints, then frames, then gates, with a shortcut. The graph part has no cell of its own here."""

    def __init__(self, inputs, outputs, stride=1, shortcut=True, gated=True):
        super().__init__()
        self.stride = stride
        self.shortcut = shortcut
        self.strength = Parameter(Tensor(np.zeros(1), ms.float32), name="strength")
        self.graphs = nn.CellList([RefinedGraphConv(inputs, outputs) for _ in range(NUM_PARTITIONS)])
        self.match = None
        if inputs != outputs:
            self.match = nn.SequentialCell(pointwise(inputs, outputs), nn.BatchNorm2d(outputs))
        self.graph_norm = nn.BatchNorm2d(outputs)
        self.branches = FrameBranches(outputs, stride)
        self.gate = FrameJointGate(outputs) if gated else None
        self.project = None
        if shortcut and (inputs != outputs or stride != 1):
            self.project = FrameConv(inputs, outputs, 1, stride)

    def over_joints(self, x, matrices, weight):
        total = 0
        for part, graph in enumerate(self.graphs):
            total = total + graph(x, matrices[part], weight, self.strength)
        same = x if self.match is None else self.match(x)
        return ops.relu(self.graph_norm(total) + same)

    def construct(self, x, matrices, mask):
        weight = mask.reshape(mask.shape[0], 1, -1, 1)
        y = self.over_joints(x, matrices, weight) * weight
        y = self.branches(y)
        if self.stride > 1:
            mask = mask[:, ::self.stride]
            weight = weight[:, :, ::self.stride]
        if self.gate is not None:
            y = y * self.gate(y, weight)
        if self.shortcut:
            y = y + (x if self.project is None else self.project(x))
        return ops.relu(y) * weight, mask


# ---------------------------------------------------------------------------------------------------------------------
# the net


class SkeletonNet(nn.Cell):
    """Scores of the actions (N, classes), and the features of each frame, joint and person (N, C, T, V, M)."""

    def __init__(self, classes=9, people=2, coordinates=3, stem=12, max_frames=32, dropout=0.0):
        super().__init__()
        joints = len(SKELETON)
        self.root = ROOT_JOINT
        self.adjacency = Tensor(spatial_adjacency(SKELETON, ROOT_JOINT))
        self.parents = Tensor(np.array(SKELETON), ms.int32)
        self.times = Tensor(time_encoding(3 * stem, max_frames))

        self.input_norms = nn.CellList([nn.BatchNorm1d(people * joints * 2 * coordinates) for _ in range(3)])
        self.stems = nn.CellList([
            GraphBlock(2 * coordinates, stem, shortcut=False, gated=False) for _ in range(3)
        ])
        plan = ((3 * stem, 32, 1), (32, 48, 2), (48, 48, 1))
        self.trunk = nn.CellList([GraphBlock(inputs, outputs, stride) for inputs, outputs, stride in plan])
        self.importance = ms.ParameterTuple([
            Parameter(Tensor(np.ones((NUM_PARTITIONS, joints, joints)), ms.float32), name=f"importance.{index}")
            for index in range(3 + len(plan))
        ])
        self.dropout = nn.Dropout(p=dropout)
        self.classifier = nn.Dense(2 * plan[-1][1], classes)

    def to_batch(self, stream, norm):
        """Norm of every coordinate of every joint of every person, then people as clips of their own."""
        batch, channels, frames, joints, people = stream.shape
        x = stream.transpose(0, 4, 3, 1, 2).reshape(batch, people * joints * channels, frames)
        x = norm(x).reshape(batch * people, joints, channels, frames)
        return x.transpose(0, 2, 3, 1)

    def summarise(self, x, mask):
        """Mean and maximum over a person's frames, mean over the people who are there."""
        x = x.mean(axis=4)
        weight = mask.expand_dims(2)
        mean = average(x, weight, 3)
        peak = mint.amax(ops.masked_fill(x, weight == 0, -1e4), dim=3)
        summary = ops.cat((mean, peak), axis=2)
        there = (mask.sum(axis=2) > 0).astype(x.dtype)
        return average(summary, there.expand_dims(2), 1)

    def construct(self, clips, lengths):
        batch, _, frames, joints, people = clips.shape
        valid = find_people(clips, lengths)
        clips = hold_last_pose(clips, valid)
        mask = valid.swapaxes(1, 2).reshape(batch * people, frames).astype(clips.dtype)
        weight = mask.reshape(batch * people, 1, frames, 1)

        streams = (
            joint_features(clips, self.root),
            step_features(clips),
            bone_features(clips, self.parents),
        )
        hidden = []
        for stream, norm, block, importance in zip(streams, self.input_norms, self.stems, self.importance[:3]):
            h, _ = block(self.to_batch(stream, norm) * weight, self.adjacency * importance, mask)
            hidden.append(h)
        x = ops.cat(hidden, axis=1)
        x = (x + self.times[:, :frames].reshape(1, -1, frames, 1)) * weight

        for block, importance in zip(self.trunk, self.importance[3:]):
            x, mask = block(x, self.adjacency * importance, mask)

        _, width, frames, _ = x.shape
        x = x.reshape(batch, people, width, frames, joints)
        summary = self.summarise(x, mask.reshape(batch, people, frames))
        return self.classifier(self.dropout(summary)), x.transpose(0, 2, 3, 4, 1)


def build():
    """The net alone: its weights come from the reference."""
    return SkeletonNet()
