// Allocations of the passes of a schedule, in order; what each kind of pass allocates and frees is given once.
// Where the schedule repeats and the allocator is as it was some turns before, nothing new can happen until it ends to
// repeat: those turns are left out.  The meaning of the columns is in triosim/memory/allocation_order.py, which plays
// the same in Python.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "caching_allocator.hpp"

namespace triosim {

struct AllocationPasses {
    std::span<const std::int64_t> resident;         // sizes of what is there before
    std::span<const std::int64_t> ends;             // of the events of each kind of pass, from 0
    std::span<const std::int8_t> what;              // codes below
    std::span<const std::int32_t> which;            // block of the iteration, or row of the micro-batch
    std::span<const std::int64_t> size;             // bytes
    std::span<const std::int32_t> order;            // kinds of the passes that are run
    std::span<const std::int32_t> micro_batch;      // of each
};

class AllocationPlayer {
public:
    enum What : std::int8_t { allocate_own, free_own, allocate, free_first, allocate_if_absent, free_if_present };

    explicit AllocationPlayer(const AllocationPasses& of) : of_(of), allocator_(sizes(of)) {}

    // Whether all of it can be played; bytes are reserved().
    bool play() {
        if (!consistent()) return false;
        for (const std::int64_t size : of_.resident) {
            if (!counted(size)) return false;
            if (size > 0) allocator_.allocate(allocator_.request(size));
        }
        requests_.reserve(of_.size.size());
        for (const std::int64_t size : of_.size) requests_.push_back(allocator_.request(size));
        const Turns turns = repeating();
        std::size_t next = turns.begin, seen = 0, saved_at = 0;
        std::vector<Held> saved;
        std::int64_t saved_reserved = -1, saved_room = 0;
        const std::size_t count = of_.order.size();
        for (std::size_t at = 0; at < count;) {
            if (turns.period && at == next && at + turns.period <= turns.end) {
                next += turns.period;
                if (allocator_.reserved() == saved_reserved && is_state(saved, of_.micro_batch[at])) {
                    const std::size_t same = at - saved_at, often = (turns.end - at) / same;
                    const std::int64_t taken = saved_room - room_;
                    if (often && taken > 0 && static_cast<std::int64_t>(often) > room_ / taken) return false;
                    room_ -= static_cast<std::int64_t>(often) * taken;
                    const std::int64_t shift =
                        static_cast<std::int64_t>(often * (same / turns.period)) * turns.shift;
                    std::map<std::int64_t, Own> moved;
                    for (auto& [number, own] : own_) moved.emplace(number + shift, std::move(own));
                    own_ = std::move(moved);
                    at += often * same;
                    next = count;
                    continue;
                }
                if ((seen & (seen - 1)) == 0) {
                    saved = state(of_.micro_batch[at]);
                    saved_reserved = allocator_.reserved();
                    saved_room = room_;
                    saved_at = at;
                }
                ++seen;
            }
            if (!run(of_.order[at], of_.micro_batch[at])) return false;
            ++at;
        }
        return true;
    }

    std::int64_t reserved() const { return allocator_.reserved(); }

private:
    static constexpr std::int32_t none = -1;

    using Held = std::array<std::int64_t, 4>;  // whose, which, address, bytes

    struct Own {  // blocks of a micro-batch
        std::vector<std::int32_t> held;
        std::size_t count = 0;
    };
    struct Turns {  // passes [begin, end) go on as those a period before, with later micro-batches
        std::size_t begin = 0, end = 0, period = 0;
        std::int64_t shift = 0;
    };

    static std::vector<std::int64_t> sizes(const AllocationPasses& of) {
        std::vector<std::int64_t> found(of.resident.begin(), of.resident.end());
        found.insert(found.end(), of.size.begin(), of.size.end());
        return found;
    }

    bool consistent() {
        const std::size_t events = of_.what.size();
        if (of_.which.size() != events || of_.size.size() != events || of_.order.size() != of_.micro_batch.size() ||
            of_.ends.empty() || of_.ends.front() != 0 || of_.ends.back() != static_cast<std::int64_t>(events) ||
            !std::ranges::is_sorted(of_.ends)) {
            return false;
        }
        const auto kinds = static_cast<std::int64_t>(of_.ends.size()) - 1;
        for (const std::int32_t kind : of_.order) {
            if (kind < 0 || kind >= kinds) return false;
        }
        std::int32_t blocks = 0;
        for (std::size_t at = 0; at < events; ++at) {
            const std::int32_t which = of_.which[at];
            if (of_.what[at] < 0 || of_.what[at] > free_if_present || which < 0 || of_.size[at] < 0 ||
                static_cast<std::size_t>(which) >= events) {
                return false;
            }
            auto& most = of_.what[at] <= free_own ? rows_ : blocks;
            most = std::max(most, which + 1);
        }
        first_.assign(blocks, none);
        second_.assign(blocks, none);
        present_.assign(blocks, false);
        return true;
    }

    bool counted(std::int64_t size) {
        constexpr std::int64_t around = std::int64_t{32} << 20;  // a segment is rounded up
        if (size < 0 || size > room_ - around) return false;
        room_ -= size + around;
        return true;
    }

    bool run(std::int32_t kind, std::int32_t micro_batch) {
        const auto begin = static_cast<std::size_t>(of_.ends[kind]), end = static_cast<std::size_t>(of_.ends[kind + 1]);
        for (std::size_t at = begin; at < end; ++at) {
            if (of_.what[at] >= allocate_if_absent) present_[of_.which[at]] = first_[of_.which[at]] != none;
        }
        Own* own = nullptr;
        for (std::size_t at = begin; at < end; ++at) {
            const std::int32_t which = of_.which[at];
            if (of_.what[at] <= free_own) {
                if (!own) {
                    own = &own_[micro_batch];
                    own->held.resize(rows_, none);
                }
                std::int32_t& held = own->held[which];
                if ((held == none) != (of_.what[at] == allocate_own)) return false;
                if (of_.what[at] == allocate_own) {
                    if (!counted(of_.size[at])) return false;
                    held = allocator_.allocate(requests_[at]);
                    ++own->count;
                } else {
                    allocator_.release(held);
                    held = none;
                    --own->count;
                }
                continue;
            }
            switch (of_.what[at]) {
                case allocate_if_absent:
                    if (present_[which]) break;
                    [[fallthrough]];
                case allocate:
                    if (second_[which] != none || !counted(of_.size[at])) return false;
                    (first_[which] == none ? first_ : second_)[which] = allocator_.allocate(requests_[at]);
                    break;
                case free_if_present:
                    if (!present_[which]) break;
                    [[fallthrough]];
                default:
                    if (first_[which] == none) return false;
                    allocator_.release(first_[which]);
                    first_[which] = second_[which];
                    second_[which] = none;
            }
        }
        if (own && !own->count) own_.erase(micro_batch);
        return true;
    }

    // Calls with each block that is held, micro-batches counted from one, until it answers no; whether it never does.
    template <class Goes>
    bool each_held(std::int64_t from, Goes goes) const {
        const auto shown = [&](std::int64_t who, std::size_t which, std::int32_t held) {
            return held == none ||
                   goes(Held{who, static_cast<std::int64_t>(which), allocator_.address(held), allocator_.extent(held)});
        };
        for (std::size_t block = 0; block < first_.size(); ++block) {
            if (!shown(-1, block, first_[block]) || !shown(-2, block, second_[block])) return false;
        }
        for (const auto& [number, own] : own_) {
            for (std::size_t row = 0; row < own.held.size(); ++row) {
                if (!shown(number - from, row, own.held[row])) return false;
            }
        }
        return true;
    }

    std::vector<Held> state(std::int64_t from) const {
        std::vector<Held> found;
        each_held(from, [&](const Held& held) { return found.push_back(held), true; });
        return found;
    }

    // Whether what is held is where it was, which most turns end to be at the first blocks of a micro-batch.
    bool is_state(const std::vector<Held>& saved, std::int64_t from) const {
        auto next = saved.begin();
        return each_held(from, [&](const Held& held) { return next != saved.end() && *next++ == held; }) &&
               next == saved.end();
    }

    // The shortest turns that repeat about the middle of the schedule, if there are four of them.
    Turns repeating() const {
        const std::size_t count = of_.order.size(), middle = count / 2;
        for (std::size_t period = 1; period <= middle / 4; ++period) {
            const std::int64_t shift = std::int64_t{of_.micro_batch[middle]} - of_.micro_batch[middle - period];
            const auto repeats = [&](std::size_t at) {
                return of_.order[at] == of_.order[at - period] &&
                       std::int64_t{of_.micro_batch[at]} - of_.micro_batch[at - period] == shift;
            };
            if (shift <= 0 || !repeats(middle)) continue;
            std::size_t begin = middle, end = middle + 1;
            while (begin > period && repeats(begin - 1)) --begin;
            while (end < count && repeats(end)) ++end;
            if (end - begin >= 4 * period) return {begin, end, period, shift};
        }
        return {};
    }

    const AllocationPasses& of_;
    CachingAllocator allocator_;
    std::vector<CachingAllocator::Request> requests_;  // of each event
    std::map<std::int64_t, Own> own_;
    std::vector<std::int32_t> first_, second_;  // blocks of the iteration; a second one is allocated before the first goes
    std::vector<bool> present_;                 // when the pass began
    std::int32_t rows_ = 0;
    std::int64_t room_ = std::int64_t{1} << 59;
};

}  // namespace triosim
