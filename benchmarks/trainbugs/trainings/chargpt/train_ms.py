"""Train a small GPT on characters, in MindSpore (port of train_torch.py)."""
import math
import os

os.environ.setdefault("GLOG_v", "3")  # errors only: optim.AdamW warns at length about its own tuples

import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Normal
from mindspore.dataset import GeneratorDataset
from mindspore.experimental import optim

TEXT = """The mill stood where the river bent twice, and nobody in the valley could say who had
built it. The miller kept the sluice by a rule his mother had taught him: open it a hand
in the morning, two hands at noon, and close it before the cows came home. When the water
was high he counted the turns of the wheel; when it was low he mended sacks and waited.

One autumn a stranger came with a brass instrument in a wooden case. She set it on three
legs at the edge of the pond, looked through it, wrote a number, moved ten paces, and looked
again. "What do you measure?" asked the miller. "The fall of the water," she said. "From
here to the wheel it drops four feet and a quarter. You use less than half of it." He
laughed, for the wheel had turned the same way for a hundred years; yet that night he lay
awake and heard the other half of the river running past his door.

They built the new race in spring. They dug it with spades, lined it with clay, and laid
flat stones where the current was quick. The stranger drew every stone on a sheet of paper
before it was laid, and rubbed it out when it did not fit. By June the wheel turned faster
than the old gears could bear, so they cut new gears from oak, forty teeth on the large and
eleven on the small, because numbers that share no divisor wear evenly.

In the end the mill ground twice the grain with the same rain. The miller still opened the
sluice by his mother's rule, but he kept a book beside it, and each evening he wrote down
the height of the pond, the turns of the wheel, and the weight of the flour. Years later,
when the stranger returned, he showed her the book. She read it slowly, page after page,
and then asked whether she might copy it, for nobody had ever measured a river so long.
"""

BATCH_SIZE = 8
BLOCK_SIZE = 64
N_LAYER = 4
N_HEAD = 4
N_EMBD = 128
DROPOUT = 0.0

LEARNING_RATE = 3e-4
BETAS = (0.9, 0.95)
EPS = 1e-8
WEIGHT_DECAY = 0.1
GRAD_CLIP = 1.0
WARMUP_STEPS = 5
TOTAL_STEPS = 40

CHARS = sorted(set(TEXT))
VOCAB_SIZE = len(CHARS)
STOI = {ch: i for i, ch in enumerate(CHARS)}


# ---------------------------------------------------------------- data

def make_windows():
    """The text, repeated, cut into windows of BLOCK_SIZE + 1 characters, in a fixed random order."""
    num_windows = TOTAL_STEPS * BATCH_SIZE
    ids = np.array([STOI[ch] for ch in TEXT], dtype=np.int32)
    repeats = -(-(num_windows * BLOCK_SIZE + 1) // len(ids))
    ids = np.tile(ids, repeats)
    order = np.random.RandomState(1234).permutation(num_windows)
    starts = order * BLOCK_SIZE
    return np.stack([ids[s:s + BLOCK_SIZE + 1] for s in starts])


class CharSource:
    """Random accessible source for GeneratorDataset."""

    def __init__(self):
        self.windows = make_windows()

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        window = self.windows[index]
        return window[:-1], window[1:]


def create_dataset():
    dataset = GeneratorDataset(CharSource(), column_names=["x", "y"], shuffle=False, num_parallel_workers=1)
    return dataset.batch(BATCH_SIZE)


# ---------------------------------------------------------------- model

def linear(in_channels, out_channels, has_bias=True):
    return nn.Dense(in_channels, out_channels, weight_init=Normal(0.02), bias_init="zeros", has_bias=has_bias)


def layer_norm():
    # nn.LayerNorm's own default is 1e-7; PyTorch's is 1e-5
    return nn.LayerNorm((N_EMBD,), epsilon=1e-5)


class CausalSelfAttention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.n_head = N_HEAD
        self.head_dim = N_EMBD // N_HEAD
        self.c_attn = linear(N_EMBD, 3 * N_EMBD)
        self.c_proj = linear(N_EMBD, N_EMBD)
        self.attn_dropout = nn.Dropout(p=DROPOUT)
        self.resid_dropout = nn.Dropout(p=DROPOUT)
        mask = np.tril(np.ones((BLOCK_SIZE, BLOCK_SIZE), dtype=np.float32))
        self.mask = Tensor(mask.reshape(1, 1, BLOCK_SIZE, BLOCK_SIZE))

    def construct(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, axis=2)
        q = q.reshape(B, T, self.n_head, self.head_dim).swapaxes(1, 2)
        k = k.reshape(B, T, self.n_head, self.head_dim).swapaxes(1, 2)
        v = v.reshape(B, T, self.n_head, self.head_dim).swapaxes(1, 2)
        att = ops.matmul(q, k.swapaxes(-2, -1)) * (1.0 / math.sqrt(self.head_dim))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = ops.softmax(att, axis=-1)
        att = self.attn_dropout(att)
        y = ops.matmul(att, v)
        y = y.swapaxes(1, 2).reshape(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Cell):
    def __init__(self):
        super().__init__()
        self.c_fc = linear(N_EMBD, 4 * N_EMBD)
        self.gelu = nn.GELU(approximate=True)
        self.c_proj = linear(4 * N_EMBD, N_EMBD)
        self.dropout = nn.Dropout(p=DROPOUT)

    def construct(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.ln_1 = layer_norm()
        self.attn = CausalSelfAttention()
        self.ln_2 = layer_norm()
        self.mlp = MLP()

    def construct(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Cell):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB_SIZE, N_EMBD, embedding_table=Normal(0.02))
        self.wpe = nn.Embedding(BLOCK_SIZE, N_EMBD, embedding_table=Normal(0.02))
        self.drop = nn.Dropout(p=DROPOUT)
        self.h = nn.CellList([Block() for _ in range(N_LAYER)])
        self.ln_f = layer_norm()
        self.lm_head = linear(N_EMBD, VOCAB_SIZE, has_bias=False)

    def construct(self, idx):
        pos = ops.arange(idx.shape[1])
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


# ---------------------------------------------------------------- training

def lr_factor(step):
    """Linear warm-up, then cosine to zero at TOTAL_STEPS."""
    step = int(step)  # the scheduler counts in a Parameter
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (TOTAL_STEPS - WARMUP_STEPS)
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def param_groups(net):
    """Decay the matrices (dense and embedding weights), not biases and LayerNorm."""
    params = net.trainable_params()
    decay = [p for p in params if p.ndim >= 2]
    no_decay = [p for p in params if p.ndim < 2]
    return [
        {"params": decay, "weight_decay": WEIGHT_DECAY},
        {"params": no_decay, "weight_decay": 0.0},
    ]


def clip_grad_norm(grads, max_norm):
    """Clip by global norm as torch.nn.utils.clip_grad_norm_ does
    (ops.clip_by_global_norm has not the 1e-6 in the denominator)."""
    total_norm = ops.sqrt(sum(ops.square(grad).sum() for grad in grads))
    clip_coef = ops.clamp(max_norm / (total_norm + 1e-6), max=1.0)
    return tuple(grad * clip_coef for grad in grads)


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    ms.set_seed(0)

    train_dataset = create_dataset()

    model = GPT()
    loss_fn = nn.CrossEntropyLoss()
    # nn.AdamWeightDecay has no bias correction; this AdamW has
    optimizer = optim.AdamW(param_groups(model), lr=LEARNING_RATE, betas=BETAS, eps=EPS,
                            weight_decay=WEIGHT_DECAY)
    scheduler = optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=lr_factor)

    # 1. Define forward function
    def forward_fn(x, y):
        logits = model(x)
        loss = loss_fn(logits.reshape(-1, VOCAB_SIZE), y.reshape(-1))
        return loss, logits

    # 2. Get gradient function
    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    # 3. Define function of one-step training
    def train_step(x, y):
        (loss, _), grads = grad_fn(x, y)
        grads = clip_grad_norm(grads, GRAD_CLIP)
        optimizer(grads)
        scheduler.step()
        return loss

    model.set_train()
    for step, (x, y) in enumerate(train_dataset.create_tuple_iterator()):
        loss = train_step(x, y)
        print(f"step {step + 1:3d}/{TOTAL_STEPS} loss {float(loss.asnumpy()):.7f}")
    print("Done!")


if __name__ == "__main__":
    main()
