// Prefixes found block by block: any eviction, any sharing of what is found.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "serving_cache.hpp"
#include "serving_key_table.hpp"

namespace triosim::serving {

class BlockCache final : public PrefixCache {
public:
    BlockCache(std::int64_t blocks, std::int64_t size, std::int64_t windowed, std::int64_t window, bool radix,
               bool by_use, const BlockKeys& keys)
        : PrefixCache(blocks, size, windowed, window), radix_(radix), by_use_(by_use), keys_(keys), per_(keys.per()) {}

    void release(Request& request) override {
        for (auto block = request.held.rbegin(); block != request.held.rend(); ++block) {
            if (all_[*block].others) {
                --all_[*block].others;
            } else {
                let_go(*block);
            }
        }
        for (auto block = request.held_windowed.rbegin(); block != request.held_windowed.rend(); ++block) let_go(*block);
        request.held.clear();
        request.held_windowed.clear();
        request.blocks = request.behind = request.stored = 0;
    }

protected:
    std::int64_t matching(const Request& request) const override {
        std::int64_t found = 0;
        each(request, [&](std::int32_t) { ++found; });
        return found;
    }

    bool begin(Request& request, std::int64_t tokens) override {
        std::int64_t idle = 0;
        found_.clear();
        each(request, [&](std::int32_t block) {
            found_.push_back(block);
            idle += all_[block].idle;
        });
        const auto found = static_cast<std::int64_t>(found_.size());
        const std::int64_t more = std::max(of(tokens) - found, std::int64_t{0});
        const std::int64_t behind = windowed ? std::min(behind_of(found * size), found) : 0;
        const std::int64_t own = windowed * (found - behind);
        if (more + more * windowed + own + idle > free) return false;
        for (const std::int32_t block : found_) share(block);
        request.held.assign(found_.begin(), found_.end());
        request.blocks = request.stored = found;
        if (own) {
            free -= own;
            take_into(request.held_windowed, own);
        }
        request.behind = behind;
        return hold(request, tokens);
    }

    void store_up_to(Request& request, std::int64_t done) override {
        std::int32_t piece = none;
        for (std::int64_t place = request.stored; place < done; ++place) {
            if (piece == none || begins(request, place)) piece = named(keys_.piece(request, place));
            const std::int32_t block = request.held[place];
            std::int32_t& other = stored_[piece * per_ + place % per_];
            if (other == none) {
                other = block;
                ++pieces_[piece].count;
                all_[block].place = piece * per_ + place % per_;
            } else if (radix_) {  // another request has computed the same meanwhile
                let_go(block);
                share(other);
                request.held[place] = other;
            }
        }
    }

    void take(Request& request, std::int64_t more) override {
        take_into(request.held, more);
        if (windowed) take_into(request.held_windowed, more * windowed);
    }

    void returned(Request& request, std::int64_t count) override {
        const auto first = request.held_windowed.begin();
        for (auto block = first; block != first + count; ++block) let_go(*block);
        request.held_windowed.erase(first, first + count);
    }

private:
    struct Block {
        std::int32_t before = none, after = none;  // among the idle ones, oldest first
        std::int32_t others = 0;                   // requests that hold it beside the first
        bool idle = false;
        std::int64_t place = none, uses = 0, freed = 0;  // in the table of what is found, if it can be

        bool keyed() const { return place != none; }
    };
    struct Piece {
        std::int64_t key = 0, count = 0;  // blocks of it that are found
    };

    // Whether the piece of text of a place is another one than that of the place before.
    bool begins(const Request& request, std::int64_t place) const {
        return place % per_ == 0 || place == request.shared;
    }

    // Told of the blocks of the longest prefix that is there.
    template <class Told>
    void each(const Request& request, Told told) const {
        const std::int64_t limit = most(request);
        std::int32_t piece = none;
        for (std::int64_t place = 0; place < limit; ++place) {
            if (begins(request, place)) {
                const std::int64_t key = keys_.piece(request, place);
                if (!table_.has(key)) return;
                piece = table_.at(key);
            }
            const std::int32_t block = stored_[piece * per_ + place % per_];
            if (block == none) return;
            told(block);
        }
    }

    // The piece of text of a key.
    std::int32_t named(std::int64_t key) {
        if (table_.has(key)) return table_.at(key);
        if (spare_.empty()) {
            spare_.push_back(static_cast<std::int32_t>(pieces_.size()));
            pieces_.emplace_back();
            stored_.resize(stored_.size() + static_cast<std::size_t>(per_), none);
        }
        const std::int32_t at = spare_.back();
        spare_.pop_back();
        pieces_[at] = {key, 0};
        return table_.emplace(key, at);
    }

    // A block is not found any more.
    void forget(Block& block) {
        const auto at = static_cast<std::int32_t>(block.place / per_);
        stored_[block.place] = none;
        block.place = none;
        if (--pieces_[at].count) return;
        table_.erase(pieces_[at].key);
        spare_.push_back(at);
    }
    using Entry = std::tuple<std::int64_t, std::int64_t, std::int32_t>;  // uses, when freed, block

    void take_into(std::vector<std::int32_t>& held, std::int64_t more) {
        for (; more && static_cast<std::int64_t>(all_.size()) < blocks; --more) {
            if (all_.size() >= std::size_t{1} << 30) throw GiveUp("too many blocks to name");
            held.push_back(static_cast<std::int32_t>(all_.size()));
            all_.emplace_back();
        }
        for (; more; --more) {
            const std::int32_t block = by_use_ ? least_used() : first_;
            unlink(block);
            if (all_[block].keyed()) forget(all_[block]);
            held.push_back(block);
        }
    }

    std::int32_t least_used() {
        while (true) {
            const auto [uses, freed, block] = order_.top();
            order_.pop();
            if (all_[block].idle && all_[block].freed == freed) {
                all_[block].uses = 0;
                return block;
            }
        }
    }

    void share(std::int32_t block) {
        if (by_use_) ++all_[block].uses;
        if (all_[block].idle) {
            unlink(block);
            --free;
        } else {
            ++all_[block].others;
        }
    }

    // Nobody holds a block any more.
    void let_go(std::int32_t block) {
        Block& own = all_[block];
        own.idle = true;
        ++free;
        const bool front = !by_use_ && !own.keyed() && radix_;
        own.before = front ? none : last_;
        own.after = front ? first_ : none;
        (own.before == none ? first_ : all_[own.before].after) = block;
        (own.after == none ? last_ : all_[own.after].before) = block;
        if (by_use_) {
            own.freed = ++frees_;
            order_.emplace(own.keyed() ? own.uses : -1, own.freed, block);
        }
    }

    void unlink(std::int32_t block) {
        Block& own = all_[block];
        own.idle = false;
        (own.before == none ? first_ : all_[own.before].after) = own.after;
        (own.after == none ? last_ : all_[own.after].before) = own.before;
        own.before = own.after = none;
    }

    const bool radix_, by_use_;
    const BlockKeys& keys_;
    const std::int64_t per_;  // blocks of a piece of text
    std::vector<Block> all_;  // that have been taken at least once
    std::int32_t first_ = none, last_ = none;
    KeyTable<std::int32_t> table_;  // pieces by key
    std::vector<Piece> pieces_;
    std::vector<std::int32_t> stored_, spare_;  // blocks that are found, piece by piece; pieces of which none is
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> order_;
    std::int64_t frees_ = 0;
    std::vector<std::int32_t> found_;
};

}  // namespace triosim::serving
