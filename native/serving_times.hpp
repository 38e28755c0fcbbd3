// Step times: from the tables of triosim/serving/model_times.py, in the same order of the same operations, so that ticks
// are equal to the last digit; what is not in the tables is asked of Python.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "serving_request.hpp"

namespace triosim::serving {

struct Shape {
    std::int64_t tokens = 0, decodes = 0, context = 0, sampled = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> chunks;  // tokens computed, and tokens computed before
};

// See triosim.serving.model_times.StepTables.
struct Tables {
    std::span<const double> tokens, decodes, prefill;
    std::span<const std::int64_t> sequences, keys, chunks, cached, graph_sizes;
    std::int64_t graph_tokens = 0, host = 0, prompt_host = 0, gap = 0, host_sequence = 0, gap_sequence = 0;
    bool one_call = false;
};

class Times {
public:
    // What Python is asked: a step's ticks, where the host began so much before; the tokens that one of so many computes; the ticks of embedding so many
    // tokens or, below zero, of sampling so many; those of a step of so many decodes but for their attention.
    struct Asked {
        std::function<std::int64_t(const Shape&, std::int64_t)> ticks;
        std::function<std::int64_t(std::int64_t)> padded, ends, base;
    };

    Times(std::optional<Tables> tables, Asked asked) : tables_(std::move(tables)), asked_(std::move(asked)) {}

    // Of a step whose host began so much before, while the device ran another.
    std::int64_t ticks(const Shape& step, std::int64_t before = 0) {
        if (!tables_) return asked_.ticks(step, before);
        if (step.chunks.empty()) return decodes(step.decodes, step.context);
        const Tables& own = *tables_;
        const std::int64_t tokens = computed(step);
        if (own.one_call || tokens >= static_cast<std::int64_t>(own.tokens.size()))
            return asked_.ticks(step, before);
        double total = own.tokens[tokens];
        if (step.decodes) total += decode(row(step.decodes), mean(step));
        double prompts = 0;
        for (const auto& [count, cached] : step.chunks) {
            if (count > own.chunks.back() || cached > own.cached.back()) return asked_.ticks(step, before);
            prompts += chunk(count, cached);
        }
        const double launch = own.prefill[0];
        total += std::max(prompts - static_cast<double>(step.chunks.size() - 1) * launch, launch);
        std::int64_t ticks = rounded(total) + ends(tokens);
        if (step.sampled) ticks += ends(-step.sampled);
        const auto sequences = step.decodes + static_cast<std::int64_t>(step.chunks.size());
        return with_host(std::max(own.prompt_host - before, own.host), std::max(ticks, std::int64_t{1}), sequences);
    }

    // Of a step of decodes alone, whose keys are so many in all.
    std::int64_t decodes(std::int64_t count, std::int64_t context) {
        if (!tables_) {
            alone_.tokens = alone_.decodes = alone_.sampled = count;
            alone_.context = context;
            return asked_.ticks(alone_, 0);
        }
        Row& own = row(count);
        const double length = static_cast<double>(context) / static_cast<double>(count);
        return with_host(tables_->host, own.base + rounded(decode(own, length)), count);
    }

    // Of graphs of decodes alone prompts take none.
    std::int64_t computed(const Shape& step) {
        const bool none = tables_ && !tables_->graph_sizes.empty() && !step.chunks.empty();
        return none ? step.tokens : padded(step.tokens);
    }

    std::int64_t padded(std::int64_t tokens) {
        if (tables_ && !tables_->graph_sizes.empty()) {
            const auto sizes = tables_->graph_sizes;
            const auto at = std::lower_bound(sizes.begin(), sizes.end(), tokens);
            return at == sizes.end() ? tokens : *at;
        }
        if (tables_) {
            if (tokens > tables_->graph_tokens) return tokens;
            if (tokens <= 4) return tokens == 3 ? 4 : tokens;
            const std::int64_t step = tokens <= 256 ? 8 : 16;  // as graph_size of model_times.py
            return (tokens + step - 1) / step * step;
        }
        if (tokens >= static_cast<std::int64_t>(padded_.size())) {
            if (tokens >= most_kept) return asked_.padded(tokens);
            padded_.resize(tokens + 1, -1);
        }
        if (padded_[tokens] < 0) padded_[tokens] = asked_.padded(tokens);
        return padded_[tokens];
    }

private:
    static constexpr std::int64_t most_kept = 1 << 20;
    struct Row {
        std::int64_t base = -1;
        std::vector<double> attention;
        std::size_t place = 0;  // where the last length was found
    };

    static std::int64_t rounded(double ticks) { return static_cast<std::int64_t>(std::nearbyint(ticks)); }
    static double mean(const Shape& step) {
        return static_cast<double>(step.context) / static_cast<double>(step.decodes);
    }

    std::int64_t with_host(std::int64_t host, std::int64_t ticks, std::int64_t sequences) const {
        const Tables& own = *tables_;
        return std::max(ticks, host + own.host_sequence * sequences) + own.gap + own.gap_sequence * sequences;
    }

    Row& row(std::int64_t count) {
        if (count >= static_cast<std::int64_t>(rows_.size())) rows_.resize(count + 1);
        Row& out = rows_[count];
        if (out.base >= 0) return out;
        const Tables& own = *tables_;
        const std::size_t length = own.keys.size(), last = own.sequences.size() - 1;
        out.attention.resize(length);
        if (count >= own.sequences[last]) {
            const double share = static_cast<double>(count) / static_cast<double>(own.sequences[last]);
            for (std::size_t at = 0; at < length; ++at) out.attention[at] = own.decodes[last * length + at] * share;
        } else {
            const std::size_t place = cell(own.sequences, count).first;
            const double share = cell(own.sequences, count).second;
            const double* low = own.decodes.data() + place * length;
            for (std::size_t at = 0; at < length; ++at)
                out.attention[at] = low[at] * (1 - share) + low[length + at] * share;
        }
        out.base = asked_.base(count);
        return out;
    }

    double decode(Row& own, double length) const {
        const auto keys = tables_->keys;
        const std::size_t last = keys.size() - 1;
        std::size_t place = own.place;
        if (static_cast<double>(keys[place]) > length || (place < last && static_cast<double>(keys[place + 1]) <= length)) {
            const auto above = std::upper_bound(keys.begin(), keys.end(), length, [](double at, std::int64_t key) {
                return at < static_cast<double>(key);
            });
            place = above == keys.begin() ? 0 : static_cast<std::size_t>(above - keys.begin()) - 1;
            own.place = place;
        }
        const std::vector<double>& row = own.attention;
        if (place >= last) return row[last] * length / static_cast<double>(keys[last]);
        const auto low = static_cast<double>(keys[place]), high = static_cast<double>(keys[place + 1]);
        return row[place] + (row[place + 1] - row[place]) * (length - low) / (high - low);
    }

    double chunk(std::int64_t count, std::int64_t cached) const {
        const auto [row, share] = cell(tables_->chunks, count);
        const auto [column, part] = cell(tables_->cached, cached);
        const double* first = tables_->prefill.data() + row * tables_->cached.size() + column;
        const double* second = first + tables_->cached.size();
        const double low = first[0] + (first[1] - first[0]) * part;
        const double high = second[0] + (second[1] - second[0]) * part;
        return low + (high - low) * share;
    }

    // The place at or below, and how far it is to the next; beyond the last two along them.
    static std::pair<std::size_t, double> cell(std::span<const std::int64_t> places, std::int64_t at) {
        const auto above = static_cast<std::size_t>(std::upper_bound(places.begin(), places.end(), at) - places.begin());
        const std::size_t place = std::min(above - 1, places.size() - 2);
        return {place, static_cast<double>(at - places[place]) / static_cast<double>(places[place + 1] - places[place])};
    }

    std::int64_t ends(std::int64_t count) {
        auto& kept = count < 0 ? sampling_ : embedding_;
        const std::int64_t place = std::abs(count);
        if (place >= most_kept) return asked_.ends(count);
        if (place >= static_cast<std::int64_t>(kept.size())) kept.resize(place + 1, -1);
        if (kept[place] < 0) kept[place] = asked_.ends(count);
        return kept[place];
    }

    const std::optional<Tables> tables_;
    const Asked asked_;
    Shape alone_;
    std::vector<Row> rows_;
    std::vector<std::int64_t> padded_, embedding_, sampling_;
};

}  // namespace triosim::serving
