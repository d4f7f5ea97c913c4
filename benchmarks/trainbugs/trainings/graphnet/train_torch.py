"""Text classification: token embedding, conv1d, self-attention, masked mean pooling, linear head."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SEED = 7
VOCAB = 150
MAX_LEN = 20
CLASSES = 4
SAMPLES = 60
BATCH = 16
EPOCHS = 3

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


class TextDataset(Dataset):
    def __init__(self):
        self.ids, self.labels = make_data()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return torch.from_numpy(self.ids[index]).long(), int(self.labels[index])


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def split(self, x):
        b, t, _ = x.shape
        return x.view(b, t, self.heads, self.head_dim).transpose(1, 2)

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = q @ k.transpose(-2, -1) / self.head_dim ** 0.5
        scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
        y = scores.softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(x.shape))


class TextNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, DIM, padding_idx=0)
        self.conv = nn.Conv1d(DIM, HIDDEN, kernel_size=3, padding=1)
        self.norm1 = nn.LayerNorm(HIDDEN)
        self.attn = SelfAttention(HIDDEN, HEADS)
        self.norm2 = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, ids):
        mask = ids != 0
        x = self.embedding(ids)
        x = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        x = self.norm1(x)
        x = self.norm2(x + self.attn(x, mask))
        m = mask.unsqueeze(-1).float()
        pooled = (x * m).sum(dim=1) / m.sum(dim=1)
        return self.head(pooled)


def param_groups(net):
    """The embedding has a smaller rate; biases and norms have no weight decay."""
    decay, no_decay = [], []
    for name, p in net.named_parameters():
        if name.startswith("embedding"):
            continue
        (no_decay if "bias" in name or "norm" in name else decay).append(p)
    return [
        {"params": list(net.embedding.parameters()), "lr": EMB_LR, "weight_decay": 0.0},
        {"params": decay, "weight_decay": WEIGHT_DECAY},
        {"params": no_decay, "weight_decay": 0.0},
    ]


def main():
    torch.manual_seed(SEED)
    loader = DataLoader(TextDataset(), batch_size=BATCH, shuffle=False)
    net = TextNet()
    criterion = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    optimizer = torch.optim.SGD(param_groups(net), lr=LR, momentum=MOMENTUM, nesterov=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=GAMMA)

    net.train()
    step = 0
    for epoch in range(EPOCHS):
        for ids, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(ids), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
            print(f"epoch {epoch} step {step} loss {loss.item():.6f}")
            step += 1
        scheduler.step()


if __name__ == "__main__":
    main()
