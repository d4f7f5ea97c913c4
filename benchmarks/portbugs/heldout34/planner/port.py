"""The query-centric trajectory predictor in MindSpore: the correct port."""

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

PI = float(np.pi)
LOWEST = float(np.finfo(np.float32).min)

# metres between two endpoints below which they count as one: vehicle, pedestrian, cyclist
TYPE_RADII = np.array([2.5, 0.8, 1.6], np.float32)
# (step, lateral, longitudinal)
JUDGED = [(4, 1.0, 2.0), (10, 1.8, 3.6)]


def to_float(mask):
    return mask.astype(ms.float32)


def length(vec, keepdims=False):
    return ops.sqrt((vec * vec).sum(axis=-1, keepdims=keepdims))


def unit(angle):
    return ops.stack((ops.cos(angle), ops.sin(angle)), axis=-1)


def turn(xy, angle):
    """Rotate points (..., 2) counter-clockwise; the angle broadcasts against (...)."""
    c, s = ops.cos(angle), ops.sin(angle)
    x, y = xy[..., 0], xy[..., 1]
    return ops.stack((c * x - s * y, s * x + c * y), axis=-1)


def signed_angle(base, vec):
    """From base to vec; zero for a vec without length."""
    cross = base[..., 0] * vec[..., 1] - base[..., 1] * vec[..., 0]
    dot = base[..., 0] * vec[..., 0] + base[..., 1] * vec[..., 1]
    return ops.where(length(vec) < 1e-3, ops.zeros_like(cross), ops.atan2(cross, dot))


def wrapped(angle):
    return (angle + PI) % (2 * PI) - PI


class Frames:
    """A set of places (..., n, 2) with headings (..., n), and which of them are there."""

    def __init__(self, xy, yaw, valid):
        self.xy, self.yaw, self.valid = xy, yaw, valid

    def map(self, fn):
        return Frames(fn(self.xy), fn(self.yaw), fn(self.valid))


class FourierFeatures(nn.Cell):
    """A perceptron on the waves of each quantity; their sum through an output layer."""

    def __init__(self, quantities, width, bands):
        super().__init__()
        self.freqs = Parameter(Tensor(np.zeros((quantities, bands), np.float32)), name="freqs")
        self.mlps = nn.CellList(
            [
                nn.SequentialCell(
                    nn.Dense(2 * bands + 1, width),
                    nn.LayerNorm((width,), epsilon=1e-5),
                    nn.ReLU(),
                    nn.Dense(width, width),
                )
                for _ in range(quantities)
            ]
        )
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.proj = nn.Dense(width, width)

    def construct(self, *quantities, extra=None):
        total = 0 if extra is None else extra
        for i, value in enumerate(quantities):
            value = value.expand_dims(-1)
            phase = value * self.freqs[i] * (2 * PI)
            total = total + self.mlps[i](ops.cat((ops.cos(phase), ops.sin(phase), value), axis=-1))
        return self.proj(ops.relu(self.norm(total)))


class PairRelation(nn.Cell):
    """For queries and keys with frames: the embedding of each pair's relative pose, and the mask of pairs in reach."""

    def __init__(self, width, bands, reach=None, timed=False):
        super().__init__()
        self.reach = reach
        self.features = FourierFeatures(4 if timed else 3, width, bands)

    def construct(self, q, k, lag=None, skip_self=False):
        offset = k.xy.expand_dims(-3) - q.xy.expand_dims(-2)
        distance = length(offset)
        bearing = signed_angle(unit(q.yaw).expand_dims(-2), offset)
        yaw = wrapped(k.yaw.expand_dims(-2) - q.yaw.expand_dims(-1))
        seen = ops.logical_and(q.valid.expand_dims(-1), k.valid.expand_dims(-2))
        if self.reach is not None:
            seen = ops.logical_and(seen, distance < self.reach)
        if skip_self:
            seen = ops.logical_and(seen, Tensor(~np.eye(seen.shape[-1], dtype=bool)))
        if lag is None:
            return self.features(distance, bearing, yaw), seen
        lag = ops.broadcast_to(Tensor(lag.astype(np.float32)), distance.shape)
        return self.features(distance, bearing, yaw, lag), seen


class PointMLP(nn.Cell):
    """Linear, batch norm and ReLU on each point; what is padding gives zeros."""

    def __init__(self, cin, cout):
        super().__init__()
        self.fc = nn.Dense(cin, cout, has_bias=False)
        self.bn = nn.BatchNorm1d(cout, eps=1e-3)

    def construct(self, x, mask):
        y = self.fc(x)
        y = self.bn(y.reshape(-1, y.shape[-1])).reshape(y.shape)
        return ops.relu(y) * mask


class PolylineNet(nn.Cell):
    def __init__(self, cin, hidden, cout):
        super().__init__()
        self.pre = PointMLP(cin, hidden)
        self.mid = PointMLP(2 * hidden, hidden)
        self.fc1 = nn.Dense(hidden, cout)
        self.fc2 = nn.Dense(cout, cout)

    def construct(self, points, valid):
        mask = to_float(valid).expand_dims(-1)
        x = self.pre(points, mask)
        pooled = ops.broadcast_to(x.max(axis=2, keepdims=True), x.shape)
        x = self.mid(ops.cat((x, pooled), axis=-1), mask)
        out = self.fc2(ops.relu(self.fc1(x.max(axis=2))))
        return out * mask.max(axis=2)


class RelationAttention(nn.Cell):
    """Multi-head attention; the relation of each pair goes into its key and its value; a gate mixes in the query."""

    def __init__(self, width, heads, cross):
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.to_q = nn.Dense(width, width)
        self.to_k = nn.Dense(width, width, has_bias=False)
        self.to_v = nn.Dense(width, width)
        self.to_k_r = nn.Dense(width, width, has_bias=False)
        self.to_v_r = nn.Dense(width, width)
        self.to_s = nn.Dense(width, width)
        self.to_g = nn.Dense(2 * width, width)
        self.to_out = nn.Dense(width, width)
        self.norm_dst = nn.LayerNorm((width,), epsilon=1e-5)
        if cross:
            self.norm_src = nn.LayerNorm((width,), epsilon=1e-5)
        self.norm_r = nn.LayerNorm((width,), epsilon=1e-5)
        self.norm_post = nn.LayerNorm((width,), epsilon=1e-5)
        self.ff_prenorm = nn.LayerNorm((width,), epsilon=1e-5)
        self.ff1 = nn.Dense(width, 2 * width)
        self.ff2 = nn.Dense(2 * width, width)
        self.ff_postnorm = nn.LayerNorm((width,), epsilon=1e-5)
        self.drop = nn.Dropout(p=0.1)

    def split(self, x):
        """(..., n, width) -> (..., heads, n, head width)"""
        return x.reshape(x.shape[:-1] + (self.heads, self.head_width)).swapaxes(-2, -3)

    def split_pairs(self, r):
        """(..., q, k, width) -> (..., heads, q, k, head width)"""
        return r.reshape(r.shape[:-1] + (self.heads, self.head_width)).movedim(-2, -4)

    def attention(self, x, source, relation, seen):
        q, k, v = self.split(self.to_q(x)), self.split(self.to_k(source)), self.split(self.to_v(source))
        k_r, v_r = self.split_pairs(self.to_k_r(relation)), self.split_pairs(self.to_v_r(relation))
        logits = ops.matmul(q, k.swapaxes(-1, -2)) + (q.expand_dims(-2) * k_r).sum(axis=-1)
        logits = logits / self.head_width**0.5
        hidden = ops.logical_not(seen).expand_dims(-3)
        weights = ops.softmax(ops.masked_fill(logits, hidden, LOWEST), axis=-1)
        weights = ops.masked_fill(weights, hidden, 0.0)
        mixed = ops.matmul(weights, v) + (weights.expand_dims(-1) * v_r).sum(axis=-2)
        mixed = mixed.swapaxes(-2, -3).reshape(x.shape)
        gate = ops.sigmoid(self.to_g(ops.cat((mixed, x), axis=-1)))
        return self.to_out((1 - gate) * mixed + gate * self.to_s(x))

    def construct(self, x, relation, seen, source=None):
        normed = self.norm_dst(x)
        source = normed if source is None else self.norm_src(source)
        x = x + self.norm_post(self.attention(normed, source, self.norm_r(relation), seen))
        hidden = self.drop(ops.relu(self.ff1(self.ff_prenorm(x))))
        return x + self.ff_postnorm(self.ff2(hidden))


def attention_stack(count, width, heads, cross=False):
    return nn.CellList([RelationAttention(width, heads, cross) for _ in range(count)])


class LaneEncoder(nn.Cell):
    """Each lane in the frame of its middle point, a PointNet, and attention among the lanes."""

    def __init__(self, width, heads, bands, lane_types, reach, layers):
        super().__init__()
        self.kind = nn.Embedding(lane_types, width)
        self.polyline = PolylineNet(5, 16, width)
        self.relation = PairRelation(width, bands, reach)
        self.layers = attention_stack(layers, width, heads)

    @staticmethod
    def frames(points, valid):
        count = points.shape[2]
        middle = ops.clamp(valid.astype(ms.int32).sum(axis=-1) // 2, min=1)
        here = ops.one_hot(middle, count, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)).expand_dims(-1)
        before = ops.one_hot(middle - 1, count, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)).expand_dims(-1)
        anchor = (points * here).sum(axis=2)
        along = anchor - (points * before).sum(axis=2)
        return Frames(anchor, ops.atan2(along[..., 1], along[..., 0]), valid.any(axis=-1))

    def construct(self, points, kinds, valid):
        lanes = self.frames(points, valid)
        back = -lanes.yaw.expand_dims(-1)
        delta = (points[:, :, 1:] - points[:, :, :-1]) * to_float(valid[:, :, 1:]).expand_dims(-1)
        delta = ops.cat((ops.zeros_like(points[:, :, :1]), delta), axis=2)
        travelled = ops.cumsum(length(delta, keepdims=True), axis=2)
        local = turn(points - lanes.xy.expand_dims(2), back)
        x = self.polyline(ops.cat((local, turn(delta, back), travelled), axis=-1) * 0.1, valid)
        x = x + self.kind(kinds)
        relation, seen = self.relation(lanes, lanes, skip_self=True)
        for layer in self.layers:
            x = layer(x, relation, seen)
        return x, lanes


class TrackEncoder(nn.Cell):
    """A token for each agent at each step; in turn they look back, at the lanes and around them."""

    def __init__(self, width, heads, bands, agent_types, span, lane_reach, agent_reach, layers):
        super().__init__()
        self.span = span
        self.kind = nn.Embedding(agent_types, width)
        self.motion = FourierFeatures(4, width, bands)
        self.conv = nn.Conv1d(width, width, 3, pad_mode="pad", padding=2, dilation=2, group=width, has_bias=True)
        self.time_relation = PairRelation(width, bands, timed=True)
        self.lane_relation = PairRelation(width, bands, lane_reach)
        self.agent_relation = PairRelation(width, bands, agent_reach)
        self.over_time = attention_stack(layers, width, heads)
        self.over_lanes = attention_stack(layers, width, heads, cross=True)
        self.over_agents = attention_stack(layers, width, heads)

    def embed(self, tracks, velocity, kinds):
        b, a, t = tracks.yaw.shape
        both = ops.logical_and(tracks.valid[:, :, 1:], tracks.valid[:, :, :-1])
        moved = (tracks.xy[:, :, 1:] - tracks.xy[:, :, :-1]) * to_float(both).expand_dims(-1)
        moved = ops.cat((ops.zeros((b, a, 1, 2), ms.float32), moved), axis=2)
        facing = unit(tracks.yaw)
        x = self.motion(
            length(moved),
            signed_angle(facing, moved),
            length(velocity),
            signed_angle(facing, velocity),
            extra=self.kind(kinds).expand_dims(2),
        )
        x = x * to_float(tracks.valid).expand_dims(-1)
        y = self.conv(x.reshape(b * a, t, -1).transpose(0, 2, 1))
        return x + ops.relu(y.transpose(0, 2, 1).reshape(x.shape))

    def construct(self, tracks, velocity, kinds, lane_x, lanes):
        x = self.embed(tracks, velocity, kinds)
        b, a, t, width = x.shape
        lag = np.arange(t)[None, :] - np.arange(t)[:, None]
        r_time, seen_time = self.time_relation(tracks, tracks, lag)
        seen_time = ops.logical_and(seen_time, Tensor((lag < 0) & (lag >= -self.span)))
        r_lane, seen_lane = self.lane_relation(tracks.map(lambda s: s.reshape((b, a * t) + s.shape[3:])), lanes)
        snapshots = tracks.map(lambda s: s.swapaxes(1, 2))
        r_agent, seen_agent = self.agent_relation(snapshots, snapshots, skip_self=True)
        for time_layer, lane_layer, agent_layer in zip(self.over_time, self.over_lanes, self.over_agents):
            x = time_layer(x, r_time, seen_time)
            x = lane_layer(x.reshape(b, a * t, width), r_lane, seen_lane, lane_x)
            x = x.reshape(b, a, t, width).swapaxes(1, 2)
            x = agent_layer(x, r_agent, seen_agent).swapaxes(1, 2)
        return x


class ModeAttention(nn.Cell):
    """Plain self-attention among the modes of an agent."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.in_proj = nn.Dense(width, 3 * width)
        self.out_proj = nn.Dense(width, width)

    def construct(self, m):
        b, a, n, width = m.shape
        qkv = self.in_proj(self.norm(m)).reshape(b, a, n, 3, self.heads, width // self.heads)
        q, k, v = ops.unbind(qkv.transpose(3, 0, 1, 4, 2, 5), dim=0)
        weights = ops.softmax(ops.matmul(q, k.swapaxes(-1, -2)) * (width // self.heads) ** -0.5, axis=-1)
        out = ops.matmul(weights, v).swapaxes(2, 3).reshape(b, a, n, width)
        return m + self.out_proj(out)


class Head(nn.Cell):
    def __init__(self, width, cout):
        super().__init__()
        self.fc1 = nn.Dense(width, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.fc2 = nn.Dense(width, cout)

    def construct(self, x):
        return self.fc2(ops.relu(self.norm(self.fc1(x))))


class ModeDecoder(nn.Cell):
    """Learned queries, one for each mode, to paths in the agent's frame, their scales and the modes' scores."""

    def __init__(self, width, heads, bands, modes, steps, lane_reach, agent_reach, layers, min_scale):
        super().__init__()
        self.steps = steps
        self.min_scale = min_scale
        self.queries = nn.Embedding(modes, width)
        self.time_relation = PairRelation(width, bands, timed=True)
        self.lane_relation = PairRelation(width, bands, lane_reach)
        self.agent_relation = PairRelation(width, bands, agent_reach)
        self.over_time = attention_stack(layers, width, heads, cross=True)
        self.over_lanes = attention_stack(layers, width, heads, cross=True)
        self.over_agents = attention_stack(layers, width, heads, cross=True)
        self.over_modes = nn.CellList([ModeAttention(width, heads) for _ in range(layers)])
        self.path = FourierFeatures(2, width, bands)
        self.gru = nn.GRU(width, width)
        self.h0 = Parameter(Tensor(np.zeros((1, width), np.float32)), name="h0")
        self.loc_propose = Head(width, 2 * steps)
        self.scale_propose = Head(width, 2 * steps)
        self.loc_refine = Head(width, 2 * steps)
        self.scale_refine = Head(width, 2 * steps)
        self.pi = Head(width, 1)

    def read_path(self, path):
        """The last state of the recurrent net that has read the proposed path."""
        b, a, modes, steps, _ = path.shape
        y = self.path(path[..., 0], path[..., 1])
        y = y.reshape(b * a * modes, steps, -1).transpose(1, 0, 2)
        start = ops.broadcast_to(self.h0.expand_dims(1), (1, b * a * modes, y.shape[-1]))
        _, state = self.gru(y, start)
        return state.reshape(b, a, modes, -1)

    def construct(self, x, tracks, lane_x, lanes):
        b, a, t, width = x.shape
        now = tracks.map(lambda s: s[:, :, -1])
        lag = np.arange(t) - (t - 1)
        r_time, seen_time = self.time_relation(now.map(lambda s: s.expand_dims(2)), tracks, lag)
        r_lane, seen_lane = self.lane_relation(now, lanes)
        r_agent, seen_agent = self.agent_relation(now, now, skip_self=True)
        r_lane, seen_lane = r_lane.expand_dims(2), seen_lane.expand_dims(2)
        r_agent, seen_agent = r_agent.expand_dims(2), seen_agent.expand_dims(2)
        others = x[:, :, -1].expand_dims(1)

        m = ops.tile(self.queries.embedding_table, (b, a, 1, 1))
        for i in range(len(self.over_modes)):
            m = self.over_time[i](m, r_time, seen_time, x)
            m = self.over_lanes[i](m, r_lane, seen_lane, lane_x.expand_dims(1))
            m = self.over_agents[i](m, r_agent, seen_agent, others)
            m = self.over_modes[i](m)

        shape = m.shape[:3] + (self.steps, 2)
        loc = ops.cumsum(self.loc_propose(m).reshape(shape), axis=3)
        scale = ops.elu(self.scale_propose(m)).reshape(shape) + 1.0
        scale = ops.cumsum(scale, axis=3) + self.min_scale

        proposal = ops.stop_gradient(loc)
        m = m + self.read_path(proposal)
        refined = proposal + self.loc_refine(m).reshape(shape)
        refined_scale = ops.elu(self.scale_refine(m)).reshape(shape) + (1.0 + self.min_scale)
        return loc, scale, refined, refined_scale, self.pi(m).squeeze(-1)


def laplace(loc, scale, target):
    """Negative log-likelihood of points (..., 2)."""
    return (ops.log(2.0 * scale) + ops.abs(target - loc) / scale).sum(axis=-1)


def pick_mode(values, index):
    """(b, a, modes, steps, 2) at (b, a) -> (b, a, steps, 2)"""
    b, a, modes = values.shape[:3]
    flat = values.reshape((b * a, modes) + values.shape[3:])
    return flat[ops.arange(b * a), index.reshape(-1)].reshape((b, a) + values.shape[3:])


class TrainingLoss(nn.Cell):
    """Proposal, refinement, scores and speeds."""

    def __init__(self):
        super().__init__()
        self.smooth = nn.SmoothL1Loss(beta=0.2, reduction="none")

    def construct(self, loc, scale, refined, refined_scale, pi, target, valid):
        weight = to_float(valid)
        steps = ops.clamp(weight.sum(axis=-1), min=1.0)
        active = weight.max(axis=-1)
        agents = ops.clamp(active.sum(), min=1.0)
        goal = target.expand_dims(2)
        mode_weight = weight.expand_dims(2)
        best = (length(loc - goal) * mode_weight).sum(axis=-1).argmin(axis=-1)

        winner = pick_mode(refined, best)
        propose = laplace(pick_mode(loc, best), pick_mode(scale, best), target)
        propose = (propose * weight).sum(axis=-1) / steps
        refine = laplace(winner, pick_mode(refined_scale, best), target)
        refine = (refine * weight).sum(axis=-1) / steps

        log_lik = -(laplace(refined, refined_scale, goal) * mode_weight).sum(axis=-1)
        log_prior = ops.log_softmax(pi, axis=-1)
        score = -ops.logsumexp(log_prior + ops.stop_gradient(log_lik), -1)

        pairs = weight[:, :, 1:] * weight[:, :, :-1]
        pace = length(winner[:, :, 1:] - winner[:, :, :-1])
        true_pace = length(target[:, :, 1:] - target[:, :, :-1])
        pace = (self.smooth(pace, true_pace) * pairs).sum() / ops.clamp(pairs.sum(), min=1.0)
        means = [(term * active).sum() / agents for term in (propose, refine, score)]
        return ops.stack(means + [pace])


class KeepDistinct(nn.Cell):
    """Non-maximum suppression of endpoints."""

    def __init__(self, keep):
        super().__init__()
        self.keep = keep
        self.radii = Tensor(TYPE_RADII)

    def construct(self, paths, scores, kinds):
        n, modes = scores.shape
        scores, order = ops.sort(scores, axis=-1, descending=True)
        rows = ops.arange(n)
        paths = paths[rows.expand_dims(1), order]
        goals = paths[:, :, -1]
        gap = length(goals.expand_dims(2) - goals.expand_dims(1))
        covers = to_float(gap < self.radii[kinds].reshape(n, 1, 1))
        rank = scores
        chosen = []
        for _ in range(self.keep):
            best = rank.argmax(axis=-1)
            chosen.append(best)
            taken = ops.one_hot(best, modes, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
            rank = rank - (covers * taken.expand_dims(-1)).sum(axis=1)
            rank = ops.where(taken > 0, ops.full_like(rank, -1e4), rank)
        chosen = ops.stack(chosen, axis=1)
        kept = ops.gather_elements(scores, 1, chosen)
        return paths[rows.expand_dims(1), chosen], kept / kept.sum(axis=-1, keepdims=True)


class Scores(nn.Cell):
    """minADE, minFDE, Brier minFDE and miss rate at each of the judged steps, over the agents that can be judged."""

    @staticmethod
    def at_step(values, index):
        """(n, k, steps, 2) at (n,) -> (n, k, 2)"""
        return values.swapaxes(1, 2)[ops.arange(values.shape[0]), index]

    def construct(self, paths, probs, target, yaw, valid, speed):
        n = paths.shape[0]
        rows = ops.arange(n)
        slack = 0.5 + 0.5 * ops.clamp((speed - 1.4) / 9.6, 0.0, 1.0)
        slack = slack.expand_dims(1)
        table = []
        for steps, lateral, longitudinal in JUDGED:
            ok = to_float(valid[:, :steps])
            judged = ok.max(axis=-1)
            error = paths[:, :, :steps] - target[:, :steps].expand_dims(1)
            dist = length(error) * ok.expand_dims(1)
            ade = (dist.sum(axis=-1) / ops.clamp(ok.sum(axis=-1), min=1.0).expand_dims(-1)).min(axis=-1)

            last = (ok * Tensor(np.arange(1, steps + 1, dtype=np.float32))).argmax(axis=-1)
            last = ops.where(judged > 0, last, ops.full_like(last, steps - 1))
            final = self.at_step(error, last)
            final_dist = length(final) * judged.expand_dims(1)
            fde = final_dist.min(axis=-1)
            brier = fde + (1.0 - probs[rows, final_dist.argmin(axis=-1)]) ** 2

            final = turn(final, -yaw[rows, last].expand_dims(1))
            ahead, aside = ops.abs(final[..., 0]), ops.abs(final[..., 1])
            hit = ops.logical_and(ahead < longitudinal * slack, aside < lateral * slack)
            miss = 1.0 - to_float(hit.any(axis=-1))

            column = ops.stack((ade, fde, brier, miss), axis=0)
            table.append((column * judged).sum(axis=1) / ops.clamp(judged.sum(), min=1.0))
        return ops.stack(table)


class TrajectoryPlanner(nn.Cell):
    def __init__(self, width=24, heads=3, bands=5, modes=7, keep=4, steps=10):
        super().__init__()
        self.lanes = LaneEncoder(width, heads, bands, lane_types=4, reach=22.0, layers=2)
        self.tracks = TrackEncoder(
            width, heads, bands, agent_types=3, span=5, lane_reach=18.0, agent_reach=25.0, layers=2
        )
        self.decoder = ModeDecoder(
            width, heads, bands, modes, steps, lane_reach=18.0, agent_reach=25.0, layers=2, min_scale=0.1
        )
        self.loss = TrainingLoss()
        self.suppress = KeepDistinct(keep)
        self.scores = Scores()

    def construct(
        self, xy, yaw, velocity, kinds, valid, lane_points, lane_kinds, lane_valid, future, future_yaw, future_valid
    ):
        b, a = kinds.shape
        alive = to_float(valid)
        tracks = Frames(xy * alive.expand_dims(-1), yaw * alive, valid)
        velocity = velocity * alive.expand_dims(-1)
        lane_x, lanes = self.lanes(lane_points, lane_kinds, lane_valid)
        x = self.tracks(tracks, velocity, kinds, lane_x, lanes)
        predicted = self.decoder(x, tracks, lane_x, lanes)
        loc, _, refined, refined_scale, pi = predicted

        now = tracks.map(lambda s: s[:, :, -1])
        present = to_float(now.valid)
        future_valid = ops.logical_and(future_valid, now.valid.expand_dims(-1))
        local_future = turn(future - now.xy.expand_dims(2), -now.yaw.expand_dims(-1))
        losses = self.loss(*predicted, local_future, future_valid)

        scene = turn(refined, now.yaw.reshape(b, a, 1, 1)) + now.xy.reshape(b, a, 1, 1, 2)
        probs = ops.softmax(pi, axis=-1)
        kept, kept_probs = self.suppress(
            scene.reshape((b * a,) + scene.shape[2:]), probs.reshape(b * a, -1), kinds.reshape(-1)
        )
        metrics = self.scores(
            kept,
            kept_probs,
            future.reshape(b * a, -1, 2),
            future_yaw.reshape(b * a, -1),
            future_valid.reshape(b * a, -1),
            length(velocity[:, :, -1]).reshape(-1),
        )
        kept = kept.reshape((b, a) + kept.shape[1:]) * present.reshape(b, a, 1, 1, 1)
        probs = probs * present.expand_dims(-1)
        return loc, scene, refined_scale, probs, kept, kept_probs, losses, metrics


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = TrajectoryPlanner()
    net.set_train(False)
    return net
