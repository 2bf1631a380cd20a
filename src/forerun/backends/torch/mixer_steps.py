"""The eager executor's steps of layers without attention: convolutions, gated delta nets and Mamba 2.

Every row is computed alone, in shapes that depend on its position in the text alone, from the rows of its own path. So
its bits are the same in a one-row pass, in a tree and in a prompt, however that is cut.

Legend: T rows, N rows before one row since its fixed place, C channels, I inputs, G key heads, H value heads, K key
size, V value size, X vectors of a row, S slots, R values that a row leaves beside its channels.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.bind import ConvolutionWeights, NetWeights
from forerun.backends.torch.frame import Frame, RowPath, Step
from forerun.backends.torch.ops import TorchOps, TreeMask
from forerun.core.mixers import GatedDeltaNet, Mamba2, Mixer, ShortConvolution, StateMixer
from forerun.model.mixer_rows import MixerRows

KEY_EPS = 1e-6  # of the norms of queries and keys, in transformers and in the kernels of its authors


def paths_of(
    mask: TreeMask, mixer: Mixer, rows: MixerRows, num_committed: int, *, device: torch.device
) -> list[RowPath]:
    """The path of every row of a pass behind so many committed tokens, in the slots of the rings.

    The place of a row follows from its position, unless it is so deep in a draft's tree that this place is not in
    committed text; it then reads the last one that is. No row of a target's tree is so deep.
    """
    paths = []
    first_new = mask.num_slots - mask.num_rows
    for row in range(mask.num_rows):
        if mask.ancestry_TW is None:
            num_text = first_new + row
            own = torch.arange(num_text, num_text + 1, device=device)
            place = mixer.place(num_text)
        else:
            num_text = mask.prefix_len
            own = num_text + mask.ancestry_TW[row].nonzero()[:, 0]
            in_order = torch.arange(num_text, num_text + len(own), device=device)
            num_shared = min(num_committed, num_text + int((own == in_order).sum()))  # with the committed text
            place = min(mixer.place(num_text + len(own) - 1), num_shared // mixer.stride * mixer.stride)
        num_all = num_text + len(own)
        num_after = num_all - place
        num_read = max(num_after, min(num_all, mixer.kernel_size))
        text = torch.arange(max(0, min(num_text, num_all - num_read)), num_text, device=device)
        slots = torch.cat((text, own))[-num_read:] % rows.num_slots
        paths.append(RowPath(place=place, slots=slots, num_after=num_after))
    return paths


def bind_gated_convolution(mixer: ShortConvolution, layer: int, rows: MixerRows, weights: ConvolutionWeights) -> Step:
    """LFM2: B x is convolved, then multiplied by C."""
    inputs_SC, _ = rows.layer(layer)
    num_channels = mixer.num_channels

    def gated_convolution(frame: Frame) -> None:
        b_TC, c_TC, x_TC = torch.split(frame.mixer_in, num_channels, -1)
        convolved_TC = convolve(frame, inputs_SC, b_TC * x_TC, weights)
        frame.mixed = c_TC * convolved_TC.to(c_TC.dtype)

    return gated_convolution


def bind_convolve(mixer: StateMixer, layer: int, rows: MixerRows, weights: ConvolutionWeights) -> Step:
    """The convolution of queries, keys and values, and silu."""
    inputs_SC, _ = rows.layer(layer)
    channels = slice(mixer.first_channel, mixer.first_channel + mixer.num_channels)

    def convolve_all(frame: Frame) -> None:
        convolved_TC = convolve(frame, inputs_SC, frame.mixer_in[:, channels], weights)
        frame.convolved = torch.stack([functional.silu(row_C) for row_C in convolved_TC])

    return convolve_all


def convolve(frame: Frame, inputs_SC: Tensor, own_TC: Tensor, weights: ConvolutionWeights) -> Tensor:
    """[T, C] in the dtype of the slots: each row's own inputs and those before it in its text, which are 0 before the
    text begins, times the taps. Products and sums of single elements round alike in every shape."""
    num_taps = weights.taps_CK.shape[1]
    read_TK = torch.full((len(own_TC), num_taps), -1, device=own_TC.device)
    for row, path in enumerate(frame.paths):
        last = path.slots[-num_taps:]
        read_TK[row, num_taps - len(last) :] = last
    inputs_SC[read_TK[:, -1]] = own_TC.to(inputs_SC.dtype)
    summed_TC = inputs_SC.new_zeros(own_TC.shape) if weights.bias_C is None else weights.bias_C.expand(own_TC.shape)
    for tap, read_T in enumerate(read_TK.unbind(1)):
        before_TC = torch.where(read_T[:, None] < 0, 0.0, inputs_SC[read_T])
        summed_TC = summed_TC + before_TC * weights.taps_CK[:, tap]
    return summed_TC


def bind_delta_net(
    net: GatedDeltaNet, layer: int, rows: MixerRows, weights: NetWeights, ops: TorchOps, eps: float
) -> Step:
    """A gated delta net behind its convolution, with the norm and the gate of its output."""
    _, rows_SR = rows.layer(layer)
    norm = ops.pack_norm(weights.scale_V, eps)
    key_heads_H = torch.tensor(net.key_heads, device=rows_SR.device)
    num_channels = net.num_channels
    sizes = [net.value_size, net.num_value_heads, net.num_value_heads]

    def advance(state_HKV: Tensor, chunk_TR: Tensor) -> Tensor:
        return advanced(state_HKV, *parts_of_rows(net, key_heads_H, chunk_TR))

    def row(convolved_C: Tensor, in_I: Tensor, path: RowPath) -> Tensor:
        """One row's output [H * V]; what it leaves is written to its slot."""
        q_GK, k_GK, v_HV = parts_of_channels(net, convolved_C.clone())  # the same alignment for every row
        gate, beta, decay = torch.split(in_I[num_channels:].clone().to(rows_SR.dtype), sizes)
        log_decay_H = weights.rates_H * functional.softplus(decay + weights.bias_H)
        state_HKV = rows.state(layer, path.place, advance)
        before_NR = rows_SR.index_select(0, path.slots[-path.num_after : -1])
        u_HV, o_HV = delta_row(
            state_HKV, parts_of_rows(net, key_heads_H, before_NR),
            q_GK[key_heads_H], k_GK[key_heads_H], v_HV, torch.sigmoid(beta), log_decay_H,
        )  # fmt: skip
        rows_SR[path.slots[-1]] = torch.cat((k_GK.flatten(), u_HV.flatten(), log_decay_H))
        return (norm(o_HV) * functional.silu(gate.view(o_HV.shape))).flatten()

    return in_order_of_places(row)


def bind_mamba(mamba: Mamba2, layer: int, rows: MixerRows, weights: NetWeights) -> Step:
    """Mamba 2 behind its convolution, with the gate and the norm of its output."""
    assert weights.skips_H is not None, "weights of a Mamba 2"
    skips_H1 = weights.skips_H[:, None]
    _, rows_SR = rows.layer(layer)
    key_heads_H = torch.tensor(mamba.key_heads, device=rows_SR.device)
    sizes = [mamba.value_size, mamba.num_channels, mamba.num_value_heads]
    parts = [mamba.value_size, mamba.key_size, mamba.key_size]

    def advance(state_HKV: Tensor, chunk_TR: Tensor) -> Tensor:
        return advanced(state_HKV, *parts_of_rows(mamba, key_heads_H, chunk_TR))

    def row(convolved_C: Tensor, in_I: Tensor, path: RowPath) -> Tensor:
        """One row's output [H * V]; what it leaves is written to its slot."""
        v, k, q = torch.split(convolved_C.clone(), parts)  # the same alignment for every row
        v_HV = v.view(mamba.num_value_heads, mamba.value_dim)
        k_GK = k.view(mamba.num_key_heads, mamba.key_dim)
        q_GK = q.view(mamba.num_key_heads, mamba.key_dim)
        gate, _, step = torch.split(in_I.clone().to(rows_SR.dtype), sizes)
        step_H = functional.softplus(step + weights.bias_H).clamp(*mamba.step_limits)
        log_decay_H = weights.rates_H * step_H
        u_HV = step_H[:, None] * v_HV
        state_HKV = rows.state(layer, path.place, advance)
        before_NR = rows_SR.index_select(0, path.slots[-path.num_after : -1])
        before = parts_of_rows(mamba, key_heads_H, before_NR)
        (sums_HV,) = sums_over_text(state_HKV, before, [q_GK[key_heads_H]], log_decay_H)
        o_HV = sums_HV + (k_GK * q_GK).sum(1)[key_heads_H, None] * u_HV + skips_H1 * v_HV
        rows_SR[path.slots[-1]] = torch.cat((k_GK.flatten(), u_HV.flatten(), log_decay_H))
        gated_GI = (o_HV.flatten() * functional.silu(gate)).view(mamba.num_key_heads, -1)
        factors_G1 = torch.rsqrt(gated_GI.square().mean(1, keepdim=True) + mamba.norm_eps)
        return weights.scale_V * (gated_GI * factors_G1).flatten()

    return in_order_of_places(row)


def in_order_of_places(row: Callable[[Tensor, Tensor, RowPath], Tensor]) -> Step:
    """The step that computes every row of a pass alone, by its convolution, its part of the first product and its path,
    in the order of the places that rows read, because states advance."""

    def mix(frame: Frame) -> None:
        paths = frame.paths
        mixed = [frame.convolved] * len(paths)
        for number in sorted(range(len(paths)), key=lambda number: paths[number].place):
            mixed[number] = row(frame.convolved[number], frame.mixer_in[number], paths[number])
        frame.mixed = torch.stack(mixed).to(frame.mixer_in.dtype)

    return mix


def parts_of_channels(net: GatedDeltaNet, convolved_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys [G, K], normalised and queries scaled, and values [H, V] of a row behind its convolution."""
    q, k, v = torch.split(convolved_C, [net.key_size, net.key_size, net.value_size])
    q_GK = normalised(q.view(net.num_key_heads, net.key_dim)) * net.key_dim**-0.5
    return q_GK, normalised(k.view(net.num_key_heads, net.key_dim)), v.view(net.num_value_heads, net.value_dim)


def normalised(x_GK: Tensor) -> Tensor:
    """Each head divided by its length."""
    return x_GK * torch.rsqrt(x_GK.square().sum(-1, keepdim=True) + KEY_EPS)


Rows = tuple[Tensor, Tensor, Tensor]  # keys [H, N, K], updates [H, N, V], logarithms of decays [H, N]


def parts_of_rows(net: StateMixer, key_heads_H: Tensor, rows_NR: Tensor) -> Rows:
    """What these rows left, with the keys of each value head."""
    num_rows = len(rows_NR)
    keys, updates, log_decays_NH = torch.split(rows_NR, [net.key_size, net.value_size, net.num_value_heads], 1)
    keys_GNK = keys.reshape(num_rows, net.num_key_heads, net.key_dim).transpose(0, 1)
    updates_HNV = updates.reshape(num_rows, net.num_value_heads, net.value_dim).transpose(0, 1)
    return keys_GNK.index_select(0, key_heads_H), updates_HNV.contiguous(), log_decays_NH.T.contiguous()


def delta_row(
    state_HKV: Tensor, before: Rows, q_HK: Tensor, k_HK: Tensor, v_HV: Tensor, beta_H: Tensor, log_decay_H: Tensor
) -> tuple[Tensor, Tensor]:
    """The update [H, V] and the output [H, V] of a row of a gated delta net after a state and the rows since then."""
    of_key_HV, of_query_HV = sums_over_text(state_HKV, before, [k_HK, q_HK], log_decay_H)
    u_HV = beta_H[:, None] * (v_HV - of_key_HV)
    return u_HV, of_query_HV + (k_HK * q_HK).sum(1, keepdim=True) * u_HV


def sums_over_text(
    state_HKV: Tensor, before: Rows, vectors: Sequence[Tensor], log_decay_H: Tensor
) -> tuple[Tensor, ...]:
    """S^T x [H, V] for each of the vectors x [H, K] of a row, with the state S just before the row's own update.

    With d(j) the decay from row j to this one, S^T x is d(state) state^T x plus d(j) (k_j . x) u_j for each row j since
    the state.
    """
    keys_HNK, updates_HNV, log_decays_HN = before
    zero_H1 = log_decay_H.new_zeros(len(log_decay_H), 1)
    since_HN = torch.cat((log_decays_HN, zero_H1), 1).flip(1).cumsum(1).flip(1)  # sums from each row on
    decays_HN = torch.exp(since_HN + log_decay_H[:, None])
    vectors_HKX = torch.stack(tuple(vectors), 2)
    sums_HXV = torch.matmul(vectors_HKX.transpose(1, 2), state_HKV) * decays_HN[:, :1, None]
    if keys_HNK.shape[1]:
        products_HNX = torch.matmul(keys_HNK, vectors_HKX) * decays_HN[:, 1:, None]
        sums_HXV = sums_HXV + torch.matmul(products_HNX.transpose(1, 2), updates_HNV)
    return sums_HXV.unbind(1)


def advanced(state_HKV: Tensor, keys_HNK: Tensor, updates_HNV: Tensor, log_decays_HN: Tensor) -> Tensor:
    """The state after these rows."""
    since_HN = log_decays_HN.flip(1).cumsum(1).flip(1)
    after_HN = torch.cat((since_HN[:, 1:], torch.zeros_like(since_HN[:, :1])), 1)
    decayed_HNK = keys_HNK * torch.exp(after_HN)[:, :, None]
    return state_HKV * torch.exp(since_HN[:, :1, None]) + torch.matmul(decayed_HNK.transpose(1, 2), updates_HNV)


def sigmoid_mul(mixed_TI: Tensor, gate_TI: Tensor) -> Tensor:
    """The output of attention, or of a shared expert, times the sigmoid of its gate, row by row."""
    return mixed_TI * torch.stack([torch.sigmoid(row) for row in gate_TI])
