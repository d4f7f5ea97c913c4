"""Train a small GPT on characters, in PyTorch."""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

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
    ids = np.array([STOI[ch] for ch in TEXT], dtype=np.int64)
    repeats = -(-(num_windows * BLOCK_SIZE + 1) // len(ids))
    ids = np.tile(ids, repeats)
    order = np.random.RandomState(1234).permutation(num_windows)
    starts = order * BLOCK_SIZE
    return np.stack([ids[s:s + BLOCK_SIZE + 1] for s in starts])


class CharDataset(Dataset):
    def __init__(self):
        self.windows = make_windows()

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        window = torch.from_numpy(self.windows[index])
        return window[:-1], window[1:]


# ---------------------------------------------------------------- model

class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_head = N_HEAD
        self.head_dim = N_EMBD // N_HEAD
        self.c_attn = nn.Linear(N_EMBD, 3 * N_EMBD)
        self.c_proj = nn.Linear(N_EMBD, N_EMBD)
        self.attn_dropout = nn.Dropout(DROPOUT)
        self.resid_dropout = nn.Dropout(DROPOUT)
        mask = torch.tril(torch.ones(BLOCK_SIZE, BLOCK_SIZE)).view(1, 1, BLOCK_SIZE, BLOCK_SIZE)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.head_dim))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc = nn.Linear(N_EMBD, 4 * N_EMBD)
        self.gelu = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(4 * N_EMBD, N_EMBD)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(N_EMBD)
        self.attn = CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(N_EMBD)
        self.mlp = MLP()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB_SIZE, N_EMBD)
        self.wpe = nn.Embedding(BLOCK_SIZE, N_EMBD)
        self.drop = nn.Dropout(DROPOUT)
        self.h = nn.ModuleList([Block() for _ in range(N_LAYER)])
        self.ln_f = nn.LayerNorm(N_EMBD)
        self.lm_head = nn.Linear(N_EMBD, VOCAB_SIZE, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


# ---------------------------------------------------------------- training

def lr_factor(step):
    """Linear warm-up, then cosine to zero at TOTAL_STEPS."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (TOTAL_STEPS - WARMUP_STEPS)
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def param_groups(model):
    """Decay the matrices (linear and embedding weights), not biases and LayerNorm."""
    params = list(model.parameters())
    decay = [p for p in params if p.dim() >= 2]
    no_decay = [p for p in params if p.dim() < 2]
    return [
        {"params": decay, "weight_decay": WEIGHT_DECAY},
        {"params": no_decay, "weight_decay": 0.0},
    ]


def main():
    torch.manual_seed(0)
    device = "cpu"

    train_loader = DataLoader(CharDataset(), batch_size=BATCH_SIZE, shuffle=False)

    model = GPT().to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(param_groups(model), lr=LEARNING_RATE, betas=BETAS, eps=EPS)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=lr_factor)

    model.train()
    for step, (x, y) in enumerate(train_loader):
        x, y = x.to(device), y.to(device)

        logits = model(x)
        loss = loss_fn(logits.view(-1, VOCAB_SIZE), y.view(-1))

        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        scheduler.step()

        print(f"step {step + 1:3d}/{TOTAL_STEPS} loss {loss.item():.7f}")
    print("Done!")


if __name__ == "__main__":
    main()
