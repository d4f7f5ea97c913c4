"""MindSpore port of the attention model for vehicle routing with time windows."""

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops

NEG = -1e9
KIND_ORDINARY, KIND_NEAR, KIND_OUT, KIND_BACK, KIND_SELF = 0, 1, 2, 3, 4


def take_nodes(values, index):
    """values (b, n, ...) by index (b, ...) within each instance."""
    return ops.gather(values, index, 1, batch_dims=1)


def valid_average(x, valid):
    """Average over the nodes that exist: (b, n, c) -> (b, 1, c)."""
    w = valid.astype(x.dtype).expand_dims(-1)
    return (x * w).sum(axis=1, keepdims=True) / ops.clamp(w.sum(axis=1, keepdims=True), min=1.0)


def unit_square(xy, valid):
    """Scaled coordinates and the extent (b, 1) of each instance."""
    keep = valid.expand_dims(-1)
    lower = ops.where(keep, xy, Tensor(1e9, ms.float32)).min(axis=1, keepdims=True)
    upper = ops.where(keep, xy, Tensor(-1e9, ms.float32)).max(axis=1, keepdims=True)
    extent = ops.clamp((upper - lower).max(axis=-1, keepdims=True), min=1e-6)
    return (xy - lower) / extent * keep.astype(xy.dtype), extent[:, 0]


class Problem:
    """The batch with the depot as node 0."""

    def __init__(self, depot_xy, node_xy, demand, capacity, window, service, horizon, num_customers):
        b, c, _ = node_xy.shape
        self.batch, self.nodes = b, c + 1
        self.horizon = horizon.reshape(b, 1)
        # node 0 always exists
        self.valid = ops.arange(c + 1).reshape(1, -1) <= num_customers.reshape(b, 1)
        self.xy = ops.cat((depot_xy.expand_dims(1), node_xy), axis=1)
        zero = ops.zeros((b, 1), ms.float32)
        self.demand = ops.cat((zero, demand / capacity.reshape(b, 1)), axis=1)
        self.service = ops.cat((zero, service), axis=1)
        self.early = ops.cat((zero, window[:, :, 0]), axis=1)
        self.late = ops.cat((self.horizon, window[:, :, 1]), axis=1)
        self.unit_xy, extent = unit_square(self.xy, self.valid)
        delta = self.xy.expand_dims(2) - self.xy.expand_dims(1)
        self.dist = ops.sqrt((delta * delta).sum(axis=-1))
        self.unit_dist = self.dist / extent.reshape(b, 1, 1)

    def neighbours(self, k):
        """(b, n, k), by distance; the first one is the node itself."""
        reachable = ops.masked_fill(self.dist, ops.logical_not(self.valid).expand_dims(1), -NEG)
        return ops.argsort(reachable, axis=-1)[:, :, :k]

    def near_depot(self, count):
        closeness = ops.masked_fill(-self.dist[:, 0], ops.logical_not(self.valid), NEG)[:, 1:]
        _, index = ops.topk(closeness, count)
        return index + 1


class Fleet:
    """Where the vehicles of all starts are; each method works on (b, starts)."""

    def __init__(self, problem, starts):
        shape = (problem.batch, starts)
        self.p = problem
        self.here = ops.zeros(shape, ms.int32)
        self.left = ops.ones(shape, ms.float32)
        self.clock = ops.zeros(shape, ms.float32)
        self.seen = ops.one_hot(self.here, problem.nodes, Tensor(1.0), Tensor(0.0)) > 0.5

    def drive_time(self):
        return take_nodes(self.p.dist, self.here)

    def closed(self):
        """True where the pointer must not go."""
        p = self.p
        arrive = self.clock.expand_dims(-1) + self.drive_time()
        begin = ops.maximum(arrive, p.early.expand_dims(1))
        back = begin + (p.service + p.dist[:, :, 0]).expand_dims(1)
        too_heavy = p.demand.expand_dims(1) > self.left.expand_dims(-1) + 1e-6
        too_late = ops.logical_or(arrive > p.late.expand_dims(1), back > p.horizon.expand_dims(1))
        absent = ops.logical_or(self.seen, ops.logical_not(p.valid).expand_dims(1))
        blocked = ops.logical_or(ops.logical_or(absent, too_heavy), too_late)[:, :, 1:]
        can_leave = ops.logical_not(blocked.all(axis=-1))
        depot = ops.logical_and(self.here == 0, can_leave)
        return ops.cat((depot.expand_dims(-1), blocked), axis=-1)

    def go(self, target):
        p = self.p
        drive = ops.gather_elements(self.drive_time(), 2, target.expand_dims(-1)).squeeze(-1)
        begin = ops.maximum(self.clock + drive, take_nodes(p.early, target))
        clock = begin + take_nodes(p.service, target)
        home = target == 0
        self.clock = ops.masked_fill(clock, home, 0.0)
        self.left = ops.masked_fill(self.left - take_nodes(p.demand, target), home, 1.0)
        hit = ops.one_hot(target, p.nodes, Tensor(1.0), Tensor(0.0)) > 0.5
        self.seen = ops.logical_or(self.seen, hit)
        self.here = target

    def finished(self):
        served = ops.logical_or(self.seen, ops.logical_not(self.p.valid).expand_dims(1)).all(axis=-1)
        return ops.logical_and(served, self.here == 0)


class MaskedInstanceNorm(nn.Cell):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = Parameter(Tensor(np.ones(width, np.float32)), name="weight")
        self.bias = Parameter(Tensor(np.zeros(width, np.float32)), name="bias")

    def construct(self, x, valid):
        x = x - valid_average(x, valid)
        variance = valid_average(x * x, valid)
        return x / ops.sqrt(variance + self.eps) * self.weight + self.bias


class NodeEmbedding(nn.Cell):
    def __init__(self, width, groups):
        super().__init__()
        self.depot = nn.Dense(3, width)
        self.customer = nn.Dense(7, width)
        self.nbr_conv = nn.Conv1d(5, width, 3, dilation=2, pad_mode="valid", has_bias=True)
        self.nbr_norm = nn.GroupNorm(groups, width)
        self.nbr_proj = nn.Dense(width, width, has_bias=False)

    def surroundings(self, p, near):
        """What the convolution over the near nodes finds."""
        b, n, k = near.shape
        span = (p.late - p.early) / p.horizon
        shift = take_nodes(p.unit_xy, near) - p.unit_xy.expand_dims(2)
        length = ops.gather_elements(p.unit_dist, 2, near)
        rest = ops.stack((length, take_nodes(p.demand, near), take_nodes(span, near)), axis=-1)
        seq = ops.cat((shift, rest), axis=-1).reshape(b * n, k, 5).swapaxes(1, 2)
        seq = self.nbr_conv(seq)
        # the group norm of this version wants four axes
        seq = self.nbr_norm(seq.expand_dims(-1)).squeeze(-1)
        pooled = ops.relu(seq).max(axis=-1)
        return self.nbr_proj(pooled).reshape(b, n, -1)

    def construct(self, p, near):
        count = p.valid[:, 1:].astype(ms.float32).sum(axis=1, keepdims=True) / (p.nodes - 1)
        depot = self.depot(ops.cat((p.unit_xy[:, 0], count), axis=-1))
        scalars = (p.demand, p.early / p.horizon, p.late / p.horizon, p.service / p.horizon, p.unit_dist[:, 0])
        feats = ops.cat((p.unit_xy, ops.stack(scalars, axis=-1)), axis=-1)
        h = ops.cat((depot.expand_dims(1), self.customer(feats[:, 1:])), axis=1)
        h = h + self.surroundings(p, near)
        return ops.masked_fill(h, ops.logical_not(p.valid).expand_dims(-1), 0.0)


class EdgeEmbedding(nn.Cell):
    def __init__(self, num_rbf, width):
        super().__init__()
        centres = np.linspace(0.0, math.sqrt(2.0), num_rbf)
        self.centres = Tensor(centres.astype(np.float32))
        self.gamma = float(0.5 / (centres[1] - centres[0]) ** 2)
        self.kind = nn.Embedding(5, width)
        self.proj = nn.Dense(num_rbf + 1, width)
        self.act = nn.LeakyReLU(alpha=0.2)

    def kinds(self, p, near):
        n = p.nodes
        is_near = ops.one_hot(near, n, Tensor(1.0), Tensor(0.0)).sum(axis=2) > 0.5
        kind = ops.where(is_near, Tensor(KIND_NEAR, ms.int32), Tensor(KIND_ORDINARY, ms.int32))
        row = ops.arange(n).reshape(1, n, 1)
        col = ops.arange(n).reshape(1, 1, n)
        kind = ops.masked_fill(kind, row == 0, KIND_OUT)
        kind = ops.masked_fill(kind, col == 0, KIND_BACK)
        return ops.masked_fill(kind, row == col, KIND_SELF)

    def construct(self, p, near):
        gap = p.unit_dist.expand_dims(-1) - self.centres
        bumps = ops.exp(-self.gamma * ops.square(gap))
        leave = (p.early + p.service).expand_dims(2) + p.dist
        slack = (p.late.expand_dims(1) - leave) / p.horizon.expand_dims(-1)
        slack = ops.tanh(slack * 4.0)
        e = self.proj(ops.cat((bumps, slack.expand_dims(-1)), axis=-1))
        return self.act(e + self.kind(self.kinds(p, near)))


class EdgeAttention(nn.Cell):
    def __init__(self, width, heads, edge_width):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.w_q = nn.Dense(width, width, has_bias=False)
        self.w_k = nn.Dense(width, width, has_bias=False)
        self.w_v = nn.Dense(width, width, has_bias=False)
        self.edge_bias = nn.Dense(edge_width, heads, has_bias=False)
        self.out = nn.Dense(width, width)

    def construct(self, h, edges, valid):
        b, n, width = h.shape
        q = self.w_q(h).reshape(b, n, self.heads, -1).transpose(0, 2, 1, 3)
        k = self.w_k(h).reshape(b, n, self.heads, -1).transpose(0, 2, 3, 1)
        v = self.w_v(h).reshape(b, n, self.heads, -1).transpose(0, 2, 1, 3)
        bias = self.edge_bias(edges).transpose(0, 3, 1, 2)
        attn = ops.matmul(q, k) * self.scale + bias
        attn = ops.masked_fill(attn, ops.logical_not(valid).reshape(b, 1, 1, n), NEG)
        mixed = ops.matmul(ops.softmax(attn, axis=-1), v)
        return self.out(mixed.transpose(0, 2, 1, 3).reshape(b, n, width))


class EncoderLayer(nn.Cell):
    def __init__(self, width, heads, edge_width, hidden):
        super().__init__()
        self.attn = EdgeAttention(width, heads, edge_width)
        self.norm1 = MaskedInstanceNorm(width)
        self.ff1 = nn.Dense(width, hidden)
        self.act = nn.GELU(approximate=False)
        self.ff2 = nn.Dense(hidden, width)
        self.norm2 = nn.BatchNorm1d(width, eps=1e-3, momentum=0.9)

    def construct(self, h, edges, valid):
        b, n, width = h.shape
        mid = self.norm1(h + self.attn(h, edges, valid), valid)
        out = mid + self.ff2(self.act(self.ff1(mid)))
        out = self.norm2(out.reshape(b * n, width)).reshape(b, n, width)
        return out * valid.astype(out.dtype).expand_dims(-1)


class Decoder(nn.Cell):
    """The log probabilities of the next node for all starts at once."""

    def __init__(self, width, heads, num_freqs, clip, temperature):
        super().__init__()
        self.width, self.heads = width, heads
        self.clip, self.temperature = clip, temperature
        self.freqs = Tensor((np.pi * 2.0 ** np.arange(num_freqs)).astype(np.float32))
        self.project_graph = nn.Dense(2 * width, width, has_bias=False)
        self.project_nodes = nn.Dense(width, 3 * width, has_bias=False)
        self.project_context = nn.Dense(width + 1 + 2 * num_freqs, width)
        self.project_dynamic = nn.Dense(2, 3 * width, has_bias=False)
        self.project_out = nn.Dense(width, width, has_bias=False)
        self.distance_weight = Parameter(Tensor(np.ones(1, np.float32)), name="distance_weight")

    def query(self, p, fleet, h, graph_part):
        phase = (fleet.clock / p.horizon).expand_dims(-1) * self.freqs
        parts = (take_nodes(h, fleet.here), fleet.left.expand_dims(-1), ops.sin(phase), ops.cos(phase))
        return graph_part + self.project_context(ops.cat(parts, axis=-1))

    def dynamic_part(self, p, fleet):
        late = p.late.expand_dims(1)
        spare = (late - fleet.clock.expand_dims(-1) - fleet.drive_time()) / p.horizon.expand_dims(-1)
        share = p.demand.expand_dims(1) / ops.clamp(fleet.left, min=0.05).expand_dims(-1)
        feats = ops.stack((ops.clamp(spare, -1.0, 1.0), ops.clamp(share, max=2.0)), axis=-1)
        return self.project_dynamic(feats)

    def glimpse(self, query, keys, values, closed):
        b, s, n, width = keys.shape
        head = width // self.heads
        query = query.reshape(b, s, self.heads, 1, head)
        keys = keys.reshape(b, s, n, self.heads, head).transpose(0, 1, 3, 4, 2)
        values = values.reshape(b, s, n, self.heads, head).swapaxes(2, 3)
        weight = ops.matmul(query, keys) / math.sqrt(head)
        weight = ops.masked_fill(weight, closed.reshape(b, s, 1, 1, n), NEG)
        seen = ops.matmul(ops.softmax(weight, axis=-1), values)
        return self.project_out(seen.reshape(b, s, width))

    def construct(self, p, fleet, h, graph_part, node_part, closed):
        merged = node_part.expand_dims(1) + self.dynamic_part(p, fleet)
        keys, values, pointer = ops.split(merged, self.width, axis=-1)
        glimpse = self.glimpse(self.query(p, fleet, h, graph_part), keys, values, closed)
        score = ops.matmul(pointer, glimpse.expand_dims(-1)).squeeze(-1) * self.width**-0.5
        score = score - self.distance_weight * take_nodes(p.unit_dist, fleet.here)
        score = ops.tanh(score) * self.clip
        score = ops.masked_fill(score, closed, NEG)
        return ops.log_softmax(score / self.temperature, axis=-1)


def lengths_of(xy, tours):
    """Kilometres driven: depot, the tour, and back."""
    b, s, _ = tours.shape
    depot = ops.zeros((b, s, 1), tours.dtype)
    stops = take_nodes(xy, ops.cat((depot, tours, depot), axis=-1))
    legs = stops[:, :, 1:] - stops[:, :, :-1]
    return ops.sqrt((legs * legs).sum(axis=-1)).sum(axis=-1)


class RoutingModel(nn.Cell):
    def __init__(self, width=32, heads=4, hidden=44, depth=3, num_rbf=9, edge_width=10, near=6, starts=5):
        super().__init__()
        self.near, self.starts = near, starts
        self.node_embed = NodeEmbedding(width, groups=8)
        self.edge_embed = EdgeEmbedding(num_rbf, edge_width)
        self.layers = nn.CellList([EncoderLayer(width, heads, edge_width, hidden) for _ in range(depth)])
        self.decoder = Decoder(width, heads, num_freqs=3, clip=10.0, temperature=1.3)
        self.critic = nn.SequentialCell(nn.Dense(2 * width, 18), nn.Tanh(), nn.Dense(18, 1))

    def rollout(self, p, h, graph_part, node_part):
        """Greedy tours of all starts; what is missing at the end is filled with the depot and with zeros."""
        steps = 2 * (p.nodes - 1)
        fleet = Fleet(p, self.starts)
        target = p.near_depot(self.starts)
        fleet.go(target)
        tours, probs = [target], []
        likelihood = ops.zeros(target.shape, ms.float32)
        done = fleet.finished()
        for _ in range(steps - 1):
            if bool(done.all()):
                break
            log_p = self.decoder(p, fleet, h, graph_part, node_part, fleet.closed())
            target = log_p.argmax(axis=-1).astype(ms.int32)
            picked = mint.gather(log_p, 2, target.expand_dims(-1)).squeeze(-1)
            likelihood = likelihood + ops.where(done, ops.zeros_like(picked), picked)
            fleet.go(target)
            done = ops.logical_or(done, fleet.finished())
            tours.append(target)
            probs.append(ops.exp(log_p))
        while len(tours) < steps:
            tours.append(ops.zeros_like(target))
            probs.append(ops.zeros_like(log_p))
        return ops.stack(tours, axis=-1), likelihood, ops.stack(probs, axis=2)

    def construct(self, depot_xy, node_xy, demand, capacity, window, service, horizon, num_customers):
        p = Problem(depot_xy, node_xy, demand, capacity, window, service, horizon, num_customers)
        near = p.neighbours(self.near)
        edges = self.edge_embed(p, near)
        h = self.node_embed(p, near)
        for layer in self.layers:
            h = layer(h, edges, p.valid)

        peak = (h + (p.valid.astype(h.dtype) - 1.0).expand_dims(-1) * 1e9).max(axis=1, keepdims=True)
        graph = ops.cat((valid_average(h, p.valid), peak), axis=-1)
        value = self.critic(graph[:, 0]).squeeze(-1)
        node_part = self.decoder.project_nodes(h)
        tours, likelihood, probs = self.rollout(p, h, self.decoder.project_graph(graph), node_part)
        return tours, lengths_of(p.xy, tours), likelihood, probs, value


def build():
    """The net in evaluation; weights and inputs come from elsewhere."""
    net = RoutingModel()
    net.set_train(False)
    return net
