"""Graphormer for small padded molecules: property regression and atom classification, in PyTorch.

The structure (shortest paths, degrees, random walks) is computed from the bond tensor inside the forward, so that a batch
needs no preprocessing apart from padding. Follows Ying et al. 2021 (centrality, spatial and edge encodings, virtual node),
with the random walk encoding of GraphGPS, the degree scaler of GRIT and the score residual of RealFormer.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

UNREACHABLE = 510

# vocabulary of each atom feature (0 is padding): element, formal charge, hybridisation, hydrogens
ATOM_VOCAB = (7, 4, 5, 6)
# vocabulary of each bond feature (0 is no bond): order, conjugation / ring
BOND_VOCAB = (5, 4)
# energy of a lone atom by element id, fitted on the training set: pad, H, C, N, O, F, S, Cl
ATOM_REFERENCE = (0.0, -0.61, -1.53, -2.04, -2.77, -3.48, -1.12, -0.85)
# mean and deviation of each target in the training set: energy, gap, dipole, polarisability
TARGET_MEAN = (-0.42, 0.25, 1.31, 0.73)
TARGET_STD = (1.27, 0.61, 1.48, 0.92)


# --------------------------------------------------------------------------------------------------------------------
# helpers
# --------------------------------------------------------------------------------------------------------------------


def feature_offsets(vocab):
    """Where the rows of each feature begin in a table shared by all features (row 0 is padding)."""
    starts, total = [], 0
    for size in vocab:
        starts.append(total)
        total += size
    return torch.tensor(starts), total + 1


def shift_features(features, offsets):
    """Ids in the shared table; what is padding stays 0."""
    return torch.where(features > 0, features + offsets, torch.zeros_like(features))


def distance_buckets(exact: int, num_buckets: int, furthest: int):
    """Bucket of each distance: one of its own up to `exact`, then logarithmic ones up to `furthest`."""
    table = []
    for distance in range(furthest + 1):
        if distance < exact:
            table.append(distance)
        else:
            ratio = math.log(distance / exact) / math.log(furthest / exact)
            table.append(min(exact + int(ratio * (num_buckets - exact)), num_buckets - 1))
    return torch.tensor(table)


def floyd_warshall(adjacency):
    """Shortest distances [B, N, N] and for each pair the next atom on the way from row to column (-1: none)."""
    batch, size, _ = adjacency.shape
    device = adjacency.device
    diagonal = torch.eye(size, dtype=torch.bool, device=device)
    distance = torch.full((batch, size, size), UNREACHABLE, dtype=torch.long, device=device)
    distance = distance.masked_fill(adjacency, 1).masked_fill(diagonal, 0)
    column = torch.arange(size, device=device).view(1, 1, size).expand(batch, size, size)
    following = torch.where(adjacency, column, torch.full_like(column, -1))
    for k in range(size):
        through = distance[:, :, k : k + 1] + distance[:, k : k + 1, :]
        shorter = through < distance
        distance = torch.where(shorter, through, distance)
        following = torch.where(shorter, following[:, :, k : k + 1].expand_as(following), following)
    return distance, following


def collect_path_bonds(bonds, distance, following, max_hops: int):
    """Bond ids along the path of every pair, at most `max_hops` of them: [B, N, N, hops, features], 0 after the end."""
    batch, size, _, features = bonds.shape
    flat_bonds = bonds.reshape(batch, size * size, features)
    flat_following = following.reshape(batch, size * size)
    here = torch.arange(size, device=bonds.device).view(1, size, 1).expand(batch, size, size)
    target = torch.arange(size, device=bonds.device).view(1, 1, size).expand(batch, size, size)
    reachable = distance < UNREACHABLE
    collected = []
    for _ in range(max_hops):
        walking = reachable & (here != target)
        step = flat_following.gather(1, (here * size + target).reshape(batch, -1)).view(batch, size, size)
        step = torch.where(walking, step, here)
        index = (here * size + step).reshape(batch, -1, 1).expand(-1, -1, features)
        bond = flat_bonds.gather(1, index).view(batch, size, size, features)
        collected.append(bond * walking.unsqueeze(-1))
        here = step
    return torch.stack(collected, dim=3)


def random_walk_returns(adjacency, steps: int):
    """Probability to be back after 1, 2, ... steps of a random walk along the bonds: [B, N, steps]."""
    weights = adjacency.float()
    transition = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1.0)
    power = transition
    returns = []
    for _ in range(steps):
        returns.append(torch.diagonal(power, dim1=-2, dim2=-1))
        power = power @ transition
    return torch.stack(returns, dim=-1)


def masked_softmax(logits, keep):
    """Softmax over the last axis among what is kept."""
    logits = logits.masked_fill(~keep, torch.finfo(logits.dtype).min)
    return logits.softmax(dim=-1) * keep


def masked_mean(x, mask):
    weights = mask.unsqueeze(-1).to(x.dtype)
    return (x * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


def masked_max(x, mask):
    return x.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(dim=1)


# --------------------------------------------------------------------------------------------------------------------
# encoders of atoms and of structure
# --------------------------------------------------------------------------------------------------------------------


class AtomEncoder(nn.Module):
    """Atom features, centrality, random walks and partial charge; the virtual node in front."""

    def __init__(self, dim: int, max_degree: int, walk_steps: int):
        super().__init__()
        self.max_degree = max_degree
        self.walk_steps = walk_steps
        offsets, rows = feature_offsets(ATOM_VOCAB)
        self.register_buffer("offsets", offsets, persistent=False)
        self.atom_embed = nn.Embedding(rows, dim, padding_idx=0)
        self.in_degree_embed = nn.Embedding(max_degree + 2, dim, padding_idx=0)
        self.out_degree_embed = nn.Embedding(max_degree + 2, dim, padding_idx=0)
        self.walk_norm = nn.BatchNorm1d(walk_steps)
        self.continuous = nn.Linear(walk_steps + 1, dim)
        self.graph_token = nn.Embedding(1, dim)

    def centrality(self, adjacency, mask):
        """Rows of the degree tables: degree + 1, 0 for padding."""
        in_degree = adjacency.sum(dim=-2).clamp(max=self.max_degree)
        out_degree = adjacency.sum(dim=-1).clamp(max=self.max_degree)
        return (in_degree + 1) * mask, (out_degree + 1) * mask

    def forward(self, atoms, charges, adjacency, mask):
        x = self.atom_embed(shift_features(atoms, self.offsets)).sum(dim=-2)
        in_degree, out_degree = self.centrality(adjacency, mask)
        x = x + self.in_degree_embed(in_degree) + self.out_degree_embed(out_degree)
        walks = random_walk_returns(adjacency, self.walk_steps)
        walks = self.walk_norm(walks.transpose(1, 2)).transpose(1, 2)
        x = x + self.continuous(torch.cat([charges.unsqueeze(-1), walks], dim=-1))
        x = x * mask.unsqueeze(-1)
        token = self.graph_token.weight.unsqueeze(0).expand(x.shape[0], -1, -1)
        return torch.cat([token, x], dim=1)


class GraphAttnBias(nn.Module):
    """Bias of the attention for each head: spatial encoding, bonds along the shortest path, the virtual node's distance."""

    def __init__(self, num_heads: int, max_hops: int, exact: int, num_buckets: int, furthest: int):
        super().__init__()
        self.num_heads = num_heads
        self.max_hops = max_hops
        self.num_buckets = num_buckets
        offsets, rows = feature_offsets(BOND_VOCAB)
        self.register_buffer("offsets", offsets, persistent=False)
        self.register_buffer("buckets", distance_buckets(exact, num_buckets, furthest), persistent=False)
        # 0: padding, 1 .. num_buckets: distances, num_buckets + 1: another fragment
        self.spatial_pos_encoder = nn.Embedding(num_buckets + 2, num_heads, padding_idx=0)
        self.edge_encoder = nn.Embedding(rows, num_heads, padding_idx=0)
        self.edge_dis_encoder = nn.Parameter(torch.zeros(max_hops, num_heads, num_heads))
        self.graph_token_virtual_distance = nn.Embedding(1, num_heads)

    def spatial_positions(self, distance, mask):
        unreachable = distance >= UNREACHABLE
        bucket = self.buckets[distance.clamp(max=self.buckets.shape[0] - 1)] + 1
        bucket = bucket.masked_fill(unreachable, self.num_buckets + 1)
        pair_mask = mask.unsqueeze(1) & mask.unsqueeze(2)
        return bucket * pair_mask

    def path_encoding(self, bonds, distance, following):
        """The mean of the bonds' vectors along the path, each turned by the matrix of its place on the path."""
        batch, size = distance.shape[:2]
        ids = shift_features(bonds, self.offsets)
        path = collect_path_bonds(ids, distance, following, self.max_hops)
        edges = self.edge_encoder(path).mean(dim=-2)  # [B, N, N, hops, H]
        edges = edges.permute(3, 0, 1, 2, 4).reshape(self.max_hops, -1, self.num_heads)
        edges = torch.bmm(edges, self.edge_dis_encoder)
        edges = edges.reshape(self.max_hops, batch, size, size, self.num_heads).sum(dim=0)
        hops = distance.clamp(min=1, max=self.max_hops)
        return edges / hops.unsqueeze(-1).to(edges.dtype)

    def forward(self, bonds, adjacency, mask):
        batch, size = mask.shape
        distance, following = floyd_warshall(adjacency)
        pair = self.spatial_pos_encoder(self.spatial_positions(distance, mask))
        pair = pair + self.path_encoding(bonds, distance, following)
        bias = pair.new_zeros(batch, self.num_heads, size + 1, size + 1)
        bias[:, :, 1:, 1:] = pair.permute(0, 3, 1, 2)
        virtual = self.graph_token_virtual_distance.weight.view(1, self.num_heads, 1)
        bias[:, :, 1:, 0] = bias[:, :, 1:, 0] + virtual
        bias[:, :, 0, :] = bias[:, :, 0, :] + virtual
        return bias


# --------------------------------------------------------------------------------------------------------------------
# transformer
# --------------------------------------------------------------------------------------------------------------------


class MultiheadAttention(nn.Module):
    """Biased attention; hands on the bias with a gated share of its own scores."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.score_gate = nn.Parameter(torch.zeros(num_heads))
        self.head_norm = nn.GroupNorm(num_heads, dim)
        self.out_proj = nn.Linear(dim, dim)

    def split(self, x):
        batch, length, _ = x.shape
        return x.view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x, bias, key_mask):
        batch, length, dim = x.shape
        query = self.split(self.q_proj(x)) * self.scaling
        key = self.split(self.k_proj(x))
        value = self.split(self.v_proj(x))
        scores = torch.einsum("bhid,bhjd->bhij", query, key)
        weights = masked_softmax(scores + bias, key_mask[:, None, None, :])
        out = torch.einsum("bhij,bhjd->bihd", weights, value).reshape(batch * length, dim)
        out = self.out_proj(self.head_norm(out).view(batch, length, dim))
        bias = bias + torch.sigmoid(self.score_gate).view(1, -1, 1, 1) * scores
        return out, bias


class GraphormerLayer(nn.Module):
    """Pre-norm block with degree scaler and layer scale."""

    def __init__(self, dim: int, ffn_dim: int, num_heads: int):
        super().__init__()
        self.attn_norm = nn.LayerNorm(dim)
        self.attn = MultiheadAttention(dim, num_heads)
        self.deg_coef = nn.Parameter(torch.zeros(dim, 2))
        self.gamma_attn = nn.Parameter(torch.ones(dim))
        self.ffn_norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, dim)
        self.gamma_ffn = nn.Parameter(torch.ones(dim))

    def scale_by_degree(self, x, log_degree):
        both = torch.stack([x, x * log_degree.unsqueeze(-1)], dim=-1)
        return (both * self.deg_coef).sum(dim=-1)

    def forward(self, x, bias, key_mask, log_degree):
        residual = x
        x, bias = self.attn(self.attn_norm(x), bias, key_mask)
        x = residual + self.gamma_attn * self.scale_by_degree(x, log_degree)
        residual = x
        x = self.fc2(F.gelu(self.fc1(self.ffn_norm(x))))
        x = residual + self.gamma_ffn * x
        return x, bias


# --------------------------------------------------------------------------------------------------------------------
# heads
# --------------------------------------------------------------------------------------------------------------------


class GraphHead(nn.Module):
    """Targets of the whole molecule from three readouts; the energy also from each atom."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.register_buffer("atom_reference", torch.tensor(ATOM_REFERENCE), persistent=False)
        self.register_buffer("mean", torch.tensor(TARGET_MEAN), persistent=False)
        self.register_buffer("std", torch.tensor(TARGET_STD), persistent=False)
        self.readout = nn.Linear(3 * dim, hidden)
        self.readout_norm = nn.BatchNorm1d(hidden, eps=1e-3)
        self.targets = nn.Linear(hidden, len(TARGET_MEAN))
        self.contribution = nn.Linear(dim, 1)

    def forward(self, token, nodes, elements, mask):
        pooled = torch.cat([token, masked_mean(nodes, mask), masked_max(nodes, mask)], dim=-1)
        context = F.gelu(self.readout_norm(self.readout(pooled)))
        values = self.targets(context) * self.std + self.mean
        energy = (self.contribution(nodes).squeeze(-1) * mask).sum(dim=1)
        energy = energy + self.atom_reference[elements].sum(dim=1)
        values = torch.cat([values[:, :1] + energy.unsqueeze(-1), values[:, 1:]], dim=-1)
        return values, context


class NodeHead(nn.Module):
    """Class of each atom from its vector and the molecule's."""

    def __init__(self, dim: int, hidden: int, num_classes: int):
        super().__init__()
        self.fc1 = nn.Linear(dim + hidden, dim)
        self.act = nn.LeakyReLU()
        self.norm = nn.LayerNorm(dim)
        self.fc2 = nn.Linear(dim, num_classes)

    def forward(self, nodes, context, mask):
        batch, size, dim = nodes.shape
        flat = nodes.reshape(batch * size, dim)
        flat = torch.cat([flat, context.repeat_interleave(size, dim=0)], dim=-1)
        logits = self.fc2(self.norm(self.act(self.fc1(flat)))).view(batch, size, -1)
        return logits.masked_fill(~mask.unsqueeze(-1), 0.0)


class Graphormer(nn.Module):
    """Padded molecules to graph targets [B, 4] and atom classes [B, N, classes]."""

    def __init__(
        self,
        dim: int = 40,
        ffn_dim: int = 72,
        num_heads: int = 5,
        num_layers: int = 3,
        hidden: int = 28,
        num_classes: int = 6,
        max_degree: int = 4,
        walk_steps: int = 7,
        max_hops: int = 4,
        exact: int = 4,
        num_buckets: int = 7,
        furthest: int = 12,
    ):
        super().__init__()
        self.atom_encoder = AtomEncoder(dim, max_degree, walk_steps)
        self.attn_bias = GraphAttnBias(num_heads, max_hops, exact, num_buckets, furthest)
        self.layers = nn.ModuleList([GraphormerLayer(dim, ffn_dim, num_heads) for _ in range(num_layers)])
        self.final_norm = nn.LayerNorm(dim)
        self.graph_head = GraphHead(dim, hidden)
        self.node_head = NodeHead(dim, hidden, num_classes)

    def log_degrees(self, adjacency, mask):
        """log(1 + degree) of each token; the virtual node is bound to every atom."""
        degree = (adjacency | adjacency.transpose(1, 2)).sum(dim=-1)
        degree = torch.cat([mask.sum(dim=1, keepdim=True), degree], dim=1)
        return torch.log1p(degree.float())

    def forward(self, atoms, charges, bonds):
        """atoms [B, N, 4] ids, charges [B, N], bonds [B, N, N, 2] ids from row to column."""
        mask = atoms[..., 0] > 0
        adjacency = bonds[..., 0] > 0
        key_mask = F.pad(mask, (1, 0), value=True)
        x = self.atom_encoder(atoms, charges, adjacency, mask)
        bias = self.attn_bias(bonds, adjacency, mask)
        log_degree = self.log_degrees(adjacency, mask)
        for layer in self.layers:
            x, bias = layer(x, bias, key_mask, log_degree)
        x = self.final_norm(x)
        token, nodes = x[:, 0], x[:, 1:]
        values, context = self.graph_head(token, nodes, atoms[..., 0], mask)
        return values, self.node_head(nodes, context, mask)


# --------------------------------------------------------------------------------------------------------------------
# a batch of made up molecules, and the net
# --------------------------------------------------------------------------------------------------------------------

# bonds (from, to, order, ring) of three molecules; order 4 is dative, from donor to acceptor alone
MOLECULES = (
    (11, [(0, 1, 1, 1), (1, 10, 2, 2), (10, 2, 1, 1), (2, 3, 2, 3), (3, 4, 1, 3), (4, 5, 2, 3), (5, 6, 1, 3), (6, 2, 3, 3),
          (4, 7, 1, 1), (7, 8, 4, 1), (8, 9, 1, 2)]),
    (8, [(0, 1, 1, 1), (1, 2, 3, 2), (2, 3, 1, 1), (2, 4, 4, 2), (5, 6, 2, 1), (6, 7, 1, 2)]),
    (6, [(0, 1, 1, 3), (1, 2, 2, 3), (2, 3, 1, 3), (3, 4, 3, 3), (4, 0, 1, 3), (3, 5, 4, 1)]),
)


def make_batch(generator):
    batch, size = len(MOLECULES), max(count for count, _ in MOLECULES)
    atoms = torch.zeros(batch, size, len(ATOM_VOCAB), dtype=torch.long)
    charges = torch.zeros(batch, size)
    bonds = torch.zeros(batch, size, size, len(BOND_VOCAB), dtype=torch.long)
    for b, (count, listed) in enumerate(MOLECULES):
        for f, vocab in enumerate(ATOM_VOCAB):
            atoms[b, :count, f] = torch.randint(1, vocab + 1, (count,), generator=generator)
        charges[b, :count] = torch.randn(count, generator=generator) * 0.4
        for i, j, order, ring in listed:
            bonds[b, i, j] = torch.tensor([order, ring])
            if order != 4:
                bonds[b, j, i] = torch.tensor([order, ring])
    return atoms, charges, bonds


@torch.no_grad()
def randomise(net, generator):
    """Weights and statistics as after training."""

    def normal(tensor, std, mean=0.0):
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std + mean)

    def uniform(tensor, low, high):
        tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)

    for module in net.modules():
        if isinstance(module, nn.Linear):
            normal(module.weight, 1.2 * module.in_features**-0.5)
            normal(module.bias, 0.2)
        elif isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d)):
            uniform(module.weight, 0.6, 1.4)
            normal(module.bias, 0.15)
        elif isinstance(module, nn.Embedding):
            normal(module.weight, 0.9 if module.embedding_dim < 16 else 0.5)
            if module.padding_idx is not None:
                module.weight[module.padding_idx] = 0.0
        elif isinstance(module, MultiheadAttention):
            normal(module.score_gate, 0.8)
        elif isinstance(module, GraphormerLayer):
            normal(module.deg_coef, 0.3, mean=0.6)
            uniform(module.gamma_attn, 0.3, 0.9)
            uniform(module.gamma_ffn, 0.3, 0.9)
    normal(net.attn_bias.edge_dis_encoder, 0.7)
    normal(net.atom_encoder.walk_norm.running_mean, 0.05, mean=0.2)
    uniform(net.atom_encoder.walk_norm.running_var, 0.02, 0.08)
    # the readout has been driven small by weight decay, the norm after it brings it back
    net.graph_head.readout.weight.mul_(0.08)
    net.graph_head.readout.bias.mul_(0.2)
    normal(net.graph_head.readout_norm.running_mean, 0.04)
    uniform(net.graph_head.readout_norm.running_var, 0.003, 0.015)


def build():
    """The net with the same weights on every run, and a batch of three molecules."""
    generator = torch.Generator().manual_seed(2021)
    net = Graphormer()
    randomise(net, generator)
    return net.eval(), make_batch(generator)
