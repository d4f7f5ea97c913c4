"""A little Evoformer with recycling and a torsion head that lays a backbone. In PyTorch: the reference.

No batch axis: S sequences of the alignment, N residues.
    m  [S, N, c_m]   the alignment
    z  [N, N, c_z]   the pairs
"""

import math
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F


def permute_final_dims(tensor, inds):
    zero_index = -1 * len(inds)
    first_inds = list(range(len(tensor.shape[:zero_index])))
    return tensor.permute(first_inds + [zero_index + i for i in inds])


def flatten_final_dims(t, no_dims):
    return t.reshape(t.shape[:-no_dims] + (-1,))


def plain_norm(x, eps=1e-5):
    """Layer norm without weights."""
    mu = x.mean(dim=-1, keepdim=True)
    var = (x - mu).square().mean(dim=-1, keepdim=True)
    return (x - mu) * torch.rsqrt(var + eps)


def gated_attention(qkvg, no_heads, biases):
    """[*, L, 4 * c] -> [*, L, c]; the biases are broadcast against [*, H, L, L]."""
    q, k, v, g = qkvg.chunk(4, dim=-1)
    q, k, v = [t.view(t.shape[:-1] + (no_heads, -1)).transpose(-2, -3) for t in (q, k, v)]
    q = q / math.sqrt(q.shape[-1])
    a = torch.einsum("...hqc,...hkc->...hqk", q, k)
    for b in biases:
        a = a + b
    a = F.softmax(a, dim=-1)
    o = torch.einsum("...hqk,...hkc->...qhc", a, v)
    g = torch.sigmoid(g).view(g.shape[:-1] + (no_heads, -1))
    return flatten_final_dims(o * g, 2)


def chunked(fn, x, size):
    """Applies fn to slices of the first axis; keeps the memory low."""
    out = [fn(x[i : i + size]) for i in range(0, x.shape[0], size)]
    return torch.cat(out, dim=0)


class RowAttentionWithPairBias(nn.Module):
    def __init__(self, c_m, c_z, no_heads, inf=1e9):
        super().__init__()
        self.no_heads = no_heads
        self.inf = inf
        self.norm = nn.LayerNorm(c_m)
        self.pair_bias = nn.Linear(c_z, no_heads, bias=False)
        self.qkvg = nn.Linear(c_m, 4 * c_m)
        self.out = nn.Linear(c_m, c_m)

    def forward(self, m, z, mask):
        m = self.norm(m)
        mask_bias = (self.inf * (mask - 1))[..., :, None, None, :]
        pair = self.pair_bias(plain_norm(z))
        pair = permute_final_dims(pair, (2, 0, 1)).unsqueeze(0)
        return self.out(gated_attention(self.qkvg(m), self.no_heads, [mask_bias, pair]))


class ColumnAttention(nn.Module):
    def __init__(self, c_m, no_heads, inf=1e9):
        super().__init__()
        self.no_heads = no_heads
        self.inf = inf
        self.qkvg = nn.Linear(c_m, 4 * c_m)
        self.out = nn.Linear(c_m, c_m)

    def forward(self, m, mask):
        m = m.transpose(-2, -3)
        mask = mask.transpose(-1, -2)
        mask_bias = (self.inf * (mask - 1))[..., :, None, None, :]
        m = gated_attention(self.qkvg(plain_norm(m)), self.no_heads, biases=[mask_bias])
        return self.out(m).transpose(-2, -3)


class OuterProductMean(nn.Module):
    def __init__(self, c_m, c_z, c_hidden, eps=1e-3):
        super().__init__()
        self.eps = eps
        self.c_hidden = c_hidden
        self.ab = nn.Linear(c_m, 2 * c_hidden)
        self.out = nn.Linear(c_hidden**2, c_z)

    def forward(self, m, mask):
        mask = mask.unsqueeze(-1)
        a, b = (self.ab(plain_norm(m)) * mask).split(self.c_hidden, dim=-1)
        outer = torch.einsum("sic,sjd->ijcd", a, b)
        outer = self.out(flatten_final_dims(outer, 2))
        norm = torch.einsum("...aid,...ajd->...ijd", mask, mask)
        return outer / (self.eps + norm)


class TriangleMultiplication(nn.Module):
    def __init__(self, c_z, outgoing):
        super().__init__()
        self.c_z = c_z
        self.outgoing = outgoing
        self.norm = nn.LayerNorm(c_z)
        self.proj = nn.Linear(c_z, 5 * c_z)
        self.out = nn.Linear(c_z, c_z)

    def combine(self, a, b):
        if self.outgoing:
            a, b = permute_final_dims(a, (2, 0, 1)), permute_final_dims(b, (2, 1, 0))
        else:
            a, b = permute_final_dims(a, (2, 1, 0)), permute_final_dims(b, (2, 0, 1))
        return permute_final_dims(torch.matmul(a, b), (1, 2, 0))

    def forward(self, z, mask):
        z = self.norm(z)
        a_g, a_p, b_g, b_p, g = self.proj(z).split(self.c_z, dim=-1)
        mask = mask[..., None]
        a = mask * torch.sigmoid(a_g) * a_p
        b = mask * torch.sigmoid(b_g) * b_p
        x = plain_norm(self.combine(a, b))
        return self.out(x) * torch.sigmoid(g)


class Transition(nn.Module):
    def __init__(self, c, n):
        super().__init__()
        self.linear_1 = nn.Linear(c, n * c)
        self.linear_2 = nn.Linear(n * c, c)

    def _transition(self, x, scale=1.0):
        x = plain_norm(x)
        x = F.relu(self.linear_1(x))
        return self.linear_2(x) * scale

    def forward(self, x, mask):
        x = chunked(partial(self._transition, scale=0.5), x, 4)
        return x * mask[..., None]


class EvoformerBlock(nn.Module):
    def __init__(self, c_m, c_z, no_heads):
        super().__init__()
        self.row = RowAttentionWithPairBias(c_m, c_z, no_heads)
        self.col = ColumnAttention(c_m, no_heads)
        self.msa_transition = Transition(c_m, 2)
        self.outer = OuterProductMean(c_m, c_z, 8)
        self.tri_out = TriangleMultiplication(c_z, outgoing=True)
        self.tri_in = TriangleMultiplication(c_z, outgoing=False)

    def forward(self, m, z, msa_mask, pair_mask):
        m = m + self.row(m, z, msa_mask)
        m = m + self.col(m, msa_mask)
        m = m + self.msa_transition(m, msa_mask)
        z = z + self.outer(m, msa_mask)
        z = z + self.tri_out(z, pair_mask)
        z = z + self.tri_in(z, pair_mask)
        return m, z


def rot_x(sin, cos):
    one, zero = torch.ones_like(sin), torch.zeros_like(sin)
    rows = [one, zero, zero, zero, cos, -sin, zero, sin, cos]
    return torch.stack(rows, dim=-1).view(sin.shape + (3, 3))


class TorsionHead(nn.Module):
    """Angles per residue, then a chain of rotations along N, CA, C; CB hangs on CA's frame."""

    BONDS = (1.329, 1.458, 1.525)
    BENDS = (121.7, 111.0, 117.2)

    def __init__(self, c_s, no_angles=3, eps=1e-8):
        super().__init__()
        self.no_angles = no_angles
        self.eps = eps
        self.linear_in = nn.Linear(c_s, c_s)
        self.linear_initial = nn.Linear(c_s, c_s)
        self.linear_out = nn.Linear(c_s, 2 * no_angles)
        turns = []
        for bend in self.BENDS:
            t = math.pi - math.radians(bend)
            turns.append([[math.cos(t), -math.sin(t), 0.0], [math.sin(t), math.cos(t), 0.0], [0.0, 0.0, 1.0]])
        self.register_buffer("turns", torch.tensor(turns), persistent=False)
        self.register_buffer("cb", torch.tensor([-0.529, -0.774, -1.205]), persistent=False)

    def torsions(self, s, s_initial):
        s = self.linear_in(F.relu(s)) + self.linear_initial(F.relu(s_initial))
        s = self.linear_out(F.relu(s))
        s = s.view(s.shape[:-1] + (self.no_angles, 2))
        norm = torch.sqrt(torch.clamp(torch.sum(s**2, dim=-1, keepdim=True), min=self.eps))
        return s / norm

    def chain(self, angles):
        sin, cos = angles.unbind(-1)
        spins = torch.einsum("kxy,nkyz->nkxz", self.turns, rot_x(sin, cos))
        frame = torch.eye(3, dtype=angles.dtype)
        place = torch.zeros(3, dtype=angles.dtype)
        atoms, frames = [], []
        for i in range(angles.shape[0]):
            for k, bond in enumerate(self.BONDS):
                frame = frame @ spins[i, k]
                place = place + bond * frame[:, 0]
                atoms.append(place)
                if k == 1:
                    frames.append(frame)
        atoms = torch.stack(atoms).view(-1, 3, 3)
        return atoms, torch.stack(frames)

    def forward(self, s, s_initial, mask):
        angles = self.torsions(s, s_initial)
        atoms, frames = self.chain(angles)
        cb = atoms[:, 1] + torch.einsum("nij,j->ni", frames, self.cb)
        coords = torch.cat([atoms, cb[:, None]], dim=1)
        weight = mask[:, None, None]
        centre = (coords * weight).sum(dim=(0, 1)) / (weight.sum() * coords.shape[1])
        return angles, (coords - centre) * weight


class LittleFold(nn.Module):
    def __init__(self, c_m=32, c_z=24, no_heads=4, depth=2, max_relative=5, no_rbf=10, no_cycles=2):
        super().__init__()
        self.c_m, self.c_z = c_m, c_z
        self.max_relative = max_relative
        self.no_cycles = no_cycles
        self.msa_embed = nn.Linear(16, c_m)
        self.target_embed = nn.Linear(12, c_m + 2 * c_z)
        self.relpos = nn.Embedding(2 * max_relative + 1, c_z)
        self.recycle_dist = nn.Linear(no_rbf, c_z)
        self.blocks = nn.ModuleList([EvoformerBlock(c_m, c_z, no_heads) for _ in range(depth)])
        self.single = nn.Linear(c_m, c_m)
        self.head = TorsionHead(c_m)
        self.register_buffer("rbf_centres", torch.linspace(2.0, 20.0, no_rbf), persistent=False)
        self.rbf_width = (20.0 - 2.0) / no_rbf

    def embed(self, msa_feat, target_feat, residue_index):
        t, left, right = self.target_embed(target_feat).split([self.c_m, self.c_z, self.c_z], dim=-1)
        m = self.msa_embed(msa_feat) + t
        z = left[:, None, :] + right[None, :, :]
        offset = residue_index[:, None] - residue_index[None, :]
        offset = offset.clamp(-self.max_relative, self.max_relative) + self.max_relative
        return m, z + self.relpos(offset)

    def recycle(self, m, z, previous):
        m_prev, z_prev, coords = previous
        cb = coords[:, 3]
        d = torch.sqrt(((cb[:, None] - cb[None]) ** 2).sum(-1, keepdim=True) + 1e-6)
        rbf = torch.exp(-(((d - self.rbf_centres) / self.rbf_width) ** 2))
        z = z + plain_norm(z_prev) + self.recycle_dist(rbf)
        m = torch.cat([(m[0] + plain_norm(m_prev))[None], m[1:]], dim=0)
        return m, z

    def forward(self, msa_feat, target_feat, residue_index, msa_mask, seq_mask):
        m_init, z_init = self.embed(msa_feat, target_feat, residue_index)
        pair_mask = seq_mask[:, None] * seq_mask[None, :]
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
    torch.manual_seed(71)
    net = LittleFold()
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.1 / math.sqrt(module.in_features))
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.7, 1.3)
            nn.init.normal_(module.bias, std=0.1)
    n_seq, n_res = 6, 14
    residue_index = torch.cat([torch.arange(3, 9), torch.arange(17, 25)])
    msa_mask = (torch.rand(n_seq, n_res) > 0.2).float()
    msa_mask[0] = 1.0
    seq_mask = torch.ones(n_res)
    seq_mask[-2:] = 0.0
    inputs = (torch.randn(n_seq, n_res, 16), torch.randn(n_res, 12), residue_index, msa_mask, seq_mask)
    return net.eval(), inputs
