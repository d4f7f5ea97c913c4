"""Forecasting of road users in MindSpore."""

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops

DT = 0.2


def wrap(angle):
    return ops.floor_mod(angle + math.pi, 2 * math.pi) - math.pi


def rotate(xy, yaw):
    """Turn xy (..., 2) by yaw (...), counter-clockwise."""
    cos, sin = ops.cos(yaw), ops.sin(yaw)
    x = xy[..., 0]
    y = xy[..., 1]
    return ops.stack((cos * x - sin * y, sin * x + cos * y), axis=-1)


def masked_max(x, mask, axis):
    """Maximum of x (..., P, C) over the points that count; zero if none does."""
    x = ops.masked_fill(x, ops.logical_not(mask).expand_dims(-1), -1e4)
    top = ops.amax(x, axis)
    some = ops.any(mask, axis).expand_dims(-1)
    return ops.select(some.broadcast_to(top.shape), top, ops.zeros_like(top))


def masked_mean(x, mask, axis):
    w = mask.expand_dims(-1).astype(ms.float32)
    return ops.sum(x * w, axis) / ops.clamp(ops.sum(w, axis), min=1.0)


def relation(origin_q, head_q, origin_k, head_k, reach):
    """Features (B, N, M, 7) of the k's as the q's see them, and the distances (B, N, M)."""
    offset = origin_k.expand_dims(1) - origin_q.expand_dims(2)
    offset = rotate(offset, -head_q.expand_dims(2))
    dist = ops.sqrt(ops.square(offset).sum(-1) + 1e-4)
    turn = wrap(head_k.expand_dims(1) - head_q.expand_dims(2))
    ray = offset / dist.expand_dims(-1)
    scalars = ops.stack((ops.log1p(dist), ops.cos(turn), ops.sin(turn)), axis=-1)
    feats = ops.concat((ops.clamp(offset / reach, -2.0, 2.0), scalars, ray), axis=-1)
    return feats, dist


class PolylineNet(nn.Cell):
    """PointNet-like: every point, joined with the maximum of its line, some times over."""

    def __init__(self, d_in, width, depth):
        super().__init__()
        self.fcs = nn.CellList([nn.Dense(d_in if i == 0 else 2 * width, width) for i in range(depth)])
        self.out = nn.Dense(2 * width, width)

    def construct(self, x, mask):
        weight = mask.expand_dims(-1).astype(x.dtype)
        for fc in self.fcs:
            x = fc(x)
            x = x - x.mean(-1, keep_dims=True)
            x = x * ops.rsqrt(ops.square(x).mean(-1, keep_dims=True) + 1e-3)
            x = ops.relu(x + 0.2)
            pooled = masked_max(x, mask, 2)
            pooled = pooled.expand_dims(2).broadcast_to(x.shape)
            x = ops.concat((x, pooled), axis=-1) * weight
        own = x[..., : x.shape[-1] // 2]
        best = masked_max(own, mask, 2)
        mean = masked_mean(own, mask, 2)
        return self.out(ops.concat((best, mean), axis=-1))


class RelAttention(nn.Cell):
    """Attention that knows how the keys lie around each query; far keys count less."""

    def __init__(self, width, heads, reach):
        super().__init__()
        self.heads = heads
        self.reach = reach
        self.to_q = nn.Dense(width, 2 * width)
        self.to_kv = nn.Dense(width, 2 * width)
        self.to_r = nn.Dense(7, 2 * width)
        self.proj = nn.Dense(width, width)
        slopes = 4.0 * 2.0 ** -np.arange(heads)
        self.slopes = ms.Tensor(slopes.reshape(1, heads, 1, 1), ms.float32)

    def construct(self, x, ctx, rel, dist, keep):
        b, n, d = x.shape
        m = ctx.shape[1]
        h = self.heads
        hd = d // h
        q, g = ops.chunk(self.to_q(x), 2, axis=-1)
        q = q.reshape(b, n, h, hd).transpose(0, 2, 1, 3)
        kv = self.to_kv(ctx).reshape(b, m, 2, h, hd).transpose(2, 0, 3, 1, 4)
        k, v = kv[0], kv[1]
        r = self.to_r(rel).reshape(b, n, m, h, 2 * hd).transpose(0, 3, 1, 2, 4)
        rk, rv = r[..., :hd], r[..., hd:]

        logits = ops.matmul(q, k.swapaxes(-1, -2))
        logits = logits + (q.expand_dims(3) * rk).sum(-1)
        logits = logits * hd ** -0.5
        near = ops.clamp(dist, max=self.reach) / self.reach
        logits = logits - self.slopes * near.expand_dims(1)
        logits = logits.masked_fill(ops.logical_not(keep)[:, None, None, :], -1e4)
        w = ops.softmax(logits, axis=-1)

        out = ops.matmul(w, v)
        out = out + (w.expand_dims(-1) * rv).sum(3)
        out = out.swapaxes(1, 2).reshape(b, n, d)
        return self.proj(out * ops.sigmoid(g))


class SceneLayer(nn.Cell):
    """Users look at users, then at the map, then think."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm_a = nn.LayerNorm((width,), epsilon=1e-5)
        self.among = RelAttention(width, heads, reach=20.0)
        self.norm_m = nn.LayerNorm((width,), epsilon=1e-5)
        self.lanes = RelAttention(width, heads, reach=12.0)
        self.norm_f = nn.LayerNorm((width,), epsilon=1e-5)
        self.up = nn.Dense(width, 4 * width)
        self.down = nn.Dense(2 * width, width)

    def construct(self, x, road, users, ways, user_ok, road_ok):
        y = self.norm_a(x)
        x = x + self.among(y, y, users[0], users[1], user_ok)
        y = self.norm_m(x)
        x = x + self.lanes(y, road, ways[0], ways[1], road_ok)
        a, g = ops.chunk(self.up(self.norm_f(x)), 2, axis=-1)
        x = x + self.down(a * ops.silu(g))
        return x * user_ok.expand_dims(-1).astype(x.dtype)


class ModeDecoder(nn.Cell):
    """Every user's future as a mixture over anchored modes; steps are summed up to tracks."""

    def __init__(self, width, modes, future):
        super().__init__()
        self.modes = modes
        self.future = future
        self.anchor = ms.Parameter(ms.Tensor(np.zeros((modes, width)), ms.float32), name="anchor")
        self.embed = nn.Dense(2 * future, width)
        self.fuse = nn.Dense(2 * width, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.hidden = nn.Dense(width, 2 * width)
        self.steps = nn.Dense(2 * width, 5 * future)
        self.score = nn.Dense(2 * width, 1)
        # unit tracks: the speed of one metre a second, bent to the left, straight on, ...
        bend = np.linspace(-0.6, 0.6, modes)[:, None] * np.arange(1, future + 1)[None] * DT
        unit = np.stack([np.cos(bend), np.sin(bend)], axis=-1) * DT
        self.unit = ms.Tensor(unit, ms.float32)
        self.soften = ms.Tensor(np.linspace(1.0, 0.5, future)[:, None], ms.float32)

    def construct(self, feat, speed):
        b, n, d = feat.shape
        base = self.unit * speed.reshape(b, n, 1, 1, 1)
        track = ops.cumsum(base, 3)
        e = self.embed(track.reshape(b, n, self.modes, -1) / 10.0)
        q = ops.concat((feat.expand_dims(2).broadcast_to(e.shape), ops.gelu(e)), axis=-1)
        q = self.fuse(q) + self.anchor

        z = self.norm(q)
        w = ops.softmax(ops.matmul(z, z.swapaxes(-1, -2)) / math.sqrt(d), axis=-1)
        q = q + ops.matmul(w, z)
        y = ops.relu(self.hidden(q))

        raw = self.steps(y).reshape(b, n, self.modes, self.future, 5)
        move = base + ops.tanh(raw[..., :2]) * self.soften
        # a step is blended with the one before it, so that tracks have no kinks
        before = ops.concat((move[..., :1, :], move[..., :-1, :]), axis=-2)
        move = 0.75 * move + 0.25 * before
        xy = ops.cumsum(move, 3)
        spread = ops.exp(ops.clamp(raw[..., 2:4], -1.0, 1.5))
        spread = ops.sqrt(ops.cumsum(ops.square(spread), 3))
        rho = 0.9 * ops.tanh(raw[..., 4:])
        logit = self.score(y).squeeze(-1)
        logit = logit - logit.mean(axis=-1, keep_dims=True)
        return xy, ops.concat((spread, rho), axis=-1), ops.log_softmax(logit / 0.7, -1)


class Forecaster(nn.Cell):
    def __init__(self, width=32, heads=4, depth=2, modes=5, future=8, kinds=3):
        super().__init__()
        self.user_net = PolylineNet(9, width, 2)
        self.road_net = PolylineNet(6, width, 2)
        self.kind = nn.Embedding(kinds, width)
        self.layers = nn.CellList([SceneLayer(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.decoder = ModeDecoder(width, modes, future)

    def user_vectors(self, xy, yaw, seen):
        b, n, steps, _ = xy.shape
        last = (seen.astype(ms.int32) * ops.arange(1, steps + 1)).argmax(-1)
        index = last.reshape(b, n, 1, 1).broadcast_to((b, n, 1, 2))
        origin = ops.gather_elements(xy, 2, index).squeeze(2)
        head = ops.gather_elements(yaw, 2, last.expand_dims(-1)).squeeze(2)

        local = rotate(xy - origin.expand_dims(2), -head.expand_dims(-1))
        step = local[:, :, 1:] - local[:, :, :-1]
        turn = wrap(yaw[:, :, 1:] - yaw[:, :, :-1])
        pace = ops.norm(step, dim=-1) / DT
        both = ops.logical_and(seen[:, :, 1:], seen[:, :, :-1])
        known = both.astype(ms.float32)
        accel = ops.pad(pace[..., 1:] - pace[..., :-1], (1, 0))
        accel = ops.clamp(accel, -3.0, 3.0)
        when = (ops.arange(1, steps) - (steps - 1)).astype(ms.float32) * DT
        feats = ops.concat(
            (
                local[:, :, 1:] / 5.0,
                step,
                ops.stack((pace / 10.0, accel, ops.cos(turn), ops.sin(turn)), axis=-1),
                when.reshape(1, 1, -1, 1).broadcast_to((b, n, steps - 1, 1)),
            ),
            axis=-1,
        )
        # the present pace: the later a step, the more it counts
        weight = known * ops.exp(when)
        speed = (pace * weight).sum(-1) / ops.clamp(weight.sum(-1), min=1e-3)
        return feats * known.expand_dims(-1), both, origin, head, speed

    def road_vectors(self, xy, ok):
        b, n, points, _ = xy.shape
        origin = masked_mean(xy, ok, 2)
        count = ok.astype(ms.int32).sum(-1)
        end = ops.maximum(count - 1, 0)
        index = end.reshape(b, n, 1, 1).broadcast_to((b, n, 1, 2))
        tip = ops.gather_elements(xy, 2, index)[:, :, 0]
        chord = tip - xy[:, :, 0]
        head = ops.atan2(chord[..., 1], chord[..., 0] + 1e-6)
        local = rotate(xy - origin.expand_dims(2), -head.expand_dims(-1))
        prev = ops.concat((local[:, :, :1], local[:, :, :-1]), axis=2)
        length = ops.norm(chord, dim=-1)
        share = ops.arange(points).astype(ms.float32) / ops.maximum(count, 1).expand_dims(-1)
        extra = ops.stack((share, (length / 10.0).expand_dims(-1).broadcast_to(share.shape)), axis=-1)
        return ops.concat((local / 4.0, local - prev, extra), axis=-1), origin, head

    def construct(self, xy, yaw, seen, kinds, lane_xy, lane_ok):
        seen, lane_ok = seen > 0.5, lane_ok > 0.5
        feats, both, origin, head, speed = self.user_vectors(xy, yaw, seen)
        user_ok = ops.any(seen, -1)
        road_ok = ops.any(lane_ok, -1)
        x = self.user_net(feats, both) + self.kind(kinds)

        lane, lane_origin, lane_head = self.road_vectors(lane_xy, lane_ok)
        road = self.road_net(lane, lane_ok)
        users = relation(origin, head, origin, head, 20.0)
        ways = relation(origin, head, lane_origin, lane_head, 12.0)
        for layer in self.layers:
            x = layer(x, road, users, ways, user_ok, road_ok)
        x = self.norm(x)

        track, shape, logp = self.decoder(x, speed)
        b, n = speed.shape
        alive = user_ok.astype(ms.float32)
        world = rotate(track, head.reshape(b, n, 1, 1)) + origin.reshape(b, n, 1, 1, 2)
        best = logp.argmax(-1)
        index = best.reshape(b, n, 1, 1, 1).broadcast_to((b, n, 1) + track.shape[3:])
        chosen = ops.gather_elements(track, 2, index).squeeze(2)
        middle = (ops.exp(logp).expand_dims(-1).expand_dims(-1) * track).sum(2)
        # how far the best mode lies from the mixture's middle, at every step
        stray = ops.norm(chosen - middle, dim=-1) * alive.expand_dims(-1)
        world = world * alive.reshape(b, n, 1, 1, 1)
        return ops.concat((world, shape), axis=-1), logp, chosen, stray


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Forecaster()
