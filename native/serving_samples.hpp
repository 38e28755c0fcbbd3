// Counts of whole numbers, exact while few differ: the rules of triosim/serving/quantiles.py.
#pragma once

#include <cmath>

#include "serving_cache.hpp"
#include "serving_key_table.hpp"

namespace triosim::serving {

class Samples {
public:
    Samples(std::size_t most_exact, double ratio) : most_exact_(most_exact), ratio_(ratio) {}

    bool exact = true;
    std::int64_t count = 0, least = 0, most = 0;
    unsigned __int128 total = 0;

    void add(std::int64_t value, std::int64_t times) {
        if (times <= 0) return;
        if (!count || value < least) least = value;
        most = std::max(most, value);
        count += times;
        total += static_cast<unsigned __int128>(value) * static_cast<std::uint64_t>(times);
        counts_.emplace(exact ? value : bucket(value), 0) += times;
        if (exact && counts_.size() > most_exact_) merge();
    }

    const KeyTable<std::int64_t>& counts() const { return counts_; }

private:
    std::int64_t bucket(std::int64_t value) const {
        if (value <= 1) return value - 1;
        return static_cast<std::int64_t>(std::ceil(std::log(static_cast<double>(value)) / ratio_));
    }
    void merge() {
        KeyTable<std::int64_t> merged;
        counts_.each([&](std::int64_t value, std::int64_t times) { merged.emplace(bucket(value), 0) += times; });
        counts_ = std::move(merged);
        exact = false;
    }

    const std::size_t most_exact_;
    const double ratio_;
    KeyTable<std::int64_t> counts_;
};

}  // namespace triosim::serving
