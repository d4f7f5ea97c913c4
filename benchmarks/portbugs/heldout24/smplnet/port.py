"""Mesh recovery with a small body model in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

PIXEL_MEAN = [0.485, 0.456, 0.406]
PIXEL_STD = [0.229, 0.224, 0.225]

# name of each joint of the skeleton, and its parent's name
SKELETON = [
    ("pelvis", None), ("l_hip", "pelvis"), ("r_hip", "pelvis"), ("spine", "pelvis"), ("l_knee", "l_hip"),
    ("r_knee", "r_hip"), ("head", "spine"), ("l_shoulder", "spine"), ("r_shoulder", "spine"),
    ("l_elbow", "l_shoulder"), ("r_elbow", "r_shoulder"),
]
LANDMARKS = ["l_wrist", "r_wrist", "l_ankle", "r_ankle", "crown"]
KEYPOINTS = [
    "r_ankle", "r_knee", "r_hip", "l_hip", "l_knee", "l_ankle", "r_wrist", "r_elbow", "r_shoulder", "l_shoulder",
    "l_elbow", "l_wrist", "crown",
]
BONE_ENDS = [
    ("r_ankle", "r_knee"), ("r_knee", "r_hip"), ("l_ankle", "l_knee"), ("l_knee", "l_hip"), ("r_wrist", "r_elbow"),
    ("r_elbow", "r_shoulder"), ("l_wrist", "l_elbow"), ("l_elbow", "l_shoulder"), ("r_hip", "r_shoulder"),
    ("l_hip", "l_shoulder"),
]

JOINTS = [name for name, _ in SKELETON]
MIRRORED = [JOINTS.index({"l": "r", "r": "l"}[name[0]] + name[1:] if name[1] == "_" else name) for name in JOINTS]
PARENT_OF = [-1 if parent is None else JOINTS.index(parent) for _, parent in SKELETON]


def buffer(shape, name, value=0.0):
    return Parameter(Tensor(np.full(shape, value, np.float32)), name=name, requires_grad=False)


def length(x, keep=False):
    return ops.sqrt((x * x).sum(axis=-1, keepdims=keep))


def unit(x):
    return x / ops.clamp(length(x, keep=True), min=1e-12)


def cross(a, b):
    ax, ay, az = a[..., 0], a[..., 1], a[..., 2]
    bx, by, bz = b[..., 0], b[..., 1], b[..., 2]
    return ops.stack((ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx), axis=-1)


def ortho6d(x, joints):
    """Gram-Schmidt on the two columns; (batch, joints * 6) -> (batch, joints, 3, 3)."""
    columns = x.reshape(-1, joints, 3, 2)
    first = unit(columns[..., 0])
    second = columns[..., 1]
    second = unit(second - (first * second).sum(axis=-1, keepdims=True) * first)
    return ops.stack((first, second, cross(first, second)), axis=-1)


def positive_real(q):
    return ops.where(q[..., :1] < 0, -q, q)


def matrix_to_quaternion(m):
    """All four candidates, of which the one with the largest pivot is taken."""
    xx, yy, zz = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
    pivots = ops.stack((1 + xx + yy + zz, 1 + xx - yy - zz, 1 - xx + yy - zz, 1 - xx - yy + zz), axis=-1)
    odd, even = m - m.swapaxes(-1, -2), m + m.swapaxes(-1, -2)
    wx, wy, wz = odd[..., 2, 1], odd[..., 0, 2], odd[..., 1, 0]
    xy, xz, yz = even[..., 0, 1], even[..., 0, 2], even[..., 1, 2]
    ww, xx, yy, zz = (pivots[..., i] for i in range(4))
    rows = ops.stack((ww, wx, wy, wz, wx, xx, xy, xz, wy, xy, yy, yz, wz, xz, yz, zz), axis=-1)
    rows = rows.reshape(pivots.shape + (4,))
    pick = ops.one_hot(pivots.argmax(axis=-1), 4, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
    return positive_real(unit((rows * pick.expand_dims(-1)).sum(axis=-2)))


def vector_to_quaternion(v):
    angle = length(v, keep=True)
    tiny = angle < 1e-3
    ratio = ops.where(tiny, 0.5 - angle**2 / 48, ops.sin(angle / 2) / ops.masked_fill(angle, tiny, 1.0))
    return ops.cat((ops.cos(angle / 2), ratio * v), axis=-1)


def hamilton(a, b):
    """Product of quaternions in scalar and vector parts."""
    a0, av, b0, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    real = a0 * b0 - (av * bv).sum(axis=-1, keepdims=True)
    return ops.cat((real, a0 * bv + b0 * av + cross(av, bv)), axis=-1)


def relative_rotation(start, end):
    """The quaternion that leads from start to end, seen in start's frame."""
    inverse = ops.cat((start[..., :1], -start[..., 1:]), axis=-1)
    return positive_real(hamilton(inverse, end))


def conv(cin, cout, kernel, stride=1, dilation=1, group=1, bias=False):
    return nn.Conv2d(cin, cout, kernel, stride=stride, pad_mode="pad", padding=(kernel // 2) * dilation,
                     dilation=dilation, group=group, has_bias=bias)


def norm2d(channels):
    return nn.BatchNorm2d(channels, eps=1e-5, momentum=0.9)


class ResidualBlock(nn.Cell):
    def __init__(self, cin, cout, stride=1, dilation=1, group=1):
        super().__init__()
        self.conv1 = conv(cin, cout, 3, stride, dilation)
        self.bn1 = norm2d(cout)
        self.conv2 = conv(cout, cout, 3, group=group)
        self.bn2 = norm2d(cout)
        self.relu = nn.ReLU()
        self.project = stride > 1 or cin != cout
        if self.project:
            self.downsample = nn.SequentialCell(conv(cin, cout, 1, stride), norm2d(cout))

    def construct(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (self.downsample(x) if self.project else x))


class Backbone(nn.Cell):
    """Images (batch, 3, height, width) to features of an eighth of the size."""

    def __init__(self, c1, c2, c3):
        super().__init__()
        self.conv1 = conv(3, c1, 7, stride=2)
        self.bn1 = norm2d(c1)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, pad_mode="pad", padding=1)
        self.layer1 = nn.SequentialCell(ResidualBlock(c1, c1), ResidualBlock(c1, c1, group=2))
        self.layer2 = nn.SequentialCell(ResidualBlock(c1, c2, stride=2), ResidualBlock(c2, c2))
        self.layer3 = nn.SequentialCell(ResidualBlock(c2, c3, dilation=2, group=4))
        self.neck = conv(c3, c3, 1, bias=True)
        self.neck_norm = nn.GroupNorm(4, c3, eps=1e-5)

    def construct(self, x):
        x = self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        x = self.neck_norm(self.neck(self.layer3(self.layer2(x))))
        return x * ops.sigmoid(x)


class PartPooling(nn.Cell):
    """Masked mean of the features, and the expected place of each part."""

    def __init__(self, channels, parts, stride=8):
        super().__init__()
        self.stride = stride
        self.logits = conv(channels, parts, 1, bias=True)
        self.log_temperature = Parameter(Tensor(np.zeros(parts, np.float32)), name="log_temperature")

    def cell_centres(self, h, w):
        ys, xs = np.meshgrid(np.linspace(-1, 1, h), np.linspace(-1, 1, w), indexing="ij")
        return Tensor(np.stack((xs, ys), axis=-1).reshape(h * w, 2).astype(np.float32))

    def construct(self, feat, mask):
        b, c, h, w = feat.shape
        seen = mask[:, :: self.stride, :: self.stride].reshape(b, 1, h * w)
        weight = seen.astype(feat.dtype)
        mean = (feat.reshape(b, c, h * w) * weight).sum(axis=-1) / ops.clamp(weight.sum(axis=-1), min=1.0)

        scores = self.logits(feat).reshape(b, -1, h * w) * ops.exp(self.log_temperature).reshape(1, -1, 1)
        heat = ops.softmax(ops.masked_fill(scores, ops.logical_not(seen), -1e9), axis=-1)
        places = ops.matmul(heat, self.cell_centres(h, w))
        return ops.cat((mean, places.reshape(b, -1)), axis=1)


class Regressor(nn.Cell):
    """Refines pose, shape and camera from the mean parameters; gives the estimates of all turns."""

    def __init__(self, channels, hidden, joints, betas, turns):
        super().__init__()
        self.joints, self.turns = joints, turns
        self.fc1 = nn.Dense(channels + joints * 6 + betas + 3, hidden)
        self.norm1 = nn.LayerNorm((hidden,), epsilon=1e-5)
        self.drop1 = nn.Dropout(p=0.5)
        self.fc2 = nn.Dense(hidden, hidden)
        self.norm2 = nn.LayerNorm((hidden,), epsilon=1e-5)
        self.drop2 = nn.Dropout(p=0.5)
        self.act = nn.GELU(approximate=False)
        self.decpose = nn.Dense(hidden, joints * 6)
        self.decshape = nn.Dense(hidden, betas)
        self.deccam = nn.Dense(hidden, 3)
        self.init_pose = buffer((1, joints * 6), "init_pose")
        self.init_shape = buffer((1, betas), "init_shape")
        self.init_cam = buffer((1, 3), "init_cam")

    def construct(self, feat):
        b = feat.shape[0]
        pose, shape, cam = (ops.tile(p, (b, 1)) for p in (self.init_pose, self.init_shape, self.init_cam))
        estimates = []
        for _ in range(self.turns):
            state = ops.cat((feat, pose, shape, cam), axis=1)
            hidden = self.drop1(self.act(self.norm1(self.fc1(state))))
            hidden = hidden + self.drop2(self.act(self.norm2(self.fc2(hidden))))
            pose = pose + self.decpose(hidden)
            shape = shape + self.decshape(hidden)
            cam = cam + self.deccam(hidden)
            estimates.append((ortho6d(pose, self.joints), shape, cam))
        return estimates


class BodyModel(nn.Cell):
    """Linear blend skinning of a small body, with landmarks on its faces."""

    def __init__(self, vertices, betas):
        super().__init__()
        joints = len(SKELETON)
        self.vertices, self.joints = vertices, joints
        self.v_template = buffer((vertices, 3), "v_template")
        self.shapedirs = buffer((vertices, 3, betas), "shapedirs")
        self.posedirs = buffer(((joints - 1) * 9, vertices * 3), "posedirs")
        self.J_regressor = buffer((joints, vertices), "J_regressor")
        self.lbs_weights = buffer((vertices, joints), "lbs_weights")
        self.lmk_bary = buffer((len(LANDMARKS), 3), "lmk_bary", 1 / 3)
        corners = [[(16 * i + k) % vertices for k in (3, 8, 12)] for i in range(len(LANDMARKS))]
        self.lmk_corners = ms.tensor(corners, ms.int32).reshape(-1)
        self.keypoint_rows = ms.tensor([(JOINTS + LANDMARKS).index(name) for name in KEYPOINTS], ms.int32)
        self.eye = Tensor(np.eye(3, dtype=np.float32))

    def rest(self, betas):
        """Vertices and joints of the shaped body before it is posed."""
        blend = ops.matmul(self.shapedirs.reshape(self.vertices * 3, -1), betas.T).T
        shaped = self.v_template + blend.reshape(-1, self.vertices, 3)
        return shaped, ops.matmul(self.J_regressor, shaped)

    def pose_chain(self, rot, joints):
        """Rotations and places of the joints in the world, by walking down the skeleton."""
        offsets = (joints[:, 1:] - joints[:, PARENT_OF[1:]]).expand_dims(-1)
        turned, placed = [rot[:, 0]], [joints[:, 0].expand_dims(-1)]
        for i in range(1, self.joints):
            parent = PARENT_OF[i]
            turned.append(ops.matmul(turned[parent], rot[:, i]))
            placed.append(ops.matmul(turned[parent], offsets[:, i - 1]) + placed[parent])
        return ops.stack(turned, axis=1), ops.stack(placed, axis=1).squeeze(-1)

    def construct(self, rot, betas):
        b = rot.shape[0]
        shaped, joints = self.rest(betas)
        feature = (rot[:, 1:] - self.eye).reshape(b, -1)
        blended = shaped + ops.matmul(feature, self.posedirs).reshape(b, self.vertices, 3)

        turned, placed = self.pose_chain(rot, joints)
        moved = placed - ops.matmul(turned, joints.expand_dims(-1)).squeeze(-1)
        skin_rot = ops.matmul(self.lbs_weights, turned.reshape(b, self.joints, 9)).reshape(b, self.vertices, 3, 3)
        skin_move = ops.matmul(self.lbs_weights, moved)
        vertices = ops.matmul(skin_rot, blended.expand_dims(-1)).squeeze(-1) + skin_move

        corners = ops.gather(vertices, self.lmk_corners, 1).reshape(b, -1, 3, 3)
        landmarks = (corners * self.lmk_bary.expand_dims(-1)).sum(axis=2)
        points = ops.gather(ops.cat((placed, landmarks), axis=1), self.keypoint_rows, 1)
        return vertices, placed, points


def weighted_mean(values, weight):
    return (values * weight).sum(axis=1) / ops.clamp(weight.sum(axis=1), min=1e-6)


def middle(points, name):
    left, right = KEYPOINTS.index("l_" + name), KEYPOINTS.index("r_" + name)
    return 0.5 * (points[:, left : left + 1] + points[:, right : right + 1])


class Criterion(nn.Cell):
    def __init__(self, sigma, gamma):
        super().__init__()
        self.sigma, self.gamma = sigma, gamma
        self.joint_weight = buffer((len(KEYPOINTS),), "joint_weight", 1.0)
        ends = [[KEYPOINTS.index(name) for name in pair] for pair in BONE_ENDS]
        self.bone_ends = ms.tensor(ends, ms.int32)

    def reprojection(self, points, target):
        square = (points - target[..., :2]) ** 2
        error = (self.sigma**2 * square / (square + self.sigma**2)).sum(axis=-1)
        return weighted_mean(error, target[..., 2] * self.joint_weight)

    def position(self, points, target):
        truth, conf = target[..., :3], target[..., 3]
        apart = (points - middle(points, "hip")) - (truth - middle(truth, "hip"))
        return weighted_mean(length(apart), conf)

    def bone_lengths(self, points):
        trunk = length(middle(points, "shoulder") - middle(points, "hip"))
        ends = ops.gather(points, self.bone_ends, 1)
        return length(ends[:, :, 1] - ends[:, :, 0]) / trunk

    def angles(self, rot, annotated, axes, known):
        rel = relative_rotation(vector_to_quaternion(annotated), matrix_to_quaternion(rot))
        full = 2 * ops.atan2(length(rel[..., 1:]), rel[..., 0])
        twist = 2 * ops.atan2((rel[..., 1:] * axes).sum(axis=-1), rel[..., 0])
        unknown = ops.logical_not(known)
        return full.masked_fill(unknown, 0.0), twist.masked_fill(unknown, 0.0)

    def construct(self, projections, points, rot, axes, target_2d, target_3d, annotated, known):
        total = self.reprojection(projections[0], target_2d)
        for projected in projections[1:]:
            total = total * self.gamma + self.reprojection(projected, target_2d)
        full, twist = self.angles(rot, annotated, axes, known)
        return total, self.position(points, target_3d), self.bone_lengths(points), full, twist


class MeshRecovery(nn.Cell):
    def __init__(self, widths=(10, 20, 28), parts=5, hidden=52, vertices=83, betas=6, turns=3, focal=480.0):
        super().__init__()
        self.focal = focal
        self.mean, self.std = (Tensor(np.array(v, np.float32).reshape(1, 3, 1, 1)) for v in (PIXEL_MEAN, PIXEL_STD))
        self.backbone = Backbone(*widths)
        self.pool = PartPooling(widths[2], parts)
        self.regressor = Regressor(widths[2] + 2 * parts + 3, hidden, len(SKELETON), betas, turns)
        self.body = BodyModel(vertices, betas)
        self.criterion = Criterion(sigma=0.35, gamma=0.6)
        self.partner = ms.tensor(MIRRORED, ms.int32)
        flip = np.array([-1, 1, 1], np.float32)
        self.mirror = Tensor(np.outer(flip, flip))
        self.cam_mirror = Tensor(np.array([[1, -1, 1]], np.float32))
        self.up = Tensor(np.array([[[0, 1, 0]]], np.float32))

    def box_features(self, offset, size):
        return ops.cat((offset * (2.8 / self.focal), (size / self.focal - 0.24) / 0.06), axis=1)

    def undo_mirror(self, rot, cam, flipped):
        b = flipped.shape[0]
        other = ops.gather(rot, self.partner, 1) * self.mirror
        rot = ops.where(flipped.reshape(b, 1, 1, 1), other, rot)
        return rot, ops.where(flipped.reshape(b, 1), cam * self.cam_mirror, cam)

    def project(self, points, cam):
        scale, shift = cam[:, None, :1], cam[:, None, 1:]
        return scale * (points[..., :2] + shift)

    def translation(self, cam, offset, size):
        span = size * cam[:, :1] + 1e-9
        return ops.cat((cam[:, 1:] + 2 * offset / span, 2 * self.focal / span), axis=1)

    def bone_axes(self, betas):
        _, joints = self.body.rest(betas)
        root = ops.tile(self.up, (betas.shape[0], 1, 1))
        return ops.cat((root, unit(joints[:, 1:] - joints[:, PARENT_OF[1:]])), axis=1)

    def construct(self, image, mask, bbox, img_size, flipped, target_2d, target_3d, axis_angle, has_pose):
        image = (image - self.mean) / self.std
        image = ops.masked_fill(image, ops.logical_not(mask).expand_dims(1), 0.0)
        centre, size = bbox[:, :2], bbox[:, 2:] * 200.0
        offset = centre - img_size.flip((1,)) / 2  # sizes are (height, width)

        feat = self.pool(self.backbone(image), mask)
        feat = ops.cat((feat, self.box_features(offset, size)), axis=1)
        projections = []
        for rot, betas, cam in self.regressor(feat):
            rot, cam = self.undo_mirror(rot, cam, flipped)
            vertices, joints, points = self.body(rot, betas)
            projections.append(self.project(points, cam))

        crop_points = projections[-1]
        image_points = crop_points * (size / 2).expand_dims(1) + centre.expand_dims(1)
        moved = self.translation(cam, offset, size)
        axes = self.bone_axes(betas)
        errors = self.criterion(projections, points, rot, axes, target_2d, target_3d, axis_angle, has_pose)
        return (vertices, joints, crop_points, image_points, moved, rot, betas) + errors


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = MeshRecovery()
    net.set_train(False)
    return net
