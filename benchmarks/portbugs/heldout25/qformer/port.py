"""The querying transformer with its vision tower in MindSpore: contrast, matching, captions, greedy decoding."""

import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

PAD, EOS, BOS = 0, 2, 3
PROMPT = (BOS, 11, 27)
CUBIC_A = -0.75
MASKED = -1e9


def param(*shape, name, train=True, dtype=np.float32):
    return Parameter(Tensor(np.zeros(shape, dtype)), name=name, requires_grad=train)


def cubic_matrix(size_in, size_out, a=CUBIC_A):
    """(size_out, size_in): one axis of a bicubic resizing with half-pixel centres, edges repeated."""
    matrix = np.zeros((size_out, size_in))
    for row in range(size_out):
        centre = (row + 0.5) * size_in / size_out - 0.5
        for tap in range(int(np.floor(centre)) - 1, int(np.floor(centre)) + 3):
            x = abs(centre - tap)
            near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
            matrix[row, min(max(tap, 0), size_in - 1)] += near if x <= 1 else far
    return Tensor(matrix.astype(np.float32))


class ConvStem(nn.Cell):
    def __init__(self, mid, width):
        super().__init__()
        self.conv = nn.Conv2d(3, mid, 3, stride=2, pad_mode="pad", padding=1, has_bias=False)
        self.norm = nn.GroupNorm(7, mid, eps=1e-5)
        self.proj = nn.Conv2d(mid, width, 4, stride=4, pad_mode="valid", has_bias=True)

    def construct(self, images):
        return self.proj(ops.relu(self.norm(self.conv(images))))


class Attention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.qkv = nn.Dense(width, 3 * width, has_bias=False)
        self.q_bias = param(width, name="q_bias")
        self.v_bias = param(width, name="v_bias")
        self.proj = nn.Dense(width, width)

    def construct(self, x, blocked):
        batch, tokens, width = x.shape
        bias = ops.cat((self.q_bias, ops.zeros_like(self.q_bias), self.v_bias))
        qkv = (self.qkv(x) + bias).reshape(batch, tokens, 3, self.heads, self.head_dim)
        query, key, value = (qkv[:, :, i].swapaxes(1, 2) for i in range(3))
        logits = ops.matmul(query, key.swapaxes(2, 3)) / self.head_dim**0.5
        logits = ops.masked_fill(logits, blocked.reshape(batch, 1, 1, tokens), MASKED)
        mixed = ops.matmul(ops.softmax(logits, axis=-1), value)
        return self.proj(mixed.swapaxes(1, 2).reshape(batch, tokens, width))


class Mlp(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.fc1 = nn.Dense(width, hidden)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(hidden, width)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Cell):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-6)
        self.mlp = Mlp(width, hidden)
        self.gamma_1 = param(width, name="gamma_1")
        self.gamma_2 = param(width, name="gamma_2")

    def construct(self, x, blocked):
        x = x + self.attn(self.norm1(x), blocked) * self.gamma_1
        return x + self.mlp(self.norm2(x)) * self.gamma_2


class LocalPosition(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, pad_mode="pad", padding=2, dilation=2, group=width, has_bias=True)

    def construct(self, x, rows, cols, blocked):
        batch, _, width = x.shape
        kept = ops.masked_fill(x[:, 1:], blocked[:, 1:].expand_dims(-1), 0.0)
        grid = kept.reshape(batch, rows, cols, width).transpose(0, 3, 1, 2)
        local = self.conv(grid).transpose(0, 2, 3, 1).reshape(batch, rows * cols, width)
        return ops.cat((x[:, :1], x[:, 1:] + local), axis=1)


class VisionTower(nn.Cell):
    def __init__(self, width, heads, depth, hidden, patch, trained):
        super().__init__()
        self.patch, self.trained = patch, trained
        self.stem = ConvStem(14, width)
        self.cls_token = param(1, 1, width, name="cls_token")
        self.pos_embed = param(1, 1 + trained[0] * trained[1], width, name="pos_embed")
        self.blocks = nn.CellList([Block(width, heads, hidden) for _ in range(depth)])
        self.local_pos = LocalPosition(width)

    def positions(self, rows, cols):
        if (rows, cols) == self.trained:
            return self.pos_embed
        width = self.pos_embed.shape[-1]
        table = self.pos_embed[0, 1:].reshape(self.trained[0], self.trained[1] * width)
        table = ops.matmul(cubic_matrix(self.trained[0], rows), table).reshape(rows, self.trained[1], width)
        table = ops.matmul(cubic_matrix(self.trained[1], cols), table).reshape(1, rows * cols, width)
        return ops.cat((self.pos_embed[:, :1], table), axis=1)

    def padding_mask(self, sizes, rows, cols):
        below = (ops.arange(rows) * self.patch).reshape(1, rows, 1) >= sizes[:, 0].reshape(-1, 1, 1)
        right = (ops.arange(cols) * self.patch).reshape(1, 1, cols) >= sizes[:, 1].reshape(-1, 1, 1)
        outside = ops.logical_or(below, right).reshape(-1, rows * cols)
        return ops.cat((ops.zeros((outside.shape[0], 1), ms.bool_), outside), axis=1)

    def construct(self, images, sizes):
        fmap = self.stem(images)
        batch, width, rows, cols = fmap.shape
        patches = fmap.reshape(batch, width, rows * cols).swapaxes(1, 2)
        x = ops.cat((ops.tile(self.cls_token, (batch, 1, 1)), patches), axis=1) + self.positions(rows, cols)
        blocked = self.padding_mask(sizes, rows, cols)
        x = self.blocks[0](x, blocked)
        x = self.local_pos(x, rows, cols, blocked)
        for block in self.blocks[1:]:
            x = block(x, blocked)
        return x, blocked


def query_text_blocked(mode, nq, words, cached=0):
    """True where a row must not look. words is the text's mask, (batch, words); cached keys come first."""
    batch, nw = words.shape
    text_at = cached + nq
    table = np.zeros((nq + nw, text_at + nw), bool)
    if mode in ("causal", "separated"):
        table[:nq, text_at:] = True
    if mode == "separated":
        table[nq:, :text_at] = True
    if mode == "causal":
        table[nq:, text_at:] = np.triu(np.ones((nw, nw), bool), 1)
    padded = ops.cat((ops.zeros((batch, text_at), ms.bool_), words == 0), axis=1)
    return ops.logical_or(Tensor(table).expand_dims(0), padded.expand_dims(1))


class Embeddings(nn.Cell):
    def __init__(self, vocab, places, width):
        super().__init__()
        self.word = nn.Embedding(vocab, width, padding_idx=PAD)
        self.position = nn.Embedding(places, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-12)

    def construct(self, queries, ids, start):
        if ids is None:
            return self.norm(queries)
        words = self.word(ids) + self.position(ops.arange(start, start + ids.shape[1]))
        return self.norm(words if queries is None else ops.cat((queries, words), axis=1))


class MultiHead(nn.Cell):
    def __init__(self, width, heads, source_width):
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.query = nn.Dense(width, width)
        self.key = nn.Dense(source_width, width)
        self.value = nn.Dense(source_width, width)
        self.dense = nn.Dense(width, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-12)

    def heads_first(self, x):
        return x.reshape(x.shape[0], -1, self.heads, self.head_dim).swapaxes(1, 2)

    def construct(self, x, source, blocked, cache=None):
        query = self.heads_first(self.query(x))
        key, value = self.heads_first(self.key(source)), self.heads_first(self.value(source))
        if cache is not None:
            key, value = ops.cat((cache[0], key), axis=2), ops.cat((cache[1], value), axis=2)
        logits = ops.matmul(query, key.swapaxes(2, 3)) * self.head_dim**-0.5
        logits = logits.masked_fill(blocked.expand_dims(1), MASKED)
        mixed = ops.matmul(ops.softmax(logits, axis=-1), value).swapaxes(1, 2)
        return self.norm(self.dense(mixed.reshape(x.shape)) + x), (key, value)


class FeedForward(nn.Cell):
    def __init__(self, width, hidden):
        super().__init__()
        self.dense_in = nn.Dense(width, hidden)
        self.dense_out = nn.Dense(hidden, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-12)

    def construct(self, x):
        return self.norm(x + self.dense_out(ops.gelu(self.dense_in(x), approximate="none")))


class Layer(nn.Cell):
    def __init__(self, width, heads, hidden, image_width, cross):
        super().__init__()
        self.cross = cross
        self.attention = MultiHead(width, heads, width)
        if cross:
            self.crossattention = MultiHead(width, heads, image_width)
        self.ffn_text = FeedForward(width, hidden)
        self.ffn_query = FeedForward(width, hidden)

    def construct(self, x, blocked, nq, image, image_blocked, cache):
        x, kept = self.attention(x, x, blocked, cache)
        q, outs = x[:, :nq], []
        if self.cross and nq > 0:
            q, _ = self.crossattention(q, image, image_blocked.expand_dims(1))
        if nq > 0:
            outs.append(self.ffn_query(q))
        if x.shape[1] > nq:
            outs.append(self.ffn_text(x[:, nq:]))
        return ops.cat(outs, axis=1), kept


class QFormer(nn.Cell):
    def __init__(self, width, heads, depth, hidden, image_width, vocab, places, nq):
        super().__init__()
        self.nq = nq
        self.embeddings = Embeddings(vocab, places, width)
        self.layers = nn.CellList([Layer(width, heads, hidden, image_width, i % 2 == 0) for i in range(depth)])

    def construct(self, mode, queries=None, ids=None, words=None, image=None, image_blocked=None, cache=None):
        cached = cache[0][0].shape[2] if cache is not None else 0
        start = cached - self.nq if cached else 0
        x = self.embeddings(queries, ids, start)
        nq = queries.shape[1] if queries is not None else 0
        if ids is None:
            blocked = ops.zeros((x.shape[0], nq, nq), ms.bool_)
        else:
            blocked = query_text_blocked(mode, nq, ops.ones_like(ids) if words is None else words, cached)
        new_cache = []
        for i, layer in enumerate(self.layers):
            x, kept = layer(x, blocked, nq, image, image_blocked, cache[i] if cache is not None else None)
            new_cache.append(kept)
        return x, new_cache


class LMHead(nn.Cell):
    def __init__(self, width, vocab):
        super().__init__()
        self.dense = nn.Dense(width, width)
        self.act = nn.GELU(approximate=False)
        self.norm = nn.LayerNorm((width,), epsilon=1e-12)
        self.bias = param(vocab, name="bias")

    def construct(self, x, table):
        return ops.matmul(self.norm(self.act(self.dense(x))), table.T) + self.bias


def punish_repeats(logits, ids, penalty):
    occurred = ops.one_hot(ids.astype(ms.int32), logits.shape[-1]).sum(axis=1) > 0
    return ops.where(occurred, ops.where(logits > 0, logits / penalty, logits * penalty), logits)


class Blip2(nn.Cell):
    def __init__(self, width=40, image_width=36, nq=6, vocab=53, embed=20, queue=13):
        super().__init__()
        self.nq = nq
        self.visual = VisionTower(image_width, heads=3, depth=3, hidden=90, patch=8, trained=(4, 6))
        self.ln_vision = nn.LayerNorm((image_width,), epsilon=1e-5)
        self.query_tokens = param(1, nq, width, name="query_tokens")
        self.qformer = QFormer(width, 5, 4, 72, image_width, vocab, 24, nq)
        self.lm_head = LMHead(width, vocab)
        self.vision_proj = nn.Dense(width, embed)
        self.text_proj = nn.Dense(width, embed)
        self.itm_head = nn.Dense(width, 2)
        self.temp = Parameter(Tensor(0.07, ms.float32), name="temp")
        self.image_queue = param(queue, nq, embed, name="image_queue", train=False)
        self.text_queue = param(queue, embed, name="text_queue", train=False)
        self.queue_ids = param(queue, name="queue_ids", train=False, dtype=np.int64)

    def itc(self, seen, ids, words, image_ids):
        queries, image, blocked = seen
        x, _ = self.qformer("separated", queries, ids, words, image, blocked)
        img = ops.L2Normalize(axis=-1, epsilon=1e-12)(self.vision_proj(x[:, : self.nq]))
        txt = ops.L2Normalize(axis=-1, epsilon=1e-12)(self.text_proj(x[:, self.nq]))
        temperature = ops.clamp(self.temp, 0.001, 0.5)
        all_txt = ops.cat((txt, self.text_queue))
        i2t = ops.matmul(img, all_txt.T).max(axis=1) / temperature
        flat = ops.matmul(txt, ops.cat((img, self.image_queue)).reshape(-1, txt.shape[-1]).T)
        t2i = flat.reshape(txt.shape[0], -1, self.nq).max(axis=2) / temperature
        all_ids = ops.cat((image_ids.astype(ms.int64), self.queue_ids))
        positive = (image_ids.expand_dims(1) == all_ids.expand_dims(0)).astype(ms.float32)
        positive = positive / positive.sum(axis=1, keepdims=True)
        loss = 0.0
        for sim in (i2t, t2i):
            loss = loss - (ops.log_softmax(sim, axis=1) * positive).sum(axis=1).mean()
        return i2t, t2i, loss / 2

    def hardest(self, sim, image_ids):
        """For each row the most similar one of the batch that belongs to another image."""
        prob = ops.softmax(sim[:, : sim.shape[0]], axis=1)
        same = image_ids.expand_dims(1) == image_ids.expand_dims(0)
        return prob.masked_fill(same, 0.0).argmax(axis=1)

    def itm(self, seen, ids, words, image_ids, i2t, t2i):
        queries, image, blocked = seen
        other_image = self.hardest(t2i, image_ids)
        other_text = self.hardest(i2t, image_ids)
        image = ops.cat((image, image[other_image], image))
        blocked = ops.cat((blocked, blocked[other_image], blocked))
        ids = ops.cat((ids, ids, ids[other_text]))
        words = ops.cat((words, words, words[other_text]))
        x, _ = self.qformer("bidirectional", ops.tile(queries, (3, 1, 1)), ids, words, image, blocked)
        logits = self.itm_head(x[:, : self.nq].mean(axis=1))
        truth = Tensor(np.repeat([1, 0, 0], queries.shape[0]).astype(np.int32))
        return logits, ops.cross_entropy(logits, truth)

    def captioning(self, seen, ids, words, smoothing=0.1):
        queries, image, blocked = seen
        ids = ops.cat((ops.full_like(ids[:, :1], BOS), ids[:, 1:]), axis=1)
        x, _ = self.qformer("causal", queries, ids, words, image, blocked)
        logits = self.lm_head(x[:, self.nq :], self.qformer.embeddings.word.embedding_table)
        logp = ops.log_softmax(logits[:, :-1], axis=-1)
        hit = -ops.gather_elements(logp, 2, ids[:, 1:].expand_dims(-1)).squeeze(-1)
        every = -logp.mean(axis=-1)
        keep = words[:, 1:].astype(ms.float32)
        loss = ((1 - smoothing) * hit + smoothing * every) * keep
        return loss.sum(axis=1) / keep.sum(axis=1), logits

    def greedy(self, seen, steps=5, min_steps=2, penalty=1.4, length_penalty=0.8):
        queries, image, blocked = seen
        n = queries.shape[0]
        table = self.qformer.embeddings.word.embedding_table
        _, cache = self.qformer("causal", queries, image=image, image_blocked=blocked)
        fresh = ids = ops.tile(Tensor([PROMPT], ms.int64), (n, 1))
        alive = ops.ones((n,), ms.float32)
        total, length, trace = ops.zeros((n,), ms.float32), ops.zeros((n,), ms.float32), []
        forbid = Tensor(np.where(np.arange(table.shape[0]) == EOS, -1e9, 0.0).astype(np.float32))
        for step in range(steps):
            x, cache = self.qformer("causal", ids=fresh, cache=cache)
            logits = self.lm_head(x[:, -1], table)
            trace.append(logits)
            scores = punish_repeats(logits, ids, penalty)
            if step < min_steps:
                scores = scores + forbid
            logp = ops.log_softmax(scores, axis=-1)
            word = logp.argmax(axis=-1)
            total, length = total + logp.max(axis=-1) * alive, length + alive
            word = ops.where(alive > 0, word, ops.full_like(word, PAD)).astype(ms.int64)
            alive = alive * (word != EOS).astype(ms.float32)
            fresh = word.expand_dims(1)
            ids = ops.cat((ids, fresh), axis=1)
        return ids, total / ops.pow(length, length_penalty), ops.stack(trace, axis=1)

    def construct(self, images, sizes, ids, words, image_ids):
        image, blocked = self.visual(images, sizes)
        queries = ops.tile(self.query_tokens, (images.shape[0], 1, 1))
        seen = (queries, self.ln_vision(image), blocked)
        i2t, t2i, itc_loss = self.itc(seen, ids, words, image_ids)
        itm_logits, itm_loss = self.itm(seen, ids, words, image_ids, i2t, t2i)
        caption_loss, caption_logits = self.captioning(seen, ids, words)
        out_ids, out_scores, steps = self.greedy(seen)
        losses = ops.stack((itc_loss, itm_loss))
        return i2t, t2i, itm_logits, losses, caption_loss, caption_logits, out_ids, out_scores, steps


def build():
    """The net for evaluation; weights and inputs come from the reference."""
    net = Blip2()
    net.set_train(False)
    return net
