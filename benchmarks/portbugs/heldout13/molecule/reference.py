"""Energies, charges and dipoles of molecules: directional edge messages (DimeNet++), equivariant vector features (PaiNN)
and attention biased by shortest paths (Graphormer), in PyTorch: the reference."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

INV_SQRT_2 = 1.0 / math.sqrt(2.0)
COULOMB = 14.399645  # eV * Angstrom / e^2
MASSES = [0.0, 1.008, 4.003, 6.94, 9.012, 10.81, 12.011, 14.007, 15.999, 18.998]


def scatter_sum(x, index, size: int):
    return x.new_zeros((size,) + x.shape[1:]).index_add(0, index, x)


def scatter_mean(x, index, size: int):
    count = scatter_sum(torch.ones_like(index, dtype=x.dtype), index, size).clamp(min=1.0)
    return scatter_sum(x, index, size) / count.reshape((size,) + (1,) * (x.dim() - 1))


def radius_graph(pos, batch, cutoff: float):
    """Edges j -> i between atoms of one molecule nearer than the cutoff, sorted by i."""
    distance = (pos[:, None] - pos[None, :]).norm(dim=-1)
    near = (distance < cutoff) & (batch[:, None] == batch[None, :])
    near.fill_diagonal_(False)
    i, j = near.nonzero(as_tuple=True)
    return i, j


def triplets(i, j, short):
    """For each edge j -> i the short edges k -> j with k other than i: indices of both edges."""
    follows = (j[:, None] == i[None, :]) & (i[:, None] != j[None, :])
    follows = follows & short[None, :]
    ji, kj = follows.nonzero(as_tuple=True)
    return ji, kj


def shortest_paths(adjacency, limit: int):
    """Floyd-Warshall on a batch of adjacency matrices; no path counts as the limit."""
    length = adjacency.shape[-1]
    hops = torch.where(adjacency, 1, 510)
    eye = torch.eye(length, dtype=torch.bool, device=adjacency.device)
    hops = hops.masked_fill(eye, 0)
    for k in range(length):
        hops = torch.minimum(hops, hops[:, :, k : k + 1] + hops[:, k : k + 1, :])
    return hops.clamp(max=limit)


def shifted_softplus(x):
    return F.softplus(x) - math.log(2.0)


class BesselBasis(nn.Module):
    """DimeNet's radial basis: sines with learnt frequencies under a smooth polynomial cutoff."""

    def __init__(self, num_radial: int, cutoff: float, exponent: int = 5):
        super().__init__()
        self.cutoff = cutoff
        self.p = exponent + 1
        self.a = -(self.p + 1) * (self.p + 2) / 2
        self.b = self.p * (self.p + 2)
        self.c = -self.p * (self.p + 1) / 2
        self.freq = nn.Parameter(math.pi * torch.arange(1, num_radial + 1).float())

    def envelope(self, x):
        x_pow = x.pow(self.p - 1)
        value = 1.0 / x + self.a * x_pow + self.b * x_pow * x + self.c * x_pow * x * x
        return value * (x < 1.0).to(x.dtype)

    def forward(self, distance):
        x = distance.unsqueeze(-1) / self.cutoff
        return self.envelope(x) * (self.freq * x).sin() * math.sqrt(2.0 / self.cutoff)


class AngularBasis(nn.Module):
    """Zonal harmonics of the angle times the radial basis of the far edge."""

    def __init__(self, num_spherical: int):
        super().__init__()
        self.num_spherical = num_spherical
        order = torch.arange(num_spherical).float()
        self.register_buffer("norm", torch.sqrt((2 * order + 1) / (4 * math.pi)), persistent=False)

    def forward(self, rbf, angle, kj):
        x = angle.cos()
        legendre = [torch.ones_like(x), x]
        for l in range(1, self.num_spherical - 1):
            legendre.append(((2 * l + 1) * x * legendre[l] - l * legendre[l - 1]) / (l + 1))
        harmonics = torch.stack(legendre, dim=-1) * self.norm
        return (harmonics[:, :, None] * rbf[kj][:, None, :]).flatten(1)


class ResidualLayer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.lin1 = nn.Linear(width, width)
        self.lin2 = nn.Linear(width, width)

    def forward(self, x):
        return x + F.silu(self.lin2(F.silu(self.lin1(x))))


class TripletInteraction(nn.Module):
    """DimeNet++: an edge hears the edges that end where it begins, in a narrow space."""

    def __init__(self, width: int, narrow: int, basis: int, num_radial: int, num_spherical: int):
        super().__init__()
        self.lin_rbf1 = nn.Linear(num_radial, basis, bias=False)
        self.lin_rbf2 = nn.Linear(basis, width, bias=False)
        self.lin_sbf1 = nn.Linear(num_spherical * num_radial, basis, bias=False)
        self.lin_sbf2 = nn.Linear(basis, narrow, bias=False)
        self.lin_kj = nn.Linear(width, width)
        self.lin_ji = nn.Linear(width, width)
        self.lin_down = nn.Linear(width, narrow, bias=False)
        self.lin_up = nn.Linear(narrow, width, bias=False)
        self.before_skip = ResidualLayer(width)
        self.lin = nn.Linear(width, width)
        self.after_skip = nn.ModuleList([ResidualLayer(width) for _ in range(2)])

    def forward(self, m, rbf, sbf, kj, ji):
        x_ji = F.silu(self.lin_ji(m))
        x_kj = F.silu(self.lin_kj(m)) * self.lin_rbf2(self.lin_rbf1(rbf))
        x_kj = F.silu(self.lin_down(x_kj))
        x_kj = x_kj[kj] * self.lin_sbf2(self.lin_sbf1(sbf))
        x_kj = F.silu(self.lin_up(scatter_sum(x_kj, ji, m.shape[0])))
        h = x_ji + x_kj
        h = self.before_skip(h)
        h = F.silu(self.lin(h)) + m
        for layer in self.after_skip:
            h = layer(h)
        return h


class EdgesToAtoms(nn.Module):
    def __init__(self, width: int, num_radial: int):
        super().__init__()
        self.lin_rbf = nn.Linear(num_radial, width, bias=False)
        self.lin_up = nn.Linear(width, 2 * width, bias=False)
        self.lin_out = nn.Linear(2 * width, width)

    def forward(self, m, rbf, i, atoms: int):
        x = scatter_sum(self.lin_rbf(rbf) * m, i, atoms)
        return self.lin_out(shifted_softplus(self.lin_up(x)))


class PaiNNMessage(nn.Module):
    def __init__(self, width: int, num_radial: int):
        super().__init__()
        self.width = width
        self.phi = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3 * width))
        self.filter = nn.Linear(num_radial, 3 * width)

    def forward(self, s, v, rbf, cut, unit, i, j):
        weights = self.filter(rbf) * cut[:, None]
        ds, dv_v, dv_r = torch.split(self.phi(s)[j] * weights, self.width, dim=-1)
        dv = v[j] * dv_v[:, None, :] + unit[:, :, None] * dv_r[:, None, :]
        return s + scatter_sum(ds, i, s.shape[0]), v + scatter_sum(dv, i, s.shape[0])


class PaiNNUpdate(nn.Module):
    def __init__(self, width: int, eps: float = 1e-8):
        super().__init__()
        self.width = width
        self.eps = eps
        self.mix = nn.Linear(width, 2 * width, bias=False)
        self.net = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, s, v):
        u, w = self.mix(v).chunk(2, dim=-1)
        length = torch.sqrt((w * w).sum(dim=1) + self.eps)
        a_vv, a_sv, a_ss = self.net(torch.cat([s, length], dim=-1)).split(self.width, dim=-1)
        dot = (u * w).sum(dim=1)
        return s + a_ss + a_sv * dot, v + a_vv[:, None, :] * u


class GraphNorm(nn.Module):
    """Normalises each channel over the atoms of a molecule, with a learnt share of the mean."""

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.mean_scale = nn.Parameter(torch.ones(width))

    def forward(self, x, batch, count: int):
        x = x - scatter_mean(x, batch, count)[batch] * self.mean_scale
        var = scatter_mean(x.pow(2), batch, count)
        return self.weight * x / (var + self.eps).sqrt()[batch] + self.bias


class PairBias(nn.Module):
    """Graphormer's bias of the attention: hops, bonds and the virtual node's own."""

    def __init__(self, bonds: int, heads: int, limit: int):
        super().__init__()
        self.limit = limit
        self.heads = heads
        self.hop_encoder = nn.Embedding(limit + 2, heads, padding_idx=0)
        self.bond_encoder = nn.Embedding(bonds + 1, heads, padding_idx=0)
        self.virtual = nn.Embedding(1, heads)

    def forward(self, bond, mask):
        pairs = mask[:, :, None] & mask[:, None, :]
        hops = shortest_paths(bond > 0, self.limit) + 1
        hops = hops.masked_fill(~pairs, 0)
        inner = self.hop_encoder(hops) + self.bond_encoder(bond)
        count, length = mask.shape
        bias = inner.new_zeros(count, self.heads, length + 1, length + 1)
        bias[:, :, 1:, 1:] = inner.permute(0, 3, 1, 2)
        t = self.virtual.weight.view(1, self.heads, 1)
        bias[:, :, 1:, 0] = bias[:, :, 1:, 0] + t
        bias[:, :, 0, :] = bias[:, :, 0, :] + t
        padded = torch.cat([mask.new_zeros(count, 1), ~mask], dim=1)
        return bias.masked_fill(padded[:, None, None, :], float("-inf"))


class BiasedAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.scaling = (width // heads) ** -0.5
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x, bias):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q * self.scaling) @ k.transpose(-2, -1) + bias
        y = scores.softmax(dim=-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class GatedReadout(nn.Module):
    """A charge and a dipole of each atom from scalars and vectors."""

    def __init__(self, width: int):
        super().__init__()
        self.vec1 = nn.Linear(width, width, bias=False)
        self.vec2 = nn.Linear(width, 1, bias=False)
        self.net = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, s, v):
        length = self.vec1(v).norm(dim=-2)
        charge, gate = self.net(torch.cat([s, length], dim=-1)).unbind(dim=-1)
        return charge, self.vec2(v).squeeze(-1) * gate[:, None]


class EnergyHead(nn.Module):
    def __init__(self, types: int, width: int):
        super().__init__()
        self.lin1 = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.act = nn.LeakyReLU()
        self.lin2 = nn.Linear(width, 1)
        self.scale = nn.Embedding(types, 1)
        self.shift = nn.Embedding(types, 1)

    def forward(self, s, z):
        e = self.lin2(self.act(self.norm(self.lin1(s))))
        return (e * self.scale(z) + self.shift(z)).squeeze(-1)


class MoleculeNet(nn.Module):
    def __init__(self, types: int = 10, bonds: int = 3, width: int = 32, narrow: int = 16, basis: int = 8, heads: int = 4,
                 depth: int = 2, num_radial: int = 6, num_spherical: int = 4, limit: int = 5,
                 cutoff: float = 4.0, short: float = 2.8):  # fmt: skip
        super().__init__()
        self.cutoff, self.short = cutoff, short
        self.embedding = nn.Embedding(types, width, padding_idx=0)
        self.degree = nn.Embedding(6, width)
        self.token = nn.Embedding(1, width)
        self.rbf = BesselBasis(num_radial, cutoff)
        self.sbf = AngularBasis(num_spherical)
        self.edge_rbf = nn.Linear(num_radial, width)
        self.edge_lin = nn.Linear(3 * width, width)
        self.interactions = nn.ModuleList(
            [TripletInteraction(width, narrow, basis, num_radial, num_spherical) for _ in range(depth)]
        )
        self.outputs = nn.ModuleList([EdgesToAtoms(width, num_radial) for _ in range(depth)])
        self.messages = nn.ModuleList([PaiNNMessage(width, num_radial) for _ in range(depth)])
        self.updates = nn.ModuleList([PaiNNUpdate(width) for _ in range(depth)])
        self.norms = nn.ModuleList([GraphNorm(width) for _ in range(depth)])
        self.pair_bias = PairBias(bonds, heads, limit)
        self.attention = nn.ModuleList([BiasedAttention(width, heads) for _ in range(depth)])
        self.final_norm = nn.LayerNorm(width)
        self.readout = GatedReadout(width)
        self.energy = EnergyHead(types, width)
        self.register_buffer("masses", torch.tensor(MASSES), persistent=False)

    def forward(self, z, pos, batch, bond_index, bond_type, charge):
        count, atoms = charge.shape[0], z.shape[0]
        i, j = radius_graph(pos, batch, self.cutoff)
        vector = pos[j] - pos[i]
        distance = vector.norm(dim=-1)
        unit = vector / distance[:, None]
        cut = 0.5 * (torch.cos(math.pi * distance / self.cutoff) + 1.0)
        ji, kj = triplets(i, j, distance < self.short)
        to_i, to_k = -vector[ji], vector[kj]
        angle = torch.atan2(torch.linalg.cross(to_i, to_k).norm(dim=-1), (to_i * to_k).sum(dim=-1))
        rbf = self.rbf(distance)
        sbf = self.sbf(rbf, angle, kj)

        degree = torch.bincount(bond_index[0], minlength=atoms).clamp(max=5)
        s = self.embedding(z) + self.degree(degree)
        v = s.new_zeros(atoms, 3, s.shape[1])
        m = F.silu(self.edge_lin(torch.cat([s[i], s[j], F.silu(self.edge_rbf(rbf))], dim=-1)))
        for interact, output, message, update, norm in zip(
            self.interactions, self.outputs, self.messages, self.updates, self.norms
        ):
            m = interact(m, rbf, sbf, kj, ji)
            s = (s + output(m, rbf, i, atoms)) * INV_SQRT_2
            s, v = message(s, v, rbf, cut, unit, i, j)
            s, v = update(s, v)
            s = norm(s, batch, count)

        sizes = torch.bincount(batch, minlength=count)
        length = int(sizes.max())
        column = torch.arange(atoms) - (torch.cumsum(sizes, 0) - sizes)[batch]
        mask = torch.arange(length)[None, :] < sizes[:, None]
        dense = s.new_zeros(count, length, s.shape[1])
        dense[batch, column] = s
        bond = bond_type.new_zeros(count, length, length)
        bond[batch[bond_index[0]], column[bond_index[0]], column[bond_index[1]]] = bond_type
        bias = self.pair_bias(bond, mask)
        x = torch.cat([self.token.weight.expand(count, 1, -1), dense], dim=1)
        for layer in self.attention:
            x = layer(x, bias)
        x = self.final_norm(x)
        s = x[:, 1:][batch, column] + x[:, 0][batch]

        q, mu = self.readout(s, v)
        excess = (charge - scatter_sum(q, batch, count)) / sizes
        q = q + excess[batch]
        mass = self.masses[z][:, None]
        centre = scatter_sum(mass * pos, batch, count) / scatter_sum(mass, batch, count)
        dipole = scatter_sum(q[:, None] * (pos - centre[batch]) + mu, batch, count)
        pair = COULOMB * q[i] * q[j] / torch.sqrt(distance**2 + 1.0) * cut
        per_atom = self.energy(s, z) + 0.5 * scatter_sum(pair, i, atoms)
        return scatter_sum(per_atom, batch, count), dipole, q


def molecules(sizes, seed: int):
    """Random trees with bonds of 1.25 to 1.55 Angstrom and no two atoms nearer than 1.1."""
    rng = torch.Generator().manual_seed(seed)
    z, pos, batch, bonds = [], [], [], []
    for which, size in enumerate(sizes):
        start = len(pos)
        while len(pos) - start < size:
            parent = start + int(torch.randint(0, max(len(pos) - start, 1), (1,), generator=rng))
            step = F.normalize(torch.randn(3, generator=rng), dim=0) * (1.25 + 0.3 * torch.rand(1, generator=rng))
            place = pos[parent] + step if len(pos) > start else step
            if any((place - other).norm() < 1.1 for other in pos[start:]):
                continue
            if len(pos) > start:
                bonds.append((parent, len(pos), int(torch.randint(1, 4, (1,), generator=rng))))
            z.append([1, 6, 7, 8, 9, 6][int(torch.randint(0, 6, (1,), generator=rng))])
            pos.append(place)
            batch.append(which)
    one = torch.tensor(bonds)
    index = torch.cat([one[:, :2], one[:, [1, 0]]]).T.contiguous()
    return torch.tensor(z), torch.stack(pos), torch.tensor(batch), index, one[:, 2].repeat(2)


def build():
    """The net with the same weights on every run, and four molecules, two of them charged."""
    torch.manual_seed(29)
    net = MoleculeNet()
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d, GraphNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.1)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.3, 1.2)
        elif isinstance(module, GraphNorm):
            nn.init.uniform_(module.mean_scale, 0.6, 1.0)
        elif isinstance(module, BesselBasis):
            module.freq.data += 0.1 * torch.randn(module.freq.shape)
        elif isinstance(module, EnergyHead):
            nn.init.uniform_(module.scale.weight, 0.5, 1.5)
            nn.init.normal_(module.shift.weight, std=1.0)
        elif isinstance(module, TripletInteraction):
            for child in module.children():
                if isinstance(child, nn.Linear):
                    nn.init.orthogonal_(child.weight, 1.3)
    z, pos, batch, index, kind = molecules([9, 5, 12, 7], 4)
    return net.eval(), (z, pos, batch, index, kind, torch.tensor([0.0, 1.0, 0.0, -1.0]))
