"""A small DCGAN on 8x8 pictures of soft blobs and rings."""
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

N_IMAGES = 208
BATCH = 64
EPOCHS = 4
Z_DIM = 16
LR_G = 1e-3
LR_D = 4e-4
BETAS = (0.5, 0.999)
WD_D = 1e-2
LR_DECAY = 0.7          # per epoch, both optimizers
MAX_NORM_D = 0.5
REAL_LABEL = 0.9        # one-sided label smoothing


def make_images(n, seed=7):
    """uint8 pictures (n, 8, 8), blobs of random centre and width, every third one a ring"""
    rng = np.random.RandomState(seed)
    yy, xx = np.mgrid[0:8, 0:8].astype(np.float32)
    images = np.zeros((n, 8, 8), np.float32)
    for i in range(n):
        cy, cx = rng.uniform(2.0, 5.0, 2)
        width = rng.uniform(0.8, 2.0)
        r2 = (yy - cy) ** 2 + (xx - cx) ** 2
        if i % 3 == 0:
            images[i] = np.exp(-(np.sqrt(r2) - 2.0) ** 2 / (0.5 * width))
        else:
            images[i] = np.exp(-r2 / (2 * width ** 2))
        images[i] += 0.05 * rng.rand(8, 8)
    return (np.clip(images, 0, 1) * 255).astype(np.uint8)


class Blobs(Dataset):
    def __init__(self, n=N_IMAGES):
        self.images = make_images(n)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        x = self.images[i].astype(np.float32) / 127.5 - 1.0
        return torch.from_numpy(x[None])


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(Z_DIM, 32 * 2 * 2)
        self.bn1 = nn.BatchNorm2d(32, 0.8)
        self.up1 = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16, 0.8)
        self.up2 = nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1)

    def forward(self, z):
        x = self.fc(z).view(-1, 32, 2, 2)
        x = torch.relu(self.bn1(x))
        x = torch.relu(self.bn2(self.up1(x)))
        return torch.tanh(self.up2(x))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 4, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(32)
        self.act = nn.LeakyReLU(0.2)
        self.head = nn.Linear(32 * 2 * 2, 1)

    def forward(self, x):
        x = self.act(self.conv1(x))
        x = self.act(self.bn(self.conv2(x)))
        return self.head(x.flatten(1))


def train(net_g, net_d):
    loader = DataLoader(Blobs(), batch_size=BATCH, shuffle=False, drop_last=True)
    criterion = nn.BCEWithLogitsLoss()
    opt_d = torch.optim.Adam(net_d.parameters(), lr=LR_D, betas=BETAS, weight_decay=WD_D)
    opt_g = torch.optim.Adam(net_g.parameters(), lr=LR_G, betas=BETAS)
    sched_d = torch.optim.lr_scheduler.ExponentialLR(opt_d, gamma=LR_DECAY)
    sched_g = torch.optim.lr_scheduler.ExponentialLR(opt_g, gamma=LR_DECAY)
    noise_rng = np.random.RandomState(123)

    def noise(n):
        return torch.from_numpy(noise_rng.randn(n, Z_DIM).astype(np.float32))

    net_g.train()
    net_d.train()
    history = []
    step = 0
    for epoch in range(EPOCHS):
        for real in loader:
            n = real.size(0)

            # discriminator: real pictures against generated ones
            opt_d.zero_grad()
            fake = net_g(noise(n))
            out_real = net_d(real)
            out_fake = net_d(fake.detach())
            loss_real = criterion(out_real, torch.full_like(out_real, REAL_LABEL))
            loss_fake = criterion(out_fake, torch.zeros_like(out_fake))
            loss_d = 0.5 * (loss_real + loss_fake)
            loss_d.backward()
            torch.nn.utils.clip_grad_norm_(net_d.parameters(), MAX_NORM_D)
            opt_d.step()

            # generator: fresh noise, against the discriminator just updated
            opt_g.zero_grad()
            out = net_d(net_g(noise(n)))
            loss_g = criterion(out, torch.ones_like(out))
            loss_g.backward()
            opt_g.step()

            print(f"epoch {epoch} step {step:2d}  loss_d {loss_d.item():.5f}  loss_g {loss_g.item():.5f}  "
                  f"D(real) {out_real.mean().item():+.3f}  D(fake) {out_fake.mean().item():+.3f}")
            history.append((loss_d.item(), loss_g.item()))
            step += 1
        sched_d.step()
        sched_g.step()
    return history


def main():
    torch.manual_seed(0)
    net_g, net_d = Generator(), Discriminator()
    train(net_g, net_d)


if __name__ == "__main__":
    main()
