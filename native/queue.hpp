// The queue of what happens when: a monotone radix heap on ticks (Ahuja, Mehlhorn, Orlin, Tarjan, "Faster algorithms
// for the shortest path problem", J. ACM 37(2), 1990).  Ticks never go back, so an event lies in the bucket of the
// highest bit in which its tick differs from the present one; bucket 0 is all that happens at the present instant.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace triosim {

using Tick = std::int64_t;  // picoseconds

constexpr Tick NEVER = -1;
constexpr Tick BEYOND = std::numeric_limits<Tick>::max();  // later than can be counted

// Sums of durations that are compared with what can be counted; a bit less than that, for they are rounded.
constexpr double MOST_TICKS = 9.2e18;
constexpr const char* TOO_LONG = "all durations together are longer than can be counted";

// How long durations are one after another, whatever their signs.
inline double all_together(std::span<const std::int64_t> ticks) {
    double sum = 0;
    for (const std::int64_t each : ticks) sum += std::abs(static_cast<double>(each));
    return sum;
}

struct Event {
    Tick tick;
    std::uint64_t what;  // any value that the user of the queue understands
};

class RadixHeap {
public:
    // `tick` must not lie before the present one.
    void push(Tick tick, std::uint64_t what) {
        const unsigned bucket = bucket_of(tick);
        buckets_[bucket].push_back({tick, what});
        filled_ |= std::uint64_t{1} << bucket;
    }

    // Go to the next tick at which something happens; false if nothing does any more.
    bool advance() {
        clear_present();
        if (filled_ == 0) return false;
        const auto lowest = static_cast<unsigned>(std::countr_zero(filled_));
        auto& from = buckets_[lowest];
        const auto [first, last] = std::ranges::minmax(from, {}, &Event::tick);
        now_ = first.tick;
        if (first.tick == last.tick) {
            buckets_[0].swap(from);
            filled_ |= 1;
        } else {
            for (const Event& event : from) push(event.tick, event.what);
            from.clear();
        }
        filled_ &= ~(std::uint64_t{1} << lowest);
        return true;
    }

    Tick now() const { return now_; }

    // All that happens now.  What is pushed for now is appended.
    const std::vector<Event>& present() const { return buckets_[0]; }

    void clear_present() {
        buckets_[0].clear();
        filled_ &= ~std::uint64_t{1};
    }

private:
    unsigned bucket_of(Tick tick) const {
        return static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(tick ^ now_)));
    }

    std::array<std::vector<Event>, 64> buckets_;
    std::uint64_t filled_ = 0;  // bit b: bucket b is not empty
    Tick now_ = 0;
};

}  // namespace triosim
