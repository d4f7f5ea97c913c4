"""Small ResNet for tabular data (loan grades in five classes), PyTorch.

RMSprop with two parameter groups (weights with decay, norms and biases without),
learning rate halved at the start of every epoch after the first (MultiStepLR, once per epoch).
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SEED = 2024
N_ROWS = 150
N_TRAIN = 118
N_FEATURES = 16
N_SKEWED = 5            # the first columns are amounts with a long tail
N_CLASSES = 5
BATCH = 32
EPOCHS = 3
WIDTH = 32
HIDDEN = 64

LR_WEIGHTS = 2e-4
LR_NORMS = 4e-4
GAMMA = 0.5
MILESTONES = [1, 2]     # epochs
WEIGHT_DECAY = 5e-3
LABEL_SMOOTHING = 0.05
CLASS_WEIGHTS = [0.6, 0.8, 1.0, 1.5, 2.5]
FOCUS = 2.0


def make_table():
    rng = np.random.RandomState(SEED)
    x = rng.randn(N_ROWS, N_FEATURES).astype(np.float32)
    mix = rng.randn(N_FEATURES, N_CLASSES).astype(np.float32)
    score = x @ mix + 1.5 * np.tanh(x[:, ::-1] @ mix) + 0.5 * rng.randn(N_ROWS, N_CLASSES)
    score = score - np.array([0.0, 0.5, 1.0, 2.0, 3.0])
    y = score.argmax(axis=1).astype(np.int64)
    scale = rng.uniform(0.5, 20.0, size=N_FEATURES).astype(np.float32)
    shift = rng.uniform(-5.0, 5.0, size=N_FEATURES).astype(np.float32)
    table = x * scale + shift
    table[:, :N_SKEWED] = np.exp(0.8 * x[:, :N_SKEWED] + 2.0)
    return table.astype(np.float32), y


class LoanTable(Dataset):
    def __init__(self, table, labels, mean, std):
        self.table, self.labels = table, labels
        self.mean, self.std = mean, std

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        row = self.table[i].copy()
        row[:N_SKEWED] = np.log1p(row[:N_SKEWED])
        row = (row - self.mean) / self.std
        return torch.from_numpy(row), int(self.labels[i])


def train_statistics(table):
    t = table.copy()
    t[:, :N_SKEWED] = np.log1p(t[:, :N_SKEWED])
    return t.mean(axis=0), t.std(axis=0) + 1e-6


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class TabularResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(N_FEATURES, WIDTH, bias=False)
        self.blocks = nn.ModuleList([Block(WIDTH, HIDDEN) for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, N_CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(F.gelu(self.norm(x)))


class FocusedCrossEntropy(nn.Module):
    """Cross entropy with class weights; easy rows count less, the focus itself is a constant."""

    def __init__(self):
        super().__init__()
        self.register_buffer("class_weights", torch.tensor(CLASS_WEIGHTS))

    def forward(self, logits, target):
        ce = F.cross_entropy(logits, target, weight=self.class_weights, reduction="none",
                             label_smoothing=LABEL_SMOOTHING)
        p = F.softmax(logits, dim=1).gather(1, target[:, None]).squeeze(1)
        focus = (1.0 - p.detach()) ** FOCUS
        return (focus * ce).mean()


def param_groups(model):
    weights, norms = [], []
    for p in model.parameters():
        (weights if p.ndim > 1 else norms).append(p)
    return [{"params": weights, "lr": LR_WEIGHTS, "weight_decay": WEIGHT_DECAY},
            {"params": norms, "lr": LR_NORMS, "weight_decay": 0.0}]


def main():
    torch.manual_seed(SEED)
    table, labels = make_table()
    mean, std = train_statistics(table[:N_TRAIN])
    loader = DataLoader(LoanTable(table[:N_TRAIN], labels[:N_TRAIN], mean, std),
                        batch_size=BATCH, shuffle=False)

    model = TabularResNet()
    criterion = FocusedCrossEntropy()
    optimizer = torch.optim.RMSprop(param_groups(model), alpha=0.99, eps=1e-8)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=MILESTONES, gamma=GAMMA)

    step = 0
    model.train()
    for epoch in range(EPOCHS):
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} step {step} loss {loss.item():.6f}")
            step += 1
        scheduler.step()

    held_out = LoanTable(table[N_TRAIN:], labels[N_TRAIN:], mean, std)
    x, y = next(iter(DataLoader(held_out, batch_size=len(held_out), shuffle=False)))
    model.eval()
    with torch.no_grad():
        print(f"held-out rows: {criterion(model(x), y).item():.6f}")


if __name__ == "__main__":
    main()
