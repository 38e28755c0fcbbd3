// Best fit over free blocks that are split and merged, as in PyTorch's caching allocator.
// The rules and their sources are in triosim/memory/footprint.py, which plays the same in Python.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

namespace triosim {

// Whether every event allocates a block that is not held or frees one that is, and all that is allocated, one after
// another, can be counted.
inline bool possible(std::span<const std::int64_t> sizes, std::span<const std::int64_t> events) {
    constexpr std::int64_t most = std::int64_t{1} << 59, around = std::int64_t{32} << 20;  // a segment is rounded up
    constexpr std::size_t blocks = std::size_t{1} << 30;
    const auto count = static_cast<std::int64_t>(sizes.size());
    if (sizes.size() >= blocks || std::ranges::any_of(sizes, [](auto size) { return size < 0; })) return false;
    std::vector<bool> held(sizes.size(), false);
    std::int64_t room = most;
    for (const std::int64_t event : events) {
        if (event < 0 || event >= 2 * count) return false;
        const bool frees = event >= count;
        const auto block = static_cast<std::size_t>(frees ? event - count : event);
        if (held[block] != frees) return false;
        held[block] = !frees;
        if (frees) continue;
        if (sizes[block] > room - around) return false;
        room -= sizes[block] + around;
    }
    return true;
}

class CachingAllocator {
public:
    static constexpr std::int64_t round_bytes = 512;
    static constexpr std::int64_t small_bytes = std::int64_t{1} << 20;

    // Event i < sizes.size() allocates block i; event sizes.size() + i frees it.  Returns the bytes of all segments.
    std::int64_t play(std::span<const std::int64_t> sizes, std::span<const std::int64_t> events) {
        std::vector<std::int32_t> held(sizes.size(), none);
        const auto count = static_cast<std::int64_t>(sizes.size());
        for (const std::int64_t event : events) {
            if (sizes[event % count] == 0) continue;  // an empty tensor takes no block
            if (event < count) {
                held[event] = allocate(sizes[event]);
            } else {
                release(held[event - count]);
            }
        }
        return reserved_;
    }

    // The block that is allocated.
    std::int32_t allocate(std::int64_t size) {
        const bool small = size <= small_bytes;
        auto& pool = free_[small];
        const auto found = std::ranges::lower_bound(pool, Entry{size, -1, none});
        std::int32_t at;
        if (found != pool.end()) {
            at = std::get<2>(*found);
            pool.erase(found);
            blocks_[at].free = false;
        } else {
            const std::int64_t bytes = segment(size);
            at = add({bytes, top_, none, none, small, false});
            top_ += bytes;
            reserved_ += bytes;
        }
        const std::int64_t rest = blocks_[at].size - size;
        if (small ? rest >= round_bytes : rest > small_bytes) {
            const std::int32_t right = blocks_[at].right;
            const std::int32_t split = add({rest, blocks_[at].address + size, at, right, small, false});
            if (right != none) blocks_[right].left = split;
            blocks_[at].right = split;
            blocks_[at].size = size;
            insert(split);
        }
        return at;
    }

    void release(std::int32_t at) {
        if (const std::int32_t right = blocks_[at].right; right != none && blocks_[right].free) {
            remove(right);
            absorb(at, right);
        }
        if (const std::int32_t left = blocks_[at].left; left != none && blocks_[left].free) {
            remove(left);
            absorb(left, at);
            at = left;
        }
        insert(at);
    }

    std::int64_t reserved() const { return reserved_; }
    std::int64_t address(std::int32_t at) const { return blocks_[at].address; }
    std::int64_t extent(std::int32_t at) const { return blocks_[at].size; }

private:
    static constexpr std::int32_t none = -1;

    struct Block {
        std::int64_t size, address;
        std::int32_t left, right;  // neighbours in its segment
        bool small, free;
    };
    using Entry = std::tuple<std::int64_t, std::int64_t, std::int32_t>;  // size, address, block

    static std::int64_t segment(std::int64_t size) {
        constexpr std::int64_t small = std::int64_t{2} << 20, medium = std::int64_t{20} << 20;
        if (size <= small_bytes) return small;
        if (size < std::int64_t{10} << 20) return medium;
        return (size + small - 1) / small * small;
    }

    std::int32_t add(Block block) {
        if (unused_.empty()) {
            blocks_.push_back(block);
            return static_cast<std::int32_t>(blocks_.size()) - 1;
        }
        const std::int32_t at = unused_.back();
        unused_.pop_back();
        blocks_[at] = block;
        return at;
    }

    void insert(std::int32_t at) {
        auto& pool = free_[blocks_[at].small];
        const Entry entry{blocks_[at].size, blocks_[at].address, at};
        pool.insert(std::ranges::lower_bound(pool, entry), entry);
        blocks_[at].free = true;
    }

    void remove(std::int32_t at) {
        auto& pool = free_[blocks_[at].small];
        pool.erase(std::ranges::lower_bound(pool, Entry{blocks_[at].size, blocks_[at].address, at}));
        blocks_[at].free = false;
    }

    // The block at `gone`, right of `at`, becomes part of it.
    void absorb(std::int32_t at, std::int32_t gone) {
        blocks_[at].size += blocks_[gone].size;
        const std::int32_t right = blocks_[gone].right;
        blocks_[at].right = right;
        if (right != none) blocks_[right].left = at;
        unused_.push_back(gone);
    }

    std::vector<Block> blocks_;
    std::vector<std::int32_t> unused_;
    std::array<std::vector<Entry>, 2> free_;  // large and small, sorted
    std::int64_t top_ = 0, reserved_ = 0;
};

}  // namespace triosim
