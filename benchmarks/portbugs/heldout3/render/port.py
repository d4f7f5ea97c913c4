"""The radiance field in MindSpore: the correct port."""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

PRIMES = (1, 2654435761, 805459861)


def get_rays(pixels, c2w, H, W, focal):
    px = pixels[:, 0] + 0.5
    py = pixels[:, 1] + 0.5
    dirs = ops.stack(((px - W * 0.5) / focal, -(py - H * 0.5) / focal, -ops.ones_like(px)), axis=-1)
    rays_d = ops.matmul(c2w[:, :3, :3], dirs.expand_dims(-1)).squeeze(-1)
    rays_o = c2w[:, :3, 3]
    return rays_o, rays_d


def near_far_from_box(rays_o, rays_d, bound, min_near=0.2):
    tiny = ops.abs(rays_d) < 1e-6
    inv = 1.0 / ops.where(tiny, ops.full_like(rays_d, 1e-6), rays_d)
    t0 = (-bound - rays_o) * inv
    t1 = (bound - rays_o) * inv
    near = ops.amax(ops.minimum(t0, t1), -1, keepdims=True)
    far = ops.amin(ops.maximum(t0, t1), -1, keepdims=True)
    near = ops.clamp(near, min=min_near)
    far = ops.maximum(far, near + 0.5)
    return near, far


def contract(x):
    mag = ops.sqrt((x * x).sum(axis=-1, keepdims=True))
    mag = ops.clamp(mag, min=1e-6)
    outside = (2 - 1 / mag) * (x / mag)
    z = ops.where(mag <= 1, x, outside)
    return z / 2


def frequency(x, n_freqs, window=None):
    out = [x]
    for k in range(n_freqs):
        angle = x * (2.0**k * math.pi)
        w = 1.0 if window is None else window[k]
        out += [w * ops.sin(angle), w * ops.cos(angle)]
    return ops.concat(out, axis=-1)


def anneal_window(alpha, n_freqs):
    # a constant of the run: numpy will do
    k = np.arange(n_freqs)
    window = 0.5 * (1 - np.cos(np.pi * np.clip(alpha - k, 0.0, 1.0)))
    return [float(w) for w in window]


def bilinear(plane, u, v):
    C, H, W = plane.shape
    x = (u + 1) * 0.5 * (W - 1)
    y = (v + 1) * 0.5 * (H - 1)
    x0 = ops.clamp(ops.floor(x), 0, W - 2)
    y0 = ops.clamp(ops.floor(y), 0, H - 2)
    wx = (x - x0).expand_dims(-1)
    wy = (y - y0).expand_dims(-1)
    idx = (y0 * W + x0).astype(ms.int32)
    flat = plane.reshape(C, H * W).swapaxes(0, 1)
    c00 = ops.gather(flat, idx, 0)
    c01 = ops.gather(flat, idx + 1, 0)
    c10 = ops.gather(flat, idx + W, 0)
    c11 = ops.gather(flat, idx + W + 1, 0)
    top = c00 * (1 - wx) + c01 * wx
    bottom = c10 * (1 - wx) + c11 * wx
    return top * (1 - wy) + bottom * wy


class TriPlane(nn.Cell):
    def __init__(self, channels=16, H=28, W=32, out=16):
        super().__init__()
        self.planes = Parameter(ops.zeros((3, channels, H, W), ms.float32), name="planes")
        self.mix = nn.Dense(2 * channels, out)

    def construct(self, x):
        shape = x.shape[:-1]
        x = x.reshape(-1, 3)
        a, b, c = x[:, 0], x[:, 1], x[:, 2]
        xy = bilinear(self.planes[0], a, b)
        xz = bilinear(self.planes[1], a, c)
        yz = bilinear(self.planes[2], b, c)
        feat = ops.concat((xy + xz + yz, xy * xz * yz), axis=-1)
        return self.mix(feat).reshape(shape + (-1,))


class HashGrid(nn.Cell):
    def __init__(self, n_levels=4, log2_size=10, n_features=2, base=4, finest=32):
        super().__init__()
        self.size = 2**log2_size
        growth = np.exp((np.log(finest) - np.log(base)) / (n_levels - 1))
        self.resolutions = [int(np.floor(base * growth**level + 1e-6)) for level in range(n_levels)]
        self.tables = nn.CellList([nn.Embedding(self.size, n_features) for _ in range(n_levels)])
        corners = np.stack(np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij"), -1).reshape(8, 3)
        self.corners = Tensor(corners, ms.int64)
        self.is_high = Tensor(corners == 1)

    def hash(self, c):
        h = c[..., 0] * PRIMES[0]
        h = ops.bitwise_xor(h, c[..., 1] * PRIMES[1])
        h = ops.bitwise_xor(h, c[..., 2] * PRIMES[2])
        return h % self.size

    def construct(self, x):
        feats = []
        x = (x + 1) / 2
        for res, table in zip(self.resolutions, self.tables):
            pos = x * res
            low = ops.floor(pos)
            frac = (pos - low).expand_dims(-2)
            idx = self.hash(low.astype(ms.int64).expand_dims(-2) + self.corners)
            w = ops.where(self.is_high, frac, 1 - frac)
            w = w[..., 0] * w[..., 1] * w[..., 2]
            feats.append((table(idx) * w.expand_dims(-1)).sum(axis=-2))
        return ops.concat(feats, axis=-1)


class Field(nn.Cell):
    def __init__(self, in_ch, dir_ch, app_ch, width=48, depth=4, skip=2):
        super().__init__()
        self.skip = skip
        layers = [nn.Dense(in_ch, width)]
        for i in range(1, depth):
            layers.append(nn.Dense(width + in_ch if i == skip else width, width))
        self.pts_linears = nn.CellList(layers)
        self.alpha_linear = nn.Dense(width, 1)
        self.feature_linear = nn.Dense(width, width)
        self.views_linear = nn.Dense(width + dir_ch + app_ch, width // 2)
        self.rgb_linear = nn.Dense(width // 2, 3)

    def construct(self, pts, dirs, app, shift=-1.0, pad=0.001):
        h = pts
        for i, layer in enumerate(self.pts_linears):
            if i == self.skip:
                h = ops.concat((pts, h), axis=-1)
            h = ops.relu(layer(h))
        sigma = ops.softplus(self.alpha_linear(h) + shift)
        n_rays, n_samples, _ = h.shape
        dirs = ops.tile(dirs.expand_dims(1), (1, n_samples, 1))
        app = ops.tile(app.expand_dims(1), (1, n_samples, 1))
        h = ops.concat((self.feature_linear(h), dirs, app), axis=-1)
        h = ops.relu(self.views_linear(h))
        rgb = ops.sigmoid(self.rgb_linear(h))
        rgb = rgb * (1 + 2 * pad) - pad
        return rgb, sigma.squeeze(-1)


def composite(rgb, sigma, z_vals, rays_d, far, background):
    length = ops.norm(rays_d, dim=-1, keepdim=True)
    dists = ops.concat((z_vals[:, 1:], far), axis=-1) - z_vals
    dists = dists * length
    alpha = 1.0 - ops.exp(-sigma * dists)
    ones = ops.ones((alpha.shape[0], 1), alpha.dtype)
    trans = ops.cumprod(ops.concat((ones, 1.0 - alpha + 1e-10), axis=-1), -1)
    weights = alpha * trans[:, :-1]
    acc = weights.sum(axis=-1, keepdims=True)
    rgb_map = (weights.expand_dims(-1) * rgb).sum(axis=1) + (1.0 - acc) * background
    depth = (weights * z_vals).sum(axis=-1, keepdims=True) + (1.0 - acc) * far
    return rgb_map, depth, weights


def sample_pdf(bins, weights, u):
    weights = weights + 1e-3
    pdf = weights / weights.sum(axis=-1, keepdims=True)
    cdf = ops.cumsum(pdf, -1)
    cdf = ops.concat((ops.zeros_like(cdf[:, :1]), cdf), axis=-1)
    n_rays, n_bins = cdf.shape
    u = u.expand_dims(0).broadcast_to((n_rays, u.shape[0]))
    inds = ops.searchsorted(cdf, u, right=True)
    below = ops.clamp(inds - 1, min=0)
    above = ops.clamp(inds, max=n_bins - 1)
    cdf_lo = ops.gather_elements(cdf, 1, below)
    cdf_hi = ops.gather_elements(cdf, 1, above)
    bins_lo = ops.gather_elements(bins, 1, below)
    bins_hi = ops.gather_elements(bins, 1, above)
    denom = cdf_hi - cdf_lo
    denom = ops.where(denom < 1e-6, ops.ones_like(denom), denom)
    t = (u - cdf_lo) / denom
    return bins_lo + t * (bins_hi - bins_lo)


def blur_weights(weights):
    padded = ops.concat((weights[:, :1], weights, weights[:, -1:]), axis=-1)
    wmax = ops.maximum(padded[:, :-1], padded[:, 1:])
    return 0.5 * (wmax[:, :-1] + wmax[:, 1:])


def van_der_corput(n, base):
    seq = []
    for i in range(1, n + 1):
        x, scale = 0.0, 1.0 / base
        while i > 0:
            x += (i % base) * scale
            i //= base
            scale /= base
        seq.append(x)
    return np.array(seq, np.float32)


class Renderer(nn.Cell):
    def __init__(self, H=48, W=64, focal=52.0, n_views=5, n_coarse=12, n_fine=16, bound=1.5,
                 pos_freqs=4, dir_freqs=2, alpha=2.6):
        super().__init__()
        self.H, self.W, self.focal = H, W, focal
        self.n_coarse, self.bound = n_coarse, bound
        self.pos_freqs, self.dir_freqs, self.alpha = pos_freqs, dir_freqs, alpha
        self.triplane = TriPlane()
        self.grid = HashGrid()
        self.appearance = nn.Embedding(n_views, 6)
        in_ch = 3 * (1 + 2 * pos_freqs) + 16 + 8
        dir_ch = 3 * (1 + 2 * dir_freqs)
        self.coarse = Field(in_ch, dir_ch, 6)
        self.fine = Field(in_ch, dir_ch, 6)
        self.sky_1 = nn.Dense(dir_ch + 6, 24)
        self.sky_2 = nn.Dense(24, 3)
        self.jitter = Tensor(van_der_corput(n_coarse, 2))
        self.u = Tensor(np.sort(van_der_corput(n_fine, 3)))

    def depths(self, near, far):
        t = Tensor(np.linspace(0.0, 1.0, self.n_coarse, dtype=np.float32))
        z = 1.0 / ((1.0 - t) / near + t / far)
        mids = 0.5 * (z[:, 1:] + z[:, :-1])
        upper = ops.concat((mids, z[:, -1:]), axis=-1)
        lower = ops.concat((z[:, :1], mids), axis=-1)
        return lower + (upper - lower) * self.jitter

    def sky(self, dirs, app):
        h = self.sky_1(ops.concat((dirs, app), axis=-1))
        h = ops.leaky_relu(h, 0.1)
        return ops.sigmoid(self.sky_2(h))

    def query(self, field, rays_o, rays_d, z_vals, dirs, app):
        pts = rays_o.expand_dims(1) + rays_d.expand_dims(1) * z_vals.expand_dims(-1)
        pts = contract(pts / self.bound)
        window = anneal_window(self.alpha, self.pos_freqs)
        freq = frequency(pts, self.pos_freqs, window)
        enc = ops.concat((freq, self.triplane(pts), self.grid(pts)), axis=-1)
        return field(enc, dirs, app)

    def construct(self, pixels, poses, view_ids):
        c2w = ops.gather(poses, view_ids, 0)
        rays_o, rays_d = get_rays(pixels, c2w, self.H, self.W, self.focal)
        near, far = near_far_from_box(rays_o, rays_d, self.bound)
        viewdirs = rays_d / ops.norm(rays_d, dim=-1, keepdim=True)
        dirs = frequency(viewdirs, self.dir_freqs)
        app = self.appearance(view_ids)
        background = self.sky(dirs, app)

        # coarse
        z_coarse = self.depths(near, far)
        rgb, sigma = self.query(self.coarse, rays_o, rays_d, z_coarse, dirs, app)
        rgb_coarse, depth_coarse, weights = composite(rgb, sigma, z_coarse, rays_d, far, background)

        # fine
        mids = 0.5 * (z_coarse[:, 1:] + z_coarse[:, :-1])
        z_fine = sample_pdf(mids, blur_weights(weights)[:, 1:-1], self.u)
        z_all = ops.concat((z_coarse, ops.stop_gradient(z_fine)), axis=-1)
        z_all, _ = ops.sort(z_all, axis=-1)
        rgb, sigma = self.query(self.fine, rays_o, rays_d, z_all, dirs, app)
        rgb_fine, depth_fine, _ = composite(rgb, sigma, z_all, rays_d, far, background)
        return ops.concat((rgb_coarse, depth_coarse, rgb_fine, depth_fine), axis=-1)


def build():
    return Renderer()
