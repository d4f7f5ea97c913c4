"""Two-tower retrieval of illustrated passages (CLIP, SigLIP, ColBERT) and a reranker of the best few, in PyTorch."""

import math

import torch
import torch.nn.functional as F
from torch import nn

PAD, CLS, EOT, MASK, QUERY, PASSAGE = 0, 1, 2, 3, 4, 5
SKIPLIST = (6, 7, 8, 9)  # punctuation
NEG = -1e4


def insert_marker(tokens, marker):
    """[CLS] w1 w2 ... becomes [CLS] [marker] w1 w2 ..."""
    return torch.cat([tokens[:, :1], torch.full_like(tokens[:, :1], marker), tokens[:, 1:]], dim=1)


def expand_query(tokens, amount):
    """Turns the first `amount` paddings behind each query into [MASK], which ColBERT uses for soft expansion."""
    lengths = (tokens != PAD).sum(dim=1, keepdim=True)
    places = torch.arange(tokens.shape[1], device=tokens.device)[None]
    behind = (places >= lengths) & (places < lengths + amount)
    return tokens.masked_fill(behind, MASK)


def standardize(scores):
    """Zero mean and unit deviation over the candidates of each query."""
    return (scores - scores.mean(dim=-1, keepdim=True)) / (scores.std(dim=-1, keepdim=True) + 1e-6)


class TextAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x, bias):
        n, length, width = x.shape
        qkv = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        qkv = qkv.reshape(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1) + bias
        x = attn.softmax(dim=-1) @ v
        return self.out_proj(x.transpose(1, 2).reshape(n, length, width))


class TextBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), TextAttention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x, bias):
        x = x + self.attn(self.ln_1(x), bias)
        h = self.c_fc(self.ln_2(x))
        return x + self.c_proj(h * torch.sigmoid(1.702 * h))


class TextTower(nn.Module):
    """CLIP's text tower; passages are read in both directions and pooled by the mean of their tokens."""

    def __init__(self, vocab, width, heads, depth, embed, context):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.positional_embedding = nn.Parameter(torch.randn(context, width) * 0.3)
        self.blocks = nn.ModuleList([TextBlock(width, heads) for _ in range(depth)])
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.randn(width, embed) * width**-0.5)
        self.register_buffer("causal", torch.full((context, context), NEG).triu(1), persistent=False)

    def forward(self, tokens, causal):
        n, length = tokens.shape
        keep = tokens != PAD
        bias = torch.zeros(n, 1, length, length).masked_fill(~keep[:, None, None, :], NEG)
        if causal:
            bias = bias + self.causal[:length, :length]
        x = self.token_embedding(tokens) + self.positional_embedding[:length]
        for block in self.blocks:
            x = block(x, bias)
        x = self.ln_final(x)
        if causal:
            eot = (tokens == EOT).int().argmax(dim=-1)
            pooled = x[torch.arange(n), eot]
        else:
            weight = keep.unsqueeze(-1).float()
            pooled = (x * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)
        return x, pooled @ self.text_projection


class VisionBlock(nn.Module):
    """SigLIP's block, with a scale for each of its shortcuts' branches."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.gamma_1, self.gamma_2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.out_proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.fc1, self.fc2 = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x, hidden):
        n, length, width = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(n, length, self.heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        attn = (q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)).masked_fill(hidden[:, None, None, :], NEG)
        h = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(n, length, width)
        x = x + self.gamma_1 * self.out_proj(h)
        return x + self.gamma_2 * self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class AttentionPoolingHead(nn.Module):
    """A learned probe looks at all patches (SigLIP's MAP head)."""

    def __init__(self, width, heads):
        super().__init__()
        self.probe = nn.Parameter(torch.randn(1, 1, width))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.layernorm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width))

    def forward(self, x, hidden):
        x = self.attention(self.probe.repeat(len(x), 1, 1), x, x, key_padding_mask=hidden, need_weights=False)[0]
        return (x + self.mlp(self.layernorm(x)))[:, 0]


class ImageTower(nn.Module):
    """Pictures of different size in one padded batch; `sizes` says how many pixels of each are real."""

    def __init__(self, width, heads, depth, embed, grid, patch=8, merge=2):
        super().__init__()
        self.grid, self.patch, self.merge = grid, patch, merge
        conv = nn.Conv2d(3, width // 2, 3, stride=2, padding=1, bias=False)
        self.stem = nn.Sequential(conv, nn.BatchNorm2d(width // 2, eps=1e-3), nn.GELU())
        self.patch_embed = nn.Conv2d(width // 2, width, patch // 2, stride=patch // 2)
        self.pos_embed = nn.Parameter(torch.randn(1, grid * grid, width) * 0.5)
        self.blocks = nn.ModuleList(VisionBlock(width, heads) for _ in range(depth))
        self.post_layernorm, self.head = nn.LayerNorm(width, eps=1e-6), AttentionPoolingHead(width, heads)
        self.projection = nn.Linear(width, embed, bias=False)
        self.merger = nn.Linear(merge * merge * width, width)

    def interpolate_positions(self, height, width):
        table = self.pos_embed.reshape(1, self.grid, self.grid, -1).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=(height, width), mode="bilinear", align_corners=False)
        return table.permute(0, 2, 3, 1).flatten(1, 2)

    def merge_patches(self, x, keep, height, width):
        """Every merge x merge neighbours become one token; the grid is padded below and at the right."""
        m = self.merge
        x = (x * keep.unsqueeze(-1)).reshape(-1, height, width, x.shape[-1])
        keep = keep.reshape(-1, height, width)
        below, right = -height % m, -width % m
        x = F.pad(x, (0, 0, 0, right, 0, below))
        keep = F.pad(keep, (0, right, 0, below))
        rows, columns = (height + below) // m, (width + right) // m
        x = x.reshape(len(x), rows, m, columns, m, -1).permute(0, 1, 3, 2, 4, 5).reshape(len(x), rows * columns, -1)
        keep = keep.reshape(-1, rows, m, columns, m).permute(0, 1, 3, 2, 4).reshape(-1, rows * columns, m * m)
        return self.merger(x), keep.any(dim=-1)

    def forward(self, images, sizes):
        x = self.patch_embed(self.stem(images))
        height, width = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2) + self.interpolate_positions(height, width)
        used = torch.ceil(sizes.float() / self.patch).long()
        down, across = torch.arange(height) < used[:, :1], torch.arange(width) < used[:, 1:]
        keep = (down[:, :, None] & across[:, None, :]).flatten(1)
        for block in self.blocks:
            x = block(x, ~keep)
        x = self.post_layernorm(x)
        pooled = self.projection(self.head(x, ~keep))
        tokens, token_keep = self.merge_patches(x, keep, height, width)
        return tokens, token_keep, pooled


class LateInteraction(nn.Module):
    """Each token of the query takes its best partner; the tokens are weighed by their learned importance."""

    def __init__(self, width, dim):
        super().__init__()
        self.text, self.image = nn.Linear(width, dim, bias=False), nn.Linear(width, dim, bias=False)
        self.importance = nn.Linear(width, 1, bias=False)

    @staticmethod
    def maxsim(query, weights, candidates, keep):
        similarity = torch.einsum("bqd,nkd->bnqk", query, candidates)
        similarity = similarity.masked_fill(~keep[None, :, None, :], NEG)
        return (similarity.amax(dim=-1) * weights[:, None, :]).sum(dim=-1)

    def forward(self, query, query_keep, passage, passage_keep, patches, patches_keep):
        weights = self.importance(query).squeeze(-1).masked_fill(~query_keep, NEG).softmax(dim=-1)
        query = F.normalize(self.text(query), dim=-1)
        by_text = self.maxsim(query, weights, F.normalize(self.text(passage), dim=-1), passage_keep)
        by_image = self.maxsim(query, weights, F.normalize(self.image(patches), dim=-1), patches_keep)
        return by_text, by_image


class RelativeBias(nn.Module):
    """T5's buckets of distance, made once for the longest sequence."""

    def __init__(self, heads, buckets=16, farthest=40, longest=64):
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        places = torch.arange(longest)
        distance = places[None, :] - places[:, None]
        half, exact = buckets // 2, buckets // 4
        bucket = (distance > 0).long() * half
        distance = distance.abs()
        far = torch.log(distance.clamp(min=1).float() / exact) / math.log(farthest / exact) * (half - exact)
        far = (exact + far.long()).clamp(max=half - 1)
        self.register_buffer("bucket", bucket + torch.where(distance < exact, distance, far), persistent=False)

    def forward(self, length):
        return self.table(self.bucket[:length, :length]).permute(2, 0, 1)[None]


class RerankLayer(nn.Module):
    """BERT's layer: the norms come after the shortcuts."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output, self.attention_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.output_norm = nn.LayerNorm(width, eps=1e-12)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, x, bias):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        probs = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.size) + bias, dim=-1)
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).flatten(2)
        x = self.attention_norm(self.output(context) + x)
        return self.output_norm(self.down(F.gelu(self.up(x))) + x)


class Reranker(nn.Module):
    """Reads query, passage and picture as one sequence; the scores of the first stage come in with the first token."""

    def __init__(self, source, width, heads, depth):
        super().__init__()
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.project = nn.Linear(source, width)
        self.segment = nn.Embedding(4, width)
        self.embed_norm = nn.LayerNorm(width, eps=1e-12)
        self.feature_norm, self.feature = nn.BatchNorm1d(4), nn.Linear(4, width)
        self.relative = RelativeBias(heads)
        self.layers = nn.ModuleList([RerankLayer(width, heads) for _ in range(depth)])
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, parts, keeps, features):
        n = features.shape[0]
        first = self.cls.expand(n, -1, -1) + self.feature(self.feature_norm(features)).unsqueeze(1)
        x = torch.cat([first] + [self.project(part) for part in parts], dim=1)
        segments = torch.repeat_interleave(torch.arange(4), torch.tensor([1] + [part.shape[1] for part in parts]))
        x = self.embed_norm(x + self.segment(segments))
        keep = torch.cat([torch.ones(n, 1, dtype=torch.bool)] + list(keeps), dim=1)
        bias = self.relative(x.shape[1]) + (~keep)[:, None, None, :] * NEG
        for layer in self.layers:
            x = layer(x, bias)
        return self.classifier(torch.tanh(self.pooler(x[:, 0]))).squeeze(-1)


class Retriever(nn.Module):
    def __init__(self, vocab=120, width=48, embed=32, late=16, best=3, expansion=3):
        super().__init__()
        self.best, self.expansion, self.temperature = best, expansion, 0.25
        self.text = TextTower(vocab, width, heads=4, depth=2, embed=embed, context=20)
        self.image = ImageTower(width, heads=4, depth=2, embed=embed, grid=4)
        self.late = LateInteraction(width, late)
        self.reranker = Reranker(width, 40, heads=4, depth=2)
        self.logit_scale, self.logit_bias = nn.Parameter(torch.tensor(2.66)), nn.Parameter(torch.tensor(-3.0))
        self.share, self.mix = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.tensor(-0.4))
        self.register_buffer("skiplist", torch.tensor(SKIPLIST), persistent=False)

    def forward(self, queries, passages, images, sizes):
        queries = insert_marker(expand_query(queries, self.expansion), QUERY)
        passages = insert_marker(passages, PASSAGE)
        query, query_pooled = self.text(queries, causal=True)
        passage, passage_pooled = self.text(passages, causal=False)
        patches, patches_keep, image_pooled = self.image(images, sizes)
        query_keep = queries != PAD
        passage_keep = (passages != PAD) & ~torch.isin(passages, self.skiplist)
        share = torch.sigmoid(self.share)
        candidate = share * F.normalize(passage_pooled, dim=-1) + (1 - share) * F.normalize(image_pooled, dim=-1)
        scale = self.logit_scale.exp().clamp(max=100.0)
        dense = scale * F.normalize(query_pooled, dim=-1) @ F.normalize(candidate, dim=-1).t() + self.logit_bias
        by_text, by_image = self.late(query, query_keep, passage, passage_keep, patches, patches_keep)
        late = self.temperature * torch.logsumexp(torch.stack([by_text, by_image]) / self.temperature, dim=0)
        mix = torch.sigmoid(self.mix)
        fused = mix * standardize(dense) + (1 - mix) * standardize(late)

        top, index = fused.topk(self.best, dim=-1)
        flat = index.flatten()
        rank = 1.0 / torch.arange(1, self.best + 1).float().expand_as(top)
        features = torch.stack([score.gather(1, index) for score in (dense, by_text, by_image)] + [rank], dim=-1)
        parts = (query.repeat_interleave(self.best, dim=0), passage[flat], patches[flat])
        keeps = (query_keep.repeat_interleave(self.best, dim=0), (passages != PAD)[flat], patches_keep[flat])
        reranked = self.reranker(parts, keeps, features.flatten(0, 1)).view(-1, self.best)

        behind = reranked.amin(dim=-1, keepdim=True) + fused - top[:, -1:]
        final = behind.scatter(1, index, reranked)
        return final, dense, late


def sentences(lengths, width):
    """[CLS] words [EOT], padded to the same width."""
    rows = torch.full((len(lengths), width), PAD)
    for row, length in zip(rows, lengths):
        row[:length] = torch.randint(6, 120, (length,))
        row[3 : length - 1 : 5] = torch.randint(6, 10, row[3 : length - 1 : 5].shape)
        row[0], row[length - 1] = CLS, EOT
    return rows


def build():
    """The net as if trained, three queries and six illustrated passages."""
    torch.manual_seed(29)
    net = Retriever()
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, std=1.2 / math.sqrt(module.weight[0].numel()))
            nn.init.normal_(torch.empty(0) if module.bias is None else module.bias, std=0.15)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.7)
        elif isinstance(module, (nn.MultiheadAttention, TextAttention)):
            nn.init.normal_(module.in_proj_weight, std=0.2)
            nn.init.normal_(module.in_proj_bias, std=0.2)
        elif isinstance(module, VisionBlock):
            nn.init.uniform_(module.gamma_1, 0.3, 0.9)
            nn.init.uniform_(module.gamma_2, 0.3, 0.9)
    nn.init.normal_(net.image.stem[1].running_mean, std=0.2)
    nn.init.uniform_(net.image.stem[1].running_var, 0.004, 0.2)
    net.reranker.feature_norm.running_mean.copy_(torch.tensor([-1.0, 0.6, 0.6, 0.6]))
    net.reranker.feature_norm.running_var.copy_(torch.tensor([2.0, 0.03, 0.03, 0.08]))
    queries, passages = sentences([11, 6, 7], 11), sentences([15, 9, 12, 7, 14, 10], 15)
    images, sizes = torch.randn(6, 3, 56, 40), torch.tensor([[56, 40], [44, 40], [56, 21], [33, 30], [50, 37], [18, 40]])
    for image, (height, width) in zip(images, sizes.tolist()):
        image[:, height:], image[:, :, width:] = 0.0, 0.0
    return net.eval(), (queries, passages, images, sizes)
