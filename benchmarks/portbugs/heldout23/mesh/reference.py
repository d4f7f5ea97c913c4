"""A mesh graph network with world edges for cloth and fluid sheets, rolled out over several steps, in PyTorch."""

from __future__ import annotations

import enum

import torch
import torch.nn.functional as F
from torch import nn


class NodeType(enum.IntEnum):
    """Types of nodes as they are stored in the data sets."""

    NORMAL = 0
    OBSTACLE = 1
    AIRFOIL = 2
    HANDLE = 3
    INFLOW = 4
    OUTFLOW = 5
    WALL_BOUNDARY = 6
    SIZE = 9


class Config:
    """What the flags of the run say."""

    latent_size = 24
    mlp_hidden = 28
    mlp_layers = 2
    message_passing_steps = 3
    world_radius = 0.52
    rollout_steps = 4
    node_inputs = 5  # velocity, wind along the normal, log of the mass
    mesh_edge_inputs = 7  # relative mesh position and length, relative world position and length
    world_edge_inputs = 4
    output_size = 3
    stress_channels = 6
    readout_hidden = 19
    mass_floor = 1e-4


def triangles_to_edges(faces):
    """Edges of the triangles (count, 3) in both directions, each once: senders and receivers."""
    edges = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]], dim=0)
    low = edges.min(dim=1).values
    high = edges.max(dim=1).values
    unique = torch.unique(torch.stack([low, high], dim=1), dim=0)
    senders, receivers = unique[:, 0], unique[:, 1]
    return torch.cat([senders, receivers], dim=0), torch.cat([receivers, senders], dim=0)


def find_world_edges(world_pos, graph_id, movable, senders, receivers, radius):
    """Pairs of the same graph closer than the radius that are no neighbours in the mesh.

    At least one end has to be a node that the simulation moves.
    """
    count = world_pos.shape[0]
    delta = world_pos[:, None, :] - world_pos[None, :, :]
    close = (delta**2).sum(dim=-1) < radius**2
    close = close & (graph_id[:, None] == graph_id[None, :])
    close = close & (movable[:, None] | movable[None, :])
    close.fill_diagonal_(False)
    neighbours = torch.zeros(count, count, dtype=torch.bool, device=world_pos.device)
    neighbours[senders, receivers] = True
    close = close & ~neighbours
    return torch.nonzero(close, as_tuple=True)


def segment_sum(values, index, count):
    """Sum of the rows that have the same index."""
    out = values.new_zeros(count, values.shape[1])
    return out.index_add_(0, index, values)


def segment_max(values, index, count):
    """Maximum of the rows that have the same index; zero where there is no row."""
    out = values.new_full((count, values.shape[1]), float("-inf"))
    out = out.scatter_reduce(0, index[:, None].expand_as(values), values, reduce="amax", include_self=True)
    return torch.where(torch.isinf(out), torch.zeros_like(out), out)


def lumped_mass(mesh_pos, faces):
    """A third of the rest area of every triangle goes to each of its corners."""
    a, b, c = mesh_pos[faces[:, 0]], mesh_pos[faces[:, 1]], mesh_pos[faces[:, 2]]
    u, v = b - a, c - a
    area = 0.5 * (u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]).abs()
    share = (area / 3.0)[:, None].expand(-1, 3).reshape(-1, 1)
    return segment_sum(share, faces.reshape(-1), mesh_pos.shape[0])


def vertex_normals(world_pos, faces):
    """Unit normals of the vertices, weighted by area."""
    a, b, c = world_pos[faces[:, 0]], world_pos[faces[:, 1]], world_pos[faces[:, 2]]
    face_normal = torch.cross(b - a, c - a, dim=-1)
    total = segment_sum(face_normal.repeat_interleave(3, dim=0), faces.reshape(-1), world_pos.shape[0])
    return F.normalize(total, dim=-1, eps=1e-6)


class Normalizer(nn.Module):
    """Normalises by statistics that are accumulated in training."""

    def __init__(self, size, max_accumulations=10**6, std_epsilon=1e-8):
        super().__init__()
        self.max_accumulations = max_accumulations
        self.std_epsilon = std_epsilon
        self.register_buffer("acc_count", torch.zeros(()))
        self.register_buffer("num_accumulations", torch.zeros(()))
        self.register_buffer("acc_sum", torch.zeros(size))
        self.register_buffer("acc_sum_squared", torch.zeros(size))

    def accumulate(self, batch):
        self.acc_sum += batch.sum(dim=0)
        self.acc_sum_squared += (batch**2).sum(dim=0)
        self.acc_count += batch.shape[0]
        self.num_accumulations += 1

    def mean(self):
        return self.acc_sum / self.acc_count.clamp(min=1.0)

    def std(self):
        variance = self.acc_sum_squared / self.acc_count.clamp(min=1.0) - self.mean() ** 2
        return variance.clamp(min=0.0).sqrt().clamp(min=self.std_epsilon)

    def forward(self, batch, inverse=False):
        if inverse:
            return batch * self.std() + self.mean()
        if self.training and self.num_accumulations < self.max_accumulations:
            self.accumulate(batch.detach())
        return (batch - self.mean()) / self.std()


class MLP(nn.Module):
    """Perceptron, with a layer norm at the end unless it decodes."""

    def __init__(self, in_size, hidden, out_size, num_layers, layer_norm=True):
        super().__init__()
        sizes = [in_size] + [hidden] * num_layers + [out_size]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:]))
        self.act = nn.GELU()
        self.norm = nn.LayerNorm(out_size) if layer_norm else None

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = self.act(layer(x))
        x = self.layers[-1](x)
        return x if self.norm is None else self.norm(x)


class Encoder(nn.Module):
    """Nodes and both sets of edges to the latent size."""

    def __init__(self, cfg):
        super().__init__()
        latent, hidden, layers = cfg.latent_size, cfg.mlp_hidden, cfg.mlp_layers
        self.node_mlp = MLP(cfg.node_inputs + int(NodeType.SIZE), hidden, latent, layers)
        self.mesh_edge_mlp = MLP(cfg.mesh_edge_inputs, hidden, latent, layers)
        self.world_edge_mlp = MLP(cfg.world_edge_inputs, hidden, latent, layers)

    def forward(self, nodes, mesh_edges, world_edges):
        return self.node_mlp(nodes), self.mesh_edge_mlp(mesh_edges), self.world_edge_mlp(world_edges)


class GraphNetBlock(nn.Module):
    """Updates the edges of both sets and then the nodes, each with a residual."""

    def __init__(self, cfg):
        super().__init__()
        latent, hidden, layers = cfg.latent_size, cfg.mlp_hidden, cfg.mlp_layers
        self.mesh_edge_mlp = MLP(3 * latent, hidden, latent, layers)
        self.world_edge_mlp = MLP(3 * latent, hidden, latent, layers)
        self.node_mlp = MLP(4 * latent, hidden, latent, layers)

    def _update_edges(self, mlp, nodes, edges, senders, receivers):
        return mlp(torch.cat([edges, nodes[senders], nodes[receivers]], dim=-1))

    def forward(self, nodes, mesh_edges, world_edges, mesh_index, world_index):
        count = nodes.shape[0]
        new_mesh = self._update_edges(self.mesh_edge_mlp, nodes, mesh_edges, *mesh_index)
        new_world = self._update_edges(self.world_edge_mlp, nodes, world_edges, *world_index)

        collected = [
            nodes,
            segment_sum(new_mesh, mesh_index[1], count),
            segment_max(new_mesh, mesh_index[1], count),
            segment_sum(new_world, world_index[1], count),
        ]
        new_nodes = self.node_mlp(torch.cat(collected, dim=-1))
        return nodes + new_nodes, mesh_edges + new_mesh, world_edges + new_world


class StressHead(nn.Module):
    """Convolutions along the latent of a node, as in decoders that bundle several quantities."""

    def __init__(self, cfg):
        super().__init__()
        self.conv1 = nn.Conv1d(1, cfg.stress_channels, 5, stride=2, padding=4, dilation=2)
        self.act = nn.SiLU()
        self.conv2 = nn.Conv1d(cfg.stress_channels, 2, 3)
        self.fc = nn.Linear(2 * (cfg.latent_size // 2 - 2), 1)

    def forward(self, latent):
        x = self.act(self.conv1(latent.unsqueeze(1)))
        x = self.act(self.conv2(x))
        return F.softplus(self.fc(x.flatten(1))).squeeze(-1)


class EnergyReadout(nn.Module):
    """One number for each graph from the mean weighted by mass and the maximum of its nodes."""

    def __init__(self, cfg):
        super().__init__()
        self.fc1 = nn.Linear(2 * cfg.latent_size, cfg.readout_hidden)
        self.bn = nn.BatchNorm1d(cfg.readout_hidden, eps=1e-3)
        self.act = nn.ELU()
        self.fc2 = nn.Linear(cfg.readout_hidden, 1)

    def forward(self, latent, mass, graph_id, num_graphs):
        weighted = segment_sum(latent * mass, graph_id, num_graphs)
        total = segment_sum(mass, graph_id, num_graphs)
        pooled = torch.cat([weighted / total, segment_max(latent, graph_id, num_graphs)], dim=-1)
        return self.fc2(self.act(self.bn(self.fc1(pooled)))).squeeze(-1)


class MeshGraphNet(nn.Module):
    """Encode, process, decode, and integrate; several times over."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.node_normalizer = Normalizer(cfg.node_inputs)
        self.mesh_edge_normalizer = Normalizer(cfg.mesh_edge_inputs)
        self.world_edge_normalizer = Normalizer(cfg.world_edge_inputs)
        self.output_normalizer = Normalizer(cfg.output_size)
        self.encoder = Encoder(cfg)
        self.processor = nn.ModuleList(GraphNetBlock(cfg) for _ in range(cfg.message_passing_steps))
        self.decoder = MLP(cfg.latent_size, cfg.mlp_hidden, cfg.output_size, cfg.mlp_layers, layer_norm=False)
        self.stress_head = StressHead(cfg)
        self.readout = EnergyReadout(cfg)

    @staticmethod
    def _pack(num_nodes, max_nodes, cells):
        """Where the real nodes lie in the padded batch, their graphs, and the triangles over packed nodes."""
        batch = num_nodes.shape[0]
        real = torch.arange(max_nodes, device=num_nodes.device)[None, :] < num_nodes[:, None]
        slots = torch.nonzero(real.reshape(-1)).squeeze(1)
        graph_id = torch.div(slots, max_nodes, rounding_mode="floor")
        offset = torch.cumsum(num_nodes, dim=0) - num_nodes
        shifted = cells + offset[:, None, None]
        faces = shifted.reshape(batch * cells.shape[1], 3)[(cells >= 0).all(dim=-1).reshape(-1)]
        return slots, graph_id, faces

    def _node_features(self, velocity, world_pos, node_type, mass, wind, faces):
        normal = vertex_normals(world_pos, faces)
        push = (normal * wind).sum(dim=-1, keepdim=True)
        log_mass = torch.log(mass + self.cfg.mass_floor)
        state = self.node_normalizer(torch.cat([velocity, push, log_mass], dim=-1))
        one_hot = F.one_hot(node_type, int(NodeType.SIZE)).to(state.dtype)
        return torch.cat([state, one_hot], dim=-1)

    def _mesh_edge_features(self, mesh_pos, world_pos, senders, receivers):
        rel_mesh = mesh_pos[senders] - mesh_pos[receivers]
        rel_world = world_pos[senders] - world_pos[receivers]
        features = [
            rel_mesh,
            torch.norm(rel_mesh, dim=-1, keepdim=True),
            rel_world,
            torch.norm(rel_world, dim=-1, keepdim=True),
        ]
        return self.mesh_edge_normalizer(torch.cat(features, dim=-1))

    def _world_edge_features(self, world_pos, senders, receivers):
        rel_world = world_pos[senders] - world_pos[receivers]
        length = torch.norm(rel_world, dim=-1, keepdim=True)
        return self.world_edge_normalizer(torch.cat([rel_world, length], dim=-1))

    def forward(self, mesh_pos, world_pos, prev_world_pos, node_type, cells, script, num_nodes, wind):
        """Everything is padded to (batch, max_nodes, ...), cells with -1; script is (batch, steps + 1, max_nodes, 3)."""
        batch, max_nodes = mesh_pos.shape[:2]
        slots, graph_id, faces = self._pack(num_nodes, max_nodes, cells)

        def packed(padded):
            return padded.reshape(batch * max_nodes, *padded.shape[2:])[slots]

        def unpacked(values):
            out = values.new_zeros(batch * max_nodes, *values.shape[1:])
            out[slots] = values
            return out.reshape(batch, max_nodes, *values.shape[1:])

        mesh_pos = packed(mesh_pos)
        node_type = packed(node_type)
        current, previous = packed(world_pos), packed(prev_world_pos)
        wind = wind[graph_id]
        senders, receivers = triangles_to_edges(faces)
        mass = lumped_mass(mesh_pos, faces)

        scripted = (node_type == NodeType.OBSTACLE)[:, None]
        held = (node_type == NodeType.HANDLE)[:, None]
        movable = node_type == NodeType.NORMAL

        positions, energies = [], []
        for step in range(self.cfg.rollout_steps):
            target = packed(script[:, step + 1])
            # nodes that follow a script know where they are going, the others where they came from
            velocity = torch.where(scripted, target - current, current - previous)
            nodes = self._node_features(velocity, current, node_type, mass, wind, faces)
            mesh_edges = self._mesh_edge_features(mesh_pos, current, senders, receivers)
            world_index = find_world_edges(current, graph_id, movable, senders, receivers, self.cfg.world_radius)
            world_edges = self._world_edge_features(current, *world_index)

            nodes, mesh_edges, world_edges = self.encoder(nodes, mesh_edges, world_edges)
            for block in self.processor:
                nodes, mesh_edges, world_edges = block(
                    nodes, mesh_edges, world_edges, (senders, receivers), world_index
                )
            acceleration = self.output_normalizer(self.decoder(nodes), inverse=True)

            moved = 2 * current - previous + acceleration
            moved = torch.where(held, current, moved)
            moved = torch.where(scripted, target, moved)
            previous, current = current, moved
            positions.append(unpacked(current))
            energies.append(self.readout(nodes, mass, graph_id, batch))

        stress = unpacked(self.stress_head(nodes) * movable.to(nodes.dtype))
        return torch.stack(positions, dim=1), unpacked(acceleration), stress, torch.stack(energies, dim=1)


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.2 * module.in_features**-0.5)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.Conv1d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1.3)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.005, 0.04)
    for module in net.modules():
        # what goes into a layer norm became narrow under weight decay
        if isinstance(module, MLP) and module.norm is not None:
            module.layers[-1].weight.data *= 0.05
            module.layers[-1].bias.data *= 0.05
    net.readout.fc1.weight.data *= 0.1
    statistics = {
        "node_normalizer": ([0.01, -0.03, 0.02, 0.3, -2.9], [0.06, 0.05, 0.07, 0.6, 0.5]),
        "mesh_edge_normalizer": ([0.0, 0.02, 0.47, 0.01, -0.02, 0.03, 0.49], [0.3, 0.36, 0.1, 0.29, 0.33, 0.14, 0.12]),
        "world_edge_normalizer": ([0.03, -0.02, 0.05, 0.42], [0.25, 0.22, 0.2, 0.09]),
        "output_normalizer": ([0.012, -0.008, -0.03], [0.03, 0.024, 0.04]),
    }
    for name, (mean, std) in statistics.items():
        normalizer = getattr(net, name)
        for rows in (301, 412, 287):
            normalizer.accumulate(torch.tensor(mean) + torch.tensor(std) * torch.randn(rows, len(mean)))
    return net


def make_sheet(rows, columns, spacing):
    """A folded sheet of two triangles to each square, with rest and world positions."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    rest = torch.stack([x, y], dim=-1).reshape(-1, 2) * spacing + 0.05 * torch.randn(rows * columns, 2)
    world = torch.cat([rest * torch.tensor([0.8, 0.9]), 0.3 * torch.sin(4.0 * rest[:, :1])], dim=1)
    world = world + 0.04 * torch.randn_like(world)
    cells = []
    for i in range(rows - 1):
        for j in range(columns - 1):
            corner = i * columns + j
            cells.append((corner, corner + 1, corner + columns))
            cells.append((corner + 1, corner + columns + 1, corner + columns))
    return rest, world, cells


def make_batch(cfg):
    """Three sheets of different sizes, each with an obstacle and some nodes that are held."""
    graphs = []
    for rows, columns, handles in ((4, 5, (0, 4)), (3, 4, (0,)), (5, 3, (0, 1, 2))):
        rest, world, cells = make_sheet(rows, columns, 0.4)
        first = rest.shape[0]
        corners = torch.tensor([[0.0, 0.0], [0.5, 0.1], [0.2, 0.45]])
        rest = torch.cat([rest, corners], dim=0)
        body = torch.cat([corners + 0.3, torch.full((3, 1), -0.15)], dim=1) + 0.05 * torch.randn(3, 3)
        world = torch.cat([world, body], dim=0)
        cells.append((first, first + 1, first + 2))
        node_type = torch.full((first + 3,), int(NodeType.NORMAL))
        node_type[list(handles)] = int(NodeType.HANDLE)
        node_type[first:] = int(NodeType.OBSTACLE)
        before = world - 0.05 * torch.randn_like(world) - torch.tensor([0.0, 0.02, 0.03])
        before[list(handles)] = world[list(handles)]
        path = torch.cumsum(torch.randn(cfg.rollout_steps + 1, 1, 3) * 0.06, dim=0)
        graphs.append((rest, world, before, node_type, torch.tensor(cells), world + path - path[:1]))
    num_nodes = torch.tensor([graph[0].shape[0] for graph in graphs])
    max_nodes, max_cells = int(num_nodes.max()), max(graph[4].shape[0] for graph in graphs)

    def pad(values, size, fill=0.0):
        return F.pad(values, (0, 0) * (values.ndim - 1) + (0, size - values.shape[0]), value=fill)

    def stacked(column):
        return torch.stack([pad(graph[column], max_nodes) for graph in graphs])

    script = [pad(graph[5].transpose(0, 1), max_nodes).transpose(0, 1) for graph in graphs]
    return {
        "mesh_pos": stacked(0),
        "world_pos": stacked(1),
        "prev_world_pos": stacked(2),
        "node_type": stacked(3).long(),
        "cells": torch.stack([pad(graph[4], max_cells, -1) for graph in graphs]),
        "script": torch.stack(script),
        "num_nodes": num_nodes,
        "wind": torch.randn(3, 3),
    }


def build():
    """The net with the same weights on every run, and a batch of three graphs."""
    torch.manual_seed(1723)
    cfg = Config()
    net = trained_like(MeshGraphNet(cfg))
    return net.eval(), tuple(make_batch(cfg).values())
