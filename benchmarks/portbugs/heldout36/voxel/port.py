"""MindSpore version of Voxel, a text conditioned motion diffusion model (eager / PYNATIVE mode).

Motion tensors are (batch, nodes, feats, frames) as in MDM; the last node is the root trajectory
[yaw velocity, local vx, local vz, height, contact left, contact right].
"""
import math

import mindspore as ms
import mindspore.common.dtype as mstype
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer

PARENTS = (-1, 0, 1, 0, 3, 0, 5, 1, 1)
FEET = (4, 6)
OFFSETS = ((0.0, 0.0, 0.0), (0.02, 0.51, -0.03), (0.0, 0.34, 0.06), (0.11, -0.42, 0.01), (0.02, -0.45, 0.09),
           (-0.11, -0.42, 0.01), (-0.02, -0.45, 0.09), (0.38, 0.12, -0.05), (-0.38, 0.12, -0.05))
NUM_JOINTS = len(PARENTS)
NUM_FEATS = 6


def l2_normalize(x, eps=1e-12):
    norm = ops.sqrt(ops.square(x).sum(axis=-1, keepdims=True))
    return x / ops.maximum(norm, Tensor(eps, x.dtype))


def rotation_6d_to_matrix(rot6d):
    """Gram-Schmidt; the basis vectors are the rows of the matrix (pytorch3d convention)."""
    a1, a2 = rot6d[..., :3], rot6d[..., 3:]
    b1 = l2_normalize(a1)
    b2 = l2_normalize(a2 - (b1 * a2).sum(axis=-1, keepdims=True) * b1)
    b3 = ops.cross(b1, b2, dim=-1)
    return ops.stack((b1, b2, b3), axis=-2)


def yaw_matrix(angle):
    cos, sin = ops.cos(angle), ops.sin(angle)
    zero, one = ops.zeros_like(cos), ops.ones_like(cos)
    rows = (ops.stack((cos, zero, sin), axis=-1),
            ops.stack((zero, one, zero), axis=-1),
            ops.stack((-sin, zero, cos), axis=-1))
    return ops.stack(rows, axis=-2)


class ForwardKinematics(nn.Cell):
    """Root integration followed by forward kinematics."""

    def __init__(self, parents, offsets, fps=20.0):
        super().__init__()
        self.parents = tuple(parents)
        self.dt = 1.0 / fps
        self.offsets = Tensor(np.array(offsets), mstype.float32)

    def recover_root(self, traj):
        bs = traj.shape[0]
        previous = ops.cat((ops.zeros((bs, 1, traj.shape[2]), traj.dtype), traj[:, :-1] * self.dt), axis=1)
        heading = yaw_matrix(ops.cumsum(previous[..., 0], 1))
        vx, vz = previous[..., 1], previous[..., 2]
        step = ops.stack((vx, ops.zeros_like(vx), vz), axis=-1)
        step = ops.matmul(heading, step.expand_dims(-1)).squeeze(-1)
        pos = ops.cumsum(step, 1)
        pos = ops.stack((pos[..., 0], traj[..., 3], pos[..., 2]), axis=-1)
        return heading, pos

    def construct(self, motion):
        motion = motion.transpose(0, 3, 1, 2)
        local = rotation_6d_to_matrix(motion[:, :, :-1])
        heading, root = self.recover_root(motion[:, :, -1])
        world, joints = [], []
        for j, parent in enumerate(self.parents):
            if parent == -1:
                world.append(ops.matmul(heading, local[:, :, j]))
                joints.append(root)
            else:
                bone = ops.matmul(world[parent], self.offsets[j].reshape(3, 1)).squeeze(-1)
                world.append(ops.matmul(world[parent], local[:, :, j]))
                joints.append(joints[parent] + bone)
        return ops.stack(joints, axis=2)


def get_sinusoid_table(max_len, dim):
    position = np.arange(max_len, dtype=np.float32)[:, None]
    div_term = np.exp(np.arange(0, dim, 2, dtype=np.float32) * (-math.log(10000.0) / dim))
    table = np.zeros((max_len, dim), dtype=np.float32)
    table[:, 0::2] = np.sin(position * div_term)
    table[:, 1::2] = np.cos(position * div_term)
    return Tensor(table)


class TextAttention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = width // heads
        self.in_proj = nn.Dense(width, 3 * width)
        self.out_proj = nn.Dense(width, width)

    def construct(self, x, blocked):
        b, n, d = x.shape
        q, k, v = ops.chunk(self.in_proj(x), 3, axis=-1)
        q = q.reshape(b, n, self.heads, self.head_dim).swapaxes(1, 2)
        k = k.reshape(b, n, self.heads, self.head_dim).swapaxes(1, 2)
        v = v.reshape(b, n, self.heads, self.head_dim).swapaxes(1, 2)
        logits = ops.matmul(q / math.sqrt(self.head_dim), k.swapaxes(-2, -1))
        logits = ops.masked_fill(logits, blocked, Tensor(-1e9, logits.dtype))
        out = ops.matmul(ops.softmax(logits, axis=-1), v)
        return self.out_proj(out.swapaxes(1, 2).reshape(b, n, d))


class TextLayer(nn.Cell):
    def __init__(self, width, heads, eps=1e-5):
        super().__init__()
        self.ln_1 = nn.LayerNorm((width,), epsilon=eps)
        self.attn = TextAttention(width, heads)
        self.ln_2 = nn.LayerNorm((width,), epsilon=eps)
        self.mlp_fc = nn.Dense(width, width * 4)
        self.mlp_proj = nn.Dense(width * 4, width)

    def construct(self, x, blocked):
        x = x + self.attn(self.ln_1(x), blocked)
        hidden = self.mlp_fc(self.ln_2(x))
        hidden = hidden * ops.sigmoid(1.702 * hidden)  # QuickGELU
        return x + self.mlp_proj(hidden)


class TextEncoder(nn.Cell):
    """Causal text transformer, pooled at the end-of-text token (the largest id), pad id 0."""

    def __init__(self, vocab, context, width, heads, layers, dim):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_table = Parameter(initializer(Normal(0.01), (context, width)))
        self.layers = nn.CellList([TextLayer(width, heads) for _ in range(layers)])
        self.ln_final = nn.LayerNorm((width,), epsilon=1e-5)
        self.text_projection = Parameter(initializer(Normal(width ** -0.5), (width, dim)))
        self.token_proj = nn.Dense(width, dim)

    def construct(self, ids):
        b, n = ids.shape
        valid = ids != 0
        causal = Tensor(np.triu(np.ones((n, n)), k=1), mstype.bool_)
        blocked = ops.logical_or(causal[None, None], ops.logical_not(valid)[:, None, None, :])
        x = self.token_embedding(ids) + self.position_table[:n]
        for layer in self.layers:
            x = layer(x, blocked)
        x = self.ln_final(x)
        eot = ids.argmax(axis=-1)
        pooled = ops.matmul(x[ops.arange(b), eot], self.text_projection)
        return self.token_proj(x), valid, pooled


def build_adjacency(parents):
    """Partitions self / centripetal / centrifugal, columns normalised over all partitions."""
    tree = tuple(parents) + (0,)
    n = len(tree)
    adj = np.zeros((3, n, n), np.float32)
    adj[0] = np.eye(n)
    for child, parent in enumerate(tree):
        if parent >= 0:
            adj[1, child, parent] = 1
            adj[2, parent, child] = 1
    return Tensor(adj / adj.sum(axis=(0, 1)))


class GraphStem(nn.Cell):
    def __init__(self, parents, in_ch, ch, dim, dilation=2):
        super().__init__()
        self.adjacency = build_adjacency(parents)
        self.parts, nodes, _ = self.adjacency.shape
        self.importance = Parameter(ops.ones(self.adjacency.shape, mstype.float32))
        self.gcn = nn.Conv2d(in_ch, ch * self.parts, 1, has_bias=True)
        self.bn1 = nn.BatchNorm2d(ch, eps=1e-3)
        self.tcn = nn.Conv2d(ch, ch, (3, 1), pad_mode="pad", padding=(dilation, dilation, 0, 0),
                             dilation=(dilation, 1), has_bias=True)
        self.bn2 = nn.BatchNorm2d(ch, eps=1e-3)
        self.down_conv = nn.Conv2d(in_ch, ch, 1, has_bias=False)
        self.down_bn = nn.BatchNorm2d(ch)
        self.relu = nn.LeakyReLU(alpha=0.01)
        self.proj = nn.Dense(ch * nodes, dim)

    def construct(self, x, frame_mask):
        x = x.transpose(0, 2, 3, 1)  # (B, C, T, V)
        keep = frame_mask[:, None, :, None].astype(x.dtype)
        x = x * keep
        residual = self.down_bn(self.down_conv(x))
        h = self.gcn(x)
        b, kc, t, v = h.shape
        h = h.reshape(b, self.parts, kc // self.parts, t, v)
        graph = self.adjacency * self.importance
        # einsum('nkctv,kvw->nctw'), one matmul per partition
        h = ops.matmul(h, graph.expand_dims(1)).sum(axis=1)
        h = self.relu(self.bn1(h * keep))
        h = self.bn2(self.tcn(h))
        h = self.relu(h + residual)
        h = h.transpose(0, 2, 3, 1).reshape(b, t, -1)
        return self.proj(h)


class StylizationBlock(nn.Cell):
    def __init__(self, dim):
        super().__init__()
        self.emb_proj = nn.Dense(dim, 2 * dim)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.out_proj = nn.Dense(dim, dim)

    def construct(self, h, emb):
        style = self.emb_proj(ops.silu(emb)).expand_dims(1)
        scale, shift = ops.chunk(style, 2, axis=-1)
        h = self.norm(h) * (1 + scale) + shift
        return self.out_proj(ops.silu(h))


class RotaryAttention(nn.Cell):
    """Self attention over [condition, frames] with partial rotary positions."""

    def __init__(self, dim, heads, rot_dim, max_len):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.rot_dim = rot_dim
        self.scale = self.head_dim ** -0.5
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.qkv = nn.Dense(dim, 3 * dim, has_bias=False)
        self.out = nn.Dense(dim, dim)
        inv_freq = 1.0 / (1000.0 ** (np.arange(0, rot_dim, 2, dtype=np.float32) / rot_dim))
        angles = np.repeat(np.outer(np.arange(max_len), inv_freq), 2, axis=-1)
        self.cos = Tensor(np.cos(angles), mstype.float32)
        self.sin = Tensor(np.sin(angles), mstype.float32)

    def apply_rotary(self, x):
        n = x.shape[2]
        rot, rest = x[..., :self.rot_dim], x[..., self.rot_dim:]
        even, odd = rot[..., 0::2], rot[..., 1::2]
        turned = ops.stack((-odd, even), axis=-1).reshape(rot.shape)
        rot = rot * self.cos[:n] + turned * self.sin[:n]
        return ops.cat((rot, rest), axis=-1)

    def construct(self, x, mask):
        b, n, d = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, n, 3, self.heads, self.head_dim)
        qkv = qkv.transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q = self.apply_rotary(q)
        k = self.apply_rotary(k)
        score = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        blocked = ops.logical_not(mask)[:, None, None, :]
        score = ops.masked_fill(score, blocked, Tensor(-1e9, score.dtype))
        y = ops.matmul(ops.softmax(score, axis=-1), v)
        return self.out(y.transpose(0, 2, 1, 3).reshape(b, n, d))


class LinearCrossAttention(nn.Cell):
    """Linear attention to the text tokens (MotionDiffuse)."""

    def __init__(self, dim, text_dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.text_norm = nn.LayerNorm((text_dim,), epsilon=1e-5)
        self.query = nn.Dense(dim, dim)
        self.key = nn.Dense(text_dim, dim)
        self.value = nn.Dense(text_dim, dim)
        self.proj_out = StylizationBlock(dim)

    def construct(self, x, emb, tokens, token_mask):
        b, n, d = x.shape
        length = tokens.shape[1]
        ctx = self.text_norm(tokens)
        keep = token_mask.astype(x.dtype).expand_dims(-1)
        query = self.query(self.norm(x)).reshape(b, n, self.heads, -1)
        query = ops.softmax(query, axis=-1).transpose(0, 2, 1, 3)
        key = (self.key(ctx) + (1.0 - keep) * -1e6).reshape(b, length, self.heads, -1)
        key = ops.softmax(key, axis=1).transpose(0, 2, 3, 1)
        value = (self.value(ctx) * keep).reshape(b, length, self.heads, -1).transpose(0, 2, 1, 3)
        context = ops.matmul(key, value)  # (B, H, K, V)
        y = ops.matmul(query, context).transpose(0, 2, 1, 3).reshape(b, n, d)
        return x + self.proj_out(y, emb)


class FeedForward(nn.Cell):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, dim)
        self.proj_out = StylizationBlock(dim)

    def construct(self, x, emb):
        y = self.fc2(self.act(self.fc1(x)))
        return x + self.proj_out(y, emb)


class MotionBlock(nn.Cell):
    def __init__(self, dim, heads, rot_dim, hidden, max_len):
        super().__init__()
        self.self_attn = RotaryAttention(dim, heads, rot_dim, max_len)
        self.cross_attn = LinearCrossAttention(dim, dim, heads)
        self.ffn = FeedForward(dim, hidden)

    def construct(self, x, mask, emb, tokens, token_mask):
        x = x + self.self_attn(x, mask)
        x = self.cross_attn(x, emb, tokens, token_mask)
        x = self.ffn(x, emb)
        return x


class SlowBranch(nn.Cell):
    """Features at half the frame rate, brought back by linear interpolation."""

    def __init__(self, dim, slow):
        super().__init__()
        self.down = nn.Conv2d(dim, slow, (3, 1), stride=(2, 1), pad_mode="pad", padding=(1, 1, 0, 0), has_bias=True)
        self.act = nn.LeakyReLU(alpha=0.1)
        self.up = nn.Dense(slow, dim)

    def construct(self, x, frame_mask):
        keep = frame_mask.astype(x.dtype).expand_dims(-1)
        h = (x * keep).swapaxes(1, 2).expand_dims(-1)
        h = self.act(self.down(h)).squeeze(-1)
        h = ops.interpolate(h, size=x.shape[1], mode="linear", align_corners=False)
        return self.up(h.swapaxes(1, 2)) * keep


class Denoiser(nn.Cell):
    """x_t -> x0. The last blocks take the outputs of the first blocks in reverse order (U shaped, MLD)."""

    def __init__(self, dim=36, heads=3, rot_dim=8, hidden=58, depth=5, vocab=41, context=9, text_width=20,
                 max_frames=32, steps=60, unit=4):
        super().__init__()
        self.unit = unit
        self.half = depth // 2
        self.text_encoder = TextEncoder(vocab, context, text_width, 2, 2, dim)
        self.null_text = Parameter(initializer(Normal(0.02), (1, 1, dim)))
        self.step_table = get_sinusoid_table(steps, dim)
        self.time_mlp = nn.SequentialCell(nn.Dense(dim, dim), nn.SiLU(), nn.Dense(dim, dim))
        self.length_embedding = nn.Embedding(max_frames // unit + 1, dim)
        self.stem = GraphStem(PARENTS, NUM_FEATS, 10, dim)
        self.blocks = nn.CellList([MotionBlock(dim, heads, rot_dim, hidden, max_frames + 1) for _ in range(depth)])
        self.skip_fuse = nn.CellList([nn.Dense(2 * dim, dim) for _ in range(self.half)])
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.slow = SlowBranch(dim, 14)
        self.pose_head = nn.Dense(dim, NUM_JOINTS * NUM_FEATS)
        self.traj_head = nn.Dense(dim, NUM_FEATS)

    def encode_text(self, ids, drop):
        tokens, valid, pooled = self.text_encoder(ids)
        tokens = ops.where(drop[:, None, None], self.null_text, tokens)
        # without a text only the (null) token at the first place is attended to
        first = (ops.arange(ids.shape[1]) == 0)[None, :]
        token_mask = ops.where(drop[:, None], first, valid)
        pooled = pooled * ops.logical_not(drop)[:, None].astype(pooled.dtype)
        return tokens, token_mask, pooled

    def construct(self, x, timesteps, ids, lengths, drop):
        bs, nodes, feats, nframes = x.shape
        frame_mask = ops.arange(nframes)[None, :] < lengths[:, None]
        tokens, token_mask, pooled = self.encode_text(ids, drop)
        bucket = (lengths + self.unit - 1) // self.unit
        emb = self.time_mlp(self.step_table[timesteps]) + pooled + self.length_embedding(bucket)

        h = ops.cat((emb.expand_dims(1), self.stem(x, frame_mask)), axis=1)
        mask = ops.cat((ops.ones((bs, 1), mstype.bool_), frame_mask), axis=1)

        skips = []
        for i, block in enumerate(self.blocks):
            if i > self.half:
                h = self.skip_fuse[i - self.half - 1](ops.cat((h, skips.pop()), axis=-1))
            h = block(h, mask, emb, tokens, token_mask)
            if i < self.half:
                skips.append(h)

        h = self.norm(h)[:, 1:]
        h = h + self.slow(h, frame_mask)
        pose = self.pose_head(h).reshape(bs, nframes, nodes - 1, feats)
        traj = self.traj_head(h).expand_dims(2)
        out = ops.cat((pose, traj), axis=2).transpose(0, 2, 3, 1)
        return out * frame_mask[:, None, None, :].astype(out.dtype)


def cosine_betas(steps, max_beta=0.999):
    t = np.arange(steps + 1, dtype=np.float64) / steps
    bar = np.cos((t + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.minimum(1 - bar[1:] / bar[:-1], max_beta)


def masked_l2(a, b, mask):
    """Mean over the valid frames of every sample; a, b (B, V, C, T), mask (B, 1, 1, T)."""
    error = (ops.square(a - b) * mask).sum(axis=(1, 2, 3))
    count = mask.sum(axis=(1, 2, 3)) * (a.shape[1] * a.shape[2])
    return error / count


class VoxelDiffusion(nn.Cell):
    def __init__(self, steps=60, rescale=0.7, lambda_vel=0.5, lambda_foot=2.0):
        super().__init__()
        self.rescale = rescale
        self.lambda_vel = lambda_vel
        self.lambda_foot = lambda_foot
        self.denoiser = Denoiser(steps=steps)
        self.kinematics = ForwardKinematics(PARENTS, OFFSETS)
        betas = cosine_betas(steps)
        alphas_bar = np.cumprod(1.0 - betas)
        alphas_bar_prev = np.concatenate(([1.0], alphas_bar[:-1]))
        self.coef_x0 = Tensor(betas * np.sqrt(alphas_bar_prev) / (1.0 - alphas_bar), mstype.float32)
        self.coef_xt = Tensor((1.0 - alphas_bar_prev) * np.sqrt(1.0 - betas) / (1.0 - alphas_bar), mstype.float32)
        self.loss_weight = Tensor(np.minimum(alphas_bar / (1.0 - alphas_bar), 5.0), mstype.float32)
        grid = np.arange((NUM_JOINTS + 1) * NUM_FEATS).reshape(1, NUM_JOINTS + 1, NUM_FEATS, 1)
        self.data_mean = Tensor(0.3 * np.sin(1.7 * grid), mstype.float32)
        self.data_std = Tensor(0.8 + 0.4 * np.cos(0.9 * grid), mstype.float32)

    def guided(self, x_t, timesteps, ids, lengths, scale):
        """Classifier free guidance, both passes in one batch; then the rescaling of Lin et al. (2023)."""
        bs = x_t.shape[0]
        drop = ops.arange(2 * bs) >= bs
        double = [ops.cat((a, a), axis=0) for a in (x_t, timesteps, ids, lengths)]
        cond, uncond = ops.chunk(self.denoiser(*double, drop), 2, axis=0)
        out = uncond + scale.reshape(-1, 1, 1, 1) * (cond - uncond)
        axes = (1, 2, 3)
        factor = ops.std(cond, axes, ddof=1, keepdims=True) / ops.std(out, axes, ddof=1, keepdims=True)
        return self.rescale * (out * factor) + (1.0 - self.rescale) * out

    def to_joints(self, x):
        return self.kinematics(x * self.data_std + self.data_mean)

    def compute_losses(self, pred, target, joints, timesteps, mask):
        rec = masked_l2(pred, target, mask)
        goal = self.to_joints(target).transpose(0, 2, 3, 1)
        joints = joints.transpose(0, 2, 3, 1)
        vel = joints[..., 1:] - joints[..., :-1]
        goal_vel = goal[..., 1:] - goal[..., :-1]
        vel_mask = mask[..., 1:]
        vel_loss = masked_l2(vel, goal_vel, vel_mask)
        contact = ops.sigmoid(pred[:, -1, 4:, :-1]).expand_dims(2)
        foot_vel = ops.stack([vel[:, j] for j in FEET], axis=1) * 10.0
        foot_loss = masked_l2(foot_vel * contact, ops.zeros_like(foot_vel), vel_mask)
        total = rec + self.lambda_vel * vel_loss + self.lambda_foot * foot_loss
        total = (total * self.loss_weight[timesteps]).mean()
        return ops.stack((rec, vel_loss, foot_loss), axis=-1), total

    def construct(self, x_t, timesteps, ids, lengths, scale, target, prefix):
        frame = ops.arange(x_t.shape[-1])
        mask = (frame[None, :] < lengths[:, None])[:, None, None, :].astype(x_t.dtype)
        x0 = self.guided(x_t, timesteps, ids, lengths, scale)
        x0 = ops.where(frame < prefix, target, x0)  # the given first frames
        c0 = self.coef_x0[timesteps].reshape(-1, 1, 1, 1)
        ct = self.coef_xt[timesteps].reshape(-1, 1, 1, 1)
        x_prev = (c0 * x0 + ct * x_t) * mask
        joints = self.to_joints(x0)
        parts, total = self.compute_losses(x0, target, joints, timesteps, mask)
        return x_prev, x0, joints, parts, total


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
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(1234)
    net = VoxelDiffusion()
    net.set_train(False)
    inputs = tuple(Tensor(a) for a in make_arrays()) + (2,)
    return net, inputs
