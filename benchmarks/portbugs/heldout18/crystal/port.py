"""CrystalNet in MindSpore: energies, forces and stresses of periodic crystals by a line-graph network."""

from __future__ import annotations

import math
from collections import namedtuple

import mindspore as ms
import numpy as np
from mindspore import nn, ops

ELECTRONEGATIVITY = np.array([
    0.00,
    2.20, 0.00,
    0.98, 1.57, 2.04, 2.55, 3.04, 3.44, 3.98, 0.00,
    0.93, 1.31, 1.61, 1.90, 2.19, 2.58, 3.16, 0.00,
    0.82, 1.00, 1.36, 1.54, 1.63, 1.66, 1.55, 1.83, 1.88, 1.91, 1.90, 1.65, 1.81, 2.01, 2.18, 2.55, 2.96, 3.00,
], np.float32)
PERIOD_ENDS = (2, 10, 18, 36)

Graph = namedtuple(
    "Graph",
    "src dst batch edge_batch edge_weight vector distance unit cutoff_weight tri_in tri_out cosine tri_weight",
)


# ---- segments ----


def segment_sum(x, ids, num):
    return ops.unsorted_segment_sum(x, ids, num)


def segment_mean(x, ids, num, weight=None):
    """Mean over each segment, rows with weight 0 do not count."""
    if weight is None:
        weight = ops.ones((x.shape[0],), x.dtype)
    number = ops.maximum(segment_sum(weight, ids, num), ms.Tensor(1.0, x.dtype))
    return segment_sum(x * weight.expand_dims(-1), ids, num) / number.expand_dims(-1)


def segment_softmax(logits, ids, num):
    highest = ops.unsorted_segment_max(logits, ids, num)
    e = ops.exp(logits - highest[ids])
    return e / (segment_sum(e, ids, num)[ids] + 1e-12)


# ---- geometry ----


def displacement(frac, cell, batch, src, dst, image):
    """Cartesian vectors of the edges: from the receiver to the image of the sender."""
    diff = frac[src] + image.astype(frac.dtype) - frac[dst]
    cell_of_edge = cell[batch[dst]]
    return ops.matmul(diff.expand_dims(1), cell_of_edge).squeeze(1)


def cell_volume(cell):
    a, b, c = cell[:, 0], cell[:, 1], cell[:, 2]
    return ops.abs((a * ops.cross(b, c, 1)).sum(-1))


def cell_features(cell, volume, natoms):
    """a, b, c, cos(alpha), cos(beta), cos(gamma), log(volume per atom)."""
    abc = ops.sqrt(ops.square(cell).sum(-1))
    a, b, c = ops.unbind(cell / abc.expand_dims(-1), 1)
    cosines = ops.stack([(b * c).sum(-1), (a * c).sum(-1), (a * b).sum(-1)], axis=-1)
    density = ops.log(volume / natoms) - 2.5
    return ops.cat([abc / 5.0, cosines, density.expand_dims(-1)], axis=-1)


def smooth_cutoff(r, r_max, p=5):
    """Polynomial envelope, with zero value, slope and curvature at r_max."""
    x = r / r_max
    xp = ops.pow(x, p)
    y = 1.0 - 0.5 * (p + 1) * (p + 2) * xp + p * (p + 2) * xp * x - 0.5 * p * (p + 1) * xp * x * x
    return ops.where(x < 1.0, y, ops.zeros_like(y))


def periodic_graph(frac, cell, batch, edge_index, image, edge_mask, triplets, triplet_mask, r_max, r_bond):
    """Vectors, cutoffs and angles of the whole batch in one record."""
    src, dst = edge_index[0], edge_index[1]
    vector = displacement(frac, cell, batch, src, dst, image)
    distance = ops.sqrt(ops.square(vector).sum(-1) + 1e-12)
    distance = ops.where(edge_mask, distance, ops.full_like(distance, r_max))
    unit = vector / distance.expand_dims(-1)

    tri_in, tri_out = triplets[0], triplets[1]
    cosine = ops.clamp(-(unit[tri_in] * unit[tri_out]).sum(-1), -1.0, 1.0)
    near = smooth_cutoff(distance, r_bond)
    tri_weight = near[tri_in] * near[tri_out] * triplet_mask.astype(frac.dtype)
    return Graph(
        src, dst, batch, batch[dst], edge_mask.astype(frac.dtype), vector, distance, unit,
        smooth_cutoff(distance, r_max), tri_in, tri_out, cosine, tri_weight,
    )


# ---- bases and embeddings ----


def perceptron(sizes):
    cells = []
    for i, (n_in, n_out) in enumerate(zip(sizes[:-1], sizes[1:])):
        if i > 0:
            cells.append(nn.SiLU())
        cells.append(nn.Dense(n_in, n_out))
    return nn.SequentialCell(cells)


class RadialBasis(nn.Cell):
    """Gaussians and Bessel functions of the distance; the Bessel functions carry the envelope."""

    def __init__(self, num_gaussian: int, num_bessel: int, r_max: float):
        super().__init__()
        self.r_max = r_max
        mu = np.linspace(0.5, r_max, num_gaussian, dtype=np.float32)
        self.mu = ms.Tensor(mu)
        self.gamma = float(0.5 / (mu[1] - mu[0]) ** 2)
        self.prefactor = math.sqrt(2.0 / r_max)
        freq = np.pi * np.arange(1, num_bessel + 1, dtype=np.float32)
        self.freq = ms.Parameter(ms.Tensor(freq, ms.float32), name="freq")

    def construct(self, r, envelope):
        r = r.expand_dims(-1)
        gaussian = ops.exp(-self.gamma * ops.square(r - self.mu))
        bessel = self.prefactor * ops.sin(self.freq * r / self.r_max) / r
        return gaussian, bessel * envelope.expand_dims(-1)


class AngleBasis(nn.Cell):
    """Products of the radial functions with normalised Legendre polynomials."""

    def __init__(self, lmax: int):
        super().__init__()
        self.lmax = lmax
        self.coefficients = ms.Tensor(np.sqrt((2 * np.arange(lmax) + 1) / 2.0), ms.float32)

    def construct(self, cosine, radial):
        before, now = ops.ones_like(cosine), cosine
        polynomials = [before, now]
        for l in range(2, self.lmax):
            before, now = now, ((2 * l - 1) * cosine * now - (l - 1) * before) / l
            polynomials.append(now)
        angular = ops.stack(polynomials, axis=-1) * self.coefficients
        products = radial.expand_dims(2) * angular.expand_dims(1)
        return products.reshape(products.shape[0], -1)


def element_table(bins):
    """One row for each element: period (4), group (18), electronegativity smeared over bins."""
    grid = np.linspace(0.5, 4.0, bins, dtype=np.float32)
    rows = np.zeros((len(ELECTRONEGATIVITY), 22 + bins), np.float32)
    start = 0
    for period, end in enumerate(PERIOD_ENDS):
        for z in range(start + 1, end + 1):
            group = z - start
            if period == 0 and z == 2:
                group = 18
            elif period in (1, 2) and group > 2:
                group += 10
            rows[z, period] = 1.0
            rows[z, 3 + group] = 1.0
            rows[z, 22:] = np.exp(-((ELECTRONEGATIVITY[z] - grid) ** 2) / 0.25)
        start = end
    return rows


class ElementEmbedding(nn.Cell):
    def __init__(self, width: int, bins: int = 8):
        super().__init__()
        self.table = ms.Tensor(element_table(bins))
        self.linear = nn.Dense(22 + bins, width)
        self.free = nn.Embedding(len(ELECTRONEGATIVITY), width, padding_idx=0)

    def construct(self, z):
        return self.linear(self.table[z]) + self.free(z)


# ---- message passing ----


class GatedGraphConv(nn.Cell):
    """Edge-gated convolution as in ALIGNN, returns new nodes and new edges."""

    def __init__(self, width: int):
        super().__init__()
        self.gate_src = nn.Dense(width, width)
        self.gate_dst = nn.Dense(width, width)
        self.gate_edge = nn.Dense(width, width)
        self.lin_self = nn.Dense(width, width)
        self.lin_neighbour = nn.Dense(width, width)
        self.node_norm = nn.BatchNorm1d(width)
        self.edge_norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, x, e, src, dst, weight):
        m = self.gate_src(x)[src] + self.gate_dst(x)[dst] + self.gate_edge(e)
        gate = ops.sigmoid(m) * weight.expand_dims(-1)
        num = x.shape[0]
        numerator = segment_sum(gate * self.lin_neighbour(x)[src], dst, num)
        denominator = segment_sum(gate, dst, num) + 1e-6
        h = self.lin_self(x) + numerator / denominator
        x = x + ops.silu(self.node_norm(h))
        e = e + ops.silu(self.edge_norm(m))
        return x, e


class InteractionLayer(nn.Cell):
    """Line graph, atom graph, then the crystal's state."""

    def __init__(self, width: int, state: int):
        super().__init__()
        self.line_conv = GatedGraphConv(width)
        self.atom_conv = GatedGraphConv(width)
        self.state_mlp = perceptron([state + 2 * width, 2 * state, state])
        self.state_to_atoms = nn.Dense(state, width)

    def construct(self, x, e, a, u, g):
        e, a = self.line_conv(e, a, g.tri_in, g.tri_out, g.tri_weight)
        x, e = self.atom_conv(x, e, g.src, g.dst, g.cutoff_weight)
        num = u.shape[0]
        mean_bond = segment_mean(e, g.edge_batch, num, g.edge_weight)
        mean_atom = segment_mean(x, g.batch, num)
        u = u + self.state_mlp(ops.cat([u, mean_bond, mean_atom], axis=-1))
        x = x + self.state_to_atoms(u)[g.batch]
        return x, e, a, u


class CGCNNConv(nn.Cell):
    def __init__(self, width: int):
        super().__init__()
        self.fc = nn.Dense(3 * width, 2 * width)
        self.bn_message = nn.BatchNorm1d(2 * width, eps=1e-3)
        self.bn_sum = nn.BatchNorm1d(width, eps=1e-3)

    def construct(self, x, e, g):
        z = ops.cat([x[g.dst], x[g.src], e], axis=-1)
        gate, core = ops.chunk(self.bn_message(self.fc(z)), 2, axis=-1)
        message = ops.sigmoid(gate) * ops.softplus(core) * g.cutoff_weight.expand_dims(-1)
        total = self.bn_sum(segment_sum(message, g.dst, x.shape[0]))
        return ops.softplus(x + total) - math.log(2.0)


# ---- readout and heads ----


class AttentiveSet2Set(nn.Cell):
    def __init__(self, width: int, num_heads: int, num_steps: int):
        super().__init__()
        self.width = width
        self.num_heads = num_heads
        self.num_steps = num_steps
        self.cell = nn.LSTMCell(2 * width, width)
        self.w_key = nn.Dense(width, width)
        self.w_query = nn.Dense(width, width)
        self.w_value = nn.Dense(width, width)
        self.leaky = nn.LeakyReLU(alpha=0.01)
        self.attn = ms.Parameter(ops.zeros((num_heads, width // num_heads)), name="attn")

    def split_heads(self, x):
        return x.reshape(x.shape[0], self.num_heads, -1)

    def construct(self, x, batch, num):
        key, value = self.w_key(x), self.split_heads(self.w_value(x))
        h = ops.zeros((num, self.width), x.dtype)
        c = ops.zeros((num, self.width), x.dtype)
        q_star = ops.zeros((num, 2 * self.width), x.dtype)
        for _ in range(self.num_steps):
            h, c = self.cell(q_star, (h, c))
            scores = self.split_heads(self.leaky(key + self.w_query(h)[batch]))
            scores = (scores * self.attn).sum(-1)
            weights = segment_softmax(scores, batch, num)
            r = segment_sum(weights.expand_dims(-1) * value, batch, num)
            q_star = ops.cat([h, r.reshape(num, -1)], axis=-1)
        return q_star


class EnergyOutput(nn.Cell):
    """Energy per atom."""

    def __init__(self, width: int, state: int, scale: float):
        super().__init__()
        self.scale = scale
        self.atom_ref = nn.Embedding(len(ELECTRONEGATIVITY), 1)
        self.per_atom = perceptron([width, width // 2, 1])
        self.per_crystal = perceptron([2 * width + state, width, 1])

    def construct(self, x, pooled, u, z, batch, natoms):
        e_atom = self.per_atom(x) * self.scale + self.atom_ref(z)
        e_total = segment_sum(e_atom.squeeze(-1), batch, natoms.shape[0])
        correction = self.per_crystal(ops.cat([pooled, u], axis=-1))
        return e_total / natoms + correction.squeeze(-1)


class ForceOutput(nn.Cell):
    """Forces on atoms as sums of pair forces, stress as the pair virial in Voigt's order."""

    def __init__(self, width: int):
        super().__init__()
        self.pair_mlp = perceptron([3 * width, width, 1])

    def construct(self, x, e, g, volume):
        num = volume.shape[0]
        x_src, x_dst = x[g.src], x[g.dst]
        pair = self.pair_mlp(ops.cat([x_src + x_dst, ops.abs(x_src - x_dst), e], axis=-1))
        f = pair * g.unit * g.cutoff_weight.expand_dims(-1)
        forces = -segment_sum(f, g.dst, x.shape[0])
        forces = forces - segment_mean(forces, g.batch, num)[g.batch]

        virial = segment_sum(g.vector.expand_dims(2) * f.expand_dims(1), g.edge_batch, num)
        sym = 0.5 * (virial + virial.swapaxes(1, 2))
        sym = sym / (2.0 * volume.reshape(-1, 1, 1))
        stress = ops.stack(
            [sym[:, 0, 0], sym[:, 1, 1], sym[:, 2, 2], sym[:, 1, 2], sym[:, 0, 2], sym[:, 0, 1]], axis=-1
        )
        return forces, stress


class CrystalNet(nn.Cell):
    """The whole model."""

    def __init__(self, width=24, state=10, num_bessel=6, num_gaussian=9, lmax=5, num_layers=2, num_heads=3, num_steps=3,
                 r_max=4.5, r_bond=3.4, scale=0.75):
        super().__init__()
        self.r_max = r_max
        self.r_bond = r_bond
        self.radial = RadialBasis(num_gaussian, num_bessel, r_max)
        self.angle_basis = AngleBasis(lmax)
        self.embed_atoms = ElementEmbedding(width)
        self.embed_edges = perceptron([num_gaussian + num_bessel, width, width])
        self.embed_angles = perceptron([num_bessel * lmax, width, width])
        self.embed_state = nn.Dense(7, state)
        self.layers = nn.CellList([InteractionLayer(width, state) for _ in range(num_layers)])
        self.cgcnn = CGCNNConv(width)
        self.pool = AttentiveSet2Set(width, num_heads, num_steps)
        self.energy_head = EnergyOutput(width, state, scale)
        self.force_head = ForceOutput(width)

    def construct(self, z, frac, cell, batch, edge_index, image, edge_mask, triplets, triplet_mask):
        num = cell.shape[0]
        natoms = segment_sum(ops.ones((z.shape[0],), frac.dtype), batch, num)
        volume = cell_volume(cell)
        g = periodic_graph(frac, cell, batch, edge_index, image, edge_mask, triplets, triplet_mask, self.r_max, self.r_bond)

        gaussian, bessel = self.radial(g.distance, g.cutoff_weight)
        e = self.embed_edges(ops.cat([gaussian, bessel], axis=-1))
        a = self.embed_angles(self.angle_basis(g.cosine, bessel[g.tri_in]))
        x = self.embed_atoms(z)
        u = ops.tanh(self.embed_state(cell_features(cell, volume, natoms)))

        for layer in self.layers:
            x, e, a, u = layer(x, e, a, u, g)
        x = self.cgcnn(x, e, g)

        pooled = self.pool(x, batch, num)
        energy = self.energy_head(x, pooled, u, z, batch, natoms)
        forces, stress = self.force_head(x, e, g, volume)
        return energy, forces, stress


def build():
    """The net alone; the weights and the inputs come from the reference."""
    return CrystalNet()
