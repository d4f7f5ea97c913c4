"""A graph net over small molecules: one convolution, two attention layers, a readout. In PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn


class NodeNorm(nn.Module):
    """Normalises each node's features by their mean and standard deviation, which torch takes with n - 1."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x):
        return self.gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps) + self.shift


class GraphConv(nn.Module):
    """Sums up the neighbours with both degrees' roots as weights."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x, edges):
        root = edges.sum(-1).clamp(min=1.0).rsqrt()
        weights = root.unsqueeze(-1) * edges * root.unsqueeze(-2)
        return weights @ self.linear(x)


class GraphAttention(nn.Module):
    """Each node looks at those that it has an edge to, with several heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.linear = nn.Linear(width, width, bias=False)
        self.own = nn.Linear(width, heads, bias=False)
        self.other = nn.Linear(width, heads, bias=False)
        self.leaky = nn.LeakyReLU(0.2)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x, edges):
        batch, nodes, width = x.shape
        values = self.linear(x)
        own, other = self.own(values).transpose(1, 2), self.other(values).transpose(1, 2)
        scores = self.leaky(own.unsqueeze(-1) + other.unsqueeze(-2))
        weights = torch.softmax(scores.masked_fill(edges.unsqueeze(1) == 0, -1e4), dim=-1)
        values = values.view(batch, nodes, self.heads, -1).transpose(1, 2)
        return (weights @ values).transpose(1, 2).reshape(batch, nodes, width) + self.bias


class GraphNet(nn.Module):
    """Atoms and bonds in; one vector of properties a molecule out."""

    def __init__(self, kinds: int = 14, width: int = 36, heads: int = 3, properties: int = 7):
        super().__init__()
        self.atom = nn.Embedding(kinds, width, padding_idx=0)
        self.charge = nn.Linear(2, width)
        self.conv = GraphConv(width, width)
        self.norm = NodeNorm(width)
        self.attention1 = GraphAttention(width, heads)
        self.elu = nn.ELU()
        self.attention2 = GraphAttention(width, heads)
        self.last_norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Sequential(nn.Linear(2 * width, 40), nn.Mish(), nn.Linear(40, properties))

    def forward(self, atoms, numbers, bonds):
        present = (atoms != 0).float()
        edges = (bonds + torch.eye(bonds.shape[-1])) * present.unsqueeze(-1) * present.unsqueeze(-2)
        x = self.atom(atoms) + self.charge(numbers)
        x = x + torch.relu(self.norm(self.conv(x, edges)))
        x = x + self.elu(self.attention1(x, edges))
        x = self.last_norm(x + self.elu(self.attention2(x, edges)))
        gated = torch.sigmoid(self.gate(x)) * self.value(x)
        total = (gated * present.unsqueeze(-1)).sum(1)
        highest = gated.masked_fill(present.unsqueeze(-1) == 0, -1e4).amax(1)
        return self.out(torch.cat([total, highest], dim=-1))


def build():
    """The net with the same weights on every run, and five molecules of different size; bonds have a direction."""
    torch.manual_seed(19)
    net = GraphNet()
    for scale, shift in (
        (net.norm.gain, net.norm.shift),
        (net.last_norm.weight, net.last_norm.bias),
    ):
        nn.init.uniform_(scale, 0.5, 1.5)
        nn.init.normal_(shift, std=0.2)
    nn.init.normal_(net.atom.weight, std=0.6)
    for layer in (net.attention1, net.attention2):
        nn.init.normal_(layer.bias, std=0.1)
        nn.init.normal_(layer.own.weight, std=0.4)
        nn.init.normal_(layer.other.weight, std=0.4)
    present = torch.arange(12) < torch.tensor([[12], [7], [9], [5], [10]])
    atoms = torch.randint(1, 14, (5, 12)) * present
    bonds = (torch.rand(5, 12, 12) < 0.25).float() * (1 - torch.eye(12))
    return net.eval(), (atoms, torch.randn(5, 12, 2), bonds)
