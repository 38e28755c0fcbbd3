// Steps of a replica as it counts them, wherever its requests lie: _decoded and begins of triosim/serving/replica.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "serving_cache.hpp"
#include "serving_samples.hpp"
#include "serving_times.hpp"

namespace triosim::serving {

constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t most_time = never - 1023;  // triosim.core.units.MOST_SUM

// When a step ends.
inline std::int64_t sum(std::int64_t now, std::int64_t ticks) {
    std::int64_t out = 0;
    if (ticks < 0 || __builtin_add_overflow(now, ticks, &out) || out > most_time) throw GiveUp("too long");
    return out;
}

class CountedSteps {
public:
    CountedSteps(Times& times, Samples gaps) : gaps(std::move(gaps)), times_(times) {}

    Samples gaps;
    std::int64_t outstanding = 0, steps = 0, busy = 0, tokens = 0, padding = 0;
    bool in_flight = false;

protected:
    // Steps of the same decodes while each ends before the horizon, nobody is done and blocks suffice; when the step
    // that follows begins.  spare: free blocks of so many tokens beside one for each request, as policies may want that
    // whether or not it is taken.  Requests: last_token(request), left(request), the tokens before its last one, and
    // go_on(request, steps, now).
    template <class Batch, class Requests>
    std::int64_t decoded(
        const Batch& batch, const Requests& requests, std::int64_t spare, std::int64_t size, std::int64_t now,
        std::int64_t horizon) {
        const auto count = static_cast<std::int64_t>(batch.size());
        if (spare < count) return now;
        std::int64_t most = never;
        for (const auto& [request, _] : batch) {
            if (requests.last_token(request) != now) return now;
            most = std::min(most, requests.left(request));
        }
        if (spare / count < most) most = std::min(most, spare / count * size);
        const std::int64_t begin = now;
        std::int64_t played = 0;
        for (; played < most; ++played) {
            const std::int64_t ticks = times_.decodes(count, shape_.context);
            const std::int64_t end = sum(now, ticks);
            if (end >= horizon) break;
            now = end;
            gaps.add(ticks, count);
            shape_.context += count;
        }
        if (!played) return now;
        busy += now - begin;
        steps += played;
        tokens += played * count;
        padding += played * (times_.padded(count) - count);
        for (const auto& [request, _] : batch) requests.go_on(request, played, now);
        return now;
    }

    // The step of so many requests begins; when it ends.  ahead: whether the host turned to it when the one before began,
    // so that kernels of prompts were launched while that decoded.
    std::int64_t begun(std::int64_t count, std::int64_t now, bool ahead) {
        const bool alone = shape_.decodes == count;
        const std::int64_t before = ahead && now == last_end_ ? decoded_for_ : 0;
        const std::int64_t ticks = alone ? times_.decodes(count, shape_.context) : times_.ticks(shape_, before);
        decoded_for_ = shape_.chunks.empty() ? ticks : 0;
        busy += ticks;
        ++steps;
        tokens += shape_.tokens;
        padding += times_.computed(shape_) - shape_.tokens;
        in_flight = true;
        return last_end_ = sum(now, ticks);
    }

    Times& times_;
    Shape shape_;

private:
    std::int64_t last_end_ = -1, decoded_for_ = 0;
};

}  // namespace triosim::serving
