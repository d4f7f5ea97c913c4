"""The little Evoformer in MindSpore: the correct port."""

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops


def plain_norm(x, eps=1e-5):
    mu = x.mean(axis=-1, keep_dims=True)
    centred = x - mu
    var = ops.square(centred).mean(axis=-1, keep_dims=True)
    return centred * ops.rsqrt(var + eps)


def split_heads(t, no_heads):
    """(*, L, H * c) -> (*, H, L, c)"""
    t = t.reshape(t.shape[:-1] + (no_heads, -1))
    return t.swapaxes(-2, -3)


def gated_attention(qkvg, no_heads, biases):
    q, k, v, g = ops.chunk(qkvg, 4, axis=-1)
    q, k, v = split_heads(q, no_heads), split_heads(k, no_heads), split_heads(v, no_heads)
    q = q / math.sqrt(q.shape[-1])
    a = ops.matmul(q, k.swapaxes(-1, -2))
    for b in biases:
        a = a + b
    a = ops.softmax(a, axis=-1)
    o = ops.matmul(a, v).swapaxes(-2, -3)
    o = o.reshape(o.shape[:-2] + (-1,))
    return o * ops.sigmoid(g)


class RowAttentionWithPairBias(nn.Cell):
    def __init__(self, c_m, c_z, no_heads, inf=1e9):
        super().__init__()
        self.no_heads = no_heads
        self.inf = inf
        self.norm = nn.LayerNorm((c_m,), epsilon=1e-5)
        self.pair_bias = nn.Dense(c_z, no_heads, has_bias=False)
        self.qkvg = nn.Dense(c_m, 4 * c_m)
        self.out = nn.Dense(c_m, c_m)

    def construct(self, m, z, mask):
        m = self.norm(m)
        row_bias = (self.inf * (mask - 1))[:, None, None, :]
        pair = self.pair_bias(plain_norm(z)).transpose(2, 0, 1)
        pair = pair.expand_dims(0)
        o = gated_attention(self.qkvg(m), self.no_heads, [row_bias, pair])
        return self.out(o)


class ColumnAttention(nn.Cell):
    def __init__(self, c_m, no_heads, inf=1e9):
        super().__init__()
        self.no_heads = no_heads
        self.inf = inf
        self.qkvg = nn.Dense(c_m, 4 * c_m)
        self.out = nn.Dense(c_m, c_m)

    def construct(self, m, mask):
        m = m.swapaxes(0, 1)
        mask = mask.swapaxes(0, 1)
        col_bias = ((mask - 1) * self.inf)[:, None, None, :]
        m = plain_norm(m)
        m = gated_attention(self.qkvg(m), self.no_heads, [col_bias])
        return self.out(m).swapaxes(0, 1)


class OuterProductMean(nn.Cell):
    def __init__(self, c_m, c_z, c_hidden, eps=1e-3):
        super().__init__()
        self.eps = eps
        self.c_hidden = c_hidden
        self.ab = nn.Dense(c_m, 2 * c_hidden)
        self.out = nn.Dense(c_hidden**2, c_z)

    def construct(self, m, mask):
        n_seq, n_res, _ = m.shape
        c = self.c_hidden
        a, b = ops.split(self.ab(plain_norm(m)) * mask.expand_dims(-1), c, axis=-1)
        # einsum is not there on every device: (i c, s) x (s, j d)
        a = a.reshape(n_seq, n_res * c).swapaxes(0, 1)
        b = b.reshape(n_seq, n_res * c)
        outer = ops.matmul(a, b).reshape(n_res, c, n_res, c)
        outer = outer.transpose(0, 2, 1, 3).reshape(n_res, n_res, c * c)
        norm = ops.matmul(mask.swapaxes(0, 1), mask)
        return self.out(outer) / (norm.expand_dims(-1) + self.eps)


class TriangleMultiplication(nn.Cell):
    def __init__(self, c_z, outgoing):
        super().__init__()
        self.c_z = c_z
        self.outgoing = outgoing
        self.norm = nn.LayerNorm((c_z,), epsilon=1e-5)
        self.proj = nn.Dense(c_z, 5 * c_z)
        self.out = nn.Dense(c_z, c_z)

    def combine(self, a, b):
        a, b = a.transpose(2, 0, 1), b.transpose(2, 0, 1)
        if self.outgoing:
            x = ops.matmul(a, b.swapaxes(1, 2))
        else:
            x = ops.matmul(a.swapaxes(1, 2), b)
        return x.transpose(1, 2, 0)

    def construct(self, z, mask):
        z = self.norm(z)
        a_g, a_p, b_g, b_p, g = ops.split(self.proj(z), self.c_z, axis=-1)
        mask = mask[..., None]
        a = mask * ops.sigmoid(a_g) * a_p
        b = mask * ops.sigmoid(b_g) * b_p
        x = self.combine(a, b)
        x = plain_norm(x)
        return self.out(x) * ops.sigmoid(g)


class Transition(nn.Cell):
    def __init__(self, c, n):
        super().__init__()
        self.linear_1 = nn.Dense(c, n * c)
        self.linear_2 = nn.Dense(n * c, c)

    def _transition(self, x, scale=1.0):
        x = plain_norm(x)
        x = ops.relu(self.linear_1(x))
        return self.linear_2(x) * scale

    def construct(self, x, mask):
        out = []
        for i in range(0, x.shape[0], 4):
            out.append(self._transition(x[i : i + 4], scale=0.5))
        x = ops.concat(out, axis=0)
        return x * mask[..., None]


class EvoformerBlock(nn.Cell):
    def __init__(self, c_m, c_z, no_heads):
        super().__init__()
        self.row = RowAttentionWithPairBias(c_m, c_z, no_heads)
        self.col = ColumnAttention(c_m, no_heads)
        self.msa_transition = Transition(c_m, 2)
        self.outer = OuterProductMean(c_m, c_z, 8)
        self.tri_out = TriangleMultiplication(c_z, outgoing=True)
        self.tri_in = TriangleMultiplication(c_z, outgoing=False)

    def construct(self, m, z, msa_mask, pair_mask):
        m = m + self.row(m, z, msa_mask)
        m = m + self.col(m, msa_mask)
        m = m + self.msa_transition(m, msa_mask)
        z = z + self.outer(m, msa_mask)
        z = z + self.tri_out(z, pair_mask)
        z = z + self.tri_in(z, pair_mask)
        return m, z


def rot_x(sin, cos):
    one, zero = ops.ones_like(sin), ops.zeros_like(sin)
    row_0 = ops.stack([one, zero, zero], axis=-1)
    row_1 = ops.stack([zero, cos, -sin], axis=-1)
    row_2 = ops.stack([zero, sin, cos], axis=-1)
    return ops.stack([row_0, row_1, row_2], axis=-2)


class TorsionHead(nn.Cell):
    BONDS = (1.329, 1.458, 1.525)
    BENDS = (121.7, 111.0, 117.2)

    def __init__(self, c_s, no_angles=3, eps=1e-8):
        super().__init__()
        self.no_angles = no_angles
        self.eps = eps
        self.linear_in = nn.Dense(c_s, c_s)
        self.linear_initial = nn.Dense(c_s, c_s)
        self.linear_out = nn.Dense(c_s, 2 * no_angles)
        t = np.pi - np.deg2rad(np.array(self.BENDS))
        turns = np.zeros((len(self.BENDS), 3, 3), np.float32)
        turns[:, 0, 0], turns[:, 0, 1] = np.cos(t), -np.sin(t)
        turns[:, 1, 0], turns[:, 1, 1] = np.sin(t), np.cos(t)
        turns[:, 2, 2] = 1.0
        self.turns = ms.Tensor(turns)
        self.cb = ms.Tensor(np.array([-0.529, -0.774, -1.205], np.float32))

    def torsions(self, s, s_initial):
        s = self.linear_in(ops.relu(s)) + self.linear_initial(ops.relu(s_initial))
        s = self.linear_out(ops.relu(s))
        s = s.reshape(s.shape[:-1] + (self.no_angles, 2))
        norm = ops.sqrt(ops.clamp((s**2).sum(axis=-1, keepdims=True), min=self.eps))
        return s / norm

    def chain(self, angles):
        sin, cos = angles[..., 0], angles[..., 1]
        spins = ops.matmul(self.turns, rot_x(sin, cos))
        frame = ms.Tensor(np.eye(3, dtype=np.float32))
        place = ops.zeros((3,), ms.float32)
        atoms, frames = [], []
        for i in range(angles.shape[0]):
            for k, bond in enumerate(self.BONDS):
                frame = ops.matmul(frame, spins[i, k])
                place = place + bond * frame[:, 0]
                atoms.append(place)
                if k == 1:
                    frames.append(frame)
        atoms = ops.stack(atoms).reshape(-1, 3, 3)
        return atoms, ops.stack(frames)

    def construct(self, s, s_initial, mask):
        angles = self.torsions(s, s_initial)
        atoms, frames = self.chain(angles)
        cb = atoms[:, 1] + ops.matmul(frames, self.cb)
        coords = ops.concat([atoms, cb.expand_dims(1)], axis=1)
        weight = mask[:, None, None]
        centre = (coords * weight).sum(axis=(0, 1)) / (weight.sum() * coords.shape[1])
        return angles, (coords - centre) * weight


class LittleFold(nn.Cell):
    def __init__(self, c_m=32, c_z=24, no_heads=4, depth=2, max_relative=5, no_rbf=10, no_cycles=2):
        super().__init__()
        self.c_m, self.c_z = c_m, c_z
        self.max_relative = max_relative
        self.no_cycles = no_cycles
        self.msa_embed = nn.Dense(16, c_m)
        self.target_embed = nn.Dense(12, c_m + 2 * c_z)
        self.relpos = nn.Embedding(2 * max_relative + 1, c_z)
        self.recycle_dist = nn.Dense(no_rbf, c_z)
        self.blocks = nn.CellList([EvoformerBlock(c_m, c_z, no_heads) for _ in range(depth)])
        self.single = nn.Dense(c_m, c_m)
        self.head = TorsionHead(c_m)
        self.rbf_centres = ms.Tensor(np.linspace(2.0, 20.0, no_rbf).astype(np.float32))
        self.rbf_width = (20.0 - 2.0) / no_rbf

    def embed(self, msa_feat, target_feat, residue_index):
        t, left, right = ops.split(self.target_embed(target_feat), [self.c_m, self.c_z, self.c_z], axis=-1)
        m = self.msa_embed(msa_feat) + t
        z = left.expand_dims(1) + right.expand_dims(0)
        offset = residue_index.expand_dims(1) - residue_index.expand_dims(0)
        offset = ops.clamp(offset, -self.max_relative, self.max_relative) + self.max_relative
        z = z + self.relpos(offset)
        return m, z

    def recycle(self, m, z, previous):
        m_prev, z_prev, coords = previous
        cb = coords[:, 3]
        delta = cb.expand_dims(1) - cb.expand_dims(0)
        d = ops.sqrt((delta**2).sum(axis=-1, keepdims=True) + 1e-6)
        rbf = ops.exp(-(((d - self.rbf_centres) / self.rbf_width) ** 2))
        z = z + plain_norm(z_prev) + self.recycle_dist(rbf)
        first = m[0] + plain_norm(m_prev)
        m = ops.concat([first.expand_dims(0), m[1:]], axis=0)
        return m, z

    def construct(self, msa_feat, target_feat, residue_index, msa_mask, seq_mask):
        m_init, z_init = self.embed(msa_feat, target_feat, residue_index)
        pair_mask = seq_mask.expand_dims(1) * seq_mask.expand_dims(0)
        msa_mask = msa_mask * seq_mask
        previous = None
        for _ in range(self.no_cycles):
            m, z = m_init, z_init
            if previous is not None:
                m, z = self.recycle(m, z, previous)
            for block in self.blocks:
                m, z = block(m, z, msa_mask, pair_mask)
            s = self.single(m[0])
            angles, coords = self.head(s, m_init[0], seq_mask)
            previous = (m[0], z, coords)
        return angles, coords


def build():
    return LittleFold()
