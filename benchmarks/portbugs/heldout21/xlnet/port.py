"""Two-stream XLNet over chunks with memory, heads for words and answer spans: the MindSpore port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

NEG_INF = -1e30
PAD, SEP, CLS = 0, 3, 4


def empty_parameter(name, *shape):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


def prepend(memory, current):
    """Memory before the current chunk, along the first axis."""
    if memory is None:
        return current
    return ops.cat((memory, current), axis=0)


def remember(current, memory, reuse_len, mem_len):
    """The rows that go into the next chunk's memory: the chunk's first reuse_len, after the older ones."""
    kept = current[:reuse_len] if reuse_len > 0 else current
    return prepend(memory, kept)[-mem_len:]


def shift_scores(scores, klen):
    """(batch, heads, query, distance) -> (batch, heads, query, key): the distance that belongs to each pair."""
    b, n, qlen, _ = scores.shape
    column = qlen - np.arange(qlen)[:, None] + np.arange(klen)[None, :]
    index = ops.broadcast_to(Tensor(column.astype(np.int32)), (b, n, qlen, klen))
    return ops.gather_elements(scores, 3, index)


def order_mask(rank, is_target, is_func):
    """True where the key (last axis) is a target that the query (middle axis) may not see yet."""
    plain = ops.logical_not(ops.logical_or(is_target, is_func))
    key_rank = ops.masked_fill(rank, plain, -1)
    query_rank = key_rank + ops.logical_not(is_target).astype(key_rank.dtype)
    too_early = query_rank.expand_dims(2) <= key_rank.expand_dims(1)
    return ops.logical_and(too_early, is_target.expand_dims(1))


class CharCNN(nn.Cell):
    def __init__(self, n_chars, char_dim, width):
        super().__init__()
        self.char_embedding = nn.Embedding(n_chars, char_dim, padding_idx=0)
        self.conv = nn.Conv1d(char_dim, width, 3, pad_mode="pad", padding=2, dilation=2, group=2, has_bias=True)
        self.norm = nn.BatchNorm1d(width, eps=1e-5)
        self.act = nn.Tanh()

    def construct(self, chars):
        b, length, n = chars.shape
        chars = chars.reshape(-1, n)
        feature = self.conv(self.char_embedding(chars).swapaxes(1, 2))
        # BatchNorm1d takes two axes only: characters go to the rows
        rows, width, n = feature.shape
        feature = self.norm(feature.swapaxes(1, 2).reshape(rows * n, width))
        feature = self.act(feature).reshape(rows, n, width)
        real = (chars != 0).expand_dims(-1)
        best = ops.masked_fill(feature, ops.logical_not(real), NEG_INF).max(axis=1)
        best = best * real.any(axis=1).astype(best.dtype)
        return best.reshape(b, length, width)


class RelativeAttention(nn.Cell):
    def __init__(self, width, heads, head_width):
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.scale = head_width**-0.5
        self.q = empty_parameter("q", width, heads, head_width)
        self.k = empty_parameter("k", width, heads, head_width)
        self.v = empty_parameter("v", width, heads, head_width)
        self.o = empty_parameter("o", width, heads, head_width)
        self.r = empty_parameter("r", width, heads, head_width)
        self.r_r_bias = empty_parameter("r_r_bias", heads, head_width)
        self.r_s_bias = empty_parameter("r_s_bias", heads, head_width)
        self.r_w_bias = empty_parameter("r_w_bias", heads, head_width)
        self.seg_embed = empty_parameter("seg_embed", 2, heads, head_width)
        self.layer_norm = nn.LayerNorm((width,), epsilon=1e-12)
        self.dropout = nn.Dropout(p=0.1)

    def project(self, x, weight):
        """(length, batch, width) -> (batch, heads, length, head_width)."""
        length, batch, width = x.shape
        y = ops.matmul(x.reshape(length * batch, width), weight.reshape(width, -1))
        return y.reshape(length, batch, self.heads, self.head_width).transpose(1, 2, 0, 3)

    def attend(self, query, key, value, distance, same, hidden):
        """same, hidden: (batch, 1, query, key)."""
        content_q = query + self.r_w_bias.expand_dims(1)
        place_q = query + self.r_r_bias.expand_dims(1)
        segment_q = query + self.r_s_bias.expand_dims(1)

        by_content = ops.matmul(content_q, key.swapaxes(2, 3))
        by_place = shift_scores(ops.matmul(place_q, distance.swapaxes(2, 3)), key.shape[2])
        by_segment = ops.matmul(segment_q, self.seg_embed.transpose(1, 2, 0))
        by_segment = ops.where(same, by_segment[..., :1], by_segment[..., 1:])

        logits = (by_content + by_place + by_segment) * self.scale
        logits = ops.masked_fill(logits, hidden, NEG_INF)
        return ops.matmul(self.dropout(ops.softmax(logits, axis=-1)), value)

    def finish(self, context, residual):
        """Heads back to the width, then the norm of the sum."""
        length, batch, width = residual.shape
        context = context.transpose(2, 0, 1, 3).reshape(length, batch, -1)
        out = ops.matmul(context, self.o.reshape(width, -1).T)
        return self.layer_norm(residual + self.dropout(out))

    def construct(self, h, g, masks, places, same, memory, mapping):
        hidden_h, hidden_g = masks
        source = prepend(memory, h)
        key = self.project(source, self.k)
        value = self.project(source, self.v)
        distance = self.project(places.expand_dims(1), self.r)

        context = self.attend(self.project(h, self.q), key, value, distance, same, hidden_h)
        new_h = self.finish(context, h)

        # the queries of the second stream go to their places and come back: mapping is (batch, 1, target, place)
        query = ops.matmul(mapping.swapaxes(2, 3), self.project(g, self.q))
        context = ops.matmul(mapping, self.attend(query, key, value, distance, same, hidden_g))
        new_g = self.finish(context, g)
        return new_h, new_g


class FeedForward(nn.Cell):
    def __init__(self, width, inner):
        super().__init__()
        self.layer_norm = nn.LayerNorm((width,), epsilon=1e-12)
        self.layer_1 = nn.Dense(width, inner)
        self.activation = nn.GELU(approximate=False)
        self.layer_2 = nn.Dense(inner, width)
        self.dropout = nn.Dropout(p=0.1)

    def construct(self, x):
        y = self.dropout(self.activation(self.layer_1(x)))
        return self.layer_norm(x + self.dropout(self.layer_2(y)))


class XLNetLayer(nn.Cell):
    def __init__(self, width, heads, head_width, inner):
        super().__init__()
        self.rel_attn = RelativeAttention(width, heads, head_width)
        self.ff = FeedForward(width, inner)

    def construct(self, h, g, masks, places, same, memory, mapping):
        h, g = self.rel_attn(h, g, masks, places, same, memory, mapping)
        return self.ff(h), self.ff(g)


class TokenHead(nn.Cell):
    """Decoder tied to the table of the words."""

    def __init__(self, width, hidden, vocab):
        super().__init__()
        self.dense = nn.Dense(width, hidden)
        self.act = nn.LeakyReLU(alpha=0.1)
        self.norm = nn.LayerNorm((hidden,), epsilon=1e-3)
        self.decoder = nn.Dense(hidden, width, has_bias=False)
        self.bias = empty_parameter("bias", vocab)

    def construct(self, x, table):
        x = self.norm(self.act(self.dense(x)))
        return ops.matmul(self.decoder(x), table.T) + self.bias


class StartHead(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.dense = nn.Dense(width, 1)

    def construct(self, hidden, closed):
        return ops.masked_fill(self.dense(hidden)[..., 0], closed, NEG_INF)


class EndHead(nn.Cell):
    def __init__(self, width, longest):
        super().__init__()
        self.longest = longest
        self.dense_0 = nn.Dense(2 * width, width)
        self.act = nn.Tanh()
        self.norm = nn.LayerNorm((width,), epsilon=1e-3)
        self.dense_1 = nn.Dense(width, 1)

    def construct(self, hidden, starts, closed):
        b, length, width = hidden.shape
        top = starts.shape[1]
        row = ops.arange(b).expand_dims(1)
        first = hidden[row, starts]
        pair = ops.cat(
            (
                ops.broadcast_to(hidden.expand_dims(2), (b, length, top, width)),
                ops.broadcast_to(first.expand_dims(1), (b, length, top, width)),
            ),
            axis=-1,
        )
        score = self.dense_1(self.norm(self.act(self.dense_0(pair))))[..., 0]
        ahead = ops.arange(length).reshape(1, length, 1) - starts.expand_dims(1)
        allowed = ops.logical_and(ahead >= 0, ahead < self.longest)
        blocked = ops.logical_or(ops.logical_not(allowed), closed.expand_dims(-1))
        return ops.masked_fill(score, blocked, NEG_INF)


class AnswerHead(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.dense_0 = nn.Dense(2 * width, width)
        self.act = nn.Tanh()
        self.dense_1 = nn.Dense(width, 1, has_bias=False)

    def construct(self, hidden, start_probs):
        expected = (hidden * start_probs.expand_dims(-1)).sum(axis=1)
        summary = hidden[:, -1]
        x = self.act(self.dense_0(ops.cat((expected, summary), axis=-1)))
        return self.dense_1(x)[:, 0]


class XLNet(nn.Cell):
    def __init__(self, vocab=53, n_chars=29, char_dim=14, width=36, heads=4, head_width=10, inner=68, depth=3,
                 clamp=9, mem_len=8, reuse_len=10, chunk=13, token_hidden=30, top=6, longest=9):
        super().__init__()
        self.clamp, self.mem_len, self.reuse_len, self.chunk, self.top = clamp, mem_len, reuse_len, chunk, top
        self.word_embedding = nn.Embedding(vocab, width, padding_idx=PAD)
        self.char_cnn = CharCNN(n_chars, char_dim, width)
        self.mask_emb = empty_parameter("mask_emb", 1, 1, width)
        self.layers = nn.CellList([XLNetLayer(width, heads, head_width, inner) for _ in range(depth)])
        self.dropout = nn.Dropout(p=0.1)
        self.token_head = TokenHead(width, token_hidden, vocab)
        self.start_head = StartHead(width)
        self.end_head = EndHead(width, longest)
        self.answer_head = AnswerHead(width)
        self.inv_freq = 1.0 / 10000 ** (np.arange(0, width, 2) / width)

    def encode_places(self, qlen, klen):
        """Rows for the distances from klen down to 1 - qlen, sines first."""
        distance = np.arange(klen, -qlen, -1.0)
        if self.clamp > 0:
            distance = np.clip(distance, -self.clamp, self.clamp)
        angle = distance[:, None] * self.inv_freq[None, :]
        table = np.concatenate((np.sin(angle), np.cos(angle)), axis=1)
        return self.dropout(Tensor(table.astype(np.float32)))

    def stream_masks(self, early, pad, old_pad):
        """The two masks, (batch, 1, query, key), true where a key is hidden; pad and old_pad are (length, batch)."""
        b, qlen, _ = early.shape
        hidden = ops.logical_or(early, pad.T.expand_dims(1))
        own = np.eye(qlen, dtype=bool)
        if old_pad is not None:
            mlen = old_pad.shape[0]
            old = ops.broadcast_to(old_pad.T.expand_dims(1), (b, qlen, mlen))
            hidden = ops.cat((old.astype(ms.int32), hidden.astype(ms.int32)), axis=2) > 0
            own = np.concatenate((np.zeros((qlen, mlen), bool), own), axis=1)
        content = ops.logical_and(hidden, Tensor(~own))
        return content.expand_dims(1), hidden.expand_dims(1)

    def target_map(self, target_pos, qlen):
        """(batch, target, place) with a one at the place of each target; all zero for those that are -1."""
        return (target_pos.expand_dims(-1) == ops.arange(qlen)).astype(ms.float32)

    def read_chunk(self, words, tokens, segments, pad, rank, target_pos, memory):
        qlen, batch, width = words.shape
        mapping = self.target_map(target_pos, qlen)
        is_target = mapping.sum(axis=1) > 0
        is_func = ops.logical_or(tokens == SEP, tokens == CLS)
        early = order_mask(rank, is_target, is_func)

        pad, segments = pad.T, segments.T
        if memory is None:
            old_states, old_pad, old_segments = [None] * len(self.layers), None, None
        else:
            old_states, old_pad, old_segments = memory
        masks = self.stream_masks(early, pad, old_pad)
        key_segments = prepend(old_segments, segments)
        same = segments.T.expand_dims(2) == key_segments.T.expand_dims(1)
        same = same.expand_dims(1)
        places = self.encode_places(qlen, key_segments.shape[0])

        h = self.dropout(words)
        g = self.dropout(ops.broadcast_to(self.mask_emb, (target_pos.shape[1], batch, width)))
        mapping = mapping.expand_dims(1)
        new_states = []
        for layer, old in zip(self.layers, old_states):
            new_states.append(remember(h, old, self.reuse_len, self.mem_len))
            h, g = layer(h, g, masks, places, same, old, mapping)
        new_pad = remember(pad.astype(ms.int32), old_pad, self.reuse_len, self.mem_len)
        new_segments = remember(segments, old_segments, self.reuse_len, self.mem_len)
        return h, g, (new_states, new_pad, new_segments)

    def construct(self, token_ids, char_ids, segment_ids, lengths, perm_rank, target_pos):
        batch, length = token_ids.shape
        pad = ops.arange(length).expand_dims(0) < (length - lengths).expand_dims(1)
        words = self.word_embedding(token_ids) + self.char_cnn(char_ids)
        words = words.swapaxes(0, 1)

        memory, hidden, queries = None, [], []
        for number, begin in enumerate(range(0, length, self.chunk)):
            end = min(begin + self.chunk, length)
            h, g, memory = self.read_chunk(
                words[begin:end], token_ids[:, begin:end], segment_ids[:, begin:end], pad[:, begin:end],
                perm_rank[:, begin:end], target_pos[:, number], memory,
            )
            hidden.append(h)
            queries.append(g)
        hidden = self.dropout(ops.cat(hidden, axis=0).swapaxes(0, 1))
        queries = self.dropout(ops.cat(queries, axis=0).swapaxes(0, 1))

        used = (target_pos.reshape(batch, -1) >= 0).astype(ms.float32)
        token_logits = self.token_head(queries, self.word_embedding.embedding_table) * used.expand_dims(-1)

        closed = ops.logical_or(pad, token_ids == SEP)
        start_probs = ops.softmax(self.start_head(hidden, closed), axis=-1)
        _, starts = ops.topk(start_probs, self.top)
        end_probs = ops.softmax(self.end_head(hidden, starts, closed), axis=1)
        answerable = self.answer_head(hidden, start_probs)
        return token_logits, start_probs, end_probs, answerable


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = XLNet()
    net.set_train(False)
    return net
