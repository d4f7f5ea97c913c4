"""Image editing by masked tokens (MaskGIT) in MindSpore: the correct port."""

from __future__ import annotations

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

RGB_MEAN = np.array([0.5, 0.46, 0.41], np.float32)
RGB_STD = np.array([0.27, 0.26, 0.28], np.float32)

MINUS_INF = -1e30
SURE = float("inf")


def param(shape, name):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


def conv(cin, cout, kernel, stride=1, padding=0, dilation=1, bias=True):
    """PyTorch's convolution."""
    return nn.Conv2d(cin, cout, kernel, stride=stride, pad_mode="pad", padding=padding, dilation=dilation,
                     has_bias=bias)


def unit(x):
    """Vectors over the last axis, scaled to length one."""
    length = ops.sqrt(ops.sum(ops.square(x), dim=-1, keepdim=True))
    return x / ops.maximum(length, Tensor(1e-12, ms.float32))


class ResnetBlock(nn.Cell):
    """Norm, swish, convolution, twice, around a skip."""

    def __init__(self, cin, cout, groups=4, dilation=1):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, cin, eps=1e-6)
        self.conv1 = conv(cin, cout, 3, padding=dilation, dilation=dilation)
        self.norm2 = nn.GroupNorm(groups, cout, eps=1e-6)
        self.conv2 = conv(cout, cout, 3, padding=1)
        self.project = cin != cout
        if self.project:
            self.nin_shortcut = conv(cin, cout, 1, bias=False)

    def construct(self, x):
        y = self.conv1(ops.silu(self.norm1(x)))
        y = self.conv2(ops.silu(self.norm2(y)))
        skip = self.nin_shortcut(x) if self.project else x
        return skip + y


class Downsample(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.conv = conv(channels, channels, 4, stride=2, padding=1)

    def construct(self, x):
        return self.conv(x)


class Upsample(nn.Cell):
    """Every pixel becomes a square of four, then a convolution."""

    def __init__(self, channels):
        super().__init__()
        self.conv = conv(channels, channels, 3, padding=1)

    def construct(self, x):
        b, c, h, w = x.shape
        x = ops.broadcast_to(x.reshape(b, c, h, 1, w, 1), (b, c, h, 2, w, 2))
        return self.conv(x.reshape(b, c, 2 * h, 2 * w))


class Encoder(nn.Cell):
    def __init__(self, widths, code_dim):
        super().__init__()
        narrow, wide = widths
        self.conv_in = conv(3, narrow, 3, padding=1)
        self.block1 = ResnetBlock(narrow, narrow)
        self.down1 = Downsample(narrow)
        self.block2 = ResnetBlock(narrow, wide)
        self.down2 = Downsample(wide)
        self.mid = ResnetBlock(wide, wide, dilation=2)
        self.norm_out = nn.GroupNorm(4, wide, eps=1e-6)
        self.conv_out = conv(wide, code_dim, 1)

    def construct(self, pixels):
        x = self.conv_in(pixels)
        x = self.block1(x)
        x = self.down1(x)
        x = self.block2(x)
        x = self.down2(x)
        x = self.norm_out(self.mid(x))
        return self.conv_out(ops.silu(x))


class VectorQuantizer(nn.Cell):
    """Codebook on the unit sphere."""

    def __init__(self, codes, code_dim):
        super().__init__()
        self.embedding = nn.Embedding(codes, code_dim)

    def construct(self, z):
        b, c, h, w = z.shape
        vectors = z.reshape(b, c, h * w).swapaxes(1, 2)
        vectors = unit(vectors).reshape(b * h * w, c)
        book = unit(self.embedding.embedding_table)
        squares = ops.square(vectors).sum(axis=1).expand_dims(1) + ops.square(book).sum(axis=1).expand_dims(0)
        distance = squares - 2.0 * ops.matmul(vectors, book.T)
        index = ops.argmin(distance, axis=1)
        nearest = ops.gather_elements(distance, 1, index.astype(ms.int32).expand_dims(1))
        return index.astype(ms.int32).reshape(b, -1), nearest.reshape(b, -1)

    def to_map(self, tokens, grid):
        """(batch, tokens) -> (batch, code_dim, rows, cols)."""
        rows = ops.gather(unit(self.embedding.embedding_table), tokens, 0)
        return rows.swapaxes(1, 2).reshape(tokens.shape[0], -1, grid[0], grid[1])


class Decoder(nn.Cell):
    def __init__(self, widths, code_dim):
        super().__init__()
        narrow, wide = widths
        self.conv_in = conv(code_dim, wide, 3, padding=1)
        self.mid = ResnetBlock(wide, wide, groups=4, dilation=2)
        self.up1 = Upsample(wide)
        self.block1 = ResnetBlock(wide, narrow)
        self.up2 = Upsample(narrow)
        self.block2 = ResnetBlock(narrow, narrow)
        self.norm_out = nn.GroupNorm(num_groups=4, num_channels=narrow, eps=1e-6)
        self.act_out = nn.LeakyReLU(alpha=0.2)
        self.conv_out = conv(narrow, 3, 3, padding=1)

    def construct(self, code_map, valid):
        code_map = code_map * valid.astype(code_map.dtype).expand_dims(1)
        x = self.mid(self.conv_in(code_map))
        for up, block in ((self.up1, self.block1), (self.up2, self.block2)):
            x = block(up(x))
        x = self.norm_out(x)
        return self.conv_out(self.act_out(x))


class TokenEmbeddings(nn.Cell):
    """Tokens' vectors with those of their row and column."""

    def __init__(self, vocab, width, max_grid, eps):
        super().__init__()
        self.max_grid = max_grid
        self.word = nn.Embedding(vocab, width)
        self.row_embed = param((max_grid[0], width), "row_embed")
        self.col_embed = param((max_grid[1], width), "col_embed")
        self.class_pos = param((1, width), "class_pos")
        self.norm = nn.LayerNorm((width,), epsilon=eps)

    def construct(self, ids, grid):
        first_row, first_col = [(most - n) // 2 for most, n in zip(self.max_grid, grid)]
        place = np.arange(grid[0] * grid[1])
        row = Tensor((first_row + place // grid[1]).astype(np.int32))
        col = Tensor((first_col + place % grid[1]).astype(np.int32))
        places = ops.gather(self.row_embed, row, 0) + ops.gather(self.col_embed, col, 0)
        x = self.word(ids) + ops.concat((self.class_pos, places), axis=0)
        return self.norm(x)


class SelfAttention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.query = nn.Dense(width, width)
        self.key = nn.Dense(width, width, has_bias=False)
        self.value = nn.Dense(width, width)
        self.out = nn.Dense(width, width)

    def construct(self, x, seen):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        query = self.query(x).reshape(shape).transpose(0, 2, 1, 3)
        key = self.key(x).reshape(shape).transpose(0, 2, 3, 1)
        value = self.value(x).reshape(shape).transpose(0, 2, 1, 3)
        weights = ops.matmul(query, key) * self.scale
        weights = ops.where(seen.reshape(batch, 1, 1, length), weights, Tensor(MINUS_INF, ms.float32))
        weights = ops.softmax(weights, axis=-1)
        mixed = ops.matmul(weights, value)
        mixed = mixed.swapaxes(1, 2).reshape(batch, length, width)
        return self.out(mixed)


class FeedForward(nn.Cell):
    def __init__(self, width, inner):
        super().__init__()
        self.fc1 = nn.Dense(width, inner)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(inner, width)

    def construct(self, x):
        x = self.act(self.fc1(x))
        return self.fc2(x)


class TransformerLayer(nn.Cell):
    def __init__(self, width, heads, inner, eps):
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.attention_norm = nn.LayerNorm((width,), epsilon=eps)
        self.mlp = FeedForward(width, inner)
        self.mlp_norm = nn.LayerNorm((width,), epsilon=eps)

    def construct(self, x, seen):
        x = self.attention_norm(self.attention(x, seen) + x)
        return self.mlp_norm(self.mlp(x) + x)


class MlmHead(nn.Cell):
    """Scores for the whole vocabulary by the shared table."""

    def __init__(self, width, vocab, eps):
        super().__init__()
        self.dense = nn.Dense(width, width)
        self.act = nn.GELU(False)
        self.norm = nn.LayerNorm((width,), epsilon=eps)
        self.bias = param((vocab,), "bias")

    def construct(self, x, table):
        x = self.dense(x)
        x = self.act(x)
        x = self.norm(x)
        return ops.matmul(x, table.T) + self.bias


class BidirectionalTransformer(nn.Cell):
    def __init__(self, vocab, width, heads, inner, depth, max_grid, eps=1e-6):
        super().__init__()
        self.embeddings = TokenEmbeddings(vocab, width, max_grid, eps)
        self.layers = nn.CellList([TransformerLayer(width, heads, inner, eps) for _ in range(depth)])
        self.mlm_head = MlmHead(width, vocab, eps)

    def construct(self, ids, seen, grid):
        hidden = self.embeddings(ids, grid)
        for layer in self.layers:
            hidden = layer(hidden, seen)
        return self.mlm_head(hidden, self.embeddings.word.embedding_table)


def least_confident(prob, noise, temperature, count):
    """Boolean (batch, tokens): the count (batch,) tokens to be masked again."""
    score = ops.log(ops.clamp(prob, min=1e-9)) + noise * temperature
    ranked = ops.sort(score, axis=1)[0]
    limit = ops.gather_elements(ranked, 1, count.astype(ms.int32).reshape(-1, 1))
    return ops.less(score, limit)


def inside_of(sizes, rows, cols):
    """Boolean (batch, rows, cols)."""
    row = ops.arange(rows).reshape(1, rows, 1) < sizes[:, 0].reshape(-1, 1, 1)
    col = ops.arange(cols).reshape(1, 1, cols) < sizes[:, 1].reshape(-1, 1, 1)
    return ops.logical_and(row, col)


class MaskGit(nn.Cell):
    """Tokenizer, transformer and the rounds of decoding."""

    def __init__(self, codes=41, code_dim=10, classes=6, widths=(16, 24), patch=4, steps=5, guidance=2.4,
                 sample_temperature=1.2, choice_temperature=1.5):
        super().__init__()
        self.codes, self.patch, self.steps = codes, patch, steps
        self.guidance = guidance
        self.sample_temperature = sample_temperature
        self.choice_temperature = choice_temperature
        self.no_class = codes + classes
        self.mask_token = codes + classes + 1
        self.pad_token = codes + classes + 2
        self.mean = Tensor(RGB_MEAN.reshape(1, 3, 1, 1))
        self.std = Tensor(RGB_STD.reshape(1, 3, 1, 1))
        progress = np.arange(1, steps + 1) / steps
        self.still_masked = np.cos(progress * np.pi / 2)
        self.encoder = Encoder(widths, code_dim)
        self.quantizer = VectorQuantizer(codes, code_dim)
        self.transformer = BidirectionalTransformer(codes + classes + 3, width=36, heads=4, inner=80, depth=3,
                                                    max_grid=(8, 11))
        self.decoder = Decoder(widths, code_dim)

    def predict(self, ids, labels, valid, grid, strength):
        """Guided logits (batch, tokens, codes); first half of the doubled batch has the class."""
        batch = ids.shape[0]
        head = ops.concat((labels + self.codes, ops.full_like(labels, self.no_class)))
        ids = ops.concat((head.reshape(-1, 1), ops.tile(ids, (2, 1))), axis=1)
        seen = ops.concat((ops.ones((batch, 1), ms.int32), valid.astype(ms.int32)), axis=1)
        seen = ops.tile(seen, (2, 1)) > 0
        logits = self.transformer(ids, seen, grid)
        logits = logits[:, 1:, : self.codes]
        given, free = logits[:batch], logits[batch:]
        return free + strength * (given - free)

    def remaining(self, step, total, unknown):
        """How many tokens stay masked after this round, for each sample."""
        count = ops.floor(total.astype(ms.float32) * float(self.still_masked[step])).astype(ms.int32)
        count = ops.minimum(count, unknown.astype(ms.int32).sum(axis=1) - 1)
        return ops.clamp(count, min=1)

    def decode(self, ids, labels, valid, grid, sample_noise, choice_noise):
        total = (ids == self.mask_token).astype(ms.int32).sum(axis=1)
        history = []
        logits = None
        for step in range(self.steps):
            done = (step + 1) / self.steps
            logits = self.predict(ids, labels, valid, grid, self.guidance * done)
            noisy = logits + self.sample_temperature * sample_noise[step]
            unknown = ops.equal(ids, self.mask_token)
            ids = ops.where(unknown, ops.argmax(noisy, dim=-1).astype(ms.int32), ids)

            prob = ops.softmax(logits, axis=-1)
            picked = ops.minimum(ids, Tensor(self.codes - 1, ms.int32)).expand_dims(-1)
            prob = ops.gather_elements(prob, 2, picked)[..., 0]
            history.append(ops.masked_fill(prob, ~unknown, 1.0))
            if step + 1 == self.steps:
                break
            prob = ops.masked_fill(prob, ~unknown, SURE)
            count = self.remaining(step, total, unknown)
            again = least_confident(prob, choice_noise[step], self.choice_temperature * (1.0 - done), count)
            ids = ops.masked_fill(ids, again, self.mask_token)
        return ids, logits, ops.stack(history, axis=1)

    def construct(self, image, edit, sizes, labels, sample_noise, choice_noise):
        batch, _, height, width = image.shape
        rows, cols = height // self.patch, width // self.patch
        sizes, labels = sizes.astype(ms.int32), labels.astype(ms.int32)
        canvas = inside_of(sizes, height, width).expand_dims(1).astype(image.dtype)
        cells = inside_of(sizes // self.patch, rows, cols)
        valid = cells.reshape(batch, rows * cols)

        features = self.encoder((image - self.mean) / self.std * canvas)
        ids, distance = self.quantizer(features)

        paint = edit.astype(ms.float32)
        touched = paint.reshape(batch, rows, self.patch, cols, self.patch).max(axis=(2, 4)) > 0.5
        touched = touched.reshape(batch, rows * cols)
        ids = ops.where(touched, ops.full_like(ids, self.mask_token), ids)
        ids = ops.where(valid, ids, ops.full_like(ids, self.pad_token))
        ids, logits, kept_probs = self.decode(ids, labels, valid, (rows, cols), sample_noise, choice_noise)

        tokens = ids * valid.astype(ms.int32)
        painted = self.decoder(self.quantizer.to_map(tokens, (rows, cols)), cells)
        painted = painted * self.std + self.mean
        paint = paint.expand_dims(1)
        merged = (paint * painted + (1.0 - paint) * image) * canvas
        return {
            "painted": painted,
            "merged": merged,
            "tokens": tokens,
            "logits": logits,
            "kept_probs": kept_probs,
            "distance": distance * valid.astype(distance.dtype),
        }


def build():
    """The net alone, for evaluation: weights and inputs come from the reference's dump."""
    net = MaskGit()
    net.set_train(False)
    return net
