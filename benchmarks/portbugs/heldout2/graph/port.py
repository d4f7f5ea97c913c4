"""The molecular graph net in MindSpore: the correct port."""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


# --------------------------------------------------------------------------- scatter
def scatter_sum(src, index, dim_size):
    return ops.unsorted_segment_sum(src, index, dim_size)


def scatter_mean(src, index, dim_size):
    total = scatter_sum(src, index, dim_size)
    count = scatter_sum(ops.ones_like(index).astype(src.dtype), index, dim_size)
    count = ops.clamp(count, min=1)
    return total / count.reshape((-1,) + (1,) * (src.ndim - 1))


def scatter_max(src, index, dim_size):
    out = ops.unsorted_segment_max(src, index, dim_size)
    return ops.where(out < -1e30, ops.zeros_like(out), out)  # nodes without a message


def scatter_softmax(src, index, dim_size, eps=1e-16):
    src = src - ops.gather(scatter_max(src, index, dim_size), index, 0)
    out = ops.exp(src)
    return out / (ops.gather(scatter_sum(out, index, dim_size), index, 0) + eps)


def shifted_softplus(x):
    return ops.softplus(x) - math.log(2.0)


def random_walk_pe(edge_index, num_nodes, steps):
    """Probability of being back after 1..steps steps."""
    src, dst = edge_index.asnumpy()
    adj = np.zeros((num_nodes, num_nodes), np.float32)
    adj[src, dst] = 1.0
    rw = adj / np.clip(adj.sum(axis=1, keepdims=True), 1.0, None)
    power, out = rw, []
    for _ in range(steps):
        power = power @ rw
        out.append(np.diagonal(power))
    return Tensor(np.stack(out, axis=-1).astype(np.float32))


# --------------------------------------------------------------------------- radial functions
class RadialBasis(nn.Cell):
    """Bessel functions below a cutoff, times a polynomial envelope (DimeNet)."""

    def __init__(self, num_basis, cutoff, exponent=5):
        super().__init__()
        self.cutoff, p = cutoff, exponent + 1
        self.p, self.a, self.b, self.c = p, -(p + 1) * (p + 2) / 2, p * (p + 2), -p * (p + 1) / 2
        self.freq = Parameter(Tensor(np.pi * np.arange(1, num_basis + 1), ms.float32), name="freq")
        self.proj = nn.Dense(num_basis, num_basis)

    def construct(self, dist):
        x = dist / self.cutoff
        xp = ops.pow(x, self.p)
        envelope = 1.0 + self.a * xp + self.b * xp * x + self.c * xp * ops.square(x)
        envelope = envelope * (x < 1.0).astype(x.dtype)
        basis = math.sqrt(2.0 / self.cutoff) * ops.sin(self.freq * x.expand_dims(1)) / dist.expand_dims(1)
        rbf = self.proj(basis * envelope.expand_dims(1))
        cut = 0.5 * (ops.cos(dist * math.pi / self.cutoff) + 1.0) * (dist < self.cutoff).astype(ms.float32)
        return rbf, cut


class GraphNorm(nn.Cell):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = Parameter(ops.ones((dim,)), name="weight")
        self.bias = Parameter(ops.zeros((dim,)), name="bias")
        self.mean_scale = Parameter(ops.ones((dim,)), name="mean_scale")

    def construct(self, x, batch, num_graphs):
        mean = scatter_mean(x, batch, num_graphs)
        out = x - mean[batch] * self.mean_scale
        var = scatter_mean(ops.square(out), batch, num_graphs)
        return self.weight * out / ops.sqrt(var + self.eps)[batch] + self.bias


# --------------------------------------------------------------------------- layers of a block
class CFConv(nn.Cell):
    def __init__(self, dim, num_basis, avg_log_degree):
        super().__init__()
        self.avg_log_degree = avg_log_degree
        self.lin_in = nn.Dense(dim, dim, has_bias=False)
        self.filter1 = nn.Dense(num_basis, dim)
        self.filter2 = nn.Dense(dim, dim)
        self.lin_out = nn.Dense(6 * dim, dim)

    def aggregate(self, msg, dst, n):
        # principal neighbourhood aggregation: three aggregators times two scalers
        mean = scatter_mean(msg, dst, n)
        var = scatter_mean(msg * msg, dst, n) - mean * mean
        std = ops.sqrt(ops.relu(var) + 1e-5)
        out = ops.concat((mean, scatter_max(msg, dst, n), std), axis=-1)
        degree = scatter_sum(ops.ones_like(dst).astype(msg.dtype), dst, n)
        amplify = ops.log(degree + 1).expand_dims(1) / self.avg_log_degree
        return ops.concat((out, out * amplify), axis=-1)

    def construct(self, x, edge_index, rbf, cut):
        src, dst = edge_index[0], edge_index[1]
        w = self.filter2(shifted_softplus(self.filter1(rbf)))
        w = w * cut.expand_dims(1)
        msg = self.lin_in(x)[src] * w
        return self.lin_out(self.aggregate(msg, dst, x.shape[0]))


class EdgeAttention(nn.Cell):
    def __init__(self, dim, heads, edge_dim, slope=0.2):
        super().__init__()
        self.heads, self.slope = heads, slope
        self.q = nn.Dense(dim, dim)
        self.kv = nn.Dense(dim, 2 * dim)
        self.e = nn.Dense(edge_dim, dim)
        self.att = Parameter(ops.zeros((heads, dim // heads)), name="att")
        self.skip = nn.Dense(3 * dim, 1)
        self.out = nn.Dense(dim, dim)

    def construct(self, x, edge_index, edge, cut=None):
        src, dst = edge_index[0], edge_index[1]
        n, dim = x.shape
        q = self.q(x).reshape(n, self.heads, -1)
        kv = self.kv(x).reshape(n, 2, self.heads, -1)
        k, v = kv[:, 0], kv[:, 1]
        e = self.e(edge).reshape(-1, self.heads, dim // self.heads)
        qi, kj = ops.gather(q, dst, 0), ops.gather(k, src, 0) + e
        score = ops.leaky_relu(qi + kj, self.slope)
        score = (score * self.att).sum(axis=-1)
        score = score + (qi * kj).sum(axis=-1) / math.sqrt(dim // self.heads)
        alpha = scatter_softmax(score, dst, n)
        if cut is not None:
            alpha = alpha * cut.expand_dims(-1)
        msg = alpha.expand_dims(-1) * (ops.gather(v, src, 0) + e)
        out = scatter_sum(msg, dst, n).reshape(n, dim)
        # gated skip of Graph Transformer (TransformerConv's beta)
        beta = ops.sigmoid(self.skip(ops.concat((out, x, out - x), axis=-1)))
        return self.out(beta * x + (1 - beta) * out)


class Move(nn.Cell):
    """E(n)-equivariant: moves the positions along the edges."""

    def __init__(self, dim, edge_dim):
        super().__init__()
        self.lin1 = nn.Dense(2 * dim + edge_dim + 1, dim)
        self.lin2 = nn.Dense(dim, 1, has_bias=False)

    def construct(self, x, pos, edge_index, edge):
        src, dst = edge_index[0], edge_index[1]
        diff = pos[dst] - pos[src]
        sq = ops.square(diff).sum(axis=-1, keepdims=True)
        m = ops.silu(self.lin1(ops.concat((x[dst], x[src], sq, edge), axis=-1)))
        trans = diff / (ops.sqrt(sq) + 1.0) * ops.tanh(self.lin2(m))
        return pos + scatter_mean(trans, dst, pos.shape[0])


class Block(nn.Cell):
    def __init__(self, dim, heads, num_basis, edge_dim, avg_log_degree):
        super().__init__()
        self.norm1 = GraphNorm(dim)
        self.conv = CFConv(dim, num_basis, avg_log_degree)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.attn = EdgeAttention(dim, heads, edge_dim + num_basis)
        self.move = Move(dim, edge_dim)
        self.ffn1 = nn.Dense(dim, 4 * dim)
        self.ffn2 = nn.Dense(2 * dim, dim)
        self.vn = nn.Dense(dim, dim)

    def construct(self, x, pos, vnode, edge_index, edge, batch, radial):
        num_graphs = vnode.shape[0]
        dist = ops.norm(pos[edge_index[0]] - pos[edge_index[1]], dim=-1)
        rbf, cut = radial(dist)
        x = x + vnode[batch]
        x = x + self.conv(self.norm1(x, batch, num_graphs), edge_index, rbf, cut)
        h = self.attn(self.norm2(x), edge_index, ops.concat((edge, rbf), axis=-1), cut=cut)
        x = x + h
        a, g = ops.chunk(self.ffn1(x), 2, axis=-1)
        x = x + self.ffn2(a * ops.gelu(g, approximate="none"))
        pos = self.move(x, pos, edge_index, edge)
        vnode = vnode + ops.relu(self.vn(scatter_sum(x, batch, num_graphs) / 4.0))
        return x, pos, vnode


class MoleculeNet(nn.Cell):
    def __init__(self, dim=32, heads=4, depth=2, num_basis=8, edge_dim=8, cutoff=4.0, walk=5, targets=3):
        super().__init__()
        self.walk = walk
        self.atom = nn.Embedding(12, dim)
        self.bond = nn.Embedding(5, edge_dim)
        self.pe = nn.Dense(walk, dim)
        self.vnode = Parameter(ops.zeros((1, dim)), name="vnode")
        self.radial = RadialBasis(num_basis, cutoff)
        self.blocks = nn.CellList([Block(dim, heads, num_basis, edge_dim, math.log(4.0)) for _ in range(depth)])
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.gate = nn.Dense(dim, 1)
        self.lin = nn.Dense(dim + 1, dim)
        self.head1 = nn.Dense(3 * dim + 3, 2 * dim)
        self.head2 = nn.Dense(2 * dim, targets)
        self.shift = Tensor(np.array([0.2, -0.5, 1.0], np.float32)[:targets])
        self.scale = Tensor(np.array([1.0, 2.0, 0.7], np.float32)[:targets])

    def gyration(self, pos, batch, num_graphs):
        centre = scatter_mean(pos, batch, num_graphs)
        rel = pos - centre[batch]
        radius = ops.norm(rel, dim=-1, keepdim=True)
        inertia = scatter_mean(rel.expand_dims(2) * rel.expand_dims(1), batch, num_graphs)
        trace = inertia[:, 0, 0] + inertia[:, 1, 1] + inertia[:, 2, 2]
        minors = 0.5 * (ops.square(trace) - (inertia * inertia.swapaxes(1, 2)).sum(axis=(1, 2)))
        a, b, c = inertia[:, 0], inertia[:, 1], inertia[:, 2]
        det = (a * ops.cross(b, c, dim=1)).sum(axis=1)
        return radius, ops.stack((trace, minors, det), axis=-1)

    def readout(self, x, radius, invariants, batch, num_graphs):
        weight = scatter_softmax(self.gate(x), batch, num_graphs)
        value = ops.tanh(self.lin(ops.concat((x, radius), axis=-1)))
        pooled = (scatter_sum(weight * value, batch, num_graphs),
                  scatter_max(value, batch, num_graphs),
                  scatter_mean(x, batch, num_graphs),
                  ops.log(1 + ops.relu(invariants)))
        return ops.concat(pooled, axis=-1)

    def construct(self, z, pos, edge_index, bond, batch):
        num_graphs = int(batch.max()) + 1
        x = self.atom(z) + self.pe(random_walk_pe(edge_index, z.shape[0], self.walk))
        edge = self.bond(bond)
        pos = pos - scatter_mean(pos, batch, num_graphs)[batch]
        vnode = ops.broadcast_to(self.vnode, (num_graphs, -1))
        states = []
        for block in self.blocks:
            x, pos, vnode = block(x, pos, vnode, edge_index, edge, batch, self.radial)
            states.append(x)
        x = self.norm(ops.stack(states, axis=0).mean(axis=0) + vnode[batch])
        radius, invariants = self.gyration(pos, batch, num_graphs)
        out = self.head2(ops.silu(self.head1(self.readout(x, radius, invariants, batch, num_graphs))))
        return out * self.scale + self.shift


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return MoleculeNet()
