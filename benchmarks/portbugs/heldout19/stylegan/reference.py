"""A small StyleGAN2 generator with a patch projection on its image, in PyTorch: the reference.

Mapping network with equalised learning rate, truncation towards the mean style, modulated and demodulated convolutions
(one grouped convolution over the batch), FIR resampling, fixed noise maps, RGB skips, and mixing of two styles at a layer.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def make_kernel(taps):
    """The two-dimensional FIR kernel of one-dimensional taps, with sum 1."""
    k = torch.tensor(taps, dtype=torch.float32)
    if k.ndim == 1:
        k = k[None, :] * k[:, None]
    return k / k.sum()


def upfirdn2d(x, kernel, up=1, down=1, pad=(0, 0)):
    """Insert zeros, pad (or crop, if negative), filter with the kernel, and leave samples out."""
    batch, channel, in_h, in_w = x.shape
    kernel_h, kernel_w = kernel.shape
    pad0, pad1 = pad

    out = x.reshape(batch * channel, in_h, 1, in_w, 1)
    out = F.pad(out, [0, up - 1, 0, 0, 0, up - 1])
    out = out.reshape(batch * channel, 1, in_h * up, in_w * up)

    out = F.pad(out, [max(pad0, 0), max(pad1, 0), max(pad0, 0), max(pad1, 0)])
    out = out[:, :, max(-pad0, 0) : out.shape[2] - max(-pad1, 0), max(-pad0, 0) : out.shape[3] - max(-pad1, 0)]

    weight = torch.flip(kernel, [0, 1]).reshape(1, 1, kernel_h, kernel_w)
    out = F.conv2d(out, weight)
    out = out[:, :, ::down, ::down]
    return out.reshape(batch, channel, out.shape[2], out.shape[3])


def fused_leaky_relu(x, bias, negative_slope=0.2, scale=2**0.5):
    """Bias, leaky ReLU and the gain that keeps the variance."""
    if bias is not None:
        x = x + bias.view(1, -1, *([1] * (x.ndim - 2)))
    return F.leaky_relu(x, negative_slope=negative_slope) * scale


class PixelNorm(nn.Module):
    """Divides a vector by its root mean square."""

    def forward(self, x):
        return x * torch.rsqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-8)


class Upsample(nn.Module):
    """Twice the size, by FIR."""

    def __init__(self, kernel, factor=2):
        super().__init__()
        self.factor = factor
        kernel = make_kernel(kernel) * (factor**2)
        self.register_buffer("kernel", kernel, persistent=False)
        p = kernel.shape[0] - factor
        self.pad = ((p + 1) // 2 + factor - 1, p // 2)

    def forward(self, x):
        return upfirdn2d(x, self.kernel, up=self.factor, down=1, pad=self.pad)


class Downsample(nn.Module):
    """Half the size, by FIR."""

    def __init__(self, kernel, factor=2):
        super().__init__()
        self.factor = factor
        kernel = make_kernel(kernel)
        self.register_buffer("kernel", kernel, persistent=False)
        p = kernel.shape[0] - factor
        self.pad = ((p + 1) // 2, p // 2)

    def forward(self, x):
        return upfirdn2d(x, self.kernel, up=1, down=self.factor, pad=self.pad)


class Blur(nn.Module):
    """FIR filter after a transposed convolution."""

    def __init__(self, kernel, pad, upsample_factor=1):
        super().__init__()
        kernel = make_kernel(kernel)
        if upsample_factor > 1:
            kernel = kernel * (upsample_factor**2)
        self.register_buffer("kernel", kernel, persistent=False)
        self.pad = pad

    def forward(self, x):
        return upfirdn2d(x, self.kernel, pad=self.pad)


class EqualLinear(nn.Module):
    """Linear layer whose weight is scaled at run time, with its own learning rate."""

    def __init__(self, in_dim, out_dim, bias_init=0.0, lr_mul=1.0, activation=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_dim, in_dim).div_(lr_mul))
        self.bias = nn.Parameter(torch.zeros(out_dim).fill_(bias_init / lr_mul))
        self.activation = activation
        self.scale = (1 / math.sqrt(in_dim)) * lr_mul
        self.lr_mul = lr_mul

    def forward(self, x):
        if self.activation:
            out = F.linear(x, self.weight * self.scale)
            return fused_leaky_relu(out, self.bias * self.lr_mul)
        return F.linear(x, self.weight * self.scale, bias=self.bias * self.lr_mul)


class MappingNetwork(nn.Module):
    """From the normalised latent and the embedded label to the style of every layer."""

    def __init__(self, z_dim, w_dim, num_classes, num_ws, num_layers=4, lr_mul=0.01, cutoff=5, psi=0.7):
        super().__init__()
        self.num_classes = num_classes
        self.num_ws = num_ws
        self.norm = PixelNorm()
        self.embed = EqualLinear(num_classes, w_dim)
        self.layers = nn.ModuleList(
            [
                EqualLinear(z_dim + w_dim if i == 0 else w_dim, w_dim, lr_mul=lr_mul, activation="fused_lrelu")
                for i in range(num_layers)
            ]
        )
        self.register_buffer("w_avg", torch.zeros(w_dim))
        coefs = torch.ones(num_ws)
        coefs[:cutoff] = psi
        self.register_buffer("truncation", coefs.view(1, num_ws, 1), persistent=False)

    def embed_label(self, labels):
        onehot = F.one_hot(labels, self.num_classes).float()
        return self.norm(self.embed(onehot))

    def map(self, z, y):
        x = torch.cat([self.norm(z), y], dim=1)
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, z, labels):
        w = self.map(z, self.embed_label(labels))
        ws = w.unsqueeze(1).repeat(1, self.num_ws, 1)
        return self.w_avg + self.truncation * (ws - self.w_avg)


class ModulatedConv2d(nn.Module):
    """Convolution whose weight is modulated by the style of each image and then demodulated."""

    def __init__(
        self, in_channel, out_channel, kernel_size, style_dim, demodulate=True, upsample=False, blur_kernel=(1, 3, 3, 1)
    ):
        super().__init__()
        self.eps = 1e-8
        self.in_channel = in_channel
        self.out_channel = out_channel
        self.kernel_size = kernel_size
        self.upsample = upsample
        self.demodulate = demodulate
        if upsample:
            factor = 2
            p = (len(blur_kernel) - factor) - (kernel_size - 1)
            self.blur = Blur(blur_kernel, pad=((p + 1) // 2 + factor - 1, p // 2 + 1), upsample_factor=factor)
        self.scale = 1 / math.sqrt(in_channel * kernel_size**2)
        self.padding = kernel_size // 2
        self.weight = nn.Parameter(torch.randn(out_channel, in_channel, kernel_size, kernel_size))
        self.modulation = EqualLinear(style_dim, in_channel, bias_init=1.0)

    def forward(self, x, style):
        batch, in_channel, height, width = x.shape
        style = self.modulation(style).view(batch, 1, in_channel, 1, 1)
        weight = self.scale * self.weight.unsqueeze(0) * style

        if self.demodulate:
            demod = torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + self.eps)
            weight = weight * demod.view(batch, self.out_channel, 1, 1, 1)

        x = x.reshape(1, batch * in_channel, height, width)
        if self.upsample:
            weight = weight.transpose(1, 2).reshape(
                batch * in_channel, self.out_channel, self.kernel_size, self.kernel_size
            )
            out = F.conv_transpose2d(x, weight, padding=0, stride=2, groups=batch)
            out = out.view(batch, self.out_channel, out.shape[2], out.shape[3])
            return self.blur(out)

        weight = weight.view(batch * self.out_channel, in_channel, self.kernel_size, self.kernel_size)
        out = F.conv2d(x, weight, padding=self.padding, groups=batch)
        return out.view(batch, self.out_channel, out.shape[2], out.shape[3])


class NoiseInjection(nn.Module):
    """Adds a noise map with a learned strength."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, image, noise):
        return image + self.weight * noise


class FusedLeakyReLU(nn.Module):
    """Bias for each channel and the activation."""

    def __init__(self, channel):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channel))

    def forward(self, x):
        return fused_leaky_relu(x, self.bias)


class ConstantInput(nn.Module):
    """The learned image at the lowest resolution."""

    def __init__(self, channel, height, width):
        super().__init__()
        self.input = nn.Parameter(torch.randn(1, channel, height, width))

    def forward(self, latent):
        return self.input.repeat(latent.shape[0], 1, 1, 1)


class StyledConv(nn.Module):
    """Modulated convolution, noise, bias and activation."""

    def __init__(self, in_channel, out_channel, kernel_size, style_dim, upsample=False, blur_kernel=(1, 3, 3, 1)):
        super().__init__()
        self.conv = ModulatedConv2d(
            in_channel, out_channel, kernel_size, style_dim, upsample=upsample, blur_kernel=blur_kernel
        )
        self.noise = NoiseInjection()
        self.activate = FusedLeakyReLU(out_channel)

    def forward(self, x, style, noise):
        out = self.conv(x, style)
        out = self.noise(out, noise)
        return self.activate(out)


class ToRGB(nn.Module):
    """An RGB image from the features, added to the enlarged image of the level below."""

    def __init__(self, in_channel, style_dim, upsample=True, blur_kernel=(1, 3, 3, 1)):
        super().__init__()
        if upsample:
            self.upsample = Upsample(blur_kernel)
        self.conv = ModulatedConv2d(in_channel, 3, 1, style_dim, demodulate=False)
        self.bias = nn.Parameter(torch.zeros(1, 3, 1, 1))

    def forward(self, x, style, skip=None):
        out = self.conv(x, style) + self.bias
        if skip is not None:
            out = out + self.upsample(skip)
        return out


class NoiseMaps(nn.Module):
    """The fixed noise maps: one for the first layer, two for each further resolution."""

    def __init__(self, height, width, levels):
        super().__init__()
        self.num_layers = 2 * (levels - 1) + 1
        for i in range(self.num_layers):
            res = (i + 1) // 2
            self.register_buffer(f"noise_{i}", torch.randn(1, 1, height * 2**res, width * 2**res))

    def forward(self):
        return [getattr(self, f"noise_{i}") for i in range(self.num_layers)]


class PatchProjection(nn.Module):
    """Compares two images: features of patches, standardised and projected, multiplied and summed under a window."""

    def __init__(self, height, width, num_proj=9, patch=4, stride=2, blur_kernel=(1, 3, 3, 1)):
        super().__init__()
        self.patch = patch
        self.stride = stride
        self.down = Downsample(blur_kernel)
        self.features = nn.Sequential(
            nn.Conv2d(3, 10, 3, stride=2, padding=1),
            nn.BatchNorm2d(10),
            nn.LeakyReLU(0.1),
            nn.Conv2d(10, 7, 3, padding=2, dilation=2),
            nn.BatchNorm2d(7, eps=1e-3),
            nn.LeakyReLU(0.1),
        )
        self.register_buffer("directions", torch.randn(num_proj, 7 * patch * patch))
        rows = (height // 4 - patch) // stride + 1
        cols = (width // 4 - patch) // stride + 1
        window = torch.outer(
            torch.hann_window(rows + 2, periodic=False)[1:-1], torch.hann_window(cols + 2, periodic=False)[1:-1]
        )
        self.register_buffer("window", (window / window.sum()).reshape(1, rows * cols), persistent=False)

    def embed(self, image):
        feat = self.features(self.down(image))
        patches = F.unfold(feat, self.patch, stride=self.stride)
        mean = patches.mean(dim=1, keepdim=True)
        std = patches.std(dim=1, keepdim=True)
        patches = (patches - mean) / (std + 1e-5)
        axes = self.directions / self.directions.norm(dim=1, keepdim=True)
        return torch.einsum("kd,bdl->blk", axes, patches)

    def forward(self, image, target):
        a = self.embed(image)
        b = self.embed(target)
        product = torch.einsum("blk,blk->bl", a, b) / math.sqrt(a.shape[2])
        return (product * self.window).sum(dim=1)


class Generator(nn.Module):
    """Mapping, synthesis with mixed styles, and the projection against a target."""

    def __init__(
        self,
        z_dim=20,
        style_dim=28,
        num_classes=5,
        base=(4, 6),
        channels=(24, 20, 16, 12),
        inject_index=3,
        blur_kernel=(1, 3, 3, 1),
    ):
        super().__init__()
        self.levels = len(channels)
        self.n_latent = 2 * self.levels
        self.inject_index = inject_index
        self.style = MappingNetwork(z_dim, style_dim, num_classes, self.n_latent)
        self.input = ConstantInput(channels[0], *base)
        self.conv1 = StyledConv(channels[0], channels[0], 3, style_dim, blur_kernel=blur_kernel)
        self.to_rgb1 = ToRGB(channels[0], style_dim, upsample=False)
        self.convs = nn.ModuleList()
        self.to_rgbs = nn.ModuleList()
        in_channel = channels[0]
        for out_channel in channels[1:]:
            self.convs.append(
                StyledConv(in_channel, out_channel, 3, style_dim, upsample=True, blur_kernel=blur_kernel)
            )
            self.convs.append(StyledConv(out_channel, out_channel, 3, style_dim, blur_kernel=blur_kernel))
            self.to_rgbs.append(ToRGB(out_channel, style_dim, blur_kernel=blur_kernel))
            in_channel = out_channel
        self.noises = NoiseMaps(base[0], base[1], self.levels)
        scale = 2 ** (self.levels - 1)
        self.projection = PatchProjection(base[0] * scale, base[1] * scale, blur_kernel=blur_kernel)

    def mix(self, ws1, ws2):
        """The first layers have the first style, those from the index on the second."""
        return torch.cat([ws1[:, : self.inject_index], ws2[:, self.inject_index :]], dim=1)

    def synthesis(self, latent, noise):
        out = self.input(latent)
        out = self.conv1(out, latent[:, 0], noise=noise[0])
        skip = self.to_rgb1(out, latent[:, 1])

        i = 1
        for conv1, conv2, noise1, noise2, to_rgb in zip(
            self.convs[::2], self.convs[1::2], noise[1::2], noise[2::2], self.to_rgbs
        ):
            out = conv1(out, latent[:, i], noise=noise1)
            out = conv2(out, latent[:, i + 1], noise=noise2)
            skip = to_rgb(out, latent[:, i + 2], skip)
            i += 2
        return skip

    def forward(self, z1, z2, labels, target):
        latent = self.mix(self.style(z1, labels), self.style(z2, labels))
        image = self.synthesis(latent, self.noises())
        score = self.projection(image, target)
        return image, latent, score


@torch.no_grad()
def settle(net, z_dim, num_classes):
    """Values as after training: biases, strengths, statistics and the running mean of the styles."""
    for module in net.modules():
        if isinstance(module, EqualLinear):
            module.bias.add_(torch.randn_like(module.bias) * 0.2 / module.lr_mul)
        elif isinstance(module, NoiseInjection):
            module.weight.copy_(0.15 + 0.3 * torch.rand(1))
        elif isinstance(module, FusedLeakyReLU):
            module.bias.normal_(std=0.2)
        elif isinstance(module, ToRGB):
            module.bias.normal_(std=0.2)
        elif isinstance(module, nn.BatchNorm2d):
            module.weight.uniform_(0.6, 1.4)
            module.bias.normal_(std=0.2)
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 1.8)
        elif isinstance(module, nn.Conv2d):
            module.bias.normal_(std=0.2)
    mapping = net.style
    labels = torch.arange(500) % num_classes
    mapping.w_avg.copy_(mapping.map(torch.randn(500, z_dim), mapping.embed_label(labels)).mean(dim=0))


def build():
    """The net with the same weights on every run, two latents, labels and a target image for each of three images."""
    torch.manual_seed(219)
    net = Generator()
    settle(net, 20, 5)
    z1, z2 = torch.randn(3, 20), torch.randn(3, 20)
    labels = torch.tensor([3, 0, 4])
    target = F.interpolate(torch.randn(3, 3, 8, 12), scale_factor=4, mode="bilinear") + 0.3 * torch.randn(3, 3, 32, 48)
    return net.eval(), (z1, z2, labels, target)
