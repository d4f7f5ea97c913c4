"""Two-head training on small sensor patches: fault class and three physical parameters.

Encoder of three convolutions, a classification head and a regression head that sees the class probabilities.
The gradients are computed with a dynamic loss scale (torch.amp.GradScaler) and accumulated over two micro batches.
"""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SEED = 7
N_SAMPLES = 312
MICRO_BATCH = 16
ACCUM = 2
N_CLASSES = 5
N_TARGETS = 3
BASE_LR = 0.04
WARMUP = 3
MOMENTUM = 0.9
WEIGHT_DECAY = 0.02
MAX_NORM = 3.2
REG_WEIGHT = 0.5
SMOOTHING = 0.1
INIT_SCALE = 2.0 ** 24
GROWTH_INTERVAL = 3
CLASS_WEIGHTS = [0.5, 0.8, 1.0, 1.6, 2.4]
MEAN = np.array([3.0, -1.0], dtype=np.float32).reshape(2, 1, 1)
STD = np.array([2.0, 0.7], dtype=np.float32).reshape(2, 1, 1)


def make_data():
    rng = np.random.RandomState(SEED)
    labels = rng.choice(N_CLASSES, size=N_SAMPLES, p=[0.35, 0.25, 0.2, 0.12, 0.08])
    patterns = rng.randn(N_CLASSES, 2, 16, 16)
    amplitude = rng.uniform(0.5, 1.5, size=(N_SAMPLES, 1, 1, 1))
    x = 0.7 * amplitude * patterns[labels] + 0.6 * rng.randn(N_SAMPLES, 2, 16, 16)
    x = x * STD + MEAN
    targets = np.stack([amplitude[:, 0, 0, 0] * 2.0,
                        0.5 * labels - 1.0,
                        x[:, 0].mean(axis=(1, 2)) - 2.0], axis=1)
    targets += 0.1 * rng.randn(N_SAMPLES, N_TARGETS)
    # a broken sensor: one record holds a spike
    x[8 * MICRO_BATCH + 3, 1, 6, 9] = 1.0e21
    return x.astype(np.float32), labels.astype(np.int64), targets.astype(np.float32)


class PatchDataset(Dataset):
    def __init__(self):
        self.x, self.labels, self.targets = make_data()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = (self.x[i] - MEAN) / STD
        return torch.from_numpy(x), int(self.labels[i]), torch.from_numpy(self.targets[i])


class PatchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(24, 32, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(32)
        self.cls_head = nn.Linear(32, N_CLASSES)
        self.reg_head = nn.Linear(32 + N_CLASSES, N_TARGETS)

    def forward(self, x):
        h = F.relu(self.conv1(x))
        h = F.relu(self.conv2(h))
        h = F.relu(self.conv3(h))
        h = h.mean(dim=(2, 3))
        logits = self.cls_head(self.norm(h))
        # the class enters the regression as a given: no gradient through the probabilities
        probs = torch.softmax(logits, dim=1).detach()
        # the raw features go into the regression, it needs the amplitude
        values = self.reg_head(torch.cat([h, probs], dim=1))
        return logits, values


def param_groups(model):
    decay, no_decay = [], []
    for p in model.parameters():
        (decay if p.ndim > 1 else no_decay).append(p)
    return [{"params": decay, "weight_decay": WEIGHT_DECAY},
            {"params": no_decay, "weight_decay": 0.0}]


def lr_factor(step, total):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1.0 + math.cos(math.pi * (step - WARMUP) / (total - WARMUP)))


def main():
    torch.manual_seed(SEED)
    loader = DataLoader(PatchDataset(), batch_size=MICRO_BATCH, shuffle=False)
    n_micro = len(loader)
    total = math.ceil(n_micro / ACCUM)

    model = PatchNet()
    model.train()
    class_weights = torch.tensor(CLASS_WEIGHTS)
    optimizer = torch.optim.SGD(param_groups(model), lr=BASE_LR, momentum=MOMENTUM, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: lr_factor(s, total))
    scaler = torch.amp.GradScaler("cpu", init_scale=INIT_SCALE, growth_interval=GROWTH_INTERVAL)

    step, step_loss = 0, 0.0
    optimizer.zero_grad()
    for i, (x, labels, targets) in enumerate(loader):
        logits, values = model(x)
        ce = F.cross_entropy(logits, labels, weight=class_weights, label_smoothing=SMOOTHING)
        mse = F.mse_loss(values, targets)
        loss = (ce + REG_WEIGHT * mse) / ACCUM
        scaler.scale(loss).backward()
        step_loss += loss.item()

        if (i + 1) % ACCUM == 0 or i + 1 == n_micro:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            lr = scheduler.get_last_lr()[0]
            # the schedule follows the batches, whether or not the update was skipped
            scheduler.step()
            print(f"step {step} loss {step_loss:.6g} lr {lr:.5f} scale {scaler.get_scale():.0f}")
            step, step_loss = step + 1, 0.0


if __name__ == "__main__":
    main()
