"""Forecasting of road users: polylines, relations in everybody's own frame, modes that are anchored. The reference."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

DT = 0.2


def wrap(angle):
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def rotate(xy, yaw):
    """Turn xy (..., 2) by yaw (...), counter-clockwise."""
    c, s = torch.cos(yaw), torch.sin(yaw)
    x, y = xy[..., 0], xy[..., 1]
    return torch.stack([c * x - s * y, s * x + c * y], dim=-1)


def masked_max(x, mask, dim):
    """Maximum of x (..., P, C) over the points that count; zero if none does."""
    x = x.masked_fill(~mask.unsqueeze(-1), -1e4)
    top = x.amax(dim=dim)
    return torch.where(mask.any(dim=dim).unsqueeze(-1), top, torch.zeros_like(top))


def masked_mean(x, mask, dim):
    w = mask.unsqueeze(-1).float()
    return (x * w).sum(dim=dim) / w.sum(dim=dim).clamp(min=1.0)


def relation(origin_q, head_q, origin_k, head_k, reach):
    """Features (B, N, M, 7) of the k's as the q's see them, and the distances (B, N, M)."""
    offset = origin_k[:, None, :, :] - origin_q[:, :, None, :]
    offset = rotate(offset, -head_q[:, :, None])
    dist = torch.sqrt((offset ** 2).sum(-1) + 1e-4)
    turn = wrap(head_k[:, None, :] - head_q[:, :, None])
    ray = offset / dist[..., None]
    feats = torch.cat(
        [
            (offset / reach).clamp(-2.0, 2.0),
            torch.log1p(dist)[..., None],
            torch.cos(turn)[..., None],
            torch.sin(turn)[..., None],
            ray,
        ],
        dim=-1,
    )
    return feats, dist


class PolylineNet(nn.Module):
    """PointNet-like: every point, joined with the maximum of its line, some times over."""

    def __init__(self, d_in, width, depth):
        super().__init__()
        self.fcs = nn.ModuleList([nn.Linear(d_in if i == 0 else 2 * width, width) for i in range(depth)])
        self.out = nn.Linear(2 * width, width)

    def forward(self, x, mask):
        points = x.shape[2]
        for fc in self.fcs:
            x = fc(x)
            x = F.relu(F.layer_norm(x, x.shape[-1:], eps=1e-3) + 0.2)
            pooled = masked_max(x, mask, 2)
            x = torch.cat([x, pooled.unsqueeze(2).expand(-1, -1, points, -1)], dim=-1)
            x = x * mask.unsqueeze(-1)
        half = x.shape[-1] // 2
        best = masked_max(x[..., :half], mask, 2)
        mean = masked_mean(x[..., :half], mask, 2)
        return self.out(torch.cat([best, mean], dim=-1))


class RelAttention(nn.Module):
    """Attention that knows how the keys lie around each query; far keys count less."""

    def __init__(self, width, heads, reach):
        super().__init__()
        self.heads, self.reach = heads, reach
        self.to_q = nn.Linear(width, 2 * width)
        self.to_kv = nn.Linear(width, 2 * width)
        self.to_r = nn.Linear(7, 2 * width)
        self.proj = nn.Linear(width, width)
        slopes = 4.0 * 2.0 ** -np.arange(heads)
        self.register_buffer("slopes", torch.tensor(slopes, dtype=torch.float32), persistent=False)

    def forward(self, x, ctx, rel, dist, keep):
        b, n, d = x.shape
        m, h = ctx.shape[1], self.heads
        hd = d // h
        q, g = self.to_q(x).chunk(2, dim=-1)
        q = q.view(b, n, h, hd).permute(0, 2, 1, 3)
        k, v = self.to_kv(ctx).view(b, m, 2, h, hd).permute(2, 0, 3, 1, 4)
        rk, rv = self.to_r(rel).view(b, n, m, h, 2 * hd).chunk(2, dim=-1)

        logits = torch.einsum("bhnd,bhmd->bhnm", q, k)
        logits = logits + torch.einsum("bhnd,bnmhd->bhnm", q, rk)
        logits = logits * hd ** -0.5
        near = dist.clamp(max=self.reach) / self.reach
        logits = logits - self.slopes[None, :, None, None] * near[:, None]
        logits = logits.masked_fill(~keep[:, None, None, :], -1e4)
        w = torch.softmax(logits, dim=-1)

        out = torch.einsum("bhnm,bhmd->bnhd", w, v)
        out = out + torch.einsum("bhnm,bnmhd->bnhd", w, rv)
        out = out.reshape(b, n, d)
        return self.proj(out * torch.sigmoid(g))


class SceneLayer(nn.Module):
    """Users look at users, then at the map, then think."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm_a = nn.LayerNorm(width)
        self.among = RelAttention(width, heads, reach=20.0)
        self.norm_m = nn.LayerNorm(width)
        self.lanes = RelAttention(width, heads, reach=12.0)
        self.norm_f = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x, road, users, ways, user_ok, road_ok):
        y = self.norm_a(x)
        x = x + self.among(y, y, *users, user_ok)
        x = x + self.lanes(self.norm_m(x), road, *ways, road_ok)
        a, g = self.up(self.norm_f(x)).chunk(2, dim=-1)
        x = x + self.down(a * F.silu(g))
        return x * user_ok[..., None]


class ModeDecoder(nn.Module):
    """Every user's future as a mixture over anchored modes; steps are summed up to tracks."""

    def __init__(self, width, modes, future):
        super().__init__()
        self.modes, self.future = modes, future
        self.anchor = nn.Parameter(torch.zeros(modes, width))
        self.embed = nn.Linear(2 * future, width)
        self.fuse = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, 2 * width)
        self.steps = nn.Linear(2 * width, 5 * future)
        self.score = nn.Linear(2 * width, 1)
        # unit tracks: the speed of one metre a second, bent to the left, straight on, ...
        bend = np.linspace(-0.6, 0.6, modes)[:, None] * np.arange(1, future + 1)[None] * DT
        unit = np.stack([np.cos(bend), np.sin(bend)], axis=-1) * DT
        self.register_buffer("unit", torch.tensor(unit, dtype=torch.float32), persistent=False)
        self.register_buffer("soften", torch.linspace(1.0, 0.5, future), persistent=False)

    def forward(self, feat, speed):
        b, n, d = feat.shape
        base = self.unit * speed[:, :, None, None, None]
        track = base.cumsum(dim=3)
        e = self.embed(track.flatten(3) / 10.0)
        q = self.fuse(torch.cat([feat[:, :, None].expand_as(e), F.gelu(e)], dim=-1)) + self.anchor

        z = self.norm(q)
        w = torch.softmax(z @ z.transpose(-1, -2) / math.sqrt(d), dim=-1)
        q = q + w @ z
        y = F.relu(self.hidden(q))

        raw = self.steps(y).view(b, n, self.modes, self.future, 5)
        move = base + torch.tanh(raw[..., :2]) * self.soften[:, None]
        # a step is blended with the one before it, so that tracks have no kinks
        before = torch.cat([move[..., :1, :], move[..., :-1, :]], dim=-2)
        move = 0.75 * move + 0.25 * before
        xy = torch.cumsum(move, dim=-2)
        spread = torch.exp(raw[..., 2:4].clamp(-1.0, 1.5))
        spread = torch.sqrt(torch.cumsum(spread ** 2, dim=-2))
        rho = 0.9 * torch.tanh(raw[..., 4:])
        logit = self.score(y).squeeze(-1)
        logit = logit - logit.mean(dim=-1, keepdim=True)
        return xy, torch.cat([spread, rho], dim=-1), torch.log_softmax(logit / 0.7, dim=-1)


class Forecaster(nn.Module):
    def __init__(self, width=32, heads=4, depth=2, modes=5, future=8, kinds=3):
        super().__init__()
        self.user_net = PolylineNet(9, width, 2)
        self.road_net = PolylineNet(6, width, 2)
        self.kind = nn.Embedding(kinds, width)
        self.layers = nn.ModuleList([SceneLayer(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.decoder = ModeDecoder(width, modes, future)

    def user_vectors(self, xy, yaw, seen):
        steps = xy.shape[2]
        last = (seen * torch.arange(1, steps + 1)).argmax(dim=-1)
        origin = torch.gather(xy, 2, last[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)
        head = torch.gather(yaw, 2, last[..., None]).squeeze(2)

        local = rotate(xy - origin[:, :, None], -head[..., None])
        step = local[:, :, 1:] - local[:, :, :-1]
        turn = wrap(yaw[:, :, 1:] - yaw[:, :, :-1])
        pace = step.norm(dim=-1) / DT
        both = seen[:, :, 1:] & seen[:, :, :-1]
        accel = F.pad(pace[..., 1:] - pace[..., :-1], (1, 0)).clamp(-3.0, 3.0)
        when = (torch.arange(1, steps) - (steps - 1)) * DT
        feats = torch.cat(
            [
                local[:, :, 1:] / 5.0,
                step,
                pace[..., None] / 10.0,
                accel[..., None],
                torch.stack([torch.cos(turn), torch.sin(turn)], dim=-1),
                when[None, None, :, None].expand(*pace.shape, 1),
            ],
            dim=-1,
        )
        # the present pace: the later a step, the more it counts
        weight = both * torch.exp(when)
        speed = (pace * weight).sum(-1) / weight.sum(-1).clamp(min=1e-3)
        return feats * both[..., None], both, origin, head, speed

    def road_vectors(self, xy, ok):
        origin = masked_mean(xy, ok, 2)
        count = ok.sum(-1)
        end = (count - 1).clamp(min=0)
        tip = torch.gather(xy, 2, end[..., None, None].expand(-1, -1, 1, 2))[:, :, 0]
        chord = tip - xy[:, :, 0]
        head = torch.atan2(chord[..., 1], chord[..., 0] + 1e-6)
        local = rotate(xy - origin[:, :, None], -head[..., None])
        prev = torch.cat([local[:, :, :1], local[:, :, :-1]], dim=2)
        length = chord.norm(dim=-1)
        share = torch.arange(xy.shape[2]) / count[..., None].clamp(min=1)
        extra = torch.stack([share, (length / 10.0)[..., None].expand_as(share)], dim=-1)
        return torch.cat([local / 4.0, local - prev, extra], dim=-1), origin, head

    def forward(self, xy, yaw, seen, kinds, lane_xy, lane_ok):
        seen, lane_ok = seen > 0.5, lane_ok > 0.5
        feats, both, origin, head, speed = self.user_vectors(xy, yaw, seen)
        user_ok = seen.any(dim=-1)
        road_ok = lane_ok.any(dim=-1)
        x = self.user_net(feats, both) + self.kind(kinds)

        lane, lane_origin, lane_head = self.road_vectors(lane_xy, lane_ok)
        road = self.road_net(lane, lane_ok)
        users = relation(origin, head, origin, head, 20.0)
        ways = relation(origin, head, lane_origin, lane_head, 12.0)
        for layer in self.layers:
            x = layer(x, road, users, ways, user_ok, road_ok)
        x = self.norm(x)

        track, shape, logp = self.decoder(x, speed)
        world = rotate(track, head[:, :, None, None]) + origin[:, :, None, None]
        best = logp.argmax(dim=-1)
        index = best[:, :, None, None, None].expand(-1, -1, 1, *track.shape[3:])
        chosen = torch.gather(track, 2, index).squeeze(2)
        middle = (logp.exp()[..., None, None] * track).sum(dim=2)
        # how far the best mode lies from the mixture's middle, at every step
        stray = (chosen - middle).norm(dim=-1) * user_ok[..., None]
        world = world * user_ok[:, :, None, None, None]
        return torch.cat([world, shape], dim=-1), logp, chosen, stray


def scene(rng, batch=2, users=5, steps=9, lanes=7, points=6):
    start = rng.uniform(-12, 12, (batch, users, 1, 2))
    yaw = rng.uniform(-3.1, 3.1, (batch, users, 1)) + np.cumsum(rng.normal(0, 0.12, (batch, users, steps)), -1)
    pace = rng.uniform(2.0, 9.0, (batch, users, 1)) + rng.normal(0, 0.4, (batch, users, steps))
    xy = start + np.cumsum(np.stack([np.cos(yaw), np.sin(yaw)], -1) * pace[..., None] * DT, axis=2)
    seen = np.ones((batch, users, steps))
    seen[0, 1, :3] = 0
    seen[0, 3, 6:] = 0
    seen[1, 0, 7:] = 0
    seen[1, 2, 4] = 0
    seen[1, 4] = 0
    bend = rng.uniform(-3.1, 3.1, (batch, lanes, 1)) + rng.normal(0, 0.1, (batch, lanes, 1)) * np.arange(points)
    lane = rng.uniform(-15, 15, (batch, lanes, 1, 2)) + np.cumsum(2 * np.stack([np.cos(bend), np.sin(bend)], -1), 2)
    ok = np.ones((batch, lanes, points))
    ok[0, 2, 4:] = 0
    ok[0, 6] = 0
    ok[1, 1, 3:] = 0
    ok[1, 5, 5:] = 0
    yaw = (yaw + np.pi) % (2 * np.pi) - np.pi
    floats = [xy * seen[..., None], yaw * seen, seen, lane * ok[..., None], ok]
    xy, yaw, seen, lane, ok = (torch.tensor(a, dtype=torch.float32) for a in floats)
    return xy, yaw, seen, torch.tensor(rng.integers(0, 3, (batch, users))), lane, ok


def build():
    """The net with the same weights on every run, and a batch of two scenes."""
    torch.manual_seed(5)
    net = Forecaster()
    for name, p in net.named_parameters():
        if "norm" in name:
            nn.init.uniform_(p, 0.6, 1.4) if name.endswith("weight") else nn.init.normal_(p, std=0.15)
    nn.init.normal_(net.kind.weight, std=0.5)
    nn.init.normal_(net.decoder.anchor, std=0.5)
    nn.init.normal_(net.decoder.score.weight, std=0.25)
    return net.eval(), scene(np.random.default_rng(17))
