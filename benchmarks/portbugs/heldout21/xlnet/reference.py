"""An XLNet (two-stream relative attention over a Transformer-XL memory) with heads for tokens and spans, in PyTorch.

Tensors inside are length first, (length, batch, channels), as in the original code; inputs and outputs are batch first.
"""

from __future__ import annotations

from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn

PAD_ID, SEP_ID, CLS_ID = 0, 3, 4
INF = 1e30

Memory = namedtuple("Memory", ["states", "pad", "segments"])


class Config:
    vocab_size = 53
    char_vocab = 29
    char_dim = 14
    d_model = 36
    n_head = 4
    d_head = 10
    d_inner = 68
    n_layer = 3
    clamp_len = 9
    mem_len = 8
    reuse_len = 10
    chunk_len = 13
    token_hidden = 30
    start_n_top = 6
    max_answer_len = 9
    layer_norm_eps = 1e-12
    head_norm_eps = 1e-3
    dropout = 0.1


def rel_shift(x, klen):
    """Row i of x (batch, heads, qlen, plen) goes i places to the right, so that columns become keys."""
    b, n, qlen, plen = x.shape
    x = x.reshape(b, n, plen, qlen)
    x = x[:, :, 1:, :]
    x = x.reshape(b, n, qlen, plen - 1)
    return x[:, :, :, :klen]


def local_permutation_mask(rank, is_target, is_func):
    """What may not be seen in this order of factorisation: (batch, query, key), 1 where the key is hidden.

    rank is each token's place in the order. Only tokens that are predicted are hidden, from those that come before them
    in the order and from themselves; a functional token has a place in the order, the others come first.
    """
    visible = ~is_target & ~is_func
    rev_index = torch.where(visible, torch.full_like(rank, -1), rank)
    self_rev_index = torch.where(is_target, rev_index, rev_index + 1)
    order = self_rev_index[:, :, None] <= rev_index[:, None, :]
    return (order & is_target[:, None, :]).float()


def positional_embedding(pos_seq, inv_freq):
    sinusoid = torch.einsum("i,d->id", pos_seq, inv_freq)
    return torch.cat([torch.sin(sinusoid), torch.cos(sinusoid)], dim=-1)


class CharCNN(nn.Module):
    """Spelling of a word: a dilated convolution over its characters, then the maximum."""

    def __init__(self, cfg):
        super().__init__()
        self.char_embedding = nn.Embedding(cfg.char_vocab, cfg.char_dim, padding_idx=0)
        self.conv = nn.Conv1d(cfg.char_dim, cfg.d_model, 3, padding=2, dilation=2, groups=2)
        self.norm = nn.BatchNorm1d(cfg.d_model, eps=1e-5)
        self.act = nn.Tanh()

    def forward(self, char_ids):
        b, length, n_chars = char_ids.shape
        flat = char_ids.reshape(b * length, n_chars)
        x = self.char_embedding(flat).transpose(1, 2)
        x = self.act(self.norm(self.conv(x)))
        blank = (flat == 0)[:, None, :]
        x = x.masked_fill(blank, -INF)
        x = x.max(dim=2).values
        # words without any character (padding, functional tokens) have no spelling
        x = torch.where(blank.all(dim=2), torch.zeros_like(x), x)
        return x.reshape(b, length, -1)


class RelativeAttention(nn.Module):
    """Relative attention with the three terms of XLNet: content, position, segment."""

    def __init__(self, cfg):
        super().__init__()
        d_model, n_head, d_head = cfg.d_model, cfg.n_head, cfg.d_head
        self.scale = 1 / d_head**0.5
        self.q = nn.Parameter(torch.empty(d_model, n_head, d_head))
        self.k = nn.Parameter(torch.empty(d_model, n_head, d_head))
        self.v = nn.Parameter(torch.empty(d_model, n_head, d_head))
        self.o = nn.Parameter(torch.empty(d_model, n_head, d_head))
        self.r = nn.Parameter(torch.empty(d_model, n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.empty(n_head, d_head))
        self.r_s_bias = nn.Parameter(torch.empty(n_head, d_head))
        self.r_w_bias = nn.Parameter(torch.empty(n_head, d_head))
        self.seg_embed = nn.Parameter(torch.empty(2, n_head, d_head))
        self.layer_norm = nn.LayerNorm(d_model, eps=cfg.layer_norm_eps)
        self.dropout = nn.Dropout(cfg.dropout)

    def rel_attn_core(self, q_head, k_head, v_head, k_head_r, seg_mat, attn_mask):
        # content based attention score
        ac = torch.einsum("ibnd,jbnd->bnij", q_head + self.r_w_bias, k_head)
        # position based attention score
        bd = torch.einsum("ibnd,jnd->bnij", q_head + self.r_r_bias, k_head_r)
        bd = rel_shift(bd, klen=ac.shape[3])
        # segment based attention score
        ef = torch.einsum("ibnd,snd->ibns", q_head + self.r_s_bias, self.seg_embed)
        ef = torch.einsum("ijbs,ibns->bnij", seg_mat, ef)

        attn_score = (ac + bd + ef) * self.scale
        attn_score = attn_score - INF * torch.einsum("ijb->bij", attn_mask)[:, None]
        attn_prob = self.dropout(F.softmax(attn_score, dim=3))
        return torch.einsum("bnij,jbnd->ibnd", attn_prob, v_head)

    def post_attention(self, inputs, attn_vec):
        attn_out = torch.einsum("ibnd,hnd->ibh", attn_vec, self.o)
        return self.layer_norm(self.dropout(attn_out) + inputs)

    def forward(self, h, g, mask_h, mask_g, pos_emb, seg_mat, mems, target_mapping):
        cat = h if mems is None else torch.cat([mems, h], dim=0)
        # keys and values of both streams are those of the content stream
        k_head_h = torch.einsum("ibh,hnd->ibnd", cat, self.k)
        v_head_h = torch.einsum("ibh,hnd->ibnd", cat, self.v)
        k_head_r = torch.einsum("ih,hnd->ind", pos_emb, self.r)

        # content stream
        q_head_h = torch.einsum("ibh,hnd->ibnd", h, self.q)
        attn_vec_h = self.rel_attn_core(q_head_h, k_head_h, v_head_h, k_head_r, seg_mat, mask_h)
        output_h = self.post_attention(h, attn_vec_h)

        # query stream
        q_head_g = torch.einsum("ibh,hnd->ibnd", g, self.q)
        q_head_g = torch.einsum("mbnd,mlb->lbnd", q_head_g, target_mapping)
        attn_vec_g = self.rel_attn_core(q_head_g, k_head_h, v_head_h, k_head_r, seg_mat, mask_g)
        attn_vec_g = torch.einsum("lbnd,mlb->mbnd", attn_vec_g, target_mapping)
        output_g = self.post_attention(g, attn_vec_g)
        return output_h, output_g


class FeedForward(nn.Module):
    """Perceptron, the norm after the sum."""

    def __init__(self, cfg):
        super().__init__()
        self.layer_norm = nn.LayerNorm(cfg.d_model, eps=cfg.layer_norm_eps)
        self.layer_1 = nn.Linear(cfg.d_model, cfg.d_inner)
        self.activation = nn.GELU()
        self.layer_2 = nn.Linear(cfg.d_inner, cfg.d_model)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, inp):
        output = self.dropout(self.activation(self.layer_1(inp)))
        output = self.dropout(self.layer_2(output))
        return self.layer_norm(output + inp)


class XLNetLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.rel_attn = RelativeAttention(cfg)
        self.ff = FeedForward(cfg)

    def forward(self, h, g, mask_h, mask_g, pos_emb, seg_mat, mems, target_mapping):
        h, g = self.rel_attn(h, g, mask_h, mask_g, pos_emb, seg_mat, mems, target_mapping)
        return self.ff(h), self.ff(g)


class TokenHead(nn.Module):
    """Scores of all words of the vocabulary, against their embeddings."""

    def __init__(self, cfg):
        super().__init__()
        self.dense = nn.Linear(cfg.d_model, cfg.token_hidden)
        self.act = nn.LeakyReLU(0.1)
        self.norm = nn.LayerNorm(cfg.token_hidden, eps=cfg.head_norm_eps)
        self.decoder = nn.Linear(cfg.token_hidden, cfg.d_model, bias=False)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab_size))

    def forward(self, x, table):
        x = self.decoder(self.norm(self.act(self.dense(x))))
        return F.linear(x, table, self.bias)


class StartHead(nn.Module):
    """Score of each token as the first of the span."""

    def __init__(self, cfg):
        super().__init__()
        self.dense = nn.Linear(cfg.d_model, 1)

    def forward(self, hidden, p_mask):
        x = self.dense(hidden).squeeze(-1)
        return x * (1 - p_mask) - INF * p_mask


class EndHead(nn.Module):
    """Score of each token as the last of the span, for each of the likely starts: (batch, length, starts)."""

    def __init__(self, cfg):
        super().__init__()
        self.max_answer_len = cfg.max_answer_len
        self.dense_0 = nn.Linear(cfg.d_model * 2, cfg.d_model)
        self.act = nn.Tanh()
        self.norm = nn.LayerNorm(cfg.d_model, eps=cfg.head_norm_eps)
        self.dense_1 = nn.Linear(cfg.d_model, 1)

    def forward(self, hidden, start_index, p_mask):
        b, slen, hsz = hidden.shape
        n_top = start_index.shape[1]
        index = start_index.unsqueeze(-1).expand(-1, -1, hsz)
        start_states = torch.gather(hidden, 1, index)
        start_states = start_states.unsqueeze(1).expand(-1, slen, -1, -1)
        tokens = hidden.unsqueeze(2).expand(-1, -1, n_top, -1)

        x = self.act(self.dense_0(torch.cat([tokens, start_states], dim=-1)))
        x = self.dense_1(self.norm(x)).squeeze(-1)

        # no end before the start, none too far behind it
        place = torch.arange(slen)[None, :, None]
        first = start_index[:, None, :]
        outside = (place < first) | (place >= first + self.max_answer_len)
        blocked = torch.maximum(outside.to(x.dtype), p_mask.unsqueeze(-1))
        return x * (1 - blocked) - INF * blocked


class AnswerHead(nn.Module):
    """Whether there is an answer: from the expected start state and the class token."""

    def __init__(self, cfg):
        super().__init__()
        self.dense_0 = nn.Linear(cfg.d_model * 2, cfg.d_model)
        self.act = nn.Tanh()
        self.dense_1 = nn.Linear(cfg.d_model, 1, bias=False)

    def forward(self, hidden, start_probs):
        start_states = torch.einsum("blh,bl->bh", hidden, start_probs)
        cls_token_state = hidden[:, -1]
        x = self.act(self.dense_0(torch.cat([start_states, cls_token_state], dim=-1)))
        return self.dense_1(x).squeeze(-1)


class XLNet(nn.Module):
    """Reads a long text chunk by chunk, each with the memory of the one before."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.word_embedding = nn.Embedding(cfg.vocab_size, cfg.d_model, padding_idx=PAD_ID)
        self.char_cnn = CharCNN(cfg)
        self.mask_emb = nn.Parameter(torch.empty(1, 1, cfg.d_model))
        self.layers = nn.ModuleList([XLNetLayer(cfg) for _ in range(cfg.n_layer)])
        self.dropout = nn.Dropout(cfg.dropout)
        self.token_head = TokenHead(cfg)
        self.start_head = StartHead(cfg)
        self.end_head = EndHead(cfg)
        self.answer_head = AnswerHead(cfg)
        freq_seq = torch.arange(0, cfg.d_model, 2.0)
        self.register_buffer("inv_freq", 1 / torch.pow(10000, freq_seq / cfg.d_model), persistent=False)

    def relative_positional_encoding(self, qlen, klen):
        """Encodings of the distances klen, ..., -qlen + 1."""
        pos_seq = torch.arange(klen, -qlen, -1.0)
        if self.cfg.clamp_len > 0:
            pos_seq = pos_seq.clamp(-self.cfg.clamp_len, self.cfg.clamp_len)
        return self.dropout(positional_embedding(pos_seq, self.inv_freq))

    def attention_masks(self, perm_mask, pad, mem_pad):
        """Masks (query, key, batch) of the two streams, 1 where a key is hidden; memory comes first among the keys."""
        # (batch, i, j) -> (i, j, batch)
        data_mask = perm_mask.permute(1, 2, 0) + pad[None]
        if mem_pad is not None:
            mems_mask = mem_pad[None].expand(data_mask.shape[0], -1, -1)
            data_mask = torch.cat([mems_mask, data_mask], dim=1)
        mask_g = (data_mask > 0).float()
        # the content stream may always see the token itself
        qlen, klen = data_mask.shape[:2]
        own = torch.cat([torch.zeros(qlen, klen - qlen), torch.eye(qlen)], dim=-1)
        mask_h = ((mask_g - own[:, :, None]) > 0).float()
        return mask_h, mask_g

    def segment_matrix(self, segments, mem_segments):
        """One-hot (query, key, batch, 2): the same segment, or another."""
        keys = segments if mem_segments is None else torch.cat([mem_segments, segments], dim=0)
        differ = (segments[:, None] != keys[None, :]).long()
        return F.one_hot(differ, num_classes=2).float()

    def cache(self, current, previous):
        """What the next chunk shall remember of this one."""
        if self.cfg.reuse_len > 0:
            current = current[: self.cfg.reuse_len]
        if previous is not None:
            current = torch.cat([previous, current], dim=0)
        return current[-self.cfg.mem_len :]

    def run_chunk(self, words, tokens, segments, pad, rank, target_pos, memory):
        """words (length, batch, channels), the rest batch first; both streams, and the memory for the next chunk."""
        qlen = words.shape[0]
        target_mapping = F.one_hot(target_pos.clamp(min=0), num_classes=qlen).float()
        target_mapping = target_mapping * (target_pos >= 0).unsqueeze(-1)
        is_target = target_mapping.sum(dim=1) > 0
        is_func = (tokens == SEP_ID) | (tokens == CLS_ID)
        perm_mask = local_permutation_mask(rank, is_target, is_func)

        pad_t, segments_t = pad.transpose(0, 1), segments.transpose(0, 1)
        mlen = 0 if memory is None else memory.states[0].shape[0]
        mask_h, mask_g = self.attention_masks(perm_mask, pad_t, None if memory is None else memory.pad)
        seg_mat = self.segment_matrix(segments_t, None if memory is None else memory.segments)
        pos_emb = self.relative_positional_encoding(qlen, mlen + qlen)
        mapping = target_mapping.permute(1, 2, 0)

        h = self.dropout(words)
        g = self.dropout(self.mask_emb.expand(target_pos.shape[1], words.shape[1], -1))
        states = []
        for i, layer in enumerate(self.layers):
            mems = None if memory is None else memory.states[i]
            states.append(self.cache(h, mems))
            h, g = layer(h, g, mask_h, mask_g, pos_emb, seg_mat, mems, mapping)
        new_memory = Memory(
            states,
            self.cache(pad_t, None if memory is None else memory.pad),
            self.cache(segments_t, None if memory is None else memory.segments),
        )
        return h, g, new_memory

    def forward(self, token_ids, char_ids, segment_ids, lengths, perm_rank, target_pos):
        """token_ids, segment_ids, perm_rank (batch, length), padded on the left; char_ids (batch, length, characters);
        target_pos (batch, chunks, targets): places inside the chunk, -1 where there is none."""
        length = token_ids.shape[1]
        pad = (torch.arange(length)[None, :] < (length - lengths)[:, None]).float()
        words = self.word_embedding(token_ids) + self.char_cnn(char_ids)
        words = words.transpose(0, 1)

        memory = None
        hidden, queries = [], []
        for c, start in enumerate(range(0, length, self.cfg.chunk_len)):
            part = slice(start, min(start + self.cfg.chunk_len, length))
            h, g, memory = self.run_chunk(
                words[part], token_ids[:, part], segment_ids[:, part], pad[:, part], perm_rank[:, part],
                target_pos[:, c], memory,
            )
            hidden.append(h)
            queries.append(g)
        hidden = self.dropout(torch.cat(hidden, dim=0)).transpose(0, 1)
        queries = self.dropout(torch.cat(queries, dim=0)).transpose(0, 1)

        # tokens
        token_logits = self.token_head(queries, self.word_embedding.weight)
        token_logits = token_logits * (target_pos.flatten(1) >= 0).unsqueeze(-1)

        # spans
        p_mask = torch.maximum(pad, (token_ids == SEP_ID).float())
        start_probs = F.softmax(self.start_head(hidden, p_mask), dim=-1)
        _, start_index = torch.topk(start_probs, self.cfg.start_n_top, dim=-1)
        end_probs = F.softmax(self.end_head(hidden, start_index, p_mask), dim=1)
        answerable = self.answer_head(hidden, start_probs)
        return token_logits, start_probs, end_probs, answerable


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.4, 1.6)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1.3 * module.in_features**-0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.Conv1d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.8)
            module.weight.data[module.padding_idx] = 0
        elif isinstance(module, RelativeAttention):
            for name in "qkvor":
                nn.init.normal_(getattr(module, name), std=1.4 * net.cfg.d_model**-0.5)
            for name in ("r_r_bias", "r_s_bias", "r_w_bias", "seg_embed"):
                nn.init.normal_(getattr(module, name), std=0.7)
    nn.init.normal_(net.mask_emb, std=0.8)
    nn.init.normal_(net.token_head.bias, std=0.3)
    net.end_head.dense_0.weight.data *= 0.04
    net.end_head.dense_0.bias.data *= 0.04
    return net


def make_inputs(cfg):
    """Three texts of different length, two segments each, the class token at the end."""
    batch, length, n_chars, n_target = 3, 25, 8, 5
    lengths = torch.tensor([25, 20, 16])
    token_ids = torch.randint(5, cfg.vocab_size, (batch, length))
    char_ids = torch.randint(1, cfg.char_vocab, (batch, length, n_chars))
    spelled = torch.randint(2, n_chars + 1, (batch, length))
    char_ids = char_ids * (torch.arange(n_chars) < spelled[..., None])
    segment_ids = torch.zeros(batch, length, dtype=torch.long)
    for row, border in enumerate((8, 15, 17)):
        begin = length - int(lengths[row])
        segment_ids[row, border + 1 :] = 1
        segment_ids[row, length - 1] = 2
        token_ids[row, [border, length - 2]] = SEP_ID
        token_ids[row, length - 1] = CLS_ID
        token_ids[row, :begin] = PAD_ID
        char_ids[row, :begin] = 0
        char_ids[row, [border, length - 2, length - 1]] = 0
    perm_rank = torch.cat([torch.stack([torch.randperm(n) for _ in range(batch)]) for n in (13, 12)], dim=1)
    target_pos = torch.tensor([
        [[1, 4, 5, 9, 12], [0, 2, 3, 7, -1]],
        [[6, 7, 11, -1, -1], [0, 4, 6, 8, 9]],
        [[9, 12, -1, -1, -1], [1, 2, 5, 6, 8]],
    ])
    assert target_pos.shape == (batch, 2, n_target)
    return token_ids, char_ids, segment_ids, lengths, perm_rank, target_pos


def build():
    """The net with the same weights on every run, and its inputs."""
    torch.manual_seed(1906)
    cfg = Config()
    net = trained_like(XLNet(cfg))
    return net.eval(), make_inputs(cfg)
