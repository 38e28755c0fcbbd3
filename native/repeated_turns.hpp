// Turns that repeat: a pipeline in its steady state runs the same casts again and again, for other micro-batches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "meeting_columns.hpp"

namespace triosim {

// Which turns of each worker are like those a period later, but for what is added to their numbers and releases.  The
// period is that of the half of its turns in the middle.
class RepeatedTurns {
public:
    std::int64_t shift = 0;           // what is added to numbers in a period, 0 where nothing repeats
    std::vector<std::int64_t> turns;  // of a period, of each worker
    std::vector<std::int64_t> later;  // what is added to releases in a period, of each worker
    std::vector<std::int64_t> until;  // of each turn: the first from it on that is not like the one a period later

    explicit RepeatedTurns(const MeetingTurns& t) : until(t.cast.size()), t_(t) {
        const std::size_t workers = t.first.size() - 1;
        for (std::size_t w = 0; w < workers; ++w) {
            const auto period = shortest(w);
            if (!period) {
                shift = 0;
                return;
            }
            const auto middle = (t.first[w] + t.first[w + 1] - period) / 2;
            shift = t.number[middle + period] - t.number[middle];
            turns.push_back(period);
            later.push_back(t.release[middle + period] - t.release[middle]);
            for (auto i = t.first[w + 1] - 1; i >= t.first[w]; --i) {
                const bool goes_on = i + period < t.first[w + 1] && like(i, period) &&
                                     t.release[i + period] - t.release[i] == later.back();
                until[i] = goes_on ? until[i + 1] : i;
            }
        }
    }

private:
    const MeetingTurns& t_;

    bool like(std::int64_t i, std::int64_t period) const {
        return t_.cast[i] == t_.cast[i + period] && t_.number[i + period] - t_.number[i] == shift;
    }

    // The shortest period of the turns in the middle of a worker's with the shift that was found before, 0 for none.
    std::int64_t shortest(std::size_t w) {
        const auto first = t_.first[w], count = t_.first[w + 1] - first;
        const bool free = w == 0;
        const auto begin = first + count / 4, end = first + count - count / 4;
        for (std::int64_t period = 1; 8 * period <= count; ++period) {
            if (free) shift = t_.number[begin + period] - t_.number[begin];
            if (shift <= 0) continue;
            auto i = begin;
            while (i + period < end && like(i, period)) ++i;
            if (i + period == end) return period;
        }
        return 0;
    }
};

}  // namespace triosim
