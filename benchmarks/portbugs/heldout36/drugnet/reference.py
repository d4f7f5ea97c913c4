"""Drug-target affinity: a molecule graph encoder, a protein sequence encoder, cross attention and a bilinear head."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

ATOM_VOCAB = (17, 7, 6, 4)      # element, formal charge, hybridisation, hydrogens
BOND_VOCAB = (5, 3)             # order, ring / stereo
NUM_RESIDUES = 26               # 0 is padding


def segment_sum(values, index, size):
    out = values.new_zeros((size,) + tuple(values.shape[1:]))
    return out.index_add(0, index, values)


def segment_softmax(logits, index, size):
    """Softmax of logits [E, H] over all rows that have the same index."""
    peak = logits.new_full((size, logits.shape[1]), -float("inf"))
    peak = peak.scatter_reduce(0, index.unsqueeze(-1).expand_as(logits), logits, reduce="amax")
    weight = torch.exp(logits - peak[index])
    total = segment_sum(weight, index, size)
    return weight / (total[index] + 1e-16)


def length_mask(lengths, size):
    return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]


class AtomFeaturizer(nn.Module):
    """Categorical and continuous atom features, degree and random walk encodings."""

    def __init__(self, dim, walk_steps=4, max_degree=3):
        super().__init__()
        self.walk_steps, self.max_degree = walk_steps, max_degree
        self.table = nn.Embedding(sum(ATOM_VOCAB) + 1, dim, padding_idx=0)
        offsets = torch.cumsum(torch.tensor((0,) + ATOM_VOCAB[:-1]), dim=0) + 1
        self.register_buffer("offsets", offsets, persistent=False)
        self.degree = nn.Embedding(max_degree + 1, dim)
        self.dense = nn.Linear(2 + walk_steps, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-5)

    def forward(self, atoms, extra, adj, mask):
        ids = (atoms + self.offsets) * mask.unsqueeze(-1).long()
        x = self.table(ids).sum(dim=2) / math.sqrt(len(ATOM_VOCAB))
        deg = adj.sum(dim=-1)
        trans = adj / deg.clamp(min=1.0).unsqueeze(-1)
        walk, returns = trans, []
        for _ in range(self.walk_steps):
            walk = torch.bmm(walk, trans)
            returns.append(torch.diagonal(walk, dim1=1, dim2=2))
        dense = torch.cat([extra] + [r.unsqueeze(-1) for r in returns], dim=-1)
        x = x + self.dense(dense) + self.degree(deg.long().clamp(max=self.max_degree))
        return self.norm(x) * mask.unsqueeze(-1).to(x.dtype)


class BondEncoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(n, dim) for n in BOND_VOCAB])

    def forward(self, bonds):
        return sum(table(bonds[:, i]) for i, table in enumerate(self.tables))


class GINELayer(nn.Module):
    def __init__(self, dim, edge_dim):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.edge_proj = nn.Linear(edge_dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.BatchNorm1d(2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x, edge_index, edge_attr):
        src, dst = edge_index
        message = F.relu(x[src] + self.edge_proj(edge_attr))
        gathered = segment_sum(message, dst, x.shape[0])
        return self.mlp((1.0 + self.eps) * x + gathered)


class GATLayer(nn.Module):
    """GATv2 with edge features; self loops carry the mean of the incoming edges."""

    def __init__(self, dim, heads, edge_dim, slope=0.2):
        super().__init__()
        self.heads, self.head_dim, self.slope = heads, dim // heads, slope
        self.lin_src, self.lin_dst = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.lin_edge = nn.Linear(edge_dim, dim, bias=False)
        self.att = nn.Parameter(torch.zeros(1, heads, dim // heads))
        self.out = nn.Linear(dim, dim)

    def forward(self, x, edge_index, edge_attr):
        n, (src, dst) = x.shape[0], edge_index
        count = segment_sum(torch.ones_like(dst, dtype=x.dtype), dst, n).clamp(min=1.0)
        loop_attr = segment_sum(edge_attr, dst, n) / count.unsqueeze(-1)
        loop = torch.arange(n, device=x.device)
        src, dst = torch.cat([src, loop]), torch.cat([dst, loop])
        edge_attr = torch.cat([edge_attr, loop_attr], dim=0)
        x_src = self.lin_src(x).view(n, self.heads, self.head_dim)
        x_dst = self.lin_dst(x).view(n, self.heads, self.head_dim)
        edge = self.lin_edge(edge_attr).view(-1, self.heads, self.head_dim)
        z = F.leaky_relu(x_src[src] + x_dst[dst] + edge, self.slope)
        alpha = segment_softmax((z * self.att).sum(dim=-1), dst, n)
        out = segment_sum(x_src[src] * alpha.unsqueeze(-1), dst, n)
        return self.out(out.reshape(n, self.heads * self.head_dim))


class MoleculeEncoder(nn.Module):
    def __init__(self, dim=24, heads=3, edge_dim=10, depth=3):
        super().__init__()
        self.atom, self.bond = AtomFeaturizer(dim), BondEncoder(edge_dim)
        self.virtual = nn.Embedding(1, dim)
        self.layers = nn.ModuleList([
            GATLayer(dim, heads, edge_dim) if i % 2 else GINELayer(dim, edge_dim) for i in range(depth)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(dim) for _ in range(depth)])
        self.virtual_mlps = nn.ModuleList([
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.BatchNorm1d(2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
            for _ in range(depth - 1)])
        self.jump = nn.Linear(dim, 1)

    def forward(self, atoms, extra, n_atoms, edge_index, bonds):
        b, n = atoms.shape[:2]
        mask = length_mask(n_atoms, n)
        # edge lists are local to each molecule and padded with -1
        valid = edge_index[:, 0] >= 0
        graph_of_edge = torch.arange(b, device=atoms.device)[:, None].expand_as(valid)[valid]
        local_src, local_dst = edge_index[:, 0][valid], edge_index[:, 1][valid]
        adj = torch.zeros(b, n, n, device=atoms.device)
        adj[graph_of_edge, local_src, local_dst] = 1.0
        edges = (local_src + graph_of_edge * n, local_dst + graph_of_edge * n)
        edge_attr = self.bond(bonds[valid])

        h = self.atom(atoms, extra, adj, mask).reshape(b * n, -1)
        flat = mask.reshape(-1, 1).to(h.dtype)
        graph = torch.arange(b, device=atoms.device).repeat_interleave(n)
        virtual = self.virtual(torch.zeros(b, dtype=torch.long, device=atoms.device))

        states = [h]
        for i, layer in enumerate(self.layers):
            h_in = states[-1] + virtual[graph]
            h = self.norms[i](layer(h_in, edges, edge_attr))
            if i < len(self.layers) - 1:
                h = F.relu(h)
            states.append((h + h_in) * flat)
            if i < len(self.layers) - 1:
                pooled = segment_sum(h_in * flat, graph, b) + virtual
                virtual = virtual + self.virtual_mlps[i](pooled)
        stack = torch.stack(states, dim=1)                                  # [B*N, depth + 1, D]
        gate = torch.softmax(self.jump(stack), dim=1)
        return (gate * stack).sum(dim=1).view(b, n, -1), mask


class DilatedBlock(nn.Module):
    def __init__(self, channels, kernel, dilation):
        super().__init__()
        self.conv = nn.Conv1d(channels, 2 * channels, kernel, padding=dilation * (kernel - 1) // 2, dilation=dilation)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x, mask):
        m = mask.unsqueeze(1).to(x.dtype)
        value, gate = self.conv(x * m).chunk(2, dim=1)
        y = self.norm((value * torch.sigmoid(gate)).transpose(1, 2)).transpose(1, 2)
        return (x + y) * math.sqrt(0.5) * m


class ProteinEncoder(nn.Module):
    def __init__(self, embed=20, channels=32, hidden=14, max_len=64, dilations=(1, 2, 4)):
        super().__init__()
        self.embed_dim = embed
        self.embed = nn.Embedding(NUM_RESIDUES, embed, padding_idx=0)
        pos = torch.arange(max_len).float().unsqueeze(1)
        freq = torch.exp(torch.arange(0, embed, 2).float() * (-math.log(10000.0) / embed))
        table = torch.zeros(max_len, embed)
        table[:, 0::2] = torch.sin(pos * freq)
        table[:, 1::2] = torch.cos(pos * freq)
        self.register_buffer("positions", table, persistent=False)
        self.stem = nn.Conv1d(embed, channels, 5, stride=2, padding=2)
        self.blocks = nn.ModuleList([DilatedBlock(channels, 3, d) for d in dilations])
        self.gru = nn.GRU(channels, hidden, batch_first=True, bidirectional=True)
        self.fuse, self.norm = nn.Linear(channels + 2 * hidden, channels), nn.LayerNorm(channels)

    def forward(self, tokens, lengths):
        size = tokens.shape[1]
        x = self.embed(tokens) * math.sqrt(self.embed_dim) + self.positions[:size]
        x = x * length_mask(lengths, size).unsqueeze(-1).to(x.dtype)
        x = F.relu(self.stem(x.transpose(1, 2)))
        lengths = (lengths + 1) // 2
        mask = length_mask(lengths, x.shape[2])
        for block in self.blocks:
            x = block(x, mask)
        x = x.transpose(1, 2)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        rnn, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=x.shape[1])
        x = self.norm(x + self.fuse(torch.cat([x, rnn], dim=-1)))
        return x * mask.unsqueeze(-1).to(x.dtype), lengths, mask


class CrossAttention(nn.Module):
    """Cosine attention of a query set over a key set, with one temperature per head."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.query, self.key_value = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.log_scale, self.out = nn.Parameter(torch.zeros(heads)), nn.Linear(dim, dim)

    def forward(self, x, y, y_mask):
        b, n, d = x.shape
        q = self.query(x).view(b, n, self.heads, self.head_dim).transpose(1, 2)
        kv = self.key_value(y).view(b, y.shape[1], 2, self.heads, self.head_dim)
        k, v = kv.permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        scale = torch.exp(self.log_scale.clamp(max=math.log(100.0))).view(1, -1, 1, 1)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * scale
        scores = scores.masked_fill(~y_mask[:, None, None, :], -1e9)
        out = torch.einsum("bhij,bhjd->bihd", torch.softmax(scores, dim=-1), v)
        return self.out(out.reshape(b, n, d))


class CrossBlock(nn.Module):
    def __init__(self, dim, heads, ratio=2):
        super().__init__()
        self.mol_attn = CrossAttention(dim, heads)
        self.prot_attn = CrossAttention(dim, heads)
        self.mol_norm, self.prot_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, ratio * dim), nn.GELU(), nn.Linear(ratio * dim, dim))
        self.ffn_norm = nn.LayerNorm(dim)

    def forward(self, mol, mol_mask, prot, prot_mask):
        new_mol = self.mol_norm(mol + self.mol_attn(mol, prot, prot_mask))
        new_prot = self.prot_norm(prot + self.prot_attn(prot, mol, mol_mask))
        n = mol.shape[1]
        both = torch.cat([new_mol, new_prot], dim=1)
        both = both + self.ffn(self.ffn_norm(both))
        return both[:, :n], both[:, n:]


class SetReadout(nn.Module):
    """Set2Set pooling of the atoms."""

    def __init__(self, dim, steps=3):
        super().__init__()
        self.steps, self.cell = steps, nn.LSTMCell(2 * dim, dim)

    def forward(self, x, mask):
        b, _, d = x.shape
        h, c, summary = x.new_zeros(b, d), x.new_zeros(b, d), x.new_zeros(b, 2 * d)
        for _ in range(self.steps):
            h, c = self.cell(summary, (h, c))
            energy = (x * h.unsqueeze(1)).sum(dim=-1).masked_fill(~mask, -float("inf"))
            weight = torch.softmax(energy, dim=1)
            summary = torch.cat([h, (weight.unsqueeze(-1) * x).sum(dim=1)], dim=-1)
        return summary


class TopResidueReadout(nn.Module):
    """Mean over the best scored part of the residues, next to the maximum over all of them."""

    def __init__(self, dim, ratio=0.4):
        super().__init__()
        self.ratio, self.score = ratio, nn.Linear(dim, 1)

    def forward(self, x, lengths, mask):
        score = torch.tanh(self.score(x).squeeze(-1) / self.score.weight.norm())
        order = torch.argsort(score.masked_fill(~mask, -float("inf")), dim=1, descending=True)
        keep = torch.ceil(self.ratio * lengths.to(x.dtype)).long()
        top = torch.gather(x * score.unsqueeze(-1), 1, order.unsqueeze(-1).expand_as(x))
        chosen = length_mask(keep, x.shape[1]).unsqueeze(-1).to(x.dtype)
        mean = (top * chosen).sum(dim=1) / keep.unsqueeze(-1).to(x.dtype)
        peak = x.masked_fill(~mask.unsqueeze(-1), -float("inf")).amax(dim=1)
        return torch.cat([mean, peak], dim=-1)


class BilinearMap(nn.Module):
    """Bilinear attention over all pairs of atom and residue, as low rank maps with several glimpses."""

    def __init__(self, dim, hidden=16, rank=3, glimpses=2):
        super().__init__()
        self.hidden, self.rank = hidden, rank
        self.mol_net = nn.Sequential(nn.Linear(dim, hidden * rank), nn.ReLU())
        self.prot_net = nn.Sequential(nn.Linear(dim, hidden * rank), nn.ReLU())
        self.weight, self.bias = nn.Parameter(torch.zeros(glimpses, hidden * rank)), nn.Parameter(torch.zeros(glimpses))
        self.norm = nn.BatchNorm1d(hidden)

    def forward(self, mol, mol_mask, prot, prot_mask):
        b, n, m = mol.shape[0], mol.shape[1], prot.shape[1]
        u, v = self.mol_net(mol), self.prot_net(prot)
        logits = torch.einsum("gk,bnk,bmk->bgnm", self.weight, u, v) / math.sqrt(u.shape[-1])
        logits = logits + self.bias.view(1, -1, 1, 1)
        pair = (mol_mask[:, :, None] & prot_mask[:, None, :]).unsqueeze(1)
        att = logits.masked_fill(~pair, -1e9).reshape(b, -1, n * m)
        att = torch.softmax(att, dim=-1).view(b, -1, n, m)
        joint = torch.einsum("bnk,bgnm,bmk->bk", u, att, v)                 # the glimpses are summed
        joint = joint.view(b, self.hidden, self.rank).sum(dim=-1)
        joint = torch.sign(joint) * torch.log1p(joint.abs())
        return self.norm(joint), torch.tanh(logits) * pair.to(u.dtype), att


class AffinityHead(nn.Module):
    def __init__(self, in_dim, glimpses=2, planes=6, grid=(2, 3), width=40):
        super().__init__()
        self.tower = nn.Sequential(
            nn.Conv2d(glimpses, planes, 3, padding=1, bias=False), nn.BatchNorm2d(planes, eps=1e-3), nn.LeakyReLU(),
            nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), nn.AdaptiveAvgPool2d(grid))
        self.fc1 = nn.Linear(in_dim + planes * grid[0] * grid[1], width)
        self.norm = nn.BatchNorm1d(width)
        self.fc2, self.fc3 = nn.Linear(width, width // 2), nn.Linear(width // 2, 1)

    def forward(self, features, maps):
        x = torch.cat(features + [self.tower(maps).flatten(1)], dim=-1)
        x = F.relu(self.norm(self.fc1(x)))
        return self.fc3(F.elu(self.fc2(x))).squeeze(-1)


class DrugTargetNet(nn.Module):
    def __init__(self, mol_dim=24, prot_dim=32, dim=30, heads=3, blocks=2, rank_weight=0.3):
        super().__init__()
        self.rank_weight = rank_weight
        self.molecule = MoleculeEncoder(mol_dim)
        self.protein = ProteinEncoder(channels=prot_dim)
        self.mol_in, self.prot_in = nn.Linear(mol_dim, dim), nn.Linear(prot_dim, dim)
        self.cross = nn.ModuleList([CrossBlock(dim, heads) for _ in range(blocks)])
        self.mol_readout, self.prot_readout = SetReadout(dim), TopResidueReadout(dim)
        self.bilinear = BilinearMap(dim)
        self.head = AffinityHead(16 + 4 * dim)

    def loss(self, pred, target, bound):
        """Squared error that respects '<' (-1) and '>' (1) measurements, and a pairwise ranking term."""
        diff = pred - target
        diff = torch.where(bound > 0, diff.clamp(max=0.0), torch.where(bound < 0, diff.clamp(min=0.0), diff))
        error = (diff ** 2).mean()
        exact = bound == 0
        pairs = (target[:, None] > target[None, :]) & exact[:, None] & exact[None, :]
        margin = F.softplus(pred[None, :] - pred[:, None])
        rank = (margin * pairs.to(pred.dtype)).sum() / pairs.sum().clamp(min=1)
        return error + self.rank_weight * rank

    def forward(self, atoms, extra, n_atoms, edge_index, bonds, tokens, lengths, target, bound):
        mol, mol_mask = self.molecule(atoms, extra, n_atoms, edge_index, bonds)
        prot, lengths, prot_mask = self.protein(tokens, lengths)
        mol, prot = F.relu(self.mol_in(mol)), F.relu(self.prot_in(prot))
        for block in self.cross:
            mol, prot = block(mol, mol_mask, prot, prot_mask)
        joint, maps, att = self.bilinear(mol, mol_mask, prot, prot_mask)
        features = [joint, self.mol_readout(mol, mol_mask), self.prot_readout(prot, lengths, prot_mask)]
        pred = self.head(features, maps)
        return pred, att, self.loss(pred, target, bound)


def make_inputs(seed=7, n=13, e=34, size=38):
    rng = np.random.RandomState(seed)
    n_atoms, lengths = np.array([11, 8, 13, 6]), np.array([35, 21, 28, 15])
    atoms, extra = np.zeros((4, n, len(ATOM_VOCAB)), np.int64), np.zeros((4, n, 2), np.float32)
    edges, bonds = np.full((4, 2, e), -1, np.int64), np.zeros((4, e, len(BOND_VOCAB)), np.int64)
    tokens = np.zeros((4, size), np.int64)
    for i, k in enumerate(n_atoms):
        atoms[i, :k] = np.stack([rng.randint(0, v, k) for v in ATOM_VOCAB], axis=1)
        extra[i, :k] = rng.randn(k, 2)
        chain = k - 1 if i % 2 else k               # odd molecules hold a separate ion as their last atom
        links = {(rng.randint(max(0, a - 3), a), a) for a in range(1, chain)} | {(0, chain - 1), (1, chain - 2)}
        for j, (a, c) in enumerate(sorted(links)):
            edges[i, :, 2 * j], edges[i, :, 2 * j + 1] = (a, c), (c, a)
            bonds[i, 2 * j: 2 * j + 2] = [rng.randint(v) for v in BOND_VOCAB]
        tokens[i, :lengths[i]] = rng.randint(1, NUM_RESIDUES, lengths[i])
    target, bound = np.array([0.2, -1.0, 1.9, -1.4], np.float32), np.array([0, 0, 0, -1], np.int64)
    return atoms, extra, n_atoms, edges, bonds, tokens, lengths, target, bound


def randomise(net, inputs):
    """Weights and statistics like those of a trained net."""
    norms = [m for m in net.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    for module in net.modules():
        for key, p in module.named_parameters(recurse=False):
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)):
                nn.init.uniform_(p, *((0.6, 1.4) if key == "weight" else (-0.4, 0.4)))
            elif p.dim() == 1:
                nn.init.uniform_(p, *{"log_scale": (0.7, 2.0), "eps": (0.3, 0.5)}.get(key, (-0.3, 0.3)))
            else:
                fan = p[0].numel() if p.dim() < 3 or p.shape[0] > 1 else p.shape[-1]
                nn.init.normal_(p, std=0.7 if isinstance(module, nn.Embedding) else 1.1 / math.sqrt(fan))
        if getattr(module, "padding_idx", None) is not None:
            module.weight[module.padding_idx] = 0.0
    net.bilinear.weight.mul_(9.0)
    for module in norms:
        module.momentum = 1.0
    net.train()(*inputs)
    for module in norms:
        module.momentum = 0.1
        module.running_mean.add_(0.3 * torch.randn_like(module.running_mean) * module.running_var.sqrt())
        module.running_var.mul_(0.6 + torch.rand_like(module.running_var)).add_(0.01)


@torch.no_grad()
def build():
    torch.manual_seed(7)
    net, inputs = DrugTargetNet(), tuple(torch.from_numpy(np.asarray(a)) for a in make_inputs())
    randomise(net, inputs)
    return net.eval(), inputs
