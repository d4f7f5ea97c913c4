"""Mesh graph network with mesh and world edges in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

# node types of the data sets
NORMAL = 0
OBSTACLE = 1
HANDLE = 3
NUM_TYPES = 9

NEG_INF = -3.0e38


def mesh_topology(cells, num_nodes, max_nodes):
    """The batch as one big graph, in numpy: the mesh does not change while the simulation runs."""
    starts = np.concatenate([[0], np.cumsum(num_nodes)[:-1]])
    rows, owner, triangles = [], [], []
    for g, n in enumerate(num_nodes):
        rows.append(g * max_nodes + np.arange(n))
        owner.append(np.full(n, g))
        own_cells = cells[g][cells[g].min(axis=1) >= 0]
        triangles.append(own_cells + starts[g])
    rows, owner, triangles = np.concatenate(rows), np.concatenate(owner), np.concatenate(triangles)

    total = len(rows)
    ends = np.concatenate([triangles[:, (0, 1)], triangles[:, (1, 2)], triangles[:, (2, 0)]])
    lo, hi = ends.min(axis=1), ends.max(axis=1)
    codes = np.unique(lo * total + hi)
    lo, hi = codes // total, codes % total
    src = np.concatenate([lo, hi])
    dst = np.concatenate([hi, lo])
    return rows, owner, triangles, src, dst


def index_tensor(array):
    return Tensor(np.ascontiguousarray(array).astype(np.int32))


def scatter_sum(x, index, size):
    return ops.unsorted_segment_sum(x, index, size)


def scatter_max(x, index, size):
    """Segments without rows come out as the lowest float; they count as zero."""
    top = ops.unsorted_segment_max(x, index, size)
    return ops.masked_fill(top, top < NEG_INF, 0.0)


def corners(pos, triangles):
    return tuple(ops.gather(pos, triangles[:, k], 0) for k in range(3))


def node_areas(rest, triangles):
    """Rest area per node, a third from each triangle around it."""
    p0, p1, p2 = corners(rest, triangles)
    e1, e2 = p1 - p0, p2 - p0
    area = 0.5 * ops.abs(e1[:, 0:1] * e2[:, 1:2] - e1[:, 1:2] * e2[:, 0:1])
    out = 0.0
    for k in range(3):
        out = out + scatter_sum(area / 3.0, triangles[:, k], rest.shape[0])
    return out


def node_normals(pos, triangles):
    p0, p1, p2 = corners(pos, triangles)
    ax, ay, az = ops.unbind(p1 - p0, dim=1)
    bx, by, bz = ops.unbind(p2 - p0, dim=1)
    cross = ops.stack((ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx), axis=1)
    summed = sum(scatter_sum(cross, triangles[:, k], pos.shape[0]) for k in range(3))
    length = ops.sqrt((summed * summed).sum(axis=1, keepdims=True))
    return summed / ops.clamp(length, min=1e-6)


def edge_vectors(pos, src, dst):
    """Vector from the receiver to the sender, followed by its length."""
    vector = ops.gather(pos, src, 0) - ops.gather(pos, dst, 0)
    length = ops.sqrt(ops.square(vector).sum(axis=-1, keepdims=True))
    return ops.cat((vector, length), axis=-1)


def radius_edges(pos, owner, free, src, dst, radius):
    """World edges: close pairs of one graph without a mesh edge, at least one end of which is free."""
    n = pos.shape[0]
    gap = ops.expand_dims(pos, 1) - ops.expand_dims(pos, 0)
    near = ops.square(gap).sum(axis=-1) < radius * radius
    allowed = np.equal(owner[:, None], owner[None, :])
    allowed = np.logical_and(allowed, np.logical_or(free[:, None], free[None, :]))
    allowed[np.arange(n), np.arange(n)] = False
    allowed[src, dst] = False
    pairs = ops.nonzero(ops.logical_and(near, Tensor(allowed))).astype(ms.int32)
    return pairs[:, 0], pairs[:, 1]


class Normalizer(nn.Cell):
    """Online statistics, kept as sums."""

    def __init__(self, size, std_epsilon=1e-8):
        super().__init__()
        self.std_epsilon = std_epsilon
        self.acc_count = Parameter(Tensor(0.0, ms.float32), name="acc_count", requires_grad=False)
        self.num_accumulations = Parameter(Tensor(0.0, ms.float32), name="num_accumulations", requires_grad=False)
        self.acc_sum = Parameter(ops.zeros((size,), ms.float32), name="acc_sum", requires_grad=False)
        self.acc_sum_squared = Parameter(ops.zeros((size,), ms.float32), name="acc_sum_squared", requires_grad=False)

    def statistics(self):
        count = ops.maximum(self.acc_count, Tensor(1.0, ms.float32))
        mean = self.acc_sum / count
        variance = self.acc_sum_squared / count - ops.square(mean)
        std = ops.sqrt(ops.relu(variance))
        return mean, ops.clamp(std, min=self.std_epsilon)

    def construct(self, x, inverse=False):
        mean, std = self.statistics()
        if inverse:
            return x * std + mean
        return (x - mean) / std


class MLP(nn.Cell):
    """Dense layers with GELU between them, and layer norm behind unless switched off."""

    def __init__(self, n_in, n_hidden, n_out, depth, layer_norm=True):
        super().__init__()
        layers = [nn.Dense(n_in, n_hidden)]
        for _ in range(depth - 1):
            layers.append(nn.Dense(n_hidden, n_hidden))
        layers.append(nn.Dense(n_hidden, n_out))
        self.layers = nn.CellList(layers)
        self.act = nn.GELU(approximate=False)
        self.layer_norm = layer_norm
        if layer_norm:
            self.norm = nn.LayerNorm((n_out,), epsilon=1e-5)

    def construct(self, x):
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i < last:
                x = self.act(x)
        if self.layer_norm:
            x = self.norm(x)
        return x


class Encoder(nn.Cell):
    def __init__(self, node_in, mesh_in, world_in, hidden, latent, depth):
        super().__init__()
        self.node_mlp = MLP(node_in, hidden, latent, depth)
        self.mesh_edge_mlp = MLP(mesh_in, hidden, latent, depth)
        self.world_edge_mlp = MLP(world_in, hidden, latent, depth)

    def construct(self, nodes, mesh, world):
        return self.node_mlp(nodes), self.mesh_edge_mlp(mesh), self.world_edge_mlp(world)


class GraphNetBlock(nn.Cell):
    """One step of message passing over both sets of edges."""

    def __init__(self, hidden, latent, depth):
        super().__init__()
        self.mesh_edge_mlp = MLP(3 * latent, hidden, latent, depth)
        self.world_edge_mlp = MLP(3 * latent, hidden, latent, depth)
        self.node_mlp = MLP(4 * latent, hidden, latent, depth)

    def construct(self, h, mesh, world, mesh_ends, world_ends):
        n = h.shape[0]
        (m_src, m_dst), (w_src, w_dst) = mesh_ends, world_ends
        mesh_in = ops.cat((mesh, ops.gather(h, m_src, 0), ops.gather(h, m_dst, 0)), axis=1)
        mesh_msg = self.mesh_edge_mlp(mesh_in)
        world_in = ops.cat((world, ops.gather(h, w_src, 0), ops.gather(h, w_dst, 0)), axis=1)
        world_msg = self.world_edge_mlp(world_in)

        mesh_sum = scatter_sum(mesh_msg, m_dst, n)
        mesh_max = scatter_max(mesh_msg, m_dst, n)
        world_sum = scatter_sum(world_msg, w_dst, n)
        update = self.node_mlp(ops.cat((h, mesh_sum, mesh_max, world_sum), axis=1))
        mesh = mesh + mesh_msg
        world = world + world_msg
        return h + update, mesh, world


class StressHead(nn.Cell):
    """1d convolutions over the latent vector of every node."""

    def __init__(self, latent, channels):
        super().__init__()
        self.conv1 = nn.Conv1d(1, channels, 5, stride=2, pad_mode="pad", padding=4, dilation=2, has_bias=True)
        self.act = nn.SiLU()
        self.conv2 = nn.Conv1d(channels, 2, 3, pad_mode="valid", has_bias=True)
        self.fc = nn.Dense(2 * (latent // 2 - 2), 1)

    def construct(self, h):
        y = self.act(self.conv1(ops.expand_dims(h, 1)))
        y = self.act(self.conv2(y))
        y = self.fc(y.reshape(y.shape[0], -1))
        return ops.softplus(y)[:, 0]


class EnergyReadout(nn.Cell):
    """Energy of each graph."""

    def __init__(self, latent, hidden):
        super().__init__()
        self.fc1 = nn.Dense(2 * latent, hidden)
        self.bn = nn.BatchNorm1d(hidden, eps=1e-3)
        self.act = nn.ELU()
        self.fc2 = nn.Dense(hidden, 1)

    def construct(self, h, mass, owner, graphs):
        share = mass / ops.gather(scatter_sum(mass, owner, graphs), owner, 0)
        mean = scatter_sum(h * share, owner, graphs)
        top = scatter_max(h, owner, graphs)
        y = self.act(self.bn(self.fc1(ops.cat((mean, top), axis=1))))
        return self.fc2(y)[:, 0]


class MeshSimulator(nn.Cell):
    """Rolls a batch of meshes out; positions (batch, steps, nodes, 3), last acceleration, stress, energies."""

    def __init__(self, latent=24, hidden=28, depth=2, blocks=3, radius=0.52, steps=4, mass_floor=1e-4):
        super().__init__()
        self.radius = radius
        self.steps = steps
        self.mass_floor = mass_floor
        self.node_normalizer = Normalizer(5)
        self.mesh_edge_normalizer = Normalizer(7)
        self.world_edge_normalizer = Normalizer(4)
        self.output_normalizer = Normalizer(3)
        self.encoder = Encoder(5 + NUM_TYPES, 7, 4, hidden, latent, depth)
        self.processor = nn.CellList([GraphNetBlock(hidden, latent, depth) for _ in range(blocks)])
        self.decoder = MLP(latent, hidden, 3, depth, layer_norm=False)
        self.stress_head = StressHead(latent, 6)
        self.readout = EnergyReadout(latent, 19)

    def node_inputs(self, pos, speed, kind, mass, wind, triangles):
        along = (node_normals(pos, triangles) * wind).sum(axis=1, keepdims=True)
        dynamic = ops.cat((speed, along, ops.log(mass + self.mass_floor)), axis=1)
        types = ops.one_hot(kind, NUM_TYPES).astype(dynamic.dtype)
        return ops.cat((self.node_normalizer(dynamic), types), axis=1)

    def predict(self, graph, pos, speed, world_ends):
        """Latents of the nodes and their accelerations."""
        rest, kind, mass, wind, triangles, mesh_ends = graph
        node_in = self.node_inputs(pos, speed, kind, mass, wind, triangles)
        mesh_in = ops.cat((edge_vectors(rest, *mesh_ends), edge_vectors(pos, *mesh_ends)), axis=1)
        world_in = edge_vectors(pos, *world_ends)
        h, mesh, world = self.encoder(
            node_in, self.mesh_edge_normalizer(mesh_in), self.world_edge_normalizer(world_in)
        )
        for block in self.processor:
            h, mesh, world = block(h, mesh, world, mesh_ends, world_ends)
        return h, self.output_normalizer(self.decoder(h), inverse=True)

    def construct(self, mesh_pos, world_pos, prev_world_pos, node_type, cells, script, num_nodes, wind):
        batch, width = node_type.shape
        rows, owner, triangles, src, dst = mesh_topology(cells.asnumpy(), num_nodes.asnumpy(), width)
        slot, owner_t, tri_t = index_tensor(rows), index_tensor(owner), index_tensor(triangles)
        mesh_ends = (index_tensor(src), index_tensor(dst))

        def flat(x):
            return ops.gather(x.reshape((batch * width,) + tuple(x.shape[2:])), slot, 0)

        def padded(x):
            out = ops.zeros((batch * width,) + tuple(x.shape[1:]), x.dtype)
            out = ops.tensor_scatter_elements(
                out, ops.broadcast_to(slot.reshape((-1,) + (1,) * (x.ndim - 1)), x.shape), x, axis=0
            )
            return out.reshape((batch, width) + tuple(x.shape[1:]))

        kind = flat(node_type).astype(ms.int32)
        rest, pos, before = flat(mesh_pos), flat(world_pos), flat(prev_world_pos)
        mass = node_areas(rest, tri_t)
        graph = (rest, kind, mass, ops.gather(wind, owner_t, 0), tri_t, mesh_ends)
        free = (kind == NORMAL).asnumpy()
        obstacle = ops.expand_dims(kind == OBSTACLE, 1)
        handle = ops.expand_dims(kind == HANDLE, 1)

        track, energy = [], []
        for t in range(self.steps):
            goal = flat(script[:, t + 1])
            speed = ops.where(obstacle, goal - pos, pos - before)
            world_ends = radius_edges(pos, owner, free, src, dst, self.radius)
            h, accel = self.predict(graph, pos, speed, world_ends)

            step = pos + (pos - before) + accel
            step = ops.where(handle, pos, step)
            step = ops.where(obstacle, goal, step)
            before = pos
            pos = step
            track.append(padded(pos))
            energy.append(self.readout(h, mass, owner_t, batch))

        stress = ops.where(Tensor(free), self.stress_head(h), ops.zeros((h.shape[0],), h.dtype))
        return ops.stack(track, axis=1), padded(accel), padded(stress), ops.stack(energy, axis=1)


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = MeshSimulator()
    net.set_train(False)
    return net
