"""A molecular graph net: continuous filters, attention over a node's edges, moved positions, gated pooling."""
import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


# --------------------------------------------------------------------------- scatter
def expand_index(index: Tensor, like: Tensor) -> Tensor:
    return index.view(-1, *([1] * (like.dim() - 1))).expand_as(like)


def scatter_sum(src: Tensor, index: Tensor, dim_size: int) -> Tensor:
    out = src.new_zeros((dim_size,) + src.shape[1:])
    return out.scatter_add_(0, expand_index(index, src), src)


def scatter_mean(src: Tensor, index: Tensor, dim_size: int) -> Tensor:
    total = scatter_sum(src, index, dim_size)
    count = scatter_sum(torch.ones_like(index, dtype=src.dtype), index, dim_size).clamp(min=1)
    return total / count.view(-1, *([1] * (src.dim() - 1)))


def scatter_max(src: Tensor, index: Tensor, dim_size: int) -> Tensor:
    out = src.new_full((dim_size,) + src.shape[1:], float("-inf"))
    out = out.scatter_reduce(0, expand_index(index, src), src, reduce="amax", include_self=True)
    return torch.where(torch.isinf(out), torch.zeros_like(out), out)  # nodes without a message


def scatter_softmax(src: Tensor, index: Tensor, dim_size: int, eps: float = 1e-16) -> Tensor:
    src = src - scatter_max(src, index, dim_size)[index]
    out = src.exp()
    return out / (scatter_sum(out, index, dim_size)[index] + eps)


def shifted_softplus(x: Tensor) -> Tensor:
    return F.softplus(x) - math.log(2.0)


def random_walk_pe(edge_index: Tensor, num_nodes: int, steps: int) -> Tensor:
    """Probability of being back after 1..steps steps."""
    adj = torch.zeros(num_nodes, num_nodes)
    adj[edge_index[0], edge_index[1]] = 1.0
    rw = adj / adj.sum(dim=1, keepdim=True).clamp(min=1.0)
    power, out = rw, []
    for _ in range(steps):
        power = power @ rw
        out.append(torch.diagonal(power))
    return torch.stack(out, dim=-1)


# --------------------------------------------------------------------------- radial functions
class RadialBasis(nn.Module):
    """Bessel functions below a cutoff, times a polynomial envelope (DimeNet)."""

    def __init__(self, num_basis: int, cutoff: float, exponent: int = 5):
        super().__init__()
        self.cutoff, p = cutoff, exponent + 1
        self.p, self.a, self.b, self.c = p, -(p + 1) * (p + 2) / 2, p * (p + 2), -p * (p + 1) / 2
        self.freq = nn.Parameter(math.pi * torch.arange(1, num_basis + 1, dtype=torch.float))
        self.proj = nn.Linear(num_basis, num_basis)

    def forward(self, dist: Tensor):
        x = dist / self.cutoff
        xp = x.pow(self.p - 1)
        envelope = 1.0 + self.a * xp * x + self.b * xp * x * x + self.c * xp * x * x * x
        envelope = envelope * (x < 1.0).to(x.dtype)
        basis = math.sqrt(2.0 / self.cutoff) * torch.sin(self.freq * x[:, None]) / dist[:, None]
        rbf = self.proj(basis * envelope[:, None])
        cut = 0.5 * (torch.cos(dist * math.pi / self.cutoff) + 1.0) * (dist < self.cutoff).float()
        return rbf, cut


class GraphNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.mean_scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        mean = scatter_mean(x, batch, num_graphs)
        out = x - mean[batch] * self.mean_scale
        var = scatter_mean(out * out, batch, num_graphs)
        return self.weight * out / (var + self.eps).sqrt()[batch] + self.bias


# --------------------------------------------------------------------------- layers of a block
class CFConv(nn.Module):
    def __init__(self, dim: int, num_basis: int, avg_log_degree: float):
        super().__init__()
        self.avg_log_degree = avg_log_degree
        self.lin_in = nn.Linear(dim, dim, bias=False)
        self.filter1 = nn.Linear(num_basis, dim)
        self.filter2 = nn.Linear(dim, dim)
        self.lin_out = nn.Linear(6 * dim, dim)

    def aggregate(self, msg: Tensor, dst: Tensor, n: int) -> Tensor:
        # principal neighbourhood aggregation: three aggregators times two scalers
        mean = scatter_mean(msg, dst, n)
        var = scatter_mean(msg * msg, dst, n) - mean * mean
        std = torch.sqrt(F.relu(var) + 1e-5)
        out = torch.cat([mean, scatter_max(msg, dst, n), std], dim=-1)
        degree = scatter_sum(torch.ones_like(dst, dtype=msg.dtype), dst, n)
        amplify = torch.log(degree + 1)[:, None] / self.avg_log_degree
        return torch.cat([out, out * amplify], dim=-1)

    def forward(self, x: Tensor, edge_index: Tensor, rbf: Tensor, cut: Tensor) -> Tensor:
        src, dst = edge_index
        w = self.filter2(shifted_softplus(self.filter1(rbf)))
        w = w * cut[:, None]
        msg = self.lin_in(x)[src] * w
        return self.lin_out(self.aggregate(msg, dst, x.shape[0]))


class EdgeAttention(nn.Module):
    def __init__(self, dim: int, heads: int, edge_dim: int, slope: float = 0.2):
        super().__init__()
        self.heads, self.slope = heads, slope
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.e = nn.Linear(edge_dim, dim)
        self.att = nn.Parameter(torch.zeros(heads, dim // heads))
        self.skip = nn.Linear(3 * dim, 1)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge: Tensor, cut: Optional[Tensor] = None) -> Tensor:
        src, dst = edge_index
        n, dim = x.shape
        q = self.q(x).view(n, self.heads, -1)
        k, v = self.kv(x).view(n, 2, self.heads, -1).unbind(dim=1)
        e = self.e(edge).view(-1, self.heads, dim // self.heads)
        score = F.leaky_relu(q[dst] + k[src] + e, self.slope)
        score = (score * self.att).sum(dim=-1)
        score = score + (q[dst] * (k[src] + e)).sum(dim=-1) / math.sqrt(dim // self.heads)
        alpha = scatter_softmax(score, dst, n)
        if cut is not None:
            alpha = alpha * cut.unsqueeze(-1)
        msg = alpha.unsqueeze(-1) * (v[src] + e)
        out = scatter_sum(msg, dst, n).reshape(n, dim)
        # gated skip of Graph Transformer (TransformerConv's beta)
        beta = torch.sigmoid(self.skip(torch.cat([out, x, out - x], dim=-1)))
        return self.out(beta * x + (1 - beta) * out)


class Move(nn.Module):
    """E(n)-equivariant: moves the positions along the edges."""

    def __init__(self, dim: int, edge_dim: int):
        super().__init__()
        self.lin1 = nn.Linear(2 * dim + edge_dim + 1, dim)
        self.lin2 = nn.Linear(dim, 1, bias=False)

    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor, edge: Tensor) -> Tensor:
        src, dst = edge_index
        diff = pos[dst] - pos[src]
        sq = (diff ** 2).sum(dim=-1, keepdim=True)
        m = F.silu(self.lin1(torch.cat([x[dst], x[src], sq, edge], dim=-1)))
        trans = diff / (sq.sqrt() + 1.0) * torch.tanh(self.lin2(m))
        return pos + scatter_mean(trans, dst, pos.shape[0])


class Block(nn.Module):
    def __init__(self, dim, heads, num_basis, edge_dim, avg_log_degree):
        super().__init__()
        self.norm1 = GraphNorm(dim)
        self.conv = CFConv(dim, num_basis, avg_log_degree)
        self.norm2 = nn.LayerNorm(dim)
        self.attn = EdgeAttention(dim, heads, edge_dim + num_basis)
        self.move = Move(dim, edge_dim)
        self.ffn1 = nn.Linear(dim, 4 * dim)
        self.ffn2 = nn.Linear(2 * dim, dim)
        self.vn = nn.Linear(dim, dim)

    def forward(self, x, pos, vnode, edge_index, edge, batch, radial):
        num_graphs = vnode.shape[0]
        dist = (pos[edge_index[0]] - pos[edge_index[1]]).norm(dim=-1)
        rbf, cut = radial(dist)
        x = x + vnode[batch]
        x = x + self.conv(self.norm1(x, batch, num_graphs), edge_index, rbf, cut)
        h = self.attn(self.norm2(x), edge_index, torch.cat([edge, rbf], dim=-1), cut=cut)
        x = x + h
        a, g = self.ffn1(x).chunk(2, dim=-1)
        x = x + self.ffn2(a * F.gelu(g))
        pos = self.move(x, pos, edge_index, edge)
        vnode = vnode + torch.relu(self.vn(scatter_sum(x, batch, num_graphs) / 4.0))
        return x, pos, vnode


class MoleculeNet(nn.Module):
    def __init__(self, dim=32, heads=4, depth=2, num_basis=8, edge_dim=8, cutoff=4.0, walk=5, targets=3):
        super().__init__()
        self.walk = walk
        self.atom = nn.Embedding(12, dim)
        self.bond = nn.Embedding(5, edge_dim)
        self.pe = nn.Linear(walk, dim)
        self.vnode = nn.Parameter(torch.zeros(1, dim))
        self.radial = RadialBasis(num_basis, cutoff)
        self.blocks = nn.ModuleList(Block(dim, heads, num_basis, edge_dim, math.log(4.0)) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.gate = nn.Linear(dim, 1)
        self.lin = nn.Linear(dim + 1, dim)
        self.head1 = nn.Linear(3 * dim + 3, 2 * dim)
        self.head2 = nn.Linear(2 * dim, targets)
        self.register_buffer("shift", torch.tensor([0.2, -0.5, 1.0])[:targets], persistent=False)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 0.7])[:targets], persistent=False)

    def gyration(self, pos: Tensor, batch: Tensor, num_graphs: int):
        centre = scatter_mean(pos, batch, num_graphs)
        rel = pos - centre[batch]
        radius = rel.norm(dim=-1, keepdim=True)
        inertia = scatter_mean(rel[:, :, None] * rel[:, None, :], batch, num_graphs)
        trace = torch.diagonal(inertia, dim1=-2, dim2=-1).sum(-1)
        minors = 0.5 * (trace ** 2 - (inertia * inertia.transpose(1, 2)).sum(dim=(1, 2)))
        return radius, torch.stack([trace, minors, torch.linalg.det(inertia)], dim=-1)

    def readout(self, x: Tensor, radius: Tensor, invariants: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        weight = scatter_softmax(self.gate(x), batch, num_graphs)
        value = torch.tanh(self.lin(torch.cat([x, radius], dim=-1)))
        pooled = [scatter_sum(weight * value, batch, num_graphs),
                  scatter_max(value, batch, num_graphs),
                  scatter_mean(x, batch, num_graphs),
                  torch.log1p(F.relu(invariants))]
        return torch.cat(pooled, dim=-1)

    def forward(self, z, pos, edge_index, bond, batch):
        num_graphs = int(batch.max()) + 1
        x = self.atom(z) + self.pe(random_walk_pe(edge_index, z.shape[0], self.walk))
        edge = self.bond(bond)
        pos = pos - scatter_mean(pos, batch, num_graphs)[batch]
        vnode = self.vnode.expand(num_graphs, -1)
        states = []
        for block in self.blocks:
            x, pos, vnode = block(x, pos, vnode, edge_index, edge, batch, self.radial)
            states.append(x)
        x = self.norm(torch.stack(states, dim=0).mean(dim=0) + vnode[batch])
        radius, invariants = self.gyration(pos, batch, num_graphs)
        out = self.head2(F.silu(self.head1(self.readout(x, radius, invariants, batch, num_graphs))))
        return out * self.scale + self.shift


def build():
    """The net with the same weights on every run, and a batch of four graphs."""
    torch.manual_seed(5)
    net = MoleculeNet()
    for name, p in net.named_parameters():
        if name.endswith("mean_scale") or (("norm" in name) and name.endswith("weight")):
            nn.init.uniform_(p, 0.6, 1.4)
        elif "norm" in name or name.endswith(".att") or name == "vnode":
            nn.init.normal_(p, std=0.3)
        elif name.endswith("freq"):
            p.data.mul_(1 + 0.05 * torch.randn_like(p))
        elif p.dim() == 2 and "atom" not in name:
            nn.init.normal_(p, std=1.2 / math.sqrt(p.shape[1]))
    sizes, offset, edges, batch = [7, 9, 6, 8], 0, [], []
    pos = torch.randn(sum(sizes), 3) * 1.3
    for graph, size in enumerate(sizes):
        for i in range(size - (graph == 2)):  # one node has no neighbour
            for j in range(size - (graph == 2)):
                if i != j and (abs(i - j) == 1 or torch.rand(()) < 0.22):
                    edges.append((offset + i, offset + j))
        batch += [graph] * size
        offset += size
    edge_index = torch.tensor(edges).t().contiguous()
    z, bond = torch.randint(0, 12, (offset,)), torch.randint(0, 5, (len(edges),))
    return net.eval(), (z, pos, edge_index, bond, torch.tensor(batch))
