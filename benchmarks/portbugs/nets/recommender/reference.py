"""A two-tower recommender with interest from the history, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Interest(nn.Module):
    """How much each item of the history matters for the candidate, and their sum."""

    def __init__(self, width: int):
        super().__init__()
        self.fc1 = nn.Linear(4 * width, 24)
        self.act = nn.PReLU(24)
        self.fc2 = nn.Linear(24, 1)

    def forward(self, candidate, history, present):
        wide = candidate.unsqueeze(1).expand_as(history)
        features = torch.cat([wide, history, wide - history, wide * history], dim=-1)
        hidden = self.fc1(features)
        scores = self.fc2(self.act(hidden.transpose(1, 2)).transpose(1, 2)).squeeze(-1)
        weights = torch.softmax(scores.masked_fill(~present, -1e9), dim=-1)
        return (weights.unsqueeze(-1) * history).sum(dim=1)


class Tower(nn.Module):
    """A perceptron with batch normalisation; its vectors have length one."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.fc1 = nn.Linear(inputs, 48)
        self.bn1 = nn.BatchNorm1d(48)
        self.act1 = nn.LeakyReLU(0.01)
        self.fc2 = nn.Linear(48, 32)
        self.bn2 = nn.BatchNorm1d(32, eps=1e-3)
        self.act2 = nn.SELU()
        self.fc3 = nn.Linear(32, width)

    def forward(self, x):
        x = self.act1(self.bn1(self.fc1(x)))
        x = self.act2(self.bn2(self.fc2(x)))
        return functional.normalize(self.fc3(x), dim=-1)


class Recommender(nn.Module):
    """Scores a candidate for a user, with a deep part and a linear one."""

    def __init__(self, users: int = 60, items: int = 150, width: int = 16):
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(items, width, padding_idx=0)
        self.genre = nn.Embedding(12, 8)
        self.dense_norm = nn.LayerNorm(5)
        self.interest = Interest(width)
        self.user_tower = Tower(3 * width + 5, width)
        self.item_tower = Tower(width + 8, width)
        self.softplus = nn.Softplus(beta=2)
        self.temperature = nn.Parameter(torch.tensor(0.2))
        self.wide = nn.Linear(width, 1)

    def forward(self, batch):
        user, item, history = self.user(batch["user"]), self.item(batch["item"]), self.item(batch["history"])
        present = batch["history"] != 0
        interest = self.interest(item, history, present)
        count = present.sum(dim=1, keepdim=True).clamp(min=1)
        average = (history * present.unsqueeze(-1)).sum(dim=1) / count
        dense = self.dense_norm(torch.log1p(batch["dense"]))
        left = self.user_tower(torch.cat([user, interest, average, dense], dim=1))
        genres = self.genre(batch["genres"]).mean(dim=1)
        right = self.item_tower(torch.cat([item, genres], dim=1))
        deep = (left * right).sum(dim=-1) / self.temperature
        score = deep + self.wide(user * item).squeeze(-1)
        return {"score": self.softplus(score), "user": left, "item": right}


def build():
    """The net with the same weights on every run, and eight candidates."""
    torch.manual_seed(18)
    net = Recommender()
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.3)
            module.running_var.copy_(10 ** torch.empty_like(module.running_var).uniform_(-2.5, 0.3))
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5)
        elif isinstance(module, nn.PReLU):
            nn.init.uniform_(module.weight, 0.05, 0.4)
    history = torch.randint(1, 150, (8, 10))
    history[torch.arange(10) >= torch.tensor([[10], [3], [7], [5], [8], [1], [9], [6]])] = 0
    batch = {
        "user": torch.randint(0, 60, (8,)),
        "item": torch.randint(1, 150, (8,)),
        "history": history,
        "genres": torch.randint(0, 12, (8, 3)),
        "dense": torch.rand(8, 5) * 20,
    }
    return net.eval(), (batch,)
