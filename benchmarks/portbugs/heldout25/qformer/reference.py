"""A small BLIP-2 style first stage: vision tower, querying transformer, contrast, matching, captions and decoding."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

PAD_ID, CLS_ID, EOS_ID, BOS_ID = 0, 1, 2, 3
IGNORE_INDEX = -100


class Config:
    patch = 8
    stem_width = 14
    train_grid = (4, 6)
    vision_width = 36
    vision_heads = 3
    vision_depth = 3
    vision_hidden = 90
    num_query = 6
    width = 40
    heads = 5
    depth = 4
    hidden = 72
    cross_frequency = 2
    vocab = 53
    max_positions = 24
    embed_dim = 20
    queue_size = 13
    label_smoothing = 0.1
    prompt = (BOS_ID, 11, 27)
    max_new_tokens = 5
    min_new_tokens = 2
    repetition_penalty = 1.4
    length_penalty = 0.8


class ConvStem(nn.Module):
    """Two convolutions instead of one big patch projection."""

    def __init__(self, width, out_width):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.norm = nn.GroupNorm(7, width, eps=1e-5)
        self.act = nn.ReLU()
        self.proj = nn.Conv2d(width, out_width, 4, stride=4)

    def forward(self, x):
        return self.proj(self.act(self.norm(self.conv(x))))


class Mlp(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class VisionAttention(nn.Module):
    """Attention with biases on queries and values only, as in EVA."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, width * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(width))
        self.v_bias = nn.Parameter(torch.zeros(width))
        self.proj = nn.Linear(width, width)

    def forward(self, x, valid):
        b, n, c = x.shape
        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, bias)
        qkv = qkv.reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn.masked_fill(~valid[:, None, None, :], torch.finfo(attn.dtype).min).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


class VisionBlock(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = VisionAttention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width, hidden)
        self.gamma_1 = nn.Parameter(torch.ones(width))
        self.gamma_2 = nn.Parameter(torch.ones(width))

    def forward(self, x, valid):
        x = x + self.gamma_1 * self.attn(self.norm1(x), valid)
        return x + self.gamma_2 * self.mlp(self.norm2(x))


class LocalPosition(nn.Module):
    """Depthwise convolution over the grid of patches as a position encoding; the class token passes."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=2, dilation=2, groups=width)

    def forward(self, x, grid, valid):
        cls_token, patches = x[:, :1], x[:, 1:]
        image = (patches * valid[:, 1:, None]).transpose(1, 2).reshape(x.shape[0], -1, *grid)
        return torch.cat((cls_token, patches + self.conv(image).flatten(2).transpose(1, 2)), dim=1)


class VisionTower(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.patch = cfg.patch
        self.train_grid = cfg.train_grid
        width = cfg.vision_width
        self.stem = ConvStem(cfg.stem_width, width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + math.prod(cfg.train_grid), width))
        blocks = (VisionBlock(width, cfg.vision_heads, cfg.vision_hidden) for _ in range(cfg.vision_depth))
        self.blocks = nn.ModuleList(blocks)
        self.local_pos = LocalPosition(width)

    def interpolate_pos_embed(self, grid):
        if tuple(grid) == tuple(self.train_grid):
            return self.pos_embed
        cls_pos, patch_pos = self.pos_embed[:, :1], self.pos_embed[:, 1:]
        patch_pos = patch_pos.reshape(1, *self.train_grid, -1).permute(0, 3, 1, 2)
        patch_pos = F.interpolate(patch_pos, size=grid, mode="bicubic", align_corners=False)
        return torch.cat((cls_pos, patch_pos.flatten(2).transpose(1, 2)), dim=1)

    def patch_mask(self, image_sizes, grid):
        """True for the class token and for the patches that hold at least one pixel of the image."""
        rows = torch.arange(grid[0])[None, :] * self.patch < image_sizes[:, :1]
        cols = torch.arange(grid[1])[None, :] * self.patch < image_sizes[:, 1:]
        mask = (rows[:, :, None] & cols[:, None, :]).flatten(1)
        return F.pad(mask, (1, 0), value=True)

    def forward(self, images, image_sizes):
        x = self.stem(images)
        grid = tuple(x.shape[2:])
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.interpolate_pos_embed(grid)
        valid = self.patch_mask(image_sizes, grid)
        for index, block in enumerate(self.blocks):
            x = block(x, valid)
            if index == 0:
                x = self.local_pos(x, grid, valid)
        return x, valid


def build_self_mask(mode, num_query, text_mask, past_length=0):
    """(batch, rows, keys), True where a row may look; causal is for the words, which see all queries."""
    b, num_text = text_mask.shape
    total = num_query + num_text
    allowed = torch.ones(total, past_length + total, dtype=torch.bool)
    first_word = past_length + num_query
    if mode == "separated":
        allowed[:num_query, first_word:] = False
        allowed[num_query:, :first_word] = False
    elif mode == "causal":
        allowed[:num_query, first_word:] = False
        allowed[num_query:, first_word:] = torch.ones(num_text, num_text, dtype=torch.bool).tril()
    keys = torch.cat((torch.ones(b, first_word, dtype=torch.bool), text_mask.bool()), dim=1)
    return allowed[None] & keys[:, None, :]


class TextEmbeddings(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.word = nn.Embedding(cfg.vocab, cfg.width, padding_idx=PAD_ID)
        self.position = nn.Embedding(cfg.max_positions, cfg.width)
        self.norm = nn.LayerNorm(cfg.width, eps=1e-12)

    def forward(self, query_embeds, input_ids, past_text):
        parts = [] if query_embeds is None else [query_embeds]
        if input_ids is not None:
            position_ids = torch.arange(past_text, past_text + input_ids.shape[1])
            parts.append(self.word(input_ids) + self.position(position_ids)[None])
        return self.norm(torch.cat(parts, dim=1))


class MultiHeadAttention(nn.Module):
    """BERT's attention with its output projection, residual and norm; context makes it cross-attention."""

    def __init__(self, width, heads, context_width=None):
        super().__init__()
        self.heads = heads
        context_width = context_width or width
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(context_width, width)
        self.value = nn.Linear(context_width, width)
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, hidden, mask, context=None, past=None):
        source = hidden if context is None else context
        q = self.split(self.query(hidden))
        k, v = self.split(self.key(source)), self.split(self.value(source))
        if past is not None:
            k = torch.cat((past[0], k), dim=2)
            v = torch.cat((past[1], v), dim=2)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
        scores = torch.where(mask[:, None], scores, torch.finfo(scores.dtype).min)
        out = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(dim=-1), v)
        out = out.permute(0, 2, 1, 3).flatten(2)
        return self.norm(self.dense(out) + hidden), (k, v)


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.dense_in = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.dense_out = nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x):
        return self.norm(self.dense_out(self.act(self.dense_in(x))) + x)


class QFormerLayer(nn.Module):
    def __init__(self, cfg, index):
        super().__init__()
        self.attention = MultiHeadAttention(cfg.width, cfg.heads)
        self.has_cross = index % cfg.cross_frequency == 0
        if self.has_cross:
            self.crossattention = MultiHeadAttention(cfg.width, cfg.heads, cfg.vision_width)
        self.ffn_text = FeedForward(cfg.width, cfg.hidden)
        self.ffn_query = FeedForward(cfg.width, cfg.hidden)

    def forward(self, hidden, mask, num_query, image_embeds=None, image_mask=None, past=None):
        hidden, present = self.attention(hidden, mask, past=past)
        if num_query == 0:  # a decoding step
            return self.ffn_text(hidden), present
        queries, words = hidden[:, :num_query], hidden[:, num_query:]
        if self.has_cross:
            queries, _ = self.crossattention(queries, image_mask[:, None, :], context=image_embeds)
        out = self.ffn_query(queries)
        if words.shape[1] > 0:
            out = torch.cat((out, self.ffn_text(words)), dim=1)
        return out, present


class QFormer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.num_query = cfg.num_query
        self.embeddings = TextEmbeddings(cfg)
        self.layers = nn.ModuleList(QFormerLayer(cfg, index) for index in range(cfg.depth))

    def forward(self, mode, query_embeds=None, input_ids=None, text_mask=None, image_embeds=None, image_mask=None,
                past=None):
        past_length = 0 if past is None else past[0][0].shape[2]
        hidden = self.embeddings(query_embeds, input_ids, max(past_length - self.num_query, 0))
        num_query = 0 if query_embeds is None else query_embeds.shape[1]
        if text_mask is None:
            text_mask = torch.ones(hidden.shape[0], hidden.shape[1] - num_query)
        mask = build_self_mask(mode, num_query, text_mask, past_length)
        presents = []
        for layer, layer_past in zip(self.layers, past or [None] * len(self.layers)):
            hidden, present = layer(hidden, mask, num_query, image_embeds, image_mask, layer_past)
            presents.append(present)
        return hidden, presents


class LMHead(nn.Module):
    """BERT's head for words; the table of words is that of the embeddings."""

    def __init__(self, cfg):
        super().__init__()
        self.dense = nn.Linear(cfg.width, cfg.width)
        self.act = nn.GELU()
        self.norm = nn.LayerNorm(cfg.width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(cfg.vocab))

    def forward(self, hidden, table):
        return F.linear(self.norm(self.act(self.dense(hidden))), table, self.bias)


def penalise_repetition(scores, token_ids, penalty):
    """Scores of the tokens that have occurred: divided where positive, multiplied where negative."""
    seen = torch.gather(scores, 1, token_ids)
    seen = torch.where(seen < 0, seen * penalty, seen / penalty)
    return scores.scatter(1, token_ids, seen)


class Blip2QFormer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.visual = VisionTower(cfg)
        self.ln_vision = nn.LayerNorm(cfg.vision_width)
        self.query_tokens = nn.Parameter(torch.zeros(1, cfg.num_query, cfg.width))
        self.qformer = QFormer(cfg)
        self.lm_head = LMHead(cfg)
        self.vision_proj = nn.Linear(cfg.width, cfg.embed_dim)
        self.text_proj = nn.Linear(cfg.width, cfg.embed_dim)
        self.itm_head = nn.Linear(cfg.width, 2)
        self.temp = nn.Parameter(torch.tensor(0.07))
        self.register_buffer("image_queue", torch.zeros(cfg.queue_size, cfg.num_query, cfg.embed_dim))
        self.register_buffer("text_queue", torch.zeros(cfg.queue_size, cfg.embed_dim))
        self.register_buffer("queue_ids", torch.full((cfg.queue_size,), -1, dtype=torch.long))

    def contrast(self, queries, image_embeds, image_mask, input_ids, text_mask, image_ids):
        """Similarities of each image with all texts, of each text with all images, and the loss."""
        hidden, _ = self.qformer("separated", queries, input_ids, text_mask, image_embeds, image_mask)
        image_feats = F.normalize(self.vision_proj(hidden[:, : self.cfg.num_query]), dim=-1)
        text_feats = F.normalize(self.text_proj(hidden[:, self.cfg.num_query]), dim=-1)

        image_all = torch.cat((image_feats, self.image_queue), dim=0)
        text_all = torch.cat((text_feats, self.text_queue), dim=0)
        temp = self.temp.clamp(0.001, 0.5)
        sim_i2t = torch.einsum("bqd,kd->bqk", image_feats, text_all).max(dim=1).values / temp
        sim_t2i = torch.einsum("bd,kqd->bkq", text_feats, image_all).max(dim=-1).values / temp

        ids_all = torch.cat((image_ids, self.queue_ids))
        targets = (image_ids[:, None] == ids_all[None, :]).float()
        targets = targets / targets.sum(dim=1, keepdim=True)
        loss_i2t = -(F.log_softmax(sim_i2t, dim=1) * targets).sum(dim=1).mean()
        loss_t2i = -(F.log_softmax(sim_t2i, dim=1) * targets).sum(dim=1).mean()
        return sim_i2t, sim_t2i, (loss_i2t + loss_t2i) / 2

    def match(self, queries, image_embeds, image_mask, input_ids, text_mask, image_ids, sim_i2t, sim_t2i):
        """Logits of matching for the pairs, for hard images with the texts and for the images with hard texts."""
        b = input_ids.shape[0]
        same = image_ids[:, None] == image_ids[None, :]
        weights_t2i = sim_t2i[:, :b].softmax(dim=1).masked_fill(same, 0.0)
        weights_i2t = sim_i2t[:, :b].softmax(dim=1).masked_fill(same, 0.0)
        hard_image, hard_text = weights_t2i.argmax(dim=1), weights_i2t.argmax(dim=1)

        image_embeds_all = torch.cat((image_embeds, image_embeds[hard_image], image_embeds))
        image_mask_all = torch.cat((image_mask, image_mask[hard_image], image_mask))
        ids_all = torch.cat((input_ids, input_ids, input_ids[hard_text]))
        text_mask_all = torch.cat((text_mask, text_mask, text_mask[hard_text]))
        queries = queries.repeat(3, 1, 1)
        hidden, _ = self.qformer("bidirectional", queries, ids_all, text_mask_all, image_embeds_all, image_mask_all)
        logits = self.itm_head(hidden[:, : self.cfg.num_query]).mean(dim=1)
        labels = torch.tensor([1] * b + [0] * (2 * b))
        return logits, F.cross_entropy(logits, labels)

    def caption(self, queries, image_embeds, image_mask, input_ids, text_mask):
        """The smoothed loss of each caption, a mean over its words, and the logits."""
        decoder_ids = input_ids.clone()
        decoder_ids[:, 0] = BOS_ID
        labels = decoder_ids.masked_fill(text_mask == 0, IGNORE_INDEX)
        hidden, _ = self.qformer("causal", queries, decoder_ids, text_mask, image_embeds, image_mask)
        logits = self.lm_head(hidden[:, self.cfg.num_query :], self.qformer.embeddings.word.weight)
        shifted, labels = logits[:, :-1], labels[:, 1:]
        loss = F.cross_entropy(
            shifted.transpose(1, 2), labels, reduction="none", label_smoothing=self.cfg.label_smoothing
        )
        return loss.sum(dim=1) / (labels != IGNORE_INDEX).sum(dim=1), logits

    def generate(self, queries, image_embeds, image_mask):
        """Greedy decoding: the queries fill the cache once, then the prompt, then word by word."""
        cfg = self.cfg
        table = self.qformer.embeddings.word.weight
        b = image_embeds.shape[0]
        _, past = self.qformer("causal", queries, image_embeds=image_embeds, image_mask=image_mask)
        token_ids = torch.tensor(cfg.prompt)[None].repeat(b, 1)
        finished = torch.zeros(b, dtype=torch.bool)
        total, length = torch.zeros(b), torch.zeros(b)
        step_ids, all_logits = token_ids, []
        for step in range(cfg.max_new_tokens):
            hidden, past = self.qformer("causal", input_ids=step_ids, past=past)
            logits = self.lm_head(hidden[:, -1], table)
            all_logits.append(logits)
            scores = penalise_repetition(logits, token_ids, cfg.repetition_penalty)
            if step < cfg.min_new_tokens:
                scores[:, EOS_ID] = -float("inf")
            log_probs = scores.log_softmax(dim=-1)
            best, chosen = log_probs.max(dim=-1)
            alive = (~finished).float()
            total, length = total + best * alive, length + alive
            chosen = chosen.masked_fill(finished, PAD_ID)
            finished = finished | (chosen == EOS_ID)
            step_ids = chosen[:, None]
            token_ids = torch.cat((token_ids, step_ids), dim=1)
        return token_ids, total / length**cfg.length_penalty, torch.stack(all_logits, dim=1)

    def forward(self, images, image_sizes, input_ids, text_mask, image_ids):
        image_embeds, image_mask = self.visual(images, image_sizes)
        image_embeds = self.ln_vision(image_embeds)
        queries = self.query_tokens.expand(images.shape[0], -1, -1)
        seen = (queries, image_embeds, image_mask)

        sim_i2t, sim_t2i, loss_itc = self.contrast(*seen, input_ids, text_mask, image_ids)
        itm_logits, loss_itm = self.match(*seen, input_ids, text_mask, image_ids, sim_i2t, sim_t2i)
        caption_loss, caption_logits = self.caption(*seen, input_ids, text_mask)
        token_ids, token_scores, step_logits = self.generate(*seen)
        losses = torch.stack((loss_itc, loss_itm))
        return sim_i2t, sim_t2i, itm_logits, losses, caption_loss, caption_logits, token_ids, token_scores, step_logits


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for name, parameter in net.named_parameters():
        if name.endswith(("pos_embed", "cls_token")):
            nn.init.normal_(parameter, std=0.5)
        elif "gamma_" in name:
            nn.init.uniform_(parameter, 0.3, 1.1)
        elif name.endswith(("q_bias", "v_bias")):
            nn.init.normal_(parameter, std=0.4)
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, std=1.2 * module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.03)
    nn.init.normal_(net.query_tokens, std=0.03)
    net.lm_head.norm.weight.data *= 8.0
    nn.init.normal_(net.lm_head.bias, std=0.4)
    net.lm_head.bias.data[EOS_ID] += 3.8
    net.image_queue.copy_(F.normalize(torch.randn(net.image_queue.shape), dim=-1))
    net.text_queue.copy_(F.normalize(torch.randn(net.text_queue.shape), dim=-1))
    net.queue_ids.copy_(torch.randint(0, 12, net.queue_ids.shape))
    return net


def build():
    """The net with the same weights on every run, and three images with their captions."""
    torch.manual_seed(2301)
    net = trained_like(Blip2QFormer(Config()))
    image_sizes = torch.tensor([[40, 56], [26, 56], [40, 33]])
    images = 0.5 * torch.randn(3, 3, 40, 56)
    images = images + F.interpolate(torch.randn(3, 3, 5, 7), size=(40, 56), mode="bilinear", align_corners=False)
    for image, (height, width) in zip(images, image_sizes.tolist()):
        image[:, height:] = 0.0
        image[:, :, width:] = 0.0
    text_mask = (torch.arange(9)[None, :] < torch.tensor([9, 5, 7])[:, None]).long()
    input_ids = torch.randint(4, 53, (3, 9)) * text_mask
    input_ids[:, 0] = CLS_ID
    input_ids[torch.arange(3), text_mask.sum(dim=1) - 1] = EOS_ID
    image_ids = torch.tensor([4, 9, 2])
    return net.eval(), (images, image_sizes, input_ids, text_mask, image_ids)
