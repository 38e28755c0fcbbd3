// One pass through the operators of a stage; the rules are those of triosim/search/operator_chain.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace triosim {

// One pass through some operators of a step: when each is worked on, when its collectives are under way.
struct Chain {
    std::span<const std::int64_t> ticks, gap, issue;              // of each operator
    std::span<const std::int8_t> skips;                           // of each operator
    std::span<const std::int64_t> after_first, before_first, need_first;  // of each operator, and the end
    std::span<const std::int32_t> after, before, need;            // collectives
    std::span<const std::int64_t> call;                           // ticks of each collective
    std::int64_t call_issue;
    double slowdown;
};

struct Chained {
    std::vector<std::int64_t> begin, done, issued;       // of each row
    std::vector<std::int64_t> call_begin, call_end;      // of each collective, -1 for those that were not called
    std::int64_t host = 0, end = 0;
};

// No row of a pass is worked on, and none of its collectives under way, later than this, in ticks.
inline double lasts(const Chain& c, std::span<const std::int32_t> rows) {
    double longest = 0, sum = 0;
    for (const std::int64_t call : c.call) longest = std::max(longest, std::abs(static_cast<double>(call)));
    for (const std::int32_t number : rows) {
        const auto row = static_cast<std::size_t>(number);
        const auto called = c.after_first[row + 1] - c.after_first[row] + c.before_first[row + 1] - c.before_first[row];
        sum += std::abs(static_cast<double>(c.ticks[row])) * c.slowdown + std::abs(static_cast<double>(c.gap[row])) +
               std::abs(static_cast<double>(c.issue[row])) +
               static_cast<double>(called) * (longest + std::abs(static_cast<double>(c.call_issue)));
    }
    return sum;
}

// Plays rows twice, so that the second time follows upon one like it, and counts from its begin.
inline Chained chain(const Chain& c, std::span<const std::int32_t> rows, std::span<const std::int8_t> calls,
                     std::span<const std::int64_t> under_way, bool hosted) {
    Chained out;
    const std::size_t n = rows.size();
    out.begin.assign(n, 0);
    out.done.assign(n, 0);
    out.issued.assign(n, 0);
    out.call_begin.assign(c.call.size(), -1);
    out.call_end.assign(under_way.begin(), under_way.end());
    std::int64_t host = 0, free = 0, talks = 0, talked = 0;  // talks: the collective under way, until talked
    for (const auto until : under_way) talked = std::max(talked, until);
    const auto calling = [&](std::int32_t number, std::int64_t ready) {
        if (!calls[static_cast<std::size_t>(number)]) return;
        if (hosted) host += c.call_issue;
        const auto at = std::max({ready, talked, hosted ? host : 0});
        if (at > talked) talks = at;
        talked = at + c.call[static_cast<std::size_t>(number)];
        out.call_begin[static_cast<std::size_t>(number)] = at;
        out.call_end[static_cast<std::size_t>(number)] = talked;
    };
    for (std::size_t i = 0; i < n; ++i) {
        const auto row = static_cast<std::size_t>(rows[i]);
        for (auto k = c.before_first[row]; k < c.before_first[row + 1]; ++k) calling(c.before[k], free);
        std::int64_t ready = free;
        for (auto k = c.need_first[row]; k < c.need_first[row + 1]; ++k)
            ready = std::max(ready, out.call_end[static_cast<std::size_t>(c.need[k])]);
        if (!c.skips[row]) {
            if (hosted) {
                host += c.issue[row];
                ready = std::max(ready, host);
            }
            std::int64_t ticks = c.ticks[row];
            const auto from = std::max(talks, ready);
            if (c.slowdown > 1 && talked > from && ready + ticks > from) {
                const auto alone = from - ready;  // worked before the collective is under way
                const auto beside = static_cast<double>(talked - from) / c.slowdown;
                const auto rest = static_cast<double>(ticks - alone);
                ticks = alone + (rest <= beside ? static_cast<std::int64_t>(std::llround(rest * c.slowdown))
                                                : (talked - from) + static_cast<std::int64_t>(std::llround(rest - beside)));
            }
            out.begin[i] = ready;
            out.done[i] = ready + ticks;
            free = ready + ticks + c.gap[row];
        } else {
            free = std::max(free, ready);
            out.begin[i] = out.done[i] = free;
        }
        out.issued[i] = host;
        for (auto k = c.after_first[row]; k < c.after_first[row + 1]; ++k) calling(c.after[k], free);
    }
    out.host = host;
    out.end = free;
    return out;
}

}  // namespace triosim
