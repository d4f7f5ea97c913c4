"""Energies, charges and dipoles of molecules in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import initializer

COULOMB = 14.399645
MASSES = np.array([0.0, 1.008, 4.003, 6.94, 9.012, 10.81, 12.011, 14.007, 15.999, 18.998], np.float32)


def segment_sum(x, index, size):
    return ops.unsorted_segment_sum(x, index, size)


def segment_mean(x, index, size):
    """Mean of the rows of each segment; an empty one gives zeros."""
    count = ops.unsorted_segment_sum(ops.ones((index.shape[0],), x.dtype), index, size)
    count = ops.maximum(count, 1.0).reshape((size,) + (1,) * (x.ndim - 1))
    return ops.unsorted_segment_sum(x, index, size) / count


def vector_norm(x, axis=-1):
    return ops.sqrt(ops.reduce_sum(ops.square(x), axis))


def neighbours(pos, batch, cutoff):
    """Edges j -> i of atoms in one molecule, sorted by i."""
    distance = vector_norm(pos.expand_dims(1) - pos.expand_dims(0))
    same = ops.equal(batch.expand_dims(1), batch.expand_dims(0))
    other = ops.logical_not(ops.eye(pos.shape[0], pos.shape[0], ms.bool_))
    near = ops.logical_and(ops.logical_and(distance < cutoff, same), other)
    pairs = ops.nonzero(near)
    return pairs[:, 0], pairs[:, 1]


def find_triplets(i, j, short):
    """Pairs of edges k -> j -> i with k other than i, the first of them short."""
    joined = ops.equal(j.expand_dims(1), i.expand_dims(0))
    back = ops.equal(i.expand_dims(1), j.expand_dims(0))
    pairs = ops.nonzero(ops.logical_and(ops.logical_and(joined, ops.logical_not(back)), short.expand_dims(0)))
    return pairs[:, 0], pairs[:, 1]


def angles(vector, ji, kj):
    """The angle at atom j, between the ways to i and to k."""
    to_i = -ops.gather(vector, ji, 0)
    to_k = ops.gather(vector, kj, 0)
    x = (to_i * to_k).sum(axis=-1)
    y = vector_norm(ops.cross(to_i, to_k, dim=-1))
    return ops.atan2(y, x)


def cosine_cutoff(distance, cutoff):
    return 0.5 * (ops.cos(distance * (math.pi / cutoff)) + 1.0)


def floyd_warshall(adjacency, limit):
    """Hops between all pairs, at most the limit."""
    length = adjacency.shape[-1]
    hops = ops.where(adjacency, 1, 510)
    hops = ops.masked_fill(hops, ops.eye(length, length, ms.bool_), 0)
    for k in range(length):
        through = hops[:, :, k : k + 1] + hops[:, k : k + 1, :]
        hops = ops.minimum(hops, through)
    return ops.clamp(hops, max=limit)


class RadialBasis(nn.Cell):
    """Sines with learnt frequencies under DimeNet's polynomial cutoff."""

    def __init__(self, num_radial, cutoff, exponent=5):
        super().__init__()
        self.cutoff = cutoff
        p = exponent + 1
        self.power = p - 1
        self.coefficients = (-(p + 1) * (p + 2) / 2, p * (p + 2), -p * (p + 1) / 2)
        self.frequencies = Parameter(Tensor(math.pi * np.arange(1, num_radial + 1), ms.float32), name="frequencies")

    def construct(self, distance):
        x = distance.expand_dims(-1) / self.cutoff
        a, b, c = self.coefficients
        high = ops.pow(x, self.power)
        envelope = 1.0 / x + high * (a + x * (b + c * x))
        envelope = envelope * (x < 1.0).astype(ms.float32)
        return envelope * ops.sin(self.frequencies * x) * math.sqrt(2.0 / self.cutoff)


class AngularBasis(nn.Cell):
    def __init__(self, num_spherical):
        super().__init__()
        self.num_spherical = num_spherical
        self.norm = Tensor(np.sqrt((2 * np.arange(num_spherical) + 1) / (4 * np.pi)), ms.float32)

    def construct(self, rbf, angle, kj):
        x = ops.cos(angle)
        before, now = ops.ones_like(x), x
        legendre = [before, now]
        for l in range(1, self.num_spherical - 1):
            before, now = now, ((2 * l + 1) * x * now - l * before) / (l + 1)
            legendre.append(now)
        harmonics = ops.stack(legendre, axis=-1) * self.norm
        radial = ops.gather(rbf, kj, 0)
        return (harmonics.expand_dims(2) * radial.expand_dims(1)).reshape(radial.shape[0], -1)


class EdgeEmbedding(nn.Cell):
    """The first message of each edge, from both its atoms and its length."""

    def __init__(self, width, num_radial):
        super().__init__()
        self.dense_rbf = nn.Dense(num_radial, width)
        self.dense = nn.Dense(3 * width, width)

    def construct(self, s, rbf, i, j):
        length = ops.silu(self.dense_rbf(rbf))
        return ops.silu(self.dense(ops.cat((ops.gather(s, i, 0), ops.gather(s, j, 0), length), axis=-1)))


class Residual(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(width, width), nn.SiLU(), nn.Dense(width, width), nn.SiLU())

    def construct(self, x):
        return x + self.body(x)


class TripletInteraction(nn.Cell):
    def __init__(self, width, narrow, basis, num_radial, num_spherical):
        super().__init__()
        self.lin_rbf1 = nn.Dense(num_radial, basis, has_bias=False)
        self.lin_rbf2 = nn.Dense(basis, width, has_bias=False)
        self.lin_sbf1 = nn.Dense(num_spherical * num_radial, basis, has_bias=False)
        self.lin_sbf2 = nn.Dense(basis, narrow, has_bias=False)
        self.lin_kj = nn.Dense(width, width)
        self.lin_ji = nn.Dense(width, width)
        self.lin_down = nn.Dense(width, narrow, has_bias=False)
        self.lin_up = nn.Dense(narrow, width, has_bias=False)
        self.before_skip = Residual(width)
        self.lin = nn.Dense(width, width)
        self.after_skip = nn.SequentialCell([Residual(width) for _ in range(2)])

    def construct(self, m, rbf, sbf, kj, ji):
        own = ops.silu(self.lin_ji(m))
        far = ops.silu(self.lin_kj(m))
        far = far * self.lin_rbf2(self.lin_rbf1(rbf))
        far = ops.silu(self.lin_down(far))
        heard = ops.gather(far, kj, 0) * self.lin_sbf2(self.lin_sbf1(sbf))
        heard = segment_sum(heard, ji, m.shape[0])
        h = self.before_skip(own + ops.silu(self.lin_up(heard)))
        h = ops.silu(self.lin(h)) + m
        return self.after_skip(h)


class ShiftedSoftplus(nn.Cell):
    def construct(self, x):
        return ops.softplus(x) - math.log(2.0)


class EdgesToAtoms(nn.Cell):
    def __init__(self, width, num_radial):
        super().__init__()
        self.lin_rbf = nn.Dense(num_radial, width, has_bias=False)
        self.lin_up = nn.Dense(width, 2 * width, has_bias=False)
        self.act = ShiftedSoftplus()
        self.lin_out = nn.Dense(2 * width, width)

    def construct(self, m, rbf, i, atoms):
        gathered = segment_sum(m * self.lin_rbf(rbf), i, atoms)
        return self.lin_out(self.act(self.lin_up(gathered)))


class EquivariantMessage(nn.Cell):
    """PaiNN's message: s of shape (atoms, width), v of shape (atoms, 3, width)."""

    def __init__(self, width, num_radial):
        super().__init__()
        self.phi1 = nn.Dense(width, width)
        self.phi2 = nn.Dense(width, 3 * width)
        self.filter = nn.Dense(num_radial, 3 * width)

    def construct(self, s, v, rbf, cut, unit, i, j):
        atoms = s.shape[0]
        phi = self.phi2(ops.silu(self.phi1(s)))
        weights = self.filter(rbf) * cut.expand_dims(-1)
        ds, by_vector, by_unit = mint.chunk(ops.gather(phi, j, 0) * weights, 3, dim=-1)
        dv = ops.gather(v, j, 0) * by_vector.expand_dims(1)
        dv = dv + unit.expand_dims(2) * by_unit.expand_dims(1)
        return s + segment_sum(ds, i, atoms), v + segment_sum(dv, i, atoms)


class EquivariantUpdate(nn.Cell):
    def __init__(self, width, eps=1e-8):
        super().__init__()
        self.eps = eps
        self.mix = nn.Dense(width, 2 * width, has_bias=False)
        self.net = nn.SequentialCell(nn.Dense(2 * width, width), nn.SiLU(), nn.Dense(width, 3 * width))

    def construct(self, s, v):
        u, w = mint.chunk(self.mix(v), 2, dim=-1)
        length = ops.sqrt((w * w).sum(axis=1) + self.eps)
        gates = self.net(mint.cat((s, length), dim=-1))
        a_vv, a_sv, a_ss = mint.chunk(gates, 3, dim=-1)
        s = s + a_ss + a_sv * (u * w).sum(axis=1)
        v = v + a_vv.expand_dims(1) * u
        return s, v


class GraphNorm(nn.Cell):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.gamma = Parameter(initializer("ones", (width,)), name="gamma")
        self.beta = Parameter(initializer("zeros", (width,)), name="beta")
        self.mean_scale = Parameter(initializer("ones", (width,)), name="mean_scale")

    def construct(self, x, batch, count):
        mean = segment_mean(x, batch, count)
        x = x - ops.gather(mean * self.mean_scale, batch, 0)
        var = segment_mean(ops.square(x), batch, count)
        inv_std = ops.rsqrt(var + self.eps)
        return x * ops.gather(inv_std, batch, 0) * self.gamma + self.beta


class PairBias(nn.Cell):
    """What is added to the scores of the attention; the virtual node is the first row and column."""

    def __init__(self, bonds, heads, limit):
        super().__init__()
        self.limit = limit
        self.hop_encoder = nn.Embedding(limit + 2, heads, padding_idx=0)
        self.bond_encoder = nn.Embedding(bonds + 1, heads, padding_idx=0)
        self.virtual = nn.Embedding(1, heads)

    def construct(self, bond, mask):
        pairs = ops.logical_and(mask.expand_dims(2), mask.expand_dims(1))
        hops = floyd_warshall(bond > 0, self.limit) + 1
        hops = ops.masked_fill(hops, ops.logical_not(pairs), 0)
        inner = self.hop_encoder(hops) + self.bond_encoder(bond)
        inner = ops.transpose(inner, (0, 3, 1, 2))
        count, heads, length, _ = inner.shape
        t = self.virtual.embedding_table.reshape(1, heads, 1, 1)
        first_column = ops.broadcast_to(t, (count, heads, length, 1))
        first_row = ops.broadcast_to(t, (count, heads, 1, length + 1))
        bias = ops.cat((first_row, ops.cat((first_column, inner), axis=3)), axis=2)
        here = ops.cat((ops.ones((count, 1), ms.bool_), mask), axis=1)
        return ops.masked_fill(bias, ops.logical_not(here).reshape(count, 1, 1, length + 1), float("-inf"))


class FeedForward(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.fc1 = nn.Dense(width, 2 * width)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(2 * width, width)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class BiasedAttention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = width // heads
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.qkv = nn.Dense(width, 3 * width)
        self.out = nn.Dense(width, width)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.ffn = FeedForward(width)

    def to_heads(self, x):
        b, n, _ = x.shape
        return ops.transpose(x.reshape(b, n, self.heads, self.head_dim), (0, 2, 1, 3))

    def construct(self, x, bias):
        b, n, c = x.shape
        q, k, v = mint.chunk(self.qkv(self.norm1(x)), 3, dim=-1)
        q, k, v = self.to_heads(q), self.to_heads(k), self.to_heads(v)
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / math.sqrt(self.head_dim)
        weights = ops.softmax(scores + bias, axis=-1)
        y = ops.matmul(weights, v)
        y = ops.transpose(y, (0, 2, 1, 3)).reshape(b, n, c)
        x = x + self.out(y)
        return x + self.ffn(self.norm2(x))


class GatedReadout(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.vec1 = nn.Dense(width, width, has_bias=False)
        self.vec2 = nn.Dense(width, 1, has_bias=False)
        self.net = nn.SequentialCell(nn.Dense(2 * width, width), nn.SiLU(), nn.Dense(width, 2))

    def construct(self, s, v):
        length = vector_norm(self.vec1(v), axis=1)
        both = self.net(ops.cat((s, length), axis=-1))
        charge, gate = both[:, 0], both[:, 1:]
        return charge, self.vec2(v).squeeze(-1) * gate


class EnergyHead(nn.Cell):
    """The energy of each atom, scaled and shifted by its element."""

    def __init__(self, types, width):
        super().__init__()
        self.dense1 = nn.Dense(width, width)
        self.norm = nn.BatchNorm1d(width, eps=1e-5)
        self.act = nn.LeakyReLU(alpha=0.01)
        self.dense2 = nn.Dense(width, 1)
        self.scale = nn.Embedding(types, 1)
        self.shift = nn.Embedding(types, 1)

    def construct(self, s, z):
        e = self.dense2(self.act(self.norm(self.dense1(s))))
        return (self.scale(z) * e + self.shift(z)).squeeze(-1)


class MoleculeNet(nn.Cell):
    def __init__(self, types=10, bonds=3, width=32, narrow=16, basis=8, heads=4, depth=2, num_radial=6, num_spherical=4,
                 limit=5, cutoff=4.0, short=2.8):  # fmt: skip
        super().__init__()
        self.cutoff = cutoff
        self.short = short
        self.depth = depth
        self.embedding = nn.Embedding(types, width, padding_idx=0)
        self.degree = nn.Embedding(6, width)
        self.token = nn.Embedding(1, width)
        self.rbf = RadialBasis(num_radial, cutoff)
        self.sbf = AngularBasis(num_spherical)
        self.edge_embedding = EdgeEmbedding(width, num_radial)
        self.interactions = nn.CellList(
            [TripletInteraction(width, narrow, basis, num_radial, num_spherical) for _ in range(depth)]
        )
        self.outputs = nn.CellList([EdgesToAtoms(width, num_radial) for _ in range(depth)])
        self.messages = nn.CellList([EquivariantMessage(width, num_radial) for _ in range(depth)])
        self.updates = nn.CellList([EquivariantUpdate(width) for _ in range(depth)])
        self.norms = nn.CellList([GraphNorm(width) for _ in range(depth)])
        self.pair_bias = PairBias(bonds, heads, limit)
        self.attention = nn.CellList([BiasedAttention(width, heads) for _ in range(depth)])
        self.final_norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.readout = GatedReadout(width)
        self.energy = EnergyHead(types, width)
        self.masses = Tensor(MASSES)

    def attend(self, s, batch, sizes, bond_index, bond_type):
        """Atoms into a padded grid with a virtual node before them, through the attention, and back."""
        count, atoms = sizes.shape[0], s.shape[0]
        length = int(sizes.max())
        starts = ops.cumsum(sizes, 0) - sizes
        column = ops.arange(atoms) - ops.gather(starts, batch, 0)
        place = ops.stack((batch, column), axis=1)
        mask = ops.arange(length).expand_dims(0) < sizes.expand_dims(1)
        dense = ops.scatter_nd(place, s, (count, length, s.shape[1]))
        one, two = bond_index[0], bond_index[1]
        bond_place = ops.stack((ops.gather(batch, one, 0), ops.gather(column, one, 0), ops.gather(column, two, 0)), axis=1)
        bond = ops.scatter_nd(bond_place, bond_type, (count, length, length))
        bias = self.pair_bias(bond, mask)
        token = ops.broadcast_to(self.token.embedding_table.expand_dims(0), (count, 1, s.shape[1]))
        x = ops.cat((token, dense), axis=1)
        for layer in self.attention:
            x = layer(x, bias)
        x = self.final_norm(x)
        return ops.gather_nd(x[:, 1:], place) + ops.gather(x[:, 0], batch, 0)

    def construct(self, z, pos, batch, bond_index, bond_type, charge):
        count, atoms = charge.shape[0], z.shape[0]
        i, j = neighbours(pos, batch, self.cutoff)
        vector = ops.gather(pos, j, 0) - ops.gather(pos, i, 0)
        distance = vector_norm(vector)
        unit = vector / distance.expand_dims(1)
        cut = cosine_cutoff(distance, self.cutoff)
        ji, kj = find_triplets(i, j, distance < self.short)
        rbf = self.rbf(distance)
        sbf = self.sbf(rbf, angles(vector, ji, kj), kj)

        degree = ops.clamp(ops.bincount(bond_index[0], minlength=atoms), max=5).astype(ms.int32)
        s = self.embedding(z) + self.degree(degree)
        v = ops.zeros((atoms, 3, s.shape[1]), ms.float32)
        m = self.edge_embedding(s, rbf, i, j)
        for d in range(self.depth):
            m = self.interactions[d](m, rbf, sbf, kj, ji)
            s = (s + self.outputs[d](m, rbf, i, atoms)) / math.sqrt(2.0)
            s, v = self.messages[d](s, v, rbf, cut, unit, i, j)
            s, v = self.updates[d](s, v)
            s = self.norms[d](s, batch, count)

        sizes = ops.bincount(batch, minlength=count).astype(ms.int64)
        s = self.attend(s, batch, sizes, bond_index, bond_type)

        q, mu = self.readout(s, v)
        missing = charge - segment_sum(q, batch, count)
        q = q + ops.gather(missing / sizes.astype(ms.float32), batch, 0)
        mass = ops.gather(self.masses, z, 0).expand_dims(1)
        centre = segment_sum(mass * pos, batch, count) / segment_sum(mass, batch, count)
        arm = pos - ops.gather(centre, batch, 0)
        dipole = segment_sum(q.expand_dims(1) * arm + mu, batch, count)
        softened = ops.sqrt(ops.square(distance) + 1.0)
        pair = COULOMB * ops.gather(q, i, 0) * ops.gather(q, j, 0) / softened * cut
        per_atom = self.energy(s, z) + 0.5 * segment_sum(pair, i, atoms)
        return segment_sum(per_atom, batch, count), dipole, q


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return MoleculeNet().set_train(False)
