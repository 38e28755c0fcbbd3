// Prefixes where no request finds what another has computed: only who gave way finds what it had.
#pragma once

#include <cstdint>

#include "serving_cache.hpp"
#include "serving_idle_runs.hpp"

namespace triosim::serving {

// Blocks are counted: what a request lets go is one run.
class OwnCache final : public PrefixCache {
public:
    OwnCache(std::int64_t blocks, std::int64_t size, std::int64_t windowed, std::int64_t window, bool radix)
        : PrefixCache(blocks, size, windowed, window), radix_(radix), idle_(blocks) {}

    void release(Request& request) override {
        const std::int64_t without = radix_ ? request.blocks - request.stored : 0;  // a key: given up before all others
        const std::int64_t kept = request.blocks - without;
        idle_.push_unnamed(without, true);
        request.run = kept ? idle_.push_back(kept, ++frees_) : none;
        request.let_go = frees_;
        request.keyed = request.stored;
        const std::int64_t seen = windowed * (request.blocks - request.behind);
        idle_.push_unnamed(seen, radix_);
        free += request.blocks + seen;
        request.blocks = request.behind = request.stored = 0;
    }

protected:
    std::int64_t matching(const Request& request) const override { return std::min(most(request), left(request)); }

    bool begin(Request& request, std::int64_t tokens) override {
        const std::int64_t found = matching(request);
        const std::int64_t more = std::max(of(tokens) - found, std::int64_t{0});
        const std::int64_t behind = windowed ? std::min(behind_of(found * size), found) : 0;
        const std::int64_t own = windowed * (found - behind);
        if (more + more * windowed + own + found > free) return false;
        if (found != left(request)) throw GiveUp("a request that has computed more than it knows");
        if (found) {
            IdleRuns::Run& run = idle_[request.run];
            run.count -= found;
            run.number = IdleRuns::unnamed;  // nobody asks for the rest
            if (!run.count) idle_.remove(request.run);
        }
        free -= found + own;
        take_idle(own);
        request.run = none;
        request.behind = behind;
        request.blocks = request.stored = found;
        return hold(request, tokens);
    }

    void store_up_to(Request&, std::int64_t) override {}

    void take(Request&, std::int64_t more) override { take_idle(more + more * windowed); }

    void returned(Request&, std::int64_t count) override {
        free += count;
        idle_.push_unnamed(count, radix_);
    }

private:
    // Blocks with a key that are left of what a request let go.
    std::int64_t left(const Request& request) const {
        if (request.run == none || idle_[request.run].number != request.let_go) return 0;
        return std::min(idle_[request.run].count, request.keyed);
    }

    void take_idle(std::int64_t count) {
        idle_.take(count, [](std::int32_t, std::int64_t) {});
    }

    const bool radix_;
    IdleRuns idle_;
    std::int64_t frees_ = 0;
};

}  // namespace triosim::serving
