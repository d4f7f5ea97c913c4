"""Diffeomorphic registration of brain volumes after VoxelMorph, with its losses and its evaluation, in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

# The structures of the segmentation that are scored (numbers of FreeSurfer's colour table), the background is not.
STRUCTURES = (2, 3, 4, 10, 17, 28, 41, 42)


class Config:
    """The small model."""

    shape = (16, 24, 32)
    # U-Net, which ends at half resolution
    stem_channels = 8
    down_channels = (12, 16, 24)
    up_channels = (16, 12)
    remaining_channels = (12, 8)
    norm_groups = 4
    int_steps = 5
    int_downsize = 2
    ncc_window = 7
    ncc_scales = 2
    prior_lambda = 2.5
    weight_smooth = 0.4
    weight_prior = 0.02
    weight_dice = 0.7


def masked_mean(values, mask, dim):
    """The mean where the mask is one; zero where it is empty."""
    return (values * mask).sum(dim=dim) / mask.sum(dim=dim).clamp(min=1.0)


def normalise(volume, low=0.02, high=0.98):
    """Stretch each volume between two quantiles of its foreground to [0, 1]; returns the foreground as well."""
    foreground = volume > 0
    flat = volume.masked_fill(~foreground, float("nan")).flatten(1)
    bounds = torch.nanquantile(flat, torch.tensor([low, high], dtype=flat.dtype), dim=1)
    low, high = bounds[..., None, None, None, None]
    stretched = ((volume - low) / (high - low).clamp(min=1e-6)).clamp(0.0, 1.0)
    return stretched * foreground, foreground.to(volume.dtype)


def one_hot_structures(segmentation):
    """(batch, 1, ...) numbers of structures -> (batch, structures, ...) of zeros and ones."""
    numbers = torch.tensor(STRUCTURES).view(1, -1, 1, 1, 1)
    return (segmentation == numbers).float()


class SpatialTransformer(nn.Module):
    """Samples a volume at each voxel's place plus a displacement, which is in voxels and in the order of the axes."""

    def __init__(self, size, padding_mode="zeros"):
        super().__init__()
        self.padding_mode = padding_mode
        grid = torch.stack(torch.meshgrid([torch.arange(s) for s in size], indexing="ij")).unsqueeze(0).float()
        self.register_buffer("grid", grid, persistent=False)

    def forward(self, src, flow, mode="bilinear"):
        new_locs, shape = self.grid + flow, flow.shape[2:]
        new_locs = torch.stack([2 * (new_locs[:, i] / (shape[i] - 1) - 0.5) for i in range(len(shape))], dim=1)
        new_locs = new_locs.permute(0, 2, 3, 4, 1)[..., [2, 1, 0]]
        return F.grid_sample(src, new_locs, mode=mode, padding_mode=self.padding_mode, align_corners=True)


class VecInt(nn.Module):
    """Integrates a stationary velocity field by scaling and squaring."""

    def __init__(self, size, nsteps):
        super().__init__()
        self.nsteps = nsteps
        self.transformer = SpatialTransformer(size, padding_mode="border")

    def forward(self, vec):
        vec = vec * (1.0 / 2**self.nsteps)
        for _ in range(self.nsteps):
            vec = vec + self.transformer(vec, vec)
        return vec


class ResizeTransform(nn.Module):
    """Resizes a field of displacements: the grid and the vectors on it."""

    def __init__(self, vel_resize):
        super().__init__()
        self.factor = 1.0 / vel_resize

    def forward(self, x):
        x = F.interpolate(x, scale_factor=self.factor, mode="trilinear", align_corners=True)
        return self.factor * x


class ConvBlock(nn.Module):
    """Convolution, batch norm, leaky ReLU."""

    def __init__(self, in_channels, out_channels, stride=1):
        super().__init__()
        self.main = nn.Conv3d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm3d(out_channels)
        self.activation = nn.LeakyReLU(0.2)

    def forward(self, x):
        return self.activation(self.norm(self.main(x)))


class AttentionGate(nn.Module):
    """Weighs the skipped features by what the coarser level makes of them."""

    def __init__(self, skip_channels, gate_channels, inter_channels):
        super().__init__()
        self.theta = nn.Conv3d(skip_channels, inter_channels, 2, stride=2, bias=False)
        self.phi = nn.Conv3d(gate_channels, inter_channels, 1)
        self.psi = nn.Conv3d(inter_channels, 1, 1)

    def forward(self, skip, gate):
        attention = torch.sigmoid(self.psi(F.relu(self.theta(skip) + self.phi(gate))))
        attention = F.interpolate(attention, size=skip.shape[2:], mode="trilinear", align_corners=False)
        return skip * attention


class UpBlock(nn.Module):
    """Transposed convolution to the next finer level, where the gated skip joins; group norm."""

    def __init__(self, in_channels, skip_channels, out_channels, groups):
        super().__init__()
        self.up = nn.ConvTranspose3d(in_channels, out_channels, 3, stride=2, padding=1, output_padding=1)
        self.gate = AttentionGate(skip_channels, in_channels, max(skip_channels // 2, 1))
        self.fuse = nn.Conv3d(out_channels + skip_channels, out_channels, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, out_channels)
        self.activation = nn.LeakyReLU(0.2)

    def forward(self, x, skip):
        skip = self.gate(skip, x)
        x = torch.cat([self.up(x), skip], dim=1)
        return self.activation(self.norm(self.fuse(x)))


class Unet(nn.Module):
    """U-Net over the pair of volumes, which stops at half resolution on its way up."""

    def __init__(self, cfg, in_channels=2):
        super().__init__()
        self.stem = ConvBlock(in_channels, cfg.stem_channels)
        self.down = nn.ModuleList()
        channels = cfg.stem_channels
        for width in cfg.down_channels:
            self.down.append(ConvBlock(channels, width, stride=2))
            channels = width
        self.up = nn.ModuleList()
        for width, skip in zip(cfg.up_channels, cfg.down_channels[-2::-1]):
            self.up.append(UpBlock(channels, skip, width, cfg.norm_groups))
            channels = width
        self.remaining = nn.ModuleList()
        for width in cfg.remaining_channels:
            self.remaining.append(ConvBlock(channels, width))
            channels = width

    def forward(self, x):
        history = [self.stem(x)]
        for layer in self.down:
            history.append(layer(history[-1]))
        x = history.pop()
        for layer in self.up:
            x = layer(x, history.pop())
        for layer in self.remaining:
            x = layer(x)
        return x


class VxmDense(nn.Module):
    """The velocity's mean and log variance, the displacements there and back, and both warped volumes."""

    def __init__(self, cfg):
        super().__init__()
        half = [s // cfg.int_downsize for s in cfg.shape]
        self.unet = Unet(cfg)
        self.flow = nn.Conv3d(cfg.remaining_channels[-1], 3, 3, padding=1)
        self.log_sigma = nn.Conv3d(cfg.remaining_channels[-1], 3, 3, padding=1)
        self.integrate = VecInt(half, cfg.int_steps)
        self.fullsize = ResizeTransform(1 / cfg.int_downsize)
        self.transformer = SpatialTransformer(cfg.shape)

    def forward(self, source, target):
        x = self.unet(torch.cat([source, target], dim=1))
        velocity, log_sigma = self.flow(x), self.log_sigma(x)
        pos_flow = self.fullsize(self.integrate(velocity))
        neg_flow = self.fullsize(self.integrate(-velocity))
        y_source = self.transformer(source, pos_flow)
        y_target = self.transformer(target, neg_flow)
        return y_source, y_target, pos_flow, neg_flow, velocity, log_sigma


class NCC(nn.Module):
    """Local normalised cross-correlation, squared, in cubic windows."""

    def __init__(self, win, eps=1e-3):
        super().__init__()
        self.win = win
        self.eps = eps
        self.register_buffer("sum_filt", torch.ones(1, 1, win, win, win), persistent=False)

    def forward(self, Ii, Ji, mask):
        moments = (Ii, Ji, Ii * Ii, Ji * Ji, Ii * Ji)
        sums = [F.conv3d(moment, self.sum_filt, padding=self.win // 2) for moment in moments]
        I_sum, J_sum, I2_sum, J2_sum, IJ_sum = sums
        win_size = self.win**3
        u_I, u_J = I_sum / win_size, J_sum / win_size
        cross = IJ_sum - u_J * I_sum - u_I * J_sum + u_I * u_J * win_size
        I_var = I2_sum - 2 * u_I * I_sum + u_I * u_I * win_size
        J_var = J2_sum - 2 * u_J * J_sum + u_J * u_J * win_size
        cc = cross * cross / (I_var * J_var + self.eps)
        return -masked_mean(cc, mask, dim=(1, 2, 3, 4))


class MultiScaleNCC(nn.Module):
    """The correlation over a pyramid; coarser levels have smaller windows and count less."""

    def __init__(self, win, scales):
        super().__init__()
        self.levels = nn.ModuleList([NCC(win - 2 * i) for i in range(scales)])
        self.pool = nn.AvgPool3d(3, stride=2, padding=1, count_include_pad=False)

    def forward(self, Ii, Ji, mask):
        total = 0.0
        for i, level in enumerate(self.levels):
            if i > 0:
                Ii, Ji, mask = self.pool(Ii), self.pool(Ji), self.pool(mask)
            total = total + level(Ii, Ji, mask) / 2**i
        return total


class Grad(nn.Module):
    """Squared gradients of the displacement in millimetres, by forward differences."""

    def forward(self, flow, spacing):
        flow = flow * spacing[:, :, None, None, None]
        total = 0.0
        for axis in range(3):
            step = torch.diff(flow, dim=axis + 2) / spacing[:, axis].view(-1, 1, 1, 1, 1)
            total = total + step.square().mean(dim=(1, 2, 3, 4))
        return total / 3


class KLPrior(nn.Module):
    """Divergence of the velocity's posterior from a prior whose precision is the Laplacian of the grid."""

    def __init__(self, prior_lambda):
        super().__init__()
        self.prior_lambda = prior_lambda
        filt = torch.zeros(3, 3, 3)
        filt[[0, 2, 1, 1, 1, 1], [1, 1, 0, 2, 1, 1], [1, 1, 1, 1, 0, 2]] = 1.0
        self.register_buffer("adjacency", filt.view(1, 1, 3, 3, 3), persistent=False)

    def forward(self, mean, log_sigma):
        degree = F.conv3d(torch.ones_like(mean[:1, :1]), self.adjacency, padding=1)
        sigma_term = (self.prior_lambda * degree * torch.exp(log_sigma) - log_sigma).mean(dim=(1, 2, 3, 4))
        prec_term = 0.0
        for axis in range(2, 5):
            prec_term = prec_term + torch.diff(mean, dim=axis).square().mean(dim=(1, 2, 3, 4))
        prec_term = 0.5 * self.prior_lambda * prec_term / 3
        return 0.5 * 3 * (sigma_term + prec_term)


class SoftDice(nn.Module):
    """One minus the mean Dice of the structures that the target has."""

    def forward(self, y_true, y_pred):
        common, volume, other = (v.sum(dim=(2, 3, 4)) for v in (y_true * y_pred, y_true, y_pred))
        dice = 2 * common / (volume + other).clamp(min=1e-5)
        return 1.0 - masked_mean(dice, (volume > 0).float(), dim=1)


class RegistrationLoss(nn.Module):
    """The weighted sum of all, and its terms, each per pair."""

    def __init__(self, cfg):
        super().__init__()
        self.weights = (1.0, cfg.weight_smooth, cfg.weight_prior, cfg.weight_dice)
        self.similarity = MultiScaleNCC(cfg.ncc_window, cfg.ncc_scales)
        self.smooth = Grad()
        self.prior = KLPrior(cfg.prior_lambda)
        self.dice = SoftDice()

    def forward(self, pair, masks, warped, flow, velocity, log_sigma, seg_true, seg_pred, spacing):
        (source, target), (source_mask, target_mask), (y_source, y_target) = pair, masks, warped
        there = self.similarity(target, y_source, target_mask)
        back = self.similarity(source, y_target, source_mask)
        terms = [0.5 * (there + back), self.smooth(flow, spacing), self.prior(velocity, log_sigma)]
        terms = torch.stack(terms + [self.dice(seg_true, seg_pred)], dim=1)
        return (terms * terms.new_tensor(self.weights)).sum(dim=1), terms


class JacobianStatistics(nn.Module):
    """The Jacobian's determinant on the inner voxels, the folded share and the deviation of its logarithm."""

    def forward(self, flow, mask):
        inner = (slice(None), slice(None)) + (slice(1, -1),) * 3
        jacobian = torch.stack([gradient[inner] for gradient in torch.gradient(flow, dim=(2, 3, 4))], dim=-1)
        jacobian = jacobian.permute(0, 2, 3, 4, 1, 5) + torch.eye(3)
        a, b, c = jacobian[..., 0, :].unbind(-1)
        d, e, f = jacobian[..., 1, :].unbind(-1)
        g, h, i = jacobian[..., 2, :].unbind(-1)
        det = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)

        mask = mask[inner].squeeze(1)
        folded = masked_mean((det <= 0).float(), mask, dim=(1, 2, 3))
        log_det = torch.log((det + 3).clamp(1e-9, 1e9))
        centre = masked_mean(log_det, mask, dim=(1, 2, 3)).view(-1, 1, 1, 1)
        spread = masked_mean((log_det - centre) ** 2, mask, dim=(1, 2, 3)).sqrt()
        return det, folded, spread


class HardDice(nn.Module):
    """Dice for each structure; one where neither has it."""

    def forward(self, seg_true, seg_pred):
        scores = []
        for number in STRUCTURES:
            first, second = (seg_true == number).flatten(1), (seg_pred == number).flatten(1)
            total = first.sum(dim=1) + second.sum(dim=1)
            common = (first & second).sum(dim=1)
            scores.append(torch.where(total > 0, 2.0 * common / total.clamp(min=1), 1.0))
        return torch.stack(scores, dim=1)


class LandmarkError(nn.Module):
    """How far in millimetres the target's landmarks end from the source's: mean and largest."""

    def forward(self, flow, target_points, source_points, valid, spacing):
        size = torch.tensor(flow.shape[2:], dtype=flow.dtype)
        grid = (2 * target_points / (size - 1) - 1).flip(-1)[:, :, None, None, :]
        moved = F.grid_sample(flow, grid, mode="bilinear", padding_mode="border", align_corners=True)
        moved = target_points + moved[..., 0, 0].transpose(1, 2)
        error = ((moved - source_points) * spacing[:, None, :]).norm(dim=-1)
        return masked_mean(error, valid.float(), dim=1), error.masked_fill(~valid, 0.0).amax(dim=1)


class Registration(nn.Module):
    """Net, losses and evaluation for pairs of volumes with their segmentations and landmarks."""

    def __init__(self, cfg):
        super().__init__()
        self.morph = VxmDense(cfg)
        self.criterion = RegistrationLoss(cfg)
        self.jacobian = JacobianStatistics()
        self.overlap = HardDice()
        self.landmarks = LandmarkError()

    def forward(self, source, target, source_seg, target_seg, source_points, target_points, valid_points, spacing):
        """Volumes and segmentations are (batch, 1, depth, height, width), points (batch, points, 3) in voxels."""
        source, source_mask = normalise(source)
        target, target_mask = normalise(target)
        y_source, y_target, pos_flow, neg_flow, velocity, log_sigma = self.morph(source, target)

        soft_seg = self.morph.transformer(one_hot_structures(source_seg), pos_flow)
        hard_seg = self.morph.transformer(source_seg.float(), pos_flow, mode="nearest").long()
        loss, terms = self.criterion(
            (source, target), (source_mask, target_mask), (y_source, y_target), pos_flow, velocity, log_sigma,
            one_hot_structures(target_seg), soft_seg, spacing,
        )
        det, folded, spread = self.jacobian(pos_flow, target_mask)
        mean_error, max_error = self.landmarks(pos_flow, target_points, source_points, valid_points, spacing)
        scores = torch.stack([folded, spread, mean_error, max_error], dim=1)
        return y_source, y_target, pos_flow, loss, terms, hard_seg, self.overlap(target_seg, hard_seg), det, scores


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, (nn.Conv3d, nn.ConvTranspose3d)):
            fan_in = module.in_channels * module.weight[0, 0].numel() / (8 if module.transposed else 1)
            nn.init.normal_(module.weight, std=(1.6 / fan_in) ** 0.5)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, (nn.BatchNorm3d, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.25)
        if isinstance(module, nn.BatchNorm3d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.4, 1.4)
    net.morph.flow.weight.data *= 2.6
    net.morph.flow.bias.data += torch.tensor([0.5, -3.3, -0.2])
    net.morph.log_sigma.weight.data *= 0.4
    net.morph.log_sigma.bias.data -= 2.5
    return net


def phantom(shape, batch):
    """Smooth blobs in an ellipsoid with a segmentation from their levels."""
    coarse = F.interpolate(torch.rand(batch, 1, 4, 6, 8), size=shape, mode="trilinear", align_corners=True)
    axes = torch.stack(torch.meshgrid([torch.linspace(-1, 1, s) for s in shape], indexing="ij"))
    radius = axes.square().sum(dim=0)
    head = (radius < 1.05).expand(batch, 1, *shape)
    segmentation = (coarse * (len(STRUCTURES) + 1)).long().clamp(max=len(STRUCTURES))
    segmentation = torch.tensor((0,) + STRUCTURES)[segmentation] * head
    volume = (40.0 + 160.0 * coarse + 12.0 * torch.rand(batch, 1, *shape)) * (1.3 - radius) * head
    return volume, segmentation


def build():
    """The net with the same weights on every run, and two pairs that lack a structure; one has fewer landmarks."""
    torch.manual_seed(2023)
    cfg = Config()
    net = trained_like(Registration(cfg))
    target, target_seg = phantom(cfg.shape, 2)
    target_seg[0][target_seg[0] == 42] = 0
    source, source_seg = (torch.roll(v, (1, -1, 1), dims=(2, 3, 4)) for v in (target, target_seg))
    source = (0.8 * source + 25.0 * torch.rand_like(source)) * (source > 0)
    target_seg[1][target_seg[1] == 17] = 0
    size = torch.tensor(cfg.shape, dtype=torch.float32)
    target_points = (0.15 + 0.7 * torch.rand(2, 7, 3)) * (size - 1)
    source_points = target_points + 1.5 * torch.randn(2, 7, 3)
    valid_points = torch.arange(7)[None, :] < torch.tensor([7, 5])[:, None]
    spacing = torch.tensor([[2.5, 1.0, 1.2], [3.0, 0.9, 0.9]])
    return net.eval(), (source, target, source_seg, target_seg, source_points, target_points, valid_points, spacing)
