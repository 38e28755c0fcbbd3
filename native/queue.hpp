// The queue of what happens when: a monotone radix heap on ticks (Ahuja, Mehlhorn, Orlin, Tarjan, "Faster algorithms
// for the shortest path problem", J. ACM 37(2), 1990), here in base 16.  Ticks never go back, so an event lies in the
// bucket of the highest digit in which its tick differs from the present one, and of what that digit is.  When a bucket
// is next, its events move to lower digits; each moves about as often as the number of events has digits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace triosim {

using Tick = std::int64_t;  // picoseconds

constexpr Tick NEVER = -1;
constexpr Tick BEYOND = std::numeric_limits<Tick>::max();  // later than can be counted

struct Event {
    Tick tick;
    std::uint64_t what;  // any value that the user of the queue understands
};

class RadixHeap {
public:
    // `tick` must not lie before the present one.
    void push(Tick tick, std::uint64_t what) {
        const auto differs = static_cast<std::uint64_t>(tick ^ now_);
        if (differs == 0) return present_.push_back({tick, what});
        const auto level = static_cast<std::size_t>(std::bit_width(differs) - 1) / BITS;
        const auto digit = static_cast<std::size_t>(tick >> (BITS * level)) & (BASE - 1);
        buckets_[level * BASE + digit].push_back({tick, what});
        levels_ |= 1U << level;
        digits_[level] |= 1U << digit;
    }

    // Go to the next tick at which something happens; false if nothing does any more.
    bool advance() {
        present_.clear();
        if (levels_ == 0) return false;
        const auto level = static_cast<std::size_t>(std::countr_zero(levels_));
        const auto digit = static_cast<std::size_t>(std::countr_zero(digits_[level]));
        digits_[level] &= digits_[level] - 1;
        if (digits_[level] == 0) levels_ &= levels_ - 1;
        auto& next = buckets_[level * BASE + digit];
        const auto [first, last] = std::ranges::minmax(next, {}, &Event::tick);
        now_ = first.tick;
        if (first.tick == last.tick) {
            present_.swap(next);
            return true;
        }
        for (const Event& event : next) push(event.tick, event.what);  // all to lower levels
        next.clear();
        return true;
    }

    Tick now() const { return now_; }

    // All that happens now.  What is pushed for now is appended.
    const std::vector<Event>& present() const { return present_; }
    void clear_present() { present_.clear(); }

private:
    static constexpr std::size_t BITS = 4, BASE = 1 << BITS, LEVELS = 64 / BITS;

    std::vector<Event> present_;
    std::array<std::vector<Event>, LEVELS * BASE> buckets_;
    std::uint32_t levels_ = 0;                     // bit l: something is in a bucket of level l
    std::array<std::uint32_t, LEVELS> digits_{};  // bit d: and in that of digit d
    Tick now_ = 0;
};

}  // namespace triosim
