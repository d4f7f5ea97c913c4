"""Train a small GPT on synthetic token sequences (MindSpore, PyNative)."""
import math

import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer
from mindspore.dataset import GeneratorDataset
from mindspore.experimental import optim

VOCAB = 48
PAD = 0
BLOCK = 24
N_LAYER = 2
N_HEAD = 4
N_EMBD = 32

N_SEQ = 84
BATCH = 8
ACCUM = 2
EPOCHS = 2
LR = 5e-3
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
CLIP = 0.5


def make_data(seed=1234):
    """Counting sequences with a stride, some noise, and lengths of 8 to BLOCK."""
    rng = np.random.RandomState(seed)
    x = np.full((N_SEQ, BLOCK), PAD, dtype=np.int32)
    y = np.full((N_SEQ, BLOCK), PAD, dtype=np.int32)
    for i in range(N_SEQ):
        n = rng.randint(8, BLOCK + 1)
        start, stride = rng.randint(0, VOCAB - 1), rng.randint(1, 4)
        seq = 1 + (start + stride * np.arange(n + 1)) % (VOCAB - 1)
        noise = rng.rand(n + 1) < 0.05
        seq[noise] = rng.randint(1, VOCAB, noise.sum())
        x[i, :n], y[i, :n] = seq[:-1], seq[1:]
    return x, y


class TokenSource:
    def __init__(self):
        self.x, self.y = make_data()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def create_dataset():
    dataset = GeneratorDataset(TokenSource(), column_names=["x", "y"], shuffle=False)
    return dataset.batch(BATCH, drop_remainder=False)


class CausalSelfAttention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Dense(N_EMBD, 3 * N_EMBD)
        self.proj = nn.Dense(N_EMBD, N_EMBD)
        self.scale = 1.0 / math.sqrt(N_EMBD // N_HEAD)
        self.mask = Tensor(np.triu(np.ones((BLOCK, BLOCK), dtype=bool), k=1))

    def construct(self, x):
        b, t, c = x.shape
        # (b, t, 3c) -> (3, b, heads, t, c / heads)
        qkv = self.qkv(x).reshape(b, t, 3, N_HEAD, c // N_HEAD).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        att = ops.matmul(q, k.swapaxes(-2, -1)) * self.scale
        att = att.masked_fill(self.mask[:t, :t], -1e9)
        y = ops.matmul(ops.softmax(att, axis=-1), v)
        return self.proj(y.transpose(0, 2, 1, 3).reshape(b, t, c))


class MLP(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(N_EMBD, 4 * N_EMBD)
        self.act = nn.GELU(approximate=False)
        self.proj = nn.Dense(4 * N_EMBD, N_EMBD)

    def construct(self, x):
        return self.proj(self.act(self.fc(x)))


def layer_norm():
    return nn.LayerNorm((N_EMBD,), epsilon=1e-5)


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm1 = layer_norm()
        self.attn = CausalSelfAttention()
        self.norm2 = layer_norm()
        self.mlp = MLP()

    def construct(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Cell):
    def __init__(self):
        super().__init__()
        self.tok_emb = nn.Embedding(VOCAB, N_EMBD)
        self.pos_emb = nn.Embedding(BLOCK, N_EMBD)
        self.blocks = nn.CellList([Block() for _ in range(N_LAYER)])
        self.norm_f = layer_norm()
        self.head = nn.Dense(N_EMBD, VOCAB, has_bias=False)
        self.pos = Tensor(np.arange(BLOCK), ms.int32)
        self._init_weights()

    def _init_weights(self):
        for name, p in self.parameters_and_names():
            if p.ndim >= 2:
                std = 0.05 / math.sqrt(2 * N_LAYER) if name.endswith("proj.weight") else 0.05
                p.set_data(initializer(Normal(std), p.shape, p.dtype))
            elif name.endswith("bias"):
                p.set_data(initializer("zeros", p.shape, p.dtype))

    def construct(self, idx):
        x = self.tok_emb(idx) + self.pos_emb(self.pos[:idx.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm_f(x))


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(0)
    dataset = create_dataset()
    n_batches = dataset.get_dataset_size()
    model = GPT()
    params = model.trainable_params()
    print("parameters:", sum(p.size for p in params))

    decay = [p for p in params if p.ndim >= 2]
    no_decay = [p for p in params if p.ndim < 2]
    optimizer = optim.AdamW(
        [{"params": decay, "weight_decay": WEIGHT_DECAY},
         {"params": no_decay, "weight_decay": 0.0}],
        lr=LR, betas=BETAS)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)

    def forward_fn(x, y):
        logits = model(x)
        loss = ops.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1), ignore_index=PAD)
        return loss, logits

    # the gradients come in the order of the optimizer's parameters (group by group)
    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    history = []
    step = 0
    model.set_train()
    for epoch in range(EPOCHS):
        acc_grads = None
        losses = []
        for i, (x, y) in enumerate(dataset.create_tuple_iterator()):
            (loss, logits), grads = grad_fn(x, y)
            grads = [g / ACCUM for g in grads]
            acc_grads = grads if acc_grads is None else [a + g for a, g in zip(acc_grads, grads)]
            losses.append(float(loss.asnumpy()))
            pred, target = logits.asnumpy().argmax(-1), y.asnumpy()
            acc = (pred == target)[target != PAD].mean()
            if (i + 1) % ACCUM == 0 or i + 1 == n_batches:
                clipped = ops.clip_by_global_norm(tuple(acc_grads), CLIP)
                optimizer(clipped)
                scheduler.step()
                acc_grads = None
                history.append(float(np.mean(losses)))
                print(f"epoch {epoch} step {step:2d} loss {history[-1]:.6f} acc {acc:.3f} "
                      f"lr {float(scheduler.get_last_lr()[0].asnumpy()):.2e}")
                losses = []
                step += 1
    return history


if __name__ == "__main__":
    main()
