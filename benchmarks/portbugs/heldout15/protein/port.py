"""A protein structure net (Evoformer and structure module with recycling) in MindSpore. Weights come from the PyTorch net."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

LARGE = 1e9
NUM_TYPES = 4
GLYCINE = 3
# one row for each residue type (ALA, SER, GLN, GLY); N, CA, C, O, CB, XG, XD; NaN where there is no such atom
_NO = (np.nan, np.nan, np.nan)
_CA = (0.0, 0.0, 0.0)
LITERATURE = np.array([
    [(-0.525, 1.363, 0.0), _CA, (1.526, 0.0, 0.0), (0.627, 1.062, 0.0), (-0.529, -0.774, -1.205), _NO, _NO],
    [(-0.529, 1.360, 0.0), _CA, (1.525, 0.0, 0.0), (0.626, 1.062, 0.0), (-0.518, -0.777, -1.211), (0.503, 1.325, 0.0), _NO],
    [(-0.526, 1.361, 0.0), _CA, (1.526, 0.0, 0.0), (0.626, 1.062, 0.0), (-0.525, -0.779, -1.207), (0.615, 1.393, 0.0),
     (0.587, 1.399, 0.0)],
    [(-0.572, 1.337, 0.0), _CA, (1.517, 0.0, 0.0), (0.626, 1.062, 0.0), _NO, _NO, _NO],
])
N, CA, C, O, CB, XG, XD = range(7)
ATOM_TO_GROUP = np.array([0, 0, 0, 1, 0, 2, 3])


def gram_schmidt(x_axis, xy_plane):
    """Rotation matrix with the axes as its columns."""
    e0 = x_axis / np.sqrt((x_axis ** 2).sum())
    e1 = xy_plane - e0 * (e0 * xy_plane).sum()
    e1 = e1 / np.sqrt((e1 ** 2).sum())
    e2 = np.cross(e0, e1)
    return np.stack((e0, e1, e2), axis=-1)


def residue_tables():
    rot = np.tile(np.eye(3), (NUM_TYPES, 4, 1, 1))
    shift = np.zeros((NUM_TYPES, 4, 3))
    for t in range(NUM_TYPES):
        atom = LITERATURE[t]
        rot[t, 1] = gram_schmidt(atom[C] - atom[CA], atom[CA] - atom[N])
        shift[t, 1] = atom[C]
        if not np.isnan(atom[CB, 0]):
            rot[t, 2] = gram_schmidt(atom[CB] - atom[CA], atom[N] - atom[CA])
            shift[t, 2] = atom[CB]
        if not np.isnan(atom[XG, 0]):
            rot[t, 3] = gram_schmidt(atom[XG], np.array([-1.0, 0.0, 0.0]))
            shift[t, 3] = atom[XG]
    exists = 1.0 - np.isnan(LITERATURE[..., 0])
    return [x.astype(np.float32) for x in (rot, shift, exists, np.nan_to_num(LITERATURE))]


def layer_norm(dim, epsilon=1e-5):
    return nn.LayerNorm((dim,), epsilon=epsilon)


def rotate(rot, vec):
    """(..., 3, 3) and (..., 3)"""
    return (rot * ops.expand_dims(vec, -2)).sum(-1)


def rotation_of_update(vec):
    """The rotation of the quaternion (1, b, c, d)."""
    b, c, d = vec[..., 0], vec[..., 1], vec[..., 2]
    inv = 1.0 / ops.sqrt(1.0 + b * b + c * c + d * d)
    a, b, c, d = inv, b * inv, c * inv, d * inv
    row0 = ops.stack((1 - 2 * (c * c + d * d), 2 * (b * c - a * d), 2 * (b * d + a * c)), axis=-1)
    row1 = ops.stack((2 * (b * c + a * d), 1 - 2 * (b * b + d * d), 2 * (c * d - a * b)), axis=-1)
    row2 = ops.stack((2 * (b * d - a * c), 2 * (c * d + a * b), 1 - 2 * (b * b + c * c)), axis=-1)
    return ops.stack((row0, row1, row2), axis=-2)


class Embedder(nn.Cell):
    """Sequence, alignment and relative positions to the first m and z."""

    def __init__(self, c_msa, c_m, c_z, relpos_k=5):
        super().__init__()
        self.relpos_k = relpos_k
        self.pair_i = nn.Dense(NUM_TYPES, c_z)
        self.pair_j = nn.Dense(NUM_TYPES, c_z)
        self.target = nn.Dense(NUM_TYPES, c_m)
        self.msa = nn.Dense(c_msa, c_m)
        self.relpos = nn.Dense(2 * relpos_k + 1, c_z)

    def construct(self, target, index, msa):
        offset = ops.expand_dims(index, 2) - ops.expand_dims(index, 1)
        offset = ops.clamp(offset, -self.relpos_k, self.relpos_k) + self.relpos_k
        near = ops.one_hot(offset, 2 * self.relpos_k + 1).astype(ms.float32)
        z = ops.expand_dims(self.pair_i(target), 2) + ops.expand_dims(self.pair_j(target), 1)
        z = z + self.relpos(near)
        return self.msa(msa) + ops.expand_dims(self.target(target), 1), z


class Recycler(nn.Cell):
    def __init__(self, c_m, c_z, num_bins=9, first=3.25, last=19.25):
        super().__init__()
        self.distance = nn.Dense(num_bins, c_z)
        self.norm_m = layer_norm(c_m)
        self.norm_z = layer_norm(c_z)
        edges = np.linspace(first, last, num_bins)
        edges = np.append(np.square(edges), LARGE).astype(np.float32)
        self.lower = Tensor(edges[:-1])
        self.upper = Tensor(edges[1:])

    def construct(self, m, z, x):
        gap = ops.square(ops.expand_dims(x, 2) - ops.expand_dims(x, 1)).sum(-1, keepdims=True)
        hot = ops.logical_and(gap > self.lower, gap < self.upper).astype(ms.float32)
        return self.norm_m(m), self.norm_z(z) + self.distance(hot)


class GatedAttention(nn.Cell):
    def __init__(self, dim, head_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = head_dim ** -0.5
        self.qkv = nn.Dense(dim, 3 * head_dim * num_heads, has_bias=False)
        self.proj = nn.Dense(head_dim * num_heads, dim)
        self.gate = nn.Dense(dim, head_dim * num_heads)

    def construct(self, x, mask, bias):
        """x (B, R, L, C), mask (B, R, L) and bias (B, L, L, H)"""
        b, r, l, _ = x.shape
        qkv = self.qkv(x).reshape(b, r, l, 3, self.num_heads, -1).transpose(3, 0, 1, 4, 2, 5)
        q, k, v = qkv[0], qkv[1], qkv[2]
        score = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        score = score + (mask[:, :, None, None, :] - 1.0) * LARGE
        score = score + ops.expand_dims(bias.transpose(0, 3, 1, 2), 1)
        out = ops.matmul(ops.softmax(score, axis=-1), v)
        out = out.transpose(0, 1, 3, 2, 4).reshape(b, r, l, -1)
        return self.proj(out * ops.sigmoid(self.gate(x)))


class RowAttention(nn.Cell):
    def __init__(self, c_m, c_z, head_dim=5, num_heads=4):
        super().__init__()
        self.norm = layer_norm(c_m)
        self.pair_bias = nn.SequentialCell(layer_norm(c_z), nn.Dense(c_z, num_heads, has_bias=False))
        self.attn = GatedAttention(c_m, head_dim, num_heads)

    def construct(self, m, z, mask):
        bias = self.pair_bias(z)
        return self.attn(self.norm(m), mask, bias)


class Transition(nn.Cell):
    def __init__(self, dim, ratio=2):
        super().__init__()
        self.mlp = nn.SequentialCell(layer_norm(dim), nn.Dense(dim, ratio * dim), nn.ReLU(), nn.Dense(ratio * dim, dim))

    def construct(self, x, mask):
        return self.mlp(x) * ops.expand_dims(mask, -1)


class OuterProduct(nn.Cell):
    def __init__(self, c_m, c_z, hidden=6, eps=1e-3):
        super().__init__()
        self.hidden = hidden
        self.eps = eps
        self.norm = layer_norm(c_m)
        self.left_right = nn.Dense(c_m, 2 * hidden)
        self.out = nn.Dense(hidden * hidden, c_z)

    def construct(self, m, mask):
        b, s, l, _ = m.shape
        h = self.hidden
        both = self.left_right(self.norm(m)) * ops.expand_dims(mask, -1)
        left = both[..., :h].transpose(0, 2, 3, 1).reshape(b, l * h, s)
        right = both[..., h:].reshape(b, s, l * h)
        outer = ops.matmul(left, right).reshape(b, l, h, l, h).transpose(0, 1, 3, 2, 4)
        outer = self.out(outer.reshape(b, l, l, h * h))
        depth = ops.matmul(mask.swapaxes(1, 2), mask)
        return outer / (ops.expand_dims(depth, -1) + self.eps)


class TriangleUpdate(nn.Cell):
    def __init__(self, c_z, mode, hidden=10):
        super().__init__()
        self.mode = mode
        self.hidden = hidden
        self.in_proj = nn.Dense(c_z, 4 * hidden)
        self.gate = nn.Dense(c_z, c_z)
        self.out_proj = nn.Dense(hidden, c_z)
        self.norm_in = layer_norm(c_z)
        self.norm_out = layer_norm(hidden, epsilon=1e-2)

    def construct(self, z, mask):
        zn = self.norm_in(z)
        ap, ag, bp, bg = ops.split(self.in_proj(zn), self.hidden, axis=-1)
        mask = ops.expand_dims(mask, -1)
        a = (ap * ops.sigmoid(ag) * mask).transpose(0, 3, 1, 2)
        b = (bp * ops.sigmoid(bg) * mask).transpose(0, 3, 1, 2)
        if self.mode == "outgoing":
            x = ops.matmul(a, b.swapaxes(-1, -2))
        else:
            x = ops.matmul(a.swapaxes(-1, -2), b)
        x = x.transpose(0, 2, 3, 1) / z.shape[2]
        return self.out_proj(self.norm_out(x)) * ops.sigmoid(self.gate(zn))


class TriangleAttention(nn.Cell):
    def __init__(self, c_z, mode, head_dim=5, num_heads=4):
        super().__init__()
        self.mode = mode
        self.norm = layer_norm(c_z)
        self.bias = nn.Dense(c_z, num_heads, has_bias=False)
        self.attn = GatedAttention(c_z, head_dim, num_heads)

    def construct(self, z, mask):
        z = self.norm(z)
        if self.mode == "ending":
            z = z.swapaxes(1, 2)
            mask = mask.swapaxes(1, 2)
        z = self.attn(z, mask, self.bias(z))
        if self.mode == "ending":
            z = z.swapaxes(1, 2)
        return z


class PairStack(nn.Cell):
    def __init__(self, c_z):
        super().__init__()
        self.mul_out = TriangleUpdate(c_z, "outgoing")
        self.mul_in = TriangleUpdate(c_z, "incoming")
        self.att_start = TriangleAttention(c_z, "starting")
        self.att_end = TriangleAttention(c_z, "ending")
        self.transition = Transition(c_z)

    def construct(self, z, mask):
        z = z + self.mul_out(z, mask)
        z = z + self.mul_in(z, mask)
        z = z + self.att_start(z, mask)
        z = z + self.att_end(z, mask)
        return z + self.transition(z, mask)


class EvoformerLayer(nn.Cell):
    def __init__(self, c_m, c_z):
        super().__init__()
        self.row_attn = RowAttention(c_m, c_z)
        self.msa_transition = Transition(c_m)
        self.outer = OuterProduct(c_m, c_z)
        self.pair = PairStack(c_z)

    def construct(self, m, z, msa_mask, pair_mask):
        m = m + self.row_attn(m, z, msa_mask)
        m = m + self.msa_transition(m, msa_mask)
        z = z + self.outer(m, msa_mask)
        return m, self.pair(z, pair_mask)


class IPA(nn.Cell):
    """Invariant point attention."""

    def __init__(self, c_s, c_z, num_heads=3, head_dim=8, num_qk=4, num_v=5):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_qk = num_qk
        self.num_v = num_v
        self.q_kv = nn.Dense(c_s, 3 * num_heads * head_dim)
        self.q_point = nn.Dense(c_s, num_heads * num_qk * 3)
        self.kv_point = nn.Dense(c_s, num_heads * (num_qk + num_v) * 3)
        self.pair_bias = nn.Dense(c_z, num_heads)
        self.trainable_point_weights = Parameter(Tensor(np.zeros(num_heads, np.float32)))
        self.out = nn.Dense(num_heads * (c_z + head_dim + 4 * num_v), c_s)

    def to_global(self, points, rot, trans):
        """(B, L, 3 * H * P) to (B, H, L, P, 3)"""
        b, l, _ = points.shape
        points = points.reshape(b, l, 3, -1).swapaxes(2, 3)
        points = rotate(ops.expand_dims(rot, 2), points) + ops.expand_dims(trans, 2)
        return points.reshape(b, l, self.num_heads, -1, 3).transpose(0, 2, 1, 3, 4)

    def construct(self, s, z, rot, trans, mask):
        b, l, _ = s.shape
        h, d = self.num_heads, self.head_dim
        q_kv = self.q_kv(s)
        q = q_kv[..., :h * d].reshape(b, l, h, d).transpose(0, 2, 1, 3)
        kv = q_kv[..., h * d:].reshape(b, l, h, 2 * d).transpose(0, 2, 1, 3)
        k, v = kv[..., :d], kv[..., d:]
        q_pts = self.to_global(self.q_point(s), rot, trans)
        kv_pts = self.to_global(self.kv_point(s), rot, trans)
        k_pts, v_pts = kv_pts[..., :self.num_qk, :], kv_pts[..., self.num_qk:, :]

        scalar = ops.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(3.0 * d)
        pair = self.pair_bias(z).transpose(0, 3, 1, 2) / math.sqrt(3.0)
        gap = ops.square(ops.expand_dims(q_pts, 3) - ops.expand_dims(k_pts, 2)).sum((-1, -2))
        gamma = ops.log(1.0 + ops.exp(self.trainable_point_weights))
        point = -0.5 * gap * gamma.reshape(1, h, 1, 1) * math.sqrt(2.0 / (27.0 * self.num_qk))
        square = ops.expand_dims(mask, 2) * ops.expand_dims(mask, 1)
        weights = scalar + pair + point + (ops.expand_dims(square, 1) - 1.0) * LARGE
        weights = ops.softmax(weights, axis=-1)

        out = ops.matmul(weights, v).transpose(0, 2, 1, 3).reshape(b, l, -1)
        out_pts = ops.matmul(weights, v_pts.reshape(b, h, l, -1)).transpose(0, 2, 1, 3).reshape(b, l, -1, 3)
        local = rotate(ops.expand_dims(rot.swapaxes(-1, -2), 2), out_pts - ops.expand_dims(trans, 2))
        norm = ops.sqrt(ops.square(local).sum(-1) + 1e-8)
        out_pair = ops.matmul(weights.transpose(0, 2, 1, 3), z).reshape(b, l, -1)
        return self.out(ops.cat((out, local[..., 0], local[..., 1], local[..., 2], norm, out_pair), axis=-1))


class TorsionHead(nn.Cell):
    def __init__(self, c_s, hidden=14):
        super().__init__()
        self.embed = nn.Dense(c_s, hidden)
        self.embed_first = nn.Dense(c_s, hidden)
        self.resblocks = nn.CellList([
            nn.SequentialCell(nn.ReLU(), nn.Dense(hidden, hidden), nn.ReLU(), nn.Dense(hidden, hidden)) for _ in range(2)
        ])
        self.out = nn.Dense(hidden, 6)

    def construct(self, s, first):
        x = self.embed(ops.relu(s)) + self.embed_first(ops.relu(first))
        for block in self.resblocks:
            x = x + block(x)
        raw = self.out(ops.relu(x)).reshape(x.shape[:2] + (3, 2))
        length = ops.square(raw).sum(-1, keepdims=True)
        return raw, raw / ops.sqrt(ops.maximum(length, Tensor(1e-8, ms.float32)))


class AtomBuilder(nn.Cell):
    """Backbone frames and torsion angles to atoms; all of it comes from tables."""

    def __init__(self):
        super().__init__()
        rot, shift, exists, places = residue_tables()
        self.rot = Tensor(rot)
        self.shift = Tensor(shift)
        self.exists = Tensor(exists)
        self.places = Tensor(places)
        self.group = Tensor(ATOM_TO_GROUP, ms.int32)

    def construct(self, rot, trans, angles, aatype):
        group_rot = self.rot[aatype]
        group_shift = self.shift[aatype]
        sin = ops.pad(angles[..., 0], (1, 0), value=0.0)
        cos = ops.pad(angles[..., 1], (1, 0), value=1.0)
        # a turn around x mixes the second and the third column
        e0, e1, e2 = group_rot[..., 0], group_rot[..., 1], group_rot[..., 2]
        sin, cos = ops.expand_dims(sin, -1), ops.expand_dims(cos, -1)
        group_rot = ops.stack((e0, e1 * cos + e2 * sin, e2 * cos - e1 * sin), axis=-1)
        # the frame of chi2 stands in that of chi1
        chi1 = group_rot[:, :, 2]
        chi2_shift = rotate(chi1, group_shift[:, :, 3]) + group_shift[:, :, 2]
        chi2_rot = ops.matmul(chi1, group_rot[:, :, 3])
        group_rot = ops.cat((group_rot[:, :, :3], ops.expand_dims(chi2_rot, 2)), axis=2)
        group_shift = ops.cat((group_shift[:, :, :3], ops.expand_dims(chi2_shift, 2)), axis=2)
        atom_rot = ops.gather(group_rot, self.group, 2)
        atom_shift = ops.gather(group_shift, self.group, 2)
        atoms = rotate(atom_rot, self.places[aatype]) + atom_shift
        atoms = rotate(ops.expand_dims(rot, 2), atoms) + ops.expand_dims(trans, 2)
        return atoms * ops.expand_dims(self.exists[aatype], -1)


class FoldingModule(nn.Cell):
    def __init__(self, c_s, c_z, num_layers=3, position_scale=5.0):
        super().__init__()
        self.num_layers = num_layers
        self.position_scale = position_scale
        self.norm_s = layer_norm(c_s)
        self.norm_z = layer_norm(c_z)
        self.init = nn.Dense(c_s, c_s)
        self.ipa = IPA(c_s, c_z)
        self.norm_ipa = layer_norm(c_s)
        self.fc1 = nn.Dense(c_s, c_s)
        self.fc2 = nn.Dense(c_s, c_s)
        self.norm_fc = layer_norm(c_s)
        self.affine_update = nn.Dense(c_s, 6)
        self.torsion = TorsionHead(c_s)
        self.builder = AtomBuilder()

    def construct(self, s, z, aatype, mask):
        b, l = aatype.shape
        first = self.norm_s(s)
        z = self.norm_z(z)
        s = self.init(first)
        rot = ops.tile(Tensor(np.eye(3, dtype=np.float32)), (b, l, 1, 1))
        trans = ops.zeros((b, l, 3), ms.float32)
        all_rot, all_raw, all_angles, all_atoms = [], [], [], []
        for _ in range(self.num_layers):
            s = self.norm_ipa(s + self.ipa(s, z, rot, trans, mask))
            s = self.norm_fc(s + self.fc2(ops.relu(self.fc1(s))))
            update = self.affine_update(s) * ops.expand_dims(mask, -1)
            trans = trans + rotate(rot, update[..., 3:])
            rot = ops.matmul(rot, rotation_of_update(update[..., :3]))
            raw, angles = self.torsion(s, first)
            atoms = self.builder(rot, trans * self.position_scale, angles, aatype)
            all_rot.append(rot)
            all_raw.append(raw)
            all_angles.append(angles)
            all_atoms.append(atoms)
        return s, ops.stack(all_rot), ops.stack(all_raw), ops.stack(all_angles), ops.stack(all_atoms)


class FoldNet(nn.Cell):
    def __init__(self, c_msa=9, c_m=20, c_z=16, c_s=24, depth=2, num_cycles=2):
        super().__init__()
        self.c_m = c_m
        self.c_z = c_z
        self.num_cycles = num_cycles
        self.embedder = Embedder(c_msa, c_m, c_z)
        self.recycler = Recycler(c_m, c_z)
        self.evoformer = nn.CellList([EvoformerLayer(c_m, c_z) for _ in range(depth)])
        self.to_single = nn.Dense(c_m, c_s)
        self.folding = FoldingModule(c_s, c_z)
        self.distogram = nn.Dense(c_z, 10)

    def construct(self, aatype, residue_index, msa_feat, seq_mask, msa_mask):
        b, l = aatype.shape
        target = ops.one_hot(aatype, NUM_TYPES).astype(ms.float32)
        pair_mask = ops.expand_dims(seq_mask, 2) * ops.expand_dims(seq_mask, 1)
        msa_mask = msa_mask * ops.expand_dims(seq_mask, 1)
        is_gly = ops.expand_dims(aatype == GLYCINE, -1)
        first_row = ops.zeros((b, l, self.c_m), ms.float32)
        z = ops.zeros((b, l, l, self.c_z), ms.float32)
        beta = ops.zeros((b, l, 3), ms.float32)
        for _ in range(self.num_cycles):
            row_update, pair_update = self.recycler(first_row, z, beta)
            m, z = self.embedder(target, residue_index, msa_feat)
            m = ops.cat((m[:, :1] + ops.expand_dims(row_update, 1), m[:, 1:]), axis=1)
            z = z + pair_update
            for layer in self.evoformer:
                m, z = layer(m, z, msa_mask, pair_mask)
            first_row = m[:, 0]
            s, rots, raw, angles, atoms = self.folding(self.to_single(first_row), z, aatype, seq_mask)
            beta = ops.where(is_gly, atoms[-1][:, :, CA], atoms[-1][:, :, CB])
        pair = z * ops.expand_dims(pair_mask, -1)
        logits = self.distogram(pair)
        logits = logits + logits.swapaxes(1, 2)
        return m, pair, s, rots, raw, angles, atoms, logits


def sample_inputs(batch=2, seqs=5, length=14, channels=9):
    """The same numbers as the PyTorch net's."""
    rng = np.random.RandomState(11)
    aatype = rng.randint(0, NUM_TYPES, (batch, length)).astype(np.int64)
    residue_index = np.cumsum(rng.choice([1, 1, 1, 2, 4], (batch, length)), axis=1).astype(np.int64)
    msa_feat = rng.randn(batch, seqs, length, channels).astype(np.float32)
    seq_mask = np.ones((batch, length), np.float32)
    seq_mask[1, -3:] = 0
    msa_mask = (rng.rand(batch, seqs, length) > 0.25).astype(np.float32)
    msa_mask[:, 0] = 1
    return aatype, residue_index, msa_feat, seq_mask, msa_mask


def build():
    net = FoldNet()
    net.set_train(False)
    return net, tuple(Tensor(x) for x in sample_inputs())
