// A request while it is served; see triosim/serving/requests.py for what is known and computed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace triosim::serving {

struct Request {
    std::int64_t row = 0, number = 0, arrived = 0;
    std::int64_t prompt = 0, end = 0;
    std::int64_t known = 0, computed = 0, prefill = 0;
    std::int64_t blocks = 0, stored = 0, cached = 0;
    std::int64_t behind = 0;  // of the blocks, from the first, that layers with a window have given back
    std::int64_t keys = 0, shared = 0;  // full blocks with a key, and how many of these come from the prompt's hashes
    std::int64_t scheduled = -1, first_token = -1, last_end = -1, last_token = -1;
    std::int64_t waited = 0, restarts = 0;
    std::int32_t run = -1;  // idle blocks that it let go when it gave way, as long as ``let_go`` is that run's number
    std::int64_t let_go = 0, keyed = 0;  // which run that was, and how many of its blocks, from the first, had a key
    std::vector<std::int32_t> held, held_windowed;  // blocks, or pieces of text, by number
    struct _object* python = nullptr;  // its object, where Python has the policy

    std::int64_t lacks() const { return known - computed; }
    std::int64_t remaining() const { return end - known; }
    bool decoding() const { return computed >= prefill; }
};

using Batch = std::vector<std::pair<Request*, std::int64_t>>;

// Keys of full blocks, as triosim.serving.fleet.block_keys makes them.
struct BlockKeys {
    std::span<const std::int64_t> values, offsets;  // hashes of all prompts, and where each request's begin; may be empty
    std::int64_t covers = 1, size = 1;              // tokens of a hash, and of a block
    bool outputs = false;                           // whether hashes go on over the output

    std::int64_t shared(const Request& request) const {
        if (offsets.empty()) return 0;
        const std::int64_t hashes = offsets[request.row + 1] - offsets[request.row];
        const std::int64_t full = (outputs ? request.end : request.prompt) / size;
        return covers >= size ? std::min(full, hashes * (covers / size)) : std::min(full, hashes / (size / covers));
    }

    std::int64_t key(const Request& request, std::int64_t place) const {
        return piece(request, place) + place % per();
    }

    // Blocks under one hash, side by side in a piece of text.
    std::int64_t per() const { return std::max(covers / size, std::int64_t{1}); }

    // The key of the piece in which a place lies: that of its first block.
    std::int64_t piece(const Request& request, std::int64_t place) const {
        const std::int64_t number = place / per();
        if (place >= request.shared) return -(request.row + 1) * (std::int64_t{1} << 32) + number * per();
        const std::int64_t* hashes = values.data() + offsets[request.row];
        return covers < size ? hashes[(place + 1) * (size / covers) - 1] : hashes[number] * per();
    }
};

}  // namespace triosim::serving
