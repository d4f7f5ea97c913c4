"""PixelCNN++ for small images of few bits, conditioned on a class, in PyTorch.

Two streams go through the net: `u` sees the rows above a pixel, `ul` what is above and to the left of it. Out come the parameters
of a mixture of discretised logistics, in which the means of green and blue depend on the channels before them.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Config:
    """The small model."""

    image_bits = 5
    channels = 3
    num_classes = 7
    embed_dim, cond_dim = 12, 20
    filters = 16
    num_scales, num_resnets = 3, 1
    dropout = 0.5
    num_mixtures = 4
    min_log_scale = -3.0
    # completion of images
    prefix = 46
    mix_temperature, scale_temperature = 0.9, 0.8


def concat_elu(x):
    """ELU of the channels and of their negatives: twice as many channels come out."""
    return F.elu(torch.cat([x, -x], dim=1))


def down_shift(x):
    """Every row moves down by one, a row of zeros comes in on top."""
    return F.pad(x[:, :, :-1, :], (0, 0, 1, 0))


def right_shift(x):
    """Every column moves right by one, a column of zeros comes in on the left."""
    return F.pad(x[:, :, :, :-1], (1, 0, 0, 0))


class WNConv2d(nn.Module):
    """Convolution without padding whose filters are a direction and a length."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1):
        super().__init__()
        self.stride = stride
        self.weight_v = nn.Parameter(torch.zeros(out_channels, in_channels, *kernel_size))
        self.weight_g = nn.Parameter(torch.ones(out_channels, 1, 1, 1))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x):
        norm = self.weight_v.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        return F.conv2d(x, self.weight_v * (self.weight_g / norm), self.bias, self.stride)


class WNConvTranspose2d(nn.Module):
    """Transposed convolution by two; each output channel has its own length."""

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.weight_v = nn.Parameter(torch.zeros(in_channels, out_channels, *kernel_size))
        self.weight_g = nn.Parameter(torch.ones(1, out_channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x):
        norm = self.weight_v.pow(2).sum(dim=(0, 2, 3), keepdim=True).sqrt()
        return F.conv_transpose2d(x, self.weight_v * (self.weight_g / norm), self.bias, stride=2, output_padding=1)


class MaskedConv2d(nn.Conv2d):
    """Convolution that sees the pixels before the centre in raster order; type B sees the centre as well."""

    def __init__(self, mask_type, *args, **kwargs):
        super().__init__(*args, **kwargs)
        kh, kw = self.kernel_size
        mask = torch.ones(kh, kw)
        mask[kh // 2, kw // 2 + (mask_type == "B") :] = 0
        mask[kh // 2 + 1 :] = 0
        self.register_buffer("mask", mask[None, None], persistent=False)

    def forward(self, x):
        return F.conv2d(x, self.weight * self.mask, self.bias, self.stride, self.padding, self.dilation)


class DownShiftedConv2d(nn.Module):
    """Looks at the rows up to the present one, and to both sides."""

    def __init__(self, in_channels, out_channels, kernel_size=(2, 3), stride=1, shift_output_down=False):
        super().__init__()
        kh, kw = kernel_size
        self.pad = ((kw - 1) // 2, (kw - 1) // 2, kh - 1, 0)
        self.shift_output_down = shift_output_down
        self.conv = WNConv2d(in_channels, out_channels, kernel_size, stride)

    def forward(self, x):
        x = self.conv(F.pad(x, self.pad))
        return down_shift(x) if self.shift_output_down else x


class DownRightShiftedConv2d(nn.Module):
    """Looks at the rows and columns up to the present pixel."""

    def __init__(self, in_channels, out_channels, kernel_size=(2, 2), stride=1, shift_output_right=False):
        super().__init__()
        kh, kw = kernel_size
        self.pad = (kw - 1, 0, kh - 1, 0)
        self.shift_output_right = shift_output_right
        self.conv = WNConv2d(in_channels, out_channels, kernel_size, stride)

    def forward(self, x):
        x = self.conv(F.pad(x, self.pad))
        return right_shift(x) if self.shift_output_right else x


class ShiftedDeconv2d(nn.Module):
    """Doubles the resolution; the counterpart of one of the above, whose kernel it has."""

    def __init__(self, in_channels, out_channels, kernel_size, centred):
        super().__init__()
        self.kernel_size = kernel_size
        self.centred = centred
        self.deconv = WNConvTranspose2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        x = self.deconv(x)
        kh, kw = self.kernel_size
        height, width = x.shape[2] - kh + 1, x.shape[3] - kw + 1
        left = (kw - 1) // 2 if self.centred else 0
        return x[:, :, :height, left : left + width]


class GatedResnet(nn.Module):
    """Gated residual block with an auxiliary input of `skip_streams` times the filters, and a bias from the class."""

    def __init__(self, cfg, conv_op, skip_streams=0):
        super().__init__()
        filters = cfg.filters
        self.conv_input = conv_op(2 * filters, filters)
        if skip_streams:
            self.nin_skip = WNConv2d(2 * skip_streams * filters, filters, (1, 1))
        self.dropout = nn.Dropout(cfg.dropout)
        self.conv_out = conv_op(2 * filters, 2 * filters)
        self.class_proj = nn.Linear(cfg.cond_dim, 2 * filters, bias=False)

    def forward(self, x, cond, aux=None):
        c = self.conv_input(concat_elu(x))
        if aux is not None:
            c = c + self.nin_skip(concat_elu(aux))
        c = self.conv_out(self.dropout(concat_elu(c)))
        c = c + self.class_proj(cond)[:, :, None, None]
        a, b = c.chunk(2, dim=1)
        return x + a * torch.sigmoid(b)


class EncoderStage(nn.Module):
    """Gated blocks at one resolution on the way down; keeps what each of them gives."""

    def __init__(self, cfg):
        super().__init__()
        self.u_stream, self.ul_stream = nn.ModuleList(), nn.ModuleList()
        for _ in range(cfg.num_resnets):
            self.u_stream.append(GatedResnet(cfg, DownShiftedConv2d))
            self.ul_stream.append(GatedResnet(cfg, DownRightShiftedConv2d, skip_streams=1))

    def forward(self, u, ul, cond):
        u_list, ul_list = [], []
        for u_block, ul_block in zip(self.u_stream, self.ul_stream):
            u = u_block(u, cond)
            ul = ul_block(ul, cond, aux=u)
            u_list.append(u)
            ul_list.append(ul)
        return u_list, ul_list


class DecoderStage(nn.Module):
    """Gated blocks at one resolution on the way up; takes the kept maps from the ends of the lists."""

    def __init__(self, cfg, num_blocks):
        super().__init__()
        self.u_stream, self.ul_stream = nn.ModuleList(), nn.ModuleList()
        for _ in range(num_blocks):
            self.u_stream.append(GatedResnet(cfg, DownShiftedConv2d, skip_streams=1))
            self.ul_stream.append(GatedResnet(cfg, DownRightShiftedConv2d, skip_streams=2))

    def forward(self, u, ul, u_list, ul_list, cond):
        for u_block, ul_block in zip(self.u_stream, self.ul_stream):
            u = u_block(u, cond, aux=u_list.pop())
            ul = ul_block(ul, cond, aux=torch.cat((u, ul_list.pop()), dim=1))
        return u, ul


class Resample(nn.Module):
    """Changes the resolution of both streams, and normalises the channels of every pixel on its own."""

    def __init__(self, filters, u_op, ul_op):
        super().__init__()
        self.u_op, self.ul_op = u_op, ul_op
        self.u_norm = nn.LayerNorm(filters, eps=1e-3)
        self.ul_norm = nn.LayerNorm(filters, eps=1e-3)

    def forward(self, u, ul):
        u = self.u_norm(self.u_op(u).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        ul = self.ul_norm(self.ul_op(ul).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return u, ul


class ClassEmbedding(nn.Module):
    """Vector of the class; images without one (negative labels) have a row of their own."""

    def __init__(self, cfg):
        super().__init__()
        self.num_classes = cfg.num_classes
        self.table = nn.Embedding(cfg.num_classes + 1, cfg.embed_dim)
        self.fc1 = nn.Linear(cfg.embed_dim, cfg.cond_dim)
        self.norm = nn.BatchNorm1d(cfg.cond_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(cfg.cond_dim, cfg.cond_dim)

    def forward(self, labels):
        labels = torch.where(labels < 0, torch.full_like(labels, self.num_classes), labels)
        return self.fc2(self.act(self.norm(self.fc1(self.table(labels)))))


class Backbone(nn.Module):
    """From images in [-1, 1] to the parameters of the mixture at each pixel."""

    def __init__(self, cfg):
        super().__init__()
        f = cfg.filters
        planes = cfg.channels + 3
        self.u_init = DownShiftedConv2d(planes, f, (2, 3), shift_output_down=True)
        ul_left = DownRightShiftedConv2d(planes, f, (2, 1), shift_output_right=True)
        self.ul_init = nn.ModuleList([DownShiftedConv2d(planes, f, (1, 3), shift_output_down=True), ul_left])
        self.encoder = nn.ModuleList(EncoderStage(cfg) for _ in range(cfg.num_scales))
        self.decoder = nn.ModuleList(DecoderStage(cfg, cfg.num_resnets + (i > 0)) for i in range(cfg.num_scales))
        self.downsize, self.upsize = nn.ModuleList(), nn.ModuleList()
        for _ in range(cfg.num_scales - 1):
            self.downsize.append(Resample(f, DownShiftedConv2d(f, f, stride=2), DownRightShiftedConv2d(f, f, stride=2)))
            self.upsize.append(Resample(f, ShiftedDeconv2d(f, f, (2, 3), True), ShiftedDeconv2d(f, f, (2, 2), False)))
        self.refine = MaskedConv2d("B", f, f, 3, padding=2, dilation=2)
        self.nin_out = WNConv2d(f, cfg.num_mixtures * (1 + 3 * cfg.channels), (1, 1))

    @staticmethod
    def coordinates(x, full_height):
        """Planes with the row and the column in [-1, 1]; x may be the upper part of an image of full_height."""
        b, _, h, w = x.shape
        rows = torch.arange(h, dtype=x.dtype) * (2.0 / (full_height - 1)) - 1.0
        cols = torch.arange(w, dtype=x.dtype) * (2.0 / (w - 1)) - 1.0
        return torch.stack(torch.meshgrid(rows, cols, indexing="ij"))[None].expand(b, -1, -1, -1)

    def forward(self, x, valid, cond, full_height):
        # the plane of ones lets the net tell the padding from black
        x = torch.cat((x, valid, self.coordinates(x, full_height)), dim=1)
        u_list, ul_list = [self.u_init(x)], [self.ul_init[0](x) + self.ul_init[1](x)]
        for scale, stage in enumerate(self.encoder):
            u_new, ul_new = stage(u_list[-1], ul_list[-1], cond)
            u_list, ul_list = u_list + u_new, ul_list + ul_new
            if scale < len(self.downsize):
                u, ul = self.downsize[scale](u_list[-1], ul_list[-1])
                u_list.append(u)
                ul_list.append(ul)
        u, ul = u_list.pop(), ul_list.pop()
        for scale, stage in enumerate(self.decoder):
            u, ul = stage(u, ul, u_list, ul_list, cond)
            if scale < len(self.upsize):
                u, ul = self.upsize[scale](u, ul)
        ul = ul + self.refine(F.elu(ul))
        return self.nin_out(F.elu(ul))


def split_parameters(out, num_mixtures, min_log_scale):
    """out is (..., mixtures * 10): logits (..., K), and means, log scales and couplings (..., 3, K)."""
    logits, rest = out.split((num_mixtures, out.shape[-1] - num_mixtures), dim=-1)
    rest = rest.reshape(*rest.shape[:-1], 3, 3 * num_mixtures)
    means, log_scales, coeffs = rest.chunk(3, dim=-1)
    return logits, means, log_scales.clamp(min=min_log_scale), torch.tanh(coeffs)


def mixture_log_prob(x, out, cfg):
    """Logarithm of the probability of each pixel, (batch, height, width); x is (batch, 3, height, width) in [-1, 1]."""
    steps = 2**cfg.image_bits - 1
    half_bin = 1.0 / steps
    x, out = x.permute(0, 2, 3, 1).unsqueeze(-1), out.permute(0, 2, 3, 1)
    logits, means, log_scales, coeffs = split_parameters(out, cfg.num_mixtures, cfg.min_log_scale)
    red, green = x[..., 0, :], x[..., 1, :]
    mean_g = means[..., 1, :] + coeffs[..., 0, :] * red
    mean_b = means[..., 2, :] + coeffs[..., 1, :] * red + coeffs[..., 2, :] * green
    means = torch.stack((means[..., 0, :], mean_g, mean_b), dim=-2)

    centered = x - means
    inv_scale = torch.exp(-log_scales)
    plus_in = inv_scale * (centered + half_bin)
    min_in = inv_scale * (centered - half_bin)
    log_cdf_plus = plus_in - F.softplus(plus_in)
    log_one_minus_cdf_min = -F.softplus(min_in)
    # a logistic is symmetric: take the difference in the lower tail, where single precision resolves it
    lower = -centered.abs()
    cdf_delta = torch.sigmoid(inv_scale * (lower + half_bin)) - torch.sigmoid(inv_scale * (lower - half_bin))
    # far out the bin has no mass left in single precision: density in its middle times its width
    mid_in = inv_scale * centered
    log_pdf_mid = mid_in - log_scales - 2.0 * F.softplus(mid_in)
    log_bin = torch.log(cdf_delta.clamp(min=1e-12))
    log_inner = torch.where(cdf_delta > 1e-5, log_bin, log_pdf_mid - math.log(steps / 2.0))
    # the first and the last bin reach to infinity
    log_probs = torch.where(x < -0.999, log_cdf_plus, torch.where(x > 0.999, log_one_minus_cdf_min, log_inner))
    log_probs = log_probs.sum(dim=-2) + F.log_softmax(logits, dim=-1)
    return torch.logsumexp(log_probs, dim=-1)


def sample_pixel(out, u_mix, u_pix, cfg):
    """Draw one pixel (batch, 3) from parameters (batch, mixtures * 10) by uniforms (batch, mixtures) and (batch, 3)."""
    logits, means, log_scales, coeffs = split_parameters(out, cfg.num_mixtures, cfg.min_log_scale)
    u_mix, u_pix = u_mix.clamp(1e-5, 1.0 - 1e-5), u_pix.clamp(1e-5, 1.0 - 1e-5)
    # one component for the pixel, by the Gumbel trick
    chosen = (logits / cfg.mix_temperature - torch.log(-torch.log(u_mix))).argmax(dim=-1)
    one_hot = F.one_hot(chosen, cfg.num_mixtures).to(out.dtype).unsqueeze(1)
    mean = (means * one_hot).sum(dim=-1)
    scale = torch.exp((log_scales * one_hot).sum(dim=-1)) * cfg.scale_temperature
    coeff = (coeffs * one_hot).sum(dim=-1)
    draw = mean + scale * (torch.log(u_pix) - torch.log(1.0 - u_pix))
    red = draw[:, 0].clamp(-1.0, 1.0)
    green = (draw[:, 1] + coeff[:, 0] * red).clamp(-1.0, 1.0)
    blue = (draw[:, 2] + coeff[:, 1] * red + coeff[:, 2] * green).clamp(-1.0, 1.0)
    return torch.stack((red, green, blue), dim=1)


class PixelCNNPP(nn.Module):
    """The likelihood of images, and their completion from the first pixels on."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.class_embed = ClassEmbedding(cfg)
        self.backbone = Backbone(cfg)

    def complete(self, x, valid, cond, u_mix, u_pix):
        """Keep the first pixels in raster order and draw as many of the following ones as there are uniforms."""
        height, width = x.shape[2:]
        order = torch.arange(height * width).reshape(1, 1, height, width)
        canvas = x * (order < self.cfg.prefix)
        multiple = 2 ** (self.cfg.num_scales - 1)
        for step in range(u_mix.shape[0]):
            row, col = divmod(self.cfg.prefix + step, width)
            # nothing below the present row matters, but the rows have to be halved evenly
            used = math.ceil((row + 1) / multiple) * multiple
            out = self.backbone(canvas[:, :, :used], valid[:, :, :used], cond, height)
            pixel = sample_pixel(out[:, :, row, col], u_mix[step], u_pix[step], self.cfg)
            canvas[:, :, row, col] = pixel * valid[:, :, row, col]
        return canvas

    def forward(self, image, sizes, labels, u_mix, u_pix):
        """image (batch, 3, height, width) in bytes, padded at the bottom and right to which sizes (batch, 2) says.

        Returns the bits per dimension of each image, the map of log probabilities, and the completed images.
        """
        height, width = image.shape[2:]
        inside_h = torch.arange(height)[None, :, None] < sizes[:, :1, None]
        inside_w = torch.arange(width)[None, None, :] < sizes[:, 1:, None]
        valid = (inside_h & inside_w).unsqueeze(1).to(image.dtype)
        # bytes to the middle of the model's bins in [-1, 1]
        levels = torch.floor(image / 2 ** (8 - self.cfg.image_bits))
        x = (levels * (2.0 / (2**self.cfg.image_bits - 1)) - 1.0) * valid
        cond = self.class_embed(labels)
        out = self.backbone(x, valid, cond, height)
        log_prob = mixture_log_prob(x, out, self.cfg) * valid[:, 0]
        dims = valid.sum(dim=(1, 2, 3)) * self.cfg.channels
        bits = -log_prob.sum(dim=(1, 2)) / (dims * math.log(2.0))
        return bits, log_prob, self.complete(x, valid, cond, u_mix, u_pix)


@torch.no_grad()
def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for name, module in net.named_modules():
        if isinstance(module, (WNConv2d, WNConvTranspose2d)):
            nn.init.normal_(module.weight_v, std=0.05)
            nn.init.uniform_(module.weight_g, 0.8, 1.6)
            nn.init.normal_(module.bias, std=0.15)
            if "size." in name:  # a norm follows, so that the lengths have shrunk
                module.weight_g.mul_(0.15)
                module.bias.mul_(0.2)
        elif isinstance(module, (MaskedConv2d, nn.Linear)):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.7, 1.3)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    # the mixture: means all over the range, scales of some bins
    k, head = net.cfg.num_mixtures, net.backbone.nin_out
    head.weight_g.mul_(0.25)
    head.weight_g[:k].mul_(1.5)
    rest = head.bias[k:].view(3, 3, k)
    rest[:, 0].uniform_(-0.7, 0.7)
    rest[:, 1].normal_(-1.8, 0.7)
    rest[:, 2].normal_(0.0, 0.6)
    return net


def build():
    """The net with the same weights on every run, three images of which two are padded, and uniforms for four pixels."""
    torch.manual_seed(1701)
    net = trained_like(PixelCNNPP(Config()))
    rng = np.random.RandomState(5)
    coarse = np.kron(rng.rand(3, 3, 4, 6), np.ones((1, 1, 2, 2)))
    image = np.floor(np.clip(1.5 * (0.7 * coarse + 0.3 * rng.rand(3, 3, 8, 12)) - 0.25, 0.0, 1.0) * 255.0)
    sizes = np.array([[8, 12], [6, 9], [7, 11]])
    labels = np.array([4, -1, 2])
    inputs = [torch.tensor(image, dtype=torch.float32), torch.tensor(sizes), torch.tensor(labels)]
    inputs += [torch.tensor(rng.rand(4, 3, n), dtype=torch.float32) for n in (4, 3)]
    return net.eval(), tuple(inputs)
