"""MindSpore implementation of the drug-target affinity model (PyNative mode)."""
import math

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer, XavierUniform

ATOM_VOCAB = (17, 7, 6, 4)
BOND_VOCAB = (5, 3)
NUM_RESIDUES = 26
NEG = -1e9


def sequence_mask(lengths, maxlen):
    """bool mask (B, maxlen), True where a position holds data."""
    return ops.arange(maxlen).expand_dims(0) < lengths.expand_dims(1)


def edge_softmax(score, dst, num_nodes):
    """Normalise the score (E, H) over the incoming edges of each node."""
    highest = ops.unsorted_segment_max(score, dst, num_nodes)
    score = ops.exp(score - ops.gather(highest, dst, 0))
    norm = ops.unsorted_segment_sum(score, dst, num_nodes)
    return score / (ops.gather(norm, dst, 0) + 1e-16)


def layer_norm(dim):
    return nn.LayerNorm((dim,), epsilon=1e-5)


def batch_norm_mlp(dim, hidden):
    return nn.SequentialCell(nn.Dense(dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dense(hidden, dim))


class AtomEmbedding(nn.Cell):
    def __init__(self, dim, walk_length=4, max_degree=3):
        super().__init__()
        self.walk_length = walk_length
        self.max_degree = max_degree
        starts = np.concatenate([[0], np.cumsum(ATOM_VOCAB)[:-1]]) + 1
        self.starts = Tensor(starts, ms.int64)
        self.scale = 1.0 / math.sqrt(len(ATOM_VOCAB))
        self.categories = nn.Embedding(int(np.sum(ATOM_VOCAB)) + 1, dim, padding_idx=0)
        self.degrees = nn.Embedding(max_degree + 1, dim)
        self.continuous = nn.Dense(2 + walk_length, dim)
        self.norm = layer_norm(dim)

    def random_walk(self, adj, degree):
        """Return probabilities after 2 .. walk_length + 1 steps, (B, N, walk_length)."""
        step = adj / ops.maximum(degree, Tensor(1.0, ms.float32)).expand_dims(-1)
        eye = ops.eye(adj.shape[1], adj.shape[1], ms.float32)
        power, result = step, []
        for _ in range(self.walk_length):
            power = ops.bmm(power, step)
            result.append((power * eye).sum(-1))
        return ops.stack(result, axis=-1)

    def construct(self, atoms, extra, adj, mask):
        ids = ops.select(mask.expand_dims(-1).broadcast_to(atoms.shape), atoms + self.starts, ops.zeros_like(atoms))
        x = self.categories(ids).sum(axis=2) * self.scale
        degree = adj.sum(axis=2)
        walks = self.random_walk(adj, degree)
        x = x + self.continuous(ops.cat((extra, walks), axis=-1))
        x = x + self.degrees(ops.minimum(degree.astype(ms.int32), Tensor(self.max_degree, ms.int32)))
        return self.norm(x) * mask.expand_dims(-1).astype(x.dtype)


class BondEmbedding(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.order = nn.Embedding(BOND_VOCAB[0], dim)
        self.ring = nn.Embedding(BOND_VOCAB[1], dim)

    def construct(self, bonds):
        return self.order(bonds[:, 0]) + self.ring(bonds[:, 1])


class GINConv(nn.Cell):
    def __init__(self, dim, edge_dim):
        super().__init__()
        self.eps = Parameter(ops.zeros((1,), ms.float32), name="eps")
        self.edge_fc = nn.Dense(edge_dim, dim)
        self.mlp = batch_norm_mlp(dim, 2 * dim)

    def construct(self, x, src, dst, edge_attr):
        msg = ops.relu(ops.gather(x, src, 0) + self.edge_fc(edge_attr))
        agg = ops.unsorted_segment_sum(msg, dst, x.shape[0])
        return self.mlp(x + self.eps * x + agg)


class GATv2Conv(nn.Cell):
    def __init__(self, dim, num_heads, edge_dim, negative_slope=0.2):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = dim // num_heads
        self.fc_src = nn.Dense(dim, dim)
        self.fc_dst = nn.Dense(dim, dim)
        self.fc_edge = nn.Dense(edge_dim, dim, has_bias=False)
        self.attn = Parameter(initializer(XavierUniform(), (1, num_heads, self.head_size)), name="attn")
        self.act = nn.LeakyReLU(alpha=negative_slope)
        self.proj = nn.Dense(dim, dim)

    def add_self_loops(self, src, dst, edge_attr, num_nodes):
        """A loop on every node, its features are the mean over the edges that enter the node."""
        in_degree = ops.unsorted_segment_sum(ops.ones((dst.shape[0], 1), ms.float32), dst, num_nodes)
        mean_attr = ops.unsorted_segment_sum(edge_attr, dst, num_nodes) / ops.clamp(in_degree, min=1.0)
        nodes = ops.arange(num_nodes).astype(src.dtype)
        return ops.cat((src, nodes)), ops.cat((dst, nodes)), ops.cat((edge_attr, mean_attr))

    def construct(self, x, src, dst, edge_attr):
        num_nodes = x.shape[0]
        src, dst, edge_attr = self.add_self_loops(src, dst, edge_attr, num_nodes)
        feat_src = ops.gather(self.fc_src(x), src, 0)
        feat_dst = ops.gather(self.fc_dst(x), dst, 0)
        z = self.act(feat_src + feat_dst + self.fc_edge(edge_attr))
        z = z.reshape(-1, self.num_heads, self.head_size)
        alpha = edge_softmax((z * self.attn).sum(axis=-1), dst, num_nodes)
        values = feat_src.reshape(-1, self.num_heads, self.head_size) * alpha.expand_dims(-1)
        out = ops.unsorted_segment_sum(values, dst, num_nodes)
        return self.proj(out.reshape(num_nodes, -1))


class GraphBlock(nn.Cell):
    """Convolution, norm and residual of one depth; all but the last have an activation."""

    def __init__(self, conv, dim, last):
        super().__init__()
        self.conv = conv
        self.norm = nn.BatchNorm1d(dim)
        self.last = last

    def construct(self, x, src, dst, edge_attr, node_mask):
        out = self.norm(self.conv(x, src, dst, edge_attr))
        if not self.last:
            out = ops.relu(out)
        return (out + x) * node_mask


class MoleculeEncoder(nn.Cell):
    def __init__(self, dim=24, num_heads=3, edge_dim=10, depth=3):
        super().__init__()
        self.depth = depth
        self.atom_embedding = AtomEmbedding(dim)
        self.bond_embedding = BondEmbedding(edge_dim)
        self.virtual_node = Parameter(initializer("zeros", (1, dim)), name="virtual_node")
        blocks = []
        for i in range(depth):
            conv = GINConv(dim, edge_dim) if i % 2 == 0 else GATv2Conv(dim, num_heads, edge_dim)
            blocks.append(GraphBlock(conv, dim, last=i == depth - 1))
        self.blocks = nn.CellList(blocks)
        self.virtual_updates = nn.CellList([batch_norm_mlp(dim, 2 * dim) for _ in range(depth - 1)])
        self.jump = nn.Dense(dim, 1)

    def construct(self, atoms, extra, n_atoms, edge_index, bonds):
        batch, max_atoms = atoms.shape[0], atoms.shape[1]
        mask = sequence_mask(n_atoms, max_atoms)
        where = ops.nonzero(edge_index[:, 0] >= 0)                  # (E, 2): molecule, column
        graph, column = where[:, 0], where[:, 1]
        src, dst = edge_index[graph, 0, column], edge_index[graph, 1, column]
        ones = ops.ones((graph.shape[0],), ms.float32)
        adj = ops.scatter_nd(ops.stack((graph, src, dst), axis=1), ones, (batch, max_atoms, max_atoms))
        edge_attr = self.bond_embedding(bonds[graph, column])
        src, dst = src + graph * max_atoms, dst + graph * max_atoms

        x = self.atom_embedding(atoms, extra, adj, mask).reshape(batch * max_atoms, -1)
        node_mask = mask.reshape(-1, 1).astype(x.dtype)
        virtual = self.virtual_node.broadcast_to((batch, x.shape[-1]))
        history = [x]
        for i in range(self.depth):
            inner = history[-1] + ops.repeat_interleave(virtual, max_atoms, 0)
            history.append(self.blocks[i](inner, src, dst, edge_attr, node_mask))
            if i < self.depth - 1:
                summed = (inner * node_mask).reshape(batch, max_atoms, -1).sum(axis=1)
                virtual = virtual + self.virtual_updates[i](summed + virtual)
        history = ops.stack(history, axis=0)                        # (depth + 1, B * N, D)
        gate = ops.softmax(self.jump(history), axis=0)
        return (gate * history).sum(axis=0).reshape(batch, max_atoms, -1), mask


class GatedConvBlock(nn.Cell):
    def __init__(self, channels, kernel_size, dilation):
        super().__init__()
        self.conv = nn.Conv1d(channels, 2 * channels, kernel_size, pad_mode="pad", dilation=dilation,
                              padding=dilation * (kernel_size - 1) // 2, has_bias=True)
        self.norm = layer_norm(channels)

    def construct(self, x, mask):
        """x: (B, L, C), mask: (B, L, 1)"""
        y = self.conv((x * mask).swapaxes(1, 2)).swapaxes(1, 2)
        value, gate = ops.chunk(y, 2, axis=-1)
        y = self.norm(value * ops.sigmoid(gate))
        return (x + y) * math.sqrt(0.5) * mask


def sinusoid_table(length, dim):
    angle = np.arange(length)[:, None] / np.power(10000.0, np.arange(0, dim, 2) / dim)[None, :]
    table = np.zeros((length, dim), np.float32)
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)
    return Tensor(table)


class ProteinEncoder(nn.Cell):
    def __init__(self, embed_dim=20, channels=32, hidden=14, max_len=64, dilations=(1, 2, 4)):
        super().__init__()
        self.embed_scale = embed_dim ** 0.5
        self.embedding = nn.Embedding(NUM_RESIDUES, embed_dim, padding_idx=0)
        self.pos_table = sinusoid_table(max_len, embed_dim)
        self.stem = nn.Conv1d(embed_dim, channels, 5, stride=2, pad_mode="pad", padding=2, has_bias=True)
        self.convs = nn.CellList([GatedConvBlock(channels, 3, d) for d in dilations])
        self.rnn = nn.GRU(channels, hidden, batch_first=True, bidirectional=True)
        self.merge = nn.Dense(channels + 2 * hidden, channels)
        self.norm = layer_norm(channels)

    def construct(self, tokens, lengths):
        size = tokens.shape[1]
        x = self.embedding(tokens) * self.embed_scale + self.pos_table[:size]
        x = x * sequence_mask(lengths, size).expand_dims(-1).astype(x.dtype)
        x = ops.relu(self.stem(x.swapaxes(1, 2))).swapaxes(1, 2)
        lengths = (lengths + 1) // 2
        mask = sequence_mask(lengths, x.shape[1])
        fmask = mask.expand_dims(-1).astype(x.dtype)
        for conv in self.convs:
            x = conv(x, fmask)
        rnn_out, _ = self.rnn(x, seq_length=lengths.astype(ms.int32))
        x = self.norm(x + self.merge(ops.cat((x, rnn_out * fmask), axis=-1)))
        return x * fmask, lengths, mask


class CosineAttention(nn.Cell):
    """Multi-head attention from x to y with normalised queries and keys and a learned temperature per head."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = dim // num_heads
        self.q_proj = nn.Dense(dim, dim)
        self.kv_proj = nn.Dense(dim, 2 * dim)
        self.temperature = Parameter(initializer("zeros", (num_heads,)), name="temperature")
        self.o_proj = nn.Dense(dim, dim)
        self.max_temperature = math.log(100.0)

    def split_heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.num_heads, self.head_size).swapaxes(1, 2)

    def unit(self, x):
        return x / ops.clamp(ops.sqrt(ops.square(x).sum(axis=-1, keepdims=True)), min=1e-12)

    def construct(self, x, y, y_mask):
        key, value = ops.chunk(self.kv_proj(y), 2, axis=-1)
        query = self.unit(self.split_heads(self.q_proj(x)))
        key = self.unit(self.split_heads(key))
        value = self.split_heads(value)
        factor = ops.exp(ops.clamp(self.temperature, max=self.max_temperature)).reshape(1, -1, 1, 1)
        logits = ops.matmul(query, key.swapaxes(-1, -2)) * factor
        logits = ops.masked_fill(logits, ops.logical_not(y_mask)[:, None, None, :], NEG)
        context = ops.matmul(ops.softmax(logits, axis=-1), value)
        return self.o_proj(context.swapaxes(1, 2).reshape(x.shape))


class CrossBlock(nn.Cell):
    def __init__(self, dim, num_heads, ratio=2):
        super().__init__()
        self.drug_attn = CosineAttention(dim, num_heads)
        self.target_attn = CosineAttention(dim, num_heads)
        self.drug_norm = layer_norm(dim)
        self.target_norm = layer_norm(dim)
        self.pre_norm = layer_norm(dim)
        self.fc1 = nn.Dense(dim, ratio * dim)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(ratio * dim, dim)

    def construct(self, drug, drug_mask, target, target_mask):
        drug_out = self.drug_norm(drug + self.drug_attn(drug, target, target_mask))
        target_out = self.target_norm(target + self.target_attn(target, drug, drug_mask))
        tokens = ops.cat((drug_out, target_out), axis=1)
        tokens = tokens + self.fc2(self.act(self.fc1(self.pre_norm(tokens))))
        return tokens[:, :drug.shape[1]], tokens[:, drug.shape[1]:]


class Set2Set(nn.Cell):
    def __init__(self, dim, num_steps=3):
        super().__init__()
        self.dim = dim
        self.num_steps = num_steps
        self.lstm = nn.LSTMCell(2 * dim, dim)

    def construct(self, x, mask):
        state = (ops.zeros((x.shape[0], self.dim), x.dtype), ops.zeros((x.shape[0], self.dim), x.dtype))
        q_star = ops.zeros((x.shape[0], 2 * self.dim), x.dtype)
        for _ in range(self.num_steps):
            state = self.lstm(q_star, state)
            query = state[0]
            score = ops.bmm(x, query.expand_dims(-1)).squeeze(-1)
            score = ops.softmax(ops.masked_fill(score, ops.logical_not(mask), NEG), axis=-1)
            read = ops.bmm(score.expand_dims(1), x).squeeze(1)
            q_star = ops.cat((query, read), axis=-1)
        return q_star


class TopResiduePool(nn.Cell):
    def __init__(self, dim, ratio=0.4):
        super().__init__()
        self.ratio = ratio
        self.score = nn.Dense(dim, 1)

    def construct(self, x, lengths, mask):
        gate = ops.tanh(self.score(x).squeeze(-1) / ops.norm(self.score.weight))
        _, order = ops.sort(ops.masked_fill(gate, ops.logical_not(mask), NEG), axis=1, descending=True)
        kept = ops.ceil(lengths.astype(x.dtype) * self.ratio)
        gated = x * gate.expand_dims(-1)
        index = order.expand_dims(-1).broadcast_to(x.shape).astype(ms.int64)
        ranked = ops.gather_elements(gated, 1, index)
        ranked = ranked * sequence_mask(kept, x.shape[1]).expand_dims(-1).astype(x.dtype)
        mean = ranked.sum(axis=1) / kept.expand_dims(-1)
        peak = ops.amax(ops.masked_fill(x, ops.logical_not(mask).expand_dims(-1), NEG), axis=1)
        return ops.cat((mean, peak), axis=-1)


class BilinearAttention(nn.Cell):
    def __init__(self, dim, hidden=16, rank=3, glimpses=2):
        super().__init__()
        self.hidden = hidden
        self.rank = rank
        self.drug_fc = nn.Dense(dim, hidden * rank, activation="relu")
        self.target_fc = nn.Dense(dim, hidden * rank, activation="relu")
        self.h_mat = Parameter(initializer(XavierUniform(), (glimpses, hidden * rank)), name="h_mat")
        self.h_bias = Parameter(initializer("zeros", (glimpses,)), name="h_bias")
        self.norm = nn.BatchNorm1d(hidden)

    def construct(self, drug, drug_mask, target, target_mask):
        batch, n, m = drug.shape[0], drug.shape[1], target.shape[1]
        u, v = self.drug_fc(drug).expand_dims(1), self.target_fc(target).expand_dims(1)
        logits = ops.matmul(u * self.h_mat.reshape(1, -1, 1, self.hidden * self.rank), v.swapaxes(-1, -2))
        logits = logits / math.sqrt(self.hidden * self.rank) + self.h_bias.reshape(1, -1, 1, 1)
        pair = ops.logical_and(drug_mask.expand_dims(2), target_mask.expand_dims(1)).expand_dims(1)
        att = ops.masked_fill(logits, ops.logical_not(pair), NEG).reshape(batch, -1, n * m)
        att = ops.softmax(att, axis=-1).reshape(batch, -1, n, m)
        fused = (u * ops.matmul(att, v)).sum(axis=(1, 2))           # over glimpses and atoms
        fused = fused.reshape(batch, self.hidden, self.rank).sum(axis=2)
        fused = ops.sign(fused) * ops.log1p(ops.abs(fused))
        return self.norm(fused), ops.tanh(logits) * pair.astype(logits.dtype), att


class MapTower(nn.Cell):
    def __init__(self, glimpses, planes, grid):
        super().__init__()
        self.conv = nn.Conv2d(glimpses, planes, 3, pad_mode="pad", padding=1, has_bias=False)
        self.bn = nn.BatchNorm2d(planes, eps=1e-3)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.pool = nn.AvgPool2d(3, stride=2, pad_mode="pad", padding=1, count_include_pad=False)
        self.grid_pool = nn.AdaptiveAvgPool2d(grid)

    def construct(self, maps):
        x = self.pool(self.act(self.bn(self.conv(maps))))
        return ops.flatten(self.grid_pool(x))


class Regressor(nn.Cell):
    def __init__(self, in_dim, glimpses=2, planes=6, grid=(2, 3), width=40):
        super().__init__()
        self.tower = MapTower(glimpses, planes, grid)
        self.layers = nn.SequentialCell(
            nn.Dense(in_dim + planes * grid[0] * grid[1], width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Dense(width, width // 2), nn.ELU(), nn.Dense(width // 2, 1))

    def construct(self, joint, drug, target, maps):
        return self.layers(ops.cat((joint, drug, target, self.tower(maps)), axis=-1)).squeeze(-1)


class AffinityLoss(nn.Cell):
    """Squared error that respects censored measurements, plus a pairwise ranking term."""

    def __init__(self, rank_weight):
        super().__init__()
        self.rank_weight = rank_weight

    def construct(self, pred, label, bound):
        diff = pred - label
        zero = ops.zeros_like(diff)
        diff = ops.select(bound > 0, ops.minimum(diff, zero), diff)
        diff = ops.select(bound < 0, ops.maximum(diff, zero), diff)
        exact = bound == 0
        pairs = ops.logical_and(exact.expand_dims(1), exact.expand_dims(0))
        pairs = ops.logical_and(pairs, label.expand_dims(1) > label.expand_dims(0)).astype(pred.dtype)
        gap = pred.expand_dims(0) - pred.expand_dims(1)
        ranking = (ops.log1p(ops.exp(gap)) * pairs).sum() / ops.clamp(pairs.sum(), min=1.0)
        return ops.square(diff).mean() + self.rank_weight * ranking


class DrugTargetNet(nn.Cell):
    def __init__(self, drug_dim=24, target_dim=32, dim=30, num_heads=3, num_blocks=2, rank_weight=0.3):
        super().__init__()
        self.drug_encoder = MoleculeEncoder(drug_dim)
        self.target_encoder = ProteinEncoder(channels=target_dim)
        self.drug_proj = nn.Dense(drug_dim, dim)
        self.target_proj = nn.Dense(target_dim, dim)
        self.cross_blocks = nn.CellList([CrossBlock(dim, num_heads) for _ in range(num_blocks)])
        self.drug_pool = Set2Set(dim)
        self.target_pool = TopResiduePool(dim)
        self.bilinear = BilinearAttention(dim)
        self.regressor = Regressor(16 + 4 * dim)
        self.criterion = AffinityLoss(rank_weight)

    def construct(self, atoms, extra, n_atoms, edge_index, bonds, tokens, lengths, label, bound):
        drug, drug_mask = self.drug_encoder(atoms, extra, n_atoms, edge_index, bonds)
        target, lengths, target_mask = self.target_encoder(tokens, lengths)
        drug = ops.relu(self.drug_proj(drug))
        target = ops.relu(self.target_proj(target))
        for block in self.cross_blocks:
            drug, target = block(drug, drug_mask, target, target_mask)
        joint, maps, att = self.bilinear(drug, drug_mask, target, target_mask)
        drug_read = self.drug_pool(drug, drug_mask)
        target_read = self.target_pool(target, lengths, target_mask)
        pred = self.regressor(joint, drug_read, target_read, maps)
        return pred, att, self.criterion(pred, label, bound)


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


def build():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = DrugTargetNet()
    net.set_train(False)
    return net, tuple(Tensor(a) for a in make_inputs())


if __name__ == "__main__":
    model, args = build()
    for item in model(*args):
        print(item.shape, item.reshape(-1)[:6])
