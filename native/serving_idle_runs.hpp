// Idle blocks in runs, in the order in which they are given up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace triosim::serving {

// Runs of blocks that lie idle, the one that is given up first at the front; of a run its last block goes first.
class IdleRuns {
public:
    static constexpr std::int32_t none = -1;
    static constexpr std::int64_t unnamed = 0;  // number of runs that nobody will ask for

    struct Run {
        std::int32_t before = none, after = none;
        std::int64_t count = 0, number = unnamed;
    };

    // fresh: blocks that were never taken, which go before all others.
    explicit IdleRuns(std::int64_t fresh) : fresh_(fresh) {}

    Run& operator[](std::int32_t at) { return runs_[at]; }
    const Run& operator[](std::int32_t at) const { return runs_[at]; }

    std::int32_t push_back(std::int64_t count, std::int64_t number) { return insert(count, number, last_, none); }

    // Blocks that nobody will ask for, before or after all others.
    void push_unnamed(std::int64_t count, bool front) {
        if (!count) return;
        const std::int32_t beside = front ? first_ : last_;
        if (beside != none && runs_[beside].number == unnamed) {
            runs_[beside].count += count;
        } else {
            insert(count, unnamed, front ? none : last_, front ? first_ : none);
        }
    }

    // Take so many; told of every run from which some were taken, and how many, before it is removed if it is empty.
    template <class Told>
    void take(std::int64_t more, Told told) {
        const std::int64_t fresh = std::min(more, fresh_);
        fresh_ -= fresh;
        for (more -= fresh; more;) {
            const std::int32_t at = first_;
            const std::int64_t taken = std::min(more, runs_[at].count);
            runs_[at].count -= taken;
            more -= taken;
            told(at, taken);
            if (!runs_[at].count) remove(at);
        }
    }

    void remove(std::int32_t at) {
        const Run run = runs_[at];
        (run.before == none ? first_ : runs_[run.before].after) = run.after;
        (run.after == none ? last_ : runs_[run.after].before) = run.before;
        runs_[at].number = unnamed;
        spare_.push_back(at);
    }

private:
    std::int32_t insert(std::int64_t count, std::int64_t number, std::int32_t before, std::int32_t after) {
        if (spare_.empty()) {
            spare_.push_back(static_cast<std::int32_t>(runs_.size()));
            runs_.emplace_back();
        }
        const std::int32_t at = spare_.back();
        spare_.pop_back();
        runs_[at] = {before, after, count, number};
        (before == none ? first_ : runs_[before].after) = at;
        (after == none ? last_ : runs_[after].before) = at;
        return at;
    }

    std::vector<Run> runs_;
    std::vector<std::int32_t> spare_;
    std::int32_t first_ = none, last_ = none;
    std::int64_t fresh_;
};

}  // namespace triosim::serving
