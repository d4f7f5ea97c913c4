"""Text classification: token embedding, conv1d, self-attention, masked mean pooling, linear head."""
import math

import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import HeUniform, initializer

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_device("CPU")

SEED = 7
VOCAB = 150
MAX_LEN = 20
CLASSES = 4
SAMPLES = 60
BATCH = 16
EPOCHS = 3
STEPS_PER_EPOCH = math.ceil(SAMPLES / BATCH)

DIM = 24
HIDDEN = 32
HEADS = 4

LR = 0.1
EMB_LR = 0.5 * LR
GAMMA = 0.7
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-2
CLIP = 0.8
SMOOTHING = 0.1


def make_data(seed=SEED):
    """Sentences of different lengths, padded with 0; each class prefers a range of the vocabulary."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((SAMPLES, MAX_LEN), dtype=np.int32)
    labels = rng.integers(0, CLASSES, size=SAMPLES).astype(np.int32)
    span = (VOCAB - 1) // CLASSES
    for i, label in enumerate(labels):
        length = int(rng.integers(6, MAX_LEN + 1))
        words = rng.integers(1, VOCAB, size=length)
        topical = rng.integers(0, span, size=length) + 1 + label * span
        ids[i, :length] = np.where(rng.random(length) < 0.5, topical, words)
    return ids, labels


class TextSource:
    def __init__(self):
        self.ids, self.labels = make_data()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.ids[index], self.labels[index]


def create_dataset():
    data = ds.GeneratorDataset(TextSource(), column_names=["ids", "label"], shuffle=False)
    return data.batch(BATCH, drop_remainder=False)


class Conv1d(nn.Cell):
    """nn.Conv1d keeps a weight of four dimensions; this one has (out, in, kernel), as the checkpoints have."""

    def __init__(self, in_channels, out_channels, kernel_size, padding):
        super().__init__()
        self.padding = padding
        self.weight = Parameter(initializer(HeUniform(math.sqrt(5)), (out_channels, in_channels, kernel_size)))
        self.bias = Parameter(initializer("zeros", (out_channels,)))

    def construct(self, x):
        y = ops.conv2d(x.expand_dims(2), self.weight.expand_dims(2), pad_mode="pad",
                       padding=(0, self.padding))
        return y.squeeze(2) + self.bias.reshape(1, -1, 1)


class SelfAttention(nn.Cell):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.query = nn.Dense(dim, dim)
        self.key = nn.Dense(dim, dim)
        self.value = nn.Dense(dim, dim)
        self.proj = nn.Dense(dim, dim)
        self.matmul = ops.BatchMatMul()
        self.matmul_bt = ops.BatchMatMul(transpose_b=True)
        self.softmax = nn.Softmax(axis=-1)
        self.scale = self.head_dim ** -0.5

    def split(self, x):
        b, t, _ = x.shape
        return x.reshape(b, t, self.heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        bias = (1.0 - mask).expand_dims(1).expand_dims(1) * -1e9
        probs = self.softmax(self.matmul_bt(q, k) * self.scale + bias)
        y = self.matmul(probs, v).transpose(0, 2, 1, 3)
        return self.proj(y.reshape(x.shape))


class TextNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, DIM, padding_idx=0)
        self.conv = Conv1d(DIM, HIDDEN, kernel_size=3, padding=1)
        self.norm1 = nn.LayerNorm((HIDDEN,), epsilon=1e-5)
        self.attn = SelfAttention(HIDDEN, HEADS)
        self.norm2 = nn.LayerNorm((HIDDEN,), epsilon=1e-5)
        self.head = nn.Dense(HIDDEN, CLASSES)
        self.relu = nn.ReLU()

    def construct(self, ids):
        mask = ops.not_equal(ids, 0).astype(ms.float32)
        m = mask.expand_dims(-1)
        # the padding row must stay as it is: nn.Embedding has a gradient for it
        x = self.embedding(ids) * m
        x = self.relu(self.conv(x.transpose(0, 2, 1))).transpose(0, 2, 1)
        x = self.norm1(x)
        x = self.norm2(x + self.attn(x, mask))
        pooled = (x * m).sum(axis=1) / m.sum(axis=1)
        return self.head(pooled)


class TrainOneStepWithClip(nn.TrainOneStepCell):
    """One step, with the gradients clipped by their global norm."""

    def __init__(self, network, optimizer, clip_norm):
        super().__init__(network, optimizer)
        self.clip_norm = clip_norm

    def construct(self, ids, label):
        loss = self.network(ids, label)
        grads = self.grad_no_sens(self.network, self.weights)(ids, label)
        grads = ops.clip_by_global_norm(grads, self.clip_norm)
        return ops.depend(loss, self.optimizer(grads))


def schedule(base):
    """torch's ExponentialLR, stepped once an epoch."""
    return nn.ExponentialDecayLR(base, GAMMA, STEPS_PER_EPOCH, is_stair=True)


def param_groups(net):
    """The embedding has a smaller rate; biases and norms have no weight decay."""
    embedding, decay, no_decay = [], [], []
    for p in net.trainable_params():
        if p.name.startswith("embedding"):
            embedding.append(p)
        elif "bias" in p.name or "norm" in p.name:
            no_decay.append(p)
        else:
            decay.append(p)
    return [
        {"params": embedding, "lr": schedule(EMB_LR), "weight_decay": 0.0},
        {"params": decay, "weight_decay": WEIGHT_DECAY},
        {"params": no_decay, "weight_decay": 0.0},
    ]


def main():
    ms.set_seed(SEED)
    dataset = create_dataset()
    net = TextNet()
    loss_fn = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    optimizer = nn.SGD(param_groups(net), learning_rate=schedule(LR), momentum=MOMENTUM, nesterov=True)
    train_net = TrainOneStepWithClip(nn.WithLossCell(net, loss_fn), optimizer, CLIP)

    train_net.set_train()
    step = 0
    for epoch in range(EPOCHS):
        for ids, label in dataset.create_tuple_iterator():
            loss = train_net(ids, label)
            print(f"epoch {epoch} step {step} loss {float(loss.asnumpy()):.6f}")
            step += 1


if __name__ == "__main__":
    main()
