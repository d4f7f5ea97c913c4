"""A small protein structure net in the manner of AlphaFold2 / OpenFold. In PyTorch: the reference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

INF = 1e9
RESTYPES = ("ALA", "SER", "GLN", "GLY")
ATOMS = ("N", "CA", "C", "O", "CB", "XG", "XD")
ATOM_GROUPS = (0, 0, 0, 1, 0, 2, 3)  # backbone, psi, chi1, chi2
# the place of each atom in the frame of its group
ATOM_POSITIONS = {
    "ALA": {"N": (-0.525, 1.363, 0.0), "C": (1.526, 0.0, 0.0), "O": (0.627, 1.062, 0.0), "CB": (-0.529, -0.774, -1.205)},
    "SER": {"N": (-0.529, 1.360, 0.0), "C": (1.525, 0.0, 0.0), "O": (0.626, 1.062, 0.0), "CB": (-0.518, -0.777, -1.211),
            "XG": (0.503, 1.325, 0.0)},
    "GLN": {"N": (-0.526, 1.361, 0.0), "C": (1.526, 0.0, 0.0), "O": (0.626, 1.062, 0.0), "CB": (-0.525, -0.779, -1.207),
            "XG": (0.615, 1.393, 0.0), "XD": (0.587, 1.399, 0.0)},
    "GLY": {"N": (-0.572, 1.337, 0.0), "C": (1.517, 0.0, 0.0), "O": (0.626, 1.062, 0.0)},
}


def _make_rigid_3x4(ex, ey, translation):
    """The frame of a rigid group: x axis along ex, ey in the xy plane, columns of the matrix."""
    ex = ex / np.linalg.norm(ex)
    ey = ey - np.dot(ey, ex) * ex
    ey = ey / np.linalg.norm(ey)
    return np.stack([ex, ey, np.cross(ex, ey), translation]).transpose()


def make_atom_tables():
    frames = np.tile(np.eye(3, 4, dtype=np.float32), (len(RESTYPES), 4, 1, 1))
    mask = np.zeros((len(RESTYPES), len(ATOMS)), np.float32)
    places = np.zeros((len(RESTYPES), len(ATOMS), 3), np.float32)
    for i, name in enumerate(RESTYPES):
        at = {"CA": np.zeros(3), **{atom: np.array(place) for atom, place in ATOM_POSITIONS[name].items()}}
        for atom, place in at.items():
            mask[i, ATOMS.index(atom)], places[i, ATOMS.index(atom)] = 1.0, place
        frames[i, 1] = _make_rigid_3x4(at["C"] - at["CA"], at["CA"] - at["N"], at["C"])
        if "CB" in at:
            frames[i, 2] = _make_rigid_3x4(at["CB"] - at["CA"], at["N"] - at["CA"], at["CB"])
        if "XG" in at:
            frames[i, 3] = _make_rigid_3x4(at["XG"], np.array([-1.0, 0.0, 0.0]), at["XG"])
    return frames, mask, places


def permute_final_dims(x, order):
    first = x.dim() - len(order)
    return x.permute(list(range(first)) + [first + i for i in order])


def flatten_final_dims(x, count: int):
    return x.reshape(x.shape[:-count] + (-1,))


def quat_to_rot(quat):
    w, x, y, z = quat.unbind(-1)
    rows = [
        [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def quat_multiply_by_vec(quat, vec):
    a, b, c, d = quat.unbind(-1)
    x, y, z = vec.unbind(-1)
    return torch.stack([-b * x - c * y - d * z, a * x + c * z - d * y, a * y + d * x - b * z, a * z + b * y - c * x], -1)


def rot_vec_mul(r, t):
    x, y, z = t.unbind(-1)
    return torch.stack([r[..., i, 0] * x + r[..., i, 1] * y + r[..., i, 2] * z for i in range(3)], dim=-1)


@dataclass
class Rigid:
    """A rotation and a translation; the rotation remembers its quaternion if it was made of one."""

    trans: torch.Tensor
    rots: torch.Tensor
    quats: Optional[torch.Tensor] = None

    @staticmethod
    def from_quats(trans, quats):
        quats = quats / torch.linalg.norm(quats, dim=-1, keepdim=True)
        return Rigid(trans, quat_to_rot(quats), quats)

    def __getitem__(self, index):
        return Rigid(self.trans[index + (slice(None),)], self.rots[index + (slice(None), slice(None))])

    def unsqueeze(self):
        return Rigid(self.trans.unsqueeze(-2), self.rots.unsqueeze(-3))

    def compose(self, other):
        return Rigid(self.trans + rot_vec_mul(self.rots, other.trans), torch.matmul(self.rots, other.rots))

    def apply(self, points):
        return rot_vec_mul(self.rots, points) + self.trans

    def invert_apply(self, points):
        return rot_vec_mul(self.rots.transpose(-1, -2), points - self.trans)

    def compose_q_update_vec(self, update):
        quats = self.quats + quat_multiply_by_vec(self.quats, update[..., :3])
        return Rigid.from_quats(self.trans + rot_vec_mul(self.rots, update[..., 3:]), quats)

    @staticmethod
    def cat(rigids):
        return Rigid(torch.cat([r.trans for r in rigids], dim=-2), torch.cat([r.rots for r in rigids], dim=-3))


class InputEmbedder(nn.Module):
    def __init__(self, c_msa: int, c_m: int, c_z: int, relpos_k: int = 5):
        super().__init__()
        classes = len(RESTYPES)
        self.linear_tf_z_i, self.linear_tf_z_j = nn.Linear(classes, c_z), nn.Linear(classes, c_z)
        self.linear_tf_m = nn.Linear(classes, c_m)
        self.linear_msa_m = nn.Linear(c_msa, c_m)
        self.linear_relpos = nn.Linear(2 * relpos_k + 1, c_z)
        self.register_buffer("boundaries", torch.arange(-relpos_k, relpos_k + 1).float(), persistent=False)

    def forward(self, target_feat, residue_index, msa_feat):
        d = (residue_index[..., None] - residue_index[..., None, :]).float()
        nearest = (d[..., None] - self.boundaries).abs().argmin(dim=-1)
        relpos = self.linear_relpos(F.one_hot(nearest, num_classes=len(self.boundaries)).float())
        left, right = self.linear_tf_z_i(target_feat), self.linear_tf_z_j(target_feat)
        z = relpos + left[..., None, :] + right[..., None, :, :]
        m = self.linear_msa_m(msa_feat) + self.linear_tf_m(target_feat).unsqueeze(-3)
        return m, z


class RecyclingEmbedder(nn.Module):
    def __init__(self, c_m: int, c_z: int, bins: int = 9, min_bin: float = 3.25, max_bin: float = 19.25):
        super().__init__()
        self.linear = nn.Linear(bins, c_z)
        self.layer_norm_m, self.layer_norm_z = nn.LayerNorm(c_m), nn.LayerNorm(c_z)
        squared = torch.linspace(min_bin, max_bin, bins) ** 2
        self.register_buffer("lower", squared, persistent=False)
        self.register_buffer("upper", torch.cat([squared[1:], squared.new_tensor([INF])]), persistent=False)

    def forward(self, m, z, x):
        d = torch.sum((x[..., None, :] - x[..., None, :, :]) ** 2, dim=-1, keepdim=True)
        d = ((d > self.lower) * (d < self.upper)).to(x.dtype)
        return self.layer_norm_m(m), self.linear(d) + self.layer_norm_z(z)


class Attention(nn.Module):
    def __init__(self, dim: int, c_hidden: int, heads: int):
        super().__init__()
        self.heads, self.c_hidden = heads, c_hidden
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(dim, c_hidden * heads, bias=False) for _ in range(3))
        self.linear_o = nn.Linear(c_hidden * heads, dim)
        self.linear_g = nn.Linear(dim, c_hidden * heads)

    def _split(self, x):
        return x.view(x.shape[:-1] + (self.heads, -1)).transpose(-2, -3)

    def forward(self, x, biases):
        q = self._split(self.linear_q(x)) / math.sqrt(self.c_hidden)
        a = torch.matmul(q, self._split(self.linear_k(x)).transpose(-1, -2))
        for bias in biases:
            a = a + bias
        o = torch.matmul(torch.softmax(a, dim=-1), self._split(self.linear_v(x))).transpose(-2, -3)
        g = torch.sigmoid(self.linear_g(x)).view(o.shape)
        return self.linear_o(flatten_final_dims(o * g, 2))


class MSARowAttentionWithPairBias(nn.Module):
    def __init__(self, c_m: int, c_z: int, c_hidden: int = 5, heads: int = 4):
        super().__init__()
        self.layer_norm_m, self.layer_norm_z = nn.LayerNorm(c_m), nn.LayerNorm(c_z)
        self.linear_z = nn.Linear(c_z, heads, bias=False)
        self.mha = Attention(c_m, c_hidden, heads)

    def forward(self, m, z, mask):
        mask_bias = (INF * (mask - 1))[..., :, None, None, :]
        pair_bias = permute_final_dims(self.linear_z(self.layer_norm_z(z)), (2, 0, 1)).unsqueeze(-4)
        return self.mha(self.layer_norm_m(m), [mask_bias, pair_bias])


class Transition(nn.Module):
    def __init__(self, dim: int, n: int = 2):
        super().__init__()
        self.layer_norm = nn.LayerNorm(dim)
        self.linear_1 = nn.Linear(dim, n * dim)
        self.linear_2 = nn.Linear(n * dim, dim)

    def forward(self, x, mask):
        return self.linear_2(F.relu(self.linear_1(self.layer_norm(x)))) * mask.unsqueeze(-1)


class OuterProductMean(nn.Module):
    def __init__(self, c_m: int, c_z: int, c_hidden: int = 6, eps: float = 1e-3):
        super().__init__()
        self.eps = eps
        self.layer_norm = nn.LayerNorm(c_m)
        self.linear_1, self.linear_2 = nn.Linear(c_m, c_hidden), nn.Linear(c_m, c_hidden)
        self.linear_out = nn.Linear(c_hidden ** 2, c_z)

    def forward(self, m, mask):
        ln = self.layer_norm(m)
        mask = mask.unsqueeze(-1)
        a = (self.linear_1(ln) * mask).transpose(-2, -3)
        b = (self.linear_2(ln) * mask).transpose(-2, -3)
        outer = self.linear_out(flatten_final_dims(torch.einsum("...bac,...dae->...bdce", a, b), 2))
        norm = torch.einsum("...abc,...adc->...bdc", mask, mask)
        return outer / (norm + self.eps)


class TriangleMultiplication(nn.Module):
    def __init__(self, c_z: int, outgoing: bool, c_hidden: int = 10):
        super().__init__()
        self.outgoing = outgoing
        self.linear_a_p, self.linear_a_g = nn.Linear(c_z, c_hidden), nn.Linear(c_z, c_hidden)
        self.linear_b_p, self.linear_b_g = nn.Linear(c_z, c_hidden), nn.Linear(c_z, c_hidden)
        self.linear_g = nn.Linear(c_z, c_z)
        self.linear_z = nn.Linear(c_hidden, c_z)
        self.layer_norm_in = nn.LayerNorm(c_z)
        self.layer_norm_out = nn.LayerNorm(c_hidden, eps=1e-2)

    def forward(self, z, mask):
        mask = mask.unsqueeze(-1)
        z = self.layer_norm_in(z)
        a = self.linear_a_p(z) * torch.sigmoid(self.linear_a_g(z)) * mask
        b = self.linear_b_p(z) * torch.sigmoid(self.linear_b_g(z)) * mask
        if self.outgoing:
            x = torch.matmul(permute_final_dims(a, (2, 0, 1)), permute_final_dims(b, (2, 1, 0)))
        else:
            x = torch.matmul(permute_final_dims(a, (2, 1, 0)), permute_final_dims(b, (2, 0, 1)))
        x = self.layer_norm_out(permute_final_dims(x, (1, 2, 0)) / z.shape[-2])
        return self.linear_z(x) * torch.sigmoid(self.linear_g(z))


class TriangleAttention(nn.Module):
    def __init__(self, c_z: int, starting: bool, c_hidden: int = 5, heads: int = 4):
        super().__init__()
        self.starting = starting
        self.layer_norm = nn.LayerNorm(c_z)
        self.linear = nn.Linear(c_z, heads, bias=False)
        self.mha = Attention(c_z, c_hidden, heads)

    def forward(self, x, mask):
        if not self.starting:
            x, mask = x.transpose(-2, -3), mask.transpose(-1, -2)
        x = self.layer_norm(x)
        mask_bias = (INF * (mask - 1))[..., :, None, None, :]
        triangle_bias = permute_final_dims(self.linear(x), (2, 0, 1)).unsqueeze(-4)
        x = self.mha(x, [mask_bias, triangle_bias])
        return x if self.starting else x.transpose(-2, -3)


class EvoformerBlock(nn.Module):
    def __init__(self, c_m: int, c_z: int):
        super().__init__()
        self.msa_att_row = MSARowAttentionWithPairBias(c_m, c_z)
        self.msa_transition = Transition(c_m)
        self.outer_product_mean = OuterProductMean(c_m, c_z)
        self.tri_mul_out, self.tri_mul_in = TriangleMultiplication(c_z, True), TriangleMultiplication(c_z, False)
        self.tri_att_start = TriangleAttention(c_z, True)
        self.tri_att_end = TriangleAttention(c_z, False)
        self.pair_transition = Transition(c_z)

    def forward(self, m, z, msa_mask, pair_mask):
        m = m + self.msa_att_row(m, z, msa_mask)
        m = m + self.msa_transition(m, msa_mask)
        z = z + self.outer_product_mean(m, msa_mask)
        for update in (self.tri_mul_out, self.tri_mul_in, self.tri_att_start, self.tri_att_end, self.pair_transition):
            z = z + update(z, pair_mask)
        return m, z


class InvariantPointAttention(nn.Module):
    def __init__(self, c_s: int, c_z: int, heads=3, c_hidden=8, qk_points=4, v_points=5, eps: float = 1e-8):
        super().__init__()
        self.eps, self.heads, self.c, self.pq, self.pv = eps, heads, c_hidden, qk_points, v_points
        self.linear_q = nn.Linear(c_s, self.heads * self.c)
        self.linear_kv = nn.Linear(c_s, 2 * self.heads * self.c)
        self.linear_q_points = nn.Linear(c_s, self.heads * self.pq * 3)
        self.linear_kv_points = nn.Linear(c_s, self.heads * (self.pq + self.pv) * 3)
        self.linear_b = nn.Linear(c_z, self.heads)
        self.head_weights = nn.Parameter(torch.randn(self.heads) * 0.5 + 0.5)
        self.linear_out = nn.Linear(self.heads * (c_z + self.c + self.pv * 4), c_s)

    def _points(self, raw, rigids, count: int):
        """All x, then all y, then all z of the points, into the global frame: (..., heads, count, 3)"""
        points = torch.stack(torch.split(raw, raw.shape[-1] // 3, dim=-1), dim=-1)
        return rigids.unsqueeze().apply(points).view(raw.shape[:-1] + (self.heads, count, 3))

    def forward(self, s, z, rigids, mask):
        q = self.linear_q(s).view(s.shape[:-1] + (self.heads, -1))
        k, v = self.linear_kv(s).view(s.shape[:-1] + (self.heads, -1)).split(self.c, dim=-1)
        q_pts = self._points(self.linear_q_points(s), rigids, self.pq)
        kv_pts = self._points(self.linear_kv_points(s), rigids, self.pq + self.pv)
        k_pts, v_pts = kv_pts.split([self.pq, self.pv], dim=-2)
        a = torch.matmul(permute_final_dims(q, (1, 0, 2)), permute_final_dims(k, (1, 2, 0)))
        a = a * math.sqrt(1.0 / (3 * self.c))
        a = a + math.sqrt(1.0 / 3) * permute_final_dims(self.linear_b(z), (2, 0, 1))
        distance = ((q_pts.unsqueeze(-4) - k_pts.unsqueeze(-5)) ** 2).sum(dim=-1)
        weights = F.softplus(self.head_weights).view(-1, 1) * math.sqrt(1.0 / (3 * (self.pq * 9.0 / 2)))
        a = a + permute_final_dims(torch.sum(distance * weights, dim=-1) * -0.5, (2, 0, 1))
        square = mask.unsqueeze(-1) * mask.unsqueeze(-2)
        a = torch.softmax(a + INF * (square.unsqueeze(-3) - 1), dim=-1)
        o = flatten_final_dims(torch.matmul(a, v.transpose(-2, -3)).transpose(-2, -3), 2)
        o_pt = torch.sum(a[..., None, :, :, None] * permute_final_dims(v_pts, (1, 3, 0, 2))[..., None, :, :], dim=-2)
        o_pt = rigids[..., None, None].invert_apply(permute_final_dims(o_pt, (2, 0, 3, 1)))
        o_norm = flatten_final_dims(torch.sqrt(torch.sum(o_pt ** 2, dim=-1) + self.eps), 2)
        o_pt = o_pt.reshape(o_pt.shape[:-3] + (-1, 3))
        o_pair = flatten_final_dims(torch.matmul(a.transpose(-2, -3), z), 2)
        return self.linear_out(torch.cat((o, *o_pt.unbind(-1), o_norm, o_pair), dim=-1))


class AngleResnet(nn.Module):
    def __init__(self, c_s: int, hidden: int = 14, angles: int = 3, eps: float = 1e-8):
        super().__init__()
        self.eps = eps
        self.linear_in, self.linear_initial = nn.Linear(c_s, hidden), nn.Linear(c_s, hidden)
        self.layers = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(4)])
        self.linear_out = nn.Linear(hidden, angles * 2)

    def forward(self, s, s_initial):
        x = self.linear_in(F.relu(s)) + self.linear_initial(F.relu(s_initial))
        for first, second in zip(self.layers[::2], self.layers[1::2]):
            x = x + second(F.relu(first(F.relu(x))))
        x = self.linear_out(F.relu(x))
        raw = x.view(x.shape[:-1] + (-1, 2))
        return raw, raw / torch.sqrt(torch.clamp(torch.sum(raw ** 2, dim=-1, keepdim=True), min=self.eps))


class StructureModule(nn.Module):
    def __init__(self, c_s: int, c_z: int, layers: int = 3, trans_scale: float = 5.0):
        super().__init__()
        self.layers, self.trans_scale = layers, trans_scale
        self.layer_norm_s, self.layer_norm_z = nn.LayerNorm(c_s), nn.LayerNorm(c_z)
        self.linear_in = nn.Linear(c_s, c_s)
        self.ipa = InvariantPointAttention(c_s, c_z)
        self.layer_norm_ipa = nn.LayerNorm(c_s)
        self.transition = nn.Sequential(nn.Linear(c_s, c_s), nn.ReLU(), nn.Linear(c_s, c_s))
        self.layer_norm_transition = nn.LayerNorm(c_s)
        self.bb_update = nn.Linear(c_s, 6)
        self.angle_resnet = AngleResnet(c_s)
        for name, table in zip(("default_frames", "atom_mask", "lit_positions"), make_atom_tables()):
            self.register_buffer(name, torch.from_numpy(table), persistent=False)

    def torsion_angles_to_frames(self, rigids, angles, aatype):
        default = self.default_frames[aatype]
        backbone = angles.new_tensor([0.0, 1.0]).expand(angles.shape[:-2] + (1, 2))
        sin, cos = torch.cat([backbone, angles], dim=-2).unbind(-1)
        turns = default.new_zeros(default.shape[:-2] + (3, 3))
        turns[..., 0, 0] = 1.0
        turns[..., 1, 1], turns[..., 1, 2], turns[..., 2, 1], turns[..., 2, 2] = cos, -sin, sin, cos
        frames = Rigid(default[..., 3], torch.matmul(default[..., :3], turns))
        chi1 = frames[..., 2]
        chi2 = chi1.compose(frames[..., 3])
        frames = Rigid.cat([frames[..., :2], chi1.unsqueeze(), chi2.unsqueeze()])
        return rigids.unsqueeze().compose(frames)

    def forward(self, s, z, aatype, mask):
        s_initial = self.layer_norm_s(s)
        z = self.layer_norm_z(z)
        s = self.linear_in(s_initial)
        rigids = Rigid.from_quats(z.new_zeros(mask.shape + (3,)), torch.eye(4)[0].expand(mask.shape + (4,)))
        outs = []
        for _ in range(self.layers):
            s = self.layer_norm_ipa(s + self.ipa(s, z, rigids, mask))
            s = self.layer_norm_transition(s + self.transition(s))
            rigids = rigids.compose_q_update_vec(self.bb_update(s) * mask.unsqueeze(-1))
            raw, angles = self.angle_resnet(s, s_initial)
            scaled = Rigid(rigids.trans * self.trans_scale, rigids.rots)
            frames = self.torsion_angles_to_frames(scaled, angles, aatype)[(..., list(ATOM_GROUPS))]
            atoms = frames.apply(self.lit_positions[aatype]) * self.atom_mask[aatype].unsqueeze(-1)
            outs.append({"rots": rigids.rots, "raw": raw, "angles": angles, "positions": atoms})
        return {"single": s, **{key: torch.stack([o[key] for o in outs]) for key in outs[0]}}


class ProteinNet(nn.Module):
    def __init__(self, c_msa=9, c_m=20, c_z=16, c_s=24, blocks: int = 2, cycles: int = 2):
        super().__init__()
        self.c_m, self.c_z, self.cycles = c_m, c_z, cycles
        self.input_embedder = InputEmbedder(c_msa, c_m, c_z)
        self.recycling_embedder = RecyclingEmbedder(c_m, c_z)
        self.blocks = nn.ModuleList([EvoformerBlock(c_m, c_z) for _ in range(blocks)])
        self.linear_single = nn.Linear(c_m, c_s)
        self.structure_module = StructureModule(c_s, c_z)
        self.distogram = nn.Linear(c_z, 10)

    def pseudo_beta(self, positions, aatype):
        glycine = (aatype == RESTYPES.index("GLY")).unsqueeze(-1)
        return torch.where(glycine, positions[..., ATOMS.index("CA"), :], positions[..., ATOMS.index("CB"), :])

    def iteration(self, feats, prev):
        m, z = self.input_embedder(feats["target_feat"], feats["residue_index"], feats["msa_feat"])
        m_prev, z_prev = self.recycling_embedder(*prev)
        m = torch.cat([m[:, :1] + m_prev.unsqueeze(1), m[:, 1:]], dim=1)
        z = z + z_prev
        for block in self.blocks:
            m, z = block(m, z, feats["msa_mask"], feats["pair_mask"])
        out = self.structure_module(self.linear_single(m[:, 0]), z, feats["aatype"], feats["seq_mask"])
        prev = (m[:, 0], z, self.pseudo_beta(out["positions"][-1], feats["aatype"]))
        return {"msa": m, "pair": z * feats["pair_mask"].unsqueeze(-1), **out}, prev

    def forward(self, aatype, residue_index, msa_feat, seq_mask, msa_mask):
        batch, _, length, _ = msa_feat.shape
        feats = {
            "aatype": aatype, "residue_index": residue_index, "msa_feat": msa_feat, "seq_mask": seq_mask,
            "msa_mask": msa_mask * seq_mask.unsqueeze(1), "pair_mask": seq_mask.unsqueeze(-1) * seq_mask.unsqueeze(-2),
            "target_feat": F.one_hot(aatype, num_classes=len(RESTYPES)).float(),
        }
        shapes = (length, self.c_m), (length, length, self.c_z), (length, 3)
        prev = [msa_feat.new_zeros((batch,) + shape) for shape in shapes]
        for _ in range(self.cycles):
            out, prev = self.iteration(feats, prev)
        distogram = self.distogram(out["pair"])
        out["distogram"] = distogram + distogram.transpose(-2, -3)
        return tuple(out.values())


def make_inputs(batch=2, seqs=5, length=14, channels=9):
    rng = np.random.RandomState(11)
    aatype = rng.randint(0, len(RESTYPES), (batch, length)).astype(np.int64)
    residue_index = np.cumsum(rng.choice([1, 1, 1, 2, 4], (batch, length)), axis=1).astype(np.int64)
    msa_feat = rng.randn(batch, seqs, length, channels).astype(np.float32)
    seq_mask = np.ones((batch, length), np.float32)
    seq_mask[1, -3:] = 0
    msa_mask = (rng.rand(batch, seqs, length) > 0.25).astype(np.float32)
    msa_mask[:, 0] = 1
    return aatype, residue_index, msa_feat, seq_mask, msa_mask


def build():
    torch.manual_seed(0)
    net = ProteinNet()
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.uniform_(module.bias, -0.3, 0.3)
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -0.3, 0.3)
    nn.init.uniform_(net.structure_module.bb_update.bias, 0.2, 0.7)
    net.structure_module.bb_update.weight.data *= 0.5
    return net.eval(), tuple(torch.from_numpy(x) for x in make_inputs())
