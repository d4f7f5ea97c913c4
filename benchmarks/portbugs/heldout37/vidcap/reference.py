"""Video captioner: divided space-time attention, perceiver resampler, gated cross-attention decoder."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PAD_ID, BOS_ID, CLIP_ID = 0, 1, 3


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


def sinusoid_table(num_rows, dim, max_period=500.0):
    half = dim // 2
    freq = torch.exp(-math.log(max_period) * torch.arange(half) / half)
    angle = torch.arange(num_rows, dtype=torch.float32)[:, None] * freq[None, :]
    return torch.cat([torch.cos(angle), torch.sin(angle)], dim=-1)


class MotionStem(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.conv = nn.Conv2d(2 * in_ch, out_ch, kernel_size=3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out_ch, eps=1e-3, momentum=0.01)
        self.act = nn.SiLU()

    def forward(self, video, frame_mask):
        m, t = video.shape[:2]
        diff = video[:, 1:] - video[:, :-1]
        both = frame_mask[:, 1:] * frame_mask[:, :-1]
        diff = diff * both[:, :, None, None, None]
        diff = F.pad(diff, (0, 0, 0, 0, 0, 0, 1, 0))
        x = torch.cat([video, diff], dim=2).flatten(0, 1)
        x = self.act(self.norm(self.conv(x)))
        return (x.reshape(m, t, *x.shape[1:]) * frame_mask[:, :, None, None, None]).transpose(1, 2)


class TubeletEmbed(nn.Module):
    def __init__(self, in_ch, dim, base_t=8, base_hw=(4, 6), buckets=12, bucket_size=3):
        super().__init__()
        self.base_hw, self.stride_t = base_hw, 2
        self.buckets, self.bucket_size = buckets, bucket_size
        self.proj = nn.Conv3d(in_ch, dim, kernel_size=(3, 4, 5), stride=(self.stride_t, 3, 3), padding=(1, 1, 1))
        self.spatial_pos = nn.Parameter(torch.zeros(1, base_hw[0] * base_hw[1], dim))
        self.temporal_pos = nn.Parameter(torch.zeros(1, base_t, dim))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.register_buffer("sin_table", sinusoid_table(2 * buckets, dim), persistent=False)
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x, frame_mask, start, step):
        x = self.proj(x)
        m, d, t, h, w = x.shape
        mask = F.max_pool1d(frame_mask[:, None], kernel_size=3, stride=self.stride_t, padding=1)[:, 0]

        spatial = self.spatial_pos.reshape(1, *self.base_hw, d).permute(0, 3, 1, 2)
        spatial = F.interpolate(spatial, size=(h, w), mode="bilinear", align_corners=False).flatten(2).transpose(1, 2)
        temporal = F.interpolate(self.temporal_pos.mT, size=t, mode="linear", align_corners=False).mT

        # time of each tubelet in frames, relative to the anchor of the query: may be negative
        when = start[:, None] + self.stride_t * step[:, None] * torch.arange(t, device=x.device)
        bucket = torch.div(when, self.bucket_size, rounding_mode="floor")
        bucket = bucket.clamp(-self.buckets, self.buckets - 1) + self.buckets
        signed = self.sin_table[bucket]                                       # m, t, d

        x = x.flatten(3).permute(0, 3, 2, 1)                                  # m, s, t, d
        x = x + spatial[:, :, None] + (temporal + 0.5 * signed)[:, None]
        x = x.reshape(m, h * w * t, d)
        x = torch.cat([self.cls_token.expand(m, -1, -1), x], dim=1)
        return self.norm(x), mask, (h * w, t)


class VideoAttention(nn.Module):
    def __init__(self, dim, heads, max_t=None):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.max_t = max_t
        if max_t is not None:
            self.rel_bias = nn.Parameter(torch.zeros(2 * max_t - 1, heads))

    def forward(self, x, key_mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        if self.max_t is not None:
            pos = torch.arange(n, device=x.device)
            rel = pos[None, :] - pos[:, None] + self.max_t - 1
            attn = attn + self.rel_bias[rel].permute(2, 0, 1)
        if key_mask is not None:
            attn = attn.masked_fill(key_mask[:, None, None, :] == 0, torch.finfo(attn.dtype).min)
        x = attn.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(b, n, d))


class Mlp(nn.Module):
    def __init__(self, dim, hidden, act):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = act
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class DividedBlock(nn.Module):
    def __init__(self, dim, heads, max_t):
        super().__init__()
        self.norm_t = nn.LayerNorm(dim, eps=1e-6)
        self.attn_t = VideoAttention(dim, heads, max_t)
        self.fc_t = nn.Linear(dim, dim)
        self.norm_s = nn.LayerNorm(dim, eps=1e-6)
        self.attn_s = VideoAttention(dim, heads)
        self.norm_m = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, 2 * dim, nn.GELU())

    def forward(self, x, mask, grid):
        s, t = grid
        m, _, d = x.shape
        cls, patches = x[:, :1], x[:, 1:]

        xt = patches.reshape(m * s, t, d)
        key_mask = mask[:, None].expand(m, s, t).reshape(m * s, t)
        xt = self.fc_t(self.attn_t(self.norm_t(xt), key_mask)).reshape(m, s * t, d)
        patches = patches + xt

        xs = patches.reshape(m, s, t, d).transpose(1, 2).reshape(m * t, s, d)
        cls_t = cls.expand(m, t, d).reshape(m * t, 1, d)
        xs = self.attn_s(self.norm_s(torch.cat([cls_t, xs], dim=1)))
        cls_out = xs[:, 0].reshape(m, t, d)
        cls_out = (cls_out * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
        xs = xs[:, 1:].reshape(m, t, s, d).transpose(1, 2).reshape(m, s * t, d)

        x = torch.cat([cls + cls_out, patches + xs], dim=1)
        return x + self.mlp(self.norm_m(x))


class PerceiverAttention(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads, self.scale = heads, dim_head ** -0.5
        inner = heads * dim_head
        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, media, latents, media_mask):
        media, latents = self.norm_media(media), self.norm_latents(latents)
        b, n = latents.shape[:2]
        q = self.to_q(latents) * self.scale
        k, v = self.to_kv(torch.cat([media, latents], dim=1)).chunk(2, dim=-1)
        q, k, v = [z.reshape(b, z.shape[1], self.heads, -1).transpose(1, 2) for z in (q, k, v)]
        sim = torch.einsum("bhid,bhjd->bhij", q, k)
        mask = F.pad(media_mask, (0, n), value=1.0)
        sim = sim.masked_fill(mask[:, None, None] == 0, -1e9)
        out = torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class Resampler(nn.Module):
    def __init__(self, dim, depth, heads, dim_head, num_latents, max_clips):
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(num_latents, dim))
        self.clip_pos = nn.Parameter(torch.zeros(max_clips, 1, dim))
        self.carry = nn.Parameter(torch.zeros(dim))
        self.layers = nn.ModuleList([
            nn.ModuleList([PerceiverAttention(dim, heads, dim_head), nn.LayerNorm(dim), Mlp(dim, 2 * dim, QuickGELU())])
            for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens, token_mask):
        b, clips, _, d = tokens.shape                                         # mask: b, clips, n
        memory = torch.zeros(b, self.latents.shape[0], d, device=tokens.device)
        outs = []
        for c in range(clips):
            media = tokens[:, c] + self.clip_pos[c]
            lat = self.latents[None] + torch.sigmoid(self.carry) * memory
            for attn, norm, ff in self.layers:
                lat = attn(media, lat, token_mask[:, c]) + lat
                lat = ff(norm(lat)) + lat
            memory = lat
            outs.append(self.norm(lat))
        return torch.stack(outs, dim=1)


class CausalAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.dim_head = heads, dim // heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x, bias):
        b, n, d = x.shape
        q, k, v = [f(x).view(b, n, self.heads, self.dim_head).transpose(1, 2)
                   for f in (self.q_proj, self.k_proj, self.v_proj)]
        attn = q @ k.transpose(-1, -2) / math.sqrt(self.dim_head) + bias
        return self.out_proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class GatedCrossAttention(nn.Module):
    def __init__(self, dim, dim_media, heads, dim_head):
        super().__init__()
        self.heads, self.scale = heads, dim_head ** -0.5
        inner = heads * dim_head
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim_media, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.attn_gate = nn.Parameter(torch.zeros(1))
        self.ff_norm = nn.LayerNorm(dim)
        self.ff = Mlp(dim, 2 * dim, nn.GELU())
        self.ff_gate = nn.Parameter(torch.zeros(1))

    def forward(self, x, media, is_clip):
        b, n, _ = x.shape
        clips, lat = media.shape[1:3]
        media = media.flatten(1, 2)
        q = self.to_q(self.norm(x)) * self.scale
        k, v = self.to_kv(media).chunk(2, dim=-1)
        q, k, v = [z.reshape(b, z.shape[1], self.heads, -1).transpose(1, 2) for z in (q, k, v)]
        sim = torch.einsum("bhid,bhjd->bhij", q, k)

        text_time = is_clip.long().cumsum(dim=-1)                             # b, n
        media_time = torch.arange(1, clips + 1, device=x.device).repeat_interleave(lat)
        allowed = text_time[:, None, :, None] == media_time[None, None, None, :]
        sim = sim.masked_fill(~allowed, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        attn = attn.masked_fill((text_time == 0)[:, None, :, None], 0.0)

        out = torch.einsum("bhij,bhjd->bhid", attn, v).transpose(1, 2).reshape(b, n, -1)
        x = x + self.attn_gate.tanh() * self.to_out(out)
        return x + self.ff_gate.tanh() * self.ff(self.ff_norm(x))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, dim_media=None, x_heads=2, x_dim_head=9):
        super().__init__()
        self.xattn = GatedCrossAttention(dim, dim_media, x_heads, x_dim_head) if dim_media else None
        self.norm1 = nn.LayerNorm(dim)
        self.attn = CausalAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, 3 * dim, nn.GELU(approximate="tanh"))

    def forward(self, x, bias, media=None, is_clip=None):
        if self.xattn is not None:
            x = self.xattn(x, media, is_clip)
        x = x + self.attn(self.norm1(x), bias)
        return x + self.mlp(self.norm2(x))


class TextDecoder(nn.Module):
    def __init__(self, vocab, dim, heads, dim_media, uni_depth=1, multi_depth=2, max_len=24):
        super().__init__()
        self.pos_offset = 2                                                   # as in OPT
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(max_len + self.pos_offset, dim)
        self.seg = nn.Embedding(2, dim)
        self.uni = nn.ModuleList([DecoderLayer(dim, heads) for _ in range(uni_depth)])
        self.multi = nn.ModuleList([DecoderLayer(dim, heads, dim_media) for _ in range(multi_depth)])
        self.norm_uni = nn.LayerNorm(dim)
        self.norm_out = nn.LayerNorm(dim)
        self.out_bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, ids, types, attn_mask, media):
        b, n = ids.shape
        pos = (attn_mask.cumsum(dim=1) - 1).clamp(min=0) + self.pos_offset
        x = self.tok(ids) + self.pos(pos) + self.seg(types)

        # the prompt (type 0) is read in both directions, the caption (type 1) from left to right
        causal = torch.ones(n, n, dtype=torch.bool, device=ids.device).tril()
        prompt = (types == 0)[:, :, None] & (types == 0)[:, None, :]
        allowed = (causal[None] | prompt) & (attn_mask[:, None, :] == 1)
        bias = torch.zeros(b, n, n, device=ids.device).masked_fill(~allowed, -1e4)[:, None]

        for layer in self.uni:
            x = layer(x, bias)
        last = (attn_mask * torch.arange(n, device=ids.device)).argmax(dim=1)
        sentence = self.norm_uni(x)[torch.arange(b, device=ids.device), last]

        for layer in self.multi:
            x = layer(x, bias, media, ids == CLIP_ID)
        x = self.norm_out(x)
        logits = x @ self.tok.weight.t() * x.shape[-1] ** -0.5 + self.out_bias
        return logits, sentence


class AttentionPool(nn.Module):
    def __init__(self, dim, heads, out_dim):
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(torch.zeros(heads, dim // heads))
        self.to_kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, out_dim, bias=False)

    def forward(self, x, mask):
        b, n, d = x.shape
        k, v = self.to_kv(x).reshape(b, n, 2, self.heads, d // self.heads).unbind(dim=2)
        score = torch.einsum("hd,bnhd->bnh", self.query, k) / math.sqrt(d // self.heads)
        score = score.masked_fill(mask[..., None] == 0, -1e9).softmax(dim=1)
        return self.proj(torch.einsum("bnh,bnhd->bhd", score, v).reshape(b, d))


class VideoCaptioner(nn.Module):
    def __init__(self, vocab=53, dim_v=36, dim_t=40, dim_e=28, smoothing=0.1, alpha=0.7):
        super().__init__()
        self.vocab, self.smoothing, self.alpha = vocab, smoothing, alpha
        self.stem = MotionStem(3, 14)
        self.embed = TubeletEmbed(14, dim_v)
        self.blocks = nn.ModuleList([DividedBlock(dim_v, 3, max_t=7) for _ in range(2)])
        self.resampler = Resampler(dim_v, depth=2, heads=2, dim_head=11, num_latents=4, max_clips=3)
        self.pool = AttentionPool(dim_v, 4, dim_e)
        self.decoder = TextDecoder(vocab, dim_t, 5, dim_v)
        self.text_proj = nn.Parameter(torch.zeros(dim_t, dim_e))
        self.logit_scale = nn.Parameter(torch.tensor(0.0))

    def forward(self, video, frame_mask, start, step, ids, types, attn_mask):
        b, clips = video.shape[:2]
        flat_mask = frame_mask.flatten(0, 1)
        x = self.stem(video.flatten(0, 1), flat_mask)
        x, mask, grid = self.embed(x, flat_mask, start.flatten(), step.flatten())
        for block in self.blocks:
            x = block(x, mask, grid)
        (s, t), labels = grid, torch.arange(b, device=video.device)
        token_mask = mask[:, None].expand(-1, s, t).reshape(b * clips, s * t)
        token_mask = F.pad(token_mask, (1, 0), value=1.0)
        x, token_mask = x.reshape(b, clips, -1, x.shape[-1]), token_mask.reshape(b, clips, -1)
        media = self.resampler(x, token_mask)
        logits, sentence = self.decoder(ids, types, attn_mask, media)

        # contrastive
        video_e = F.normalize(self.pool(x.flatten(1, 2), token_mask.flatten(1)), dim=-1)
        text_e = F.normalize(sentence @ self.text_proj, dim=-1)
        sim = self.logit_scale.exp().clamp(max=100.0) * video_e @ text_e.t()
        contrastive = 0.5 * (F.cross_entropy(sim, labels) + F.cross_entropy(sim.t(), labels))

        # captioning: position i predicts token i + 1, only where that token is of the caption
        target = ids[:, 1:]
        keep = ((types[:, 1:] == 1) & (attn_mask[:, 1:] == 1) & (target != CLIP_ID)).float()
        logp = logits[:, :-1].log_softmax(dim=-1)
        picked = logp.gather(-1, target[..., None])[..., 0]
        length = keep.sum(dim=1)
        score = (picked * keep).sum(dim=1) / ((5.0 + length) / 6.0) ** self.alpha
        smooth = (1 - self.smoothing) * picked + self.smoothing * logp.mean(dim=-1)
        caption = -(smooth * keep).sum() / keep.sum()
        loss = contrastive + 2.0 * caption
        return logits * attn_mask[..., None], sim, score, loss


def make_inputs():
    rng = np.random.RandomState(7)
    b, clips, t, h, w, n = 3, 2, 10, 20, 28, 13
    video = rng.randn(b, clips, t, 3, h, w).astype(np.float32)
    video = video + np.cumsum(0.6 * rng.randn(b, clips, t, 3, 1, 1), axis=2).astype(np.float32)
    frame_mask = np.ones((b, clips, t), np.float32)
    frame_mask[0, 1, 6:] = frame_mask[1, 0, 7:] = frame_mask[2, 0, 4:] = 0
    start = np.array([[-31, -9], [-20, 5], [-13, 2]], np.int64)
    step = np.array([[1, 2], [2, 1], [1, 3]], np.int64)
    ids = rng.randint(5, 53, (b, n)).astype(np.int64)
    types, attn_mask = np.zeros((b, n), np.int64), np.ones((b, n), np.int64)
    ids[0, :2], attn_mask[0, :2] = PAD_ID, 0            # padded on the left
    ids[2, 10:], attn_mask[2, 10:] = PAD_ID, 0          # and on the right
    for row, (first, clip_at, caption_at) in enumerate([(2, (4, 8), 6), (0, (2, 9), 5), (0, (1, 6), 4)]):
        ids[row, first] = BOS_ID
        ids[row, list(clip_at)] = CLIP_ID
        types[row, caption_at:] = 1
    return video, frame_mask, start, step, ids, types, attn_mask


def build():
    torch.manual_seed(3)
    net = VideoCaptioner()
    with torch.no_grad():
        for name, p in net.named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            if name == "logit_scale":
                p.fill_(1.9)
            elif "gate" in leaf or p.dim() == 1 and leaf == "weight":
                p.copy_(0.6 + 0.8 * torch.rand_like(p))
            elif p.dim() == 1:
                p.copy_(0.3 * torch.randn_like(p))
            elif leaf in ("spatial_pos", "temporal_pos", "cls_token", "latents", "clip_pos", "rel_bias", "query") \
                    or name.startswith(("decoder.tok", "decoder.pos", "decoder.seg")):
                p.copy_(0.8 * torch.randn_like(p))
            elif leaf == "text_proj":
                p.copy_(torch.randn_like(p) * p.shape[0] ** -0.5)
            else:
                p.copy_(torch.randn_like(p) * (1.8 if "to_" in name or ".2.fc" in name else 1.1) * p[0].numel() ** -0.5)
        net.stem.norm.running_mean.copy_(0.3 * torch.randn(14))
        net.stem.norm.running_var.copy_(0.02 + 0.3 * torch.rand(14) ** 2)
    return net.eval(), tuple(torch.from_numpy(a) for a in make_inputs())
