"""A named-entity tagger in PyTorch: letters and words, a packed BiLSTM, relative attention, a CRF, scores of spans."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

PAD, UNK = 0, 1  # of words and of characters
# The ranges of characters begin here.
CHAR_LOWER, CHAR_UPPER, CHAR_DIGIT, CHAR_PUNCT, NUM_CHARS = 2, 28, 54, 64, 72
# Shapes of words.
SHAPE_PAD, SHAPE_LOWER, SHAPE_TITLE, SHAPE_UPPER, SHAPE_MIXED, SHAPE_NUMBER, SHAPE_CODE, SHAPE_OTHER = range(8)
# Tags: "outside", then begin, inside, end and single for each type of entity.
OUTSIDE, BEGIN, INSIDE, END, SINGLE = range(5)
IGNORE, IMPOSSIBLE = -100, -1e4


class Config:
    """What conll_small.yaml says."""

    num_words, word_dim, char_dim, shape_dim = 320, 32, 16, 6
    char_filters = ((3, 1, 20), (3, 2, 16), (5, 1, 12))  # kernel, dilation, width
    highway_layers = 2
    input_dim, hidden, lstm_layers, heads = 56, 24, 2, 4
    entity_types, max_spans = 3, 6
    width_edges, width_dim, span_dim = (1, 2, 3, 5, 8), 8, 40
    dropout = 0.4


def sequence_mask(lengths, max_len):
    """(batch, max_len), true at the places of real tokens."""
    return torch.arange(max_len, device=lengths.device)[None, :] < lengths[:, None]


def tag_role(tag):
    """OUTSIDE, BEGIN, INSIDE, END or SINGLE."""
    return OUTSIDE if tag == 0 else (tag - 1) % 4 + 1


def bioes_constraints(entity_types):
    """Which tags may follow which, which may come first and which last."""
    roles = [tag_role(tag) for tag in range(4 * entity_types + 1)]
    first = torch.tensor([role in (OUTSIDE, BEGIN, SINGLE) for role in roles])
    last = torch.tensor([role in (OUTSIDE, END, SINGLE) for role in roles])
    follows = last[:, None] & first[None, :]
    for prev, role in enumerate(roles):
        for tag in range(len(roles)):
            if role in (BEGIN, INSIDE) and roles[tag] in (INSIDE, END):
                follows[prev, tag] = (prev - 1) // 4 == (tag - 1) // 4
    return follows, first, last


def word_shapes(chars):
    """The shape of each word from its characters (batch, words, letters): lower, Title, UPPER, miXed, 12, B12, ..."""
    upper = (chars >= CHAR_UPPER) & (chars < CHAR_DIGIT)
    n, n_upper = (chars != PAD).sum(-1), upper.sum(-1)
    n_lower = ((chars >= CHAR_LOWER) & (chars < CHAR_UPPER)).sum(-1)
    n_digit = ((chars >= CHAR_DIGIT) & (chars < CHAR_PUNCT)).sum(-1)
    shape = torch.full_like(n, SHAPE_OTHER)
    shape[n_upper > 0] = SHAPE_MIXED
    shape[(n_lower > 0) & (n_upper == 0)] = SHAPE_LOWER
    shape[upper[..., 0] & (n_upper == 1)] = SHAPE_TITLE
    shape[(n_upper == n) & (n > 1)] = SHAPE_UPPER
    shape[n_digit > 0] = SHAPE_CODE
    shape[n_digit * 2 > n] = SHAPE_NUMBER
    shape[n == 0] = SHAPE_PAD
    return shape


class Highway(nn.Module):
    """Highway layers (Srivastava et al., 2015)."""

    def __init__(self, dim, num_layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, 2 * dim) for _ in range(num_layers))

    def forward(self, x):
        for layer in self.layers:
            projected, gate = layer(x).chunk(2, dim=-1)
            gate = torch.sigmoid(gate)
            x = gate * x + (1 - gate) * F.relu(projected)
        return x


class CharCNN(nn.Module):
    """Convolutions over the letters of each word, pooled by their maximum."""

    def __init__(self, char_dim, filters, highway_layers):
        super().__init__()
        self.embedding = nn.Embedding(NUM_CHARS, char_dim, padding_idx=PAD)
        self.convs = nn.ModuleList(
            nn.Conv1d(char_dim, width, kernel, padding=dilation * (kernel - 1) // 2, dilation=dilation)
            for kernel, dilation, width in filters
        )
        self.out_dim = sum(width for _, _, width in filters)
        self.highway = Highway(self.out_dim, highway_layers)

    def forward(self, chars):
        b, t, c = chars.shape
        chars = chars.reshape(b * t, c)
        mask = chars != PAD
        x = self.embedding(chars).transpose(1, 2)
        pooled = []
        for conv in self.convs:
            y = torch.tanh(conv(x)).masked_fill(~mask.unsqueeze(1), -1.0)  # the least that tanh can be
            pooled.append(y.max(dim=-1).values)
        out = self.highway(torch.cat(pooled, dim=-1)) * mask.any(dim=-1, keepdim=True)
        return out.reshape(b, t, self.out_dim)


class InputEmbedding(nn.Module):
    """Words, letters and shapes in one vector for each token."""

    def __init__(self, cfg):
        super().__init__()
        self.words = nn.Embedding(cfg.num_words, cfg.word_dim, padding_idx=PAD)
        self.word_norm = nn.LayerNorm(cfg.word_dim)
        self.char_cnn = CharCNN(cfg.char_dim, cfg.char_filters, cfg.highway_layers)
        self.shapes = nn.Embedding(8, cfg.shape_dim, padding_idx=SHAPE_PAD)
        self.proj = nn.Linear(cfg.word_dim + self.char_cnn.out_dim + cfg.shape_dim, cfg.input_dim)
        self.bn = nn.BatchNorm1d(cfg.input_dim)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, words, chars, mask):
        # the vocabulary of the corpus is larger than that of the vectors
        known = words.masked_fill(words >= self.words.num_embeddings, UNK)
        vectors = self.word_norm(self.words(known))
        x = self.proj(torch.cat([vectors, self.char_cnn(chars), self.shapes(word_shapes(chars))], dim=-1))
        out = x.new_zeros(x.shape)
        out[mask] = self.bn(x[mask])  # the statistics are those of real tokens
        return self.dropout(out)


class BiLSTMEncoder(nn.Module):
    """Packed bidirectional LSTMs with trained initial states, a norm after each, and residuals where widths allow."""

    def __init__(self, input_dim, hidden, num_layers, dropout):
        super().__init__()
        self.lstms = nn.ModuleList(
            nn.LSTM(input_dim if i == 0 else 2 * hidden, hidden, batch_first=True, bidirectional=True)
            for i in range(num_layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(2 * hidden) for _ in range(num_layers))
        self.init_h = nn.Parameter(torch.zeros(num_layers, 2, hidden))
        self.init_c = nn.Parameter(torch.zeros(num_layers, 2, hidden))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, lengths):
        """The tokens' states (batch, time, 2 * hidden), and the last states of both directions as the sentence's."""
        b, t, _ = x.shape
        sorted_lengths, order = lengths.sort(descending=True, stable=True)
        restore = order.argsort()
        x = x.index_select(0, order)
        for i, (lstm, norm) in enumerate(zip(self.lstms, self.norms)):
            state = tuple(s[i].unsqueeze(1).repeat(1, b, 1) for s in (self.init_h, self.init_c))
            packed = pack_padded_sequence(x, sorted_lengths.cpu(), batch_first=True)
            packed, (h_n, _) = lstm(packed, state)
            y, _ = pad_packed_sequence(packed, batch_first=True, total_length=t)
            x = self.dropout(norm(y + x if y.shape == x.shape else y))
        sentence = torch.cat((h_n[0], h_n[1]), dim=-1)
        return x.index_select(0, restore), sentence.index_select(0, restore)


class RelativeAttention(nn.Module):
    """Attention that knows direction and distance (TENER): unscaled, keys are the states themselves."""

    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.query_value = nn.Linear(dim, 2 * dim, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, self.head_dim))
        self.position_bias = nn.Parameter(torch.zeros(heads, self.head_dim))
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(dim, dim)
        self._distances = {}

    def distances(self, length):
        """Sinusoids of the distances -length .. length - 1, kept for the next sentence of this length."""
        if length not in self._distances:
            half = self.head_dim // 2
            rate = torch.exp(torch.arange(half).float() * -(torch.log(torch.tensor(10000.0)) / (half - 1)))
            angle = torch.arange(-length, length).float()[:, None] * rate[None, :]
            self._distances[length] = torch.cat([angle.sin(), angle.cos()], dim=1)
        return self._distances[length]

    def shift(self, scores):
        """From (b, h, query, distance) to (b, h, query, key), where distance is key - query."""
        b, h, t, _ = scores.shape
        scores = torch.cat([scores, scores.new_zeros(b, h, t, 1)], dim=-1).view(b, h, -1, t)
        return scores[:, :, :-1].view(b, h, t, -1)[..., t:]

    def forward(self, x, mask):
        b, t, d = x.shape
        q, v = self.query_value(x).chunk(2, dim=-1)
        q, k, v = (y.view(b, t, self.heads, self.head_dim).transpose(1, 2) for y in (q, x, v))
        content = (q + self.content_bias[:, None]) @ k.transpose(-1, -2)
        position = (q + self.position_bias[:, None]) @ self.distances(t).T
        scores = content + self.shift(position)
        scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        weights = self.dropout(scores.softmax(dim=-1))
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, d))


class GatedFusion(nn.Module):
    """Mixes the recurrent and the attended states, as the sentence wants it."""

    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Linear(3 * dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, states, attended, sentence):
        sentence = sentence.unsqueeze(1).expand_as(states)
        gate = torch.sigmoid(self.gate(torch.cat([states, attended, sentence], dim=-1)))
        return self.norm(gate * states + (1 - gate) * attended)


class LinearChainCRF(nn.Module):
    """A conditional random field over tags; transitions are (from, to)."""

    def __init__(self, entity_types):
        super().__init__()
        self.num_tags = 4 * entity_types + 1
        self.transitions = nn.Parameter(torch.zeros(self.num_tags, self.num_tags))
        self.start_transitions = nn.Parameter(torch.zeros(self.num_tags))
        self.end_transitions = nn.Parameter(torch.zeros(self.num_tags))
        for name, allowed in zip(("follows", "first", "last"), bioes_constraints(entity_types)):
            self.register_buffer(name, allowed, persistent=False)

    def forward(self, emissions, tags, mask):
        """Negative log-likelihood of each sentence's tags, (batch,)."""
        alpha = self.forward_scores(emissions, mask)[:, -1]
        partition = torch.logsumexp(alpha + self.end_transitions, dim=-1)
        return partition - self.path_score(emissions, tags, mask)

    def forward_scores(self, emissions, mask):
        """Log of the sum over all prefixes for each token and tag; past the end the last token's is repeated."""
        alpha = self.start_transitions + emissions[:, 0]
        alphas = [alpha]
        for t in range(1, emissions.shape[1]):
            step = torch.logsumexp(alpha.unsqueeze(2) + self.transitions, dim=1) + emissions[:, t]
            alpha = torch.where(mask[:, t : t + 1], step, alpha)
            alphas.append(alpha)
        return torch.stack(alphas, dim=1)

    def backward_scores(self, emissions, mask):
        """The same for suffixes, without the token's own emission."""
        beta = self.end_transitions.expand(emissions.shape[0], -1)
        betas = [beta]
        for t in range(emissions.shape[1] - 1, 0, -1):
            step = torch.logsumexp(self.transitions + (emissions[:, t] + beta).unsqueeze(1), dim=2)
            beta = torch.where(mask[:, t : t + 1], step, beta)
            betas.append(beta)
        return torch.stack(betas[::-1], dim=1)

    def log_marginals(self, emissions, mask):
        """Log-probability of each tag at each token, (batch, time, tags)."""
        return (self.forward_scores(emissions, mask) + self.backward_scores(emissions, mask)).log_softmax(dim=-1)

    def path_score(self, emissions, tags, mask):
        """Unnormalised score of the given tags."""
        weight, tags = mask.to(emissions.dtype), tags.clamp(min=0)
        score = (emissions.gather(2, tags.unsqueeze(2)).squeeze(2) * weight).sum(dim=1)
        score = score + (self.transitions[tags[:, :-1], tags[:, 1:]] * weight[:, 1:]).sum(dim=1)
        last = tags.gather(1, mask.long().sum(dim=1, keepdim=True) - 1).squeeze(1)
        return score + self.start_transitions[tags[:, 0]] + self.end_transitions[last]

    def decode(self, emissions, mask):
        """Best well-formed path: tags (batch, time), -1 past the end, and its score (batch,)."""
        transitions = self.transitions.masked_fill(~self.follows, IMPOSSIBLE)
        start = self.start_transitions.masked_fill(~self.first, IMPOSSIBLE)
        end = self.end_transitions.masked_fill(~self.last, IMPOSSIBLE)
        b, t, _ = emissions.shape
        score = start + emissions[:, 0]
        history = []
        for i in range(1, t):
            best, pointer = (score.unsqueeze(2) + transitions).max(dim=1)
            score = torch.where(mask[:, i : i + 1], best + emissions[:, i], score)
            history.append(pointer)
        best_score, last = (score + end).max(dim=1)
        paths = torch.full((b, t), -1, dtype=torch.long)
        lengths = mask.long().sum(dim=1).tolist()
        for n in range(b):
            path = [int(last[n])]
            for pointer in reversed(history[: lengths[n] - 1]):
                path.append(int(pointer[n, path[-1]]))
            paths[n, : lengths[n]] = torch.tensor(path[::-1])
        return paths, best_score


def path_spans(paths, max_spans):
    """First and last token of the entities of each well-formed path, (batch, max_spans, 2), and which are real."""
    spans = torch.zeros(paths.shape[0], max_spans, 2, dtype=torch.long)
    real = torch.zeros(paths.shape[0], max_spans, dtype=torch.bool)
    for n, path in enumerate(paths.tolist()):
        found, begin = 0, 0
        for position, tag in enumerate(path):
            role = tag_role(max(tag, 0))
            begin = position if role in (BEGIN, SINGLE) else begin
            if role in (END, SINGLE) and found < max_spans:
                spans[n, found] = torch.tensor([begin, position])
                real[n, found] = True
                found += 1
    return spans, real


class SpanScorer(nn.Module):
    """Scores the types of the spans on the best path (none is the last), weighed by how sure the CRF is."""

    def __init__(self, dim, cfg):
        super().__init__()
        self.attend = nn.Linear(dim, 1, bias=False)
        self.register_buffer("edges", torch.tensor(cfg.width_edges), persistent=False)
        self.widths = nn.Embedding(len(cfg.width_edges) + 1, cfg.width_dim)
        self.hidden = nn.Linear(4 * dim + cfg.width_dim, cfg.span_dim)
        self.norm = nn.LayerNorm(cfg.span_dim)
        self.act = nn.CELU(alpha=0.5)
        self.out = nn.Linear(cfg.span_dim, cfg.entity_types + 1)

    def forward(self, states, sentence, spans, real, confidence):
        (_, t, d), k = states.shape, spans.shape[1]
        begin, end = spans.unbind(dim=-1)
        at_begin = states.gather(1, begin.unsqueeze(-1).expand(-1, -1, d))
        at_end = states.gather(1, end.unsqueeze(-1).expand(-1, -1, d))
        inside = (torch.arange(t) >= begin.unsqueeze(-1)) & (torch.arange(t) <= end.unsqueeze(-1))
        logits = self.attend(states).transpose(1, 2).expand(-1, k, -1)
        inner = logits.masked_fill(~inside, float("-inf")).softmax(dim=-1) @ states
        width = self.widths(torch.bucketize(end - begin + 1, self.edges))
        x = torch.cat([at_begin, at_end, inner, sentence.unsqueeze(1).expand(-1, k, -1), width], dim=-1)
        x = self.out(self.act(self.norm(self.hidden(x))))
        sure = (confidence.unsqueeze(1) * inside).sum(dim=-1) / inside.sum(dim=-1)
        x = x.log_softmax(dim=-1) + sure.unsqueeze(-1)
        return x.masked_fill(~real.unsqueeze(-1), 0.0)


class NerTagger(nn.Module):
    """The whole tagger."""

    def __init__(self, cfg):
        super().__init__()
        dim, self.max_spans = 2 * cfg.hidden, cfg.max_spans
        self.embed = InputEmbedding(cfg)
        self.encoder = BiLSTMEncoder(cfg.input_dim, cfg.hidden, cfg.lstm_layers, cfg.dropout)
        self.attention = RelativeAttention(dim, cfg.heads, cfg.dropout)
        self.fusion = GatedFusion(dim)
        self.crf = LinearChainCRF(cfg.entity_types)
        drop, last = nn.Dropout(cfg.dropout), nn.Linear(dim, self.crf.num_tags)
        self.emit = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), drop, last)
        self.span_scorer = SpanScorer(dim, cfg)

    def forward(self, words, chars, lengths, tags):
        """Emissions, the loss per token, the tags of the best paths, their scores, and the scores of their spans."""
        mask = sequence_mask(lengths, words.shape[1])
        x = self.embed(words, chars, mask)
        states, sentence = self.encoder(x, lengths)
        states = self.fusion(states, self.attention(states, mask), sentence)
        emissions = self.emit(states) * mask.unsqueeze(-1).to(states.dtype)
        loss = self.crf(emissions, tags, mask).sum() / mask.sum()
        paths, path_score = self.crf.decode(emissions, mask)
        marginals = self.crf.log_marginals(emissions, mask)
        confidence = marginals.gather(2, paths.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        span_scores = self.span_scorer(states, sentence, *path_spans(paths, self.max_spans), confidence)
        return emissions, loss, paths, path_score, span_scores


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.6)
            if module.padding_idx is not None:
                module.weight.data[module.padding_idx] = 0.0
        elif isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.normal_(module.weight, std=1.2 * module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.LSTM, LinearChainCRF)):
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=0.16 if isinstance(module, nn.LSTM) else 0.5)
    nn.init.normal_(net.embed.bn.running_mean, std=0.3)
    nn.init.uniform_(net.embed.bn.running_var, 0.5, 1.5)
    for name in ("encoder.init_h", "encoder.init_c", "attention.content_bias", "attention.position_bias"):
        nn.init.normal_(net.get_parameter(name), std=0.4)
    net.embed.words.weight.data *= 0.03  # vectors of words are short
    net.attention.query_value.weight.data *= 0.6
    weight, transitions = net.emit[3].weight.data, net.crf.transitions.data
    weight.copy_(2 * (weight - weight.mean(dim=1, keepdim=True)))
    transitions += 0.6 * net.crf.follows
    transitions[1::4] += 1.2 * net.crf.follows[1::4]  # most names have several words
    transitions[:, 4::4] -= 1.0
    return net


def make_batch(rng, num_words, num_tags, lengths=(9, 14, 5, 12, 7), max_len=15, letters=10):
    """Made-up sentences; the words are lower, Title, UPPER, miXed, numbers, codes, or punctuation."""
    kinds = ((2, 28), (2, 28), (2, 28), (28, 54), (2, 54), (54, 64), (2, 64), (64, 72))
    words, tags = np.zeros((2, len(lengths), max_len), np.int64)
    chars = np.zeros((len(lengths), max_len, letters), np.int64)
    tags[:] = IGNORE
    for n, length in enumerate(lengths):
        words[n, :length] = rng.randint(1, num_words + 60, length)
        tags[n, :length] = rng.randint(0, num_tags, length)
        for t in range(length):
            kind, size = rng.randint(len(kinds)), rng.randint(1, letters + 1)
            chars[n, t, :size] = rng.randint(*kinds[kind], size)
            if kind in (1, 2):
                chars[n, t, 0] = rng.randint(CHAR_UPPER, CHAR_DIGIT)
    return words, chars, np.array(lengths), tags


def build():
    """The net with the same weights on every run, and a batch of five sentences."""
    torch.manual_seed(2010)
    net = trained_like(NerTagger(Config()))
    batch = make_batch(np.random.RandomState(2010), Config.num_words, net.crf.num_tags)
    return net.eval(), tuple(torch.from_numpy(x) for x in batch)
