"""The byte-level language model of two scales in MindSpore: a global and a local transformer."""

from __future__ import annotations

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

PAD_ID = 256
EOS_ID = 257
VOCAB_SIZE = 258

LOGIT_CAP = 20.0
Z_LOSS_WEIGHT = 1e-4
ROPE_BASE = 10000.0
LOWEST = float(np.finfo(np.float32).min)


def zeros_parameter(shape, name):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


def number_documents(ids):
    """Which document of its stream a token is in. The end token closes its document, so it still counts to it."""
    is_eos = (ids == EOS_ID).astype(ms.int32)
    return ops.cumsum(is_eos, 1) - is_eos


def causal_mask(length):
    """(1, 1, length, length), true where a query may look."""
    return Tensor(np.tril(np.ones((1, 1, length, length), bool)))


def packed_mask(doc):
    """The causal mask of a packed sequence; doc is (batch, length)."""
    same = doc.expand_dims(2) == doc.expand_dims(1)
    return ops.logical_and(same.expand_dims(1), causal_mask(doc.shape[1]))


def dot_product_attention(query, key, value, mask=None):
    logits = ops.matmul(query, key.swapaxes(-1, -2)) * (query.shape[-1] ** -0.5)
    if mask is not None:
        logits = ops.select(ops.broadcast_to(mask, logits.shape), logits, ops.full_like(logits, LOWEST))
    return ops.matmul(ops.softmax(logits, axis=-1), value)


def rope_tables(start, length, rotary_dim):
    """Cosines and sines of so many positions from start on, for each pair of channels."""
    inverse = np.power(ROPE_BASE, -np.arange(0, rotary_dim, 2) / rotary_dim)
    angles = np.arange(start, start + length)[:, None] * inverse[None, :]
    return Tensor(np.cos(angles).astype(np.float32)), Tensor(np.sin(angles).astype(np.float32))


def rotate(x, tables):
    """Rotary positions on the first channels of each head, in neighbouring pairs."""
    cos, sin = tables
    b, heads, length, _ = x.shape
    rotary_dim = 2 * cos.shape[-1]
    pairs = x[..., :rotary_dim].reshape(b, heads, length, -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    turned = ops.stack((first * cos - second * sin, second * cos + first * sin), axis=-1)
    return ops.cat((turned.reshape(b, heads, length, -1), x[..., rotary_dim:]), axis=-1)


class RMSNorm(nn.Cell):
    def __init__(self, width, epsilon=1e-6):
        super().__init__()
        self.epsilon = epsilon
        self.weight = Parameter(Tensor(np.ones(width, np.float32)), name="weight")

    def construct(self, x):
        mean_square = ops.mean(ops.square(x), -1, keep_dims=True)
        return x * ops.rsqrt(mean_square + self.epsilon) * self.weight


class PatchEmbedding(nn.Cell):
    """Embeds the bytes of a patch, mixes them with a short causal convolution, and projects them to one vector."""

    def __init__(self, patch_size, byte_width, width, kernel=4, groups=4):
        super().__init__()
        self.embed = nn.Embedding(VOCAB_SIZE, byte_width)
        self.norm = nn.LayerNorm((byte_width,), epsilon=1e-5)
        self.conv = nn.Conv1d(byte_width, byte_width, kernel, pad_mode="pad", padding=kernel - 1, group=groups,
                              has_bias=True)
        self.act = nn.SiLU()
        self.proj = nn.Dense(patch_size * byte_width, width)
        self.start = zeros_parameter((width,), "start")

    def construct(self, patches, visible):
        b, n, p = patches.shape
        x = self.norm(self.embed(patches))
        x = ops.masked_fill(x, ops.logical_not(visible).expand_dims(-1), 0.0)
        x = x.reshape(b * n, p, -1).swapaxes(1, 2)
        x = x + self.act(self.conv(x)[:, :, :p])
        x = self.proj(x.swapaxes(1, 2).reshape(b, n, -1))
        some = visible.astype(ms.float32).max(axis=-1, keepdims=True)
        return x * some + self.start * (1.0 - some)


class GroupedQueryAttention(nn.Cell):
    """Several heads of queries share one head of keys and values."""

    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_width = width // heads
        self.q_proj = nn.Dense(width, heads * self.head_width, has_bias=False)
        self.k_proj = nn.Dense(width, kv_heads * self.head_width, has_bias=False)
        self.v_proj = nn.Dense(width, kv_heads * self.head_width, has_bias=False)
        self.o_proj = nn.Dense(heads * self.head_width, width, has_bias=False)
        self.q_norm = RMSNorm(self.head_width)
        self.k_norm = RMSNorm(self.head_width)

    def split(self, x, heads):
        return x.reshape(x.shape[0], x.shape[1], heads, self.head_width).transpose(0, 2, 1, 3)

    def share(self, x):
        """Each head of keys or values as often as there are query heads for it."""
        b, _, length, c = x.shape
        repeats = self.heads // self.kv_heads
        x = ops.tile(x.expand_dims(2), (1, 1, repeats, 1, 1))
        return x.reshape(b, self.heads, length, c)

    def construct(self, x, tables, mask, past):
        b, length, _ = x.shape
        query = rotate(self.q_norm(self.split(self.q_proj(x), self.heads)), tables)
        key = rotate(self.k_norm(self.split(self.k_proj(x), self.kv_heads)), tables)
        value = self.split(self.v_proj(x), self.kv_heads)
        if past is not None:
            key, value = ops.cat((past[0], key), axis=2), ops.cat((past[1], value), axis=2)
        out = dot_product_attention(query, self.share(key), self.share(value), mask)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(b, length, -1)), (key, value)


class SwiGLU(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.hidden = hidden
        self.w_in = nn.Dense(width, 2 * hidden, has_bias=False)
        self.act = nn.SiLU()
        self.w_out = nn.Dense(hidden, width, has_bias=False)

    def construct(self, x):
        gate, value = ops.split(self.w_in(x), self.hidden, axis=-1)
        return self.w_out(self.act(gate) * value)


class GlobalLayer(nn.Cell):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.attn_norm = RMSNorm(width)
        self.attn = GroupedQueryAttention(width, heads, kv_heads)
        self.ffn_norm = RMSNorm(width)
        self.ffn = SwiGLU(width, hidden)

    def construct(self, x, tables, mask, past):
        attended, present = self.attn(self.attn_norm(x), tables, mask, past)
        x = x + attended
        x = x + self.ffn(self.ffn_norm(x))
        return x, present


class GlobalTransformer(nn.Cell):
    """One state for each slot; slot i is given patch i - 1."""

    def __init__(self, patch_size, byte_width, width, depth, heads, kv_heads, hidden, rotary_dim):
        super().__init__()
        self.rotary_dim = rotary_dim
        self.encoder = PatchEmbedding(patch_size, byte_width, width)
        self.layers = nn.CellList([GlobalLayer(width, heads, kv_heads, hidden) for _ in range(depth)])
        self.norm = RMSNorm(width)

    def construct(self, patches, visible, mask=None, past=None):
        x = self.encoder(patches, visible)
        seen = past[0][0].shape[2] if past is not None else 0
        tables = rope_tables(seen, x.shape[1], self.rotary_dim)
        past = past or [None] * len(self.layers)
        present = []
        for layer, layer_past in zip(self.layers, past):
            x, kept = layer(x, tables, mask, layer_past)
            present.append(kept)
        return self.norm(x), present


class LocalLayer(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.qkv = nn.Dense(width, 3 * width)
        self.proj = nn.Dense(width, width)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.mlp = nn.SequentialCell(nn.Dense(width, 4 * width), nn.GELU(approximate=False), nn.Dense(4 * width, width))

    def construct(self, x, mask, past):
        b, length, width = x.shape
        query, key, value = (
            part.reshape(b, length, self.heads, width // self.heads).swapaxes(1, 2)
            for part in ops.chunk(self.qkv(self.norm1(x)), 3, axis=-1)
        )
        if past is not None:
            key, value = ops.cat((past[0], key), axis=2), ops.cat((past[1], value), axis=2)
        out = dot_product_attention(query, key, value, mask)
        x = x + self.proj(out.swapaxes(1, 2).reshape(b, length, width))
        x = x + self.mlp(self.norm2(x))
        return x, (key, value)


class LocalTransformer(nn.Cell):
    """Logits of the bytes of one patch from the bytes before them in it and the context of the patch."""

    def __init__(self, patch_size, width, depth, heads):
        super().__init__()
        self.embed = nn.Embedding(VOCAB_SIZE, width)
        self.start = zeros_parameter((width,), "start")
        self.places = zeros_parameter((patch_size, width), "places")
        self.layers = nn.CellList([LocalLayer(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.head = nn.Dense(width, VOCAB_SIZE)

    def begin(self, count):
        """The start vector, which stands before the first byte of each of so many patches."""
        return ops.tile(self.start.reshape(1, 1, -1), (count, 1, 1))

    def construct(self, x, context, mask=None, first=0, past=None):
        last = first + x.shape[1]
        x = x + context + self.places[first:last]
        past = past or [None] * len(self.layers)
        present = []
        for layer, layer_past in zip(self.layers, past):
            x, kept = layer(x, mask, layer_past)
            present.append(kept)
        logits = self.head(self.norm(x))
        return ops.tanh(logits / LOGIT_CAP) * LOGIT_CAP, present


class TwoScaleByteLM(nn.Cell):
    """Streams of packed documents and prompts to logits, losses, and greedy continuations."""

    def __init__(self, patch_size=6, width=96, depth=3, heads=6, kv_heads=2, hidden=192, rotary_dim=8, byte_width=16,
                 local_width=48, local_depth=2, local_heads=4, max_documents=4, new_bytes=10):
        super().__init__()
        self.patch_size = patch_size
        self.local_width = local_width
        self.max_documents = max_documents
        self.new_bytes = new_bytes
        self.global_model = GlobalTransformer(patch_size, byte_width, width, depth, heads, kv_heads, hidden, rotary_dim)
        self.to_local = nn.Dense(width, patch_size * local_width)
        self.local_model = LocalTransformer(patch_size, local_width, local_depth, local_heads)

    def expand(self, states):
        """A state per patch to a context per byte: (patches, patch size, local width)."""
        return self.to_local(states).reshape(-1, self.patch_size, self.local_width)

    def teacher_forced(self, ids, doc):
        batch, length = ids.shape
        size = self.patch_size
        patches = ids.reshape(batch, -1, size)
        patch_doc = doc.reshape(batch, -1, size)
        slot_doc = patch_doc[:, :, 0]

        # the slots are given the patches one later; what is not of the slot's document is hidden
        empty = ops.full((batch, 1, size), PAD_ID, dtype=ids.dtype)
        shifted = ops.cat((empty, patches[:, :-1]), axis=1)
        shifted_doc = ops.cat((ops.full_like(patch_doc[:, :1], -1), patch_doc[:, :-1]), axis=1)
        visible = shifted_doc == slot_doc.expand_dims(2)
        states, _ = self.global_model(shifted, visible, packed_mask(slot_doc))

        # the state knows nothing of documents that begin inside of the patch
        flat_doc = patch_doc.reshape(-1, size)
        context = self.expand(states)
        context = context * (flat_doc == flat_doc[:, :1]).astype(context.dtype).expand_dims(2)

        embedded = self.local_model.embed(ids.reshape(-1, size))
        before = ops.cat((self.local_model.begin(embedded.shape[0]), embedded[:, :-1]), axis=1)
        logits, _ = self.local_model(before, context, packed_mask(flat_doc))
        return logits.reshape(batch, length, VOCAB_SIZE)

    def losses(self, logits, ids, doc):
        """Bits per byte, the squared log partition, the loss for training, and the bits per byte of each document."""
        valid = (ids != PAD_ID).astype(logits.dtype)
        text = (ids < 256).astype(logits.dtype)
        log_partition = ops.logsumexp(logits, -1)
        picked = ops.gather_elements(logits, 2, ids.expand_dims(2)).squeeze(2)
        nats = (log_partition - picked) * valid
        bits = nats / math.log(2)

        bits_per_byte = bits.sum() / text.sum()
        z = (ops.square(log_partition) * valid).sum() / valid.sum()
        loss = nats.sum() / valid.sum() + Z_LOSS_WEIGHT * z

        belongs = (doc.expand_dims(2) == ops.arange(self.max_documents)).astype(logits.dtype)
        doc_bits = (bits.expand_dims(2) * belongs).sum(axis=1)
        doc_bytes = (text.expand_dims(2) * belongs).sum(axis=1)
        return bits_per_byte, z, loss, doc_bits / ops.maximum(doc_bytes, Tensor(1.0, ms.float32))

    def generate(self, prompt):
        """Greedy decoding; keys and values of both models are kept from step to step."""
        batch, length = prompt.shape
        size = self.patch_size
        whole = length // size
        local = self.local_model

        empty = ops.full((batch, 1, size), PAD_ID, dtype=prompt.dtype)
        patches = ops.cat((empty, prompt[:, : whole * size].reshape(batch, whole, size)), axis=1)
        states, global_past = self.global_model(patches, patches != PAD_ID, causal_mask(whole + 1))
        context = self.expand(states[:, -1])

        tail = [prompt[:, i] for i in range(whole * size, length)]
        before = local.begin(batch)
        if tail:
            before = ops.cat((before, local.embed(ops.stack(tail, axis=1))), axis=1)
        rows = before.shape[1]
        logits, local_past = local(before, context[:, :rows], causal_mask(rows))

        banned = Tensor(np.where(np.arange(VOCAB_SIZE) == PAD_ID, -np.inf, 0.0).astype(np.float32))
        finished = ops.zeros((batch,), ms.bool_)
        log_likelihood = ops.zeros((batch,), ms.float32)
        produced, trace = [], []
        while True:
            scores = logits[:, -1]
            trace.append(scores)
            scores = scores + banned
            best = scores.argmax(axis=-1).astype(prompt.dtype)
            gained = scores.max(axis=-1) - ops.logsumexp(scores, -1)
            log_likelihood = log_likelihood + gained * ops.logical_not(finished).astype(ms.float32)
            best = ops.masked_fill(best, finished, PAD_ID)
            finished = ops.logical_or(finished, best == EOS_ID)
            produced.append(best)
            if len(produced) == self.new_bytes:
                break

            tail.append(best)
            if len(tail) == size:
                patch = ops.stack(tail, axis=1).expand_dims(1)
                states, global_past = self.global_model(patch, ops.ones_like(patch).astype(ms.bool_), past=global_past)
                context = self.expand(states[:, -1])
                tail, local_past = [], None
                before = local.begin(batch)
            else:
                before = local.embed(best.expand_dims(1))
            at = len(tail)
            logits, local_past = local(before, context[:, at : at + 1], first=at, past=local_past)
        return ops.stack(produced, axis=1), ops.stack(trace, axis=1), log_likelihood

    def construct(self, ids, prompt):
        batch, length = ids.shape
        rest = -length % self.patch_size
        if rest:
            ids = ops.cat((ids, ops.full((batch, rest), PAD_ID, dtype=ids.dtype)), axis=1)
        doc = number_documents(ids)
        logits = self.teacher_forced(ids, doc)
        bits_per_byte, z, loss, document_bits = self.losses(logits, ids, doc)
        produced, trace, log_likelihood = self.generate(prompt)
        return logits[:, :length], bits_per_byte, z, loss, document_bits, produced, trace, log_likelihood


def pack(texts, length):
    """Documents one after another with end tokens between, filled up with padding."""
    packed = np.full(length, PAD_ID, np.int64)
    ids = list(texts[0].encode("utf-8"))
    for text in texts[1:]:
        ids += [EOS_ID, *text.encode("utf-8")]
    ids = ids[:length]
    packed[: len(ids)] = ids
    return packed


def build():
    """The net for evaluation, three packed streams, and two prompts."""
    net = TwoScaleByteLM()
    net.set_train(False)
    streams = [
        ["Two birds", "sat on a wall", "one was named Peter."],
        ["Rain on the café", "fell all day."],
        ["Over the hills and far away,", "Tom he was a piper's son."],
    ]
    prompts = [list("The quick brown".encode()), list("A stitch in tim".encode())]
    return net, (Tensor(np.stack([pack(texts, 45) for texts in streams])), Tensor(np.array(prompts, np.int64)))
