"""Contrastive pre-training (MoCo style) of a small conv encoder on synthetic images."""
import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SEED = 7
NUM_SAMPLES = 140
IMAGE_SIZE = 16
BATCH_SIZE = 32
EPOCHS = 3
FEATURE_DIM = 32
QUEUE_SIZE = 128
TEMPERATURE = 0.2
EMA = 0.9
LR_MAX = 0.1
LR_MIN = 0.001
MOMENTUM = 0.9
WEIGHT_DECAY = 2e-3
CLIP_NORM = 0.5


def make_images(rng):
    """Each image is a sum of three Gaussian blobs, values from 0 to 1."""
    yy, xx = np.mgrid[0:IMAGE_SIZE, 0:IMAGE_SIZE].astype(np.float32)
    images = np.zeros((NUM_SAMPLES, IMAGE_SIZE, IMAGE_SIZE), np.float32)
    for image in images:
        for _ in range(3):
            cy, cx = rng.uniform(2, IMAGE_SIZE - 2, 2)
            width = rng.uniform(1.0, 3.0)
            image += rng.uniform(0.3, 1.0) * np.exp(-((yy - cy) ** 2 + (xx - cx) ** 2) / (2 * width ** 2))
    return np.clip(images, 0.0, 1.0)


def augment(images, rng):
    """Random shift, flip, contrast and noise."""
    out = np.empty_like(images)
    for i, image in enumerate(images):
        dy, dx = rng.randint(-2, 3, 2)
        view = np.roll(image, (dy, dx), axis=(0, 1))
        if rng.rand() < 0.5:
            view = view[:, ::-1]
        out[i] = view * rng.uniform(0.6, 1.4) + rng.normal(0.0, 0.05, view.shape)
    return out


class TwoViews(Dataset):
    def __init__(self):
        rng = np.random.RandomState(SEED)
        images = make_images(rng)
        mean, std = images.mean(), images.std()
        view1 = (augment(images, rng) - mean) / std
        view2 = (augment(images, rng) - mean) / std
        self.view1 = view1[:, None].astype(np.float32)
        self.view2 = view2[:, None].astype(np.float32)

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return self.view1[index], self.view2[index]


class Encoder(nn.Module):
    def __init__(self, feature_dim=FEATURE_DIM):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.conv3 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(32)
        self.pool = nn.MaxPool2d(2)
        # projection head
        self.proj1 = nn.Linear(32, 64)
        self.proj2 = nn.Linear(64, feature_dim)

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.pool(F.relu(self.bn2(self.conv2(x))))
        x = F.relu(self.bn3(self.conv3(x))).mean(dim=(2, 3))
        x = self.proj2(F.relu(self.proj1(x)))
        return F.normalize(x, dim=1)


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder_q = Encoder()
        self.encoder_k = copy.deepcopy(self.encoder_q)
        for p in self.encoder_k.parameters():
            p.requires_grad_(False)
        queue = np.random.RandomState(SEED + 1).randn(QUEUE_SIZE, FEATURE_DIM).astype(np.float32)
        queue /= np.linalg.norm(queue, axis=1, keepdims=True)
        self.register_buffer("queue", torch.from_numpy(queue))

    def forward(self, view1, view2):
        q = self.encoder_q(view1)
        with torch.no_grad():
            k = self.encoder_k(view2)
        l_pos = (q * k).sum(dim=1, keepdim=True)
        l_neg = q @ self.queue.clone().detach().t()
        logits = torch.cat([l_pos, l_neg], dim=1) / TEMPERATURE
        labels = torch.zeros(len(q), dtype=torch.long)
        return F.cross_entropy(logits, labels), k

    @torch.no_grad()
    def update_key_encoder(self):
        for p_q, p_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            p_k.mul_(EMA).add_(p_q, alpha=1.0 - EMA)

    @torch.no_grad()
    def enqueue(self, keys):
        self.queue = torch.cat([self.queue[len(keys):], keys])


def build():
    torch.manual_seed(0)
    loader = DataLoader(TwoViews(), batch_size=BATCH_SIZE, shuffle=False, drop_last=True)
    model = MoCo()
    params = list(model.encoder_q.parameters())
    optimizer = torch.optim.SGD(
        [{"params": [p for p in params if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
         {"params": [p for p in params if p.ndim == 1], "weight_decay": 0.0}],
        lr=LR_MAX, momentum=MOMENTUM, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader), eta_min=LR_MIN)
    return loader, model, optimizer, scheduler


def train(loader, model, optimizer, scheduler):
    losses = []
    model.train()
    for epoch in range(EPOCHS):
        for view1, view2 in loader:
            loss, keys = model(view1, view2)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.encoder_q.parameters(), CLIP_NORM)
            optimizer.step()
            scheduler.step()
            model.update_key_encoder()
            model.enqueue(keys)
            losses.append(loss.item())
            print(f"epoch {epoch} step {len(losses) - 1} loss {losses[-1]:.6f}")
    return losses


if __name__ == "__main__":
    train(*build())
