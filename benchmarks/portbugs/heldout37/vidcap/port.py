"""MindSpore port of the video captioner (PyNative)."""
import math

import numpy as np
import mindspore as ms
from mindspore import nn, ops, Parameter, Tensor
from mindspore.common.initializer import Normal, initializer

PAD_ID, BOS_ID, CLIP_ID = 0, 1, 3


def new_param(shape, name, init=None):
    return Parameter(initializer(init or Normal(0.02), shape, ms.float32), name=name)


def split_heads(x, heads):
    """b, n, (h d) -> b, h, n, d"""
    b, n, inner = x.shape
    return x.reshape(b, n, heads, inner // heads).transpose(0, 2, 1, 3)


def merge_heads(x):
    """b, h, n, d -> b, n, (h d)"""
    b, h, n, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, n, h * d)


def l2_normalize(x):
    return x / ops.maximum(ops.sqrt((x * x).sum(axis=-1, keepdims=True)), Tensor(1e-12, ms.float32))


def sinusoid_table(rows, dim, max_period=500.0):
    half = dim // 2
    freq = np.exp(-math.log(max_period) * np.arange(half) / half)
    angle = np.arange(rows)[:, None] * freq[None, :]
    return Tensor(np.concatenate([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32))


class QuickGELU(nn.Cell):
    def construct(self, x):
        return x * ops.sigmoid(1.702 * x)


class FeedForward(nn.Cell):
    def __init__(self, dim, hidden, act):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.act = act
        self.fc2 = nn.Dense(hidden, dim)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


# --------------------------------------------------------------------------- video


class MotionStem(nn.Cell):
    """Frames and frame differences through one convolution."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(2 * in_channels, out_channels, 3, stride=2, pad_mode="pad", padding=1, has_bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.99)
        self.act = nn.SiLU()

    def construct(self, video, frame_mask):
        m, t, c, h, w = video.shape
        valid_pair = frame_mask[:, 1:] * frame_mask[:, :-1]
        diff = (video[:, 1:] - video[:, :-1]) * valid_pair.reshape(m, t - 1, 1, 1, 1)
        zero = ops.zeros((m, 1, c, h, w), video.dtype)
        diff = ops.cat((zero, diff), axis=1)
        x = ops.cat((video, diff), axis=2).reshape(m * t, 2 * c, h, w)
        x = self.act(self.bn(self.conv(x)))
        _, c, h, w = x.shape
        x = x.reshape(m, t, c, h, w) * frame_mask.reshape(m, t, 1, 1, 1)
        return x.transpose(0, 2, 1, 3, 4)


class TubeletEmbedding(nn.Cell):
    def __init__(self, in_channels, dim, base_t=8, base_hw=(4, 6), buckets=12, bucket_size=3):
        super().__init__()
        self.dim = dim
        self.base_hw = base_hw
        self.buckets = buckets
        self.bucket_size = bucket_size
        self.stride_t = 2
        self.projection = nn.Conv3d(in_channels, dim, (3, 4, 5), stride=(self.stride_t, 3, 3),
                                    pad_mode="pad", padding=(1, 1, 1, 1, 1, 1), has_bias=True)
        self.spatial_table = new_param((1, base_hw[0] * base_hw[1], dim), "spatial_table")
        self.temporal_table = new_param((1, base_t, dim), "temporal_table")
        self.cls_token = new_param((1, 1, dim), "cls_token")
        self.time_codes = sinusoid_table(2 * buckets, dim)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-6)

    def tubelet_mask(self, frame_mask):
        """A tubelet counts when one of its frames does."""
        x = frame_mask.expand_dims(1).expand_dims(1)
        x = ops.max_pool2d(x, kernel_size=(1, 3), stride=(1, self.stride_t), padding=(0, 1))
        return x[:, 0, 0]

    def positions(self, t, h, w):
        bh, bw = self.base_hw
        space = self.spatial_table.reshape(1, bh, bw, self.dim).transpose(0, 3, 1, 2)
        space = ops.interpolate(space, size=(h, w), mode="bilinear", align_corners=False)
        space = space.reshape(1, self.dim, h * w).transpose(0, 2, 1)
        time = self.temporal_table.transpose(0, 2, 1)
        time = ops.interpolate(time, size=t, mode="linear", align_corners=False)
        return space, time.transpose(0, 2, 1)

    def signed_time(self, start, step, t):
        frames = start.expand_dims(1) + self.stride_t * step.expand_dims(1) * ops.arange(t)
        bucket = ops.floor(frames.astype(ms.float32) / self.bucket_size).astype(ms.int32)
        bucket = ops.clamp(bucket, -self.buckets, self.buckets - 1) + self.buckets
        return self.time_codes[bucket]

    def construct(self, x, frame_mask, start, step):
        x = self.projection(x)
        m, d, t, h, w = x.shape
        s = h * w
        space, time = self.positions(t, h, w)
        time = time + 0.5 * self.signed_time(start, step, t)
        x = x.reshape(m, d, t, s).transpose(0, 3, 2, 1)
        x = x + space.expand_dims(2) + time.expand_dims(1)
        cls = ops.broadcast_to(self.cls_token, (m, 1, d))
        x = ops.cat((cls, x.reshape(m, s * t, d)), axis=1)
        return self.norm(x), self.tubelet_mask(frame_mask), (s, t)


class VideoAttention(nn.Cell):
    def __init__(self, dim, heads, max_t=None):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Dense(dim, 3 * dim)
        self.out = nn.Dense(dim, dim)
        self.max_t = max_t
        if max_t is not None:
            self.bias_table = new_param((2 * max_t - 1, heads), "bias_table")
            pos = np.arange(max_t)
            self.rel_index = Tensor(pos[None, :] - pos[:, None] + max_t - 1, ms.int32)

    def construct(self, x, key_mask=None):
        b, n, d = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = ops.matmul(q, k.swapaxes(-2, -1)) * self.scale
        if self.max_t is not None:
            rel = self.rel_index[:n, :n]
            attn = attn + self.bias_table[rel].transpose(2, 0, 1).expand_dims(0)
        if key_mask is not None:
            attn = ops.masked_fill(attn, key_mask.reshape(b, 1, 1, n) == 0, -3.4e38)
        attn = ops.softmax(attn, axis=-1)
        return self.out(merge_heads(ops.matmul(attn, v)))


class SpaceTimeBlock(nn.Cell):
    def __init__(self, dim, heads, max_t):
        super().__init__()
        self.time_norm = nn.LayerNorm((dim,), epsilon=1e-6)
        self.time_attn = VideoAttention(dim, heads, max_t)
        self.time_fc = nn.Dense(dim, dim)
        self.space_norm = nn.LayerNorm((dim,), epsilon=1e-6)
        self.space_attn = VideoAttention(dim, heads)
        self.mlp_norm = nn.LayerNorm((dim,), epsilon=1e-6)
        self.mlp = FeedForward(dim, 2 * dim, nn.GELU(approximate=False))

    def over_time(self, patches, mask, s, t):
        m, _, d = patches.shape
        x = patches.reshape(m * s, t, d)
        key_mask = ops.repeat_interleave(mask, s, 0)
        x = self.time_attn(self.time_norm(x), key_mask)
        return patches + self.time_fc(x).reshape(m, s * t, d)

    def over_space(self, cls, patches, mask, s, t):
        m, _, d = patches.shape
        x = patches.reshape(m, s, t, d).transpose(0, 2, 1, 3).reshape(m * t, s, d)
        cls = ops.repeat_interleave(cls, t, 0)
        x = self.space_attn(self.space_norm(ops.cat((cls, x), axis=1)))
        weight = mask / mask.sum(axis=1, keepdims=True)
        cls = (x[:, 0].reshape(m, t, d) * weight.expand_dims(-1)).sum(axis=1, keepdims=True)
        x = x[:, 1:].reshape(m, t, s, d).transpose(0, 2, 1, 3).reshape(m, s * t, d)
        return cls, x

    def construct(self, x, mask, grid):
        s, t = grid
        cls, patches = x[:, :1], x[:, 1:]
        patches = self.over_time(patches, mask, s, t)
        cls_res, patch_res = self.over_space(cls, patches, mask, s, t)
        x = ops.cat((cls + cls_res, patches + patch_res), axis=1)
        return x + self.mlp(self.mlp_norm(x))


# --------------------------------------------------------------------------- resampler


class PerceiverAttention(nn.Cell):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        inner = heads * dim_head
        self.norm_media = nn.LayerNorm((dim,), epsilon=1e-5)
        self.norm_latents = nn.LayerNorm((dim,), epsilon=1e-5)
        self.to_q = nn.Dense(dim, inner, has_bias=False)
        self.to_kv = nn.Dense(dim, 2 * inner, has_bias=False)
        self.to_out = nn.Dense(inner, dim, has_bias=False)

    def construct(self, media, latents, media_mask):
        media = self.norm_media(media)
        latents = self.norm_latents(latents)
        b, n, _ = latents.shape
        q = split_heads(self.to_q(latents) * self.scale, self.heads)
        k, v = ops.chunk(self.to_kv(ops.cat((media, latents), axis=1)), 2, axis=-1)
        k, v = split_heads(k, self.heads), split_heads(v, self.heads)
        mask = ops.cat((media_mask, ops.ones((b, n), media_mask.dtype)), axis=1)
        sim = ops.matmul(q, k.swapaxes(-2, -1))
        sim = ops.masked_fill(sim, mask.reshape(b, 1, 1, -1) == 0, -1e9)
        return self.to_out(merge_heads(ops.matmul(ops.softmax(sim, axis=-1), v)))


class ResamplerLayer(nn.Cell):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.attn = PerceiverAttention(dim, heads, dim_head)
        self.ff_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.ff = FeedForward(dim, 2 * dim, QuickGELU())

    def construct(self, media, latents, mask):
        latents = latents + self.attn(media, latents, mask)
        return latents + self.ff(self.ff_norm(latents))


class PerceiverResampler(nn.Cell):
    """Compresses every clip to a few latents; a clip starts from what the clip before it left."""

    def __init__(self, dim, depth, heads, dim_head, num_latents, max_clips):
        super().__init__()
        self.latents = new_param((num_latents, dim), "latents")
        self.clip_table = new_param((max_clips, 1, dim), "clip_table")
        self.carry = new_param((dim,), "carry")
        self.layers = nn.CellList([ResamplerLayer(dim, heads, dim_head) for _ in range(depth)])
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)

    def construct(self, tokens, token_mask):
        b, clips, _, d = tokens.shape
        keep = ops.sigmoid(self.carry)
        memory = ops.zeros((b, self.latents.shape[0], d), tokens.dtype)
        outs = []
        for c in range(clips):
            media = tokens[:, c] + self.clip_table[c]
            lat = self.latents + keep * memory
            for layer in self.layers:
                lat = layer(media, lat, token_mask[:, c])
            memory = lat
            outs.append(self.norm(lat))
        return ops.stack(outs, axis=1)


class AttentionPooling(nn.Cell):
    def __init__(self, dim, heads, out_dim):
        super().__init__()
        self.heads, self.dim_head = heads, dim // heads
        self.query = new_param((heads, dim // heads), "query")
        self.to_kv = nn.Dense(dim, 2 * dim)
        self.out = nn.Dense(dim, out_dim, has_bias=False)

    def construct(self, x, mask):
        b, n, d = x.shape
        k, v = ops.split(self.to_kv(x), d, axis=-1)
        k = k.reshape(b, n, self.heads, self.dim_head)
        v = v.reshape(b, n, self.heads, self.dim_head)
        score = (k * self.query).sum(axis=-1) / math.sqrt(self.dim_head)
        score = ops.masked_fill(score, mask.expand_dims(-1) == 0, -1e9)
        score = ops.softmax(score, axis=1)
        pooled = (score.expand_dims(-1) * v).sum(axis=1)
        return self.out(pooled.reshape(b, d))


# --------------------------------------------------------------------------- text


class SelfAttention(nn.Cell):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Dense(dim, dim)
        self.key = nn.Dense(dim, dim)
        self.value = nn.Dense(dim, dim)
        self.dense = nn.Dense(dim, dim)

    def construct(self, x, bias):
        q = split_heads(self.query(x), self.heads)
        k = split_heads(self.key(x), self.heads)
        v = split_heads(self.value(x), self.heads)
        score = ops.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(q.shape[-1])
        prob = ops.softmax(score + bias, axis=-1)
        return self.dense(merge_heads(ops.matmul(prob, v)))


class GatedCrossAttention(nn.Cell):
    """Text attends to the latents of the clip that was named last."""

    def __init__(self, dim, dim_media, heads, dim_head):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        inner = heads * dim_head
        self.norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.to_q = nn.Dense(dim, inner, has_bias=False)
        self.to_kv = nn.Dense(dim_media, 2 * inner, has_bias=False)
        self.to_out = nn.Dense(inner, dim, has_bias=False)
        self.attn_gate = new_param((1,), "attn_gate", "zeros")
        self.ff_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.ff = FeedForward(dim, 2 * dim, nn.GELU(approximate=False))
        self.ff_gate = new_param((1,), "ff_gate", "zeros")

    def attend(self, x, media, is_clip):
        b, clips, lat, d = media.shape
        q = split_heads(self.to_q(x) * self.scale, self.heads)
        k, v = ops.chunk(self.to_kv(media.reshape(b, clips * lat, d)), 2, axis=-1)
        k, v = split_heads(k, self.heads), split_heads(v, self.heads)
        sim = ops.matmul(q, k.swapaxes(-2, -1))

        text_time = ops.cumsum(is_clip.astype(ms.int32), 1).expand_dims(1).expand_dims(-1)
        media_time = Tensor(np.repeat(np.arange(clips) + 1, lat), ms.int32)
        sim = ops.masked_fill(sim, text_time != media_time, -3.4e38)
        attn = ops.softmax(sim, axis=-1)
        attn = ops.masked_fill(attn, text_time == 0, 0.0)       # nothing seen yet
        return self.to_out(merge_heads(ops.matmul(attn, v)))

    def construct(self, x, media, is_clip):
        x = x + ops.tanh(self.attn_gate) * self.attend(self.norm(x), media, is_clip)
        return x + ops.tanh(self.ff_gate) * self.ff(self.ff_norm(x))


class DecoderLayer(nn.Cell):
    def __init__(self, dim, heads, dim_media=None, x_heads=2, x_dim_head=9):
        super().__init__()
        self.has_cross = dim_media is not None
        if self.has_cross:
            self.cross = GatedCrossAttention(dim, dim_media, x_heads, x_dim_head)
        self.ln_1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.attn = SelfAttention(dim, heads)
        self.ln_2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.mlp = FeedForward(dim, 3 * dim, nn.GELU(approximate=True))

    def construct(self, x, bias, media=None, is_clip=None):
        if self.has_cross:
            x = self.cross(x, media, is_clip)
        x = x + self.attn(self.ln_1(x), bias)
        return x + self.mlp(self.ln_2(x))


class CaptionDecoder(nn.Cell):
    def __init__(self, vocab, dim, heads, dim_media, uni_depth=1, multi_depth=2, max_len=24):
        super().__init__()
        self.pos_offset = 2
        self.word_embedding = nn.Embedding(vocab, dim)
        self.position_embedding = nn.Embedding(max_len + self.pos_offset, dim)
        self.type_embedding = nn.Embedding(2, dim)
        self.unimodal = nn.CellList([DecoderLayer(dim, heads) for _ in range(uni_depth)])
        self.multimodal = nn.CellList([DecoderLayer(dim, heads, dim_media) for _ in range(multi_depth)])
        self.text_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.final_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.out_bias = new_param((vocab,), "out_bias", "zeros")
        self.logit_scale = dim ** -0.5

    @staticmethod
    def attention_bias(types, attn_mask):
        """0 where a position may look, -1e4 elsewhere."""
        b, n = types.shape
        causal = Tensor(np.tril(np.ones((1, n, n), np.bool_)))
        is_prompt = types == 0
        prompt = ops.logical_and(is_prompt.expand_dims(2), is_prompt.expand_dims(1))
        allowed = ops.logical_or(causal, prompt)
        allowed = ops.logical_and(allowed, attn_mask.expand_dims(1) == 1)
        return ((1.0 - allowed.astype(ms.float32)) * -1e4).expand_dims(1)

    def embed(self, ids, types, attn_mask):
        pos = ops.cumsum(attn_mask, 1) - 1
        pos = ops.clamp(pos, min=0) + self.pos_offset
        return self.word_embedding(ids) + self.position_embedding(pos) + self.type_embedding(types)

    def construct(self, ids, types, attn_mask, media):
        b, n = ids.shape
        x = self.embed(ids, types, attn_mask)
        bias = self.attention_bias(types, attn_mask)
        for layer in self.unimodal:
            x = layer(x, bias)
        last = ops.argmax(attn_mask * ops.arange(n), dim=1)
        sentence = self.text_norm(x)[ops.arange(b), last]

        is_clip = ids == CLIP_ID
        for layer in self.multimodal:
            x = layer(x, bias, media, is_clip)
        x = self.final_norm(x)
        table = self.word_embedding.embedding_table
        logits = ops.matmul(x, table.T) * self.logit_scale + self.out_bias
        return logits, sentence


# --------------------------------------------------------------------------- the net


class VideoCaptioner(nn.Cell):
    def __init__(self, vocab=53, dim_v=36, dim_t=40, dim_e=28, smoothing=0.1, alpha=0.7):
        super().__init__()
        self.smoothing, self.alpha = smoothing, alpha
        self.stem = MotionStem(3, 14)
        self.tubelets = TubeletEmbedding(14, dim_v)
        self.encoder = nn.CellList([SpaceTimeBlock(dim_v, 3, 7) for _ in range(2)])
        self.resampler = PerceiverResampler(dim_v, 2, 2, 11, 4, 3)
        self.pooling = AttentionPooling(dim_v, 4, dim_e)
        self.decoder = CaptionDecoder(vocab, dim_t, 5, dim_v)
        self.text_projection = new_param((dim_t, dim_e), "text_projection")
        self.temperature = Parameter(Tensor(0.0, ms.float32), name="temperature")

    def encode_video(self, video, frame_mask, start, step):
        b, clips, t, c, h, w = video.shape
        flat_mask = frame_mask.reshape(b * clips, t)
        x = self.stem(video.reshape(b * clips, t, c, h, w), flat_mask)
        x, mask, grid = self.tubelets(x, flat_mask, start.reshape(-1), step.reshape(-1))
        for block in self.encoder:
            x = block(x, mask, grid)
        s, _ = grid
        patch_mask = ops.tile(mask, (1, s))
        cls_mask = ops.ones((b * clips, 1), mask.dtype)
        token_mask = ops.cat((cls_mask, patch_mask), axis=1)
        return x.reshape(b, clips, x.shape[1], x.shape[2]), token_mask.reshape(b, clips, -1)

    def similarity(self, tokens, token_mask, sentence):
        b, clips, n, d = tokens.shape
        video_e = self.pooling(tokens.reshape(b, clips * n, d), token_mask.reshape(b, clips * n))
        video_e = l2_normalize(video_e)
        text_e = l2_normalize(ops.matmul(sentence, self.text_projection))
        scale = ops.clamp(ops.exp(self.temperature), max=100.0)
        return scale * ops.matmul(video_e, text_e.T)

    @staticmethod
    def contrastive_loss(sim):
        rows = ops.log_softmax(sim, axis=1)
        cols = ops.log_softmax(sim, axis=0)
        eye = ops.eye(sim.shape[0], sim.shape[0], sim.dtype)
        return -0.5 * ((rows + cols) * eye).sum() / sim.shape[0]

    def caption_loss(self, logits, ids, types, attn_mask):
        target = ids[:, 1:]
        keep = ops.logical_and(types[:, 1:] == 1, attn_mask[:, 1:] == 1)
        keep = ops.logical_and(keep, target != CLIP_ID).astype(ms.float32)
        logp = ops.log_softmax(logits[:, :-1], axis=-1)
        picked = ops.gather_elements(logp, 2, target.expand_dims(-1)).squeeze(-1)
        length = keep.sum(axis=1)
        penalty = ops.pow((5.0 + length) / 6.0, self.alpha)
        score = (picked * keep).sum(axis=1) / penalty
        smooth = (1.0 - self.smoothing) * picked + self.smoothing * logp.mean(axis=-1)
        return score, -(smooth * keep).sum() / keep.sum()

    def construct(self, video, frame_mask, start, step, ids, types, attn_mask):
        tokens, token_mask = self.encode_video(video, frame_mask, start, step)
        media = self.resampler(tokens, token_mask)
        logits, sentence = self.decoder(ids, types, attn_mask, media)
        sim = self.similarity(tokens, token_mask, sentence)
        score, caption = self.caption_loss(logits, ids, types, attn_mask)
        loss = self.contrastive_loss(sim) + 2.0 * caption
        return logits * attn_mask.expand_dims(-1), sim, score, loss


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
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    net = VideoCaptioner()
    net.set_train(False)
    return net, tuple(Tensor(a) for a in make_inputs())
