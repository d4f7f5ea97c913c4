"""The pointer-generator summariser in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Tensor, nn, ops

PAD_ID = 0
UNK_ID = 1
EPSILON = 1e-10
COVERAGE_LAMBDA = 0.75
LEAD_PRIOR = np.array([0.92, 0.51, 0.27, 0.08, -0.14], np.float32)


def place_encoding(count, width):
    """Sinusoids, interleaved: even columns are sines."""
    columns = np.arange(width)
    rates = 1.0 / np.power(10000.0, (columns // 2 * 2) / width)
    angles = np.arange(count)[:, None] * rates[None, :]
    table = np.where(columns % 2 == 0, np.sin(angles), np.cos(angles))
    return Tensor(table.astype(np.float32))


def normalised_scores(scores, allowed):
    """Softmax among the allowed entries of each row; allowed is 1.0 or 0.0."""
    scores = scores - scores.max(axis=-1, keepdims=True)
    scores = ops.masked_fill(scores, allowed < 0.5, -1e9)
    return ops.softmax(scores, axis=-1) * allowed


class Scan(nn.Cell):
    """Walks a GRU cell over (batch, steps, channels), standing still on padding."""

    def __init__(self, hidden_size, backward=False):
        super().__init__()
        self.hidden_size = hidden_size
        self.backward = backward

    def construct(self, cell, seq, real):
        if self.backward:
            seq, real = ops.flip(seq, (1,)), ops.flip(real, (1,))
        h = ops.zeros((seq.shape[0], self.hidden_size), seq.dtype)
        collected = []
        for i in range(seq.shape[1]):
            is_word = real[:, i : i + 1] > 0.5
            h = ops.where(is_word, cell(seq[:, i], h), h)
            collected.append(ops.where(is_word, h, ops.zeros_like(h)))
        out = ops.stack(collected, axis=1)
        if self.backward:
            out = ops.flip(out, (1,))
        return out, h


class ArticleInput(nn.Cell):
    """Norm and n-gram gate over the embedded article."""

    def __init__(self, width, near_channels=10, far_channels=9, drop=0.3):
        super().__init__()
        self.norm = nn.LayerNorm((width,), epsilon=1e-3)
        self.near = nn.Conv1d(width, near_channels, 3, pad_mode="pad", padding=1, has_bias=True)
        self.far = nn.Conv1d(width, far_channels, 3, pad_mode="pad", padding=2, dilation=2, has_bias=True)
        self.gate = nn.Dense(near_channels + far_channels, width)
        self.dropout = nn.Dropout(p=drop)

    def construct(self, embedded, real):
        normed = self.norm(embedded)
        normed = normed * real.expand_dims(-1)
        by_channel = normed.swapaxes(1, 2)
        grams = ops.concat((self.near(by_channel), self.far(by_channel)), axis=1)
        grams = ops.relu(grams.swapaxes(1, 2))
        return self.dropout(normed * ops.sigmoid(self.gate(grams)))


class Encoder(nn.Cell):
    """The two directions over the words."""

    def __init__(self, width, hidden):
        super().__init__()
        self.hidden = hidden
        self.fw = nn.GRUCell(width, hidden)
        self.bw = nn.GRUCell(width, hidden)
        self.to_right = Scan(hidden)
        self.to_left = Scan(hidden, backward=True)

    def construct(self, seq, real):
        right, right_last = self.to_right(self.fw, seq, real)
        left, left_last = self.to_left(self.bw, seq, real)
        return ops.concat((right, left), axis=2), ops.concat((right_last, left_last), axis=1)


class Bridge(nn.Cell):
    def __init__(self, enc_width, dec_width):
        super().__init__()
        self.reduce = nn.Dense(enc_width, dec_width)
        self.act = nn.LeakyReLU(alpha=0.1)

    def construct(self, last):
        return self.act(self.reduce(last))


class Sentences(nn.Cell):
    """Means of the words' states in each sentence, read in order."""

    def __init__(self, width, sent_width, limit):
        super().__init__()
        self.limit = limit
        self.proj = nn.Dense(width, width)
        self.cell = nn.GRUCell(width, sent_width)
        self.scan = Scan(sent_width)
        self.places = place_encoding(limit, width)

    def average(self, states, sent_ids, real):
        rows = ops.arange(self.limit).reshape(1, self.limit, 1)
        belongs = (sent_ids.expand_dims(1) == rows).astype(states.dtype) * real.expand_dims(1)
        size = belongs.sum(axis=2, keepdims=True)
        mean = ops.matmul(belongs, states) / ops.maximum(size, Tensor(1.0, states.dtype))
        return mean, (size.squeeze(2) > 0).astype(states.dtype)

    def construct(self, states, sent_ids, real):
        mean, exists = self.average(states, sent_ids, real)
        seq = ops.tanh(self.proj(mean)) + self.places
        encoded, _ = self.scan(self.cell, seq, exists)
        return encoded, exists


class WordAttention(nn.Cell):
    """v . tanh(W_h h + W_s s + w_c c + b)"""

    def __init__(self, enc_width, dec_width, width):
        super().__init__()
        self.key_proj = nn.Dense(enc_width, width, has_bias=False)
        self.query_proj = nn.Dense(dec_width, width)
        self.cover_proj = nn.Dense(1, width, has_bias=False)
        self.score = nn.Dense(width, 1, has_bias=False)

    def construct(self, s, keys, covered, real):
        query = self.query_proj(s).expand_dims(1)
        cover = self.cover_proj(covered.expand_dims(2))
        energy = self.score(ops.tanh(keys + query + cover))
        return normalised_scores(energy[:, :, 0], real)


class SentenceAttention(nn.Cell):
    def __init__(self, sent_width, dec_width):
        super().__init__()
        self.root = float(np.sqrt(sent_width))
        self.query_proj = nn.Dense(dec_width, sent_width)
        self.lead = Tensor(LEAD_PRIOR)

    def construct(self, s, sentences, exists):
        query = self.query_proj(s).expand_dims(2)
        scores = ops.matmul(sentences, query).squeeze(2) / self.root
        return normalised_scores(scores + self.lead, exists)


class Readout(nn.Cell):
    """The vocabulary's distribution."""

    def __init__(self, width, hidden, vocab, drop=0.3):
        super().__init__()
        self.fc1 = nn.Dense(width, hidden)
        self.bn = nn.BatchNorm1d(hidden, eps=1e-3)
        self.act = nn.GELU(approximate=False)
        self.dropout = nn.Dropout(p=drop)
        self.fc2 = nn.Dense(hidden, vocab)

    def construct(self, features):
        hidden = self.act(self.bn(self.fc1(features)))
        return ops.softmax(self.fc2(self.dropout(hidden)), axis=-1)


class Decoder(nn.Cell):
    """A step of the decoder over what the encoder left in memory."""

    def __init__(self, vocab, oov_slots, emb, enc_width, dec_width, attn_width, sent_width, readout_width):
        super().__init__()
        self.oov_slots = oov_slots
        self.feed = nn.Dense(emb + enc_width, emb)
        self.cell = nn.GRUCell(emb, dec_width)
        self.word_attn = WordAttention(enc_width, dec_width, attn_width)
        self.sent_attn = SentenceAttention(sent_width, dec_width)
        self.gate = nn.Dense(enc_width + dec_width + emb, 1)
        self.readout = Readout(dec_width + enc_width, readout_width, vocab)

    def attend(self, s, covered, memory):
        """Attention to the words, rescaled by the attention to their sentences."""
        by_word = self.word_attn(s, memory["keys"], covered, memory["real"])
        by_sentence = self.sent_attn(s, memory["sentences"], memory["exists"])
        spread = ops.gather_elements(by_sentence, 1, memory["sent_ids"])
        joint = by_word * spread
        joint = joint / ops.clamp(joint.sum(axis=1, keepdims=True), min=EPSILON)
        return joint

    def extended(self, p_vocab, attention, p_gen, source):
        """Generation and copying in one distribution."""
        padded = ops.pad(p_gen * p_vocab, (0, self.oov_slots))
        copies = attention * (1.0 - p_gen)
        return ops.tensor_scatter_elements(padded, source, copies, axis=1, reduction="add")

    def construct(self, emb, s, context, covered, memory):
        fed = self.feed(ops.concat((emb, context), axis=1))
        s = self.cell(fed, s)
        attention = self.attend(s, covered, memory)
        context = (attention.expand_dims(2) * memory["states"]).sum(axis=1)
        p_gen = ops.sigmoid(self.gate(ops.concat((context, s, fed), axis=1)))
        p_vocab = self.readout(ops.concat((s, context), axis=1))
        p_final = self.extended(p_vocab, attention, p_gen, memory["source"])
        overlap = ops.minimum(attention, covered).sum(axis=1)
        covered = covered + attention
        return p_final, s, context, covered, attention, p_gen[:, 0], overlap


class Summariser(nn.Cell):
    """Encoder, decoder and the loop over the summary."""

    def __init__(self, vocab=43, oov_slots=4, emb=20, enc_hidden=14, dec_hidden=18, attn_width=22, sent_width=12,
                 readout_width=26, sentence_limit=5, steps=8, forced_steps=4):
        super().__init__()
        self.vocab = vocab
        self.steps = steps
        self.forced_steps = forced_steps
        self.enc_width = 2 * enc_hidden
        self.embedding = nn.Embedding(vocab, emb, padding_idx=PAD_ID)
        self.article = ArticleInput(emb)
        self.encoder = Encoder(emb, enc_hidden)
        self.bridge = Bridge(self.enc_width, dec_hidden)
        self.sentences = Sentences(self.enc_width, sent_width, sentence_limit)
        self.decoder = Decoder(vocab, oov_slots, emb, self.enc_width, dec_hidden, attn_width, sent_width,
                               readout_width)
        ids = np.arange(vocab + oov_slots)
        self.ids = Tensor(ids[None, :], ms.int32)
        self.never = Tensor(((ids == PAD_ID) | (ids == UNK_ID))[None, :])

    def greedy(self, p_final, last):
        """The best word that is allowed after the last one, as an extended id."""
        banned = ops.logical_or(self.never, self.ids == last.reshape(-1, 1))
        return ops.argmax(ops.masked_fill(p_final, banned, -1.0), dim=1).astype(ms.int32)

    def next_input(self, step, summary, last):
        """The word to feed: the reference summary's while it is forced, then the net's own."""
        if step < self.forced_steps:
            return summary[:, step]
        return ops.masked_fill(last, last >= self.vocab, UNK_ID)

    def summary_loss(self, p_steps, overlaps, target):
        """One number for each summary."""
        counted = (target != PAD_ID).astype(p_steps.dtype)
        p_gold = ops.gather_elements(p_steps, 2, target.expand_dims(2)).squeeze(2)
        nll = -ops.log(p_gold + EPSILON)
        length = counted.sum(axis=1)
        coverage_term = (overlaps * counted).sum(axis=1) / length
        return (nll * counted).sum(axis=1) / length + COVERAGE_LAMBDA * coverage_term

    def construct(self, article, source, lengths, sent_ids, summary, target):
        article, source, sent_ids = article.astype(ms.int32), source.astype(ms.int32), sent_ids.astype(ms.int32)
        summary, target = summary.astype(ms.int32), target.astype(ms.int32)
        batch, words = article.shape
        real = (ops.arange(words).reshape(1, words) < lengths.reshape(batch, 1)).astype(ms.float32)

        states, last_state = self.encoder(self.article(self.embedding(article), real), real)
        encoded, exists = self.sentences(states, sent_ids, real)
        memory = dict(states=states, keys=self.decoder.word_attn.key_proj(states), real=real, sentences=encoded,
                      exists=exists, sent_ids=sent_ids, source=source)
        s = self.bridge(last_state)
        context = ops.zeros((batch, self.enc_width), ms.float32)
        covered = ops.zeros((batch, words), ms.float32)

        record = []
        last = summary[:, 0]
        for step in range(self.steps):
            emb = self.embedding(self.next_input(step, summary, last))
            p_final, s, context, covered, attention, p_gen, overlap = self.decoder(emb, s, context, covered, memory)
            last = self.greedy(p_final, last)
            record.append((p_final, attention, p_gen, overlap))

        p_steps, attentions, gates, overlaps = [ops.stack(column, axis=1) for column in zip(*record)]
        loss = self.summary_loss(p_steps, overlaps, target)
        return ops.log(p_steps + EPSILON), attentions, gates, covered, loss


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = Summariser()
    net.set_train(False)
    return net
