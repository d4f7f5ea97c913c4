"""The named-entity tagger in MindSpore: letters, words and their shapes, BiLSTM, TENER, CRF and scores of spans."""

from functools import lru_cache

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

PADDING, UNKNOWN = 0, 1
LOWER_FROM, UPPER_FROM, DIGIT_FROM, PUNCT_FROM, CHARSET = 2, 28, 54, 64, 72
NOTHING, LOWER, TITLE, UPPER, MIXED, NUMBER, CODE, OTHER = range(8)
O, B, I, E, S = range(5)
FORBIDDEN = -1e4
LOWEST = -1e9
MAX_TIMESCALE = 10000.0


def zeros_parameter(shape, name):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


def roles_and_types(types):
    """The role (O, B, I, E, S) and the type of entity of each tag, as numpy arrays; O has the type -1."""
    roles = np.array([O] + [role for _ in range(types) for role in (B, I, E, S)])
    return roles, np.array([-1] + [kind for kind in range(types) for _ in range(4)])


def penalties(types):
    """What is added to the scores of steps, first tags and last tags, so that the path is well-formed BIOES."""
    roles, kinds = roles_and_types(types)
    opens, closes = np.isin(roles, (O, B, S)), np.isin(roles, (O, E, S))
    goes_on = ~closes[:, None] & ~opens[None, :] & (kinds[:, None] == kinds[None, :])
    allowed = (closes[:, None] & opens[None, :]) | goes_on
    return [Tensor(np.where(ok, 0.0, FORBIDDEN).astype(np.float32)) for ok in (allowed, opens, closes)]


def length_mask(lengths, size):
    return ops.arange(size).expand_dims(0) < lengths.expand_dims(1)


def shape_ids(chars):
    """The shape of each word; chars is (batch, words, letters)."""
    # 0 for padding and unknown, 1 lower, 2 upper, 3 digit, 4 punctuation
    kind = sum((chars >= first).astype(ms.int32) for first in (LOWER_FROM, UPPER_FROM, DIGIT_FROM, PUNCT_FROM))
    size = (chars != PADDING).astype(ms.int32).sum(axis=-1)
    lower, upper, digit = ((kind == k).astype(ms.int32).sum(axis=-1) for k in (1, 2, 3))
    rules = (
        (size == 0, NOTHING),
        (digit * 2 > size, NUMBER),
        (digit > 0, CODE),
        (ops.logical_and(upper == size, size > 1), UPPER),
        (ops.logical_and(kind[..., 0] == 2, upper == 1), TITLE),
        (ops.logical_and(lower > 0, upper == 0), LOWER),
        (upper > 0, MIXED),
    )
    shape = ops.full_like(size, OTHER)
    for holds, value in reversed(rules):  # the first rule that holds wins
        shape = ops.where(holds, ops.full_like(shape, value), shape)
    return shape


class HighwayStack(nn.Cell):
    """Highway layers; one dense layer makes both the candidate and the gate."""

    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(width, 2 * width) for _ in range(depth)])

    def construct(self, x):
        for layer in self.layers:
            candidate, carry = ops.chunk(layer(x), 2, axis=-1)
            candidate, carry = ops.relu(candidate), ops.sigmoid(carry)
            x = candidate + carry * (x - candidate)
        return x


class LetterEncoder(nn.Cell):
    """Convolutions over letters, the maximum over each word, highway layers."""

    def __init__(self, width, filters, depth):
        super().__init__()
        self.embedding = nn.Embedding(CHARSET, width, padding_idx=PADDING)
        self.convs = nn.CellList([
            nn.Conv1d(width, out, kernel, dilation=dilation, pad_mode="same", has_bias=True)
            for kernel, dilation, out in filters
        ])
        self.width = sum(out for _, _, out in filters)
        self.highway = HighwayStack(self.width, depth)

    def construct(self, chars):
        batch, time, letters = chars.shape
        real = chars.reshape(-1, 1, letters) != PADDING
        x = self.embedding(chars.reshape(-1, letters)).swapaxes(1, 2)
        # tanh is monotone, so it may come after the maximum
        highest = [ops.masked_fill(conv(x), ops.logical_not(real), LOWEST).max(axis=-1) for conv in self.convs]
        words = self.highway(ops.tanh(ops.cat(highest, axis=-1)))
        words = words * real.any(axis=-1).astype(words.dtype)
        return words.reshape(batch, time, self.width)


class TokenInput(nn.Cell):
    """One vector for each token from its word vector, its letters and its shape."""

    def __init__(self, vocabulary, word_width, char_width, filters, highway_depth, shape_width, width):
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(vocabulary, word_width, padding_idx=PADDING)
        self.word_norm = nn.LayerNorm((word_width,), epsilon=1e-5)
        self.letters = LetterEncoder(char_width, filters, highway_depth)
        self.shapes = nn.Embedding(8, shape_width, padding_idx=NOTHING)
        self.proj = nn.Dense(word_width + self.letters.width + shape_width, width)
        self.bn = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(p=0.4)

    def construct(self, words, chars, mask):
        known = ops.where(words < self.vocabulary, words, ops.full_like(words, UNKNOWN))
        x = ops.cat((self.word_norm(self.words(known)), self.letters(chars), self.shapes(shape_ids(chars))), axis=-1)
        x = self.proj(x)
        x = self.bn(x.reshape(-1, x.shape[-1])).reshape(x.shape)
        return self.dropout(x * mask.expand_dims(-1).astype(x.dtype))


class RecurrentEncoder(nn.Cell):
    """Bidirectional LSTMs that heed the lengths, with trained initial states, norms and residuals."""

    def __init__(self, width, hidden, depth):
        super().__init__()
        self.hidden = hidden
        widths = [width] + [2 * hidden] * (depth - 1)
        self.lstms = nn.CellList([nn.LSTM(w, hidden, batch_first=True, bidirectional=True) for w in widths])
        self.norms = nn.CellList([nn.LayerNorm((2 * hidden,), epsilon=1e-5) for _ in widths])
        self.residual = [w == 2 * hidden for w in widths]
        self.init_h = zeros_parameter((depth, 2, hidden), "init_h")
        self.init_c = zeros_parameter((depth, 2, hidden), "init_c")
        self.dropout = nn.Dropout(p=0.4)

    def construct(self, x, lengths):
        batch = x.shape[0]
        lengths = lengths.astype(ms.int32)
        last = None
        for i, (lstm, norm) in enumerate(zip(self.lstms, self.norms)):
            h0, c0 = (ops.tile(s[i].expand_dims(1), (1, batch, 1)) for s in (self.init_h, self.init_c))
            out, (last, _) = lstm(x, (h0, c0), lengths)
            x = self.dropout(norm(out + x if self.residual[i] else out))
        # (directions, batch, hidden) -> (batch, directions * hidden)
        sentence = last.swapaxes(0, 1).reshape(batch, 2 * self.hidden)
        return x, sentence


@lru_cache(maxsize=None)
def relative_sinusoids(time, width):
    """(query, key, width): sines, then cosines, of the signed distance from each query to each key."""
    half = width // 2
    rate = np.exp(np.arange(half) * -(np.log(MAX_TIMESCALE) / (half - 1)))
    distance = np.arange(time)[None, :] - np.arange(time)[:, None]
    angle = distance[:, :, None] * rate
    return Tensor(np.concatenate((np.sin(angle), np.cos(angle)), axis=-1).astype(np.float32))


class DirectedAttention(nn.Cell):
    """TENER's attention: aware of direction and distance, without scaling, without a projection of the keys."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.query_value = nn.Dense(width, 2 * width, has_bias=False)
        self.content_bias = zeros_parameter((heads, self.head_width), "content_bias")
        self.position_bias = zeros_parameter((heads, self.head_width), "position_bias")
        self.dropout = nn.Dropout(p=0.4)
        self.out = nn.Dense(width, width)

    def split_heads(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.head_width).swapaxes(1, 2)

    def construct(self, x, mask):
        batch, time, width = x.shape
        query, value = ops.chunk(self.query_value(x), 2, axis=-1)
        query, key, value = self.split_heads(query), self.split_heads(x), self.split_heads(value)
        for_content = query + self.content_bias.expand_dims(1)
        for_position = query + self.position_bias.expand_dims(1)
        logits = ops.matmul(for_content, key.swapaxes(-1, -2))
        table = relative_sinusoids(time, self.head_width)
        logits = logits + ops.matmul(for_position.expand_dims(3), table.swapaxes(1, 2)).squeeze(3)
        logits = ops.masked_fill(logits, ops.logical_not(mask).reshape(batch, 1, 1, time), LOWEST)
        attended = ops.matmul(self.dropout(ops.softmax(logits, axis=-1)), value)
        return self.out(attended.swapaxes(1, 2).reshape(batch, time, width))


class Fusion(nn.Cell):
    """A gate between the recurrent states and the attended ones."""

    def __init__(self, width):
        super().__init__()
        self.gate = nn.Dense(3 * width, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, states, attended, sentence):
        sentence = ops.broadcast_to(sentence.expand_dims(1), states.shape)
        gate = ops.sigmoid(self.gate(ops.cat((states, attended, sentence), axis=-1)))
        return self.norm(ops.lerp(attended, states, gate))


class CRF(nn.Cell):
    """Linear-chain conditional random field; rows of the transitions are what is left, columns what is entered."""

    def __init__(self, types):
        super().__init__()
        self.num_tags = 4 * types + 1
        self.transitions = zeros_parameter((self.num_tags, self.num_tags), "transitions")
        self.start_transitions = zeros_parameter((self.num_tags,), "start_transitions")
        self.end_transitions = zeros_parameter((self.num_tags,), "end_transitions")
        self.step_penalty, self.first_penalty, self.last_penalty = penalties(types)

    def construct(self, emissions, tags, mask):
        """Negative log-likelihood for each sentence."""
        prefix = self.prefix_scores(emissions, mask)[:, -1]
        return ops.logsumexp(prefix + self.end_transitions, 1) - self.gold_score(emissions, tags, mask)

    def prefix_scores(self, emissions, mask):
        """The forward algorithm, (batch, time, tags); the scores stand still past the end."""
        score = self.start_transitions + emissions[:, 0]
        scores = [score]
        for t in range(1, emissions.shape[1]):
            entered = score.expand_dims(2) + self.transitions + emissions[:, t].expand_dims(1)
            score = ops.where(mask[:, t].expand_dims(1), ops.logsumexp(entered, 1), score)
            scores.append(score)
        return ops.stack(scores, axis=1)

    def suffix_scores(self, emissions, mask):
        """The backward algorithm, (batch, time, tags)."""
        batch, time, tags = emissions.shape
        score = ops.broadcast_to(self.end_transitions, (batch, tags))
        scores = [score]
        for t in reversed(range(1, time)):
            left = self.transitions + (score + emissions[:, t]).expand_dims(1)
            score = ops.where(mask[:, t].expand_dims(1), ops.logsumexp(left, 2), score)
            scores.insert(0, score)
        return ops.stack(scores, axis=1)

    def log_posterior(self, emissions, mask):
        """Logarithm of each tag's probability at each token."""
        return ops.log_softmax(self.prefix_scores(emissions, mask) + self.suffix_scores(emissions, mask), axis=-1)

    def gold_score(self, emissions, tags, mask):
        """The score of the given tags, whatever the constraints."""
        real = mask.astype(emissions.dtype)
        tags = ops.where(mask, tags, ops.zeros_like(tags))
        size = mask.astype(ms.int32).sum(axis=1)
        emitted = ops.gather_elements(emissions, 2, tags.expand_dims(2)).squeeze(2)
        moved = self.transitions[tags[:, :-1], tags[:, 1:]]
        final = ops.gather_elements(tags, 1, (size - 1).expand_dims(1)).squeeze(1)
        ends = self.start_transitions[tags[:, 0]] + self.end_transitions[final]
        return (emitted * real).sum(axis=1) + (moved * real[:, 1:]).sum(axis=1) + ends

    def viterbi(self, emissions, mask):
        """The best allowed path with -1 past the end, (batch, time), and its score, (batch,)."""
        batch, time, tags = emissions.shape
        transitions = self.transitions + self.step_penalty
        stay = ops.broadcast_to(ops.arange(tags), (batch, tags))
        score = self.start_transitions + self.first_penalty + emissions[:, 0]
        pointers = []
        for t in range(1, time):
            here = mask[:, t].expand_dims(1)
            candidates = score.expand_dims(2) + transitions
            # past the end each tag points at itself
            pointers.append(ops.where(here, candidates.argmax(axis=1), stay))
            score = ops.where(here, candidates.max(axis=1) + emissions[:, t], score)
        score = score + self.end_transitions + self.last_penalty
        tag = score.argmax(axis=1).expand_dims(1)
        path = [tag]
        for pointer in reversed(pointers):
            tag = ops.gather_elements(pointer, 1, tag)
            path.insert(0, tag)
        path = ops.cat(path, axis=1)
        return ops.where(mask, path, ops.full_like(path, -1)), score.max(axis=1)


def spans_of(path, types, limit):
    """Begins, ends and existence, each (batch, limit), of the entities on well-formed paths."""
    roles = roles_and_types(types)[0][np.maximum(path.asnumpy(), 0)]
    begins, ends = np.zeros((2, len(roles), limit), np.int64)
    exists = np.zeros((len(roles), limit), np.bool_)
    # for each token the place of the latest begin
    latest = np.maximum.accumulate(np.where(np.isin(roles, (B, S)), np.arange(roles.shape[1]), 0), axis=1)
    for row, role in enumerate(roles):
        last = np.flatnonzero(np.isin(role, (E, S)))[:limit]
        begins[row, : len(last)], ends[row, : len(last)], exists[row, : len(last)] = latest[row, last], last, True
    return Tensor(begins), Tensor(ends), Tensor(exists)


class SpanClassifier(nn.Cell):
    """Log-probabilities of the types of spans, plus the mean log-posterior of the tags inside."""

    def __init__(self, width, types, edges, edge_width, hidden):
        super().__init__()
        self.attend = nn.Dense(width, 1, has_bias=False)
        self.edges = Tensor(np.array(edges, np.int64))
        self.widths = nn.Embedding(len(edges) + 1, edge_width)
        self.hidden = nn.Dense(4 * width + edge_width, hidden)
        self.norm = nn.LayerNorm((hidden,), epsilon=1e-5)
        self.act = nn.CELU(alpha=0.5)
        self.out = nn.Dense(hidden, types + 1)

    def construct(self, states, sentence, spans, log_posterior):
        begins, ends, exists = spans
        batch, time, width = states.shape
        count = begins.shape[1]
        row = ops.arange(batch).expand_dims(1)
        place = ops.arange(time)
        inside = ops.logical_and(place >= begins.expand_dims(-1), place <= ends.expand_dims(-1))

        pull = ops.broadcast_to(self.attend(states).swapaxes(1, 2), (batch, count, time))
        pull = ops.softmax(ops.masked_fill(pull, ops.logical_not(inside), LOWEST), axis=-1)
        size = ends - begins + 1
        bucket = (size.expand_dims(-1) > self.edges).astype(ms.int32).sum(axis=-1)
        sentence = ops.broadcast_to(sentence.expand_dims(1), (batch, count, width))
        x = ops.cat(
            (states[row, begins], states[row, ends], ops.matmul(pull, states), sentence, self.widths(bucket)), axis=-1
        )
        x = ops.log_softmax(self.out(self.act(self.norm(self.hidden(x)))), axis=-1)

        share = inside.astype(x.dtype) / size.expand_dims(-1).astype(x.dtype)
        x = x + ops.matmul(share, log_posterior.expand_dims(-1))
        return x * exists.expand_dims(-1).astype(x.dtype)


class EntityTagger(nn.Cell):
    """Tags sentences and scores the entities on their best paths."""

    def __init__(self, vocabulary=320, types=3, width=56, hidden=24, depth=2, heads=4, limit=6):
        super().__init__()
        self.types, self.limit = types, limit
        filters = ((3, 1, 20), (3, 2, 16), (5, 1, 12))
        self.embed = TokenInput(vocabulary, 32, 16, filters, 2, 6, width)
        self.encoder = RecurrentEncoder(width, hidden, depth)
        self.attention = DirectedAttention(2 * hidden, heads)
        self.fusion = Fusion(2 * hidden)
        self.crf = CRF(types)
        self.emit = nn.SequentialCell(
            nn.Dense(2 * hidden, 2 * hidden), nn.GELU(approximate=False), nn.Dropout(p=0.4),
            nn.Dense(2 * hidden, self.crf.num_tags),
        )
        self.spans = SpanClassifier(2 * hidden, types, edges=(1, 2, 3, 5, 8), edge_width=8, hidden=40)

    def construct(self, words, chars, lengths, tags):
        """Emissions, loss per token, best paths, their scores, scores of their spans."""
        mask = length_mask(lengths, words.shape[1])
        states, sentence = self.encoder(self.embed(words, chars, mask), lengths)
        states = self.fusion(states, self.attention(states, mask), sentence)
        emissions = self.emit(states)
        emissions = emissions * mask.expand_dims(-1).astype(emissions.dtype)

        loss = self.crf(emissions, tags, mask).sum() / lengths.sum().astype(ms.float32)
        path, path_score = self.crf.viterbi(emissions, mask)

        log_posterior = self.crf.log_posterior(emissions, mask)
        chosen = ops.maximum(path, ops.zeros_like(path)).expand_dims(2)
        log_posterior = ops.gather_elements(log_posterior, 2, chosen).squeeze(2)
        span_scores = self.spans(states, sentence, spans_of(path, self.types, self.limit), log_posterior)
        return emissions, loss, path, path_score, span_scores


def made_up_batch(rng, vocabulary, num_tags):
    """Five sentences of several lengths, their letters, and tags with -100 as padding."""
    kinds = ((2, 28), (2, 28), (2, 28), (28, 54), (2, 54), (54, 64), (2, 64), (64, 72))
    lengths = np.array([9, 14, 5, 12, 7], np.int64)
    words, chars, tags = np.zeros((5, 15), np.int64), np.zeros((5, 15, 10), np.int64), np.full((5, 15), -100, np.int64)
    for n, length in enumerate(lengths):
        words[n, :length] = rng.randint(1, vocabulary + 60, length)
        tags[n, :length] = rng.randint(0, num_tags, length)
        for t in range(length):
            kind, size = rng.randint(len(kinds)), rng.randint(1, 11)
            chars[n, t, :size] = rng.randint(*kinds[kind], size)
            if kind in (1, 2):
                chars[n, t, 0] = rng.randint(UPPER_FROM, DIGIT_FROM)
    return words, chars, lengths, tags


def build():
    """The net for evaluation, and a batch of five sentences."""
    net = EntityTagger()
    net.set_train(False)
    return net, tuple(Tensor(x) for x in made_up_batch(np.random.RandomState(2010), 320, net.crf.num_tags))
