"""Human mesh recovery from one crop: backbone, iterative regressor, a small skinned body model, in PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

IMG_MEAN = (0.485, 0.456, 0.406)
IMG_STD = (0.229, 0.224, 0.225)

# pelvis, l_hip, r_hip, spine, l_knee, r_knee, head, l_shoulder, r_shoulder, l_elbow, r_elbow
PARENTS = (-1, 0, 0, 0, 1, 2, 3, 3, 3, 7, 8)
FLIP_PERM = (0, 2, 1, 3, 5, 4, 6, 8, 7, 10, 9)
# the body's joints are followed by five landmarks on the surface: l_wrist, r_wrist, l_ankle, r_ankle, crown
NUM_LANDMARKS = 5
# r_ankle, r_knee, r_hip, l_hip, l_knee, l_ankle, r_wrist, r_elbow, r_shoulder, l_shoulder, l_elbow, l_wrist, crown
JOINT_MAP = (14, 5, 2, 1, 4, 13, 12, 10, 8, 7, 9, 11, 15)
BONES = ((0, 1), (1, 2), (5, 4), (4, 3), (6, 7), (7, 8), (11, 10), (10, 9), (2, 8), (3, 9))
R_HIP, L_HIP, R_SHOULDER, L_SHOULDER = 2, 3, 8, 9
REST_JOINTS = (
    (0.00, -0.05, 0.01), (0.11, -0.13, 0.00), (-0.10, -0.14, 0.01), (0.01, 0.16, -0.02), (0.13, -0.52, 0.02),
    (-0.12, -0.53, 0.01), (0.00, 0.55, 0.03), (0.19, 0.41, -0.01), (-0.18, 0.42, -0.02), (0.46, 0.40, -0.03),
    (-0.45, 0.39, -0.02),
)


class Config:
    widths = (10, 20, 28)
    hidden = 52
    parts = 5
    num_vertices = 83
    num_betas = 6
    iterations = 3
    focal = 480.0
    bbox_unit = 200.0
    sigma_2d = 0.35
    turn_gamma = 0.6


def rot6d_to_rotmat(x):
    """The continuous representation of Zhou et al., two columns of the matrix: (batch, 6 J) -> (batch, J, 3, 3)."""
    batch = x.shape[0]
    a1, a2 = x.reshape(-1, 3, 2).unbind(dim=-1)
    b1 = F.normalize(a1, dim=1)
    b2 = F.normalize(a2 - torch.einsum("bi,bi->b", b1, a2).unsqueeze(-1) * b1, dim=1)
    b3 = torch.cross(b1, b2, dim=1)
    return torch.stack((b1, b2, b3), dim=-1).reshape(batch, -1, 3, 3)


def rotmat_to_quat(rot):
    """Unit quaternions (w, x, y, z) with w >= 0; four cases, each divides by what is large there."""
    m00, m01, m02, m10, m11, m12, m20, m21, m22 = rot.flatten(-2).unbind(dim=-1)
    t0 = 1 + m00 + m11 + m22
    t1 = 1 + m00 - m11 - m22
    t2 = 1 - m00 + m11 - m22
    t3 = 1 - m00 - m11 + m22
    q0 = torch.stack((t0, m21 - m12, m02 - m20, m10 - m01), dim=-1)
    q1 = torch.stack((m21 - m12, t1, m10 + m01, m02 + m20), dim=-1)
    q2 = torch.stack((m02 - m20, m10 + m01, t2, m21 + m12), dim=-1)
    q3 = torch.stack((m10 - m01, m20 + m02, m21 + m12, t3), dim=-1)
    upper = (m22 < 0).unsqueeze(-1)
    left = (m00 > m11).unsqueeze(-1)
    right = (m00 < -m11).unsqueeze(-1)
    q = torch.where(upper, torch.where(left, q1, q2), torch.where(right, q3, q0))
    q = F.normalize(q, dim=-1)
    return torch.where(q[..., :1] < 0, -q, q)


def aa_to_quat(axis_angle):
    """Rotation vectors to quaternions; near zero the sine's quotient is replaced by its series."""
    angle = axis_angle.norm(dim=-1, keepdim=True)
    half = angle / 2
    small = angle < 1e-3
    safe = torch.where(small, torch.ones_like(angle), angle)
    factor = torch.where(small, 0.5 - angle * angle / 48, torch.sin(half) / safe)
    return torch.cat((torch.cos(half), axis_angle * factor), dim=-1)


def quat_mul(a, b):
    aw, ax, ay, az = a.unbind(dim=-1)
    bw, bx, by, bz = b.unbind(dim=-1)
    return torch.stack(
        (
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ),
        dim=-1,
    )


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1, dilation=1, groups=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, padding=dilation, dilation=dilation, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + identity)


class Backbone(nn.Module):
    """A short residual network of stride eight; its last stage is dilated instead of strided."""

    def __init__(self, widths):
        super().__init__()
        c1, c2, c3 = widths
        self.conv1 = nn.Conv2d(3, c1, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(c1)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(c1, c1), BasicBlock(c1, c1, groups=2))
        self.layer2 = nn.Sequential(BasicBlock(c1, c2, stride=2), BasicBlock(c2, c2))
        self.layer3 = nn.Sequential(BasicBlock(c2, c3, dilation=2, groups=4))
        self.neck = nn.Conv2d(c3, c3, 1)
        self.neck_norm = nn.GroupNorm(4, c3, eps=1e-5)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer3(self.layer2(self.layer1(x)))
        return F.silu(self.neck_norm(self.neck(x)))


class PartPooling(nn.Module):
    """The mean over the valid cells and, for a few parts, where they are (soft-argmax in [-1, 1], x then y)."""

    def __init__(self, channels, parts):
        super().__init__()
        self.logits = nn.Conv2d(channels, parts, 1)
        self.log_temperature = nn.Parameter(torch.zeros(parts))

    def forward(self, feat, mask):
        b, c, h, w = feat.shape
        small = F.interpolate(mask.float().unsqueeze(1), size=(h, w), mode="nearest")
        mean = (feat * small).sum(dim=(2, 3)) / small.sum(dim=(2, 3)).clamp(min=1.0)

        logits = self.logits(feat).flatten(2) * self.log_temperature.exp()[None, :, None]
        logits = torch.where(small.flatten(2) > 0.5, logits, torch.full_like(logits, float("-inf")))
        heat = logits.softmax(dim=-1).reshape(b, -1, h, w)
        xs = torch.linspace(-1, 1, w, device=feat.device)
        ys = torch.linspace(-1, 1, h, device=feat.device)
        x = (heat.sum(dim=2) * xs).sum(dim=-1)
        y = (heat.sum(dim=3) * ys).sum(dim=-1)
        return torch.cat((mean, torch.stack((x, y), dim=-1).flatten(1)), dim=1)


class Regressor(nn.Module):
    """Iterative error feedback: features and the current estimate give the next correction."""

    def __init__(self, feat_dim, hidden, num_joints, num_betas, iterations):
        super().__init__()
        self.iterations = iterations
        npose = num_joints * 6
        self.fc1 = nn.Linear(feat_dim + npose + num_betas + 3, hidden)
        self.norm1 = nn.LayerNorm(hidden)
        self.drop1 = nn.Dropout()
        self.fc2 = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.drop2 = nn.Dropout()
        self.act = nn.GELU()
        self.decpose = nn.Linear(hidden, npose)
        self.decshape = nn.Linear(hidden, num_betas)
        self.deccam = nn.Linear(hidden, 3)
        self.register_buffer("init_pose", torch.zeros(1, npose))
        self.register_buffer("init_shape", torch.zeros(1, num_betas))
        self.register_buffer("init_cam", torch.tensor([[0.9, 0.0, 0.0]]))

    def forward(self, feat):
        batch = feat.shape[0]
        pose = self.init_pose.expand(batch, -1)
        shape = self.init_shape.expand(batch, -1)
        cam = self.init_cam.expand(batch, -1)
        turns = []
        for _ in range(self.iterations):
            xc = torch.cat([feat, pose, shape, cam], dim=1)
            xc = self.drop1(self.act(self.norm1(self.fc1(xc))))
            xc = xc + self.drop2(self.act(self.norm2(self.fc2(xc))))
            pose = self.decpose(xc) + pose
            shape = self.decshape(xc) + shape
            cam = self.deccam(xc) + cam
            turns.append((rot6d_to_rotmat(pose), shape, cam))
        return turns


def transform_mat(rot, trans):
    """(N, 3, 3) and (N, 3, 1) -> (N, 4, 4)."""
    return torch.cat([F.pad(rot, [0, 0, 0, 1]), F.pad(trans, [0, 0, 0, 1], value=1)], dim=2)


def batch_rigid_transform(rotmats, joints, parents):
    """World joints of the posed skeleton, and each joint's transform relative to the rest pose."""
    joints = joints.unsqueeze(-1)
    rel_joints = joints.clone()
    rel_joints[:, 1:] = rel_joints[:, 1:] - joints[:, parents[1:]]
    mats = transform_mat(rotmats.flatten(0, 1), rel_joints.flatten(0, 1)).reshape(-1, joints.shape[1], 4, 4)
    chain = [mats[:, 0]]
    for i in range(1, len(parents)):
        chain.append(torch.matmul(chain[parents[i]], mats[:, i]))
    transforms = torch.stack(chain, dim=1)
    posed_joints = transforms[:, :, :3, 3]
    joints_homogen = F.pad(joints, [0, 0, 0, 1])
    rel_transforms = transforms - F.pad(torch.matmul(transforms, joints_homogen), [3, 0])
    return posed_joints, rel_transforms


class BodyModel(nn.Module):
    """Shape blend, joints, pose blend, chain and skinning; landmarks are points on faces."""

    def __init__(self, num_vertices, num_betas):
        super().__init__()
        nj = len(PARENTS)
        self.parents = list(PARENTS)
        self.register_buffer("v_template", torch.zeros(num_vertices, 3))
        self.register_buffer("shapedirs", torch.zeros(num_vertices, 3, num_betas))
        self.register_buffer("posedirs", torch.zeros((nj - 1) * 9, num_vertices * 3))
        self.register_buffer("J_regressor", torch.zeros(nj, num_vertices))
        self.register_buffer("lbs_weights", torch.zeros(num_vertices, nj))
        # the vertices at the corners of each landmark's face, and the place in it
        faces = (torch.arange(NUM_LANDMARKS)[:, None] * 16 + torch.tensor([[3, 8, 12]])) % num_vertices
        self.register_buffer("lmk_faces", faces, persistent=False)
        self.register_buffer("lmk_bary", torch.full((NUM_LANDMARKS, 3), 1 / 3))
        self.register_buffer("joint_map", torch.tensor(JOINT_MAP), persistent=False)

    def forward(self, rotmats, betas):
        batch = rotmats.shape[0]
        v_shaped = self.v_template + torch.einsum("bl,mkl->bmk", betas, self.shapedirs)
        joints = torch.einsum("bik,ji->bjk", v_shaped, self.J_regressor)

        ident = torch.eye(3, dtype=rotmats.dtype, device=rotmats.device)
        pose_feature = (rotmats[:, 1:] - ident).reshape(batch, -1)
        v_posed = v_shaped + torch.matmul(pose_feature, self.posedirs).reshape(batch, -1, 3)

        posed_joints, rel = batch_rigid_transform(rotmats, joints, self.parents)
        weights = self.lbs_weights.expand(batch, -1, -1)
        t = torch.matmul(weights, rel.reshape(batch, -1, 16)).reshape(batch, -1, 4, 4)
        homo = torch.cat([v_posed, torch.ones_like(v_posed[..., :1])], dim=2)
        vertices = torch.matmul(t, homo.unsqueeze(-1))[:, :, :3, 0]

        corners = vertices[:, self.lmk_faces.flatten()].reshape(batch, -1, 3, 3)
        landmarks = torch.einsum("blfi,lf->bli", corners, self.lmk_bary)
        keypoints = torch.cat([posed_joints, landmarks], dim=1)[:, self.joint_map]
        return vertices, posed_joints, keypoints


def gmof(x, sigma):
    """Geman-McClure."""
    sq = x * x
    return sigma**2 * sq / (sigma**2 + sq)


class Criterion(nn.Module):
    """What the trainer and the evaluation look at; one value for each sample or joint."""

    def __init__(self, sigma):
        super().__init__()
        self.sigma = sigma
        self.register_buffer("bones", torch.tensor(BONES), persistent=False)
        self.register_buffer("joint_weight", torch.ones(len(JOINT_MAP)))

    def keypoints_2d(self, pred, target):
        conf = target[..., 2] * self.joint_weight
        err = gmof(pred - target[..., :2], self.sigma).sum(dim=-1)
        return (conf * err).sum(dim=1) / conf.sum(dim=1).clamp(min=1e-6)

    def keypoints_3d(self, pred, target):
        conf, target = target[..., 3], target[..., :3]
        pred = pred - (pred[:, R_HIP] + pred[:, L_HIP]).unsqueeze(1) / 2
        target = target - (target[:, R_HIP] + target[:, L_HIP]).unsqueeze(1) / 2
        err = (pred - target).norm(dim=-1)
        return (conf * err).sum(dim=1) / conf.sum(dim=1).clamp(min=1e-6)

    def bone_lengths(self, points):
        """Lengths in units of the trunk, from between the hips to between the shoulders."""
        hips = (points[:, R_HIP] + points[:, L_HIP]) / 2
        shoulders = (points[:, R_SHOULDER] + points[:, L_SHOULDER]) / 2
        trunk = (shoulders - hips).norm(dim=-1, keepdim=True)
        vec = points[:, self.bones[:, 0]] - points[:, self.bones[:, 1]]
        return vec.norm(dim=-1) / trunk

    def angles(self, rotmats, axis_angle, rest_axes, has_pose):
        """The geodesic angle to the annotation, and the twist about the bone in the annotated joint's frame."""
        inverse = aa_to_quat(axis_angle) * torch.tensor([1.0, -1.0, -1.0, -1.0], device=rotmats.device)
        rel = quat_mul(inverse, rotmat_to_quat(rotmats))
        rel = torch.where(rel[..., :1] < 0, -rel, rel)
        w, xyz = rel[..., 0], rel[..., 1:]
        geodesic = 2 * torch.atan2(xyz.norm(dim=-1), w)
        twist = 2 * torch.atan2((xyz * rest_axes).sum(dim=-1), w)
        mask = has_pose.to(geodesic.dtype)
        return geodesic * mask, twist * mask

    def forward(self, turn_points, keypoints, rotmats, target_2d, target_3d, axis_angle, rest_axes, has_pose, gamma):
        n = len(turn_points)
        loss_2d = 0
        for i, points in enumerate(turn_points):
            loss_2d = loss_2d + gamma ** (n - 1 - i) * self.keypoints_2d(points, target_2d)
        geodesic, twist = self.angles(rotmats, axis_angle, rest_axes, has_pose)
        return loss_2d, self.keypoints_3d(keypoints, target_3d), self.bone_lengths(keypoints), geodesic, twist


def weak_perspective(points, cam):
    """Camera (s, tx, ty): the translation is in the body's units, so it is scaled as well."""
    return cam[:, None, :1] * (points[..., :2] + cam[:, None, 1:])


class MeshRecovery(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        nj = len(PARENTS)
        self.register_buffer("img_mean", torch.tensor(IMG_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("img_std", torch.tensor(IMG_STD).view(1, 3, 1, 1), persistent=False)
        self.backbone = Backbone(cfg.widths)
        self.pool = PartPooling(cfg.widths[-1], cfg.parts)
        feat_dim = cfg.widths[-1] + 2 * cfg.parts + 3
        self.regressor = Regressor(feat_dim, cfg.hidden, nj, cfg.num_betas, cfg.iterations)
        self.body = BodyModel(cfg.num_vertices, cfg.num_betas)
        self.criterion = Criterion(cfg.sigma_2d)

    def bbox_info(self, bbox, img_size):
        """Where the crop is in the whole image, scaled to about one."""
        focal = self.cfg.focal
        height, width = img_size[:, 0], img_size[:, 1]
        cx, cy, size = bbox[:, 0], bbox[:, 1], bbox[:, 2] * self.cfg.bbox_unit
        info = torch.stack([cx - width / 2, cy - height / 2, size], dim=-1)
        info[:, :2] = info[:, :2] / focal * 2.8
        info[:, 2] = (info[:, 2] - 0.24 * focal) / (0.06 * focal)
        return info

    def unflip(self, rotmats, cam, flipped):
        """Crops that were mirrored: mirror the body back, left for right."""
        sign = torch.tensor([-1.0, 1.0, 1.0], device=rotmats.device)
        mirrored = rotmats[:, list(FLIP_PERM)] * sign[:, None] * sign[None, :]
        rotmats = torch.where(flipped[:, None, None, None], mirrored, rotmats)
        cam_mirrored = torch.stack([cam[:, 0], -cam[:, 1], cam[:, 2]], dim=-1)
        return rotmats, torch.where(flipped[:, None], cam_mirrored, cam)

    def full_translation(self, cam, bbox, img_size):
        s, tx, ty = cam.unbind(dim=-1)
        bs = bbox[:, 2] * self.cfg.bbox_unit * s + 1e-9
        x = tx + 2 * (bbox[:, 0] - img_size[:, 1] / 2) / bs
        y = ty + 2 * (bbox[:, 1] - img_size[:, 0] / 2) / bs
        return torch.stack([x, y, 2 * self.cfg.focal / bs], dim=-1)

    def rest_axes(self, betas):
        """The directions of the bones in the rest pose, from the parent to the joint; the root looks up."""
        v_shaped = self.body.v_template + torch.einsum("bl,mkl->bmk", betas, self.body.shapedirs)
        joints = torch.matmul(self.body.J_regressor, v_shaped)
        vec = joints[:, 1:] - joints[:, list(PARENTS[1:])]
        up = torch.tensor([0.0, 1.0, 0.0], device=vec.device).expand(vec.shape[0], 1, 3)
        return torch.cat([up, F.normalize(vec, dim=-1)], dim=1)

    def forward(self, image, mask, bbox, img_size, flipped, target_2d, target_3d, axis_angle, has_pose):
        """Crops (batch, 3, height, width) in [0, 1] with a mask of what lies within the image, boxes as (cx, cy, scale)."""
        x = (image - self.img_mean) / self.img_std * mask.unsqueeze(1).to(image.dtype)
        feat = self.pool(self.backbone(x), mask)
        feat = torch.cat([feat, self.bbox_info(bbox, img_size)], dim=1)

        turn_points = []
        for rotmats, betas, cam in self.regressor(feat):
            rotmats, cam = self.unflip(rotmats, cam, flipped)
            vertices, joints, keypoints = self.body(rotmats, betas)
            points = weak_perspective(keypoints, cam)
            turn_points.append(points)

        half = bbox[:, 2] * self.cfg.bbox_unit / 2
        full_points = points * half[:, None, None] + bbox[:, None, :2]
        trans = self.full_translation(cam, bbox, img_size)
        errors = self.criterion(turn_points, keypoints, rotmats, target_2d, target_3d, axis_angle,
                                self.rest_axes(betas), has_pose, self.cfg.turn_gamma)
        return (vertices, joints, points, full_points, trans, rotmats, betas) + errors


def fill_body(body):
    """A body of blobs around the rest joints."""
    rest = torch.tensor(REST_JOINTS)
    nv = body.v_template.shape[0]
    owner = torch.arange(nv) % len(PARENTS)
    body.v_template.copy_(rest[owner] + 0.08 * torch.randn(nv, 3))
    body.shapedirs.normal_(std=0.03)
    body.posedirs.normal_(std=0.02)
    dist = torch.cdist(rest, body.v_template)
    body.J_regressor.copy_((-40 * dist).softmax(dim=-1))
    body.lbs_weights.copy_((-16 * dist).softmax(dim=0).T)
    body.lmk_bary.copy_(torch.rand(NUM_LANDMARKS, 3).add(0.1))
    body.lmk_bary.div_(body.lmk_bary.sum(dim=1, keepdim=True))


@torch.no_grad()
def trained_like(net):
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.2)
                nn.init.uniform_(module.running_var, 0.4, 1.8)
        elif isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(module.weight, std=(1.4 / module.weight[0].numel()) ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
    net.pool.logits.weight.mul_(2.0)
    net.pool.log_temperature.normal_(std=0.4)
    reg = net.regressor
    reg.decpose.weight.mul_(0.15)
    reg.decshape.weight.mul_(0.3)
    reg.deccam.weight.mul_(0.12)
    reg.deccam.bias.mul_(0.3)
    pose = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]).repeat(len(PARENTS)) + 0.15 * torch.randn(6 * len(PARENTS))
    pose[:6] = torch.tensor([1.0, 0.05, 0.0, -1.0, 0.1, 0.0])  # the camera's y points down
    reg.init_pose.copy_(pose)
    reg.init_shape.normal_(std=0.3)
    reg.init_cam.add_(torch.tensor([-0.05, 0.03, 0.12]))
    fill_body(net.body)
    net.criterion.joint_weight.copy_(0.5 + torch.rand(len(JOINT_MAP)))
    return net


def build():
    """The net with the same weights on every run; three crops, two of which reach over the image's border."""
    torch.manual_seed(1907)
    net = trained_like(MeshRecovery(Config()))
    image = 0.5 * torch.rand(3, 3, 56, 40)
    image = image + 0.5 * F.interpolate(torch.rand(3, 3, 7, 5), size=(56, 40), mode="bilinear")
    rows, cols = torch.tensor([56, 42, 52]), torch.tensor([40, 26, 34])
    mask = (torch.arange(56)[None, :, None] < rows[:, None, None]) & (torch.arange(40)[None, None] < cols[:, None, None])
    bbox = torch.tensor([[310.0, 205.0, 0.71], [150.0, 260.0, 0.48], [402.0, 118.0, 0.93]])
    img_size = torch.tensor([[480.0, 640.0], [512.0, 384.0], [360.0, 540.0]])
    flipped = torch.tensor([False, True, False])
    target_2d = torch.cat([0.6 * torch.randn(3, 13, 2), torch.rand(3, 13, 1)], dim=-1)
    target_2d[1, 9:, 2] = 0.0
    target_3d = torch.cat([0.4 * torch.randn(3, 13, 3), (torch.rand(3, 13, 1) > 0.3).float()], dim=-1)
    axis_angle = 0.5 * torch.randn(3, 11, 3)
    axis_angle[:, 0, 0] += math.pi - 0.6
    axis_angle[0, 4] = 0.0
    has_pose = torch.ones(3, 11, dtype=torch.bool)
    has_pose[2, 6:] = False
    return net.eval(), (image, mask, bbox, img_size, flipped, target_2d, target_3d, axis_angle, has_pose)
