// A mixture of experts. The weights of an expert are read once for all rows of the pass that chose it.
#include <cmath>

#include "program.h"

namespace forerun {

constexpr int PAIRS_OF_A_TILE = 64;

// The `count` best experts by score, best first; of equal ones the first.
static void best_experts(const float* scores, int num_experts, int count, int32_t* best) {
    int num_found = 0;
    for (int expert = 0; expert < num_experts; expert++) {
        int place = num_found;
        while (place > 0 && scores[expert] > scores[best[place - 1]]) place--;
        if (place == count) continue;
        if (num_found < count) num_found++;
        for (int i = num_found - 1; i > place; i--) best[i] = best[i - 1];
        best[place] = expert;
    }
}

// The softmax of the chosen scores, of which the first is the largest.
static void shares_of(const float* scores, const int32_t* chosen, int count, float* shares) {
    float total = 0.0f;
    for (int i = 0; i < count; i++) total += shares[i] = std::exp(scores[chosen[i]] - scores[chosen[0]]);
    for (int i = 0; i < count; i++) shares[i] /= total;
}

// One thread alone: it takes less than another step.
void Program::choose_experts(const Run& run, const Op& op) {
    const int num_rows = run.num_rows(op), count = op.experts->num_chosen, num_experts = op.experts->num_experts;
    int32_t* begins = choice_.begins.data();
    for (int expert = 0; expert <= num_experts; expert++) begins[expert] = 0;
    for (int row = 0; row < num_rows; row++) {
        const float* scores = buffer(op.experts->router) + static_cast<int64_t>(row) * num_experts;
        int32_t* chosen = choice_.chosen.data() + row * count;
        best_experts(scores, num_experts, count, chosen);
        shares_of(scores, chosen, count, choice_.shares.data() + row * count);
        for (int i = 0; i < count; i++) begins[chosen[i]]++;
    }
    int num_pairs = 0, num_wanted = 0;
    for (int expert = 0; expert < num_experts; expert++) {
        if (begins[expert]) choice_.wanted[static_cast<size_t>(num_wanted++)] = expert;
        num_pairs += begins[expert];
        begins[expert] = num_pairs;  // the end of its pairs
    }
    begins[num_experts] = num_pairs;
    for (int row = num_rows - 1; row >= 0; row--)
        for (int i = row * count; i < (row + 1) * count; i++) {
            const int pair = --begins[choice_.chosen[static_cast<size_t>(i)]];
            choice_.places[static_cast<size_t>(i)] = pair;
            choice_.rows[static_cast<size_t>(pair)] = row;
        }
    choice_.num_wanted.store(num_wanted, std::memory_order_relaxed);
}

// Row `first` and those after it.
static Rows rows_from(Rows rows, const Linear& linear, int first) {
    rows.values = static_cast<char*>(rows.values) + first * rows.stride;
    const int64_t groups = linear.group ? linear.padded_in / linear.group : 0;
    if (rows.scales) rows.scales += first * groups;
    if (rows.sums) rows.sums += first * groups;
    return rows;
}

// The products of all pairs, whose inputs are `rows`, with their experts.
bool Program::multiply_experts(const Run& run, const Linear* linears, Rows rows, Output out, Member& self) {
    const int num_panels = (forerun::num_panels(linears[0]) + 1) / 2 * 2;
    const int num_wanted = choice_.num_wanted.load(std::memory_order_relaxed);
    const auto multiply = [&](Slice items) {
        for (int item = items.begin; item < items.end;) {
            const int expert = choice_.wanted[static_cast<size_t>(item / num_panels)], begin = item % num_panels;
            const int end = begin + items.end - item < num_panels ? begin + items.end - item : num_panels;
            const int32_t* pairs = choice_.begins.data() + expert;
            const Linear& linear = linears[expert];
            Output own = out;
            own.y += pairs[0] * out.y_stride;
            const int last = forerun::num_panels(linear);
            run.kernels.linear(linear, rows_from(rows, linear, pairs[0]), pairs[1] - pairs[0], begin,
                               end < last ? end : last, own);
            item += end - begin;
        }
    };
    return self.share(num_wanted * num_panels, panels_of_a_tile(linears[0], 1), multiply, 2);
}

// x += the sum of the experts' products by their shares, for some columns, except in rows that skip the sublayer.
void Program::add_experts(const Run& run, const Op& op, Slice columns) {
    const int count = op.experts->num_chosen;
    const int64_t size = width(op.writes);
    for (int row = 0; row < run.num_rows(op); row++) {
        const uint8_t* skips = run.pass.row_skips;
        if (skips && skips[static_cast<int64_t>(row) * shape_.num_sublayers + op.sublayer]) continue;
        float* x = buffer(op.writes) + row * size;
        const int32_t* places = choice_.places.data() + row * count;
        const float* shares = choice_.shares.data() + row * count;
        float* sum = buffer(op.experts->products) + places[0] * size;
        for (int64_t column = columns.begin; column < columns.end; column++) sum[column] *= shares[0];
        for (int i = 1; i < count; i++) {
            const float* from = buffer(op.experts->products) + places[i] * size;
            for (int64_t column = columns.begin; column < columns.end; column++) sum[column] += shares[i] * from[column];
        }
        for (int64_t column = columns.begin; column < columns.end; column++) x[column] += sum[column];
    }
}

bool Program::experts(const Run& run, const Op& op, Member& self) {
    const Experts& experts = *op.experts;
    const int num_pairs = run.num_rows(op) * experts.num_chosen;
    const Linear &gate_up = experts.gate_up[0], &last = experts.out[0];
    const int64_t size = width(op.reads), inner = last.num_in;
    float *gated = buffer(experts.gated), *products = buffer(experts.products);
    if (!self.share(1, 1, [&](Slice) { choose_experts(run, op); })) return false;
    const Rows inputs = rows_in(shared_rows_.data(), gate_up, num_pairs, true);
    const auto prepare = [&](Slice pairs) {
        for (int pair = pairs.begin; pair < pairs.end; pair++) {
            const float* x = buffer(op.reads) + choice_.rows[static_cast<size_t>(pair)] * size;
            run.kernels.prepare(gate_up, x - pair * size, size, pair, pair + 1, inputs);
        }
    };
    if (!self.share(num_pairs, PAIRS_OF_A_TILE, prepare)) return false;
    const Output to_gated{gated, nullptr, inner, 0, static_cast<Epilogue>(op.epilogue)};
    if (!multiply_experts(run, experts.gate_up, inputs, to_gated, self)) return false;
    const Rows inside = rows_in(shared_rows_.data(), last, num_pairs, true);
    const auto prepare_gated = [&](Slice pairs) {
        run.kernels.prepare(last, gated, inner, pairs.begin, pairs.end, inside);
    };
    if (!self.share(num_pairs, PAIRS_OF_A_TILE, prepare_gated)) return false;
    const Output to_products{products, nullptr, size, 0, Epilogue::store};
    if (!multiply_experts(run, experts.out, inside, to_products, self)) return false;
    const int num_columns = static_cast<int>(size);
    return self.share(num_columns, num_columns, [&](Slice columns) { add_experts(run, op, columns); }, PANEL);
}

}  // namespace forerun
