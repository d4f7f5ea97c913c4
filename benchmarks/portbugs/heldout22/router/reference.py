"""Attention model for the capacitated vehicle routing problem with time windows, several starts per instance, in PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

# kinds of edges
ORDINARY, NEIGHBOUR, FROM_DEPOT, TO_DEPOT, SELF = range(5)


@dataclass
class Config:
    embed_dim: int = 32
    num_heads: int = 4
    ff_hidden: int = 44
    num_layers: int = 3
    num_rbf: int = 9
    edge_dim: int = 10
    num_neighbours: int = 6
    num_starts: int = 5
    num_freqs: int = 3
    conv_groups: int = 8
    tanh_clipping: float = 10.0
    temperature: float = 1.3


@dataclass
class Instance:
    """Depot and customers in one row of nodes, the depot first; raw units and scaled ones."""

    xy: torch.Tensor  # (batch, nodes, 2), kilometres
    xy_scaled: torch.Tensor
    demand: torch.Tensor  # (batch, nodes), part of the vehicle's capacity
    window: torch.Tensor  # (batch, nodes, 2), minutes
    service: torch.Tensor  # (batch, nodes)
    horizon: torch.Tensor  # (batch,)
    valid: torch.Tensor  # (batch, nodes), false where padded
    dist: torch.Tensor  # (batch, nodes, nodes), kilometres
    dist_scaled: torch.Tensor


@dataclass
class State:
    """Of each start of each instance: (batch, starts) and (batch, starts, nodes)."""

    current: torch.Tensor
    load_left: torch.Tensor
    time: torch.Tensor
    visited: torch.Tensor


def pairwise_distance(xy):
    return (xy[:, :, None, :] - xy[:, None, :, :]).norm(p=2, dim=-1)


def scale_coordinates(xy, valid):
    """Move and stretch an instance into the unit square, with one factor for both axes."""
    outside = ~valid.unsqueeze(-1)
    low = xy.masked_fill(outside, float("inf")).amin(dim=1, keepdim=True)
    high = xy.masked_fill(outside, float("-inf")).amax(dim=1, keepdim=True)
    span = (high - low).amax(dim=-1, keepdim=True).clamp(min=1e-6)
    scaled = (xy - low) / span
    return scaled.masked_fill(outside, 0.0), span.squeeze(-1)


def make_instance(depot_xy, node_xy, demand, capacity, window, service, horizon, num_customers):
    batch, customers, _ = node_xy.shape
    device = node_xy.device
    valid = torch.arange(customers, device=device)[None, :] < num_customers[:, None]
    valid = torch.cat((valid.new_ones(batch, 1), valid), dim=1)

    xy = torch.cat((depot_xy[:, None, :], node_xy), dim=1)
    demand = F.pad(demand / capacity[:, None], (1, 0))
    service = F.pad(service, (1, 0))
    depot_window = torch.stack((torch.zeros_like(horizon), horizon), dim=-1)
    window = torch.cat((depot_window[:, None, :], window), dim=1)

    xy_scaled, span = scale_coordinates(xy, valid)
    dist = pairwise_distance(xy)
    return Instance(
        xy=xy, xy_scaled=xy_scaled, demand=demand, window=window, service=service, horizon=horizon, valid=valid,
        dist=dist, dist_scaled=dist / span[:, :, None],
    )


def nearest_nodes(dist, valid, k):
    """Indices (batch, nodes, k) of the nearest nodes of each node, itself first."""
    dist = dist.masked_fill(~valid[:, None, :], float("inf"))
    return dist.topk(k, dim=-1, largest=False, sorted=True).indices


def batched_gather(values, index):
    """values (batch, nodes, channels), index (batch, ...) -> (batch, ..., channels)."""
    batch, _, channels = values.shape
    flat = index.reshape(batch, -1, 1).expand(-1, -1, channels)
    return values.gather(1, flat).reshape(*index.shape, channels)


def masked_mean(x, valid):
    weight = valid.to(x.dtype).unsqueeze(-1)
    return (x * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)


def split_heads(x, num_heads):
    """(..., nodes, channels) -> (..., heads, nodes, channels of a head)."""
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


class MaskedInstanceNorm(nn.Module):
    """Instance norm over the nodes that are there."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x, valid):
        mean = masked_mean(x, valid).unsqueeze(1)
        centred = x - mean
        var = masked_mean(centred.square(), valid).unsqueeze(1)
        return centred * torch.rsqrt(var + self.eps) * self.weight + self.bias


class NodeEmbedding(nn.Module):
    """Linear embeddings of the depot and of the customers, and a convolution along each node's nearest nodes."""

    def __init__(self, dim, groups):
        super().__init__()
        self.depot = nn.Linear(3, dim)
        self.customer = nn.Linear(7, dim)
        self.nbr_conv = nn.Conv1d(5, dim, kernel_size=3, dilation=2)
        self.nbr_norm = nn.GroupNorm(groups, dim)
        self.nbr_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, inst, neighbours):
        horizon = inst.horizon[:, None]
        early, late = (inst.window / horizon[:, :, None]).unbind(dim=-1)
        service = inst.service / horizon
        depot_feat = torch.cat((inst.xy_scaled[:, 0], inst.valid[:, 1:].float().mean(dim=1, keepdim=True)), dim=-1)
        scalars = torch.stack((inst.demand, early, late, service, inst.dist_scaled[:, 0]), dim=-1)
        node_feat = torch.cat((inst.xy_scaled, scalars), dim=-1)
        h = torch.cat((self.depot(depot_feat)[:, None], self.customer(node_feat[:, 1:])), dim=1)

        batch, nodes, k = neighbours.shape
        offsets = batched_gather(inst.xy_scaled, neighbours) - inst.xy_scaled[:, :, None, :]
        lengths = inst.dist_scaled.gather(2, neighbours)
        static = batched_gather(torch.stack((inst.demand, late - early), dim=-1), neighbours)
        local = torch.cat((offsets, lengths[..., None], static), dim=-1)
        local = local.reshape(batch * nodes, k, -1).transpose(1, 2)
        local = F.relu(self.nbr_norm(self.nbr_conv(local))).amax(dim=-1)
        h = h + self.nbr_proj(local).reshape(batch, nodes, -1)
        return h * inst.valid[..., None]


class EdgeEmbedding(nn.Module):
    """Distances in radial functions, the slack between two windows and the kind of the edge."""

    def __init__(self, num_rbf, dim):
        super().__init__()
        centres = torch.linspace(0.0, math.sqrt(2.0), num_rbf)
        self.register_buffer("centres", centres, persistent=False)
        self.gamma = 0.5 / (centres[1] - centres[0]).item() ** 2
        self.kind = nn.Embedding(5, dim)
        self.proj = nn.Linear(num_rbf + 1, dim)
        self.act = nn.LeakyReLU(0.2)

    def edge_kinds(self, neighbours, nodes):
        batch = neighbours.shape[0]
        kinds = torch.full((batch, nodes, nodes), ORDINARY, dtype=torch.long, device=neighbours.device)
        kinds.scatter_(2, neighbours, NEIGHBOUR)
        kinds[:, 0, :] = FROM_DEPOT
        kinds[:, :, 0] = TO_DEPOT
        diagonal = torch.arange(nodes, device=neighbours.device)
        kinds[:, diagonal, diagonal] = SELF
        return kinds

    def forward(self, inst, neighbours):
        nodes = inst.xy.shape[1]
        rbf = torch.exp(-self.gamma * (inst.dist_scaled[..., None] - self.centres) ** 2)
        early, late = inst.window.unbind(dim=-1)
        ready = (early + inst.service)[:, :, None] + inst.dist
        slack = torch.tanh(4.0 * (late[:, None, :] - ready) / inst.horizon[:, None, None])
        e = self.proj(torch.cat((rbf, slack[..., None]), dim=-1))
        return self.act(e + self.kind(self.edge_kinds(neighbours, nodes)))


class EdgeAttention(nn.Module):
    """Multi-head attention among the nodes with a bias from the edges."""

    def __init__(self, dim, num_heads, edge_dim):
        super().__init__()
        self.num_heads = num_heads
        self.w_q = nn.Linear(dim, dim, bias=False)
        self.w_k = nn.Linear(dim, dim, bias=False)
        self.w_v = nn.Linear(dim, dim, bias=False)
        self.edge_bias = nn.Linear(edge_dim, num_heads, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, h, edges, valid):
        q, k, v = (split_heads(w(h), self.num_heads) for w in (self.w_q, self.w_k, self.w_v))
        score = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
        score = score + self.edge_bias(edges).permute(0, 3, 1, 2)
        score = score.masked_fill(~valid[:, None, None, :], float("-inf"))
        heads = torch.einsum("bhij,bhjd->bihd", score.softmax(dim=-1), v)
        return self.out(heads.flatten(2))


class EncoderLayer(nn.Module):
    """Attention with instance norm, perceptron with batch norm, both after the residual sum."""

    def __init__(self, cfg):
        super().__init__()
        self.attn = EdgeAttention(cfg.embed_dim, cfg.num_heads, cfg.edge_dim)
        self.norm1 = MaskedInstanceNorm(cfg.embed_dim)
        self.ff1 = nn.Linear(cfg.embed_dim, cfg.ff_hidden)
        self.act = nn.GELU()
        self.ff2 = nn.Linear(cfg.ff_hidden, cfg.embed_dim)
        self.norm2 = nn.BatchNorm1d(cfg.embed_dim, eps=1e-3)

    def forward(self, h, edges, valid):
        h = h + self.attn(h, edges, valid)
        h = self.norm1(h, valid)
        h = h + self.ff2(self.act(self.ff1(h)))
        h = self.norm2(h.flatten(0, 1)).view_as(h)
        return h * valid.unsqueeze(-1)


class Decoder(nn.Module):
    """One step of the pointer: a glimpse from the context, then clipped scores of the nodes."""

    def __init__(self, cfg):
        super().__init__()
        dim = cfg.embed_dim
        self.num_heads = cfg.num_heads
        self.tanh_clipping = cfg.tanh_clipping
        self.temperature = cfg.temperature
        freqs = 2.0 ** torch.arange(cfg.num_freqs) * math.pi
        self.register_buffer("freqs", freqs, persistent=False)
        self.project_graph = nn.Linear(2 * dim, dim, bias=False)
        self.project_nodes = nn.Linear(dim, 3 * dim, bias=False)
        self.project_context = nn.Linear(dim + 1 + 2 * cfg.num_freqs, dim)
        self.project_dynamic = nn.Linear(2, 3 * dim, bias=False)
        self.project_out = nn.Linear(dim, dim, bias=False)
        self.distance_weight = nn.Parameter(torch.ones(1))

    def precompute(self, h, valid):
        highest = h.masked_fill(~valid[..., None], float("-inf")).amax(dim=1)
        graph = torch.cat((masked_mean(h, valid), highest), dim=-1)
        return h, self.project_graph(graph), self.project_nodes(h), graph

    def encode_time(self, time):
        angle = time[..., None] * self.freqs
        return torch.cat((angle.sin(), angle.cos()), dim=-1)

    def forward(self, inst, cache, state, infeasible):
        h, fixed, node_proj, _ = cache
        horizon = inst.horizon[:, None]
        clock = self.encode_time(state.time / horizon)
        context = torch.cat((batched_gather(h, state.current), state.load_left[..., None], clock), dim=-1)
        query = fixed[:, None] + self.project_context(context)

        # what changes from step to step: the time that would be left at a node, and the share of the load it takes
        travel = batched_gather(inst.dist, state.current)
        slack = (inst.window[:, None, :, 1] - state.time[..., None] - travel) / horizon[..., None]
        share = inst.demand[:, None, :] / state.load_left[..., None].clamp(min=0.05)
        dynamic = torch.stack((slack.clamp(-1.0, 1.0), share.clamp(max=2.0)), dim=-1)
        proj = node_proj[:, None] + self.project_dynamic(dynamic)
        glimpse_k, glimpse_v, logit_k = proj.chunk(3, dim=-1)

        q = query.unflatten(-1, (self.num_heads, -1))
        k = split_heads(glimpse_k, self.num_heads)
        v = split_heads(glimpse_v, self.num_heads)
        score = torch.einsum("bphd,bphnd->bphn", q, k) / math.sqrt(q.shape[-1])
        score = score.masked_fill(infeasible[:, :, None, :], float("-inf"))
        glimpse = torch.einsum("bphn,bphnd->bphd", score.softmax(dim=-1), v).flatten(2)
        glimpse = self.project_out(glimpse)

        logits = torch.einsum("bpd,bpnd->bpn", glimpse, logit_k) / math.sqrt(glimpse.shape[-1])
        logits = logits - self.distance_weight * batched_gather(inst.dist_scaled, state.current)
        logits = self.tanh_clipping * torch.tanh(logits)
        logits = logits.masked_fill(infeasible, float("-inf"))
        return F.log_softmax(logits / self.temperature, dim=-1)


def initial_state(batch, starts, nodes, device):
    visited = torch.zeros(batch, starts, nodes, dtype=torch.bool, device=device)
    visited[:, :, 0] = True
    return State(
        current=torch.zeros(batch, starts, dtype=torch.long, device=device),
        load_left=torch.ones(batch, starts, device=device),
        time=torch.zeros(batch, starts, device=device),
        visited=visited,
    )


def infeasible_nodes(inst, state):
    """Where the vehicle cannot go: seen, padded, too heavy, too late, or too late to come home again."""
    travel = batched_gather(inst.dist, state.current)
    arrival = state.time[..., None] + travel
    start = torch.maximum(arrival, inst.window[:, None, :, 0])
    home = start + inst.service[:, None, :] + inst.dist[:, None, :, 0]
    bad = state.visited | ~inst.valid[:, None, :]
    bad = bad | (inst.demand[:, None, :] > state.load_left[..., None] + 1e-6)
    bad = bad | (arrival > inst.window[:, None, :, 1])
    bad = bad | (home > inst.horizon[:, None, None])
    # the depot is closed to a vehicle that stands there and has somewhere to go
    idle = (state.current == 0) & ~bad[:, :, 1:].all(dim=-1)
    return torch.cat((idle[..., None], bad[:, :, 1:]), dim=-1)


def advance(inst, state, chosen):
    batch, starts = chosen.shape
    index = chosen[..., None]
    travel = batched_gather(inst.dist, state.current).gather(-1, index).squeeze(-1)
    stop = torch.stack((inst.demand, inst.window[..., 0], inst.service), dim=-1)
    demand, early, service = batched_gather(stop, chosen).unbind(dim=-1)
    at_depot = chosen == 0
    time = torch.maximum(state.time + travel, early) + service
    return State(
        current=chosen,
        load_left=torch.where(at_depot, torch.ones_like(demand), state.load_left - demand),
        time=torch.where(at_depot, torch.zeros_like(time), time),
        visited=state.visited.scatter(-1, index, True),
    )


def tour_length(xy, tours):
    """Length in kilometres of closed tours (batch, starts, steps) that set out from the depot."""
    points = batched_gather(xy, F.pad(tours, (1, 0)))
    return (points.roll(-1, dims=2) - points).norm(dim=-1).sum(dim=-1)


class RoutingModel(nn.Module):
    """Encoder, greedy decoder from several first customers, and a critic of the mean length."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.node_embed = NodeEmbedding(cfg.embed_dim, cfg.conv_groups)
        self.edge_embed = EdgeEmbedding(cfg.num_rbf, cfg.edge_dim)
        self.layers = nn.ModuleList(EncoderLayer(cfg) for _ in range(cfg.num_layers))
        self.decoder = Decoder(cfg)
        self.critic = nn.Sequential(nn.Linear(2 * cfg.embed_dim, 18), nn.Tanh(), nn.Linear(18, 1))

    def encode(self, inst):
        neighbours = nearest_nodes(inst.dist, inst.valid, self.cfg.num_neighbours)
        h = self.node_embed(inst, neighbours)
        edges = self.edge_embed(inst, neighbours)
        for layer in self.layers:
            h = layer(h, edges, inst.valid)
        return h

    def first_customers(self, inst):
        """The customers nearest to the depot, one for each start."""
        far = inst.dist[:, 0, 1:].masked_fill(~inst.valid[:, 1:], float("inf"))
        return far.topk(self.cfg.num_starts, dim=-1, largest=False, sorted=True).indices + 1

    def forward(self, depot_xy, node_xy, demand, capacity, window, service, horizon, num_customers):
        inst = make_instance(depot_xy, node_xy, demand, capacity, window, service, horizon, num_customers)
        h = self.encode(inst)
        cache = self.decoder.precompute(h, inst.valid)
        value = self.critic(cache[3]).squeeze(-1)

        batch, nodes, _ = h.shape
        starts = self.cfg.num_starts
        max_steps = 2 * (nodes - 1)
        state = advance(inst, initial_state(batch, starts, nodes, h.device), self.first_customers(inst))
        tours, step_probs = [state.current], []
        log_likelihood = torch.zeros(batch, starts, device=h.device)
        done = torch.zeros(batch, starts, dtype=torch.bool, device=h.device)
        while len(tours) < max_steps and not done.all():
            log_p = self.decoder(inst, cache, state, infeasible_nodes(inst, state))
            chosen = log_p.argmax(dim=-1)
            chosen_log_p = log_p.gather(-1, chosen[..., None]).squeeze(-1)
            log_likelihood = log_likelihood + chosen_log_p.masked_fill(done, 0.0)
            step_probs.append(log_p.exp())
            state = advance(inst, state, chosen)
            tours.append(chosen)
            served = (state.visited | ~inst.valid[:, None, :]).all(dim=-1)
            done = done | (served & (state.current == 0))

        tours = torch.stack(tours, dim=-1)
        tours = F.pad(tours, (0, max_steps - tours.shape[-1]))
        step_probs = torch.stack(step_probs, dim=2)
        step_probs = F.pad(step_probs, (0, 0, 0, max_steps - 1 - step_probs.shape[2]))
        lengths = tour_length(inst.xy, tours)
        return tours, lengths, log_likelihood, step_probs, value


def trained_like(net):
    """Values as after training."""
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.BatchNorm1d):  # small activations, see below
            nn.init.uniform_(module.weight, 0.7, 1.3)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.02, 0.06)
        elif isinstance(module, (nn.GroupNorm, MaskedInstanceNorm)):
            nn.init.uniform_(module.weight, 0.5, 1.3)
            nn.init.normal_(module.bias, std=0.25)
    for layer in net.layers:
        layer.norm1.weight.data *= 0.2
        layer.norm1.bias.data *= 0.3
        layer.ff2.weight.data *= 0.3
    nn.init.normal_(net.edge_embed.kind.weight, std=0.8)
    net.decoder.project_dynamic.weight.data *= 0.8
    net.decoder.project_out.weight.data *= 0.35
    net.decoder.distance_weight.data.fill_(0.7)
    return net


def build():
    """The net, and three instances of 13, 8 and 10 customers."""
    torch.manual_seed(1914)
    net = trained_like(RoutingModel(Config()))
    batch, customers = 3, 13
    num_customers = torch.tensor([13, 8, 10])
    there = torch.arange(customers)[None, :] < num_customers[:, None]
    depot_xy = 35 + 30 * torch.rand(batch, 2)
    node_xy = 15 + 70 * torch.rand(batch, customers, 2)
    demand = torch.randint(1, 10, (batch, customers)).float()
    capacity = torch.tensor([25.0, 21.0, 30.0])
    horizon = torch.tensor([170.0, 150.0, 160.0])
    away = (node_xy - depot_xy[:, None]).norm(dim=-1)
    service = 4 + 9 * torch.rand(batch, customers)
    latest_start = horizon[:, None] - service - away
    early = torch.rand(batch, customers) * 0.8 * latest_start
    late = torch.maximum(early, away) + 25 + 70 * torch.rand(batch, customers)
    window = torch.stack((early, late.minimum(horizon[:, None])), dim=-1)
    inputs = (
        depot_xy, node_xy * there[..., None], demand * there, capacity, window * there[..., None], service * there,
        horizon, num_customers,
    )
    return net.eval(), inputs
