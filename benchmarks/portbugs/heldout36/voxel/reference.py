"""Voxel: text conditioned motion diffusion (one guided denoising step + kinematics + losses).

Motion layout follows MDM: (batch, nodes, feats, frames). Nodes 0..J-1 hold a 6D rotation each, the last
node holds the root trajectory: [yaw velocity, local vx, local vz, height, contact left, contact right].
"""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PARENTS = [-1, 0, 1, 0, 3, 0, 5, 1, 1]
FEET = [4, 6]
OFFSETS = [[0.0, 0.0, 0.0], [0.02, 0.51, -0.03], [0.0, 0.34, 0.06], [0.11, -0.42, 0.01], [0.02, -0.45, 0.09],
           [-0.11, -0.42, 0.01], [-0.02, -0.45, 0.09], [0.38, 0.12, -0.05], [-0.38, 0.12, -0.05]]
NUM_JOINTS = len(PARENTS)
NUM_FEATS = 6

def rotation_6d_to_matrix(d6):
    a1, a2 = d6[..., :3], d6[..., 3:]
    b1 = F.normalize(a1, dim=-1)
    b2 = a2 - (b1 * a2).sum(-1, keepdim=True) * b1
    b2 = F.normalize(b2, dim=-1)
    b3 = torch.cross(b1, b2, dim=-1)
    return torch.stack((b1, b2, b3), dim=-2)

def yaw_matrix(angle):
    c, s = torch.cos(angle), torch.sin(angle)
    zero, one = torch.zeros_like(c), torch.ones_like(c)
    flat = torch.stack([c, zero, s, zero, one, zero, -s, zero, c], dim=-1)
    return flat.reshape(angle.shape + (3, 3))

class Kinematics(nn.Module):
    def __init__(self, parents, offsets, fps=20.0):
        super().__init__()
        self.parents = list(parents)
        self.dt = 1.0 / fps
        self.register_buffer("offsets", torch.tensor(offsets, dtype=torch.float32), persistent=False)

    def recover_root(self, traj):
        # the velocity of frame t moves the body from frame t to frame t + 1
        bs, nframes, _ = traj.shape
        angle = torch.zeros(bs, nframes, device=traj.device)
        angle[:, 1:] = traj[:, :-1, 0] * self.dt
        angle = torch.cumsum(angle, dim=1)
        heading = yaw_matrix(angle)
        step = torch.zeros(bs, nframes, 3, device=traj.device)
        step[:, 1:, [0, 2]] = traj[:, :-1, 1:3] * self.dt
        step = (heading @ step.unsqueeze(-1)).squeeze(-1)
        pos = torch.cumsum(step, dim=1)
        pos[..., 1] = traj[..., 3]
        return heading, pos

    def forward(self, motion):
        """motion (B, J + 1, 6, T), denormalised -> joints (B, T, J, 3)."""
        motion = motion.permute(0, 3, 1, 2)
        local = rotation_6d_to_matrix(motion[:, :, :-1])
        heading, root = self.recover_root(motion[:, :, -1])
        glob, joints = [], []
        for j, p in enumerate(self.parents):
            if p < 0:
                glob.append(heading @ local[:, :, j])
                joints.append(root)
                continue
            glob.append(glob[p] @ local[:, :, j])
            joints.append(joints[p] + torch.einsum("btij,j->bti", glob[p], self.offsets[j]))
        return torch.stack(joints, dim=2)

def sinusoid_table(max_len, dim):
    pe = torch.zeros(max_len, dim)
    position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, dim, 2).float() * (-math.log(10000.0) / dim))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)
    return pe

class TextLayer(nn.Module):
    def __init__(self, width, heads, eps=1e-5):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=eps)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=eps)
        self.c_fc = nn.Linear(width, width * 4)
        self.c_proj = nn.Linear(width * 4, width)

    def forward(self, x, causal, pad):
        h = self.ln_1(x)
        h, _ = self.attn(h, h, h, attn_mask=causal, key_padding_mask=pad, need_weights=False)
        x = x + h
        h = self.c_fc(self.ln_2(x))
        return x + self.c_proj(h * torch.sigmoid(1.702 * h))

class TextEncoder(nn.Module):
    # CLIP like: causal, pooled at the end-of-text token, which has the largest id.
    def __init__(self, vocab, context, width, heads, layers, dim):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.positional_embedding = nn.Parameter(torch.zeros(context, width))
        self.layers = nn.ModuleList([TextLayer(width, heads) for _ in range(layers)])
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.zeros(width, dim))
        self.token_proj = nn.Linear(width, dim)

    def forward(self, ids):
        length = ids.shape[1]
        valid = ids != 0
        causal = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        x = self.token_embedding(ids) + self.positional_embedding[:length]
        for layer in self.layers:
            x = layer(x, causal, ~valid)
        x = self.ln_final(x)
        pooled = x[torch.arange(x.shape[0]), ids.argmax(dim=-1)] @ self.text_projection
        return self.token_proj(x), valid, pooled

def build_graph(parents):
    full = list(parents) + [0]
    n = len(full)
    parts = np.zeros((3, n, n), dtype=np.float32)
    for child, parent in enumerate(full):
        parts[0, child, child] = 1.0
        if parent >= 0:
            parts[1, child, parent] = 1.0
            parts[2, parent, child] = 1.0
    degree = parts.sum(axis=0).sum(axis=0)
    return torch.from_numpy(parts / degree[None, None, :])

class GraphStem(nn.Module):
    def __init__(self, parents, in_ch, ch, dim, dilation=2):
        super().__init__()
        self.register_buffer("A", build_graph(parents), persistent=False)
        parts, nodes, _ = self.A.shape
        self.parts = parts
        self.importance = nn.Parameter(torch.ones(parts, nodes, nodes))
        self.gcn = nn.Conv2d(in_ch, ch * parts, kernel_size=1)
        self.tcn = nn.Sequential(
            nn.BatchNorm2d(ch, eps=1e-3),
            nn.LeakyReLU(),
            nn.Conv2d(ch, ch, (3, 1), padding=(dilation, 0), dilation=(dilation, 1)),
            nn.BatchNorm2d(ch, eps=1e-3),
        )
        self.residual = nn.Sequential(nn.Conv2d(in_ch, ch, kernel_size=1, bias=False), nn.BatchNorm2d(ch))
        self.act = nn.LeakyReLU()
        self.proj = nn.Linear(ch * nodes, dim)

    def forward(self, x, frame_mask):
        # x (B, V, C, T) -> (B, C, T, V)
        x = x.permute(0, 2, 3, 1)
        keep = frame_mask[:, None, :, None].to(x.dtype)
        x = x * keep
        res = self.residual(x)
        h = self.gcn(x)
        n, kc, t, v = h.shape
        h = h.view(n, self.parts, kc // self.parts, t, v)
        h = torch.einsum("nkctv,kvw->nctw", h, self.A * self.importance)
        h = self.tcn(h * keep)
        h = self.act(h + res)
        h = h.permute(0, 2, 3, 1).reshape(n, t, -1)
        return self.proj(h)

class Stylization(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))
        self.norm = nn.LayerNorm(dim)
        self.out_layers = nn.Sequential(nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, h, emb):
        scale, shift = torch.chunk(self.emb_layers(emb).unsqueeze(1), 2, dim=-1)
        h = self.norm(h) * (1 + scale) + shift
        return self.out_layers(h)

class FrameAttention(nn.Module):
    # Self attention over [condition token, frames]; rotary positions on a part of each head.
    def __init__(self, dim, heads, rot_dim, max_len):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.rot_dim = rot_dim
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        inv_freq = 1.0 / (1000.0 ** (torch.arange(0, rot_dim, 2).float() / rot_dim))
        freqs = torch.outer(torch.arange(max_len).float(), inv_freq).repeat_interleave(2, dim=-1)
        self.register_buffer("cos", freqs.cos(), persistent=False)
        self.register_buffer("sin", freqs.sin(), persistent=False)

    def rope(self, x):
        n = x.shape[-2]
        cos, sin = self.cos[:n], self.sin[:n]
        rot, rest = x[..., :self.rot_dim], x[..., self.rot_dim:]
        turned = torch.stack((-rot[..., 1::2], rot[..., 0::2]), dim=-1).flatten(-2)
        return torch.cat((rot * cos + turned * sin, rest), dim=-1)

    def forward(self, x, mask):
        b, n, d = x.shape
        qkv = self.qkv(self.norm(x)).view(b, n, 3, self.heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = self.rope(q), self.rope(k)
        score = torch.einsum("bhid,bhjd->bhij", q, k) * self.head_dim ** -0.5
        score = score.masked_fill(~mask[:, None, None, :], -1e9)
        y = torch.einsum("bhij,bhjd->bhid", score.softmax(dim=-1), v)
        return self.out(y.transpose(1, 2).reshape(b, n, d))

class TextCrossAttention(nn.Module):
    # Linear attention of MotionDiffuse.
    def __init__(self, dim, text_dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.text_norm = nn.LayerNorm(text_dim)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(text_dim, dim)
        self.value = nn.Linear(text_dim, dim)
        self.proj_out = Stylization(dim)

    def forward(self, x, emb, tokens, token_mask):
        b, n, d = x.shape
        l = tokens.shape[1]
        ctx = self.text_norm(tokens)
        keep = token_mask.to(x.dtype).unsqueeze(-1)
        query = self.query(self.norm(x)).view(b, n, self.heads, -1).softmax(dim=-1)
        key = self.key(ctx) + (1.0 - keep) * -1e6
        key = key.view(b, l, self.heads, -1).softmax(dim=1)
        value = (self.value(ctx) * keep).view(b, l, self.heads, -1)
        context = torch.einsum("blhk,blhv->bhkv", key, value)
        y = torch.einsum("bnhk,bhkv->bnhv", query, context).reshape(b, n, d)
        return x + self.proj_out(y, emb)

class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.proj_out = Stylization(dim)

    def forward(self, x, emb):
        return x + self.proj_out(self.net(x), emb)

class MotionBlock(nn.Module):
    def __init__(self, dim, heads, rot_dim, hidden, max_len):
        super().__init__()
        self.attn = FrameAttention(dim, heads, rot_dim, max_len)
        self.cross = TextCrossAttention(dim, dim, heads)
        self.ffn = FeedForward(dim, hidden)

    def forward(self, x, mask, emb, tokens, token_mask):
        x = x + self.attn(x, mask)
        x = self.cross(x, emb, tokens, token_mask)
        return self.ffn(x, emb)

class SlowBranch(nn.Module):
    def __init__(self, dim, slow):
        super().__init__()
        self.down = nn.Conv2d(dim, slow, (3, 1), stride=(2, 1), padding=(1, 0))
        self.act = nn.LeakyReLU(0.1)
        self.up = nn.Linear(slow, dim)

    def forward(self, x, frame_mask):
        keep = frame_mask.unsqueeze(-1).to(x.dtype)
        h = (x * keep).transpose(1, 2).unsqueeze(-1)
        h = self.act(self.down(h)).squeeze(-1)
        h = F.interpolate(h, size=x.shape[1], mode="linear", align_corners=False)
        return self.up(h.transpose(1, 2)) * keep

class Denoiser(nn.Module):
    # Predicts x0 from x_t; skip connections between the first and the last blocks as in MLD.
    def __init__(self, dim=36, heads=3, rot_dim=8, hidden=58, depth=5, vocab=41, context=9, text_width=20,
                 max_frames=32, steps=60, unit=4):
        super().__init__()
        assert depth % 2 == 1
        self.unit = unit
        self.text = TextEncoder(vocab, context, text_width, 2, 2, dim)
        self.null_text = nn.Parameter(torch.zeros(1, 1, dim))
        self.register_buffer("pe", sinusoid_table(steps, dim), persistent=False)
        self.time_embed = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.length_embed = nn.Embedding(max_frames // unit + 1, dim)
        self.stem = GraphStem(PARENTS, NUM_FEATS, 10, dim)
        half = (depth - 1) // 2
        make = lambda: MotionBlock(dim, heads, rot_dim, hidden, max_frames + 1)
        self.input_blocks = nn.ModuleList([make() for _ in range(half)])
        self.middle_block = make()
        self.output_blocks = nn.ModuleList([make() for _ in range(half)])
        self.linear_blocks = nn.ModuleList([nn.Linear(2 * dim, dim) for _ in range(half)])
        self.norm = nn.LayerNorm(dim)
        self.slow = SlowBranch(dim, 14)
        self.pose_head = nn.Linear(dim, NUM_JOINTS * NUM_FEATS)
        self.traj_head = nn.Linear(dim, NUM_FEATS)

    def forward(self, x, timesteps, ids, lengths, drop):
        bs, nodes, feats, nframes = x.shape
        frame_mask = torch.arange(nframes, device=x.device)[None, :] < lengths[:, None]

        tokens, token_mask, pooled = self.text(ids)
        tokens = torch.where(drop[:, None, None], self.null_text, tokens)
        first = torch.zeros_like(token_mask)
        first[:, 0] = True
        token_mask = torch.where(drop[:, None], first, token_mask)
        pooled = pooled * (~drop)[:, None].to(pooled.dtype)

        bucket = torch.div(lengths + self.unit - 1, self.unit, rounding_mode="floor")
        emb = self.time_embed(self.pe[timesteps]) + pooled + self.length_embed(bucket)

        h = self.stem(x, frame_mask)
        h = torch.cat((emb.unsqueeze(1), h), dim=1)
        mask = torch.cat((torch.ones_like(frame_mask[:, :1]), frame_mask), dim=1)

        skips = []
        for block in self.input_blocks:
            h = block(h, mask, emb, tokens, token_mask)
            skips.append(h)
        h = self.middle_block(h, mask, emb, tokens, token_mask)
        for block, linear in zip(self.output_blocks, self.linear_blocks):
            h = linear(torch.cat((h, skips.pop()), dim=-1))
            h = block(h, mask, emb, tokens, token_mask)

        h = self.norm(h)[:, 1:]
        h = h + self.slow(h, frame_mask)
        pose = self.pose_head(h).reshape(bs, nframes, nodes - 1, feats)
        traj = self.traj_head(h).unsqueeze(2)
        out = torch.cat((pose, traj), dim=2).permute(0, 2, 3, 1)
        return out * frame_mask[:, None, None, :].to(out.dtype)

def cosine_betas(steps, max_beta=0.999):
    bar = lambda t: math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
    return np.array([min(1 - bar((i + 1) / steps) / bar(i / steps), max_beta) for i in range(steps)])

def masked_l2(a, b, mask):
    loss = ((a - b) ** 2 * mask).flatten(1).sum(dim=1)
    return loss / (mask.flatten(1).sum(dim=1) * a.shape[1] * a.shape[2])

class VoxelDiffusion(nn.Module):
    def __init__(self, steps=60, rescale=0.7, lambda_vel=0.5, lambda_foot=2.0):
        super().__init__()
        self.rescale, self.lambda_vel, self.lambda_foot = rescale, lambda_vel, lambda_foot
        self.denoiser = Denoiser(steps=steps)
        self.kinematics = Kinematics(PARENTS, OFFSETS)
        betas = cosine_betas(steps)
        alphas = 1.0 - betas
        bar = np.cumprod(alphas)
        bar_prev = np.append(1.0, bar[:-1])
        tables = {
            "coef1": betas * np.sqrt(bar_prev) / (1.0 - bar),
            "coef2": (1.0 - bar_prev) * np.sqrt(alphas) / (1.0 - bar),
            "weight": np.minimum(bar / (1.0 - bar), 5.0),
        }
        for name, value in tables.items():
            self.register_buffer(name, torch.from_numpy(value), persistent=False)
        grid = np.arange((NUM_JOINTS + 1) * NUM_FEATS).reshape(NUM_JOINTS + 1, NUM_FEATS)
        self.register_buffer("mean", torch.from_numpy(0.3 * np.sin(1.7 * grid)).float(), persistent=False)
        self.register_buffer("std", torch.from_numpy(0.8 + 0.4 * np.cos(0.9 * grid)).float(), persistent=False)

    def guided(self, x_t, timesteps, ids, lengths, scale):
        bs = x_t.shape[0]
        drop = torch.arange(2 * bs, device=x_t.device) >= bs
        twice = lambda a: torch.cat((a, a), dim=0)
        both = self.denoiser(twice(x_t), twice(timesteps), twice(ids), twice(lengths), drop)
        cond, uncond = both.chunk(2, dim=0)
        out = uncond + scale.view(-1, 1, 1, 1) * (cond - uncond)
        # keep the spread of the conditional prediction (Lin et al., 2023)
        ratio = cond.std(dim=(1, 2, 3), keepdim=True) / out.std(dim=(1, 2, 3), keepdim=True)
        return self.rescale * (out * ratio) + (1.0 - self.rescale) * out

    def joints_of(self, x):
        return self.kinematics(x * self.std[None, :, :, None] + self.mean[None, :, :, None])

    def losses(self, pred, target, joints, timesteps, mask):
        rec = masked_l2(pred, target, mask)
        goal = self.joints_of(target)
        # (B, T, J, 3) -> (B, J, 3, T)
        joints, goal = joints.permute(0, 2, 3, 1), goal.permute(0, 2, 3, 1)
        vel = joints[..., 1:] - joints[..., :-1]
        goal_vel = goal[..., 1:] - goal[..., :-1]
        vel_loss = masked_l2(vel, goal_vel, mask[..., 1:])
        contact = torch.sigmoid(pred[:, -1, 4:, :-1]).unsqueeze(2)
        foot_loss = masked_l2(vel[:, FEET] * contact * 10.0, torch.zeros_like(vel[:, FEET]), mask[..., 1:])
        total = rec + self.lambda_vel * vel_loss + self.lambda_foot * foot_loss
        total = (total * self.weight[timesteps].float()).mean()
        return torch.stack((rec, vel_loss, foot_loss), dim=-1), total

    def forward(self, x_t, timesteps, ids, lengths, scale, target, prefix):
        nframes = x_t.shape[-1]
        frame = torch.arange(nframes, device=x_t.device)
        mask = (frame[None, :] < lengths[:, None])[:, None, None, :].to(x_t.dtype)
        x0 = self.guided(x_t, timesteps, ids, lengths, scale)
        x0 = torch.where(frame < prefix, target, x0)
        c1, c2 = (c[timesteps].float().view(-1, 1, 1, 1) for c in (self.coef1, self.coef2))
        x_prev = c1 * x0 + c2 * x_t
        joints = self.joints_of(x0)
        parts, total = self.losses(x0, target, joints, timesteps, mask)
        return x_prev * mask, x0, joints, parts, total

def randomize(net):
    for module in net.modules():
        norm = isinstance(module, (nn.LayerNorm, nn.BatchNorm2d))
        for name, p in module.named_parameters(recurse=False):
            if norm:
                nn.init.normal_(p, float(name == "weight"), 0.25)
            elif p.dim() == 1:
                nn.init.normal_(p, 0.0, 0.2)
            elif name == "importance":
                nn.init.uniform_(p, 0.4, 1.6)
            elif isinstance(module, nn.Embedding) or name in ("positional_embedding", "null_text"):
                nn.init.normal_(p, 0.0, 0.7)
            else:
                fan_in = p.shape[0] if name == "text_projection" else p[0].numel()
                nn.init.normal_(p, 0.0, 1.3 * fan_in ** -0.5)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0.0, 0.3)
            nn.init.uniform_(module.running_var, 0.02, 0.9)

def make_arrays(bs=3, nframes=14, ntokens=7):
    rng = np.random.RandomState(20240611)
    shape = (bs, NUM_JOINTS + 1, NUM_FEATS, nframes)
    x_t = rng.randn(*shape).astype(np.float32)
    target = rng.randn(*shape).astype(np.float32)
    ids = rng.randint(1, 40, size=(bs, ntokens))
    for i, n in enumerate((7, 5, 4)):
        ids[i, n - 1] = 40
        ids[i, n:] = 0
    lengths = np.array([14, 11, 9])
    target *= np.arange(nframes)[None, None, None, :] < lengths[:, None, None, None]
    return x_t, np.array([7, 33, 21]), ids, lengths, np.array([2.5, 1.8, 3.1], dtype=np.float32), target

def build():
    torch.manual_seed(1234)
    net = VoxelDiffusion()
    randomize(net)
    inputs = tuple(torch.from_numpy(a) for a in make_arrays()) + (2,)
    return net.eval(), inputs

