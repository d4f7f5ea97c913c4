"""State of health of battery cells from short discharge windows (conv + LSTM regressor).

The first convolution block was trained on another fleet of cells and stays frozen.
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SEED = 7
N_TRAIN, N_VAL = 60, 24
WINDOW, CHANNELS = 40, 4          # time steps; voltage, current, temperature, capacity counter
BATCH = 16
EPOCHS = 3
LR = 4e-3
LR_GAMMA = 0.6                    # per epoch
BETAS = (0.9, 0.98)
WEIGHT_DECAY = 2e-2
GRAD_CLIP = 0.005                 # by value
LOSS_BETA = 0.5
AGED_WEIGHT = 3.0                 # aged cells are rare


def make_cells(n, rng):
    soh = 0.7 + 0.3 * rng.beta(3.0, 1.5, size=n)
    t = np.linspace(0.0, 1.0, WINDOW)
    x = np.empty((n, WINDOW, CHANNELS))
    for i in range(n):
        load = 1.0 + 0.3 * np.sin(2 * np.pi * (t * rng.uniform(1, 3) + rng.uniform()))
        resistance = 0.05 + 0.25 * (1.0 - soh[i])
        used = np.cumsum(load) / WINDOW / soh[i]
        x[i, :, 0] = 4.1 - 0.6 * used - resistance * load
        x[i, :, 1] = load
        x[i, :, 2] = 25.0 + 30.0 * resistance * np.cumsum(load ** 2) / WINDOW
        x[i, :, 3] = used
    x += rng.normal(size=x.shape) * np.array([0.01, 0.02, 0.2, 0.01])
    return x, soh


rng = np.random.RandomState(SEED)
x_train, soh_train = make_cells(N_TRAIN, rng)
x_val, soh_val = make_cells(N_VAL, rng)
x_mean, x_std = x_train.mean(axis=(0, 1)), x_train.std(axis=(0, 1))
y_mean, y_std = soh_train.mean(), soh_train.std()


class CellWindows(Dataset):
    def __init__(self, x, soh):
        self.x = ((x - x_mean) / x_std).astype(np.float32)
        self.y = ((soh - y_mean) / y_std).astype(np.float32)
        self.w = np.where(soh < 0.85, AGED_WEIGHT, 1.0).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i], self.w[i]


class SohNet(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 8, (5, 1), padding=(2, 0), bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.mix = nn.Sequential(
            nn.Conv2d(8, 12, (5, 1), stride=(2, 1), padding=(2, 0), bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
        )
        self.lstm = nn.LSTM(12 * CHANNELS, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):                              # (N, T, C)
        h = self.mix(self.stem(x.unsqueeze(1)))        # (N, 12, T/2, C)
        h = h.permute(0, 2, 1, 3).flatten(2)           # (N, T/2, 12 * C)
        out, _ = self.lstm(h)
        return self.head(out[:, -1]).squeeze(-1)


def load_pretrained_stem(net):
    r = np.random.RandomState(11)
    with torch.no_grad():
        net.stem[0].weight.copy_(torch.tensor(r.normal(0, 0.45, (8, 1, 5, 1))))
        net.stem[1].weight.copy_(torch.tensor(r.uniform(0.7, 1.3, 8)))
        net.stem[1].bias.copy_(torch.tensor(r.normal(0, 0.2, 8)))
        net.stem[1].running_mean.copy_(torch.tensor(r.normal(0, 0.3, 8)))
        net.stem[1].running_var.copy_(torch.tensor(r.uniform(0.5, 2.0, 8)))


def weighted_loss(pred, target, weight):
    loss = F.smooth_l1_loss(pred, target, reduction="none", beta=LOSS_BETA)
    focus = (1.0 + (pred - target).abs()).detach()     # hard windows count more
    weight = weight * focus
    return (weight * loss).sum() / weight.sum()


train_loader = DataLoader(CellWindows(x_train, soh_train), batch_size=BATCH, shuffle=False)
val_loader = DataLoader(CellWindows(x_val, soh_val), batch_size=N_VAL, shuffle=False)

torch.manual_seed(SEED)
net = SohNet()
load_pretrained_stem(net)
for p in net.stem.parameters():
    p.requires_grad = False

params = [p for p in net.parameters() if p.requires_grad]
optimizer = torch.optim.Adam(
    [
        {"params": [p for p in params if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in params if p.ndim <= 1], "weight_decay": 0.0},
    ],
    lr=LR,
    betas=BETAS,
)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=LR_GAMMA)

step = 0
for epoch in range(EPOCHS):
    net.train()
    net.stem.eval()                                    # frozen: keeps its running statistics
    for x, y, w in train_loader:
        loss = weighted_loss(net(x), y, w)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(params, GRAD_CLIP)
        optimizer.step()
        print(f"step {step:2d} loss {loss.item():.6f}")
        step += 1
    scheduler.step()

    net.eval()
    with torch.no_grad():
        val = sum(F.l1_loss(net(x), y).item() for x, y, _ in val_loader) / len(val_loader)
    print(f"epoch {epoch} val mae {val * y_std:.5f}")
