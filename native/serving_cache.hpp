// The KV cache of a replica: the rules of triosim/serving/kv_cache.py, which says why they are so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "serving_request.hpp"

namespace triosim::serving {

// What a run cannot go on from: Python plays it again and says what is wrong.
struct GiveUp : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Blocks that are free or held; what lies in those that are free is for caches that find it (PrefixCache).
class Cache {
public:
    // windowed: groups of layers that see so many positions, window.  states: blocks of a request beside its tokens'.
    Cache(std::int64_t blocks, std::int64_t size, std::int64_t windowed, std::int64_t window, std::int64_t states,
          bool reuses = false)
        : blocks(blocks), size(size), windowed(windowed), window(window), states(states), reuses(reuses), free(blocks) {}
    virtual ~Cache() = default;

    const std::int64_t blocks, size, windowed, window, states;
    const bool reuses;
    std::int64_t free, peak = 0, hit_tokens = 0, looked_up_tokens = 0;

    std::int64_t of(std::int64_t tokens) const { return (tokens + size - 1) / size; }
    // Tokens of a request that all blocks hold.
    std::int64_t most_tokens() const { return std::max(blocks - states, std::int64_t{0}) / (1 + windowed) * size; }
    std::int64_t needs(const Request& request, std::int64_t tokens) const { return of(tokens) - request.blocks; }

    bool hold(Request& request, std::int64_t tokens) {
        if (windowed) give_back(request);
        const std::int64_t more = needs(request, tokens);
        if (more <= 0) return true;
        const std::int64_t taken = more + more * windowed + (request.blocks ? 0 : states);
        if (taken > free) return false;
        free -= taken;
        request.blocks += more;
        peak = std::max(peak, blocks - free);
        if (reuses) take(request, more);
        return true;
    }

    virtual std::int64_t match(const Request&) const { return 0; }

    virtual bool start(Request& request, std::int64_t tokens) { return hold(request, tokens); }

    virtual void store(Request&) {}

    virtual void release(Request& request) {
        free += request.blocks + windowed * (request.blocks - request.behind) + (request.blocks ? states : 0);
        request.blocks = request.behind = request.stored = 0;
    }

protected:
    // Which blocks a request is given, so many of each group that sees all positions.
    virtual void take(Request&, std::int64_t) {}

    // The first so many blocks that layers with a window hold of a request are free.
    virtual void returned(Request&, std::int64_t count) { free += count; }

    std::int64_t behind_of(std::int64_t computed) const {
        return std::max(computed - window + 1, std::int64_t{0}) / size;
    }

private:
    void give_back(Request& request) {
        const std::int64_t behind = std::min(behind_of(request.computed), request.blocks);
        if (behind <= request.behind) return;
        const std::int64_t gone = (behind - request.behind) * windowed;
        request.behind = behind;
        returned(request, gone);
    }
};

// Blocks whose content is kept after use until the block is needed.
class PrefixCache : public Cache {
public:
    PrefixCache(std::int64_t blocks, std::int64_t size, std::int64_t windowed, std::int64_t window)
        : Cache(blocks, size, windowed, window, 0, true) {}

    std::int64_t match(const Request& request) const override { return matching(request) * size; }

    bool start(Request& request, std::int64_t tokens) override {
        if (!begin(request, tokens)) return false;
        request.computed = request.cached = request.stored * size;
        hit_tokens += request.computed;
        looked_up_tokens += std::min(request.known, request.keys * size);
        return true;
    }

    void store(Request& request) override {
        const std::int64_t done = std::min(request.computed / size, request.keys);
        if (done <= request.stored) return;
        store_up_to(request, done);
        request.stored = done;
    }

protected:
    static constexpr std::int32_t none = -1;

    // Blocks of the longest prefix that is there; at least one token of what is known stays to be computed.
    virtual std::int64_t matching(const Request& request) const = 0;

    // Share what is found, and hold the rest.
    virtual bool begin(Request& request, std::int64_t tokens) = 0;

    // Blocks from request.stored to the given one have been computed.
    virtual void store_up_to(Request& request, std::int64_t done) = 0;

    std::int64_t most(const Request& request) const { return std::min((request.known - 1) / size, request.keys); }
};

}  // namespace triosim::serving
