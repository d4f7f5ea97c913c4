"""A radiance field in small: hash grid and tri-plane, a coarse pass and a fine one. In PyTorch: the reference."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PRIMES = (1, 2654435761, 805459861)


# ----------------------------------------------------------------------------- rays

def get_rays(pixels, c2w, H, W, focal):
    """Pixels (x, y), cameras look down -z."""
    px, py = pixels[..., 0] + 0.5, pixels[..., 1] + 0.5
    dirs = torch.stack([(px - W * .5) / focal, -(py - H * .5) / focal, -torch.ones_like(px)], -1)
    rays_d = torch.sum(dirs[..., None, :] * c2w[..., :3, :3], -1)
    rays_o = c2w[..., :3, -1]
    return rays_o, rays_d


def near_far_from_box(rays_o, rays_d, bound, min_near=0.2):
    inv = 1.0 / torch.where(rays_d.abs() < 1e-6, torch.full_like(rays_d, 1e-6), rays_d)
    t0 = (-bound - rays_o) * inv
    t1 = (bound - rays_o) * inv
    near = torch.minimum(t0, t1).amax(-1, keepdim=True)
    far = torch.maximum(t0, t1).amin(-1, keepdim=True)
    near = near.clamp(min=min_near)
    far = torch.maximum(far, near + 0.5)
    return near, far


def contract(x):
    """mip-NeRF 360: everything outside the unit ball is squeezed between radius 1 and 2; then to [-1, 1]."""
    mag = torch.linalg.norm(x, dim=-1, keepdim=True).clamp(min=1e-6)
    z = torch.where(mag <= 1, x, (2 - 1 / mag) * (x / mag))
    return z / 2


# ----------------------------------------------------------------------------- encodings

def frequency(x, n_freqs, window=None):
    out = [x]
    for k in range(n_freqs):
        w = 1.0 if window is None else window[k]
        for fn in (torch.sin, torch.cos):
            out.append(w * fn(x * (2.0 ** k) * np.pi))
    return torch.cat(out, -1)


def anneal_window(alpha, n_freqs):
    k = torch.arange(n_freqs, dtype=torch.float32)
    return 0.5 * (1 - torch.cos(np.pi * torch.clamp(alpha - k, 0.0, 1.0)))


def bilinear(plane, u, v):
    """plane [C, H, W]; u runs along W, v along H, both in [-1, 1] with the corners aligned."""
    C, H, W = plane.shape
    x = (u + 1) * 0.5 * (W - 1)
    y = (v + 1) * 0.5 * (H - 1)
    x0 = torch.floor(x).clamp(0, W - 2)
    y0 = torch.floor(y).clamp(0, H - 2)
    wx, wy = x - x0, y - y0
    idx = (y0 * W + x0).long()
    flat = plane.reshape(C, H * W)
    top = flat[:, idx] * (1 - wx) + flat[:, idx + 1] * wx
    bottom = flat[:, idx + W] * (1 - wx) + flat[:, idx + W + 1] * wx
    return (top * (1 - wy) + bottom * wy).t()


class TriPlane(nn.Module):
    def __init__(self, channels=16, H=28, W=32, out=16):
        super().__init__()
        self.planes = nn.Parameter(torch.zeros(3, channels, H, W))
        self.mix = nn.Linear(2 * channels, out)

    def forward(self, x):
        shape = x.shape[:-1]
        x = x.reshape(-1, 3)
        xy = bilinear(self.planes[0], x[:, 0], x[:, 1])
        xz = bilinear(self.planes[1], x[:, 0], x[:, 2])
        yz = bilinear(self.planes[2], x[:, 1], x[:, 2])
        feat = torch.cat([xy + xz + yz, xy * xz * yz], dim=-1)
        return self.mix(feat).reshape(shape + (-1,))


class HashGrid(nn.Module):
    def __init__(self, n_levels=4, log2_size=10, n_features=2, base=4, finest=32):
        super().__init__()
        self.size = 2 ** log2_size
        growth = np.exp((np.log(finest) - np.log(base)) / (n_levels - 1))
        self.resolutions = [int(np.floor(base * growth ** l + 1e-6)) for l in range(n_levels)]
        self.tables = nn.ModuleList([nn.Embedding(self.size, n_features) for _ in range(n_levels)])
        corners = [[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)]
        self.register_buffer("corners", torch.tensor(corners), persistent=False)

    def hash(self, c):
        h = c[..., 0] * PRIMES[0]
        for d in (1, 2):
            h = h ^ (c[..., d] * PRIMES[d])
        return h % self.size

    def forward(self, x):
        feats = []
        x = (x + 1) / 2
        for res, table in zip(self.resolutions, self.tables):
            pos = x * res
            low = torch.floor(pos)
            frac = (pos - low)[..., None, :]
            idx = self.hash(low.long()[..., None, :] + self.corners)
            w = torch.where(self.corners.bool(), frac, 1 - frac).prod(-1, keepdim=True)
            feats.append((table(idx) * w).sum(-2))
        return torch.cat(feats, -1)


class Field(nn.Module):
    """NeRF's perceptron: a skip in the middle, density from the trunk, colour behind direction and appearance."""

    def __init__(self, in_ch, dir_ch, app_ch, width=48, depth=4, skip=2):
        super().__init__()
        self.skip = skip
        self.pts_linears = nn.ModuleList(
            [nn.Linear(in_ch, width)]
            + [nn.Linear(width + in_ch if i == skip else width, width) for i in range(1, depth)])
        self.alpha_linear = nn.Linear(width, 1)
        self.feature_linear = nn.Linear(width, width)
        self.views_linear = nn.Linear(width + dir_ch + app_ch, width // 2)
        self.rgb_linear = nn.Linear(width // 2, 3)

    def forward(self, pts, dirs, app, shift=-1.0, pad=0.001):
        h = pts
        for i, layer in enumerate(self.pts_linears):
            if i == self.skip:
                h = torch.cat([pts, h], -1)
            h = F.relu(layer(h))
        sigma = F.softplus(self.alpha_linear(h) + shift)
        dirs = dirs[:, None].expand(h.shape[:-1] + dirs.shape[-1:])
        app = app[:, None].expand(h.shape[:-1] + app.shape[-1:])
        h = torch.cat([self.feature_linear(h), dirs, app], -1)
        h = F.relu(self.views_linear(h))
        rgb = torch.sigmoid(self.rgb_linear(h))
        return rgb * (1 + 2 * pad) - pad, sigma.squeeze(-1)


# ----------------------------------------------------------------------------- compositing

def composite(rgb, sigma, z_vals, rays_d, far, background):
    dists = torch.cat([z_vals[:, 1:], far], -1) - z_vals
    dists = dists * torch.norm(rays_d, dim=-1, keepdim=True)
    alpha = 1.0 - torch.exp(-sigma * dists)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], -1), -1)
    weights = alpha * trans[:, :-1]
    acc = weights.sum(-1, keepdim=True)
    rgb_map = (weights[..., None] * rgb).sum(-2) + (1.0 - acc) * background
    depth = (weights * z_vals).sum(-1, keepdim=True) + (1.0 - acc) * far
    return rgb_map, depth, weights


def sample_pdf(bins, weights, u):
    """Inverts the piecewise linear cdf over the bins at u."""
    weights = weights + 1e-3
    pdf = weights / weights.sum(-1, keepdim=True)
    cdf = torch.cumsum(pdf, -1)
    cdf = torch.cat([torch.zeros_like(cdf[:, :1]), cdf], -1)
    u = u.expand(cdf.shape[0], -1).contiguous()
    inds = torch.searchsorted(cdf, u, right=True)
    below = (inds - 1).clamp(min=0)
    above = inds.clamp(max=cdf.shape[-1] - 1)
    cdf_lo, cdf_hi = torch.gather(cdf, 1, below), torch.gather(cdf, 1, above)
    bins_lo, bins_hi = torch.gather(bins, 1, below), torch.gather(bins, 1, above)
    denom = cdf_hi - cdf_lo
    denom = torch.where(denom < 1e-6, torch.ones_like(denom), denom)
    t = (u - cdf_lo) / denom
    return bins_lo + t * (bins_hi - bins_lo)


def blur_weights(weights):
    """mip-NeRF's max-blur, so that the fine samples do not miss an edge."""
    padded = torch.cat([weights[:, :1], weights, weights[:, -1:]], -1)
    wmax = torch.maximum(padded[:, :-1], padded[:, 1:])
    return 0.5 * (wmax[:, :-1] + wmax[:, 1:])


def van_der_corput(n, base):
    seq = []
    for i in range(n):
        x, denom, k = 0.0, 1.0, i + 1
        while k:
            denom *= base
            k, r = divmod(k, base)
            x += r / denom
        seq.append(x)
    return seq


class Renderer(nn.Module):
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
        self.sky_1 = nn.Linear(dir_ch + 6, 24)
        self.sky_2 = nn.Linear(24, 3)
        self.register_buffer("jitter", torch.tensor(van_der_corput(n_coarse, 2)), persistent=False)
        self.register_buffer("u", torch.tensor(sorted(van_der_corput(n_fine, 3))), persistent=False)

    def depths(self, near, far):
        t = torch.linspace(0.0, 1.0, self.n_coarse)
        z = 1.0 / (1.0 / near * (1.0 - t) + 1.0 / far * t)
        mids = 0.5 * (z[:, 1:] + z[:, :-1])
        upper = torch.cat([mids, z[:, -1:]], -1)
        lower = torch.cat([z[:, :1], mids], -1)
        return lower + (upper - lower) * self.jitter

    def sky(self, dirs, app):
        h = F.leaky_relu(self.sky_1(torch.cat([dirs, app], -1)), 0.1)
        return torch.sigmoid(self.sky_2(h))

    def query(self, field, rays_o, rays_d, z_vals, dirs, app):
        pts = rays_o[:, None, :] + rays_d[:, None, :] * z_vals[..., None]
        pts = contract(pts / self.bound)
        window = anneal_window(self.alpha, self.pos_freqs)
        enc = torch.cat([frequency(pts, self.pos_freqs, window), self.triplane(pts), self.grid(pts)], -1)
        return field(enc, dirs, app)

    def forward(self, pixels, poses, view_ids):
        rays_o, rays_d = get_rays(pixels, poses[view_ids], self.H, self.W, self.focal)
        near, far = near_far_from_box(rays_o, rays_d, self.bound)
        viewdirs = rays_d / rays_d.norm(dim=-1, keepdim=True)
        dirs = frequency(viewdirs, self.dir_freqs)
        app = self.appearance(view_ids)
        background = self.sky(dirs, app)

        z_coarse = self.depths(near, far)
        rgb, sigma = self.query(self.coarse, rays_o, rays_d, z_coarse, dirs, app)
        rgb_coarse, depth_coarse, weights = composite(rgb, sigma, z_coarse, rays_d, far, background)

        mids = 0.5 * (z_coarse[:, 1:] + z_coarse[:, :-1])
        z_fine = sample_pdf(mids, blur_weights(weights)[:, 1:-1], self.u)
        z_all, _ = torch.sort(torch.cat([z_coarse, z_fine.detach()], -1), -1)
        rgb, sigma = self.query(self.fine, rays_o, rays_d, z_all, dirs, app)
        rgb_fine, depth_fine, _ = composite(rgb, sigma, z_all, rays_d, far, background)
        return torch.cat([rgb_coarse, depth_coarse, rgb_fine, depth_fine], -1)


def look_at(eye):
    back = eye / np.linalg.norm(eye)
    right = np.cross([0.1, 1.0, 0.2], back)
    right = right / np.linalg.norm(right)
    up = np.cross(back, right)
    return np.stack([right, up, back, eye], 1)


def build():
    torch.manual_seed(23)
    rng = np.random.RandomState(5)
    net = Renderer()
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.5 / module.in_features ** 0.5)
            nn.init.normal_(module.bias, std=0.2)
    for table in net.grid.tables:
        nn.init.normal_(table.weight, std=0.6)
    nn.init.normal_(net.triplane.planes, std=0.7)
    nn.init.normal_(net.fine.alpha_linear.bias, std=0.5)
    eyes = rng.randn(5, 3)
    eyes = eyes / np.linalg.norm(eyes, axis=1, keepdims=True) * rng.uniform(2.0, 3.0, (5, 1))
    poses = torch.tensor(np.stack([look_at(e) for e in eyes]), dtype=torch.float32)
    pixels = torch.tensor(np.stack([rng.randint(4, 60, 20), rng.randint(4, 44, 20)], 1), dtype=torch.float32)
    view_ids = torch.tensor(rng.randint(0, 5, 20))
    return net.eval(), (pixels, poses, view_ids)
