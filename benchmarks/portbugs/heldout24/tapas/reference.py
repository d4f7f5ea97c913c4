"""Weakly supervised question answering over tables: a TAPAS-like encoder with cell, column and aggregation heads."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

EPSILON_ZERO_DIVISION = 1e-10
CLOSE_ENOUGH_TO_LOG_ZERO = -10000.0

# Upper edges of the buckets for the magnitude of a cell's number.
MAGNITUDE_EDGES = (0.5, 2.0, 5.0, 12.0, 30.0, 80.0)
# Moments of sign(x) * log1p(|x|) over the numbers of the training tables.
LOG_VALUE_MEAN = 2.31
LOG_VALUE_STD = 1.27


class TapasConfig:
    """Sizes and switches of the small model."""

    vocab_size = 97
    hidden_size = 36
    num_hidden_layers = 4
    num_attention_heads = 4
    head_kinds = ("row", "column", "full", "full")
    num_structured_layers = 2
    intermediate_size = 58
    hidden_dropout_prob = 0.1
    max_position_embeddings = 27
    # segment, column, row, previous label, column rank, inverse column rank, numeric relation
    type_vocab_sizes = (3, 10, 13, 2, 11, 12, 8)
    layer_norm_eps = 1e-5
    numeric_hidden = 21
    max_num_rows = 9
    max_num_columns = 7
    num_aggregation_labels = 4
    temperature = 1.4
    aggregation_temperature = 0.8
    average_approximation_function = "second_order"


class IndexMap:
    """For each element (batch, length) the segment that it belongs to."""

    def __init__(self, indices, num_segments):
        self.indices = indices.long()
        self.num_segments = num_segments

    def flat(self):
        """The indices over the whole batch, each example with its own range of segments."""
        batch = self.indices.shape[0]
        offset = torch.arange(batch, device=self.indices.device).unsqueeze(1) * self.num_segments
        return (self.indices + offset).reshape(-1)


class ProductIndexMap(IndexMap):
    """The product of two maps: one segment for each pair of an outer and an inner segment."""

    def __init__(self, outer_index, inner_index):
        super().__init__(
            indices=inner_index.indices + outer_index.indices * inner_index.num_segments,
            num_segments=inner_index.num_segments * outer_index.num_segments,
        )
        self.inner_index = inner_index

    def project_inner(self, index):
        return IndexMap(torch.fmod(index.indices, self.inner_index.num_segments), self.inner_index.num_segments)


def range_index_map(batch, num_segments):
    """The map of a tensor that has one value for each segment already."""
    return IndexMap(torch.arange(num_segments).unsqueeze(0).expand(batch, -1), num_segments)


def gather(values, index):
    """Give each element the value of its segment: values is (batch, segments)."""
    return torch.gather(values, 1, index.indices)


def _segment_reduce(values, index, reduce):
    batch = values.shape[0]
    out = torch.zeros(batch * index.num_segments, dtype=values.dtype)
    out = out.scatter_reduce(0, index.flat(), values.reshape(-1), reduce=reduce, include_self=False)
    return out.reshape(batch, index.num_segments), range_index_map(batch, index.num_segments)


reduce_sum = partial(_segment_reduce, reduce="sum")
reduce_mean = partial(_segment_reduce, reduce="mean")
reduce_min = partial(_segment_reduce, reduce="amin")


def structured_attention_mask(token_type_ids, attention_mask, head_kinds):
    """Which keys a query may look at in each head: (batch, heads, query, key).

    Heads over rows see the same row, heads over columns the same column. The question sees all and is seen by all.
    """
    column_ids, row_ids = token_type_ids[:, :, 1], token_type_ids[:, :, 2]
    question = token_type_ids[:, :, 0] == 0
    touches_question = question[:, :, None] | question[:, None, :]
    per_head = []
    for kind in head_kinds:
        if kind == "full":
            per_head.append(torch.ones_like(touches_question))
            continue
        ids = row_ids if kind == "row" else column_ids
        per_head.append((ids[:, :, None] == ids[:, None, :]) | touches_question)
    return torch.stack(per_head, dim=1) & attention_mask[:, None, None, :].bool()


class NumericFeatures(nn.Module):
    """What a token knows of the number in its cell: its bucket, and some features through a small perceptron."""

    def __init__(self, config):
        super().__init__()
        self.register_buffer("edges", torch.tensor(MAGNITUDE_EDGES), persistent=False)
        self.bucket_embeddings = nn.Embedding(len(MAGNITUDE_EDGES) + 2, config.hidden_size)
        self.dense_in = nn.Linear(4, config.numeric_hidden)
        self.norm = nn.BatchNorm1d(config.numeric_hidden, eps=1e-3)
        self.act = nn.LeakyReLU()
        self.dense_out = nn.Linear(config.numeric_hidden, config.hidden_size)

    def forward(self, numeric_values, numeric_values_scale, token_type_ids):
        missing = torch.isnan(numeric_values)
        values = torch.where(missing, torch.zeros_like(numeric_values), numeric_values)
        known = (~missing).to(values.dtype)

        buckets = torch.bucketize(values.abs(), self.edges) + 1
        buckets = buckets.masked_fill(missing, 0)

        log_values = torch.sign(values) * torch.log1p(values.abs())
        log_values = (log_values - LOG_VALUE_MEAN) / LOG_VALUE_STD
        rank = token_type_ids[:, :, 4].to(values.dtype)
        inv_rank = token_type_ids[:, :, 5].to(values.dtype)
        quantile = rank / (rank + inv_rank).clamp(min=1.0)
        features = torch.stack([log_values * known, known, quantile, 1.0 / numeric_values_scale], dim=-1)

        batch, length, _ = features.shape
        hidden = self.dense_in(features).reshape(batch * length, -1)
        hidden = self.act(self.norm(hidden)).reshape(batch, length, -1)
        return self.bucket_embeddings(buckets) + self.dense_out(hidden) * known.unsqueeze(-1)


class TapasEmbeddings(nn.Module):
    """Words, positions that begin again in each cell, seven types, and the numbers."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.ModuleList(
            nn.Embedding(size, config.hidden_size) for size in config.type_vocab_sizes
        )
        self.numeric = NumericFeatures(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def get_position_ids(self, token_type_ids):
        batch, length, _ = token_type_ids.shape
        position = torch.arange(length).unsqueeze(0).expand(batch, -1)
        col_index, row_index = (IndexMap(token_type_ids[:, :, i], self.config.type_vocab_sizes[i]) for i in (1, 2))
        full_index = ProductIndexMap(col_index, row_index)
        first_position_per_segment, _ = reduce_min(position, full_index)
        return (position - gather(first_position_per_segment, full_index)).clamp(max=self.config.max_position_embeddings - 1)

    def forward(self, input_ids, token_type_ids, numeric_values, numeric_values_scale):
        position_ids = self.get_position_ids(token_type_ids)
        embeddings = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        for i, table in enumerate(self.token_type_embeddings):
            embeddings = embeddings + table(token_type_ids[:, :, i])
        embeddings = embeddings + self.numeric(numeric_values, numeric_values_scale, token_type_ids)
        return self.dropout(self.norm(embeddings))


class TapasSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.hidden_size // config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def transpose_for_scores(self, x):
        return x.view(*x.shape[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_bias):
        query = self.transpose_for_scores(self.query(hidden_states))
        key = self.transpose_for_scores(self.key(hidden_states))
        value = self.transpose_for_scores(self.value(hidden_states))
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(self.attention_head_size)
        probs = self.dropout(F.softmax(scores + attention_bias, dim=-1))
        context = torch.einsum("bhqk,bhkd->bqhd", probs, value)
        return context.reshape(*hidden_states.shape)


class TapasResidualOutput(nn.Module):
    """Projection, residual and norm (after the sum, as in BERT)."""

    def __init__(self, in_size, config):
        super().__init__()
        self.dense = nn.Linear(in_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states, residual):
        return self.norm(self.dropout(self.dense(hidden_states)) + residual)


class TapasIntermediate(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.act = nn.GELU()

    def forward(self, hidden_states):
        return self.act(self.dense(hidden_states))


class TapasLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = TapasSelfAttention(config)
        self.attention_output = TapasResidualOutput(config.hidden_size, config)
        self.intermediate = TapasIntermediate(config)
        self.output = TapasResidualOutput(config.intermediate_size, config)

    def forward(self, hidden_states, attention_bias):
        attended = self.attention_output(self.attention(hidden_states, attention_bias), hidden_states)
        return self.output(self.intermediate(attended), attended)


class TapasEncoder(nn.Module):
    """The lower layers have heads that keep to rows and columns, the upper ones see the whole table."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(TapasLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, hidden_states, token_type_ids, attention_mask):
        structured = structured_attention_mask(token_type_ids, attention_mask, self.config.head_kinds)
        structured = (1.0 - structured.to(hidden_states.dtype)) * CLOSE_ENOUGH_TO_LOG_ZERO
        full = (1.0 - attention_mask[:, None, None, :].to(hidden_states.dtype)) * CLOSE_ENOUGH_TO_LOG_ZERO
        for i, layer in enumerate(self.layer):
            bias = structured if i < self.config.num_structured_layers else full
            hidden_states = layer(hidden_states, bias)
        return hidden_states


class TapasPooler(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()

    def forward(self, hidden_states):
        return self.activation(self.dense(hidden_states[:, 0]))


class CellSelectionHead(nn.Module):
    """A score for each token; all tokens of a cell have the mean of its scores."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.score = nn.Linear(config.hidden_size, 1)

    def forward(self, sequence_output, cell_index):
        logits = self.score(sequence_output).squeeze(-1) / self.config.temperature
        logits_per_cell, _ = reduce_mean(logits, cell_index)
        return gather(logits_per_cell, cell_index)


class ColumnSelectionHead(nn.Module):
    """A score for each column: the mean over its cells of the mean over their tokens."""

    def __init__(self, config):
        super().__init__()
        self.column_output_weights = nn.Parameter(torch.zeros(config.hidden_size))
        self.column_output_bias = nn.Parameter(torch.zeros(()))

    def forward(self, sequence_output, cell_index, cell_mask):
        token_logits = torch.einsum("bsj,j->bs", sequence_output, self.column_output_weights) + self.column_output_bias
        cell_logits, cell_logits_index = reduce_mean(token_logits, cell_index)

        column_index = cell_index.project_inner(cell_logits_index)
        column_logits, out_index = reduce_sum(cell_logits * cell_mask, column_index)
        cell_count, _ = reduce_sum(cell_mask, column_index)
        column_logits = column_logits / (cell_count + EPSILON_ZERO_DIVISION)

        is_padding = (cell_count < 0.5) & ~torch.eq(out_index.indices, 0)
        column_logits = column_logits + CLOSE_ENOUGH_TO_LOG_ZERO * is_padding.to(column_logits.dtype)
        # no answer without a column
        return column_logits + CLOSE_ENOUGH_TO_LOG_ZERO * torch.eq(out_index.indices, 0).to(column_logits.dtype)


def select_single_column(token_logits, column_logits, cell_index, cell_mask):
    """Take the scores of all cells away that are not in the best column: scores per token, and per cell."""
    logits_per_cell, labels_index = reduce_mean(token_logits, cell_index)
    column_id_for_cells = cell_index.project_inner(labels_index).indices
    selected_column_id = torch.argmax(column_logits, dim=-1, keepdim=True)
    selected_column_mask = torch.eq(column_id_for_cells, selected_column_id) & ~torch.eq(column_id_for_cells, 0)
    keep = cell_mask * selected_column_mask.to(cell_mask.dtype)
    logits_per_cell = logits_per_cell + CLOSE_ENOUGH_TO_LOG_ZERO * (1.0 - keep)
    return gather(logits_per_cell, cell_index), logits_per_cell


def expected_average(scaled_probs, numeric_values, method):
    """The expected average over a random choice of cells, by a Taylor approximation."""
    # the others' expected count, plus one for the cell itself
    ex = scaled_probs.sum(dim=1, keepdim=True) - scaled_probs + 1
    if method == "first_order":
        return (numeric_values * scaled_probs / ex).sum(dim=1)
    pointwise_var = scaled_probs * (1 - scaled_probs)
    var = pointwise_var.sum(dim=1, keepdim=True) - pointwise_var
    multiplier = (var / torch.square(ex) + 1) / ex
    return (numeric_values * scaled_probs * multiplier).sum(dim=1)


class TapasForTableQuestions(nn.Module):
    """Encoder, heads, and the answer as a number."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embeddings = TapasEmbeddings(config)
        self.encoder = TapasEncoder(config)
        self.pooler = TapasPooler(config)
        self.cell_head = CellSelectionHead(config)
        self.column_head = ColumnSelectionHead(config)
        self.aggregation_head = nn.Linear(config.hidden_size, config.num_aggregation_labels)

    def _cell_index(self, token_type_ids):
        row_ids, column_ids = token_type_ids[:, :, 2], token_type_ids[:, :, 1]
        row_index = IndexMap(row_ids.clamp(max=self.config.max_num_rows - 1), self.config.max_num_rows)
        col_index = IndexMap(column_ids.clamp(max=self.config.max_num_columns - 1), self.config.max_num_columns)
        return ProductIndexMap(row_index, col_index)

    def _expected_results(self, token_probs, masked_logits, numeric_values, numeric_values_scale, table_mask):
        """The expected result of each operation: (batch, operations), in the order none, sum, average, count."""
        has_value = ~torch.isnan(numeric_values)
        numeric = has_value.to(token_probs.dtype) * table_mask
        values = torch.where(has_value, numeric_values, torch.zeros_like(numeric_values))

        # A cell has as many tokens as its scale says and should count once.
        scaled_probs = token_probs / numeric_values_scale * numeric
        count_result = scaled_probs.sum(dim=1)
        sum_result = (scaled_probs * values).sum(dim=1)
        average_result = expected_average(scaled_probs, values, self.config.average_approximation_function)

        pick_logits = masked_logits - torch.log(numeric_values_scale)
        pick_logits = pick_logits + CLOSE_ENOUGH_TO_LOG_ZERO * (1.0 - numeric)
        pick = F.softmax(pick_logits, dim=1) * (token_probs > 0).to(values.dtype) * numeric
        none_result = (pick * values).sum(dim=1)
        return torch.stack([none_result, sum_result, average_result, count_result], dim=1)

    def forward(self, input_ids, attention_mask, token_type_ids, numeric_values, numeric_values_scale):
        hidden = self.embeddings(input_ids, token_type_ids, numeric_values, numeric_values_scale)
        sequence_output = self.encoder(hidden, token_type_ids, attention_mask)
        pooled_output = self.pooler(sequence_output)

        cell_index = self._cell_index(token_type_ids)
        input_mask = attention_mask.to(sequence_output.dtype)
        table_mask = (token_type_ids[:, :, 2] > 0).to(sequence_output.dtype) * input_mask
        cell_mask, _ = reduce_mean(table_mask, cell_index)

        token_logits = self.cell_head(sequence_output, cell_index)
        column_logits = self.column_head(sequence_output, cell_index, cell_mask)
        masked_logits, logits_per_cell = select_single_column(token_logits, column_logits, cell_index, cell_mask)
        token_probs = torch.sigmoid(masked_logits) * table_mask
        cell_probs = torch.sigmoid(logits_per_cell) * cell_mask

        aggregation_logits = self.aggregation_head(pooled_output)
        results = self._expected_results(token_probs, masked_logits, numeric_values, numeric_values_scale, table_mask)
        operation_probs = F.softmax(aggregation_logits / self.config.aggregation_temperature, dim=-1)
        answer = (results * operation_probs).sum(dim=1)

        column_probs = F.softmax(column_logits, dim=-1)
        return token_logits * input_mask, column_probs, cell_probs, aggregation_logits, results, answer


def trained_like(net):
    """Values as after training, not as after the initialisation."""
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.15)
        elif isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.3, 1.6)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.normal_(module.bias, std=0.1)
    for layer in net.encoder.layer:
        layer.attention.query.weight.data *= 1.9
        layer.attention.key.weight.data *= 1.7
    net.cell_head.score.weight.data *= 1.5
    net.embeddings.numeric.dense_out.weight.data *= 0.02
    net.embeddings.numeric.dense_out.bias.data *= 0.1
    nn.init.normal_(net.column_head.column_output_weights, std=0.3)
    nn.init.constant_(net.column_head.column_output_bias, 0.17)
    return net


def make_tables(length):
    """Three questions, each with a table of its own size; cells have one to three tokens, some have no number."""
    shapes = [(6, 5, 3), (8, 3, 4), (4, 7, 2)]
    ids, mask, types = (torch.zeros(3, length, *more, dtype=torch.long) for more in ((), (), (7,)))
    values, scale = torch.full((3, length), float("nan")), torch.ones(3, length)
    for b, (question, rows, cols) in enumerate(shapes):
        numbers = torch.exp(2.0 + 1.1 * torch.randn(rows, cols)).round(decimals=1)
        numbers[torch.rand(rows, cols) < 0.15] = float("nan")
        ranks = numbers.nan_to_num(nan=1e9).argsort(dim=0).argsort(dim=0) + 1
        place = question
        for row in range(rows + 1):
            for col in range(1, cols + 1):
                width = int(torch.randint(1, 4, ()))
                cell = slice(place, place + width)
                types[b, cell, 0], types[b, cell, 1], types[b, cell, 2] = 1, col, row
                if row > 0:
                    types[b, cell, 3] = int(torch.rand(()) < 0.3)
                    number = numbers[row - 1, col - 1]
                    values[b, cell], scale[b, cell] = number, width
                    if not torch.isnan(number):
                        known = int((~numbers[:, col - 1].isnan()).sum())
                        types[b, cell, 4] = ranks[row - 1, col - 1]
                        types[b, cell, 5] = known + 1 - ranks[row - 1, col - 1]
                        types[b, cell, 6] = int(torch.randint(0, 8, ()))
                place += width
        assert place <= length, place
        ids[b, :place] = torch.randint(1, TapasConfig.vocab_size, (place,))
        mask[b, :place] = 1
    return ids, mask, types, values, scale


def build():
    """The net with the same weights on every run, and three tables with questions."""
    torch.manual_seed(1936)
    net = trained_like(TapasForTableQuestions(TapasConfig()))
    return net.eval(), make_tables(61)
