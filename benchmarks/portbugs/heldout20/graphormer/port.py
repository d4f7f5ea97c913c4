"""Graphormer for small padded molecules in MindSpore."""

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

FAR = 510  # distance of atoms in different fragments

ATOM_VOCAB = [7, 4, 5, 6]
BOND_VOCAB = [5, 4]
ATOM_ENERGY = [0.0, -0.61, -1.53, -2.04, -2.77, -3.48, -1.12, -0.85]
TARGET_MEAN = [-0.42, 0.25, 1.31, 0.73]
TARGET_STD = [1.27, 0.61, 1.48, 0.92]


def table_starts(vocab):
    return Tensor(np.cumsum([0] + vocab[:-1]), ms.int64), sum(vocab) + 1


def to_rows(ids, starts):
    """Row numbers in a joint table, row 0 for padding."""
    return (ids + starts) * (ids > 0).astype(ms.int64)


def bucket_table(exact, num_buckets, furthest):
    distance = np.arange(furthest + 1)
    ratio = np.log(np.maximum(distance, exact) / exact) / np.log(furthest / exact)
    far = exact + np.floor(ratio * (num_buckets - exact)).astype(np.int64)
    return Tensor(np.where(distance < exact, distance, np.minimum(far, num_buckets - 1)), ms.int64)


def shortest_paths(adj):
    """All shortest paths: their lengths and the first hop of each."""
    bs, n, _ = adj.shape
    dist = ops.where(adj, Tensor(1, ms.int64), Tensor(FAR, ms.int64))
    dist = dist * (1 - ops.eye(n, n, ms.int64))
    hop = ops.where(adj, ops.arange(n).astype(ms.int64).reshape(1, 1, n), Tensor(-1, ms.int64))
    for k in range(n):
        via = dist[:, :, k].expand_dims(2) + dist[:, k].expand_dims(1)
        closer = via < dist
        hop = ops.where(closer, ops.broadcast_to(hop[:, :, k].expand_dims(2), (bs, n, n)), hop)
        dist = ops.where(closer, via, dist)
    return dist, hop


def return_probabilities(adj, steps):
    """Diagonals of the powers of the random walk matrix."""
    a = adj.astype(ms.float32)
    walk = a / ops.maximum(a.sum(axis=-1, keepdims=True), Tensor(1.0, ms.float32))
    eye = ops.eye(a.shape[-1], a.shape[-1], ms.float32)
    result = []
    state = walk
    for _ in range(steps):
        result.append((state * eye).sum(axis=-1))
        state = ops.matmul(state, walk)
    return ops.stack(result, axis=-1)


class NodeEmbedding(nn.Cell):
    def __init__(self, dim, max_degree, walk_steps):
        super().__init__()
        self.max_degree = max_degree
        self.walk_steps = walk_steps
        self.starts, rows = table_starts(ATOM_VOCAB)
        self.features = nn.Embedding(rows, dim, padding_idx=0)
        self.degree_in = nn.Embedding(max_degree + 2, dim, padding_idx=0)
        self.degree_out = nn.Embedding(max_degree + 2, dim, padding_idx=0)
        self.walk_bn = nn.BatchNorm1d(walk_steps)
        self.linear = nn.Dense(walk_steps + 1, dim)
        self.virtual = nn.Embedding(1, dim)

    def degree_rows(self, adj, axis, atom_mask):
        degree = adj.astype(ms.int64).sum(axis=axis)
        return (ops.clamp(degree, max=self.max_degree) + 1) * atom_mask.astype(ms.int64)

    def construct(self, atoms, charges, adj, atom_mask):
        bs, n, _ = atoms.shape
        h = self.features(to_rows(atoms, self.starts)).sum(axis=2)
        h = h + self.degree_in(self.degree_rows(adj, 1, atom_mask))
        h = h + self.degree_out(self.degree_rows(adj, 2, atom_mask))
        walks = return_probabilities(adj, self.walk_steps)
        walks = self.walk_bn(walks.reshape(bs * n, -1)).reshape(bs, n, -1)
        h = h + self.linear(ops.cat((charges.expand_dims(-1), walks), axis=-1))
        h = h * atom_mask.expand_dims(-1).astype(h.dtype)
        virtual = self.virtual(ops.zeros((bs, 1), ms.int64))
        return ops.cat((virtual, h), axis=1)


class StructureBias(nn.Cell):
    """Spatial, path and virtual node's bias of the attention."""

    def __init__(self, heads, max_hops, exact, num_buckets, furthest):
        super().__init__()
        self.heads = heads
        self.max_hops = max_hops
        self.num_buckets = num_buckets
        self.furthest = furthest
        self.starts, rows = table_starts(BOND_VOCAB)
        self.buckets = bucket_table(exact, num_buckets, furthest)
        self.path_weight = Parameter(ops.zeros((max_hops, heads, heads), ms.float32), name="path_weight")
        self.spatial = nn.Embedding(num_buckets + 2, heads, padding_idx=0)
        self.bond = nn.Embedding(rows, heads, padding_idx=0)
        self.virtual_distance = nn.Embedding(1, heads)

    def spatial_rows(self, dist, atom_mask):
        near = self.buckets[ops.clamp(dist, max=self.furthest)] + 1
        rows = ops.where(dist < FAR, near, Tensor(self.num_buckets + 1, ms.int64))
        both = ops.logical_and(atom_mask.expand_dims(1), atom_mask.expand_dims(2))
        return rows * both.astype(ms.int64)

    def path_bias(self, bonds, dist, hop):
        bs, n, _ = dist.shape
        rows = to_rows(bonds, self.starts).reshape(bs, n * n, -1)
        hop = hop.reshape(bs, n * n)
        ids = ops.arange(n).astype(ms.int64)
        here = ops.broadcast_to(ids.reshape(1, n, 1), (bs, n, n))
        goal = ops.broadcast_to(ids.reshape(1, 1, n), (bs, n, n))
        total = 0.0
        for step in range(self.max_hops):
            moving = ops.logical_and(dist < FAR, here != goal)
            following = ops.gather_elements(hop, 1, (here * n + goal).reshape(bs, n * n)).reshape(bs, n, n)
            following = ops.where(moving, following, here)
            index = (here * n + following).reshape(bs, n * n, 1)
            index = ops.broadcast_to(index, (bs, n * n, rows.shape[-1]))
            crossed = ops.gather_elements(rows, 1, index).reshape(bs, n, n, -1)
            crossed = crossed * moving.expand_dims(-1).astype(ms.int64)
            total = total + ops.matmul(self.bond(crossed).mean(axis=3), self.path_weight[step])
            here = following
        length = ops.clamp(dist, min=1, max=self.max_hops)
        return total / length.expand_dims(-1).astype(ms.float32)

    def construct(self, bonds, adj, atom_mask):
        dist, hop = shortest_paths(adj)
        pair = self.spatial(self.spatial_rows(dist, atom_mask)) + self.path_bias(bonds, dist, hop)
        pair = pair.transpose(0, 3, 1, 2)
        bs, heads, n, _ = pair.shape
        virtual = self.virtual_distance.embedding_table.reshape(1, heads, 1, 1)
        column = ops.broadcast_to(virtual, (bs, heads, n, 1))
        row = ops.broadcast_to(virtual, (bs, heads, 1, n + 1))
        return ops.cat((row, ops.cat((column, pair), axis=3)), axis=2)


class BiasedAttention(nn.Cell):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.gate = Parameter(ops.zeros((heads,), ms.float32), name="gate")
        self.query = nn.Dense(dim, dim)
        self.key = nn.Dense(dim, dim)
        self.value = nn.Dense(dim, dim)
        self.norm = nn.GroupNorm(heads, dim)
        self.output = nn.Dense(dim, dim)

    def heads_first(self, x):
        bs, length, _ = x.shape
        return x.reshape(bs, length, self.heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, x, bias, keep):
        bs, length, dim = x.shape
        query = self.heads_first(self.query(x))
        key = self.heads_first(self.key(x))
        value = self.heads_first(self.value(x))
        scores = ops.matmul(query, key.swapaxes(-1, -2)) / self.head_dim**0.5
        logits = ops.masked_fill(scores + bias, ops.logical_not(keep), -3.4e38)
        weights = ops.softmax(logits, axis=-1)
        x = ops.matmul(weights, value).swapaxes(1, 2).reshape(bs * length, dim, 1, 1)
        x = self.output(self.norm(x).reshape(bs, length, dim))
        bias = bias + ops.sigmoid(self.gate).reshape(-1, 1, 1) * scores
        return x, bias


class Block(nn.Cell):
    def __init__(self, dim, ffn_dim, heads):
        super().__init__()
        self.degree_scale = Parameter(ops.zeros((dim, 2), ms.float32), name="degree_scale")
        self.gamma1 = Parameter(ops.ones((dim,), ms.float32), name="gamma1")
        self.gamma2 = Parameter(ops.ones((dim,), ms.float32), name="gamma2")
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.attention = BiasedAttention(dim, heads)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.expand = nn.Dense(dim, ffn_dim)
        self.contract = nn.Dense(ffn_dim, dim)
        self.gelu = nn.GELU(approximate=False)

    def construct(self, x, bias, keep, log_degree):
        y, bias = self.attention(self.norm1(x), bias, keep)
        y = y * (self.degree_scale[:, 0] + log_degree * self.degree_scale[:, 1])
        x = x + self.gamma1 * y
        y = self.contract(self.gelu(self.expand(self.norm2(x))))
        return x + self.gamma2 * y, bias


class MoleculeHead(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.atom_energy = Tensor(ATOM_ENERGY, ms.float32)
        self.mean = Tensor(TARGET_MEAN, ms.float32)
        self.std = Tensor(TARGET_STD, ms.float32)
        self.pool = nn.Dense(3 * dim, hidden)
        self.pool_bn = nn.BatchNorm1d(hidden, eps=1e-3)
        self.target = nn.Dense(hidden, len(TARGET_MEAN))
        self.per_atom = nn.Dense(dim, 1)
        self.gelu = nn.GELU(approximate=False)

    def construct(self, virtual, nodes, elements, atom_mask):
        mask = atom_mask.astype(nodes.dtype)
        mean = (nodes * mask.expand_dims(-1)).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        peak = ops.masked_fill(nodes, ops.logical_not(atom_mask).expand_dims(-1), -1e9).max(axis=1)
        context = self.gelu(self.pool_bn(self.pool(ops.cat((virtual, mean, peak), axis=-1))))
        values = self.target(context) * self.std + self.mean
        energy = self.per_atom(nodes).squeeze(-1) * mask + self.atom_energy[elements]
        energy = energy.sum(axis=1, keepdims=True)
        values = values + ops.pad(energy, (0, values.shape[1] - 1))
        return values, context


class AtomHead(nn.Cell):
    def __init__(self, dim, hidden, num_classes):
        super().__init__()
        self.dense1 = nn.Dense(dim + hidden, dim)
        self.leaky = nn.LeakyReLU(alpha=0.01)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.dense2 = nn.Dense(dim, num_classes)

    def construct(self, nodes, context, atom_mask):
        bs, n, dim = nodes.shape
        context = ops.repeat_interleave(context, n, axis=0)
        h = ops.cat((nodes.reshape(bs * n, dim), context), axis=1)
        h = self.dense2(self.norm(self.leaky(self.dense1(h))))
        return h.reshape(bs, n, -1) * atom_mask.expand_dims(-1).astype(h.dtype)


class Graphormer(nn.Cell):
    def __init__(self, dim=40, ffn_dim=72, heads=5, depth=3, hidden=28, num_classes=6, max_degree=4, walk_steps=7,
                 max_hops=4, exact=4, num_buckets=7, furthest=12):
        super().__init__()
        self.embedding = NodeEmbedding(dim, max_degree, walk_steps)
        self.structure = StructureBias(heads, max_hops, exact, num_buckets, furthest)
        self.blocks = nn.CellList([Block(dim, ffn_dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.molecule_head = MoleculeHead(dim, hidden)
        self.atom_head = AtomHead(dim, hidden, num_classes)

    def construct(self, atoms, charges, bonds):
        bs = atoms.shape[0]
        atom_mask = atoms[:, :, 0] > 0
        adj = bonds[:, :, :, 0] > 0

        # the virtual node is a neighbour of every atom, and never masked
        degree = ops.logical_or(adj, adj.swapaxes(1, 2)).astype(ms.float32).sum(axis=-1)
        count = atom_mask.astype(ms.float32).sum(axis=1, keepdims=True)
        log_degree = ops.log1p(ops.cat((count, degree), axis=1)).expand_dims(-1)
        keep = ops.cat((ops.ones((bs, 1), ms.bool_), atom_mask), axis=1).reshape(bs, 1, 1, -1)

        x = self.embedding(atoms, charges, adj, atom_mask)
        bias = self.structure(bonds, adj, atom_mask)
        for block in self.blocks:
            x, bias = block(x, bias, keep, log_degree)
        x = self.norm(x)

        virtual, nodes = x[:, 0], x[:, 1:]
        values, context = self.molecule_head(virtual, nodes, atoms[:, :, 0], atom_mask)
        return values, self.atom_head(nodes, context, atom_mask)


def build():
    return Graphormer()
