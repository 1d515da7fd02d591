"""The wrong programs in PyTorch; each function has the name of its mistake."""

from __future__ import annotations

import torch
from torch.nn import functional


def _linear(weight, bias, x):
    return x @ weight.T + bias


def _cross_entropy(logits, labels):
    return functional.cross_entropy(logits, labels)


def _conv(kernel, x, padding="same"):
    return functional.conv2d(x, kernel, padding=padding)


def mlp_flatten_forgotten(weight, bias, x):
    return _linear(weight, bias, x)


def mlp_flatten_takes_batch(weight, bias, x):
    return _linear(weight, bias, x.reshape(-1))


def mlp_weights_transposed(weight, bias, x):
    return _linear(weight, bias, x)


def mlp_bias_of_inputs(weight, bias, x):
    return _linear(weight, bias, x)


def mlp_linear_in_torch_order(weight, bias, x):
    return _linear(x, weight, bias)


def mlp_labels_are_floats(logits, labels):
    return _cross_entropy(logits, labels)


def mlp_labels_one_hot(logits, labels):
    return _cross_entropy(logits, labels)


def mlp_images_are_bytes(weight, bias, x):
    return _linear(weight, bias, x)


def mlp_labels_before_logits(logits, labels):
    return _cross_entropy(labels, logits)


def mlp_loss_per_sample(weight, x):
    return torch.autograd.grad((x @ weight.requires_grad_().T).sum(dim=1), weight)


def mlp_softmax_over_wrong_axis(x):
    return functional.log_softmax(x, dim=2)


def vae_picture_left_flat(picture, x):
    return ((picture - x) ** 2).mean()


def vae_picture_one_too_wide(picture):
    return picture.reshape(picture.shape[0], 1, 8, 13)


def vae_batch_of_one(picture):
    return picture.reshape(1, 1, 8, 12)


def vae_one_draw_for_the_batch(mean, log_variance, draw):
    return mean + draw * torch.exp(log_variance / 2)


def vae_one_variance(mean, log_variance, draw):
    return mean + draw * torch.exp(log_variance / 2)


def pinn_points_in_rows(weight, bias, x, t):
    return _linear(weight, bias, torch.stack([x, t], dim=0))


def pinn_points_in_a_row(weight, bias, x, t):
    return _linear(weight, bias, torch.cat([x, t], dim=0))


def pinn_column_left(inside, network):
    return ((inside * network) ** 2).mean()


def pinn_squeezes_the_batch(out):
    return out.squeeze(0)


def pinn_times_in_a_column(x, t):
    return ((t * (1 - x * x)) ** 2).mean()


def pinn_as_many_times_as_points(x, t):
    return ((t * (1 - x * x)) ** 2).mean()


def cnn_second_conv_of_inputs(kernel, x):
    return _conv(kernel, x)


def cnn_kernel_inputs_first(kernel, x):
    return _conv(kernel, x)


def cnn_channels_last(kernel, x):
    return _conv(kernel, x)


def cnn_pool_of_three(x):
    return functional.max_pool2d(x, 3)


def cnn_flatten_forgotten(weight, bias, x):
    return _linear(weight, bias, x)


def resnet_shortcut_keeps_size(x, h):
    return functional.relu(x + h)


def resnet_pools_the_channels(weight, bias, x):
    return _linear(weight, bias, x.mean(dim=(1, 2)))


def resnet_norm_of_inputs(gamma, beta, x):
    return functional.batch_norm(x, None, None, gamma, beta, training=True)


def resnet_branches_side_by_side(kernel, x, h):
    return _conv(kernel, torch.cat([x, h], dim=1))


def unet_joined_along_width(kernel, grown, finer):
    return _conv(kernel, torch.cat([grown, finer], dim=-1))


def unet_upsampled_with_padding(kernel, x, finer):
    grown = functional.conv_transpose2d(x, kernel, stride=2, padding=1)
    return torch.cat([grown, finer], dim=1)


def unet_upsampling_kernel_transposed(kernel, x):
    return functional.conv_transpose2d(x, kernel, stride=2)


def unet_targets_without_channels(x, y):
    return ((x - y) ** 2).mean()


def unet_loss_per_image(scale, x):
    return torch.autograd.grad(((x.reshape(x.shape[0], 96) * scale.requires_grad_()) ** 2).mean(dim=1), scale)


def lstm_batch_first(logits, labels):
    return _cross_entropy(logits, labels)


def lstm_recurrence_transposed(recurrent, hidden, driven):
    return driven + hidden @ recurrent.T


def lstm_carry_without_batch(recurrent, driven):
    hidden = recurrent.new_zeros(10)
    for entry in driven:
        gates = entry + hidden @ recurrent.T
        hidden = torch.tanh(gates[..., :10])
    return hidden


def lstm_three_gates(gates):
    i, f, c, o = torch.split(gates, [10, 10, 10], dim=1)
    return i * f * c * o


def lstm_carry_is_the_gates(recurrent, driven):
    hidden = recurrent.new_zeros((driven.shape[1], 10))
    for entry in driven:
        hidden = torch.sigmoid(entry + hidden @ recurrent.T)
    return hidden


def vit_channels_not_last(positions, x):
    return x + positions


def vit_position_for_a_class_token(positions, x):
    return x + positions


def vit_mean_over_the_embedding(weight, bias, x):
    return _linear(weight, bias, x.mean(dim=2))


def vit_not_pooled(logits, labels):
    return _cross_entropy(logits, labels)


def vit_width_not_divided(x):
    batch, positions, width = x.shape
    return x.reshape(batch, positions, 4, width)


def vit_merges_one_head(merged):
    return merged.reshape(merged.shape[0], 24, 32 // 4)


def vit_shares_without_keepdims(scores):
    return scores / scores.sum(dim=-1)


def gpt_norm_without_keepdims(x):
    return x - x.mean(dim=-1)


def gpt_embedding_arguments(table, x):
    return functional.embedding(table, x)


def gpt_all_positions(positions, h):
    return h + positions


def gpt_length_not_declared(positions, h):
    return h + positions[: h.shape[1]]


def gpt_positions_from_one(positions, h):
    return h + positions[1 : 1 + h.shape[1]]


def gpt_loss_of_sequences(logits, labels):
    return _cross_entropy(logits, labels)


def gpt_last_logit_dropped(logits, labels):
    return _cross_entropy(logits[:, :-1].reshape(-1, 256), labels.reshape(-1))


def gpt_head_transposed(weight, h):
    return h @ weight.T


def gpt_mask_of_full_length(scores):
    return scores.masked_fill(~torch.ones(64, 64, dtype=torch.bool, device=scores.device).tril(), -torch.inf)


def gpt_mask_of_batch(scores):
    return scores.masked_fill(scores.new_ones(scores.shape[0], scores.shape[2], dtype=torch.bool), -torch.inf)


def gpt_head_one_too_wide(x):
    batch, positions, width = x.shape
    return x.reshape(batch, positions, 4, width // 4 + 1)


def gpt_bytes_are_floats(table, x):
    return functional.embedding(x, table)


def gpt_scaled_bytes(x):
    return x * (1 / 256)


def gpt_mlp_half(up, x):
    return x + functional.gelu(x @ up.T)


def gpt_labels_of_another_length(logits, labels):
    return _cross_entropy(logits.reshape(-1, 256), labels.reshape(-1))


def gpt_merge_forgets_batch(merged):
    return merged.reshape(merged.shape[1], 48)


def known_reshape_by_one(x):
    return x.reshape(x.shape[0], x.shape[1] + 1)


def known_thirds(x):
    return x.reshape(x.shape[0] // 3, 3)


def known_two_names(x, y):
    return x + y
