"""Train a small GPT on synthetic token sequences (next token prediction)."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

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
    x = np.full((N_SEQ, BLOCK), PAD, dtype=np.int64)
    y = np.full((N_SEQ, BLOCK), PAD, dtype=np.int64)
    for i in range(N_SEQ):
        n = rng.randint(8, BLOCK + 1)
        start, stride = rng.randint(0, VOCAB - 1), rng.randint(1, 4)
        seq = 1 + (start + stride * np.arange(n + 1)) % (VOCAB - 1)
        noise = rng.rand(n + 1) < 0.05
        seq[noise] = rng.randint(1, VOCAB, noise.sum())
        x[i, :n], y[i, :n] = seq[:-1], seq[1:]
    return x, y


class TokenDataset(Dataset):
    def __init__(self):
        self.x, self.y = make_data()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]), torch.from_numpy(self.y[i])


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(N_EMBD, 3 * N_EMBD)
        self.c_proj = nn.Linear(N_EMBD, N_EMBD)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(x).split(N_EMBD, dim=2)
        q = q.view(b, t, N_HEAD, c // N_HEAD).transpose(1, 2)
        k = k.view(b, t, N_HEAD, c // N_HEAD).transpose(1, 2)
        v = v.view(b, t, N_HEAD, c // N_HEAD).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc = nn.Linear(N_EMBD, 4 * N_EMBD)
        self.act = nn.GELU()
        self.c_proj = nn.Linear(4 * N_EMBD, N_EMBD)

    def forward(self, x):
        return self.c_proj(self.act(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(N_EMBD)
        self.attn = CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(N_EMBD)
        self.mlp = MLP()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, N_EMBD)
        self.wpe = nn.Embedding(BLOCK, N_EMBD)
        self.blocks = nn.ModuleList([Block() for _ in range(N_LAYER)])
        self.ln_f = nn.LayerNorm(N_EMBD)
        self.lm_head = nn.Linear(N_EMBD, VOCAB, bias=False)
        self.apply(self._init_weights)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(p, mean=0.0, std=0.05 / math.sqrt(2 * N_LAYER))

    def _init_weights(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, mean=0.0, std=0.05)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx):
        pos = torch.arange(idx.shape[1])
        x = self.wte(idx) + self.wpe(pos)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def main():
    torch.manual_seed(0)
    loader = DataLoader(TokenDataset(), batch_size=BATCH, shuffle=False)
    model = GPT()
    print("parameters:", sum(p.numel() for p in model.parameters()))

    decay = [p for p in model.parameters() if p.dim() >= 2]
    no_decay = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": WEIGHT_DECAY},
         {"params": no_decay, "weight_decay": 0.0}],
        lr=LR, betas=BETAS)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)

    history = []
    step = 0
    model.train()
    for epoch in range(EPOCHS):
        optimizer.zero_grad()
        losses = []
        for i, (x, y) in enumerate(loader):
            logits = model(x)
            loss = F.cross_entropy(logits.view(-1, VOCAB), y.view(-1), ignore_index=PAD)
            (loss / ACCUM).backward()
            losses.append(loss.item())
            acc = (logits.argmax(-1) == y)[y != PAD].float().mean().item()
            if (i + 1) % ACCUM == 0 or i + 1 == len(loader):
                norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                history.append(float(np.mean(losses)))
                print(f"epoch {epoch} step {step:2d} loss {history[-1]:.6f} acc {acc:.3f} "
                      f"norm {norm.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
                losses = []
                step += 1
    return history


if __name__ == "__main__":
    main()
