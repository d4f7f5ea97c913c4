"""A conditional VAE-GAN: encoder, decoder and the critic that judges what was decoded, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Encoder(nn.Module):
    """An image to the mean and the logarithm of the variance of its code."""

    def __init__(self, code: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=2, padding=1),
            nn.LeakyReLU(0.01),
            nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(24, eps=0.8),
            nn.LeakyReLU(0.01),
            nn.Conv2d(24, 32, 3, stride=2, padding=1),
            nn.ELU(),
        )
        self.mean = nn.Linear(32 * 16, code)
        self.variance = nn.Linear(32 * 16, code)

    def forward(self, image):
        x = self.layers(image).flatten(1)
        return self.mean(x), self.variance(x)


class PixelNorm(nn.Module):
    """Every place gets channels of mean square one."""

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(dim=1, keepdim=True) + 1e-8)


class ScaledLinear(nn.Module):
    """A dense layer whose weight is scaled when it is used, so that all layers learn at one rate."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(0.1 * torch.randn(outputs))
        self.scale = (2.0 / inputs) ** 0.5

    def forward(self, x):
        return functional.linear(x, self.weight * self.scale, self.bias)


class Decoder(nn.Module):
    """A code and a class to an image from -1 to 1."""

    def __init__(self, code: int, classes: int):
        super().__init__()
        self.embed = nn.Embedding(classes, 6)
        self.fc = ScaledLinear(code + 6, 24 * 16)
        self.norm = PixelNorm()
        self.up1 = nn.ConvTranspose2d(24, 24, 4, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(24)
        self.up2 = nn.ConvTranspose2d(24, 16, 4, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(True)
        self.enlarge = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.out = nn.Conv2d(16, 1, 5, padding=2)

    def forward(self, code, label):
        x = self.fc(torch.cat([code, self.embed(label)], dim=1))
        x = self.norm(functional.leaky_relu(x, 0.2).view(-1, 24, 4, 4))
        x = self.relu(self.bn1(self.up1(x)))
        x = self.relu(self.bn2(self.up2(x)))
        return torch.tanh(self.out(self.enlarge(x)))


class Critic(nn.Module):
    """A score for each image; a batch without variety shows in one more channel."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(12, 16, 3, stride=2, padding=1)
        self.softplus = nn.Softplus(beta=2.0)
        self.conv3 = nn.Conv2d(17, 16, 3, padding=1)
        self.fc = nn.Linear(16, 1)

    def forward(self, image):
        x = functional.leaky_relu(self.conv1(image), 0.2)
        x = functional.leaky_relu(self.conv2(x), 0.2)
        variety = x.std(dim=0, unbiased=False).mean().view(1, 1, 1, 1)
        x = torch.cat([x, variety.expand(x.shape[0], 1, x.shape[2], x.shape[3])], dim=1)
        return self.fc(self.softplus(self.conv3(x)).sum(dim=(2, 3)))


class Net(nn.Module):
    """Encode, draw a code (the noise comes from outside), decode, judge."""

    def __init__(self, code: int = 20, classes: int = 5):
        super().__init__()
        self.encoder = Encoder(code)
        self.decoder = Decoder(code, classes)
        self.critic = Critic()

    def forward(self, image, label, noise):
        mean, variance = self.encoder(image)
        code = mean + torch.exp(0.5 * variance) * noise
        drawn = self.decoder(code, label)
        return {"image": drawn, "score": self.critic(drawn), "mean": mean, "variance": variance}


def build():
    """The net with the same weights on every run; four images, their classes, and the noise of the draw."""
    torch.manual_seed(7)
    net = Net()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.6, 1.6)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.05, 0.5)
    return net.eval(), (torch.randn(4, 1, 32, 32), torch.tensor([0, 3, 1, 4]), torch.randn(4, 20))
