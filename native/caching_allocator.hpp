// Best fit over free blocks that are split and merged, as in PyTorch's caching allocator.
// The rules and their sources are in triosim/memory/footprint.py, which plays the same in Python.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
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

// Free blocks of a pool, by the largest size that may be asked for and fits into each: few have the same, and one in
// which none fits is left out.
class FreeBlocks {
public:
    static constexpr std::int32_t none = -1;

    struct Entry {
        std::int64_t size, address;
        std::int32_t block;
        bool operator>(const Entry& other) const {
            return std::tie(size, address) > std::tie(other.size, other.address);
        }
    };

    // All that may be asked for, ascending.
    explicit FreeBlocks(std::vector<std::int64_t> sizes)
        : sizes_(std::move(sizes)), of_size_(sizes_.size()), taken_(sizes_.size() / 64 + 1) {
        std::size_t next = 0;
        for (std::size_t at = 0; at < below_.size(); ++at) {
            below_[at] = static_cast<std::int32_t>(next) - 1;
            while (next < sizes_.size() && bucket(sizes_[next]) == at) ++next;
        }
    }

    // The number of a size that may be asked for.
    std::int32_t number(std::int64_t size) const { return fits(size); }
    std::int64_t size(std::int32_t number) const { return sizes_[number]; }

    // Takes the smallest that is large enough, of such the first in memory; none if there is none.
    std::int32_t take(std::int32_t number) {
        std::size_t word = static_cast<std::size_t>(number) / 64;
        std::uint64_t bits = taken_[word] & (~std::uint64_t{0} << (number % 64));
        while (!bits) {
            if (++word == taken_.size()) return none;
            bits = taken_[word];
        }
        const std::size_t found = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
        auto& blocks = of_size_[found];
        const std::int32_t block = blocks.back().block;
        blocks.pop_back();
        if (blocks.empty()) taken_[word] &= ~(std::uint64_t{1} << (found % 64));
        return block;
    }

    // Under which number it is added, none if nothing fits into it.
    std::int32_t add(const Entry& entry) {
        const std::int32_t number = fits(entry.size);
        if (number == none) return none;
        auto& blocks = of_size_[number];
        blocks.insert(std::ranges::lower_bound(blocks, entry, std::greater<>()), entry);
        taken_[number / 64] |= std::uint64_t{1} << (number % 64);
        return number;
    }

    void remove(std::int32_t number, std::int32_t block) {
        if (number == none) return;
        auto& blocks = of_size_[number];
        blocks.erase(std::ranges::find(blocks, block, &Entry::block));
        if (blocks.empty()) taken_[number / 64] &= ~(std::uint64_t{1} << (number % 64));
    }

private:
    // Sizes of one bucket have the leading one and the three bits after it in common.
    static std::size_t bucket(std::int64_t size) {
        const auto bits = static_cast<std::uint64_t>(size) | 8;
        const int width = std::bit_width(bits);
        return 8 * static_cast<std::size_t>(width) + (bits >> (width - 4) & 7);
    }

    // The largest that is no larger.
    std::int32_t fits(std::int64_t size) const {
        std::int32_t number = below_[bucket(size)];
        const auto count = static_cast<std::int32_t>(sizes_.size());
        while (number + 1 < count && sizes_[number + 1] <= size) ++number;
        return number;
    }

    std::vector<std::int64_t> sizes_;
    std::vector<std::vector<Entry>> of_size_;  // the best last
    std::vector<std::uint64_t> taken_;         // which of them hold any, 64 in a word
    std::array<std::int32_t, 8 * 65> below_{};  // of each bucket: the largest that is in one before it
};

class CachingAllocator {
public:
    static constexpr std::int64_t round_bytes = 512;
    static constexpr std::int64_t small_bytes = std::int64_t{1} << 20;

    struct Request {  // a size that may be asked for
        std::int32_t number;
        bool small;
    };

    // All sizes that may be asked for, in any order.
    explicit CachingAllocator(std::vector<std::int64_t> sizes)
        : free_{FreeBlocks(different(sizes, false)), FreeBlocks(different(sizes, true))} {}

    // Event i < sizes.size() allocates block i; event sizes.size() + i frees it.  Returns the bytes of all segments.
    static std::int64_t play(std::span<const std::int64_t> sizes, std::span<const std::int64_t> events) {
        CachingAllocator allocator({sizes.begin(), sizes.end()});
        std::vector<std::int32_t> held(sizes.size(), none);
        const auto count = static_cast<std::int64_t>(sizes.size());
        for (const std::int64_t event : events) {
            if (sizes[event % count] == 0) continue;  // an empty tensor takes no block
            if (event < count) {
                held[event] = allocator.allocate(allocator.request(sizes[event]));
            } else {
                allocator.release(held[event - count]);
            }
        }
        return allocator.reserved();
    }

    Request request(std::int64_t size) const {
        const bool small = size <= small_bytes;
        return {free_[small].number(size), small};
    }

    // The block that is allocated.
    std::int32_t allocate(Request wanted) {
        auto& pool = free_[wanted.small];
        const std::int64_t size = pool.size(wanted.number);
        std::int32_t at = pool.take(wanted.number);
        if (at == none) {
            const std::int64_t bytes = segment(size);
            at = add({bytes, top_, none, none, none, wanted.small, false});
            top_ += bytes;
            reserved_ += bytes;
        }
        blocks_[at].free = false;
        const std::int64_t rest = blocks_[at].size - size;
        if (wanted.small ? rest >= round_bytes : rest > small_bytes) {
            const std::int32_t right = blocks_[at].right;
            const std::int32_t split = add({rest, blocks_[at].address + size, at, right, none, wanted.small, false});
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
    static constexpr std::int32_t none = FreeBlocks::none;

    struct Block {
        std::int64_t size, address;
        std::int32_t left, right;  // neighbours in its segment
        std::int32_t number;       // among free blocks
        bool small, free;
    };

    // Those of a pool, ascending.
    static std::vector<std::int64_t> different(const std::vector<std::int64_t>& sizes, bool small) {
        std::vector<std::int64_t> found;
        std::array<std::int64_t, 256> seen;  // most sizes are asked for again and again
        seen.fill(-1);
        for (const std::int64_t size : sizes) {
            std::int64_t& last = seen[static_cast<std::uint64_t>(size / round_bytes) * 0x9e3779b97f4a7c15u >> 56];
            if ((size <= small_bytes) == small && size != last) found.push_back(last = size);
        }
        std::ranges::sort(found);
        const auto again = std::ranges::unique(found);
        found.erase(again.begin(), again.end());
        return found;
    }

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
        Block& block = blocks_[at];
        block.number = free_[block.small].add({block.size, block.address, at});
        block.free = true;
    }

    void remove(std::int32_t at) {
        free_[blocks_[at].small].remove(blocks_[at].number, at);
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
    FreeBlocks free_[2];  // large and small
    std::int64_t top_ = 0, reserved_ = 0;
};

}  // namespace triosim
