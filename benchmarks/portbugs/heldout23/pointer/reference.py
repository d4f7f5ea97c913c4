"""A pointer-generator summariser with coverage and hierarchical attention, in PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

PAD, UNK, START, STOP = 0, 1, 2, 3
TINY = 1e-10
COVERAGE_WEIGHT = 0.75

# News stories put what matters first: added to the scores of the sentences, fitted on the training set.
LEAD_BIAS = (0.92, 0.51, 0.27, 0.08, -0.14)


class Config:
    vocab_size = 43
    max_oov = 4
    emb_dim = 20
    enc_hidden = 14
    dec_hidden = 18
    attn_dim = 22
    sent_dim = 12
    readout_dim = 26
    max_sentences = 5
    dropout = 0.3
    max_steps = 8
    teacher_steps = 4


def length_mask(lengths, size):
    """(batch, size), true where there is a token."""
    return torch.arange(size, device=lengths.device).unsqueeze(0) < lengths.unsqueeze(1)


def masked_softmax(scores, mask):
    """Softmax over the last axis among those that the mask lets through; zeros elsewhere."""
    scores = scores.masked_fill(~mask, -1e9)
    return torch.softmax(scores, dim=-1) * mask.to(scores.dtype)


def sinusoid_table(length, dim):
    """Sines on the even channels, cosines on the odd ones."""
    position = torch.arange(length, dtype=torch.float).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, dim, 2, dtype=torch.float) * -(math.log(10000.0) / dim))
    table = torch.zeros(length, dim)
    table[:, 0::2] = torch.sin(position * div_term)
    table[:, 1::2] = torch.cos(position * div_term)
    return table


def run_masked(cell, inputs, mask, reverse=False):
    """What a GRU over a packed sequence computes: steps of padding leave the state alone and give zeros.

    Returns the outputs (batch, length, hidden) and the last state (batch, hidden), the one at the first word where
    the direction is backward.
    """
    batch, length, _ = inputs.shape
    hidden = inputs.new_zeros(batch, cell.hidden_size)
    outputs = [None] * length
    steps = range(length - 1, -1, -1) if reverse else range(length)
    for t in steps:
        keep = mask[:, t].unsqueeze(1).to(inputs.dtype)
        proposal = cell(inputs[:, t], hidden)
        hidden = keep * proposal + (1.0 - keep) * hidden
        outputs[t] = keep * hidden
    return torch.stack(outputs, dim=1), hidden


class ArticleEmbedding(nn.Module):
    """Words as vectors, normalised, with a gate from their neighbourhood (near and dilated n-grams)."""

    def __init__(self, cfg, embedding_dim):
        super().__init__()
        self.norm = nn.LayerNorm(embedding_dim, eps=1e-3)
        self.near = nn.Conv1d(embedding_dim, 10, kernel_size=3, padding=1)
        self.far = nn.Conv1d(embedding_dim, 9, kernel_size=3, padding=2, dilation=2)
        self.gate = nn.Linear(19, embedding_dim)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, words, mask):
        x = self.norm(words)
        x = x * mask.unsqueeze(-1).to(x.dtype)
        channels_first = x.transpose(1, 2)
        ngrams = torch.cat((self.near(channels_first), self.far(channels_first)), dim=1)
        gate = torch.sigmoid(self.gate(F.relu(ngrams).transpose(1, 2)))
        return self.dropout(x * gate)


class BiGRUEncoder(nn.Module):
    """Two GRUs over the words, one from each side."""

    def __init__(self, input_dim, hidden):
        super().__init__()
        self.fw = nn.GRUCell(input_dim, hidden)
        self.bw = nn.GRUCell(input_dim, hidden)

    def forward(self, x, mask):
        out_fw, last_fw = run_masked(self.fw, x, mask)
        out_bw, last_bw = run_masked(self.bw, x, mask, reverse=True)
        return torch.cat((out_fw, out_bw), dim=-1), torch.cat((last_fw, last_bw), dim=-1)


class StateBridge(nn.Module):
    """From the encoder's two last states to the decoder's first."""

    def __init__(self, enc_dim, dec_dim):
        super().__init__()
        self.reduce = nn.Linear(enc_dim, dec_dim)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, last):
        return self.act(self.reduce(last))


class SentenceEncoder(nn.Module):
    """Sentences as means of their words' states, with their places, read by a GRU."""

    def __init__(self, word_dim, sent_dim, max_sentences):
        super().__init__()
        self.max_sentences = max_sentences
        self.proj = nn.Linear(word_dim, word_dim)
        self.cell = nn.GRUCell(word_dim, sent_dim)
        self.register_buffer("places", sinusoid_table(max_sentences, word_dim), persistent=False)

    def forward(self, states, sent_ids, mask):
        member = F.one_hot(sent_ids, self.max_sentences).to(states.dtype)
        member = member * mask.unsqueeze(-1).to(states.dtype)  # (batch, words, sentences)
        counts = member.sum(dim=1)
        sums = torch.bmm(member.transpose(1, 2), states)
        means = sums / counts.clamp(min=1.0).unsqueeze(-1)
        sent_mask = counts > 0
        x = torch.tanh(self.proj(means)) + self.places.unsqueeze(0)
        sentences, _ = run_masked(self.cell, x, sent_mask)
        return sentences, sent_mask


class CoverageAttention(nn.Module):
    """Additive attention that also sees how much each word was attended to."""

    def __init__(self, enc_dim, dec_dim, attn_dim):
        super().__init__()
        self.key_proj = nn.Linear(enc_dim, attn_dim, bias=False)
        self.query_proj = nn.Linear(dec_dim, attn_dim)
        self.cover_proj = nn.Linear(1, attn_dim, bias=False)
        self.score = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, query, keys, coverage, mask):
        features = keys + self.query_proj(query).unsqueeze(1)
        features = features + self.cover_proj(coverage.unsqueeze(-1))
        energy = self.score(torch.tanh(features)).squeeze(-1)
        return masked_softmax(energy, mask)


class SentenceAttention(nn.Module):
    """Scaled bilinear attention over the sentences, with the bias for the lead."""

    def __init__(self, sent_dim, dec_dim):
        super().__init__()
        self.query_proj = nn.Linear(dec_dim, sent_dim)
        self.scale = sent_dim**-0.5
        self.register_buffer("lead", torch.tensor(LEAD_BIAS), persistent=False)

    def forward(self, query, sentences, sent_mask):
        q = self.query_proj(query)
        scores = torch.einsum("bd,bsd->bs", q, sentences) * self.scale
        scores = scores + self.lead
        return masked_softmax(scores, sent_mask)


def rescale_by_sentence(word_attn, sent_attn, sent_ids):
    """The word's attention times its sentence's, summing to one again (Nallapati et al., 2016)."""
    product = word_attn * sent_attn.gather(1, sent_ids)
    return product / product.sum(dim=1, keepdim=True).clamp(min=TINY)


class Readout(nn.Module):
    """State and context to a distribution over the vocabulary."""

    def __init__(self, in_dim, hidden, vocab_size, dropout):
        super().__init__()
        self.fc1 = nn.Linear(in_dim, hidden)
        self.bn = nn.BatchNorm1d(hidden, eps=1e-3)
        self.act = nn.GELU()
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, vocab_size)

    def forward(self, state, context):
        hidden = self.fc1(torch.cat((state, context), dim=-1))
        hidden = self.dropout(self.act(self.bn(hidden)))
        return torch.softmax(self.fc2(hidden), dim=-1)


class PointerDecoder(nn.Module):
    """One step: input feeding, the GRU, both attentions, the vocabulary, the gate and the copies."""

    def __init__(self, cfg):
        super().__init__()
        enc_dim = 2 * cfg.enc_hidden
        self.vocab_size = cfg.vocab_size
        self.max_oov = cfg.max_oov
        self.feed = nn.Linear(cfg.emb_dim + enc_dim, cfg.emb_dim)
        self.cell = nn.GRUCell(cfg.emb_dim, cfg.dec_hidden)
        self.word_attn = CoverageAttention(enc_dim, cfg.dec_hidden, cfg.attn_dim)
        self.sent_attn = SentenceAttention(cfg.sent_dim, cfg.dec_hidden)
        self.gate = nn.Linear(enc_dim + cfg.dec_hidden + cfg.emb_dim, 1)
        self.readout = Readout(cfg.dec_hidden + enc_dim, cfg.readout_dim, cfg.vocab_size, cfg.dropout)

    def mix(self, vocab_dist, attn, p_gen, article_ext):
        """The distribution over the vocabulary and the article's unknown words."""
        batch = vocab_dist.shape[0]
        generated = p_gen * vocab_dist
        copied = (1.0 - p_gen) * attn
        extra = generated.new_zeros(batch, self.max_oov)
        extended = torch.cat((generated, extra), dim=1)
        return extended.scatter_add(1, article_ext, copied)

    def forward(self, word, state, context, coverage, memory):
        x = self.feed(torch.cat((word, context), dim=-1))
        state = self.cell(x, state)

        word_attn = self.word_attn(state, memory["keys"], coverage, memory["mask"])
        sent_attn = self.sent_attn(state, memory["sentences"], memory["sent_mask"])
        attn = rescale_by_sentence(word_attn, sent_attn, memory["sent_ids"])
        context = torch.bmm(attn.unsqueeze(1), memory["states"]).squeeze(1)

        p_gen = torch.sigmoid(self.gate(torch.cat((context, state, x), dim=-1)))
        vocab_dist = self.readout(state, context)
        final_dist = self.mix(vocab_dist, attn, p_gen, memory["article_ext"])

        penalty = torch.min(attn, coverage).sum(dim=1)
        coverage = coverage + attn
        return final_dist, state, context, coverage, attn, p_gen.squeeze(-1), penalty


class PointerGenerator(nn.Module):
    """Summaries of padded articles: scores of every step, attentions, gates, coverage and loss."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        enc_dim = 2 * cfg.enc_hidden
        self.embedding = nn.Embedding(cfg.vocab_size, cfg.emb_dim, padding_idx=PAD)
        self.article = ArticleEmbedding(cfg, cfg.emb_dim)
        self.encoder = BiGRUEncoder(cfg.emb_dim, cfg.enc_hidden)
        self.bridge = StateBridge(enc_dim, cfg.dec_hidden)
        self.sentences = SentenceEncoder(enc_dim, cfg.sent_dim, cfg.max_sentences)
        self.decoder = PointerDecoder(cfg)

    def encode(self, article, article_ext, lengths, sent_ids):
        mask = length_mask(lengths, article.shape[1])
        x = self.article(self.embedding(article), mask)
        states, last = self.encoder(x, mask)
        sentences, sent_mask = self.sentences(states, sent_ids, mask)
        memory = {
            "states": states,
            "keys": self.decoder.word_attn.key_proj(states),
            "mask": mask,
            "sentences": sentences,
            "sent_mask": sent_mask,
            "sent_ids": sent_ids,
            "article_ext": article_ext,
        }
        return memory, self.bridge(last)

    def pick(self, final_dist, previous):
        """The greedy word: never padding nor the unknown word, never the same word twice in a row.

        Copied words outside the vocabulary are returned with their extended ids.
        """
        blocked = torch.zeros_like(final_dist, dtype=torch.bool)
        blocked[:, [PAD, UNK]] = True
        blocked.scatter_(1, previous.unsqueeze(1), True)
        return final_dist.masked_fill(blocked, -1.0).argmax(dim=1)

    def losses(self, dists, penalties, target):
        """Negative log likelihood and coverage, a mean over each summary's own words."""
        weight = (target != PAD).to(dists.dtype)
        gold = dists.gather(2, target.unsqueeze(-1)).squeeze(-1)
        nll = -torch.log(gold + TINY)
        step_loss = nll + COVERAGE_WEIGHT * penalties
        return (step_loss * weight).sum(dim=1) / weight.sum(dim=1)

    def forward(self, article, article_ext, lengths, sent_ids, summary, target):
        """Words come as ids, article_ext and target in the extended vocabulary; summary is the target, shifted."""
        cfg = self.cfg
        memory, state = self.encode(article, article_ext, lengths, sent_ids)
        batch, words = article.shape
        coverage = memory["states"].new_zeros(batch, words)
        context = memory["states"].new_zeros(batch, memory["states"].shape[-1])

        dists, attns, gates, penalties = [], [], [], []
        chosen = summary[:, 0]
        for step in range(cfg.max_steps):
            if step < cfg.teacher_steps:
                token = summary[:, step]
            else:
                token = torch.where(chosen < cfg.vocab_size, chosen, torch.full_like(chosen, UNK))
            word = self.embedding(token)
            dist, state, context, coverage, attn, p_gen, penalty = self.decoder(
                word, state, context, coverage, memory
            )
            chosen = self.pick(dist, chosen)
            dists.append(dist)
            attns.append(attn)
            gates.append(p_gen)
            penalties.append(penalty)

        dists = torch.stack(dists, dim=1)
        loss = self.losses(dists, torch.stack(penalties, dim=1), target)
        log_probs = torch.log(dists + TINY)
        return log_probs, torch.stack(attns, dim=1), torch.stack(gates, dim=1), coverage, loss


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.15)
            module.weight.data[PAD] = 0.0
        elif isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.004, 0.03)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.GRUCell):
            nn.init.normal_(module.weight_ih, std=module.input_size**-0.5)
            nn.init.normal_(module.weight_hh, std=module.hidden_size**-0.5)
            nn.init.normal_(module.bias_ih, std=0.2)
            nn.init.normal_(module.bias_hh, std=0.2)
    # words are small, so the decoder learnt to read them with large weights
    net.decoder.feed.weight.data[:, : net.cfg.emb_dim] *= 5.0
    net.decoder.word_attn.score.weight.data *= 2.0
    net.decoder.word_attn.key_proj.weight.data *= 1.8
    net.decoder.sent_attn.query_proj.weight.data *= 1.6
    net.decoder.readout.fc1.weight.data *= 0.25
    net.decoder.readout.fc2.weight.data *= 1.5
    return net


def make_batch(cfg):
    """Three articles of 19, 11 and 15 words with unknown words and repetitions, and their summaries."""
    lengths = torch.tensor([19, 11, 15])
    ends = ((4, 8, 11, 16, 19), (5, 9, 11), (3, 8, 12, 15))
    batch, size = len(ends), int(lengths.max())
    article_ext = torch.randint(4, cfg.vocab_size, (batch, size))
    for row, oovs in enumerate(([2, 7, 9, 13], [1, 6], [4, 5, 10])):
        for extra, place in enumerate(oovs):
            article_ext[row, place] = cfg.vocab_size + extra
    # words that come more than once, known and unknown
    article_ext[0, 12], article_ext[0, 17] = article_ext[0, 3], article_ext[0, 7]
    article_ext[1, 8], article_ext[1, 10] = article_ext[1, 1], article_ext[1, 2]
    article_ext[2, 9], article_ext[2, 14] = article_ext[2, 0], article_ext[2, 5]

    sent_ids = torch.zeros(batch, size, dtype=torch.long)
    for row, row_ends in enumerate(ends):
        begin = 0
        for index, end in enumerate(row_ends):
            sent_ids[row, begin:end] = index
            begin = end
    mask = length_mask(lengths, size)
    article_ext = article_ext.masked_fill(~mask, PAD)
    article = article_ext.masked_fill(article_ext >= cfg.vocab_size, UNK)

    target = torch.full((batch, cfg.max_steps), PAD)
    for row, places in enumerate(([0, 2, 3, 7, 11, 13, 18], [1, 2, 4, 6], [0, 4, 5, 8, 11])):
        target[row, : len(places)] = article_ext[row, places]
        target[row, len(places)] = STOP
    summary = torch.cat((torch.full((batch, 1), START), target[:, :-1]), dim=1)
    summary = summary.masked_fill(summary >= cfg.vocab_size, UNK)
    return article, article_ext, lengths, sent_ids, summary, target


def build():
    """The net with the same weights on every run, and a batch of three articles."""
    torch.manual_seed(1704)
    cfg = Config()
    net = trained_like(PointerGenerator(cfg))
    return net.eval(), make_batch(cfg)
