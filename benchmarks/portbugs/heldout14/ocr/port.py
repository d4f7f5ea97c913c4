"""The scene text recogniser in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

CHARSET = "0123456789abcdefghijklmnopqrstuvwxyz"
EOS, BOS, PAD = 0, len(CHARSET) + 1, len(CHARSET) + 2
BLANK = 0


def control_points(num_points: int, margins):
    """Points along the upper and the lower edge of the rectified image, as (x, y) in [0, 1]."""
    margin_x, margin_y = margins
    xs = np.linspace(margin_x, 1.0 - margin_x, num_points // 2)
    top = np.stack([xs, np.full_like(xs, margin_y)], axis=1)
    bottom = np.stack([xs, np.full_like(xs, 1.0 - margin_y)], axis=1)
    return np.concatenate([top, bottom], axis=0)


def radial(points, centers):
    """r^2 * log(r) of every point to every center, nought at the center itself."""
    square = ((points[:, None, :] - centers[None, :, :]) ** 2).sum(-1)
    safe = np.where(square == 0.0, 1.0, square)
    return 0.5 * safe * np.log(safe) * (square != 0.0)


def thin_plate_tables(size, num_points: int, margins):
    """The inverse of the spline's matrix, and each pixel of the output as seen from the control points."""
    height, width = size
    target = control_points(num_points, margins)
    kernel = np.zeros((num_points + 3, num_points + 3))
    kernel[:num_points, :num_points] = radial(target, target)
    kernel[:num_points, -3] = 1.0
    kernel[-3, :num_points] = 1.0
    kernel[:num_points, -2:] = target
    kernel[-2:, :num_points] = target.T
    ys, xs = np.meshgrid(np.arange(height) / (height - 1), np.arange(width) / (width - 1), indexing="ij")
    pixels = np.stack([xs.reshape(-1), ys.reshape(-1)], axis=1)
    seen = np.concatenate([radial(pixels, target), np.ones((height * width, 1)), pixels], axis=1)
    return ms.Tensor(np.linalg.inv(kernel), ms.float32), ms.Tensor(seen, ms.float32)


class Localizer(nn.Cell):
    """Looks at a small copy of the image, says where the control points lie in it."""

    def __init__(self, num_points: int, in_channels: int = 3, hidden: int = 64):
        super().__init__()
        self.num_points = num_points
        layers = []
        for a, b in ((in_channels, 8), (8, 16), (16, 32)):
            layers.append(nn.Conv2d(a, b, 3, pad_mode="pad", padding=1, has_bias=True))
            layers.append(nn.BatchNorm2d(b))
            layers.append(nn.ReLU())
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
        self.convs = nn.SequentialCell(layers)
        self.fc1 = nn.Dense(4 * 8 * 32, hidden)
        self.fc1_norm = nn.BatchNorm1d(hidden)
        self.fc2 = nn.Dense(hidden, num_points * 2)

    def construct(self, images):
        x = ops.interpolate(images, size=(32, 64), mode="bilinear", align_corners=True)
        x = self.convs(x).reshape(images.shape[0], -1)
        x = ops.relu(self.fc1_norm(self.fc1(x)))
        return self.fc2(x * 0.1).reshape(-1, self.num_points, 2)


class Rectifier(nn.Cell):
    """Bends the image until the line of text is straight."""

    def __init__(self, size, num_points: int, margins):
        super().__init__()
        self.size = size
        self.localizer = Localizer(num_points)
        self.inverse_kernel, self.pixels = thin_plate_tables(size, num_points, margins)

    def construct(self, images):
        points = self.localizer(images)
        batch = points.shape[0]
        points = mint.cat([points, mint.zeros((batch, 3, 2))], dim=1)
        weights = mint.matmul(self.inverse_kernel, points)
        places = mint.matmul(self.pixels, weights)
        places = mint.clamp(places, 0.0, 1.0) * 2.0 - 1.0
        grid = places.reshape(batch, self.size[0], self.size[1], 2)
        return ops.grid_sample(images, grid, mode="bilinear", align_corners=True)


class Stem(nn.Cell):
    """A quarter of the size by two convolutions, then places that were learned on a grid of another size."""

    def __init__(self, dim: int, base=(8, 16)):
        super().__init__()
        self.base = base
        self.pos_embed = ms.Parameter(ms.Tensor(np.zeros((1, base[0] * base[1], dim)), ms.float32), name="pos_embed")
        self.conv1 = nn.Conv2d(3, dim // 2, 3, stride=2, pad_mode="pad", padding=1)
        self.norm1 = nn.BatchNorm2d(dim // 2, eps=1e-3)
        self.conv2 = nn.Conv2d(dim // 2, dim, 3, stride=2, pad_mode="pad", padding=1)
        self.norm2 = nn.BatchNorm2d(dim, eps=1e-3)
        self.act = nn.GELU(approximate=False)

    def places(self, hw):
        rows, columns = self.base
        grid = self.pos_embed.reshape(1, rows, columns, -1).transpose(0, 3, 1, 2)
        grid = ops.interpolate(grid, size=hw, mode="bilinear", align_corners=False)
        return grid.reshape(1, grid.shape[1], -1).swapaxes(1, 2)

    def construct(self, images):
        x = self.act(self.norm1(self.conv1(images)))
        x = self.act(self.norm2(self.conv2(x)))
        hw = x.shape[2:]
        tokens = x.reshape(x.shape[0], x.shape[1], -1).swapaxes(1, 2)
        return tokens + self.places(hw), hw


def window_mask(hw, kernel):
    """Nought inside the window around each place, minus infinity outside."""
    height, width = hw
    rows, columns = np.divmod(np.arange(height * width), width)
    near_rows = np.abs(rows[:, None] - rows[None, :]) <= kernel[0] // 2
    near_columns = np.abs(columns[:, None] - columns[None, :]) <= kernel[1] // 2
    return ms.Tensor(np.where(near_rows & near_columns, 0.0, -np.inf), ms.float32)


class MixingAttention(nn.Cell):
    """Attention of every place to every other, or to those in a window."""

    def __init__(self, dim: int, heads: int, mask=None):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.mask = mask
        self.qkv = nn.Dense(dim, 3 * dim)
        self.proj = nn.Dense(dim, dim)

    def construct(self, x):
        batch, length, dim = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = mint.unbind(mint.permute(qkv, (2, 0, 3, 1, 4)), dim=0)
        scores = mint.matmul(q, k.swapaxes(-2, -1)) * self.scale
        if self.mask is not None:
            scores = scores + self.mask
        mixed = mint.matmul(mint.nn.functional.softmax(scores, dim=-1), v)
        return self.proj(mixed.swapaxes(1, 2).reshape(batch, length, dim))


class Mlp(nn.Cell):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.fc2 = nn.Dense(hidden, dim)

    def construct(self, x):
        return self.fc2(ops.gelu(self.fc1(x)))


class MixingBlock(nn.Cell):
    """Mixes, then thinks; norms after the sums."""

    def __init__(self, dim: int, heads: int, kind: str, hw, window=(5, 7)):
        super().__init__()
        self.kind = kind
        self.hw = hw
        self.gamma = ms.Parameter(ms.Tensor(np.ones(dim), ms.float32), name="gamma")
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-6)
        if kind == "Conv":
            self.mixer = nn.Conv2d(dim, dim, 3, pad_mode="pad", padding=1, group=heads, has_bias=True)
        else:
            self.mixer = MixingAttention(dim, heads, window_mask(hw, window) if kind == "Local" else None)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-6)
        self.mlp = Mlp(dim, 2 * dim)

    def mix(self, x):
        if self.kind != "Conv":
            return self.mixer(x)
        batch, length, dim = x.shape
        image = x.swapaxes(1, 2).reshape(batch, dim, self.hw[0], self.hw[1])
        return self.mixer(image).reshape(batch, dim, length).swapaxes(1, 2)

    def construct(self, x):
        x = self.norm1(x + self.gamma * self.mix(x))
        return self.norm2(x + self.mlp(x))


class RowMerge(nn.Cell):
    """Halves the rows by putting each odd row behind the even one above it."""

    def __init__(self, dim: int, out_dim: int):
        super().__init__()
        self.norm = nn.LayerNorm((2 * dim,), epsilon=1e-6)
        self.reduction = nn.Dense(2 * dim, out_dim, has_bias=False)

    def construct(self, x, hw):
        height, width = hw
        batch, _, dim = x.shape
        x = x.reshape(batch, height // 2, 2, width, dim)
        x = mint.permute(x, (0, 1, 3, 2, 4)).reshape(batch, height // 2 * width, 2 * dim)
        return self.reduction(self.norm(x)), (height // 2, width)


class Encoder(nn.Cell):
    """Three stages of mixing; the rows are halved between them."""

    def __init__(self, size, dims, heads=(2, 3, 4)):
        super().__init__()
        height, width = size[0] // 4, size[1] // 4
        self.stem = Stem(dims[0])
        stages, merges = [], []
        for i, kinds in enumerate((("Conv", "Local"), ("Local", "Global"), ("Global",))):
            blocks = [MixingBlock(dims[i], heads[i], kind, (height >> i, width)) for kind in kinds]
            stages.append(nn.SequentialCell(blocks))
            if i > 0:
                merges.append(RowMerge(dims[i - 1], dims[i]))
        self.stages = nn.CellList(stages)
        self.merges = nn.CellList(merges)
        self.norm = nn.LayerNorm((dims[-1],), epsilon=1e-6)

    def construct(self, images):
        x, hw = self.stem(images)
        x = self.stages[0](x)
        for merge, stage in zip(self.merges, self.stages[1:]):
            x, hw = merge(x, hw)
            x = stage(x)
        return self.norm(x), hw


class CtcHead(nn.Cell):
    """Weighs the rows of every column, then one letter or the blank for each column."""

    def __init__(self, dim: int, classes: int):
        super().__init__()
        self.score = nn.Dense(dim, 1)
        self.neck = nn.Conv1d(dim, dim, 3, pad_mode="pad", padding=1, has_bias=True)
        self.fc = nn.Dense(dim, classes)

    def construct(self, x, hw):
        batch, _, dim = x.shape
        x = x.reshape(batch, hw[0], hw[1], dim)
        x = (ops.softmax(self.score(x), axis=1) * x).sum(axis=1)
        context = ops.hardswish(self.neck(x.swapaxes(1, 2)))
        x = x + context.swapaxes(1, 2)
        return ops.log_softmax(self.fc(x), axis=-1).swapaxes(0, 1)


def confidence(log_probs):
    """The mean probability of the letters that are left when repeats and blanks are taken out."""
    ids = log_probs.argmax(axis=-1)
    best = ops.exp(log_probs.max(axis=-1))
    before = ops.cat([ops.full_like(ids[:1], -1), ids[:-1]], axis=0)
    keep = ops.logical_and(ids != BLANK, ids != before).astype(ms.float32)
    return (best * keep).sum(axis=0) / ops.clamp(keep.sum(axis=0), min=1.0)


class MultiHead(nn.Cell):
    """The framework's attention of the reference: one weight for queries, keys and values; masks are true where hidden."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.dim = dim
        self.in_proj_weight = ms.Parameter(ms.Tensor(np.zeros((3 * dim, dim)), ms.float32), name="in_proj_weight")
        self.in_proj_bias = ms.Parameter(ms.Tensor(np.zeros(3 * dim), ms.float32), name="in_proj_bias")
        self.out_proj = nn.Dense(dim, dim)

    def project(self, x, part: int):
        begin, end = part * self.dim, (part + 1) * self.dim
        x = mint.nn.functional.linear(x, self.in_proj_weight[begin:end], self.in_proj_bias[begin:end])
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).swapaxes(1, 2)

    def construct(self, query, source, mask=None, padding=None):
        q, k, v = self.project(query, 0), self.project(source, 1), self.project(source, 2)
        scores = mint.matmul(q / math.sqrt(self.dim // self.heads), k.swapaxes(2, 3))
        if mask is not None:
            scores = scores.masked_fill(mask, -math.inf)
        if padding is not None:
            scores = scores.masked_fill(padding[:, None, None, :], -math.inf)
        mixed = mint.matmul(ops.softmax(scores, axis=-1), v).swapaxes(1, 2)
        return self.out_proj(mixed.reshape(query.shape))


class DecoderLayer(nn.Cell):
    """A layer of two streams: queries that know only their place, and content."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.self_attn = MultiHead(dim, heads)
        self.cross_attn = MultiHead(dim, heads)
        self.linear1 = nn.Dense(dim, 2 * dim)
        self.linear2 = nn.Dense(2 * dim, dim)
        self.norm1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.norm2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.norm_q = nn.LayerNorm((dim,), epsilon=1e-5)
        self.norm_c = nn.LayerNorm((dim,), epsilon=1e-5)

    def stream(self, x, normed, context, memory, mask, padding):
        x = x + self.self_attn(normed, context, mask, padding)
        x = x + self.cross_attn(self.norm1(x), memory)
        return x + self.linear2(ops.gelu(self.linear1(self.norm2(x))))

    def construct(self, query, content, memory, query_mask, content_mask, padding, update_content=True):
        context = self.norm_c(content)
        query = self.stream(query, self.norm_q(query), context, memory, query_mask, padding)
        if update_content:
            content = self.stream(content, context, context, memory, content_mask, padding)
        return query, content


def reading_orders(letters: int, pairs: int, seed: int = 5):
    """Orders in which the letters are read: left to right and others, each with its mirror; BOS first, EOS last."""
    rng = np.random.RandomState(seed)
    orders = []
    for i in range(pairs):
        order = rng.permutation(letters) if i > 0 else np.arange(letters)
        orders += [order, order[::-1]]
    orders = [np.concatenate([[0], order + 1, [letters + 1]]) for order in orders]
    orders[1] = np.concatenate([[0], np.arange(letters + 1, 0, -1)])
    return orders


def order_masks(order):
    """True where a place may not look: its rank in the order is not before (for queries), or behind (for content)."""
    rank = np.argsort(order)
    content = rank[None, :-1] > rank[:-1, None]
    query = rank[None, :-1] >= rank[1:, None]
    return ms.Tensor(content), ms.Tensor(query)


class Recognizer(nn.Cell):
    """Rectifies, encodes, and reads in three ways: by CTC, letter after letter, and by orders of given words."""

    def __init__(self, letters: int = 8, dim: int = 64, heads: int = 4, depth: int = 2):
        super().__init__()
        self.steps = letters + 1
        self.dim = dim
        self.pos_queries = ms.Parameter(ms.Tensor(np.zeros((1, letters + 1, dim)), ms.float32), name="pos_queries")
        self.rectifier = Rectifier((32, 80), 12, margins=(0.05, 0.1))
        self.encoder = Encoder((32, 80), dims=(32, 48, dim))
        self.ctc = CtcHead(dim, len(CHARSET) + 1)
        self.embedding = nn.Embedding(len(CHARSET) + 3, dim)
        self.layers = nn.CellList([DecoderLayer(dim, heads) for _ in range(depth)])
        self.decoder_norm = nn.LayerNorm((dim,), epsilon=1e-5)
        self.head = nn.Dense(dim, len(CHARSET) + 1)
        self.masks = [order_masks(order) for order in reading_orders(letters, pairs=3)]
        self.causal = ms.Tensor(np.triu(np.ones((self.steps, self.steps), bool), 1))
        self.cloze = ms.Tensor(np.eye(self.steps, k=1, dtype=bool))

    def spell(self, tokens, query, memory, query_mask, content_mask, padding=None):
        """Logits for the places of the queries, with the tokens as content."""
        embedded = self.embedding(tokens) * math.sqrt(self.dim)
        places = self.pos_queries[:, : tokens.shape[1] - 1]
        content = ops.cat([embedded[:, :1], embedded[:, 1:] + places], axis=1)
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            query, content = layer(query, content, memory, query_mask, content_mask, padding, update_content=i < last)
        return self.head(self.decoder_norm(query))

    def queries(self, batch: int):
        return ops.broadcast_to(self.pos_queries, (batch, self.steps, self.dim))

    def draft(self, memory):
        """Letter after letter."""
        batch = memory.shape[0]
        queries = self.queries(batch)
        tokens = ops.full((batch, 1), BOS, dtype=ms.int64)
        logits = []
        for i in range(self.steps):
            row, block = self.causal[i : i + 1, : i + 1], self.causal[: i + 1, : i + 1]
            logits.append(self.spell(tokens, queries[:, i : i + 1], memory, row, block))
            tokens = ops.cat([tokens, logits[-1].argmax(axis=-1).astype(ms.int64)], axis=1)
        return ops.cat(logits, axis=1)

    def refine(self, memory, logits):
        """Once more with all the other letters in sight, up to the end."""
        batch = memory.shape[0]
        bos = ops.full((batch, 1), BOS, dtype=ms.int64)
        tokens = ops.cat([bos, logits[:, :-1].argmax(axis=-1).astype(ms.int64)], axis=1)
        ended = (tokens == EOS).astype(ms.int32).cumsum(axis=-1) > 0
        return self.spell(tokens, self.queries(batch), memory, self.cloze, self.causal, ended)

    def rescore(self, memory, words):
        """Log-probability of given words, by every order of reading; mean over the orders and how far they disagree."""
        tokens, wanted = words[:, :-1], words[:, 1:]
        padding = ops.logical_or(tokens == PAD, tokens == EOS)
        valid = (wanted != PAD).astype(ms.float32)
        index = ops.clamp(wanted, max=len(CHARSET)).expand_dims(-1)
        queries = self.queries(words.shape[0])
        spelled, scores = [], []
        for content_mask, query_mask in self.masks:
            logits = self.spell(tokens, queries, memory, query_mask, content_mask, padding)
            log_probs = ops.log_softmax(logits, axis=-1)
            picked = ops.gather_elements(log_probs, 2, index).squeeze(-1)
            spelled.append(log_probs)
            scores.append((picked * valid).sum(axis=1) / valid.sum(axis=1))
        scores = ops.stack(scores, axis=0)
        return ops.stack(spelled, axis=0).mean(axis=0), scores.mean(axis=0), scores.std(axis=0, ddof=1)

    def construct(self, images, words):
        images = (images - 0.5) / 0.5
        memory, hw = self.encoder(self.rectifier(images))
        ctc = self.ctc(memory, hw)
        draft = self.draft(memory)
        logits = self.refine(memory, draft)
        spelled, score, spread = self.rescore(memory, words)
        return ctc, confidence(ctc), draft, logits, spelled, score, spread


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Recognizer().set_train(False)
