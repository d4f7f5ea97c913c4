"""Query-centric trajectory prediction for driving (polylines, relative poses, factorised attention, modes), in PyTorch."""

import math

import torch
import torch.nn.functional as F
from torch import nn

NMS_RADIUS = (2.5, 0.8, 1.6)  # vehicle, pedestrian, cyclist
# step of the future at which it is judged -> allowed lateral and longitudinal error, metres
MISS_THRESHOLDS = {4: (1.0, 2.0), 10: (1.8, 3.6)}


class Config:
    hidden, num_heads, num_freq, dropout = 24, 3, 5, 0.1
    num_types, num_lane_types, num_history, num_future, num_modes, num_kept = 3, 4, 8, 10, 7, 4
    num_map_layers, num_agent_layers, num_decoder_layers = 2, 2, 2
    time_span, lane_radius, agent_lane_radius, agent_radius = 5, 22.0, 18.0, 25.0
    min_scale = 0.1


def wrap_angle(angle):
    return -math.pi + (angle + math.pi) % (2 * math.pi)


def heading_vector(heading):
    return torch.stack([heading.cos(), heading.sin()], dim=-1)


def angle_between(ctr, nbr):
    """The signed angle from ctr to nbr; nought where nbr has no length."""
    angle = torch.atan2(ctr[..., 0] * nbr[..., 1] - ctr[..., 1] * nbr[..., 0], (ctr * nbr).sum(dim=-1))
    return angle.masked_fill(nbr.norm(dim=-1) < 1e-3, 0.0)


def rotate(points, angle):
    """Turn points (..., n, 2) counter-clockwise by the angle (...)."""
    cos, sin = angle.cos(), angle.sin()
    rot = torch.stack([torch.stack([cos, sin], dim=-1), torch.stack([-sin, cos], dim=-1)], dim=-2)
    return points @ rot


def gather_point(points, index):
    """points (..., n, c) at index (...) -> (..., c)."""
    index = index[..., None, None].expand(*index.shape, 1, points.shape[-1])
    return points.gather(-2, index).squeeze(-2)


class FourierEmbedding(nn.Module):
    def __init__(self, input_dim, hidden, num_freq):
        super().__init__()
        self.freqs = nn.Embedding(input_dim, num_freq)
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * num_freq + 1, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, hidden))
            for _ in range(input_dim)
        )
        self.to_out = nn.Sequential(nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, hidden))

    def forward(self, values, categorical=None):
        x = values.unsqueeze(-1) * self.freqs.weight * 2 * math.pi
        x = torch.cat([x.cos(), x.sin(), values.unsqueeze(-1)], dim=-1)
        x = torch.stack([mlp(x[..., i, :]) for i, mlp in enumerate(self.mlps)]).sum(dim=0)
        if categorical is not None:
            x = x + categorical
        return self.to_out(x)


class PairEmbedding(nn.Module):
    def __init__(self, cfg, radius=math.inf, with_gap=False):
        super().__init__()
        self.radius = radius
        self.emb = FourierEmbedding(4 if with_gap else 3, cfg.hidden, cfg.num_freq)

    def forward(self, q, k, gap=None, others=False):
        """Both are (positions, headings, valid): how each of k looks to each of q, embedded, and whether it is seen."""
        offset = k[0].unsqueeze(-3) - q[0].unsqueeze(-2)
        bearing = angle_between(heading_vector(q[1]).unsqueeze(-2), offset)
        turned = wrap_angle(k[1].unsqueeze(-2) - q[1].unsqueeze(-1))
        pose = torch.stack([offset.norm(dim=-1), bearing, turned], dim=-1)
        mask = q[2].unsqueeze(-1) & k[2].unsqueeze(-2) & (pose[..., 0] < self.radius)
        if others:
            mask = mask & ~torch.eye(mask.shape[-1], dtype=torch.bool)
        if gap is not None:
            pose = torch.cat([pose, gap.to(pose).expand(mask.shape).unsqueeze(-1)], dim=-1)
        return self.emb(pose), mask


class PolylineEncoder(nn.Module):
    def __init__(self, in_dim, hidden, out_dim):
        super().__init__()
        self.pre_mlp = nn.Sequential(nn.Linear(in_dim, hidden, bias=False), nn.BatchNorm1d(hidden, eps=1e-3), nn.ReLU())
        self.mlp = nn.Sequential(nn.Linear(2 * hidden, hidden, bias=False), nn.BatchNorm1d(hidden, eps=1e-3), nn.ReLU())
        self.out_mlp = nn.Sequential(nn.Linear(hidden, out_dim), nn.ReLU(), nn.Linear(out_dim, out_dim))

    def _on_valid(self, mlp, x, mask):
        y = mlp(x[mask])
        return y.new_zeros(*mask.shape, y.shape[-1]).masked_scatter(mask.unsqueeze(-1), y)

    def forward(self, points, mask):
        x = self._on_valid(self.pre_mlp, points, mask)
        whole = x.max(dim=2, keepdim=True)[0].expand_as(x)
        x = self._on_valid(self.mlp, torch.cat([x, whole], dim=-1), mask)
        return self._on_valid(self.out_mlp, x.max(dim=2)[0], mask.any(dim=-1))


class AttentionLayer(nn.Module):
    def __init__(self, cfg, bipartite):
        super().__init__()
        dim = cfg.hidden
        self.num_heads = cfg.num_heads
        self.scale = (dim // cfg.num_heads) ** -0.5
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim)
        self.to_k_r = nn.Linear(dim, dim, bias=False)
        self.to_v_r = nn.Linear(dim, dim)
        self.to_s = nn.Linear(dim, dim)
        self.to_g = nn.Linear(2 * dim, dim)
        self.to_out = nn.Linear(dim, dim)
        self.norm_dst = nn.LayerNorm(dim)
        self.norm_src = nn.LayerNorm(dim) if bipartite else None
        self.norm_r = nn.LayerNorm(dim)
        self.norm_post = nn.LayerNorm(dim)
        self.ff_prenorm = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Dropout(cfg.dropout), nn.Linear(2 * dim, dim))
        self.ff_postnorm = nn.LayerNorm(dim)

    def _attend(self, dst, src, r, mask):
        heads = (self.num_heads, -1)
        q = self.to_q(dst).unflatten(-1, heads).unsqueeze(-3)
        k = self.to_k(src).unflatten(-1, heads).unsqueeze(-4) + self.to_k_r(r).unflatten(-1, heads)
        v = self.to_v(src).unflatten(-1, heads).unsqueeze(-4) + self.to_v_r(r).unflatten(-1, heads)
        mask = mask.unsqueeze(-1)
        sim = (q * k).sum(dim=-1) * self.scale
        attn = sim.masked_fill(~mask, torch.finfo(sim.dtype).min).softmax(dim=-2)
        attn = attn.masked_fill(~mask, 0.0)  # who sees nobody gets nothing
        agg = (attn.unsqueeze(-1) * v).sum(dim=-3).flatten(-2)
        gate = torch.sigmoid(self.to_g(torch.cat([agg, dst], dim=-1)))
        return self.to_out(agg + gate * (self.to_s(dst) - agg))

    def forward(self, dst, src, r, mask):
        """Gated attention from dst to src (None for dst itself), with an embedding r and a mask of each pair (..., q, k)."""
        x = self.norm_dst(dst)
        src = x if src is None else self.norm_src(src)
        dst = dst + self.norm_post(self._attend(x, src, self.norm_r(r), mask))
        return dst + self.ff_postnorm(self.ff(self.ff_prenorm(dst)))


class MapEncoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.type_emb = nn.Embedding(cfg.num_lane_types, cfg.hidden)
        self.polyline = PolylineEncoder(5, 16, cfg.hidden)
        self.pairs = PairEmbedding(cfg, cfg.lane_radius)
        self.layers = nn.ModuleList(AttentionLayer(cfg, bipartite=False) for _ in range(cfg.num_map_layers))

    def forward(self, points, lane_type, valid):
        step = points[:, :, 1:] - points[:, :, :-1]
        middle = (valid.sum(dim=-1) // 2).clamp(min=1)
        anchor = gather_point(points, middle)
        along = gather_point(step, middle - 1)
        heading = torch.atan2(along[..., 1], along[..., 0])
        local = rotate(points - anchor.unsqueeze(2), -heading)
        step = F.pad(step * valid[:, :, 1:, None], (0, 0, 1, 0))
        arc = step.norm(dim=-1, keepdim=True).cumsum(dim=-2)
        feature = torch.cat([local, rotate(step, -heading), arc], dim=-1) / 10.0
        x = self.polyline(feature, valid) + self.type_emb(lane_type)
        lanes = (anchor, heading, valid.any(dim=-1))
        r, mask = self.pairs(lanes, lanes, others=True)
        for layer in self.layers:
            x = layer(x, None, r, mask)
        return x, lanes


class AgentEncoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.time_span = cfg.time_span
        self.type_emb = nn.Embedding(cfg.num_types, cfg.hidden)
        self.x_emb = FourierEmbedding(4, cfg.hidden, cfg.num_freq)
        self.track_conv = nn.Conv1d(cfg.hidden, cfg.hidden, 3, padding=2, dilation=2, groups=cfg.hidden)
        self.time_pairs = PairEmbedding(cfg, with_gap=True)
        self.map_pairs = PairEmbedding(cfg, cfg.agent_lane_radius)
        self.agent_pairs = PairEmbedding(cfg, cfg.agent_radius)
        self.time_layers = nn.ModuleList(AttentionLayer(cfg, bipartite=False) for _ in range(cfg.num_agent_layers))
        self.map_layers = nn.ModuleList(AttentionLayer(cfg, bipartite=True) for _ in range(cfg.num_agent_layers))
        self.agent_layers = nn.ModuleList(AttentionLayer(cfg, bipartite=False) for _ in range(cfg.num_agent_layers))

    def forward(self, tracks, vel, agent_type, lane_x, lanes):
        pos, head, valid = tracks
        a, t = head.shape[1:]
        both = valid[:, :, 1:] & valid[:, :, :-1]
        motion = F.pad((pos[:, :, 1:] - pos[:, :, :-1]) * both.unsqueeze(-1), (0, 0, 1, 0))
        facing = heading_vector(head)
        feature = torch.stack(
            [motion.norm(dim=-1), angle_between(facing, motion), vel.norm(dim=-1), angle_between(facing, vel)], dim=-1
        )
        x = self.x_emb(feature, self.type_emb(agent_type).unsqueeze(2)) * valid.unsqueeze(-1)
        x = x + self.track_conv(x.flatten(0, 1).transpose(1, 2)).transpose(1, 2).reshape(x.shape).relu()
        steps = torch.arange(t)
        gap = steps[None, :] - steps[:, None]
        r_time, mask_time = self.time_pairs(tracks, tracks, gap)
        mask_time = mask_time & (gap < 0) & (gap >= -self.time_span)
        r_map, mask_map = self.map_pairs([s.flatten(1, 2) for s in tracks], lanes)
        frames = [s.transpose(1, 2) for s in tracks]
        r_agent, mask_agent = self.agent_pairs(frames, frames, others=True)
        for over_time, over_map, over_agents in zip(self.time_layers, self.map_layers, self.agent_layers):
            x = over_time(x, None, r_time, mask_time)
            x = over_map(x.flatten(1, 2), lane_x, r_map, mask_map).unflatten(1, (a, t))
            x = over_agents(x.transpose(1, 2), None, r_agent, mask_agent).transpose(1, 2)
        return x


class ModeMixer(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, num_heads, batch_first=True)

    def forward(self, m):
        y = self.norm(m).flatten(0, 1)
        return m + self.attn(y, y, y, need_weights=False)[0].reshape(m.shape)


def head_mlp(dim, out_dim):
    return nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, out_dim))


class ModeDecoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        dim, n = cfg.hidden, cfg.num_decoder_layers
        self.mode_emb = nn.Embedding(cfg.num_modes, dim)
        self.time_pairs = PairEmbedding(cfg, with_gap=True)
        self.map_pairs = PairEmbedding(cfg, cfg.agent_lane_radius)
        self.agent_pairs = PairEmbedding(cfg, cfg.agent_radius)
        self.time_layers = nn.ModuleList(AttentionLayer(cfg, bipartite=True) for _ in range(n))
        self.map_layers = nn.ModuleList(AttentionLayer(cfg, bipartite=True) for _ in range(n))
        self.agent_layers = nn.ModuleList(AttentionLayer(cfg, bipartite=True) for _ in range(n))
        self.mixers = nn.ModuleList(ModeMixer(dim, cfg.num_heads) for _ in range(n))
        self.y_emb = FourierEmbedding(2, dim, cfg.num_freq)
        self.traj_gru = nn.GRU(dim, dim)
        self.traj_h0 = nn.Parameter(torch.zeros(1, dim))
        self.loc_propose, self.scale_propose = head_mlp(dim, cfg.num_future * 2), head_mlp(dim, cfg.num_future * 2)
        self.loc_refine, self.scale_refine = head_mlp(dim, cfg.num_future * 2), head_mlp(dim, cfg.num_future * 2)
        self.pi = head_mlp(dim, 1)

    def forward(self, x, tracks, lane_x, lanes):
        b, a, t, d = x.shape
        now = [s[:, :, -1] for s in tracks]
        r_time, mask_time = self.time_pairs([s.unsqueeze(2) for s in now], tracks, torch.arange(1 - t, 1))
        r_map, mask_map = self.map_pairs(now, lanes)
        r_agent, mask_agent = self.agent_pairs(now, now, others=True)
        r_map, mask_map, r_agent, mask_agent = (s.unsqueeze(2) for s in (r_map, mask_map, r_agent, mask_agent))
        m, path = self.mode_emb.weight.expand(b, a, -1, -1), (self.cfg.num_future, 2)
        for i, mixer in enumerate(self.mixers):
            m = self.time_layers[i](m, x, r_time, mask_time)
            m = self.map_layers[i](m, lane_x.unsqueeze(1), r_map, mask_map)
            m = mixer(self.agent_layers[i](m, x[:, :, -1].unsqueeze(1), r_agent, mask_agent))
        loc = self.loc_propose(m).unflatten(-1, path).cumsum(dim=-2)
        scale = (F.elu(self.scale_propose(m).unflatten(-1, path)) + 1.0).cumsum(dim=-2) + self.cfg.min_scale
        y = self.y_emb(loc.detach()).flatten(0, 2).transpose(0, 1)
        h0 = self.traj_h0.unsqueeze(1).repeat(1, y.shape[1], 1)
        m = m + self.traj_gru(y, h0)[1].reshape(m.shape)
        loc_refined = loc.detach() + self.loc_refine(m).unflatten(-1, path)
        scale_refined = F.elu(self.scale_refine(m).unflatten(-1, path)) + 1.0 + self.cfg.min_scale
        return loc, scale, loc_refined, scale_refined, self.pi(m).squeeze(-1)


def laplace_nll(loc, scale, target):
    return (torch.log(2 * scale) + (target - loc).abs() / scale).sum(dim=-1)


class WinnerTakesAllLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.speed_loss = nn.SmoothL1Loss(reduction="none", beta=0.2)

    def forward(self, pred, target, valid):
        loc, scale, loc_refined, scale_refined, pi = pred
        weight = valid.to(loc.dtype)
        count = weight.sum(dim=-1).clamp(min=1.0)
        active = valid.any(dim=-1).to(loc.dtype) / valid.any(dim=-1).sum().clamp(min=1)
        error = ((loc - target.unsqueeze(2)).norm(dim=-1) * weight.unsqueeze(2)).sum(dim=-1)
        best = error.argmin(dim=-1)
        rows, cols = torch.arange(best.shape[0])[:, None], torch.arange(best.shape[1])[None, :]
        losses = []
        for mean, spread in ((loc, scale), (loc_refined, scale_refined)):
            nll = laplace_nll(mean[rows, cols, best], spread[rows, cols, best], target)
            losses.append(((nll * weight).sum(dim=-1) / count * active).sum())
        nll = laplace_nll(loc_refined, scale_refined, target.unsqueeze(2)) * weight.unsqueeze(2)
        mixture = -torch.logsumexp(F.log_softmax(pi, dim=-1) - nll.sum(dim=-1).detach(), dim=-1)
        losses.append((mixture * active).sum())
        both = weight[..., 1:] * weight[..., :-1]
        speed = loc_refined[rows, cols, best].diff(dim=-2).norm(dim=-1)
        speed = self.speed_loss(speed, target.diff(dim=-2).norm(dim=-1)) * both
        losses.append(speed.sum() / both.sum().clamp(min=1.0))
        return torch.stack(losses)


class EndpointNMS(nn.Module):
    def __init__(self, num_kept):
        super().__init__()
        self.num_kept = num_kept
        self.register_buffer("radius", torch.tensor(NMS_RADIUS), persistent=False)

    def forward(self, trajs, scores, agent_type):
        rows = torch.arange(trajs.shape[0])
        order = scores.argsort(dim=-1, descending=True)
        scores, trajs = scores[rows[:, None], order], trajs[rows[:, None], order]
        ends = trajs[:, :, -1]
        near = (ends[:, :, None] - ends[:, None]).norm(dim=-1) < self.radius[agent_type][:, None, None]
        value, kept = scores.clone(), []
        for _ in range(self.num_kept):
            best = value.argmax(dim=-1)
            kept.append(best)
            value = value - near[rows, best].to(value.dtype)  # the covered ones come last, in their order
            value[rows, best] = -1e4
        kept = torch.stack(kept, dim=1)
        trajs, scores = trajs[rows[:, None], kept], scores[rows[:, None], kept]
        return trajs, scores / scores.sum(dim=-1, keepdim=True)


class MotionMetrics(nn.Module):
    def forward(self, trajs, scores, target, target_head, valid, speed):
        """trajs (n, k, steps, 2), scores (n, k), target (n, steps, 2), heading and valid (n, steps), speed (n,)"""
        relax = 0.5 + 0.5 * ((speed - 1.4) / (11.0 - 1.4)).clamp(0.0, 1.0)[:, None]
        rows = torch.arange(trajs.shape[0])
        table = []
        for horizon, (lateral, longitudinal) in MISS_THRESHOLDS.items():
            ok = valid[:, :horizon]
            judged = ok.any(dim=-1).to(trajs.dtype)
            diff = trajs[:, :, :horizon] - target[:, None, :horizon]
            dist = diff.norm(dim=-1) * ok.unsqueeze(1)
            ade = (dist.sum(dim=-1) / ok.sum(dim=-1, keepdim=True).clamp(min=1)).min(dim=-1)[0]
            last = horizon - 1 - ok.flip(-1).int().argmax(dim=-1)  # the last valid step
            fde, best = dist[rows, :, last].min(dim=-1)
            brier = fde + (1.0 - scores[rows, best]) ** 2
            end = rotate(diff[rows, :, last], -target_head[rows, last])
            inside = (end[..., 0].abs() < longitudinal * relax) & (end[..., 1].abs() < lateral * relax)
            miss = (~inside.any(dim=-1)).to(trajs.dtype)
            values = torch.stack([ade, fde, brier, miss], dim=-1)
            table.append((values * judged[:, None]).sum(dim=0) / judged.sum().clamp(min=1.0))
        return torch.stack(table)


class Planner(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.map_encoder = MapEncoder(cfg)
        self.agent_encoder = AgentEncoder(cfg)
        self.decoder = ModeDecoder(cfg)
        self.criterion = WinnerTakesAllLoss()
        self.nms = EndpointNMS(cfg.num_kept)
        self.metrics = MotionMetrics()

    def forward(self, pos, head, vel, agent_type, valid, lane_points, lane_type, lane_valid, future, future_head, future_ok):
        tracks = (pos * valid.unsqueeze(-1), head * valid, valid)
        lane_x, lanes = self.map_encoder(lane_points, lane_type, lane_valid)
        x = self.agent_encoder(tracks, vel * valid.unsqueeze(-1), agent_type, lane_x, lanes)
        pred = self.decoder(x, tracks, lane_x, lanes)
        origin, facing, now = (s[:, :, -1] for s in tracks)
        future_ok = future_ok & now.unsqueeze(-1)
        losses = self.criterion(pred, rotate(future - origin.unsqueeze(2), -facing), future_ok)
        trajs = rotate(pred[2].flatten(2, 3), facing).reshape(pred[2].shape) + origin[:, :, None, None]
        probs = pred[4].softmax(dim=-1)
        kept, kept_probs = self.nms(trajs.flatten(0, 1), probs.flatten(0, 1), agent_type.flatten())
        speed = (vel[:, :, -1].norm(dim=-1) * now).flatten()
        truth = (s.flatten(0, 1) for s in (future, future_head, future_ok))
        metrics = self.metrics(kept, kept_probs, *truth, speed)
        kept = kept.unflatten(0, now.shape) * now[:, :, None, None, None]
        return pred[0], trajs, pred[3], probs * now.unsqueeze(-1), kept, kept_probs, losses, metrics


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.05, 0.4)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, FourierEmbedding):
            nn.init.normal_(module.freqs.weight, std=0.08)
    nn.init.normal_(net.decoder.traj_h0, std=0.5)
    for mixer in net.decoder.mixers:
        nn.init.normal_(mixer.attn.in_proj_bias, std=0.1)
    return net


def build():
    """The net with the same weights on every run, and two scenes with parked, late and lost agents and short lanes."""
    torch.manual_seed(1397)
    net = trained_like(Planner(Config()))
    b, a, t, f, n, p = 2, 6, Config.num_history, Config.num_future, 9, 7
    start, turn = torch.rand(b, a, 1) * 2 * math.pi, torch.randn(b, a, 1) * 0.08
    heading = wrap_angle(start + turn * torch.arange(t + f))
    speed = torch.rand(b, a, 1) * 1.3 + torch.rand(b, a, t + f) * 0.1
    speed[1, 2] = 0.0
    going = heading_vector(heading + 0.1 * torch.randn(b, a, t + f)) * speed.unsqueeze(-1)
    track = torch.randn(b, a, 1, 2) * 9.0 + going.cumsum(dim=2)
    seen = torch.rand(b, a, t + f) > 0.2
    seen[:, :, t - 1] = True
    seen[0, 4, t - 1], seen[1, 3, t:], seen[0, 1, : t - 2] = False, False, False
    vel = going / 0.1 + 0.2 * torch.randn(b, a, t + f, 2) * (speed > 0).unsqueeze(-1)
    bend = torch.rand(b, n, 1) * 2 * math.pi + torch.randn(b, n, 1) * 0.1 * torch.arange(p)
    lane_points = torch.randn(b, n, 1, 2) * 10.0 + (heading_vector(bend) * 2.0).cumsum(dim=2)
    lane_valid = torch.arange(p) < torch.randint(3, p + 1, (b, n, 1))
    lane_valid[1, 7:] = False
    types, lane_types = torch.randint(0, 3, (b, a)), torch.randint(0, 4, (b, n))
    lanes = (lane_points.masked_fill(~lane_valid.unsqueeze(-1), 0.0), lane_types, lane_valid)
    past = track[:, :, :t], heading[:, :, :t], vel[:, :, :t], types, seen[:, :, :t]
    return net.eval(), (*past, *lanes, track[:, :, t:], heading[:, :, t:], seen[:, :, t:])
