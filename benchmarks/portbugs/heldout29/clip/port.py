"""Contrastive image-text pre-training with the objectives of CLIP and SigLIP, in MindSpore."""

from __future__ import annotations

import math

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

LOWEST = float(np.finfo(np.float32).min)
SOT, EOT = 94, 95


def zeros_parameter(*shape, name):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name)


def unit(x):
    """Vectors of length one along the last axis."""
    return x / ops.clamp(ops.norm(x, dim=-1, keepdim=True), min=1e-12)


def mask_to_bias(allowed):
    """What is added to attention scores: nothing where a key may be seen, the lowest number elsewhere."""
    return ops.where(allowed, Tensor(0.0, ms.float32), Tensor(LOWEST, ms.float32))


def cubic_matrix(size_in, size_out, a=-0.75):
    """(size_out, size_in): bicubic interpolation along one axis as a matrix, with the coefficients of PyTorch."""
    matrix = np.zeros((size_out, size_in), np.float32)
    for row in range(size_out):
        centre = (row + 0.5) * size_in / size_out - 0.5
        base = math.floor(centre)
        for tap in range(base - 1, base + 3):
            d = abs(centre - tap)
            if d <= 1:
                weight = ((a + 2) * d - (a + 3)) * d * d + 1
            else:
                weight = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
            matrix[row, min(max(tap, 0), size_in - 1)] += weight
    return Tensor(matrix)


class QuickGELU(nn.Cell):
    def construct(self, x):
        return x * ops.sigmoid(1.702 * x)


class ChannelScale(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.scale = Parameter(Tensor(np.full((width,), 0.1, np.float32)), name="scale")

    def construct(self, x):
        return x * self.scale


class FeedForward(nn.Cell):
    def __init__(self, width, ratio, act):
        super().__init__()
        hidden = int(width * ratio)
        self.fc1 = nn.Dense(width, hidden)
        self.act = act
        self.fc2 = nn.Dense(hidden, width)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class SelfAttention(nn.Cell):
    def __init__(self, width, heads, normed):
        super().__init__()
        self.heads = heads
        self.normed = normed
        head_width = width // heads
        self.inv_scale = math.sqrt(head_width)
        self.qkv = nn.Dense(width, 3 * width)
        if normed:
            self.q_norm = nn.LayerNorm((head_width,), epsilon=1e-6)
            self.k_norm = nn.LayerNorm((head_width,), epsilon=1e-6)
        self.proj = nn.Dense(width, width)

    def construct(self, x, bias):
        batch, length, width = x.shape
        mixed = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (mixed[:, :, part].swapaxes(1, 2) for part in range(3))
        if self.normed:
            query = self.q_norm(query)
            key = self.k_norm(key)
        scores = ops.matmul(query, key.swapaxes(2, 3)) / self.inv_scale
        weights = ops.softmax(scores + bias, axis=-1)
        merged = ops.matmul(weights, value).swapaxes(1, 2).reshape(batch, length, width)
        return self.proj(merged)


class EncoderBlock(nn.Cell):
    """Pre-norm block; those of the image tower have normed queries and keys, and scaled branches."""

    def __init__(self, width, heads, ratio, act, image=False):
        super().__init__()
        self.ln_1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.attn = SelfAttention(width, heads, normed=image)
        self.ls_1 = ChannelScale(width) if image else nn.Identity()
        self.ln_2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.mlp = FeedForward(width, ratio, act)
        self.ls_2 = ChannelScale(width) if image else nn.Identity()

    def construct(self, x, bias):
        attended = self.attn(self.ln_1(x), bias)
        x = x + self.ls_1(attended)
        return x + self.ls_2(self.mlp(self.ln_2(x)))


class LatentPool(nn.Cell):
    """Attention of a few learnt queries over the patches, averaged over the queries."""

    def __init__(self, width, heads, latents, ratio):
        super().__init__()
        self.heads = heads
        self.latent = zeros_parameter(1, latents, width, name="latent")
        self.norm_kv = nn.LayerNorm((width,), epsilon=1e-5)
        self.q = nn.Dense(width, width)
        self.kv = nn.Dense(width, 2 * width)
        self.proj = nn.Dense(width, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.mlp = FeedForward(width, ratio, nn.GELU(approximate=False))

    def split(self, x):
        batch, length, width = x.shape
        return x.reshape(batch, length, self.heads, width // self.heads).swapaxes(1, 2)

    def construct(self, patches, valid):
        batch, _, width = patches.shape
        query = self.split(self.q(self.latent))
        key, value = ops.chunk(self.kv(self.norm_kv(patches)), 2, axis=-1)
        key, value = self.split(key), self.split(value)

        scores = ops.matmul(query, key.swapaxes(2, 3)) * (width // self.heads) ** -0.5
        scores = scores + mask_to_bias(valid.reshape(batch, 1, 1, -1))
        found = ops.matmul(ops.softmax(scores, axis=-1), value)
        found = self.proj(found.swapaxes(1, 2).reshape(batch, -1, width))
        found = found + self.mlp(self.norm(found))
        return found.mean(axis=1)


class Stem(nn.Cell):
    """Convolutions that shrink the image four times, then patches."""

    def __init__(self, hidden, groups, width, patch):
        super().__init__()
        self.conv1 = nn.Conv2d(3, hidden, 3, stride=2, pad_mode="pad", padding=1, has_bias=False)
        self.bn1 = nn.BatchNorm2d(hidden, eps=1e-5)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(hidden, hidden, 3, pad_mode="pad", padding=1, has_bias=False)
        self.gn2 = nn.GroupNorm(groups, hidden, eps=1e-5)
        self.act2 = nn.ReLU()
        self.pool = nn.AvgPool2d(3, stride=2, pad_mode="pad", padding=1, count_include_pad=False)
        self.patch = nn.Conv2d(hidden, width, patch // 4, stride=patch // 4, pad_mode="valid", has_bias=True)

    def construct(self, pixels):
        x = self.act1(self.bn1(self.conv1(pixels)))
        x = self.act2(self.gn2(self.conv2(x)))
        return self.patch(self.pool(x))


class Head(nn.Cell):
    """From the width of a tower to the space of the sigmoid loss."""

    def __init__(self, width, hidden, embed):
        super().__init__()
        self.fc1 = nn.Dense(width, hidden, has_bias=False)
        self.bn = nn.BatchNorm1d(hidden, eps=1e-5)
        self.act = nn.ReLU()
        self.fc2 = nn.Dense(hidden, embed)

    def construct(self, x):
        return self.fc2(self.act(self.bn(self.fc1(x))))


class ImageTower(nn.Cell):
    def __init__(self, width=64, depth=3, heads=4, ratio=2.0, patch=8, side=4, latents=2):
        super().__init__()
        self.patch_size = patch
        self.side = side
        self.stem = Stem(24, 8, width, patch)
        self.class_embedding = zeros_parameter(width, name="class_embedding")
        self.positional_embedding = zeros_parameter(side * side + 1, width, name="positional_embedding")
        self.ln_pre = nn.LayerNorm((width,), epsilon=1e-5)
        self.blocks = nn.CellList([EncoderBlock(width, heads, ratio, QuickGELU(), image=True) for _ in range(depth)])
        self.ln_post = nn.LayerNorm((width,), epsilon=1e-5)
        self.attn_pool = LatentPool(width, heads, latents, ratio)

    def positions(self, sizes, rows, columns):
        """The table of positions for each image's own size, zeros on the padding: (batch, rows * columns, width)."""
        table = self.positional_embedding[1:].T.reshape(-1, self.side, self.side)
        fitted = []
        for h, w in sizes.asnumpy().tolist():
            place = ops.matmul(ops.matmul(cubic_matrix(self.side, h), table), cubic_matrix(self.side, w).T)
            fitted.append(ops.pad(place, (0, columns - w, 0, rows - h)))
        fitted = ops.stack(fitted)
        return fitted.reshape(len(fitted), -1, rows * columns).swapaxes(1, 2)

    def construct(self, images, sizes):
        batch, _, height, width = images.shape
        rows, columns = height // self.patch_size, width // self.patch_size
        in_rows = ops.arange(rows).reshape(1, rows, 1) < sizes[:, 0].reshape(batch, 1, 1)
        in_columns = ops.arange(columns).reshape(1, 1, columns) < sizes[:, 1].reshape(batch, 1, 1)
        valid = ops.logical_and(in_rows, in_columns)

        seen = valid.astype(images.dtype).repeat_interleave(self.patch_size, 1).repeat_interleave(self.patch_size, 2)
        pixels = (images * 2.0 - 1.0) * seen.expand_dims(1)
        patches = self.stem(pixels).reshape(batch, -1, rows * columns).swapaxes(1, 2)
        patches = patches + self.positions(sizes, rows, columns)

        token = self.class_embedding + self.positional_embedding[0]
        token = ops.broadcast_to(token, (batch, 1, token.shape[0]))
        x = self.ln_pre(ops.cat((token, patches), axis=1))
        valid = valid.reshape(batch, -1)
        keys = ops.cat((ops.ones((batch, 1), ms.bool_), valid), axis=1)
        bias = mask_to_bias(keys.reshape(batch, 1, 1, -1))
        for block in self.blocks:
            x = block(x, bias)
        return self.ln_post(x[:, 0]), self.attn_pool(x[:, 1:], valid)


class TextTower(nn.Cell):
    def __init__(self, width=48, depth=3, heads=4, ratio=2.0, context=16, vocabulary=96):
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.positional_embedding = zeros_parameter(context, width, name="positional_embedding")
        self.blocks = nn.CellList(
            [EncoderBlock(width, heads, ratio, nn.GELU(approximate=True)) for _ in range(depth)]
        )
        self.ln_final = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, ids):
        batch, length = ids.shape
        end = (ids == EOT).astype(ms.int32).argmax(axis=-1)
        place = ops.arange(length)
        causal = place.reshape(1, length) <= place.reshape(length, 1)
        inside = place.reshape(1, 1, length) <= end.reshape(batch, 1, 1)
        bias = mask_to_bias(ops.logical_and(causal, inside)).expand_dims(1)

        x = self.token_embedding(ids) + self.positional_embedding[:length]
        for block in self.blocks:
            x = block(x, bias)
        x = self.ln_final(x).reshape(batch * length, -1)
        return ops.gather(x, ops.arange(batch) * length + end, 0)


def soft_cross_entropy(logits, targets):
    return -(targets * ops.log_softmax(logits, axis=-1)).sum(axis=-1).mean()


def clip_loss(image, text, scale, labels, smoothing=0.1):
    """Symmetric cross entropy; texts of images of the same label share the target."""
    logits = scale * ops.matmul(image, text.T)
    targets = (labels.expand_dims(1) == labels).astype(logits.dtype)
    targets = targets / targets.sum(axis=1, keepdims=True)
    targets = targets * (1.0 - smoothing) + smoothing / len(labels)
    return 0.5 * (soft_cross_entropy(logits, targets) + soft_cross_entropy(logits.T, targets))


def siglip_loss(image, text, scale, bias, chunk=2):
    """The pairwise sigmoid loss, one round of chunks of texts at a time; the first round holds the true pairs."""
    batch, width = image.shape
    rounds = batch // chunk
    images, texts = image.reshape(rounds, chunk, width), text.reshape(rounds, chunk, width)
    paired = Tensor(np.eye(chunk, dtype=np.float32))
    total = 0.0
    for step in range(rounds):
        logits = ops.bmm(images, texts.swapaxes(1, 2)) * scale + bias
        signs = 2.0 * paired - 1.0 if step == 0 else -ops.ones_like(logits)
        total = total + ops.softplus(-signs * logits).sum()
        texts = ops.cat((texts[1:], texts[:1]), axis=0)
    return total / batch


def reweighted(sims, temperature=20.0):
    """Dual softmax: each caption's similarities times its distribution over the images."""
    return len(sims) * sims * ops.softmax(sims * temperature, axis=0)


def ranks_of_pairs(sims, own):
    """How many captions (images) score above the best own caption (the own image): (images,), (texts,)."""
    best = sims.masked_fill(ops.logical_not(own), LOWEST).max(axis=1)
    image_ranks = (sims > best.expand_dims(1)).astype(ms.int32).sum(axis=1)
    mine = (sims * own.astype(sims.dtype)).sum(axis=0)
    text_ranks = (sims > mine.expand_dims(0)).astype(ms.int32).sum(axis=0)
    return image_ranks, text_ranks


class ImageTextModel(nn.Cell):
    def __init__(self, image_width=64, text_width=48, embed=32, hidden=56, max_scale=30.0):
        super().__init__()
        self.max_log_scale = math.log(max_scale)
        self.visual = ImageTower(image_width)
        self.text = TextTower(text_width)
        self.image_projection = zeros_parameter(image_width, embed, name="image_projection")
        self.text_projection = zeros_parameter(text_width, embed, name="text_projection")
        self.image_sig_head = Head(image_width, hidden, embed)
        self.text_sig_head = Head(text_width, hidden, embed)
        self.logit_scale = Parameter(Tensor(math.log(1 / 0.07), ms.float32), name="logit_scale")
        self.sig_logit_scale = Parameter(Tensor(math.log(10.0), ms.float32), name="sig_logit_scale")
        self.sig_logit_bias = Parameter(Tensor(-10.0, ms.float32), name="sig_logit_bias")

    def embed_images(self, images, sizes):
        token, pooled = self.visual(images, sizes)
        return unit(ops.matmul(token, self.image_projection)), unit(self.image_sig_head(pooled))

    def embed_texts(self, ids):
        features = self.text(ids)
        return unit(ops.matmul(features, self.text_projection)), unit(self.text_sig_head(features))

    def class_vectors(self, prompts):
        """All prompts at once; rows of the tensor that hold no template have no weight in the means."""
        classes, templates, length = prompts.shape
        used = (prompts[:, :, :1] == SOT).astype(ms.float32)
        count = used.sum(axis=1)
        vectors = []
        for embedded in self.embed_texts(prompts.reshape(-1, length)):
            embedded = embedded.reshape(classes, templates, -1)
            vectors.append(unit((embedded * used).sum(axis=1) / count))
        return vectors

    def construct(self, images, sizes, labels, captions, owner, prompts):
        image_clip, image_sig = self.embed_images(images, sizes)
        text_clip, text_sig = self.embed_texts(captions)
        scale = ops.exp(ops.clamp(self.logit_scale, 0.0, self.max_log_scale))
        sig_scale = ops.exp(self.sig_logit_scale)

        own = owner.expand_dims(0) == ops.arange(len(images)).expand_dims(1)
        first = own.astype(ms.int32).argmax(axis=1)
        softmax_loss = clip_loss(image_clip, text_clip[first], scale, labels)
        sigmoid_loss = siglip_loss(image_sig, text_sig[first], sig_scale, self.sig_logit_bias)

        class_clip, class_sig = self.class_vectors(prompts)
        class_probs = ops.softmax(scale * ops.matmul(image_clip, class_clip.T), axis=-1)
        class_scores = ops.sigmoid(sig_scale * ops.matmul(image_sig, class_sig.T) + self.sig_logit_bias)

        sims = 0.5 * (ops.matmul(image_clip, text_clip.T) + ops.matmul(image_sig, text_sig.T))
        sims = reweighted(sims)
        image_ranks, text_ranks = ranks_of_pairs(sims, own)
        return (image_clip, text_clip, image_sig, text_sig, softmax_loss, sigmoid_loss, class_probs, class_scores,
                sims, image_ranks, text_ranks)


def sample_ids(rng, lengths, context):
    words = rng.randint(1, SOT, (len(lengths), context))
    ids = np.where(np.arange(context) <= lengths[:, None], words, EOT)
    ids[:, 0] = SOT
    return ids


def build():
    """The net for evaluation, and its batch: six images, ten captions, the prompts of five classes."""
    net = ImageTextModel()
    net.set_train(False)
    rng = np.random.RandomState(11)
    coarse = rng.rand(6, 3, 5, 7).repeat(8, axis=2).repeat(8, axis=3)
    images = (0.3 * rng.rand(6, 3, 40, 56) + 0.4 * coarse + 0.3 * rng.rand(6, 3, 1, 1)).astype(np.float32)
    sizes = np.array([[5, 7], [4, 4], [5, 3], [3, 7], [2, 6], [4, 5]])
    labels = np.array([0, 3, 1, 3, 4, 0])
    captions = sample_ids(rng, rng.randint(3, 12, 10), 14)
    owner = np.array([3, 0, 1, 1, 2, 0, 4, 5, 3, 5])
    prompts = sample_ids(rng, rng.randint(3, 8, 15), 10).reshape(5, 3, 10)
    prompts[1, 2:], prompts[3, 1:], prompts[4, 2:] = 0, 0, 0
    return net, tuple(Tensor(array) for array in (images, sizes, labels, captions, owner, prompts))
